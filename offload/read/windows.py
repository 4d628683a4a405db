"""Reading a stream's chunks a window at a time, with several requests in flight, also across fragments.

Invariants: windows come in order, each once; a fetch continues if the wait for it is cancelled, and its
window stays first in line; an error ends the iteration after all chunks before it were delivered. Memory is
bounded: `in_flight` windows of `READ_WINDOW_SIZE_BYTES` (or one larger chunk each), and the indexes of the
fragments that they touch and of the next one. A consumer that takes one window costs no request beyond it.

Requests: the first window of a fragment has one of its own. A reader that takes it gets all that it wants of
the fragment by one further request, if the store can answer several reads from one reply (`Span.follows`),
else by one for each window. A `RowChoice` leaves out whole fragments, which are then not opened, and chunks
of others. Chunks that are left out between two wanted ones are fetched too if they are few bytes, because a
request costs more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from offload.contracts.catalogue import Catalogue, StreamView
from offload.contracts.ledger import ReadHandle
from offload.contracts.row_choice import RowChoice, Wanted
from offload.contracts.store import Buffer
from offload.ground.errors import Absent, Corrupt, Misuse, OffloadError
from offload.model.chunk_table import ChunkTable, row_from, row_holding
from offload.model.entry import NO_ENTRIES, Entries, Entry, entries_of_rows
from offload.model.position import OFFSET_MAX
from offload.read.batches import MessageRun, WholeRun, Window
from offload.read.handles import MeasuredHandle

RowMask: TypeAlias = npt.NDArray[np.bool_]
"""True for each row of a table that is wanted."""

FIRST_WINDOW_SIZE_BYTES: Final = 256 * 1024
"""The size of the first window. It is small, because a reader of one message should fetch little."""

READ_WINDOW_SIZE_BYTES: Final = 8 * 1024 * 1024
"""The largest window. Each window is twice as large as the one before, up to this size. Smaller windows need
less fresh memory, and their bytes are still in the processor's caches when they are checked; larger ones cost
fewer steps. Decision 28 has the figures of 16, 8 and 4 MiB."""


GAP_SIZE_BYTES_MAX: Final = 1024 * 1024
"""Unwanted chunks of at most this size are fetched with the wanted ones around them: a mebibyte takes about
as long as the beginning of a request."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """One read of neighbouring chunks, and the runs of them that are wanted."""

    handle: ReadHandle
    rows: ChunkTable
    then: ChunkTable
    """The rows behind, of which later plans are made."""

    kept: Sequence[slice]

    @property
    def is_bridge(self) -> bool:
        """True if the read fetches chunks that nobody wants."""
        return sum(len(self.rows[run]) for run in self.kept) < len(self.rows)


@dataclass(frozen=True, slots=True)
class _Opened:
    """The next fragment, and how much of it is wanted."""

    entry: Entry
    wanted: Wanted
    handle: ReadHandle


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The rows of a fragment that lie in the range, and a mask of the wanted ones."""

    rows: ChunkTable
    kept: RowMask
    damage: Corrupt | None
    """The damage behind the rows."""


@dataclass(frozen=True, slots=True)
class _Fetch:
    plan: _Plan
    data: asyncio.Future[Buffer]


class Windows(Protocol):
    """An asynchronous iterator of windows, in order, each once. Close it when done."""

    def __aiter__(self) -> Self:
        """Return the iterator itself."""
        ...

    async def __anext__(self) -> Window:
        """Return the next window. Raises `Corrupt` at the first damaged chunk, and on every later call."""
        ...

    async def next_run(self) -> MessageRun | None:
        """Return the next window as a run of chunks, or None at the end. Raises as `__anext__` does."""
        ...

    async def aclose(self) -> None:
        """Release what is in flight. Idempotent."""
        ...


class WindowCache(Protocol):
    """A memory of chunks that readers share (`cache.block_cache`)."""

    def windows(
        self,
        catalogue: Catalogue,
        view: StreamView,
        offset: int,
        *,
        in_flight_max: int,
        until: int,
        rows_of: RowChoice | None,
    ) -> Windows:
        """Return the windows of a view through this memory."""
        ...


