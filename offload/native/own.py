"""The one place that looks whether a tier is of our own layout.

Sweep, rebuild, adoption and the verify of every object walk over objects, and take an `ObjectStoreOffloader`.
Whoever has a tier of any kind comes here first, and is refused in one sentence if it is another kind.
"""

from __future__ import annotations

from offload.contracts.catalogue import Catalogue
from offload.errors import Misuse
from offload.native.offloader import ObjectStoreOffloader

__all__ = ["native", "native_or_none"]


def native(tier: Catalogue, *, to: str) -> ObjectStoreOffloader:
    """The tier as one of our own layout. Raises `Misuse` for any other; `to` says what was wanted of it."""
    found = native_or_none(tier)
    if found is None:
        raise Misuse(f"{tier.url} keeps no objects of this format; ask its backend for a way to {to} it")
    return found


def native_or_none(tier: Catalogue) -> ObjectStoreOffloader | None:
    """The tier as one of our own layout, or None: for what can be done in another way too."""
    return tier if isinstance(tier, ObjectStoreOffloader) else None
