"""Sources of sorted ledgers: another source, `topics+URL`, or a stream of a tier (`offload mqtt sort`).

Only sealed ledgers are listed: all but the last one of the origin, and none that the tier has. They are
copied one at a time, because a ledger is in memory while it is sorted. A sorted stream has the offsets of its
origin, so it ends where the oldest ledger begins that is not sorted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from offload.contracts.catalogue import Catalogue, StreamView
from offload.contracts.entries import EntryLedger
from offload.contracts.events import Event, Skipped
from offload.contracts.ledger import ReadHandle
from offload.contracts.plugin import SourceType
from offload.contracts.source import Snapshot, Source, SourceStream
from offload.entries.ledger import EntryLedgerStream
from offload.formats.chunk_check import check_source
from offload.formats.range_object import LedgerRanges
from offload.formats.records import RecordRun, record_runs
from offload.ground.errors import Diverged, Divergence, Misuse, NotOffloaded
from offload.index.terms import Spec
from offload.model.manifest import CommittedStream, Manifest
from offload.opening.plugins import Plugins
from offload.read.reader import StreamReader
from offload_mqtt.sorted_ledger import CHUNK_SIZE_BYTES, DEFAULT_BY, SortedLedger, TopicSource

__all__ = ["SortedSource", "SortedTier", "open_url", "topic_source"]

PREFIX: Final = "topics+"
READ_SIZE_BYTES: Final = 2**20
"""Small, because the columns of a window take several times its memory."""
ListSealed = Callable[[Manifest | None], Awaitable[Sequence[EntryLedger]]]
SUFFIX: Final = ".topics"
"""The name of a sorted stream is that of its origin and this, so that both can be on one tier."""


def topic_source(by: str) -> TopicSource:
    """Return where topics are, from a SPEC. Raises `Misuse` if it is none, or names no known decoder."""
    spec = Spec.parse(by)
    if spec.is_of_ranges or len(spec.paths) != 1:
        raise Misuse(f"{by!r}: a message has one topic, so the SPEC has one PATH, and no ranges")
    decoder = Plugins.find().by_name("decoder", spec.decoder).load()()
    spec.check(decoder)
    return TopicSource(spec, decoder)


def open_url(url: str, *, options: Mapping[str, Any]) -> SortedSource:
    """Return the source of `topics+URL`. Raises `Misuse` for a wrong option or URL."""
    inner = url[len(PREFIX) :]
    declared = Plugins.find().by_scheme("source", inner.partition(":")[0].lower())
    assert isinstance(declared, SourceType), "it was asked for by its kind"
    return SortedSource(declared.open(inner, {}), topic_source(options.get("by", DEFAULT_BY)))


class SortedSource(Source):
    """The streams of another source, sorted by topic."""

    def __init__(self, origin: Source, topics: TopicSource) -> None:
        self._origin, self._topics = origin, topics

    @property
    def url(self) -> str:
        """The URL of the origin, with the prefix."""
        return PREFIX + self._origin.url

    @property
    def folder(self) -> Path | None:
        """The folder of the origin."""
        return self._origin.folder

    @property
    def notes(self) -> Sequence[str]:
        """The notes of the origin."""
        return self._origin.notes

    async def streams(self) -> Sequence[SourceStream]:
        """Return the streams of the origin, each with `.topics` behind its name."""
        return [SortedStream(each, self._topics) for each in await self._origin.streams()]

    async def aclose(self) -> None:
        """Close the origin."""
        await self._origin.aclose()


class _Sorted(EntryLedgerStream):
    """A stream of sorted ledgers. `list_sealed` returns those that end behind what a manifest has."""

    def __init__(self, name: str, list_sealed: ListSealed) -> None:
        super().__init__(name, self._list, chunk_size_bytes=CHUNK_SIZE_BYTES, ledgers_at_once=1)
        self._list_sealed = list_sealed
        self._since: Manifest | None = None

    async def snapshot(self, since: Manifest | None = None) -> Snapshot:
        """Return the sealed ledgers that the tier lacks, and one of which it has the beginning."""
        self._since = since
        return await super().snapshot(since)

    async def _list(self) -> Sequence[EntryLedger]:
        return await self._list_sealed(self._since)


class SortedStream(_Sorted):
    """One stream of another source."""

    def __init__(self, origin: SourceStream, topics: TopicSource) -> None:
        super().__init__(origin.name + SUFFIX, self._sealed)
        self._origin, self._topics = origin, topics

    @property
    def broker_name(self) -> str:
        """The broker's name of the origin."""
        return self._origin.broker_name

    async def mark(self) -> Hashable | None:
        """Return the mark of the origin."""
        return await self._origin.mark()

    async def _sealed(self, since: Manifest | None) -> list[SortedLedger]:
        snapshot, end = await self._origin.snapshot(None), 0 if since is None else since.next_offset
        ledgers = snapshot.ledgers[:-1]
        for last in snapshot.ledgers[-1:]:
            if last.first_offset < end < last.next_offset:
                raise Diverged(
                    f"stream {self.name!r} ends at offset {end}, which is within {last.where}: that was cut "
                    "since it was sorted",
                    kind=Divergence.FORK,
                )
        return [
            SortedLedger(
                partial(_runs_of, each),
                self._topics,
                first_offset=each.first_offset,
                next_offset=each.next_offset,
            )
            for each in ledgers
            if each.next_offset > end
        ]