class WindowStream:
    """An asynchronous iterator of windows, from the chunk that holds `offset` to the end of `view`.

    Chunks that begin at `until` or behind it are not fetched, and those that `rows_of` leaves out are not
    delivered. The number of reads in flight grows by one with each that is delivered. Close the iterator when
    done.
    """

    def __init__(
        self,
        view: StreamView,
        offset: int,
        *,
        in_flight_max: int,
        until: int = OFFSET_MAX,
        rows_of: RowChoice | None = None,
    ) -> None:
        self._in_flight_max, self._until, self._choice = in_flight_max, until, rows_of
        self._begin(view, offset)

    def _begin(self, view: StreamView, offset: int) -> None:
        self._offset, self._view = offset, view
        # One request at first: a reader of one message should not fetch the windows behind it.
        self._in_flight = 1
        self._entries = EntriesAhead(view, offset, self._until, self._choice)
        self._opening: asyncio.Future[_Opened | None] | None = None
        self._choosing: asyncio.Future[_Chosen] | None = None
        """The choice among the rows of the fragment that was opened last."""

        self._handles: deque[ReadHandle] = deque()
        self._planned: deque[_Plan] = deque()
        self._fetching: deque[_Fetch] = deque()
        self._ready: deque[Window] = deque()
        self._end: Exception | None = None
        self._damage: Corrupt | None = None
        """The damage behind the rows that were planned last."""

        self._was_taken = False
        """True once the consumer has taken a window, so that it may want the next fragment."""

        self._window_size_bytes = FIRST_WINDOW_SIZE_BYTES

    def __aiter__(self) -> Self:
        """Return the iterator itself."""
        return self

    async def __anext__(self) -> Window:
        """Return the next window. Raises `Corrupt` at the first damaged chunk, and on every later call."""
        while not self._ready:
            # An error of `_fill` concerns a fragment further on. The windows in flight come before it, so
            # they are delivered first.
            if self._end is None:
                try:
                    await self._fill()
                except Exception as error:  # noqa: BLE001 - a choice may fail in any way
                    self._end = error
            if not self._fetching:
                if self._end is not None:
                    raise self._end
                raise StopAsyncIteration
            await self._take_first()
        self._was_taken = True
        return self._ready.popleft()

    async def next_run(self) -> WholeRun | None:
        """Return the next window as a run of chunks, or None at the end. Raises as `__anext__` does."""
        window = await anext(self, None)
        return None if window is None else WholeRun(window)

    async def _take_first(self) -> None:
        """Wait for the first read in line. Make it ready, or put what is left of it in line."""
        # A read stays first in line until its windows are ready, and the shield keeps its request alive. So a
        # caller that gives up waiting, for example by a timeout, gets these very windows from the next call.
        first = self._fetching[0]
        try:
            data = await asyncio.shield(first.data)
        except OffloadError as error:
            # Nothing behind a failed read may be delivered, so the requests behind it end first. If this wait
            # is cancelled, `first` is still in line with its error, and the next call comes here again.
            behind = await self._cancel_reads()
            if first.plan.is_bridge and isinstance(error, Corrupt):
                # The damage may be in a chunk that nobody wants. Only the wanted runs are read again. The
                # error that `_fill` met, if any, lies behind them: it is met again there.
                self._end = None
                self._planned.extendleft(reversed([*_runs_of_plan(first.plan), *behind]))
                return
            self._end = error
            self._fetch_sound_part(first.plan, error)
        else:
            await self._let_go()
            self._fetching.popleft()
            self._in_flight = min(self._in_flight + 1, self._in_flight_max)
            self._ready.extend(_windows_in(first.plan, data))

    async def begin_anew(self, view: StreamView, offset: int) -> None:
        """Continue at this offset of another view, even if an error has ended the iteration."""
        await self.aclose()
        self._begin(view, offset)

    async def aclose(self) -> None:
        """Cancel the requests in flight and release the handles. Idempotent."""
        # Requests end before the handles that they use are closed.
        await self._cancel_reads()
        asked = [each for each in (self._choosing, self._opening) if each is not None]
        for each in asked:
            each.cancel()
        for found in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(found, _Opened):
                await found.handle.aclose()
        self._choosing = self._opening = None
        self._ready.clear()
        await self._entries.aclose()
        while self._handles:
            await self._handles.popleft().aclose()

    def _fetch_sound_part(self, failed: _Plan, error: OffloadError) -> None:
        """Put the chunks before the damage in line, in place of the read that failed.

        One damaged chunk of a window of 8 MiB must not hide the sound ones before it. They are read again,
        since the failed request returned no bytes.
        """
        if isinstance(error, Corrupt):
            ends = failed.rows["position"] + failed.rows["size_bytes"]
            position = error.position if error.plain_position is None else error.plain_position
            rows = failed.rows[ends <= position]
            # Each attempt has fewer chunks than the one before, so a read that fails again ends too.
            if 0 < len(rows) < len(failed.rows):
                self._fetch(_Plan(failed.handle, rows, rows[:0], [slice(0, len(rows))]))

    async def _cancel_reads(self) -> list[_Plan]:
        """Cancel the reads in flight. Returns the plans of those behind the first."""
        waiting = [fetch.data for fetch in self._fetching]
        for task in waiting:
            task.cancel()
        # Wait until they have ended: a cancelled request still uses its handle for a moment.
        await asyncio.gather(*waiting, return_exceptions=True)
        behind = [fetch.plan for fetch in self._fetching][1:]
        self._fetching.clear()
        return behind

    async def _let_go(self) -> None:
        """Close the handles that no read behind the first needs, except the newest."""
        # Windows are delivered in order, so the handle of the second in line bounds what is needed. A handle
        # keeps its fragment's index in memory, so a long read must not keep all of them.
        behind = [fetch.plan.handle for fetch in self._fetching][1:]
        waiting = behind or [plan.handle for plan in self._planned]
        needed = waiting[0] if waiting else self._handles[-1]
        while self._handles[0] is not needed:
            await self._handles.popleft().aclose()

    async def _fill(self) -> None:
        if self._was_taken:
            self._open_ahead()
        while len(self._fetching) < self._in_flight:
            while not self._planned:
                if not await self._plan_next_fragment():
                    return
            self._fetch(self._planned.popleft())

    def _fetch(self, plan: _Plan) -> None:
        # A task of its own: it runs on while the consumer works on the window before, and if a wait for it
        # is cancelled.
        reading = plan.handle.read_on(plan.rows, plan.then) if len(plan.then) else plan.handle.read(plan.rows)
        self._fetching.append(_Fetch(plan, asyncio.ensure_future(reading)))

    async def _plan_next_fragment(self) -> bool:
        # All awaits come before the first change of state. If one is cancelled, `_opening` and `_choosing`
        # still have this fragment, and the next call gets it from there: no fragment is skipped, none is
        # planned twice.
        if self._damage is not None:
            raise self._damage
        opened = await asyncio.shield(self._open_ahead())
        if opened is None:
            return False
        if self._choosing is None:
            self._choosing = asyncio.ensure_future(self._choose(opened))
        chosen = await asyncio.shield(self._choosing)
        self._damage = chosen.damage
        self._handles.append(opened.handle)
        self._opening = self._choosing = None
        if self._was_taken:
            self._open_ahead()
        for run in bridged_runs(chosen.rows, chosen.kept):
            self._plan(opened.handle, chosen.rows[run], chosen.kept[run])
        return True

    async def _choose(self, opened: _Opened) -> _Chosen:
        """Return the rows of a fragment that lie in the range, and which of them are wanted."""
        entry, handle = opened.entry, opened.handle
        table, damage = await _table_of(handle)
        first, stop = max(self._offset, entry.first_offset), min(entry.next_offset, self._until)
        if damage is not None:
            sound_stop = handle.first_offset + int(table["records"].sum())
            if sound_stop <= first:
                raise damage
            damage = damage if sound_stop < stop else None
        rows = table[row_holding(table, first) : row_from(table, stop)]
        return _Chosen(rows, await wanted_rows(self._choice, entry, opened.wanted, rows), damage)

    def _plan(self, handle: ReadHandle, rows: ChunkTable, kept: RowMask) -> None:
        """Cut rows into reads. Each is twice as large as the one before, up to the largest window."""
        at = 0
        while at < len(rows):
            size_bytes = self._window_size_bytes
            self._window_size_bytes = min(2 * size_bytes, READ_WINDOW_SIZE_BYTES)
            for window in handle.windows(rows[at:], size_bytes=size_bytes):
                stop = at + len(window)
                # The first window comes alone: a reader of one message should not begin a long request.
                then = rows[stop:stop] if size_bytes == FIRST_WINDOW_SIZE_BYTES else rows[stop:]
                self._planned.append(_Plan(handle, window, then, runs_of_mask(kept[at:stop])))
                at = stop
                if size_bytes < self._window_size_bytes:
                    break

    def _open_ahead(self) -> asyncio.Future[_Opened | None]:
        """Fetch the next fragment's index, so that the reader need not wait for it at the border."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open_next())
        return self._opening

    async def _open_next(self) -> _Opened | None:
        found = await self._entries.next_wanted()
        return None if found is None else _Opened(*found, await self._view.open(found[0]))


class EntriesAhead:
    """The fragments of a view that have offsets in a range, one at a time.

    Entries are walked once, in runs, so no fragment is looked up from the root again. Fragments of which a
    choice wants nothing are left out.
    """

    def __init__(self, view: StreamView, offset: int, until: int, choice: RowChoice | None = None) -> None:
        self._runs, self._choice = view.walk(offset), choice
        self._until = np.uint64(min(max(until, 0), OFFSET_MAX))
        self._run, self._wanted, self._row = NO_ENTRIES, _NOTHING, 0
        self._unasked: Entries | None = None
        """The run that the choice is asked about."""

        self._is_end = False

    async def next(self) -> Entry | None:
        """Return the next fragment's entry, or None after the last."""
        found = await self.next_wanted()
        return None if found is None else found[0]

    async def next_wanted(self) -> tuple[Entry, Wanted] | None:
        """Return the next fragment's entry, and how much of it is wanted. None after the last."""
        while (found := self.at_hand()) is None:
            if self._unasked is None:
                run = None if self._is_end else await anext(self._runs, None)
                if run is None:
                    return None
                self._unasked = run[run["first_offset"] < self._until]
                self._is_end = len(self._unasked) < len(run)
            wanted = await _wanted_entries(self._choice, self._unasked)
            rows = np.flatnonzero(wanted)
            self._run, self._wanted, self._row = self._unasked[rows], wanted[rows], 0
            self._unasked = None
        return found

    def at_hand(self) -> tuple[Entry, Wanted] | None:
        """Return what `next_wanted` returns if its run is loaded and chosen. None also after the last."""
        if self._row == len(self._run):
            return None
        self._row += 1
        entry = entries_of_rows(self._run[self._row - 1 : self._row])[0]
        return entry, Wanted(int(self._wanted[self._row - 1]))

    async def aclose(self) -> None:
        """End the walk. No more groups are loaded."""
        await self._runs.aclose()


