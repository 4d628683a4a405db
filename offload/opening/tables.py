"""The streams of a tier as Arrow tables, for notebooks and scripts (docs/arrow.md).

    orders = offload.open("s3://bucket/tier")["orders"]
    orders.to_arrow(start="-1h")

`ArrowStream` also has the stream protocol of Arrow, so DuckDB, Polars and others read it without a copy step.

Invariants: every read of one `ArrowStream` sees the stream as it was when it was opened; a read that lacks
rows raises and never ends early; nothing is kept between reads, so threads share an object.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import date
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np
import pyarrow as pa

from offload.arrow.batches import BatchMaker
from offload.arrow.columns import OF_TABLE, arrow_schema
from offload.arrow.scan import (
    PartRange,
    RangeSource,
    count_in,
    pieces_of_ranges,
    ranges_between,
    runs_in,
    sources,
)
from offload.contracts.catalogue import Catalogue
from offload.contracts.decoder import Decoder, RecordSelector
from offload.ground.env import Env
from offload.ground.errors import Misuse, NotOffloaded, OffloadError
from offload.ground.extras import missing_text
from offload.index.find import FindReport, FoundRun, find, of_rows
from offload.index.selection import select
from offload.index.terms import Spec
from offload.model.manifest import CommittedStream
from offload.model.position import (
    AtEdge,
    AtOffset,
    AtTime,
    PartOffset,
    Position,
    as_position,
    position_text,
)
from offload.model.record_columns import RecordBytes
from offload.opening.blocking import Blocking
from offload.parts.whole_stream import WholeStream, grouped
from offload.read.chunk_filter import ChunkFilter

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]  # it ships no types

__all__ = ["ArrowStream", "ArrowTier"]


_log: Final = logging.getLogger(__name__)

BATCH_ROWS_MAX: Final = 2**17
BATCH_SIZE_BYTES_MAX: Final = 32 * 1024 * 1024
"""The most bytes of values in one batch, unless one value is larger: far below the 2 GiB that the 32-bit
offsets of a column reach."""

RowPosition: TypeAlias = int | str | date | Position | PartOffset | None
"""A position: an offset, a moment or day, a SPEC as in `offload read --from`, or None for the edge of the
stream. A `datetime` is a `date`."""


class ArrowTier:
    """A tier whose streams are tables: `tier["orders"]`. `offload.open` returns one.

    Iterating gives the names of the streams that were ever begun, also of deleted ones. Any thread may use
    it. `close` it, or use it in a `with` block; otherwise it is closed when neither it nor a stream of it is
    used any more.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        keys: str | None = None,
    ) -> None:
        """The arguments and errors are those of `Blocking`. Raises `NotOffloaded` if there is no tier."""
        self._hold(Blocking(url, storage_options=storage_options, keys=keys))

    @classmethod
    def around(cls, tier: Blocking) -> Self:
        """Return the tables of an open tier, and close that tier with them."""
        made = cls.__new__(cls)
        made._hold(tier)
        return made

    def _hold(self, tier: Blocking) -> None:
        self._tier = tier
        # The thread of `Blocking` would keep it, and its connections, for as long as the process lives.
        self._closing = weakref.finalize(self, _closed, tier)
        try:
            self._streams = self._asked_streams()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, stream: str) -> ArrowStream:
        """Return a stream as it is committed now, with its parts.

        Raises `NotOffloaded`, a `LookupError`, if there is none of this name, `StreamDeleted`, and `Misuse`
        for what is no name.
        """
        if not isinstance(stream, str):
            raise Misuse(f"a stream is found by its name, such as tier['orders'], not by {stream!r}")
        catalogue = self._tier.catalogue
        try:
            views = self._tier.run(WholeStream(catalogue, stream).views())
        except NotOffloaded as error:
            near = get_close_matches(stream, self._asked_streams(), n=1)
            if not near or near == [stream]:
                raise
            raise NotOffloaded(f"{error}; did you mean {near[0]!r}?") from error
        return ArrowStream(self, self._tier, stream, [(number, view.committed) for number, view in views])

    def __iter__(self) -> Iterator[str]:
        self._streams = self._asked_streams()
        return iter(self._streams)

    def __contains__(self, stream: object) -> bool:
        return stream in [*self]

    def __repr__(self) -> str:
        names = ", ".join(self._streams) or "none"
        return f"<tier {self._tier.catalogue.url}: streams {names}>"

    def _ipython_key_completions_(self) -> list[str]:
        # Without a request: a key that is pressed must not wait for a store.
        return self._streams

    def _asked_streams(self) -> list[str]:
        return [each.name for each in self._tier.run(grouped(self._tier.catalogue))]

    def close(self) -> None:
        """Close the tier, and end its thread. Reads that are under way end with `Misuse`. Idempotent."""
        self._closing()

    def __enter__(self) -> Self:
        """Return the tier. The exit closes it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class ArrowStream:
    """One stream of an `ArrowTier`, as it was committed when it was opened. Immutable; for any thread.

    `start` and `end` are an offset, a `datetime` (UTC, unless it has a zone), a `date`, a text such as
    `"-1h"`, `"last"` or `"2026-11-21"`, or None for everything. The row at `end` is left out. All rows of a
    chunk have one timestamp, and a time is the first chunk of that time or later.

    `columns` are names: `offset`, `timestamp`, `value`, `part`, `stream`. With `decode`, the name of a
    decoder such as `amqp`, also `body`, the decoder's own, `key` and `headers`.

    `filter` is a value, or several, that publishers set as `x-stream-filter-value`: only chunks that may have
    such messages are read, with their other messages. With `match_unfiltered`, also chunks that may have
    messages without a value. The log (INFO) says how many chunks were read and skipped.

    `topic` is a topic filter, or several, such as `"site/+/line/3/#"`, for a decoder that knows topics: only
    messages that one of them matches. An index of ranges says which chunks can have such messages.

    Every read raises `Misuse` for an unknown column, with the nearest name; for `start` behind `end`, if both
    are offsets or both are times; and for what is no position. It raises `Corrupt` at damage, and
    `NotOffloaded` for a `start` beyond the end, and if the stream was trimmed while it was read.
    """

    def __init__(
        self, owner: ArrowTier, tier: Blocking, name: str, parts: Sequence[tuple[int, CommittedStream]]
    ) -> None:
        self._owner = owner  # the tier is closed when nobody has it
        self._tier, self._parts = tier, parts
        self.name: Final = name

    @property
    def schema(self) -> pa.Schema:
        """The schema of a read without `columns` and `decode`."""
        return arrow_schema(None, None)

    def to_batches(
        self,
        start: RowPosition = None,
        end: RowPosition = None,
        columns: Iterable[str] | None = None,
        decode: str | None = None,
        *,
        filter: str | Iterable[str] | None = None,  # noqa: A002 - the name that all readers have
        match_unfiltered: bool = False,
        topic: str | Iterable[str] | None = None,
    ) -> pa.RecordBatchReader:
        """Return a reader of batches, in order. Its memory is bounded: a few windows of 8 MiB, and one batch.

        Nothing but `start` and `end` is looked up before the first batch is taken. A reader that was
        interrupted resumes behind the last batch that it returned. After an error of ours, it raises that
        error again.
        """
        maker, ranges = self._maker(columns, decode), self._ranges(start, end)
        chosen = _filter_of(filter, match_unfiltered=match_unfiltered)
        topics = _topics_of(topic, maker.decoder, chosen)
        return pa.RecordBatchReader.from_batches(maker.schema, _Batches(self, maker, ranges, chosen, topics))

    def to_arrow(
        self,
        start: RowPosition = None,
        end: RowPosition = None,
        columns: Iterable[str] | None = None,
        decode: str | None = None,
        *,
        filter: str | Iterable[str] | None = None,  # noqa: A002 - the name that all readers have
        match_unfiltered: bool = False,
        topic: str | Iterable[str] | None = None,
    ) -> pa.Table:
        """Return the rows as a table in memory."""
        how: Any = {"filter": filter, "match_unfiltered": match_unfiltered, "topic": topic}
        return self.to_batches(start, end, columns, decode, **how).read_all()

    def to_pandas(
        self,
        start: RowPosition = None,
        end: RowPosition = None,
        columns: Iterable[str] | None = None,
        decode: str | None = None,
        *,
        filter: str | Iterable[str] | None = None,  # noqa: A002 - the name that all readers have
        match_unfiltered: bool = False,
        topic: str | Iterable[str] | None = None,
    ) -> pd.DataFrame:
        """Return the rows as a frame in memory. Raises `Misuse` if pandas is not installed."""
        try:
            import pandas as pd  # noqa: F401 - pyarrow would import it after the read
        except ModuleNotFoundError as exc:
            raise Misuse(missing_text("to_pandas", "pandas", "pandas")) from exc
        how: Any = {"filter": filter, "match_unfiltered": match_unfiltered, "topic": topic}
        return self.to_arrow(start, end, columns, decode, **how).to_pandas()

    def find(
        self,
        terms: str | bytes | Iterable[str | bytes],
        *,
        by: str | Spec,
        start: RowPosition = None,
        end: RowPosition = None,
        columns: Iterable[str] | None = None,
        decode: str | None = None,
    ) -> pa.Table:
        """Return the rows that have one of these terms, such as a message id, as a table in memory.

        `by` is the SPEC of an index, such as `"amqp:properties.message_id"`. Records that no index object
        covers are scanned. The log (INFO) says what was read. Raises as `to_batches`, and `Misuse` for no
        term, an empty one, and a SPEC whose decoder or section does not exist.
        """
        spec, maker = by if isinstance(by, Spec) else Spec.parse(by), self._maker(columns, decode)
        decoder: Decoder = self._tier.session.plugins.by_name("decoder", spec.decoder).load()()
        listed = [terms] if isinstance(terms, (str, bytes)) else terms
        wanted = [term.encode() if isinstance(term, str) else term for term in listed]
        spec.check(decoder)
        ranges = self._ranges(start, end)
        found = self._tier.run(_found(self._tier.catalogue, self.name, ranges, wanted, spec, decoder))
        batches = [
            batch
            for each in found
            for batch in maker.batches(each.run, stream=self.name, part=each.part, ledger_id=0)
        ]
        return pa.Table.from_batches(batches, maker.schema)

    def count(self, start: RowPosition = None, end: RowPosition = None) -> int:
        """Return the number of rows. Reads the index of two fragments at most, and no message."""
        return self._tier.run(count_in(self._tier.catalogue, self._ranges(start, end)))

    def split(
        self, start: RowPosition = None, end: RowPosition = None, *, size_bytes: int
    ) -> list[tuple[PartOffset, PartOffset]]:
        """Return ranges of about this size that together are the range, in order: `start` and `end` of each.

        For work in several steps, or by several processes. They end where fragments end, so one is larger if
        its fragment is. The size is that of the chunks, uncompressed. Fetches no message. Raises `Misuse` for
        a size below 1.
        """
        if type(size_bytes) is not int or size_bytes < 1:
            raise Misuse(f"size_bytes is a number of bytes from 1 on, not {size_bytes!r}")
        ranges = self._ranges(start, end)
        pieces = self._tier.run(pieces_of_ranges(self._tier.catalogue, ranges, size_bytes=size_bytes))
        return [(PartOffset(one.number, one.first), PartOffset(one.number, one.until)) for one in pieces]

    @property
    def incarnations(self) -> dict[str, str]:
        """The identity of each part, by its number. A stream that is deleted and begun again has another."""
        return {str(number): str(committed.incarnation) for number, committed in self._parts}

    @property
    def spans(self) -> dict[int, tuple[int, int]]:
        """The first and the next offset of each part, by its number. They are equal if it has no rows."""
        return {number: (each.first_offset, each.next_offset) for number, each in self._parts}

    @property
    def url(self) -> str:
        """The URL of the tier."""
        return self._tier.catalogue.url

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return all rows, with the columns of `schema`, by the stream protocol of Arrow's C interface."""
        return self.to_batches().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        of = f"<stream {self.name!r} of {self._tier.catalogue.url}"
        rows = sum(committed.messages for _, committed in self._parts)
        spans = " and ".join(f"[{part.first_offset}, {part.next_offset})" for _, part in self._parts)
        most = "" if all(committed.counts_messages for _, committed in self._parts) else "at most "
        counted = most + ("1 row" if rows == 1 else f"{rows} rows")
        return f"{of}: {counted} in offsets {spans}; columns {', '.join(self.schema.names)}>"

    def _maker(self, columns: Iterable[str] | None, decode: str | None) -> BatchMaker:
        decoder = self._decoder(decode)
        return BatchMaker(
            schema=arrow_schema(columns, decoder),
            decoder=decoder,
            rows_max=BATCH_ROWS_MAX,
            size_bytes_max=BATCH_SIZE_BYTES_MAX,
        )

    def _decoder(self, name: str | None) -> Decoder | None:
        if name is None or name == "raw":
            return None
        decoder: Decoder = self._tier.session.plugins.by_name("decoder", name).load()()
        return decoder

    def _ranges(self, start: RowPosition, end: RowPosition) -> list[PartRange]:
        now_ms = Env().now_ms()
        first = AtEdge.FIRST if start is None else as_position(start, now_ms=now_ms)
        behind = AtEdge.NEXT if end is None else as_position(end, now_ms=now_ms)
        if _is_inverted(first, behind):
            told = f"the end, {position_text(behind)}, is before the start, {position_text(first)}"
            raise Misuse(f"the range is inverted: {told}")
        return self._tier.run(ranges_between(self._tier.catalogue, self._parts, first, behind))


