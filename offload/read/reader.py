"""Reading a stream back: chunks in order, checked, several requests ahead of the consumer.

A reader uses one view of the stream, the newest when it was opened, until an object that it names is gone.
Then the newest view decides:

    the newest view                           then
    names the object too                      it is damage, and the error is raised
    is of another incarnation, or there is
    a tombstone                               `StreamDeleted`
    does not name it                          the stream was trimmed or compacted: reading continues on this
                                              view, at its first offset if that is higher. `Skipped` is then
                                              reported

A stream that has further parts is read with them: `messages` continues in the next part, and `joined`
has the rules. Everything else here reads one part.

Invariants: the offsets of a part ascend, and each is delivered once; every delivered byte was checked; every
offset that is left out is reported. Memory is bounded as `windows` says, and by the messages of one chunk.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, Self, TypeVar

from offload.contracts.catalogue import Catalogue, StreamView
from offload.contracts.chunks import StoredChunk
from offload.contracts.events import DamageFound, Event, Skipped
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.row_choice import ChunkChoice, RowChoice
from offload.formats.records import record_runs
from offload.ground.errors import Absent, Misuse, NotOffloaded, StreamDeleted
from offload.ground.tracing import span
from offload.model.chunk_table import ChunkType, row_holding
from offload.model.entry import Entry
from offload.model.manifest import CommittedStream, Manifest
from offload.model.position import (
    OFFSET_MAX,
    AtEdge,
    AtOffset,
    AtTime,
    PartOffset,
    Position,
    check_place,
    check_position,
)
from offload.parts.whole_stream import WholeStream
from offload.read import joined
from offload.read.batches import (
    MessageRun,
    Messages,
    PartRun,
    WholeRun,
    Window,
    messages_of,
)
from offload.read.watch import News, StreamWatch, look
from offload.read.windows import EntriesAhead, WindowCache, Windows, WindowStream, windows_of_mask

__all__ = ["Messages", "StreamReader", "messages_of"]


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _ReadHere(Protocol[T_co]):
    """A method that reads one part."""

    def __call__(
        self, part: StreamReader, offset: int, /, *, until: int, rows_of: RowChoice | None
    ) -> AsyncGenerator[T_co, None]: ...


IN_FLIGHT: Final = 4

_log: Final = logging.getLogger(__name__)


def warn_of_skips(event: Event) -> None:
    """Log a warning for each `Skipped`. Readers report to this function if none is given."""
    if isinstance(event, Skipped):
        _log.warning("stream %r: %s", event.stream, reason_of(event))


def reason_of(skipped: Skipped) -> str:
    """Return the reason why a reader continues at another offset, as a sentence for a person."""
    begin, end, part = skipped.from_offset, skipped.to_offset, skipped.part
    if part is None:
        return f"offsets [{begin}, {end}) were trimmed before they were read"
    if begin < end:
        return f"no part has the offsets [{begin}, {end}); part {part} begins at offset {end}"
    return f"part {part} begins at offset {end}, so it repeats offsets below {begin}, with other records"


class StreamReader:
    """A reader of one stream of a tier, or of any other `Catalogue`. It belongs to one event loop.

    `emit` is called with each `Skipped` and `DamageFound`. Every method but `open` raises `StreamDeleted` if
    the stream was deleted and its objects were swept.

    A reader that was opened by the name of a stream's first part has readers of all `parts`. `place_of`,
    `offset_of` and `messages` are about all of them. `manifest`, `windows` and the rest are about the part
    that this reader itself reads, the first of them.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        committed: CommittedStream,
        *,
        in_flight: int = IN_FLIGHT,
        emit: Callable[[Event], None] = warn_of_skips,
        part: int = 1,
        cache: WindowCache | None = None,
        watch: StreamWatch | None = None,
    ) -> None:
        """`committed` comes from an earlier view of this catalogue. Reads it alone. Makes no request."""
        self._catalogue, self._in_flight, self.emit, self._cache = catalogue, in_flight, emit, cache
        self._watch = watch
        self._view = catalogue.view_of(committed)
        self.stream = committed.stream
        """The name by which the reader was opened. Its own part has another if part 1 was deleted."""
        self.part: Final = part
        self.parts: Sequence[StreamReader] = (self,)
        """The readers of all parts that existed when this reader was opened, in order. Deleted parts are
        left out."""

    @classmethod
    async def open(
        cls,
        catalogue: Catalogue,
        stream: str,
        *,
        in_flight: int = IN_FLIGHT,
        emit: Callable[[Event], None] = warn_of_skips,
        cache: WindowCache | None = None,
        watch: StreamWatch | None = None,
        max_staleness_seconds: float = 0.0,
    ) -> StreamReader:
        """Return a reader of the newest views. `in_flight` is the number of requests ahead of its consumer.

        Readers with the same `cache` share what they read, if they have the same catalogue. Close the cache
        after them. Readers with the same `watch` wait together when they follow. `Session.reader` opens
        readers with those of a session.

        With `max_staleness_seconds`, the views may be those of an earlier opening with this watch that is no
        older, and then no request is sent. Commits of this process are never missed, if the watch hears of
        them. `refresh` gets the newest views.

        Raises `NotOffloaded` if there is no such stream, and `StreamDeleted` if all of its parts were
        deleted. A stream without parts costs one listing more than its view.
        """
        if watch is None and max_staleness_seconds:
            raise Misuse("max_staleness_seconds needs a watch, which remembers the views")
        views: Sequence[tuple[int, StreamView]] = (
            await WholeStream(catalogue, stream).views()
            if watch is None
            else await watch.parts(stream, max_staleness_seconds=max_staleness_seconds)
        )
        how = partial(cls, catalogue, in_flight=in_flight, emit=emit, cache=cache, watch=watch)
        readers = [how(view.committed, part=part) for part, view in views]
        reader = readers[0]
        reader.stream, reader.parts = stream, readers
        return reader

    @property
    def manifest(self) -> CommittedStream:
        """The committed state of the part that this reader reads: a `Manifest` if the tier takes commits."""
        return self._view.committed

    async def place_of(self, position: Position) -> PartOffset:
        """Return the place at which reading from this position begins. `joined` has the rules for parts.

        Each part costs what `offset_here` says, up to the one in which the position is. An offset that was
        trimmed becomes the first one. Raises `Misuse` for what is no position.
        """
        check_position(position)
        return await joined.place_of(self.parts, position)

    async def offset_of(self, position: Position) -> int:
        """Return the offset of `place_of`.

        If two parts hold the offset, `messages` begins in the oldest: it repeats records, and leaves none
        out.
        """
        return (await self.place_of(position)).offset

    async def offset_here(self, position: Position) -> int:
        """Return the offset at which reading this part from a position begins.

        An offset below the first becomes the first. A time and `last` become the first offset of a chunk, or
        `next_offset` if no chunk fits. Raises `NotOffloaded` for an offset beyond `next_offset`.

        If a chunk must be found, this costs one request for an index, and one for each group above it that
        was not used lately. Otherwise it costs no request. There are at most three such groups. For a time
        there may be six, if the stream was trimmed within a group: the group's entry reaches that time, and
        the part that is left of the group does not.
        """
        return await self._asked(partial(_offset_of, position))

    async def offset_since(self, time: AtTime, offset: int) -> int:
        """Return where the first chunk of this time or later begins, from the one that holds `offset` on.

        `next_offset` if there is none. A chunk before `offset` may have the time: chunks need not ascend.
        """
        return await self._asked(partial(_first_from, time.timestamp_ms, offset))

    async def entry_at(self, offset: int) -> Entry | None:
        """Return the fragment of this part that holds an offset, or None. Costs a request for each group."""
        return await self._asked(lambda view: view.find(offset))

    @property
    def is_measured(self) -> bool:
        """See `StreamView.is_measured`: if it is False, times may be looked up in the wrong place."""
        return self._view.is_measured

    async def last_timestamp_ms(self) -> int | None:
        """Return the greatest timestamp of any chunk, or None if the stream is empty.

        Costs a request only if the stream was trimmed within a group.
        """
        return await self._asked(lambda view: view.last_timestamp_ms())

    def windows(
        self, offset: int, *, until: int = OFFSET_MAX, rows_of: RowChoice | None = None
    ) -> StreamWindows:
        """Return the chunks from the one that holds `offset` to the end, a window at a time.

        Chunks that begin at `until` or behind it are not delivered, and neither are those that `rows_of`
        leaves out. A fragment of which it wants nothing is not opened. Chunks that are left out are fetched
        only where that saves a request, and damage in them is not reported. Close the iterator when done.
        `Window` says how long its bytes are valid.
        """
        return StreamWindows(self, self._view, offset, until=until, rows_of=rows_of)

    def source_of(self, view: StreamView, offset: int, *, until: int, rows_of: RowChoice | None) -> Windows:
        """Return the windows of one view, through the cache if there is one."""
        if self._cache is None:
            return WindowStream(view, offset, in_flight_max=self._in_flight, until=until, rows_of=rows_of)
        return self._cache.windows(
            self._catalogue, view, offset, in_flight_max=self._in_flight, until=until, rows_of=rows_of
        )

    def messages(
        self, start: int | PartOffset, *, until: PartOffset | None = None, rows_of: RowChoice | None = None
    ) -> AsyncGenerator[Messages, None]:
        """Yield the messages from an offset or a place on, chunk by chunk. Chunks without any are left out.

        Reads all parts from there on, and emits `Skipped` between two. If the offset was trimmed, the first
        message is a later one, and no event says so: compare its offset. This is a generator, so it ends if a
        wait for it is cancelled. Begin again behind the last offset. Raises `Misuse` for what is no offset,
        and `NotOffloaded` for one beyond the end and for a part that the stream does not have.

        Nothing is fetched of chunks that begin at `until` or behind it. The last chunk may end behind it.
        `rows_of` leaves out chunks, as for `windows`. It is asked about each part, and two parts may have the
        same offsets.
        """
        return self._through(StreamReader.messages_here, start, until, rows_of)

    def runs(
        self,
        start: int | PartOffset,
        *,
        until: PartOffset | None = None,
        rows_of: RowChoice | None = None,
    ) -> AsyncGenerator[PartRun, None]:
        """Yield the messages from an offset or a place on, in runs of many chunks.

        Does what `messages` does, for a consumer of columns. `Window` says how long the bodies are valid.
        """
        return self._through(StreamReader.runs_here, start, until, rows_of)

    def chunks(
        self, start: int | PartOffset, *, rows_of: RowChoice | None = None
    ) -> AsyncGenerator[StoredChunk, None]:
        """Yield the stored chunks, of any type, from the one that holds an offset or a place on.

        The first chunk is whole, and may begin before `start`. Otherwise this does what `messages` does: it
        reads all parts, and raises the same errors. If the reader has a cache, nothing but the chunk in the
        consumer's hands is held between two steps.
        """
        return self._through(StreamReader.chunks_here, start, None, rows_of)

    def _through(
        self, read: _ReadHere[T], start: int | PartOffset, until: PartOffset | None, rows_of: RowChoice | None
    ) -> AsyncGenerator[T, None]:
        check_place(start)

        def here(part: StreamReader, offset: int) -> AsyncGenerator[T, None]:
            end = until.offset if until is not None and part.part == until.part else OFFSET_MAX
            return read(part, offset, until=end, rows_of=rows_of)

        parts = [each for each in self.parts if until is None or each.part <= until.part]
        return joined.read_through(parts, start, self.emit, here)

    async def refresh(self) -> bool:
        """Take the newest state of the stream, with parts that were begun since. Return True if it is newer.

        What was opened before, such as `windows`, keeps the state with which it began. Raises
        `StreamDeleted` if the newest part was deleted, or begun again since.
        """
        return self._take(
            await look(self._catalogue, self.stream, self.parts[-1].part, self.parts[-1].manifest)
        )

    def follow(
        self,
        start: int | PartOffset,
        *,
        until: Position | PartOffset | None = None,
        watch: StreamWatch | None = None,
        caught_up: Callable[[], None] = lambda: None,
        rows_of: RowChoice | None = None,
    ) -> AsyncGenerator[Messages, None]:
        """Yield the messages from an offset or a place on, as `messages` does, and then what comes later.

        Ends when the stream reaches `until`, or never; the last chunk may end behind it. Readers that share a
        `watch` wait together. The default is the watch that the reader was opened with; without any, it looks
        for itself.
        `caught_up` is called each time all that was committed has been delivered. Offsets that are trimmed
        while this waits are reported as `Skipped`. Raises `StreamDeleted` if the newest part is deleted, and
        `TryAgain` if the store does not answer for long: follow again, from behind the last offset.
        """
        return self._followed(StreamReader.messages_here, start, until, rows_of, watch, caught_up)

    def follow_chunks(
        self,
        start: int | PartOffset,
        *,
        watch: StreamWatch | None = None,
        caught_up: Callable[[], None] = lambda: None,
        rows_of: RowChoice | None = None,
    ) -> AsyncGenerator[StoredChunk, None]:
        """Yield the chunks from an offset or a place on, as `chunks` does, and then what comes later.

        Everything else is as in `follow`.
        """
        return self._followed(StreamReader.chunks_here, start, None, rows_of, watch, caught_up)

    async def _followed(
        self,
        read: _ReadHere[T],
        start: int | PartOffset,
        until: Position | PartOffset | None,
        rows_of: RowChoice | None,
        watch: StreamWatch | None,
        caught_up: Callable[[], None],
    ) -> AsyncGenerator[T, None]:
        watch = watch or self._watch or StreamWatch(self._catalogue)
        check_place(start)
        place = start if isinstance(start, PartOffset) else await self.place_of(AtOffset(start))
        while True:
            end = None if until is None else await joined.reading_end(self.parts, place, until)
            async with aclosing(self._through(read, place, end, rows_of)) as found:
                handed = list[T]()  # as in `messages_here`
                async for each in found:
                    handed.append(each)
                    del each
                    yield handed.pop()
            if end is not None:
                return
            last = self.parts[-1]
            place = PartOffset(last.part, last.manifest.next_offset)
            caught_up()
            self._take(await watch.news(self.stream, last.part, last.manifest))
            place = self._after_a_trim(last, place)

    def _after_a_trim(self, part: StreamReader, place: PartOffset) -> PartOffset:
        first, end = part.manifest.first_offset, part.manifest.next_offset
        if end < place.offset:
            raise NotOffloaded(
                f"stream {part.manifest.stream!r} ends at offset {end} now, before {place.offset}, which was "
                "read: a rebuild has cut it"
            )
        if first > place.offset:
            self.emit(Skipped(stream=part.manifest.stream, from_offset=place.offset, to_offset=first))
        return PartOffset(part.part, max(first, place.offset))

    def _take(self, news: News) -> bool:
        """Go on with newer states."""
        if news.view is not None:
            self.parts[-1]._view = news.view
        begun = [
            StreamReader(
                self._catalogue,
                view.committed,
                in_flight=self._in_flight,
                emit=self.emit,
                part=number,
                cache=self._cache,
                watch=self._watch,
            )
            for number, view in news.parts
        ]
        self.parts = [*self.parts, *begun]
        return bool(news)

    async def messages_here(
        self, offset: int, *, until: int = OFFSET_MAX, rows_of: RowChoice | None = None
    ) -> AsyncGenerator[Messages, None]:
        """Yield the messages of this part, as `messages` does."""
        async with aclosing(self.windows(offset, until=until, rows_of=rows_of)) as windows:
            # A run of a cache holds no bytes, so nothing is held while the consumer works.
            while (run := await windows.next_run()) is not None:
                # No variable refers to what was yielded: it would stay as long as the consumer stands still.
                handed = list[Messages]()
                # The first chunk may begin before `offset`. Behind it, nothing is cut.
                for batch in run.batches(self.part):
                    skip = offset - batch.offset
                    if skip <= 0:
                        handed.append(batch)
                    elif skip < len(batch.bodies):
                        handed.append(replace(batch, offset=offset, bodies=batch.bodies[skip:]))
                    del batch
                    while handed:
                        yield handed.pop()

    async def chunks_here(
        self, offset: int, *, until: int = OFFSET_MAX, rows_of: RowChoice | None = None
    ) -> AsyncGenerator[StoredChunk, None]:
        """Yield the chunks of this part, as `chunks` does, up to the one that begins at `until`."""
        async with aclosing(self.windows(offset, until=until, rows_of=rows_of)) as windows:
            while (run := await windows.next_run()) is not None:
                handed = list[StoredChunk]()  # as in `messages_here`
                for chunk in run.chunks(self.part):
                    handed.append(chunk)
                    del chunk
                    yield handed.pop()

    async def runs_here(
        self, offset: int, *, until: int = OFFSET_MAX, rows_of: RowChoice | None = None
    ) -> AsyncGenerator[PartRun, None]:
        """Yield the messages of this part, as `runs` does."""
        async with aclosing(self.windows(offset, until=until, rows_of=rows_of)) as windows:
            handed = list[PartRun]()  # as in `messages_here`
            async for window in windows:
                for run in record_runs(window.data, window.rows, where=window.where):
                    wanted = run.between(offset, OFFSET_MAX)
                    if len(wanted):
                        handed.append(PartRun(self.part, wanted))
                    del run, wanted
                    while handed:
                        yield handed.pop()
                del window

    async def newer_view(self, view: StreamView, absent: Absent) -> StreamView:
        """Return the newest view, which does not name the absent object, although `view` does.

        Raises `absent` if the newest view names the object too, and `StreamDeleted` if the stream was
        deleted, or begun again since.
        """
        # Each round ends with an answer, or with a view that is newer than the last: the loop follows a
        # stream that is trimmed, or compacted, and swept while it is looked at.
        seen = view.committed
        while True:
            newest = await self._newest_of(seen, absent)
            # The same version names the same objects, so nothing was trimmed, and the object is really lost.
            try:
                is_named = newest.committed.version == seen.version or await newest.names(absent.where)
            except Absent as another:
                seen, absent = newest.committed, another
                continue
            if is_named:
                self.emit(DamageFound(damage=absent))
                raise absent
            self._view = newest
            return newest

    async def _newest_of(self, seen: CommittedStream, absent: Absent) -> StreamView:
        epoch, deleted = None, f"stream {seen.stream!r} was deleted while it was read"
        try:
            newest = await self._catalogue.view(seen.stream)
        except StreamDeleted:
            raise StreamDeleted(deleted) from absent
        # The same offsets hold other records in another life of the stream. To continue would mix the two.
        if newest.committed.incarnation != seen.incarnation:
            if isinstance(newest.committed, Manifest):
                epoch = newest.committed.epoch
            raise StreamDeleted(deleted, epoch=epoch) from absent
        return newest

    async def _asked(self, ask: Callable[[StreamView], Awaitable[T]]) -> T:
        """Return the answer of the view, or of a newer one if an object that it needed is gone."""
        while True:
            view = self._view
            try:
                return await ask(view)
            except Absent as absent:
                await self.newer_view(view, absent)


