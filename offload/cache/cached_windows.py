"""Reading a stream's chunks through a block cache: the same windows as `WindowStream`, shared with others.

A reader has a *line* of pieces: runs of chunks, in order, each of a block of the cache. Nothing in the line
holds bytes. A piece whose block has left is asked for again when its turn comes.

Read-ahead: the number of blocks in line grows by one with each that is taken. It halves if a block has left
before its turn, if its fetch failed, or if the stores have refused requests because of their rate. A reader
asks for blocks only when its consumer asks for data, so a consumer that stands still begins nothing.

A `RowChoice` leaves out fragments, which are then not opened, and chunks. A piece then begins and ends with a
wanted chunk, and the gaps in it are small: its blocks are fetched whole, as by any other reader.

Invariants: windows come in order, each once, also if any wait is cancelled; an error ends the iteration after
all chunks before it were delivered. If a block is damaged, its chunks are read again without the cache, so
the sound ones before the damage are delivered, and damage that nobody wants is passed over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from offload.cache.contents import Block, Fragment, Kept, KeptTail
from offload.cache.reader_speeds import Pace
from offload.contracts.catalogue import Catalogue, StreamView
from offload.contracts.chunks import StoredChunk
from offload.contracts.row_choice import RowChoice, Wanted
from offload.ground.errors import Absent, Corrupt, OffloadError
from offload.model.chunk_table import ChunkTable, row_from, row_holding
from offload.model.entry import Entry
from offload.read.batches import ChunkRow, MessageRun, Messages, Window, batch_of, chunk_of
from offload.read.windows import EntriesAhead, RowMask, WindowStream, bridged_runs, wanted_rows

if TYPE_CHECKING:  # the cache makes these windows
    from offload.cache.block_cache import BlockCache

DECODED_SIZE_BYTES: Final = 4096
"""Small chunks are decoded together, so many bytes at a time: a consumer that stands still holds no more."""

ROWS_AT_ONCE: Final = 4


class Piece(MessageRun):
    """A run of chunks of one fragment, and the block of the cache that has them. It holds no bytes."""

    __slots__ = (
        "_kept",
        "_rows",
        "block",
        "choosing",
        "end_offset",
        "fragment",
        "is_claimed",
        "own",
        "start",
        "stop",
        "tail",
        "wanted",
    )

    def __init__(
        self,
        fragment: Fragment,
        start: int = -1,
        stop: int = 0,
        *,
        wanted: Wanted = Wanted.ALL,
        kept: RowMask | None = None,
    ) -> None:
        super().__init__()
        self.fragment, self.start, self.stop = fragment, start, stop
        """The chunks from `start` up to `stop` are left. `start` is -1 until the fragment is open."""

        self.wanted = wanted
        """How much of the fragment is wanted."""

        self.choosing: asyncio.Future[RowMask] | None = None
        """The choice among the fragment's chunks, if it is asked."""

        self._kept = kept
        """A mask of the fragment's wanted chunks; None if all of the piece are wanted.

        With it, `start` is always a wanted chunk, or `stop`.
        """

        self.end_offset = 0
        """The first offset behind the piece. Set with the block."""

        self.block: Block | None = None
        self.is_claimed = False
        """True as long as the block must be given back."""

        self.tail: Kept[KeptTail] | None = None
        """The tail that this piece waits for."""

        self.own: Window | None = None
        """The bytes of a block that is larger than the cache."""

        self._rows: list[ChunkRow] = []
        """The next few rows, the last one first."""

    @property
    def is_passed(self) -> bool:
        """True if no chunk is left."""
        return self.start >= 0 and self.stop <= self.start

    @property
    def is_lost(self) -> bool:
        """True if the block has left, or was never fetched."""
        return self.own is None and self.block is not None and self.block.is_gone

    def cut(self, at: int) -> Piece:
        """End the piece before the chunk `at`. Returns what was behind, perhaps nothing."""
        behind = Piece(self.fragment, at, self.stop, kept=self._kept)
        behind.start = behind.first_wanted(at)
        self.stop = at
        return behind

    def first_wanted(self, row: int) -> int:
        """Return the first wanted chunk at `row` or behind it, or `stop`."""
        if self._kept is None or row >= self.stop:
            return row
        found = int(self._kept[row : self.stop].argmax())
        return row + found if self._kept[row + found] else self.stop

    def _run_end(self) -> int:
        """Return the end of the run of wanted chunks that begins at `start`."""
        if self._kept is None:
            return self.stop
        run = self._kept[self.start : self.stop]
        return self.stop if run.all() else self.start + int(run.argmin())

    def window(self) -> Window:
        """Take the chunks that are left, up to the next gap. Their bytes are in memory."""
        window = self._bytes()
        assert window is not None, "a piece is returned when its bytes are in memory"
        assert self.block is not None
        stop = self._run_end()
        if stop - self.start < len(window.rows):
            window = window.cut(slice(self.start - self.block.start, stop - self.block.start))
        self.start, self._rows = self.first_wanted(stop), []
        self.next_offset = int(window.rows["offset"][-1]) + int(window.rows["records"][-1])
        if self.is_passed:
            self.pass_by()
        return window

    def pass_by(self) -> None:
        """Note that all chunks were taken."""
        self.start, self.next_offset = self.stop, self.end_offset

    def batches(self, part: int) -> Iterator[Messages]:
        """Take the chunks that are left, as far as they are in memory. No bytes are held meanwhile."""
        while not self.is_passed and self._bytes() is not None:
            decoded = self._decoded(part)
            while decoded:
                yield decoded.pop(0)  # no name refers to it: the consumer may be done with it long before us

    def chunks(self, part: int) -> Iterator[StoredChunk]:
        """Take the chunks that are left, as far as they are in memory. No bytes are held meanwhile."""
        while not self.is_passed and (window := self._bytes()) is not None:
            handed = [chunk_of(window, int(window.rows["position"][0]), self._next_row(window), part)]
            del window
            self._pass_row()
            yield handed.pop()  # no name refers to it

    def _decoded(self, part: int) -> list[Messages]:
        """Take one chunk, or several small ones."""
        window, batches, size_bytes = self._bytes(), list[Messages](), 0
        assert window is not None
        begin = int(window.rows["position"][0])
        while self.start < self.stop and size_bytes < DECODED_SIZE_BYTES:
            try:
                batch = batch_of(window, begin, self._next_row(window), part)
            except OffloadError:
                if not batches:
                    raise
                return batches  # what comes before the error is delivered first
            if batch is not None:
                batches.append(batch)
            size_bytes += self._pass_row()
        return batches

    def _pass_row(self) -> int:
        """Note that the next chunk was taken. Returns its size."""
        row = self._rows.pop()
        self.start += 1
        if not self._rows:
            self.start = self.first_wanted(self.start)
        self.next_offset = row[0] + row[4]
        return row[3]

    def _next_row(self, window: Window) -> ChunkRow:
        if not self._rows:
            assert self.block is not None
            at = self.start - self.block.start
            count = min(ROWS_AT_ONCE, self._run_end() - self.start)
            self._rows = window.rows[at : at + count].tolist()[::-1]
        return self._rows[-1]

    def _bytes(self) -> Window | None:
        return self.own or (None if self.block is None else self.block.value)