class _Batches(Iterator[pa.RecordBatch]):
    """The batches of one read. Several threads may take them; each gets another one."""

    def __init__(
        self,
        stream: ArrowStream,
        maker: BatchMaker,
        ranges: Sequence[PartRange],
        chosen: ChunkFilter | None,
        topics: RecordSelector | None,
    ) -> None:
        self._stream, self._maker, self._ranges, self._chosen = stream, maker, ranges, chosen
        self._topics = topics
        self._lock = threading.Lock()
        self._error: OffloadError | None = None
        self._place = PartOffset(0, 0)
        """Every row before it was returned, or is in `_again`; none behind it was."""
        self._again: pa.RecordBatch | None = None
        """A batch that an interrupt kept from the caller."""
        self._found: AsyncGenerator[RangeSource, None] | None = None
        self._made: Iterator[tuple[PartOffset, pa.RecordBatch]] = iter(())

    def __next__(self) -> pa.RecordBatch:
        batch = None
        try:
            with self._lock:
                # No call is between the two assignments of a statement, so no interrupt is either.
                if self._again is not None:
                    batch, self._again = self._again, None
                    return batch
                if self._error is not None:
                    raise self._error
                try:
                    self._place, batch = self._next()
                except StopIteration:
                    raise
                except BaseException as error:
                    # An interrupt may come between any two steps. The next call begins at `_place` again.
                    self._found, self._made = None, iter(())
                    if isinstance(error, OffloadError):
                        self._error = error
                    raise
                return batch
        except BaseException:
            # An interrupt may also have come behind that, and before the caller has the batch.
            if batch is not None:
                self._again = batch
            raise

    def _next(self) -> tuple[PartOffset, pa.RecordBatch]:
        tier = self._stream._tier
        while (made := next(self._made, None)) is None:
            if self._found is None:
                ranges = [left for each in self._ranges if (left := each.from_place(self._place)) is not None]
                needs_chunks = not OF_TABLE.issuperset(self._maker.schema.names)
                # If it is dropped unfinished, the event loop closes it.
                if self._topics is not None:
                    self._found = _selected(tier.catalogue, self._stream.name, ranges, self._topics)
                else:
                    self._found = sources(
                        tier.catalogue, ranges, needs_chunks=needs_chunks, chosen=self._chosen
                    )
            source = tier.run(_taken(self._found))
            if source is None:
                if self._chosen is not None:
                    _log.info("stream %r: %s", self._stream.name, self._chosen)
                raise StopIteration
            self._made = self._batches(source)
        return made

    def _batches(self, source: RangeSource) -> Iterator[tuple[PartOffset, pa.RecordBatch]]:
        stream, part = self._stream.name, source.of.number
        for run in runs_in(source, rows_max=BATCH_ROWS_MAX):
            if self._topics is not None:
                data = np.frombuffer(run.data, np.uint8)
                rows = np.flatnonzero(self._topics.matches(RecordBytes(data, run.starts, run.sizes)))
                run = of_rows(run, rows)
            at = 0
            for batch in self._maker.batches(run, stream=stream, part=part, ledger_id=0):
                at += batch.num_rows
                yield PartOffset(part, int(run.offsets[at - 1]) + 1), batch