async def newer_manifest(offloader: LedgerOffloader, manifest: Manifest, absent: Absent) -> Manifest:
    """Return the newest manifest, which does not name the absent object, although `manifest` does.

    Raises as `StreamReader.newer_view` does.
    """
    reader = StreamReader(offloader, manifest)
    newest = (await reader.newer_view(offloader.view_of(manifest), absent)).committed
    assert isinstance(newest, Manifest), "the views of an offloader are of manifests"
    return newest


async def _offset_of(position: Position, view: StreamView) -> int:
    committed = view.committed
    match position:
        case AtEdge.FIRST:
            return committed.first_offset
        case AtEdge.NEXT:
            return committed.next_offset
        case AtEdge.LAST:
            return await _last_with_messages(view)
        case AtTime(timestamp_ms):
            return await _first_since(timestamp_ms, view)
        case AtOffset(offset):
            if offset > committed.next_offset:
                covered = f"[{committed.first_offset}, {committed.next_offset})"
                raise NotOffloaded(f"stream {committed.stream!r} has offsets {covered}; {offset} is beyond")
            return max(offset, committed.first_offset)


async def _last_with_messages(view: StreamView) -> int:
    entry = await view.last_with_messages()
    if entry is None:
        return view.committed.next_offset
    async with await view.open(entry) as handle:
        table = await handle.table()
        return int(table["offset"][table["type"] == ChunkType.USER][-1])


