"""Signed reads of a store behind its decorators, which only change the names of keys."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.signing import SignedReads, SignsReads
from offload.contracts.store import ObjectStore
from offload.ground.errors import Misuse
from offload.store.wrap import StoreDecorator

__all__ = ["signed_reads"]


async def signed_reads(store: ObjectStore, keys: Sequence[str], *, seconds: int) -> SignedReads:
    """Return signed reads of these keys of `store`.

    Raises `Misuse` if the backend's store does not sign reads, and otherwise as `SignsReads.signed_reads`.
    """
    url = store.url
    while isinstance(store, StoreDecorator):
        keys = [store.placed(key) for key in keys]
        store = store.inner
    if not isinstance(store, SignsReads):
        raise Misuse(f"{url}: its backend does not sign reads")
    return await store.signed_reads(keys, seconds=seconds)
