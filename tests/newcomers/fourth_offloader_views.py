"""Fourth set, offloaders: views, parts and groups."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np

from newcomers.fourth_sound import Rows
from newcomers.ledgers import chunks_of, copied, entries_of, ledger, tracking
from newcomers.registry import Open, bug
from newcomers.sound import Tier
from offload import MemoryHandle
from offload.contracts.catalogue import EntryView, StreamView
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Conflict
from offload.model.entry import Entries, Entry
from offload.model.manifest import CommittedStream, Manifest
from offload.model.part import StreamPart, part_like
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


async def _empty_has_no_time(open_: Open) -> None:
    tier = open_()
    await StreamWriter.claim(tier, "s")
    assert await (await tier.view("s")).last_timestamp_ms() is None


class EpochView(EntryView):
    """A view of an empty stream that ends in 1970."""

    async def last_timestamp_ms(self) -> int | None:
        return await super().last_timestamp_ms() or 0


@bug(_empty_has_no_time)
class EmptyEndsIn1970(Viewed):
    """The greatest time of an empty stream is that of an empty table, zero.

    Breaks "Return the greatest timestamp of any chunk, or None if the stream is empty". Costs a monitor of
    lag: a new stream is 56 years behind.
    """

    VIEW = EpochView


async def _last_message_before_tracking(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0), tracking(3))
    entry = await (await tier.view("s")).last_with_messages()
    assert entry is not None
    assert entry.first_offset == 0


class LastView(EntryView):
    """A view whose last fragment has messages."""

    async def last_with_messages(self) -> Entry | None:
        found = await super().last_with_messages()
        return found and await self.find(self.committed.next_offset - 1)


@bug(_last_message_before_tracking)
class LastHasMessages(Viewed):
    """If a stream has a message at all, its last fragment is taken to have one.

    Breaks "Return the newest fragment with a record that is a message". Costs a consumer that begins at the
    last message: it finds none there.
    """

    VIEW = LastView


# Parts and groups


async def _names_like_parts(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    await copied(tier, "s-part-2", ledger(0))
    assert await tier.parts("s") == []


@bug(_names_like_parts)
class PartsByTheirNames(Tier):
    """The parts of a stream are the streams that have its name, `-part-` and a number.

    Breaks "Only parts whose record names `stream` count, not every stream whose name looks like that of a
    part". Costs a reader of a stream the records of another one.
    """

    async def parts(self, stream: str, *, after: int = 1) -> list[StreamPart]:
        found = [part_like(name) for name in await self.streams()]
        return sorted(part for part in found if part.first == stream and part.number > max(after, 1))


async def _part_of(tier: Any, number: int) -> None:
    await tier.begin_part(StreamPart("s", number), before=None)
    await StreamWriter.claim(tier, StreamPart("s", number).name)


async def _gap_of_parts(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    await _part_of(tier, 2)
    await copied(tier, "s-part-3", ledger(0))  # a stream of its own, which has the name
    await _part_of(tier, 4)
    assert [part.number for part in await tier.parts("s")] == [2, 4]


@bug(_gap_of_parts)
class PartsEndAtAGap(Tier):
    """Parts are looked up number by number until one is missing.

    Breaks "A number is left out if another stream has its name". Costs a reader the parts behind it.
    """

    async def parts(self, stream: str, *, after: int = 1) -> list[StreamPart]:
        found = list[StreamPart]()
        for at, part in enumerate(await super().parts(stream, after=after), after + 1):
            if part.number != at:
                break
            found.append(part)
        return found


async def _eleven_parts(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    for number in range(2, 12):
        await _part_of(tier, number)
    assert [part.number for part in await tier.parts("s")] == [*range(2, 12)]
    assert [part.number for part in await tier.parts("s", after=9)] == [10, 11]


@bug(_eleven_parts)
class PartsInOrderOfNames(Tier):
    """Parts are listed in the order of their names, in which part 10 comes before part 2.

    Breaks "Return the parts of a stream behind part `after`, in order". Costs a reader the order of records.
    """

    async def parts(self, stream: str, *, after: int = 1) -> list[StreamPart]:
        return sorted(await super().parts(stream, after=after), key=lambda part: part.name)


async def _part_begun_twice(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    for _ in range(2):
        await tier.begin_part(StreamPart("s", 2), before=None)
    await _part_of(tier, 2)


@bug(_part_begun_twice)
class PartsBeginOnce(Tier):
    """A part that is recorded already is refused, whoever recorded it.

    Breaks "The call may be repeated". Costs a writer that was killed after the call: its stream never goes
    on.
    """

    async def begin_part(self, part: StreamPart, *, before: Manifest | None) -> None:
        if part in await self.parts(part.first):
            raise Conflict(f"part {part.number} of {part.first!r} was begun already")
        await super().begin_part(part, before=before)


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