async def _first_since(timestamp_ms: int, view: StreamView) -> int:
    entry = await view.first_since(timestamp_ms)
    if entry is None:
        return view.committed.next_offset
    async with await view.open(entry) as handle:
        table = await handle.table()
        return int(table["offset"][(table["timestamp_ms"] >= timestamp_ms).argmax()])


async def _first_from(timestamp_ms: int, begin: int, view: StreamView) -> int:
    found = await _first_since(timestamp_ms, view)
    if found >= begin:  # as always if times ascend
        return found
    async with aclosing(EntriesAhead(view, begin, OFFSET_MAX)) as entries:
        while (entry := await entries.next()) is not None:
            if entry.last_timestamp_ms >= timestamp_ms:
                async with await view.open(entry) as handle:
                    table = await handle.table()
                rows = table[row_holding(table, max(begin, entry.first_offset)) :]
                late = rows["offset"][rows["timestamp_ms"] >= timestamp_ms]
                if len(late):
                    return int(late[0])
    return view.committed.next_offset


class StreamWindows:
    """The windows of a reader. After a trim they continue at the stream's new first offset. Close it."""

    def __init__(
        self, reader: StreamReader, view: StreamView, offset: int, *, until: int, rows_of: RowChoice | None
    ) -> None:
        self._reader, self._until, self._rows_of = reader, until, rows_of
        self._next_offset = max(offset, view.committed.first_offset)
        self._open(view, self._next_offset)

    def _open(self, view: StreamView, offset: int) -> None:
        self._view = view
        self._run: MessageRun | None = None
        self._ready: deque[Window] = deque()
        self._source: Windows = self._reader.source_of(view, offset, until=self._until, rows_of=self._rows_of)

    def __aiter__(self) -> Self:
        """Return the iterator itself."""
        return self

    async def __anext__(self) -> Window:
        """Return the next window, as `WindowStream` does. Raises `StreamDeleted` if the stream is gone."""
        while not self._ready:
            window = await self._taken(lambda source: anext(source))
            # Only a window that was taken moves the offset, so a newer view continues exactly behind it.
            self._next_offset = int(window.rows["offset"][-1]) + int(window.rows["records"][-1])
            if isinstance(self._rows_of, ChunkChoice):
                kept = self._rows_of.of_chunks(window.rows, window.data)
                self._ready.extend(windows_of_mask(window, kept))
            else:
                self._ready.append(window)
        return self._ready.popleft()

    async def next_run(self) -> MessageRun | None:
        """Return the next run of chunks, to take chunk by chunk, or None at the end.

        Raises as `__anext__` does.
        """
        if isinstance(self._rows_of, ChunkChoice):
            window = await anext(self, None)
            return None if window is None else WholeRun(window)
        if self._run is not None:
            self._next_offset = max(self._next_offset, self._run.next_offset)
        self._run = await self._taken(lambda source: source.next_run())
        return self._run

    async def _taken(self, take: Callable[[Windows], Awaitable[T]]) -> T:
        while True:
            try:
                with span("read", stream=self._view.committed.stream, offset=self._next_offset):
                    return await take(self._source)
            except Absent as absent:
                await self._go_on(absent)

    async def begin_anew(self, view: StreamView, offset: int) -> None:
        """Continue at this offset of another view, even if an error has ended the iteration."""
        await self._source.aclose()
        self._open(view, offset)

    async def aclose(self) -> None:
        """Cancel the requests in flight. Idempotent."""
        await self._source.aclose()

    async def _go_on(self, absent: Absent) -> None:
        """Take a newer view. If the wait is cancelled, the next call does this again."""
        # `_next_offset` changes last. After a cancelled wait, the iteration still has its error, and it meets
        # the same offset again. `Skipped` is reported once, when the newer view is in place.
        newest = await self._reader.newer_view(self._view, absent)
        goes_on = max(self._next_offset, newest.committed.first_offset)
        await self.begin_anew(newest, goes_on)
        skipped = Skipped(stream=newest.committed.stream, from_offset=self._next_offset, to_offset=goes_on)
        self._next_offset = goes_on
        if skipped.from_offset < skipped.to_offset:
            self._reader.emit(skipped)
