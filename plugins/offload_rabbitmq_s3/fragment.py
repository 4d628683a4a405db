"""One fragment of the plugin, read in place: its table, and its chunks, each of them checked.

The index does not have the types of chunks. Only a chunk of one record can be a tracking chunk, so the table
needs the headers of these chunks as well. They are read by ranges that leave out larger gaps.

Invariants: a chunk is returned only if its header continues the offsets, agrees with the index, and has the
CRC-32 of its data; epochs of chunks that are read together never fall; nothing is allocated by a size that
only an entry or an index states.

Not promised: that filter and trailer of a chunk are undamaged, and its epoch, if its neighbours are not read
with it. No checksum in the bucket covers them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Buffer, ObjectStore, Span
from offload.formats.chunk import CHUNK_HEADER, CHUNK_MAGIC, ChunkHeader, check_chunks, headers_at
from offload.ground.errors import Absent, Corrupt, NotFound
from offload.model.chunk_table import ChunkTable, ChunkType
from offload.model.entry import Entry
from offload.store.checked import checked, checked_buffer
from offload_rabbitmq_s3.objects import FRAGMENT_HEADER, INDEX_RECORD, check_fragment_header, index_table

__all__ = ["RabbitmqFragment", "span_of_chunks"]

INDEX_SIZE_BYTES_MAX: Final = 256 * 2**20
"""No larger index is read: 13 million chunks."""

GAP_SIZE_BYTES_MAX: Final = 2**20
"""Headers that are further apart are read by two requests."""

HEADERS_SIZE_BYTES: Final = 8 * 2**20
"""So many bytes with headers are in memory at a time."""

INLINE_SIZE_BYTES_MAX: Final = 2**20
"""The most bytes of chunks that are checked on the event loop: some 0.1 ms."""

_CHUNK_SIZE_BYTES_MIN: Final = CHUNK_HEADER.size_bytes + 4


class RabbitmqFragment(ReadHandle):
    """A fragment as a ledger. It is opened by the first call that needs its index."""

    __slots__ = ("_entry", "_key", "_reading", "_store", "_stream", "_table")

    def __init__(self, store: ObjectStore, key: str, stream: str, entry: Entry) -> None:
        self._store, self._key, self._stream, self._entry = store, key, stream, entry
        self._table: ChunkTable | None = None
        self._reading = asyncio.Lock()

    @property
    def ledger_id(self) -> int:
        """The first offset."""
        return self._entry.ledger_id

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self._entry.first_offset

    @property
    def next_offset(self) -> int:
        """First offset after the last record."""
        return self._entry.next_offset

    @property
    def where(self) -> str:
        """The object's key."""
        return self._key

    async def table(self) -> ChunkTable:
        """Return one row for each chunk; `position` is its byte in the object. Reads the index once.

        It also reads the headers of chunks of one record: of nearly the whole fragment if all have one.
        """
        async with self._reading:
            if self._table is None:
                try:
                    self._table = await self._read_table()
                except NotFound as gone:
                    raise Absent(self._key, self._stream) from gone
                except Corrupt as damage:
                    raise damage.within(damage.where, stream=self._stream) from damage
        return self._table

    async def read(self, rows: ChunkTable) -> Buffer:
        """Return these chunks, read by one request, each of them checked."""
        return await self.read_on(rows, rows[:0])

    async def read_on(self, rows: ChunkTable, then: ChunkTable) -> Buffer:
        """Return these chunks, each of them checked. `then` may come by the same request."""
        if not len(rows):
            return b""
        start, stop = _span_of(rows)
        # The header of the fragment is read with its first chunk.
        begin = 0 if start == FRAGMENT_HEADER.size_bytes else start
        span = Span(begin, stop - begin, follows=_span_of(then)[1] - stop if len(then) else 0)
        check = partial(self._checked, rows=rows, start=start, begin=begin)
        try:
            return await checked_buffer(
                self._store, self._key, check, span=span, inline_size_bytes_max=INLINE_SIZE_BYTES_MAX
            )
        except NotFound as gone:
            raise Absent(self._key, self._stream) from gone
        except Corrupt as damage:
            raise damage.within(damage.where, stream=self._stream) from damage

    def _checked(self, raw: Buffer, *, rows: ChunkTable, start: int, begin: int) -> Buffer:
        if begin < start:
            check_fragment_header(bytes(raw[:start]), where=self._key)
        chunks = memoryview(raw)[start - begin :]
        check_chunks(chunks, rows, window_position=start, where=self._key)
        epochs = headers_at(chunks, rows["position"] - np.uint64(start))["epoch"]
        falls = np.flatnonzero(epochs[1:] < epochs[:-1])
        if len(falls):
            row = int(falls[0]) + 1
            at, least = int(rows["position"][row]), f"{epochs[row - 1]} or more"
            raise Corrupt("epoch", self._key, position=at, expected=least, found=int(epochs[row]))
        return chunks

    async def _read_table(self) -> ChunkTable:
        entry = self._entry
        # There is at least one record in a chunk, and there are at least so many bytes.
        chunks = min(entry.records, entry.data_size_bytes // _CHUNK_SIZE_BYTES_MIN)
        size_bytes = min(chunks * INDEX_RECORD.size_bytes, INDEX_SIZE_BYTES_MAX)
        start = FRAGMENT_HEADER.size_bytes + entry.data_size_bytes

        def decode(raw: bytes) -> ChunkTable:
            if len(raw) > size_bytes:
                raise Corrupt(
                    "size of the index",
                    self._key,
                    position=start,
                    expected=f"at most {size_bytes}",
                    found="more",
                )
            return index_table(raw, entry, where=self._key)

        # One byte more than there can be, so that a longer object is found.
        table = await checked(self._store, self._key, decode, span=Span(start, size_bytes + 1))
        ones = np.flatnonzero(table["records"] == 1)
        for span, run in _runs_of_headers(table, ones):
            look = partial(self._types, rows=table[run], start=span.start)
            table["type"][run] = await checked_buffer(self._store, self._key, look, span=span)
        table.flags.writeable = False
        return table

    def _types(
        self, raw: Buffer, *, rows: ChunkTable, start: int
    ) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Return the types of these chunks of one record, whose headers are in `raw`."""
        places = rows["position"] - np.uint64(start)
        if int(places[-1]) + CHUNK_HEADER.size_bytes > len(raw):
            expected = f"{CHUNK_HEADER.size_bytes} bytes of a header at byte {rows['position'][-1]}"
            raise Corrupt("size of the object", self._key, position=start, expected=expected, found=len(raw))
        headers = headers_at(raw, places)
        sizes = sum(headers[f"{part}_size_bytes"].astype(np.uint64) for part in ("data", "trailer", "filter"))
        sound = (headers["magic"] == CHUNK_MAGIC) & (headers["type"] <= max(ChunkType))
        sound &= sizes + np.uint64(CHUNK_HEADER.size_bytes) == rows["size_bytes"]
        for name in ("offset", "timestamp_ms", "records"):
            sound &= headers[name] == rows[name]
        if not sound.all():
            row = int(sound.argmin())
            at = int(rows["position"][row])
            found = ChunkHeader.decode(bytes(raw[at - start :][:48]), where=self._key, origin=at)
            expected = f"that of the index: offset {rows['offset'][row]}, {rows['size_bytes'][row]} bytes"
            raise Corrupt("chunk header", self._key, position=at, expected=expected, found=found)
        return headers["type"]


def span_of_chunks(rows: ChunkTable) -> Span:
    """Return the bytes of the object that these chunks, at least one, take."""
    start, stop = _span_of(rows)
    return Span(start, stop - start)


def _span_of(rows: ChunkTable) -> tuple[int, int]:
    return int(rows["position"][0]), int(rows["position"][-1]) + int(rows["size_bytes"][-1])


def _runs_of_headers(
    table: ChunkTable, ones: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> Iterator[tuple[Span, np.ndarray[tuple[int], np.dtype[np.intp]]]]:
    """Yield the ranges that have the headers of the rows `ones`, each with its rows.

    A range may be continued by the next one, and says so: a store can get both by one request.
    """
    positions = table["position"][ones].astype(np.int64)
    far = np.diff(positions) > GAP_SIZE_BYTES_MAX + CHUNK_HEADER.size_bytes
    for part in np.split(np.arange(len(ones)), np.flatnonzero(far) + 1):
        if not len(part):
            return
        end = int(positions[part[-1]]) + CHUNK_HEADER.size_bytes
        while len(part):
            start = int(positions[part[0]])
            within = int(np.searchsorted(positions[part], start + HEADERS_SIZE_BYTES))
            now, part = part[:within], part[within:]
            stop = int(positions[part[0]]) if len(part) else end
            yield Span(start, stop - start, follows=end - stop), ones[now]
