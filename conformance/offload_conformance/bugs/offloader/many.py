"""Bugs that show with many fragments and many leftovers."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock
from uuid import UUID

from offload import Job, MemoryHandle, StreamWriter
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import NoSpace
from offload.model.attempt import Leftover
from offload.model.entry import Entries
from offload.model.manifest import CommittedStream, Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.ledgers import chunks_of, copied, entries_of, ledger
from offload_conformance.bugs.sound.memory import MemoryTier
from offload_conformance.bugs.sound.table import Table
from offload_conformance.bugs.sound.views import opened


@bug("contract/leftovers_may_be_many")
class LeftoversByThePage(ObjectStoreOffloader):
    """Offers at most 25 leftovers.

    `LIMIT` in the query, as in the list on a screen.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        return (await super().leftovers(manifest))[:25]


@bug("contract/streams_may_have_many_fragments")
class WalksOnePage(ObjectStoreOffloader):
    """Walks only the first 30 fragments of a stream.

    The query returns a page, and nobody asks for the next one.
    """

    def tree(self, manifest: Manifest) -> Any:
        tree = super().tree(manifest)

        async def walk(offset: int = 0) -> Any:
            left = 30
            async for run in type(tree).walk(tree, offset):
                shown: Entries = run[:left]
                left -= len(shown)
                if len(shown):
                    yield shown

        paged = MagicMock(wraps=tree)
        paged.walk = walk
        return paged


async def _groups_that_were_edited(open_: OpenClient) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    for first in range(0, 1030, 103):
        attempts = await writer.prepare([1] * 103)
        receipts = []
        for at, attempt in enumerate(attempts, first):
            handle = ledger(at, 1, size=1, ledger_id=1)
            receipts.append(await tier.offload(handle, attempt, manifest=writer.manifest, extra_metadata={}))
        await writer.append(receipts)
    assert writer.manifest.has_groups
    old = (await entries_of(tier, writer.manifest))[:2]
    job = await Job.begin(tier, "s")
    manifest, [attempt] = await job.prepare_copies([old])
    receipt = await tier.offload(_joined(0, 2), attempt, manifest=manifest, extra_metadata={})
    newest = await job.replace(old, [receipt])
    entry = await tier.tree(newest).find(1)
    assert entry is not None
    assert (entry.first_offset, entry.records) == (0, 2)


def _joined(first: int, count: int) -> ReadHandle:
    chunks = [chunk for at in range(first, first + count) for chunk in chunks_of(at, 1, size=1)]
    return MemoryHandle(chunks, ledger_id=1)


@bug("contract/streams_may_have_many_fragments", _groups_that_were_edited)
class GroupsByTheirOffsets(MemoryTier):
    """An author adds a cache of groups, by the offset at which each begins.

    Breaks "Return the entries of the group that `entry`, one row of the stream's tree, names". Costs a reader
    after a compaction: it is sent to fragments that are gone.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.cached: dict[tuple[str, int], Entries] = {}

    async def load_group(self, committed: CommittedStream, entry: Entries) -> Entries:
        key = committed.stream, int(entry["first_offset"][0])
        if key not in self.cached:
            self.cached[key] = await super().load_group(committed, entry)
        return self.cached[key]


async def _many_fragments(open_: OpenClient) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0, 1))
    for first in range(1, 110, 10):
        await writer.offload([ledger(offset, 1) for offset in range(first, first + 10)])
    manifest = await tier.load_manifest("s")
    assert (manifest.fragments, manifest.next_offset) == (111, 111)


@bug("contract/streams_may_have_many_fragments", _many_fragments)
class HundredFragments(Table):
    """Entries are a column of limited size, and a commit of the 101st fragment says that there is no room.

    Breaks "Apply `change` to the newest manifest". Costs every stream that grows: a person is told to make
    room in a store that is not full.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        if len(manifest.entries) > 100:
            raise NoSpace(f"{self.url}: the value is too long for column entries")
        return manifest
