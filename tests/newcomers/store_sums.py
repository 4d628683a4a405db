"""Mistakes in what a store reports about an object without sending it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from newcomers import proofs
from newcomers.proofs import data_of
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore
from offload.contracts.store import Body, check_key
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


@bug(proofs.replaced(10, 20, 30, by="upload"))
class ChecksumOfTheFirstPut(ServiceStore):
    """Puts and creates store the checksum beside the object. Uploads leave the old one.

    Breaks "Stored checksums are true", once an upload replaces an object.
    """

    sums: ClassVar[dict[tuple[str, str], int]] = {}

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.sums[self._url, key] = crc32c(self.service.objects[key])

    async def stored_crc32c(self, key: str) -> int | None:
        stored = await super().stored_crc32c(key)
        return self.sums.setdefault((self._url, key), stored)  # type: ignore[arg-type]

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            self.sums.pop((self._url, key), None)


@bug(_checksum_of)
class ChecksumOfNothingIsNone(ServiceStore):
    """`stored or None`: the CRC-32C of no bytes is zero, and zero counts as unknown. An absent key is unknown
    too.

    Breaks "`stored_crc32c`: Raises `NotFound`".
    """

    async def stored_crc32c(self, key: str) -> int | None:
        head = await self.ask(self.service.head, check_key(key))
        return head[1] or None if head else None


async def _retained_of_absent(open_: Open) -> None:
    with suppress(NotFound):
        assert await open_().retained("absent") is None


@bug(_retained_of_absent)
class EverythingIsRetained(ServiceStore):
    """`retained` queries the setting of the bucket and never the object.

    Breaks "`retained`: Raises `NotFound`": a tool reports kept bytes of objects that never were.
    """

    async def retained(self, key: str) -> str | None:
        check_key(key)
        return "the bucket keeps deleted versions"