class CachedWindows:
    """An asynchronous iterator of windows, as `WindowStream` is. Close it when done."""

    def __init__(
        self,
        cache: BlockCache,
        catalogue: Catalogue,
        view: StreamView,
        offset: int,
        *,
        in_flight_max: int,
        until: int,
        rows_of: RowChoice | None = None,
    ) -> None:
        self._cache, self._view, self._until, self._ahead_max = cache, view, until, in_flight_max
        self._choice = rows_of
        self._offset = offset
        """The first offset that was not delivered."""

        self._stream = cache.stream(catalogue, view)
        self._pace = Pace(offset, cache.clock())
        self._throttled = cache.throttled()
        self._entries = EntriesAhead(view, offset, until, rows_of)
        self._walking: asyncio.Future[tuple[Entry, Wanted] | None] | None = None
        self._line: deque[Piece] = deque()
        # One block at first: a reader of one message should not fetch what lies behind it.
        self._ahead = 1
        self._size_bytes = cache.step_size_bytes
        self._direct: WindowStream | None = None
        """The chunks of a damaged block, read without the cache."""

        self._end: OffloadError | None = None

    def __aiter__(self) -> Self:
        """Return the iterator itself."""
        return self

    async def __anext__(self) -> Window:
        """Return the next window. Raises as `WindowStream` does."""
        run = await self.next_run()
        if run is None:
            raise StopAsyncIteration
        window = run.window()
        self._cache.moved(self._stream, self._pace, run.next_offset)
        return window

    async def next_run(self) -> MessageRun | None:
        """Return the next run of chunks, or None at the end.

        Its bytes stay in memory until the caller waits for anything. Raises as `__anext__` does.
        """
        while True:
            if self._direct is not None:
                if (run := await self._direct.next_run()) is not None:
                    return run
                await self._direct.aclose()
                self._direct = None
                self._line[0].pass_by()
            if self._end is not None:
                raise self._end
            while self._line and self._line[0].is_passed:
                self._offset = max(self._offset, self._line.popleft().next_offset)
            try:
                if not await self._fill():
                    return None
                piece = await self._first()
            except OffloadError as error:
                self._end = error
                raise
            if piece is not None:
                return piece

    async def aclose(self) -> None:
        """Give back what is in line. Idempotent."""
        self._stream.paces.leave(self._pace)
        asked: list[asyncio.Future[Any] | None] = [self._walking, *(piece.choosing for piece in self._line)]
        for piece in self._line:
            self._give_back(piece)
        self._line.clear()
        waiting = [each for each in asked if each is not None]
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await self._entries.aclose()
        if self._direct is not None:
            await self._direct.aclose()

    async def _fill(self) -> bool:
        """Ask for the blocks of the first pieces in line. Return False at the end of the stream.

        Waits only if the first piece needs it. An error that concerns another one is met again when that is
        the first.
        """
        number = 0
        while number < self._ahead:
            if number == len(self._line) and not await self._next_fragment(is_first=not number):
                break
            piece = self._line[number]
            if piece.is_lost and not number:
                self._read_less()  # it was fetched in vain
                self._give_back(piece)
                piece.block = None
            if piece.block is None:
                try:
                    tail = await self._tail_of(piece, is_first=not number)
                except Absent:
                    raise
                except Corrupt:  # the beginning of a fragment that is measured may be sound
                    entry = piece.fragment.entry
                    piece.end_offset = entry.next_offset
                    self._read_directly(piece, max(self._offset, entry.first_offset))
                    return True
                if tail is None:  # it is on its way. Those of small fragments behind it may come meanwhile
                    number += 1
                    continue
                if piece.start < 0:
                    chosen = self._chosen(piece, tail)
                    if chosen is None and number:
                        number += 1
                        continue
                    if chosen is None:
                        assert piece.choosing is not None
                        await asyncio.shield(piece.choosing)
                        continue  # the tail may have left meanwhile
                    del self._line[number]
                    for at, each in enumerate(chosen, start=number):
                        self._line.insert(at, each)
                    if not chosen:
                        continue
                    piece = chosen[0]
                if not self._claim(piece, tail, number):
                    break
            elif piece.is_lost:
                break
            number += 1
        return bool(self._line)

    async def _next_fragment(self, *, is_first: bool) -> bool:
        """Put the next fragment in line, as one piece. Return False if there is none, or none yet."""
        if self._walking is None and (found := self._entries.at_hand()) is not None:
            self._append(*found)
            return True
        if self._walking is None:
            # A task of its own: a walk that is cancelled ends, and would hide the fragments behind it.
            self._walking = asyncio.ensure_future(self._entries.next_wanted())
        if not is_first and (not self._walking.done() or self._walking.exception() is not None):
            return False
        found = await asyncio.shield(self._walking)
        if found is None:
            return False
        self._walking = None
        self._append(*found)
        return True

    def _append(self, entry: Entry, wanted: Wanted) -> None:
        self._line.append(Piece(self._stream.fragment(entry), wanted=wanted))

    async def _tail_of(self, piece: Piece, *, is_first: bool) -> KeptTail | None:
        """Return the tail of a piece's fragment. Waits for it only if the piece is the first."""
        while True:
            if piece.tail is not None and piece.tail.is_gone and is_first:
                self._give_back(piece)
            if piece.tail is None:
                piece.tail = self._cache.tail(piece.fragment, self._view)
            if piece.tail.value is None and not is_first:
                return None
            found = piece.tail.value
            if found is None:
                found = await self._cache.wait(piece.tail)
            self._give_back(piece)
            if found is not None:
                return found

    def _chosen(self, piece: Piece, tail: KeptTail) -> list[Piece] | None:
        """Return pieces of the wanted chunks of a fragment that was opened. None if the choice is not made.

        An error of the choice is met when the fragment is the first in line.
        """
        entry, table = piece.fragment.entry, tail.table
        start = row_holding(table, max(self._offset, entry.first_offset))
        stop = row_from(table, min(entry.next_offset, self._until))
        if self._choice is None or piece.wanted is Wanted.ALL:
            return [Piece(piece.fragment, start, stop)] if start < stop else []
        if piece.choosing is None:
            # A task of its own: it continues if the wait for it is cancelled.
            piece.choosing = asyncio.ensure_future(_kept_in(self._choice, entry, table, start, stop))
        if not piece.choosing.done() or piece.choosing.exception() is not None:
            return None
        kept = piece.choosing.result()
        return [Piece(piece.fragment, run.start, run.stop, kept=kept) for run in bridged_runs(table, kept)]

    def _claim(self, piece: Piece, tail: KeptTail, number: int) -> bool:
        """Ask for a block. If it has only the first chunks of the piece, the others become the next piece."""
        block = self._cache.block(
            piece.fragment, piece.start, size_bytes=self._size_bytes, until=piece.stop, is_ahead=number > 0
        )
        if block is None:
            return False
        if block.stop < piece.stop:
            self._line.insert(number + 1, piece.cut(block.stop))
        last = tail.table[piece.stop - 1]
        piece.block, piece.is_claimed = block, True
        piece.end_offset = int(last["offset"]) + int(last["records"])
        self._size_bytes = min(2 * self._size_bytes, self._cache.block_size_bytes_max)
        return True

    async def _first(self) -> Piece | None:
        """Wait for the first piece in line. Return None if it must be asked for again."""
        piece = self._line[0]
        if self._direct is not None:
            return None
        assert piece.block is not None, "`_fill` asks for the first piece"
        try:
            window = piece.own
            if window is None:
                window = await self._cache.wait(piece.block)
        except Absent:
            raise
        except Corrupt:
            self._read_directly(piece, max(self._offset, piece.next_offset))
            return None
        if window is None:
            return None
        if piece.is_claimed:
            self._give_back(piece)
            self._read_more()
        if piece.block.size_bytes > self._cache.size_bytes:
            piece.own = window
        begin = int(window.rows["offset"][piece.start - piece.block.start])
        self._cache.moved(self._stream, self._pace, begin)
        return piece

    def _read_directly(self, piece: Piece, begin: int) -> None:
        """Read a damaged piece without the cache: its sound chunks, and then the error."""
        self._give_back(piece)
        if piece.choosing is not None:
            piece.choosing.cancel()
        piece.block = None  # its error keeps the damaged bytes in memory
        until = min(self._until, piece.end_offset)
        self._direct = WindowStream(self._view, begin, until=until, in_flight_max=1, rows_of=self._choice)

    def _read_more(self) -> None:
        throttled = self._cache.throttled()
        if throttled > self._throttled:
            self._read_less()
        else:
            self._ahead = min(self._ahead + 1, self._ahead_max)
        self._throttled = throttled

    def _read_less(self) -> None:
        self._ahead = max(self._ahead // 2, 1)
        self._size_bytes = max(self._size_bytes // 2, self._cache.step_size_bytes)

    def _give_back(self, piece: Piece) -> None:
        """Give back what the piece was given by the cache. The block stays known."""
        if piece.tail is not None:
            self._cache.release(piece.tail)
            piece.tail = None
        if piece.is_claimed and piece.block is not None:
            piece.is_claimed = False
            self._cache.release(piece.block)


async def _kept_in(choice: RowChoice, entry: Entry, table: ChunkTable, start: int, stop: int) -> RowMask:
    """Return a mask of the wanted chunks of a table, none of them outside [start, stop)."""
    kept = np.zeros(len(table), np.bool_)
    kept[start:stop] = await wanted_rows(choice, entry, Wanted.SOME, table[start:stop])
    return kept
