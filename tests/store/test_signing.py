"""Signed reads are asked of the backend's store, by the names that its objects have there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from offload.contracts.opening import RequestLimits
from offload.contracts.signing import SignedReads, SignsReads
from offload.ground.errors import Misuse
from offload.store.hashed import HashedStore, folder_of
from offload.store.limit import LimitedStore
from offload.store.memory import MemoryStore
from offload.store.prefix import PrefixStore
from offload.store.signing import signed_reads


class Signing(MemoryStore, SignsReads):
    """A store whose signed reads are the keys themselves."""

    async def signed_reads(self, keys: Sequence[str], *, seconds: int) -> SignedReads:
        return SignedReads(urls=keys, seconds=seconds, expires_ms=0, stall_seconds=1.0)


def test_each_decorator_places_the_keys() -> None:
    store = HashedStore(PrefixStore(LimitedStore(Signing(), RequestLimits()), "tier"), lone="offload")

    found = asyncio.run(signed_reads(store, ["orders/a", "offload.json"], seconds=9))

    assert found.urls == [f"tier/{folder_of('orders')}/orders/a", "tier/offload.json"]
    assert found.seconds == 9


def test_a_store_that_signs_no_reads_says_so() -> None:
    store = PrefixStore(MemoryStore(), "tier")

    with pytest.raises(Misuse, match=r"/tier: its backend does not sign reads"):
        asyncio.run(signed_reads(store, [], seconds=9))


def test_a_signed_read_is_not_in_a_text() -> None:
    found = SignedReads(urls=["https://host/key?secret"], seconds=9, expires_ms=0, stall_seconds=1.0)

    assert "secret" not in f"{found} {found!r}"
