"""Reading fragments: their tails, and their chunks, checked before anyone sees them.

Invariant: no byte leaves this module that its checksum does not vouch for; and what was read is
what the manifest's entry named, so two objects swapped under each other's keys are found out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import pairwise
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.contracts.catalogue import StreamView
from offload.contracts.events import DamageFound, Event
from offload.contracts.ledger import ReadHandle
from offload.contracts.store import ObjectStore, Span
from offload.errors import Absent, Corrupt, Misuse, NotFound, NotOffloaded
from offload.formats.chunk import check_stored
from offload.formats.fragment import HEADER, FragmentTail, FragmentTrailer, stream_digest
from offload.formats.keys import StreamKeys
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import CommittedStream
from offload.store.checked import checked

__all__ = ["open_attempt"]


async def load_tail(store: ObjectStore, committed: CommittedStream, entry: Entry) -> FragmentTail:
    """Index, description and trailer of a committed fragment, by one exact range.

    Raises `Corrupt` where they break the format or are not what the entry names, and `Absent` where the
    object is gone.
    """
    key = StreamKeys(committed.stream).fragment(entry.first_offset, entry.attempt)
    start = HEADER.size_bytes + entry.data_size_bytes

    def decode(raw: bytes) -> FragmentTail:
        if len(raw) != entry.stored_size_bytes - start:
            raise Corrupt("object size", key, expected=entry.stored_size_bytes, found=start + len(raw))
        tail = FragmentTail.decode(raw, where=key, size_bytes=entry.stored_size_bytes)
        check_entry(tail.trailer, committed, entry, where=key)
        return tail

    try:
        return await checked(store, key, decode, span=Span(start, entry.stored_size_bytes - start))
    except NotFound as exc:
        raise Absent(key, committed.stream) from exc
    except Corrupt as exc:
        raise exc.within(key, stream=committed.stream) from exc


def check_entry(trailer: FragmentTrailer, committed: CommittedStream, entry: Entry, *, where: str) -> None:
    """Raise `Corrupt` unless the object that says `trailer` of itself is the one that `entry` names."""
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
        ("object size", entry.stored_size_bytes, trailer.size_bytes),
    )
    for what, expected, found in claims:
        if expected != found:
            raise Corrupt(what, where, expected=expected, found=found, position=trailer.index_start)


class FragmentHandle(ReadHandle):
    """One committed fragment as a snapshot of its ledger."""

    __slots__ = ("_checksums", "_emit", "_entry", "_key", "_store", "_stream", "_table")

    def __init__(
        self,
        store: ObjectStore,
        committed: CommittedStream,
        entry: Entry,
        tail: FragmentTail,
        emit: Callable[[Event], None],
    ) -> None:
        self._store, self._stream, self._entry, self._emit = store, committed.stream, entry, emit
        self._key = StreamKeys(committed.stream).fragment(entry.first_offset, entry.attempt)
        self._table = tail.table()
        self._checksums = tail.index["checksum"].astype(np.uint32)

    @classmethod
    async def open(
        cls, store: ObjectStore, committed: CommittedStream, entry: Entry, *, emit: Callable[[Event], None]
    ) -> FragmentHandle:
        """Fetch the fragment's index, by one request. Damage, here or later, is told to `emit` too.

        `Absent` is not: whether that is damage, the newest manifest says.
        """
        try:
            tail = await load_tail(store, committed, entry)
        except Absent:
            raise
        except Corrupt as damage:
            emit(DamageFound(damage=damage))
            raise
        return cls(store, committed, entry, tail, emit)

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
        """The fragment's chunks; `position` is the byte within the object."""
        return self._table

    async def read(self, rows: ChunkTable) -> bytes:
        """These chunks, by one request, each checked against the index."""
        try:
            return await self._read(rows)
        except Absent:
            raise
        except Corrupt as damage:
            self._emit(DamageFound(damage=damage))
            raise

    async def _read(self, rows: ChunkTable) -> bytes:
        start, size = int(rows["position"][0]), int(rows["size_bytes"].sum())
        check = partial(self._check, rows=rows, start=start)
        try:
            return await checked(self._store, self._key, check, span=Span(start, size))
        except NotFound as exc:
            raise Absent(self._key, self._stream) from exc

    def _check(self, raw: bytes, *, rows: ChunkTable, start: int) -> bytes:
        first = int(np.searchsorted(self._table["offset"], rows["offset"][0]))
        checksums: npt.NDArray[np.uint32] = self._checksums[first : first + len(rows)]
        try:
            check_stored(raw, rows, checksums, window_position=start, where=self._key)
        except Corrupt as exc:
            raise exc.within(self._key, stream=self._stream) from exc
        return raw


class LedgerHandle(ReadHandle):
    """Fragments of one ledger that follow each other, as one snapshot.

    A row's `position` is its place in the objects laid end to end.
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

    async def read(self, rows: ChunkTable) -> bytes:
        """These chunks, by one request per object that they touch."""
        part_of_row = np.searchsorted(self._starts, rows["position"], side="right") - 1
        pieces = []
        for number in np.unique(part_of_row):
            own = rows[part_of_row == number].copy()
            own["position"] -= self._starts[number]
            pieces.append(await self._parts[int(number)].read(own))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def open_attempt(view: StreamView, attempt: Attempt, only: range | None) -> ReadHandle:
    """All that the view names of an attempt, as one handle. Raises as `LedgerOffloader.read_offloaded`."""
    entries = await _only_entries(view, attempt.uid, only)
    if not entries:
        raise NotOffloaded(f"stream {attempt.stream!r} names nothing of attempt {attempt.uid}")
    for before, after in pairwise(entries):
        if before.next_offset != after.first_offset:  # fragments of an attempt are named together
            raise NotOffloaded(
                f"stream {attempt.stream!r} names attempt {attempt.uid} in part: copies have replaced "
                f"[{before.next_offset}, {after.first_offset}); read the stream by its offsets"
            )
    return await open_entries(view, entries, where=str(attempt.uid))


async def open_entries(view: StreamView, entries: Sequence[Entry], *, where: str) -> ReadHandle:
    """Fragments of one ledger that follow each other, as one handle. One request for each."""
    parts = [await view.open(entry) for entry in entries]
    if len(parts) == 1:
        return parts[0]
    return LedgerHandle(parts, [entry.stored_size_bytes for entry in entries], where=where)


async def _only_entries(view: StreamView, attempt: UUID, only: range | None) -> list[Entry]:
    """The entries of one attempt, in order; if `only` is given, those that hold some of its offsets.

    Without `only` all entries are walked.
    """
    only = range(2**64) if only is None else only
    if only.step != 1:
        raise Misuse("offsets are narrowed by a range of step 1")
    found: list[Entry] = []
    if not only:  # the walk would begin with the fragment around it
        return found
    async with aclosing(view.walk(only.start)) as runs:
        async for run in runs:
            rows = run[run["first_offset"] < np.uint64(min(only.stop, 2**64 - 1))]
            found += entries_of_rows(rows[rows["attempt"] == np.void(attempt.bytes)])
            if len(rows) < len(run):
                break
    return found
