"""Reading committed fragments: their tails and their chunks, checked before anyone sees them.

Invariants: no byte leaves this module without a checksum that vouches for it; the object that was read is the
one that the manifest's entry names, so two objects that were swapped under each other's keys are found.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from itertools import pairwise
from typing import Final
from uuid import UUID

import numpy as np

from offload.contracts.catalogue import StreamView
from offload.contracts.events import DamageFound, Event
from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Buffer, ObjectStore, Span
from offload.formats.fragment import KNOWN_SECTIONS, FragmentTail
from offload.formats.fragment_trailer import HEADER, FragmentTrailer, stream_digest
from offload.formats.keys import StreamKeys
from offload.ground.errors import Absent, Corrupt, Misuse, NotFound, NotOffloaded
from offload.model.attempt import Attempt
from offload.model.chunk_table import WINDOW_SIZE_BYTES, ChunkTable
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import CommittedStream
from offload.native.key_ring import KeyRing, unlocked
from offload.store.checked import NO_TURNS, checked, checked_buffer

__all__ = ["open_attempt"]

CODED_INLINE_SIZE_BYTES_MAX: Final = 64 * 1024
"""The most stored bytes that are decompressed on the event loop: some 0.2 ms."""

PLAIN_INLINE_SIZE_BYTES_MAX: Final = 1024 * 1024
"""The most bytes of chunks that are stored plain and checked on the event loop: some 0.1 ms."""


async def load_tail(store: ObjectStore, committed: CommittedStream, entry: Entry) -> FragmentTail:
    """Read index, description and trailer of a committed fragment, by one exact range.

    Raises `Corrupt` if they break the format or are not those of the fragment that the entry names, and
    `Absent` if the object is gone.
    """
    # The entry knows the sizes, so the tail is one exact range: no request for a trailer comes before it.
    key = StreamKeys(committed.stream).fragment(entry.first_offset, entry.attempt)
    start = entry.stored_size_bytes - entry.tail_size_bytes

    def decode(raw: bytes) -> FragmentTail:
        if len(raw) != entry.tail_size_bytes:
            found = start + len(raw) if raw else f"at most {start}"
            raise Corrupt("object size", key, expected=entry.stored_size_bytes, found=found)
        # A sound tail is not enough: another fragment's object under this key is sound too.
        tail = FragmentTail.decode(raw, where=key, size_bytes=entry.stored_size_bytes)
        check_entry(tail.trailer, committed, entry, where=key)
        return tail

    try:
        return await checked(store, key, decode, span=Span(start, entry.tail_size_bytes))
    except NotFound as exc:
        raise Absent(key, committed.stream) from exc
    except Corrupt as exc:
        raise exc.within(key, stream=committed.stream) from exc


def check_entry(trailer: FragmentTrailer, committed: CommittedStream, entry: Entry, *, where: str) -> None:
    """Raise `Corrupt` unless the object with this trailer is the one that `entry` names."""
    claims = (
        ("stream", stream_digest(committed.stream).hex(), trailer.stream_digest.hex()),
        ("incarnation", committed.incarnation, trailer.incarnation),
        ("attempt", entry.attempt, trailer.attempt),
        ("ledger", entry.ledger_id, trailer.ledger_id),
        ("first offset", entry.first_offset, trailer.first_offset),
        ("next offset", entry.next_offset, trailer.next_offset),
        ("messages", entry.messages, trailer.messages),
        ("copied", entry.copied, trailer.copied),
        ("first timestamp", entry.first_timestamp_ms, trailer.first_timestamp_ms),
        ("last timestamp", entry.last_timestamp_ms, trailer.last_timestamp_ms),
        ("data size", entry.data_size_bytes, trailer.data_size_bytes),
        ("codec", entry.codec, trailer.codec),
        ("encryption", entry.encrypted, trailer.encrypted),
        ("object size", entry.stored_size_bytes, trailer.size_bytes),
    )
    for what, expected, found in claims:
        if expected != found:
            raise Corrupt(what, where, expected=expected, found=found, position=trailer.tail_start)


class FragmentHandle(ReadHandle):
    """A committed fragment as a snapshot of its ledger."""

    __slots__ = ("_checking", "_emit", "_entry", "_key", "_store", "_stream", "_tail")

    def __init__(
        self,
        store: ObjectStore,
        committed: CommittedStream,
        entry: Entry,
        tail: FragmentTail,
        emit: Callable[[Event], None],
        checking: AbstractAsyncContextManager[object],
    ) -> None:
        self._store, self._stream, self._entry, self._emit = store, committed.stream, entry, emit
        self._checking = checking
        self._key = StreamKeys(committed.stream).fragment(entry.first_offset, entry.attempt)
        self._tail = tail

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        committed: CommittedStream,
        entry: Entry,
        *,
        emit: Callable[[Event], None],
        ring: KeyRing | None = None,
        checking: AbstractAsyncContextManager[object] = NO_TURNS,
    ) -> FragmentHandle:
        """Fetch the fragment's index by one request, and return the handle.

        `checking` bounds the threads that compute the checksums of chunks that are stored plain.

        Damage that is found here or later is also reported to `emit`. `Absent` is not reported: the newest
        manifest decides whether it is damage.
        """
        try:
            key = StreamKeys(committed.stream).fragment(entry.first_offset, entry.attempt)
            tail = await unlocked(store, await load_tail(store, committed, entry), ring, where=key)
        except Absent:  # a kind of `Corrupt`, but after a trim and a sweep it is no damage
            raise
        except Corrupt as damage:
            emit(DamageFound(damage=damage))
            raise
        return cls(store, committed, entry, tail, emit, checking)

    @property
    def ledger_id(self) -> int:
        """The ledger."""
        return self._entry.ledger_id

    @property
    def first_offset(self) -> int:
        """Offset of the fragment's first record."""
        return self._entry.first_offset

    @property
    def next_offset(self) -> int:
        """First offset after the fragment."""
        return self._entry.next_offset

    @property
    def where(self) -> str:
        """The object's key."""
        return self._key

    async def table(self) -> ChunkTable:
        """The fragment's chunks, with their positions in the object if nothing were compressed."""
        return self._tail.table

    def windows(self, rows: ChunkTable, *, size_bytes: int = WINDOW_SIZE_BYTES) -> Iterator[ChunkTable]:
        """Yield runs that share no block, so that no block is fetched twice."""
        first = self._number_of(rows) if len(rows) else 0
        for start, stop in self._tail.windows(first, first + len(rows), size_bytes=size_bytes):
            yield self._tail.table[start:stop]

    async def read(self, rows: ChunkTable) -> Buffer:
        """Return these chunks, read by one request, each checked against the index."""
        return await self.read_on(rows, rows[:0])

    async def read_on(self, rows: ChunkTable, then: ChunkTable) -> Buffer:
        """Return these chunks, each checked against the index. `then` may come by the same request."""
        try:
            return await self._read(rows, then)
        except Absent:  # as in `open`
            raise
        except Corrupt as damage:
            self._emit(DamageFound(damage=damage))
            raise

    def unknown_sections(self) -> Mapping[str, int]:
        """The sections of the fragment that this program does not know."""
        return dict.fromkeys(sorted(self._tail.sections.keys() - KNOWN_SECTIONS), 1)

    async def _read(self, rows: ChunkTable, then: ChunkTable) -> Buffer:
        first = self._number_of(rows)
        stop = first + len(rows)
        start, end = self._tail.span_of(first, stop)
        begin, last = self._tail.span_of(stop, stop + len(then)) if len(then) else (end, end)
        # If rows are cut within a block, the next read begins before the end of this one, so that no reply
        # could continue with it.
        follows = last - end if begin == end else 0
        check = partial(self._check, first=first, stop=stop)
        # Decompression takes far longer than a checksum, so the event loop does little of it.
        is_coded = self._tail.blocks is not None
        inline_max = CODED_INLINE_SIZE_BYTES_MAX if is_coded else PLAIN_INLINE_SIZE_BYTES_MAX
        try:
            return await checked_buffer(
                self._store,
                self._key,
                check,
                span=Span(start, end - start, follows=follows),
                inline_size_bytes_max=inline_max,
                turns=NO_TURNS if is_coded else self._checking,
            )
        except NotFound as exc:
            raise Absent(self._key, self._stream) from exc

    def _number_of(self, rows: ChunkTable) -> int:
        """Return the number of the first of these chunks in the fragment."""
        # Not `searchsorted`: it copies the whole column first, because rows lie between its numbers.
        return bisect_left(self._tail.table["offset"], rows["offset"][0])

    def _check(self, raw: Buffer, *, first: int, stop: int) -> Buffer:
        try:
            return self._tail.chunks_in(raw, first, stop, where=self._key)
        except Corrupt as exc:
            raise exc.within(self._key, stream=self._stream) from exc


