"""The check that a tier has the native layout.

Sweep, rebuild, adoption and the verify of every object walk over objects, and take an `ObjectStoreOffloader`.
Code that has a tier of any kind calls this module first. Nothing else asks for the type of a tier.
"""

from __future__ import annotations

from offload.contracts.catalogue import Catalogue
from offload.ground.errors import Misuse
from offload.native.offloader import ObjectStoreOffloader

__all__ = ["native", "native_or_none"]


def native(tier: Catalogue, *, to: str) -> ObjectStoreOffloader:
    """Return the tier as one of the native layout.

    Raises `Misuse` for any other. `to` is a verb for its text: what the caller wanted to do with the tier.
    """
    found = native_or_none(tier)
    if found is None:
        raise Misuse(f"{tier.url} keeps no objects of this format; ask its backend for a way to {to} it")
    return found


def native_or_none(tier: Catalogue) -> ObjectStoreOffloader | None:
    """Return the tier as one of the native layout, or None: for work that can be done in another way too."""
    return tier if isinstance(tier, ObjectStoreOffloader) else None