async def _selected(
    catalogue: Catalogue, stream: str, ranges: Sequence[PartRange], topics: RecordSelector
) -> AsyncGenerator[RangeSource, None]:
    """Yield the chunks of these ranges that can have selected records. Close it. Raises as `sources` does."""
    report, by_number = FindReport(), {each.number: each for each in ranges}
    async with aclosing(select(catalogue, stream, topics, report=report)) as parts:
        async for part in parts:
            of = by_number.pop(part.reader.part, None)
            if of is None:
                continue
            now = part.reader.manifest
            if now.incarnation != of.committed.incarnation or now.first_offset > of.first:
                by_number[part.reader.part] = of
                continue
            async with aclosing(sources(catalogue, [of], needs_chunks=True, chosen=part)) as found:
                async for each in found:
                    yield each
    for lost in by_number.values():
        told = f"offsets from {lost.first} on of part {lost.number} were trimmed or deleted"
        raise NotOffloaded(f"stream {stream!r}: {told} since it was opened; open the stream again")
    _log.info("stream %r: %d index objects, %d requests of them", stream, report.objects, report.requests)


def _topics_of(
    given: str | Iterable[str] | None, decoder: Decoder | None, chosen: ChunkFilter | None
) -> RecordSelector | None:
    if given is None:
        return None
    if decoder is None or chosen is not None:
        raise Misuse("topic needs decode with a decoder that knows topics, and takes no filter")
    return decoder.topic_selector([given] if isinstance(given, str) else [*given])


