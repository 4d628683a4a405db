"""What a claim adopts of a crashed writer's uploads, and what it leaves out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
from offload_conformance.ledgers import MemoryLedger, ledger_of

from offload import ObjectStoreOffloader, StreamWriter, TierOptions
from offload.contracts.store import Body
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
        """Upload under the attempt, with a manifest that `differs` from the tier's."""
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


def test_adoption_ends_with_the_first_fragment_that_the_source_has_otherwise() -> None:
    """The broker cut its log. What lies behind the cut continues nothing."""
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
    ("differs", "adopted"),
    [({}, 3), ({"ledger_id": 5}, 0), ({"incarnation": UUID(int=5)}, 0), ({"stream": "payments"}, 0)],
    ids=["in nothing", "in its ledger", "in its incarnation", "in its stream"],
)
def test_a_fragment_that_says_otherwise_than_its_announcement_is_not_adopted(
    differs: dict[str, Any], adopted: int
) -> None:
    async def main() -> Manifest:
        crashed = await Crashed.begin()
        await crashed.upload(**differs)
        return (await StreamWriter.claim(crashed.offloader, "orders")).manifest

    manifest = asyncio.run(main())

    assert (manifest.fragments, manifest.running) == (adopted, ())
