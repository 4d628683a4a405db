"""Fourth set, offloaders: views, parts and groups."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np

from newcomers.fourth_sound import Rows
from newcomers.ledgers import chunks_of, copied, entries_of, ledger
from newcomers.registry import Open, bug
from newcomers.sound import Tier
from offload import MemoryHandle
from offload.contracts.catalogue import EntryView, StreamView
from offload.contracts.ledger import ReadHandle
from offload.model.entry import Entries, Entry
from offload.model.manifest import CommittedStream
from offload.write.job import Job
from offload.write.writer import StreamWriter

# Views


class Viewed(Rows):
    """A base class without a mistake, for tables with views of another class."""

    VIEW: type[EntryView]

    def view_of(self, committed: CommittedStream) -> StreamView:
        view = super().view_of(committed)
        changed: StreamView = type(self.VIEW.__name__, (self.VIEW, type(view)), {})(self, committed)
        return changed


async def _walk_from_the_middle(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", *(ledger(at) for at in (0, 3, 6)))
    found = []
    async with aclosing((await tier.view("s")).walk(4)) as runs:
        async for run in runs:
            found += run["first_offset"].tolist()
    assert found == [3, 6]


class NextView(EntryView):
    """A view that walks from the next fragment."""

    async def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        async with aclosing(super().walk(offset)) as runs:
            async for run in runs:
                rows = run[run["first_offset"] >= np.uint64(max(offset, 0))]
                if len(rows):
                    yield rows


@bug(_walk_from_the_middle)
class WalkFromTheNext(Viewed):
    """A walk asks for the fragments that begin at or behind an offset.

    Breaks "Yield the entries of the fragments from the one that holds `offset` on, in runs". Costs a reader
    the rest of the fragment in which it begins.
    """

    VIEW = NextView


async def _first_of_all_times(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0), ledger(3))
    view = await tier.view("s")
    for time_ms in (0, -1):
        entry = await view.first_since(time_ms)
        assert entry is not None, time_ms
        assert entry.first_offset == 0


class NowView(EntryView):
    """A view for which no time is now."""

    async def first_since(self, timestamp_ms: int) -> Entry | None:
        return await super().first_since(timestamp_ms) if timestamp_ms else None


@bug(_first_of_all_times)
class TimeZeroIsNoTime(Viewed):
    """The time 0 is taken for "no time was given", and nothing is found.

    Breaks "Return the first fragment, in the order of offsets, with a chunk of that time or later". Costs a
    reader that wants all from the beginning of time on: it reads nothing.
    """

    VIEW = NowView


# Parts and groups


async def _groups_that_were_edited(open_: Open) -> None:
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


@bug(_groups_that_were_edited)
class GroupsByTheirOffsets(Tier):
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