async def _runs_of(handle: ReadHandle) -> AsyncGenerator[RecordRun, None]:
    """Yield the messages of a source's ledger, all of them checked."""
    try:
        for rows in handle.windows(await handle.table(), size_bytes=READ_SIZE_BYTES):
            raw = await handle.read(rows)
            await asyncio.to_thread(check_source, raw, rows, where=handle.where)
            for run in record_runs(memoryview(raw), rows, where=handle.where):
                yield run
    finally:
        await handle.aclose()


class SortedTier(Source):
    """One part of a stream on a tier, sorted by topic. `ranges` has the keys of what was sorted."""

    notes = ()

    def __init__(self, catalogue: Catalogue, origin: str, name: str, topics: TopicSource) -> None:
        self._catalogue, self._origin, self._topics = catalogue, origin, topics
        self._stream = _Sorted(name, self._sealed)
        self.ranges: dict[int, LedgerRanges] = {}
        """By first offset."""

    @property
    def url(self) -> str:
        """The name of the origin, for messages."""
        return f"stream {self._origin!r}"

    async def streams(self) -> Sequence[SourceStream]:
        """Return the one stream."""
        return [self._stream]

    async def _sealed(self, since: Manifest | None) -> list[SortedLedger]:
        view = await self._catalogue.view(self._origin)
        # A crash may have left a part of the last ledger. A ledger's id is its first offset.
        begins = await _begins(view, 0 if since is None else since.last_ledger_id)
        end = 0 if since is None else since.next_offset
        return [
            SortedLedger(
                partial(_runs_between, self._catalogue, view.committed, first, following),
                self._topics,
                first_offset=first,
                next_offset=following,
                on_sorted=lambda ranges: self.ranges.update({ranges.first_offset: ranges}),
            )
            for first, following in pairwise(begins)
            if following > end
        ]


async def _begins(view: StreamView, offset: int) -> list[int]:
    """Return the first offsets of the ledgers of a stream, from that which holds an offset on."""
    begins, last_id = list[int](), -1
    async with aclosing(view.walk(offset)) as runs:
        async for entries in runs:
            ids = entries["ledger_id"].tolist()
            for first, ledger_id in zip(entries["first_offset"].tolist(), ids, strict=True):
                if ledger_id != last_id:
                    begins.append(first)
                last_id = ledger_id
    return begins


async def _runs_between(
    catalogue: Catalogue, committed: CommittedStream, first: int, following: int
) -> AsyncGenerator[RecordRun, None]:
    """Yield the messages of a ledger. Raises `NotOffloaded` if some of it was trimmed meanwhile."""
    events = list[Event]()
    reader = StreamReader(catalogue, committed, emit=events.append)
    async with aclosing(reader.runs_here(first, until=following)) as runs:
        async for each in runs:
            _check(events)
            yield each.run.between(first, following)
    _check(events)


def _check(events: Sequence[Event]) -> None:
    for each in events:
        if isinstance(each, Skipped):
            gone = f"offsets [{each.from_offset}, {each.to_offset})"
            raise NotOffloaded(f"stream {each.stream!r}: {gone} were trimmed before they were sorted")