_NOTHING: Final = np.empty(0, np.uint8)


async def _wanted_entries(choice: RowChoice | None, entries: Entries) -> npt.NDArray[np.uint8]:
    if choice is None or not len(entries):
        return np.full(len(entries), Wanted.ALL, np.uint8)
    wanted = await choice.of_entries(entries)
    if wanted.shape != entries.shape:  # a fragment without an answer would be left out in silence
        raise Misuse(f"{type(choice).__name__} answered {len(wanted)} times about {len(entries)} fragments")
    return wanted


async def wanted_rows(choice: RowChoice | None, entry: Entry, wanted: Wanted, rows: ChunkTable) -> RowMask:
    """Return a mask of the rows of a fragment that are wanted."""
    if choice is None or wanted is Wanted.ALL or not len(rows):
        return np.ones(len(rows), np.bool_)
    kept = await choice.of_rows(entry, rows)
    if kept.shape != rows.shape:  # as above
        raise Misuse(f"{type(choice).__name__} answered {len(kept)} times about {len(rows)} chunks")
    return kept


def windows_of_mask(window: Window, kept: RowMask) -> list[Window]:
    """Return the kept chunks of a window, as windows of the same bytes."""
    return [window] if kept.all() else [window.cut(run) for run in runs_of_mask(kept)]