class LedgerHandle(ReadHandle):
    """Fragments of one ledger that follow each other, as one snapshot.

    A row's `position` counts as if the objects were laid end to end.
    """

    __slots__ = ("_parts", "_starts", "_where")

    def __init__(self, parts: Sequence[ReadHandle], sizes_bytes: Sequence[int], *, where: str) -> None:
        self._parts, self._where = parts, where
        self._starts = np.concatenate(([0], np.cumsum(np.array(sizes_bytes[:-1], np.uint64)))).astype(
            np.uint64
        )

    @property
    def ledger_id(self) -> int:
        """The ledger."""
        return self._parts[0].ledger_id

    @property
    def first_offset(self) -> int:
        """Offset of the first record of the first part."""
        return self._parts[0].first_offset

    @property
    def next_offset(self) -> int:
        """First offset after the last part."""
        return self._parts[-1].next_offset

    @property
    def where(self) -> str:
        """The attempt."""
        return self._where

    async def table(self) -> ChunkTable:
        """The chunks of all parts."""
        tables = []
        for part, start in zip(self._parts, self._starts, strict=True):
            table = (await part.table()).copy()
            table["position"] += start
            tables.append(table)
        return np.concatenate(tables)

    def windows(self, rows: ChunkTable, *, size_bytes: int = WINDOW_SIZE_BYTES) -> Iterator[ChunkTable]:
        """Yield runs of one object each, as the object's handle cuts them."""
        for number, own in self._by_part(rows):
            for window in self._parts[number].windows(own, size_bytes=size_bytes):
                window = window.copy()
                window["position"] += self._starts[number]
                yield window

    async def read(self, rows: ChunkTable) -> Buffer:
        """Return these chunks, by one request for each object that they touch."""
        return await self.read_on(rows, rows[:0])

    async def read_on(self, rows: ChunkTable, then: ChunkTable) -> Buffer:
        """Return these chunks. Those of `then` that are in the last object may come by its request."""
        behind = dict(self._by_part(then))
        pieces = [
            await self._parts[number].read_on(own, behind.get(number, own[:0]))
            for number, own in self._by_part(rows)
        ]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def unknown_sections(self) -> Mapping[str, int]:
        """Those of all parts."""
        return sum((Counter(part.unknown_sections()) for part in self._parts), Counter[str]())

    def _by_part(self, rows: ChunkTable) -> Iterator[tuple[int, ChunkTable]]:
        """Yield the number of each part that these rows touch, and the part's own rows."""
        part_of_row = np.searchsorted(self._starts, rows["position"], side="right") - 1
        for number in np.unique(part_of_row).tolist():
            own = rows[part_of_row == number].copy()
            own["position"] -= self._starts[number]
            yield number, own


