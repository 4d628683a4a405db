"""The layer `catalogue` on every kind of catalogue that is here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID, uuid4

import pytest
from foreign_tier import LinesCatalogue, write_lines
from offload_conformance import CatalogueBackend, FilledStream, MemoryLedger
from offload_pulsar import BrokerNames, PulsarBucket, PulsarCatalogue, PulsarKey, PulsarSource
from pulsar_sets import ListedEntries

from offload import Catalogue, ObjectStoreOffloader, Retention, StreamWriter, TierOptions, build_chunk, trim
from offload.contracts.store import Body
from offload.store.memory import MemoryStore

NEW_LINES = ["later", "and later"]


class TestLines(CatalogueBackend):
    """A layout of a stranger, without checksums."""

    finds_damage = False

    def open_catalogue(self) -> Catalogue:
        return LinesCatalogue(self.folder)

    async def fill(self) -> Sequence[FilledStream]:
        lines = [f"line {number}" for number in range(30)]
        for first in range(0, 30, 6):
            write_lines(self.folder, "orders", first, 1000 + first, lines[first : first + 6])
        write_lines(self.folder, "other", 0, 5, ["a", "b"])
        records = [line.encode() for line in lines]
        return [
            FilledStream(name="orders", records=records),
            FilledStream(name="other", records=[b"a", b"b"]),
        ]

    async def grow(self, stream: str) -> Sequence[bytes]:
        write_lines(self.folder, stream, 30, 2000, NEW_LINES)
        return [line.encode() for line in NEW_LINES]

    async def damage(self, stream: str, fragment: str) -> None:
        raise AssertionError("nothing shows damage")

    async def drop(self, stream: str) -> None:
        (self.folder / stream / "0.1000.lines").unlink()


class TestPulsar(CatalogueBackend):
    """Pulsar's bucket, on a store with metadata."""

    @pytest.fixture(autouse=True)
    def _bucket(self) -> None:
        self.store = MemoryStore()
        self.uids: dict[int, UUID] = {}

    def open_catalogue(self) -> Catalogue:
        return PulsarCatalogue(PulsarSource(self.store, "pulsar+memory://bucket"))

    async def put(self, ledger_id: int, stream: str) -> list[bytes]:
        entries = [b"%d %d" % (ledger_id, number) + b"." * (number * 7 % 40) for number in range(15)]
        uid = self.uids[ledger_id] = uuid4()
        bucket = PulsarBucket(self.store, block_size_bytes_max=300)
        await bucket.offload(ListedEntries(ledger_id, entries), uid, names=BrokerNames(managed_ledger=stream))
        return entries

    async def fill(self) -> Sequence[FilledStream]:
        records = [*await self.put(3, "a/b/persistent/orders"), *await self.put(9, "a/b/persistent/orders")]
        return [
            FilledStream(name="a/b/persistent/orders", records=records),
            FilledStream(name="a/b/persistent/other", records=await self.put(4, "a/b/persistent/other")),
        ]

    async def grow(self, stream: str) -> Sequence[bytes]:
        return await self.put(12, stream)

    async def damage(self, stream: str, fragment: str) -> None:
        key = str(PulsarKey(self.uids[3], 3))
        assert fragment.startswith(key)
        data = bytearray(self.store.objects[key])
        data[300] ^= 1  # the magic of the second block
        whole = self.store.objects[key]
        self.store.objects[key] = type(whole).of(bytes(data), whole.metadata)

    async def drop(self, stream: str) -> None:
        await PulsarBucket(self.store).delete(3, self.uids[3])


class TestNative(CatalogueBackend):
    """Our own layout is a catalogue, too."""

    @pytest.fixture(autouse=True)
    def _bucket(self) -> None:
        self.store = MemoryStore()

    def open_catalogue(self) -> ObjectStoreOffloader:
        return ObjectStoreOffloader(self.store, options=TierOptions(fragment_size_bytes=200))

    async def append(self, stream: str, ledgers: int) -> list[bytes]:
        async with self.open_catalogue() as tier:
            writer = await StreamWriter.claim(tier, stream)
            records = []
            for _ in range(ledgers):
                begin = writer.manifest.next_offset
                bodies = [b"%d" % (begin + number) * 20 for number in range(8)]
                make = partial(build_chunk, epoch=1)
                chunks = [
                    make(bodies[at : at + 2], offset=begin + at, timestamp_ms=1000 + begin + at)
                    for at in range(0, 8, 2)
                ]
                await writer.offload([MemoryLedger(chunks)])
                records += bodies
            return records

    async def fill(self) -> Sequence[FilledStream]:
        return [
            FilledStream(name="orders", records=await self.append("orders", 4)),
            FilledStream(name="other", records=await self.append("other", 1)),
        ]

    async def grow(self, stream: str) -> Sequence[bytes]:
        return await self.append(stream, 1)

    async def damage(self, stream: str, fragment: str) -> None:
        data = bytearray(self.store.objects[fragment])
        data[len(data) // 4] ^= 1
        await self.store.put(fragment, Body.of(bytes(data)))

    async def drop(self, stream: str) -> None:
        async with self.open_catalogue() as tier:
            report = await trim(tier, stream, Retention(before_offset=8))
            assert report
        async for row in self.store.list(""):
            if ".fragment" in row.key and f"{stream}/" in row.key and "/00000000000000000000." in row.key:
                await self.store.delete([row.key])
