"""Fifth set, offloaders: views, handles, and results that callers share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from uuid import UUID

import numpy as np

from newcomers.fifth_sound import Glance, opened
from newcomers.fourth_sound import Relay, Rows, copying
from newcomers.ledgers import (
    attempt_of,
    chunks_of,
    copied,
    entries_of,
    ledger,
    trimmed,
)
from newcomers.registry import Open, bug
from offload.contracts.catalogue import StreamView
from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Buffer
from offload.ground.errors import Absent, NotOffloaded
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries, Entry, entries_of_rows
from offload.model.manifest import CommittedStream, Manifest

# Views


async def _view_of_an_older_state(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    old = await tier.load_manifest("s")
    await writer.offload([ledger(3)])
    await tier.view("s")
    view = tier.view_of(old)
    assert view.committed.next_offset == 3
    assert await view.find(4) is None


@bug(_view_of_an_older_state)
class OneViewOfAStream(Rows):
    """A catalogue keeps one view of each stream, and `view_of` returns it, if it is of the same life or
    newer.

    Breaks "Return a view of the state of an earlier view of this tier". Costs a reader whose plan was made on
    an older state: it reads what is not in the plan.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.views: dict[tuple[str, UUID], StreamView] = {}

    def view_of(self, committed: CommittedStream) -> StreamView:
        name = committed.stream, committed.incarnation
        view = self.views.get(name)
        if view is None or view.committed.version < committed.version:
            view = self.views[name] = super().view_of(committed)
        return view


async def _runs_are_kept(open_: Open) -> None:
    tier = await opened(open_)
    await copied(tier, "s", *(ledger(first) for first in range(0, 12, 3)))
    async with aclosing((await tier.view("s")).walk()) as walk:
        runs = [run async for run in walk]
    offsets = [entry.first_offset for run in runs for entry in entries_of_rows(run)]
    assert offsets == [0, 3, 6, 9], offsets


@bug(_runs_are_kept)
class RunsShareTheirRows(Rows):
    """A walk fetches entries into one array, again and again, and yields it each time.

    Breaks "Yield the entries of the fragments". Costs a caller that keeps the runs: all of them are the last.
    """

    def view_of(self, committed: CommittedStream) -> StreamView:
        class Fetching(Glance):
            async def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
                rows: Any = None
                async with aclosing(super().walk(offset)) as runs:
                    async for run in runs:
                        for at in range(len(run)):
                            rows = run[at : at + 1].copy() if rows is None else rows
                            rows[:] = run[at : at + 1]
                            yield rows

        return Fetching(super().view_of(committed))


def _at_times(*times_ms: int) -> list[ReadHandle]:
    return [ledger(3 * at, time_ms=time_ms) for at, time_ms in enumerate(times_ms)]


async def _found_by_time(open_: Open) -> None:
    tier = await opened(open_)
    await copied(tier, "s", *_at_times(5000, 1000, 2000, 9000))
    view = await tier.view("s")
    for time_ms, offset in ((0, 0), (3000, 0), (5002, 0), (5003, 9), (9002, 9)):
        found = await view.first_since(time_ms)
        assert found is not None, time_ms
        assert found.first_offset == offset, (time_ms, found.first_offset)
    assert await view.first_since(9003) is None


@bug(_found_by_time)
class FirstSinceBisects(Rows):
    """Times are searched as if they ascended.

    Breaks "Return the first fragment, in the order of offsets, with a chunk of that time or later". Costs a
    reader by time on a stream whose leader's clock went back: it begins too late.
    """

    def view_of(self, committed: CommittedStream) -> StreamView:
        class Bisecting(Glance):
            async def first_since(self, timestamp_ms: int) -> Entry | None:
                entries = self.committed.entries
                row = int(np.searchsorted(entries["last_timestamp_ms"].astype(float), timestamp_ms))
                return entries_of_rows(entries[row : row + 1])[0] if row < len(entries) else None

        return Bisecting(super().view_of(committed))


async def _greatest_time(open_: Open) -> None:
    tier = await opened(open_)
    for number, times in enumerate(((5000, 1000), (-9000, -5000), (-5,))):
        await copied(tier, f"s{number}", *_at_times(*times))
        found = await (await tier.view(f"s{number}")).last_timestamp_ms()
        assert found == max(times) + 2, found


