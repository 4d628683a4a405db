"""Mistakes in what a store reports about an object without sending it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from newcomers.proofs import data_of
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore
from offload.contracts.store import Body
from offload.formats.checksums import crc32c
from offload.ground.errors import NotFound


async def _checksum_of(open_: Open, sizes: Sequence[int] = tuple(range(20))) -> None:
    store = open_()
    for size in sizes:
        await store.put("k", Body.of(data_of(size, size)))
        assert await store.stored_crc32c("k") == crc32c(data_of(size, size)), size
    with suppress(NotFound):
        assert await store.stored_crc32c("absent") is None


@bug(_checksum_of)
class ChecksumHasASign(ServiceStore):
    """The checksum is unpacked with a sign (`>i`): half of them are negative.

    Breaks "Where `stored_crc32c` returns a number, it is the object's CRC-32C": sound objects are called
    damaged.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        stored = await super().stored_crc32c(key)
        assert stored is not None
        return stored - 2**32 if stored >= 2**31 else stored
