"""Creating and reading anchors: the tier's, and each stream's.

Invariant: an anchor is created only if it is absent, and never changed. So to send it again is always safe.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from offload.contracts.store import ObjectStore, Span
from offload.formats.anchor import ANCHOR_SIZE_BYTES_MAX, TierAnchor
from offload.formats.keys import TIER_ANCHOR
from offload.ground.env import Env
from offload.ground.errors import (
    AlreadyExists,
    OutcomeUnknown,
    TryAgain,
)
from offload.store.checked import checked

T = TypeVar("T")

CREATES_MAX: Final = 8
"""The limit of creates of one anchor while the store does not answer whether it took effect."""


async def create_anchor(store: ObjectStore, key: str, raw: bytes, env: Env) -> bool:
    """Create an anchor, and return whether it was absent.

    If it was not absent, it may be a rival's, or our own from a create whose reply was lost: read it. Raises
    the store's error if `CREATES_MAX` requests bring no answer.
    """
    # After a lost reply the same bytes are sent again, and a store that has them answers that the anchor
    # exists. If the first create lands later, it finds the anchor, and changes nothing.
    for attempt in range(CREATES_MAX - 1):
        try:
            return await _created(store, key, raw)
        except (TryAgain, OutcomeUnknown):
            await env.sleep(env.backoff_seconds(attempt))
    return await _created(store, key, raw)


async def _created(store: ObjectStore, key: str, raw: bytes) -> bool:
    try:
        await store.create(key, raw)
    except AlreadyExists:
        return False
    return True


async def read_anchor(store: ObjectStore, key: str, decode: Callable[[bytes], T]) -> T:
    """Read an anchor, and return what `decode` returns for its bytes."""
    # One byte more than an anchor may have. Any object may lie under this name, also one of many gigabytes,
    # and the extra byte makes `decode` refuse it.
    return await checked(store, key, decode, span=Span(0, ANCHOR_SIZE_BYTES_MAX + 1))


async def read_tier_anchor(store: ObjectStore) -> TierAnchor:
    """Read the anchor of a tier. Raises `NotFound`, `Corrupt` or `UnsupportedFormat`."""
    return await read_anchor(store, TIER_ANCHOR, partial(TierAnchor.decode, where=TIER_ANCHOR))