@bug(_greatest_time)
class TimeOfTheLastFragment(Rows):
    """The last time of a stream is that of its last fragment.

    Breaks "Return the greatest timestamp of any chunk". Costs a report of the lag after a clock went back.
    """

    def view_of(self, committed: CommittedStream) -> StreamView:
        class Last(Glance):
            async def last_timestamp_ms(self) -> int | None:
                entries = self.committed.entries
                return int(entries["last_timestamp_ms"][-1]) if len(entries) else None

        return Last(super().view_of(committed))


async def _older_entries_are_themselves(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", *(ledger(first, ledger_id=1) for first in (0, 3, 6)))
    view = await tier.view("s")
    old = (await entries_of(tier, writer.manifest))[:2]
    job, _, receipt = await copying(tier, "s", old)
    await job.replace(old, [receipt])
    for entry in old:
        try:
            handle = await view.open(entry)
        except Absent:
            continue
        assert (handle.first_offset, handle.next_offset) == (entry.first_offset, entry.next_offset)


@bug(_older_entries_are_themselves)
class OpensByOffset(Rows):
    """A fragment is looked up by its offset in the newest manifest, where a copy may have its place.

    Breaks "Return a handle on the fragment that `entry`, an entry of this view, describes". Costs a reader of
    an older view: it reads some records twice.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        if manifest is not None and only:
            newest = await self.load_manifest(attempt.stream)
            found = await self.tree(newest).find(only[0])
            if found is not None and found.attempt != attempt.uid and found.copied:
                attempt, manifest = attempt_of(attempt.stream, found), newest
        return await super().read_offloaded(attempt, manifest=manifest, only=only)


# Handles


class Shared(Rows):
    """Handles in front of those of `Rows`: the base of some bugs, itself without one."""

    def in_front(self, handle: ReadHandle) -> ReadHandle:
        return handle

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        return self.in_front(await super().read_offloaded(attempt, manifest=manifest, only=only))


async def _read_on_is_read(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0, 6))
    [entry] = await entries_of(tier, writer.manifest)
    handle = await tier.read_offloaded(attempt_of("s", entry))
    table = await handle.table()
    runs = [table[at : at + 1] for at in range(6)]
    found = [await handle.read_on(run, table[at + 1 :]) for at, run in enumerate(runs)]
    assert [bytes(each) for each in found] == chunks_of(0, 6)


@bug(_read_on_is_read)
class ReadOnReadsBoth(Shared):
    """A read that goes on returns the rows behind too, up to a window: they were read anyway.

    Breaks "Return what `read` returns". Costs a reader that counts on it: it delivers chunks twice.
    """

    def in_front(self, handle: ReadHandle) -> ReadHandle:
        class Greedy(Relay):
            async def read_on(self, rows: ChunkTable, then: ChunkTable) -> Buffer:
                return bytes(await self.read(rows)) + bytes(await self.read(then[:1]))

        return Greedy(handle)


async def _only_of_any_range(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0, 6, size=30_000))
    entries = await entries_of(tier, writer.manifest)
    assert len(entries) > 1
    for only in (range(-5, 1), range(2**70), range(-(2**70), 2**70)):
        handle = await tier.read_offloaded(attempt_of("s", entries[0]), only=only)
        assert handle.first_offset == 0, only


@bug(_only_of_any_range)
class BoundsOf64Bits(Rows):
    """The bounds of `only` are parameters of 64 bits, and others cannot be bound.

    Breaks "`only` narrows the handle to the fragments that hold some of these offsets". Costs a caller that
    asks for all before an offset, or all behind one.
    """

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> Any:
        if only is not None:
            np.array([only.start, only.stop], dtype=np.uint64)
        return await super().entries_of(attempt, manifest, only)


async def _rest_of_an_attempt(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0, 9, size=30_000))
    entries = await entries_of(tier, writer.manifest)
    await trimmed(tier, "s", entries[1].first_offset)
    handle = await tier.read_offloaded(attempt_of("s", entries[0]))
    assert handle.first_offset == entries[1].first_offset


@bug(_rest_of_an_attempt)
class AnyLossIsAHole(Rows):
    """An attempt is read only if all of its fragments are named: one that was trimmed is taken for a hole.

    Breaks "Return a handle on the fragments of `attempt` that `manifest` names". Costs a reader after a trim,
    which stops at the ledger that was cut.
    """

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> Any:
        found = await super().entries_of(attempt, manifest, only)
        if only is None and len(found) < len(self.of_attempt(attempt)):
            raise NotOffloaded(f"attempt {attempt.uid} has lost fragments")
        return found