def runs_of_mask(kept: RowMask) -> list[slice]:
    """Return the runs of neighbours that are kept."""
    edges = np.flatnonzero(np.diff(kept, prepend=False, append=False)).tolist()
    return [slice(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def bridged_runs(rows: ChunkTable, kept: RowMask) -> list[slice]:
    """Return the runs of rows to read: those that are kept, with the small gaps between them."""
    runs: list[slice] = []
    for run in runs_of_mask(kept):
        if runs and int(rows["size_bytes"][runs[-1].stop : run.start].sum()) <= GAP_SIZE_BYTES_MAX:
            run = slice(runs.pop().start, run.stop)
        runs.append(run)
    return runs


async def _table_of(handle: ReadHandle) -> tuple[ChunkTable, Corrupt | None]:
    """Return the table of a fragment. If only its beginning is sound: its rows, and the damage behind it.

    A fragment without stored chunks is read to make its table. So damage of any record is found here, and
    must not hide the records before it.
    """
    try:
        return await handle.table(), None
    except Corrupt as damage:
        if isinstance(damage, Absent) or not isinstance(handle, MeasuredHandle):
            raise
        return await handle.sound_table(), damage


def _runs_of_plan(plan: _Plan) -> list[_Plan]:
    """Return a plan for each wanted run, so that no other chunk is read."""
    runs = [plan.rows[run] for run in plan.kept]
    return [_Plan(plan.handle, rows, rows[:0], [slice(0, len(rows))]) for rows in runs]


def _windows_in(plan: _Plan, data: Buffer) -> list[Window]:
    """Return the wanted runs of a read, as windows of the same bytes."""
    whole = Window(plan.rows, data, plan.handle.where)
    return [whole.cut(run) for run in plan.kept] if plan.is_bridge else [whole]