async def open_attempt(view: StreamView, attempt: Attempt, only: range | None) -> ReadHandle:
    """Open all that the view names of an attempt. Raises as `LedgerOffloader.read_offloaded` does."""
    entries = await _only_entries(view, attempt.uid, only)
    if not entries:
        raise NotOffloaded(f"stream {attempt.stream!r} names nothing of attempt {attempt.uid}")
    for before, after in pairwise(entries):
        # Fragments of an attempt are committed without holes, so copies under other attempts fill this one.
        if before.next_offset != after.first_offset:
            raise NotOffloaded(
                f"stream {attempt.stream!r} names attempt {attempt.uid} in part: copies have replaced "
                f"[{before.next_offset}, {after.first_offset}); read the stream by its offsets"
            )
    return await open_entries(view, entries, where=str(attempt.uid))


async def open_entries(view: StreamView, entries: Sequence[Entry], *, where: str) -> ReadHandle:
    """Open fragments of one ledger that follow each other, as one handle. One request for each."""
    parts = [await view.open(entry) for entry in entries]
    if len(parts) == 1:
        return parts[0]
    # One byte more than the chunks need, so that no run of chunks seems to continue in the next object.
    sizes_bytes = [HEADER.size_bytes + entry.data_size_bytes + 1 for entry in entries]
    return LedgerHandle(parts, sizes_bytes, where=where)


async def _only_entries(view: StreamView, attempt: UUID, only: range | None) -> list[Entry]:
    """Return the entries of one attempt, in order. With `only`, return those that hold some of its offsets.

    Without `only`, all entries of the stream are walked.
    """
    only = range(2**64) if only is None else only
    if only.step != 1:
        raise Misuse("`only` takes a range of step 1")
    found: list[Entry] = []
    if not only:  # a walk would yield the fragment around the empty range
        return found
    # Entries ascend, so the walk ends at the first that begins behind `only`.
    async with aclosing(view.walk(only.start)) as runs:
        async for run in runs:
            rows = run[run["first_offset"] < np.uint64(min(only.stop, 2**64 - 1))]
            found += entries_of_rows(rows[rows["attempt"] == np.void(attempt.bytes)])
            if len(rows) < len(run):
                break
    return found