async def _taken(found: AsyncGenerator[RangeSource, None]) -> RangeSource | None:
    return await anext(found, None)


async def _found(
    catalogue: Catalogue,
    stream: str,
    ranges: Sequence[PartRange],
    terms: Sequence[bytes],
    by: Spec,
    decoder: Decoder,
) -> list[FoundRun]:
    """Return the records in these ranges with a term, which a find reads by the newest roots.

    Raises `NotOffloaded` if not all of the ranges is there any more.
    """
    if not ranges:
        return []
    report, (first, last) = FindReport(), (ranges[0], ranges[-1])
    begin, until = PartOffset(first.number, first.first), PartOffset(last.number, last.until)
    runs = find(catalogue, stream, terms, by=by, decoder=decoder, start=begin, until=until, report=report)
    async with aclosing(runs):
        found = [each async for each in runs]
    # Afterwards: what is there now was there all the time.
    newest = {number: view.committed for number, view in await WholeStream(catalogue, stream).views()}
    for each in ranges:
        now = newest.get(each.number)
        if now is None or now.incarnation != each.committed.incarnation or now.first_offset > each.first:
            lost = f"offsets from {each.first} on of part {each.number} were trimmed or deleted"
            raise NotOffloaded(f"stream {stream!r}: {lost} since it was opened; open the stream again")
    counts = report.objects, report.requests, report.records, report.scanned
    told = "%d index objects, %d requests of indexes; %d records read by them, %d scanned"
    _log.info(f"stream %r: {told}", stream, *counts)
    return found


def _filter_of(values: str | Iterable[str] | None, *, match_unfiltered: bool) -> ChunkFilter | None:
    if values is not None:
        wanted = [values] if isinstance(values, str) else [*values]
        return ChunkFilter(wanted, match_unfiltered=match_unfiltered)
    if match_unfiltered:
        raise Misuse("match_unfiltered needs a filter: without one, all messages are read")
    return None


def _is_inverted(start: Position | PartOffset, end: Position | PartOffset) -> bool:
    """Return True if the end is before the start. Positions of different kinds are not compared."""
    match start, end:
        case (AtOffset(first), AtOffset(last)) | (AtTime(first), AtTime(last)):
            return last < first
        case PartOffset(), PartOffset():
            return (end.part, end.offset) < (start.part, start.offset)
        case AtEdge(), AtEdge():
            order = [AtEdge.FIRST, AtEdge.LAST, AtEdge.NEXT]
            return order.index(end) < order.index(start)
        case _:
            return False


def _closed(tier: Blocking) -> None:
    """Close a tier that nobody uses any more. The garbage collector calls this in any thread."""
    try:
        tier.close()
    except Misuse:  # its own thread, which cannot wait for itself
        threading.Thread(target=tier.close, name="offload-closing", daemon=True).start()
