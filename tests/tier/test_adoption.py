"""Tests of adoption: the uploads of a crashed writer that a claim adopts, and those that it leaves out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
from offload_conformance.ledgers import MemoryLedger, ledger_of

from offload import MemoryHandle, ObjectStoreOffloader, Snapshot, StreamWriter, TierOptions, build_chunk
from offload.contracts.store import Body
from offload.copy.history import source_agrees
from offload.formats.checksums import crc32c
from offload.formats.fragment_trailer import TRAILER
from offload.formats.keys import StreamKeys
from offload.model.attempt import Attempt, Leftover
from offload.model.manifest import Manifest
from offload.store.memory import MemoryStore


@dataclass
class Crashed:
    """A writer that announced a ledger, uploaded three fragments of a chunk each, and died."""

    offloader: ObjectStoreOffloader
    manifest: Manifest
    attempt: Attempt

    @classmethod
    async def begin(cls) -> Crashed:
        offloader = ObjectStoreOffloader(MemoryStore(), options=TierOptions(fragment_size_bytes=1))
        writer = await StreamWriter.claim(offloader, "orders")
        [attempt] = await writer.prepare([0])
        return cls(offloader, writer.manifest, attempt)

    async def upload(self, *, ledger_id: int = 0, **differs: Any) -> None:
        """Upload under the attempt, with a manifest whose fields `differs` differ from the tier's."""
        running = [replace(each, ledger_id=ledger_id) for each in self.manifest.running]
        manifest = replace(self.manifest, running=tuple(running), **differs)
        attempt = replace(self.attempt, ledger_id=ledger_id, stream=manifest.stream)
        handle = MemoryLedger(ledger_of(3).chunks, ledger_id=ledger_id)
        receipt = await self.offloader.offload(handle, attempt, manifest=manifest, extra_metadata={})
        for entry in receipt.entries:
            keys = [
                StreamKeys(stream).fragment(entry.first_offset, attempt.uid)
                for stream in (manifest.stream, "orders")
            ]
            await self.offloader.store.put(keys[1], Body.of(await self.offloader.store.get(keys[0])))


def test_adoption_ends_at_the_first_fragment_that_differs_from_the_source() -> None:
    """The broker cut its log. Fragments behind the cut continue nothing."""
    asked: list[int] = []

    async def agree(leftover: Leftover) -> bool:
        asked.append(leftover.entry.first_offset)
        return leftover.entry.first_offset != 1

    async def main() -> Manifest:
        crashed = await Crashed.begin()
        await crashed.upload()
        return (await StreamWriter.claim(crashed.offloader, "orders", agree=agree)).manifest

    manifest = asyncio.run(main())

    assert asked == [0, 1]
    assert (manifest.next_offset, manifest.fragments, manifest.running) == (1, 1, ())


@pytest.mark.parametrize(
    ("begins", "is_same", "agrees"), [(0, True, True), (0, False, False), (1, False, True)]
)
def test_a_source_contradicts_an_upload_also_by_its_oldest_chunk(
    begins: int, is_same: bool, agrees: bool
) -> None:
    """It no longer has what is before that chunk, so it cannot contradict it."""
    other = build_chunk([b"other"], offset=begins, timestamp_ms=1, epoch=1)
    chunk = ledger_of(2).chunks[begins] if is_same else other
    source = Snapshot(ledgers=[MemoryHandle([chunk])], first_offset=begins, next_offset=begins + 1, epoch=1)

    async def main() -> bool:
        crashed = await Crashed.begin()
        await crashed.upload()
        successor = replace(crashed.manifest, writer=UUID(int=9))
        [leftover, *_] = await crashed.offloader.leftovers(successor)
        assert leftover.last_chunk_offset == 0
        return await source_agrees(source, leftover)

    assert asyncio.run(main()) == agrees


@pytest.mark.parametrize(
    ("differs", "adopted"),
    [({}, 3), ({"ledger_id": 5}, 0), ({"incarnation": UUID(int=5)}, 0), ({"stream": "payments"}, 0)],
    ids=["in nothing", "in its ledger", "in its incarnation", "in its stream"],
)
def test_a_fragment_that_differs_from_its_announcement_is_not_adopted(
    differs: dict[str, Any], adopted: int
) -> None:
    async def main() -> Manifest:
        crashed = await Crashed.begin()
        await crashed.upload(**differs)
        return (await StreamWriter.claim(crashed.offloader, "orders")).manifest

    manifest = asyncio.run(main())

    assert (manifest.fragments, manifest.running) == (adopted, ())


@pytest.mark.parametrize(("byte", "value"), [(5, 3), (6, 9)], ids=["version", "codec"])
def test_a_fragment_of_a_later_program_is_not_adopted(byte: int, value: int) -> None:
    """A crashed writer may have been newer. Its uploads are copied again, and block no claim."""

    async def main() -> Manifest:
        crashed = await Crashed.begin()
        await crashed.upload()
        store, keys = crashed.offloader.store, StreamKeys("orders")
        key = keys.fragment(0, crashed.attempt.uid)
        raw = bytearray(await store.get(key))
        raw[len(raw) - TRAILER.size_bytes + byte] = value
        raw[-4:] = crc32c(bytes(raw[-TRAILER.size_bytes : -4])).to_bytes(4, "big")
        await store.put(key, Body.of(bytes(raw)))
        return (await StreamWriter.claim(crashed.offloader, "orders")).manifest

    manifest = asyncio.run(main())

    assert (manifest.fragments, manifest.running) == (0, ())
