"""Writing fragments: a ledger's chunks are cut, checked, and streamed into objects.

Where a fragment ends is decided from the ledger's table alone, so its size and its key are fixed
before its first byte is read; the bytes then pass through in windows, each checked on its way.
Memory is one or two windows per fragment in flight, whatever the fragment's size.

Invariants: a chunk never spans two fragments, a fragment never spans two ledgers; a chunk whose
header, length or CRC does not hold ends the upload with `Corrupt`, and nothing of the fragment
becomes visible; a second pass over the windows yields the same bytes or raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.errors import Corrupt
from offload.formats.checksums import crc32c
from offload.formats.chunk import ChunkTable, ChunkType, check_chunks
from offload.formats.fragment import (
    FRAGMENT_HEADER,
    INDEX_RECORD,
    SOURCE_EPOCH,
    TRAILER,
    FragmentTrailer,
    check_index,
    encode_description,
    index_of,
    stream_digest,
)
from offload.formats.manifest import Entry, Manifest
from offload.offloader import Attempt, ReadHandle
from offload.store.port import Body

WINDOW_SIZE_BYTES: Final = 4 * 1024 * 1024
"""How much is read, checked and written at a time. Each window takes two turns of threads, which cost more
than the bytes of a small one."""

INDEX_COUNT_MAX: Final = 2**20
"""Chunks of one fragment: keeps an index of tiny chunks below 40 MiB."""


def cut(table: ChunkTable, *, size_bytes: int, count_max: int) -> Iterator[ChunkTable]:
    """Runs of chunks: each ends behind the chunk that brings it to `size_bytes`, or holds `count_max`."""
    ends = np.cumsum(table["size_bytes"], dtype=np.uint64)
    start = 0
    while start < len(table):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, np.uint64(before + size_bytes))) + 1
        stop = min(stop, start + count_max)
        yield table[start:stop]
        start = stop


def windows_of(table: ChunkTable, *, size_bytes: int = WINDOW_SIZE_BYTES) -> Iterator[ChunkTable]:
    """Runs of chunks to read at once: about `size_bytes`, or a single larger chunk.

    A run ends where the next chunk does not lie behind it: a handle may join several objects.
    """
    ends = table["position"] + table["size_bytes"]
    breaks = np.flatnonzero(table["position"][1:] != ends[:-1]) + 1
    for part in np.split(table, breaks):
        yield from cut(part, size_bytes=size_bytes, count_max=len(part))


async def covering_table(handle: ReadHandle) -> ChunkTable:
    """The handle's table, checked to cover exactly what the handle says it holds, without hole or overlap."""
    table = await handle.table()
    nexts = table["offset"] + table["records"]
    begins = np.concatenate((np.array([handle.first_offset], np.uint64), nexts))
    ends = np.concatenate((table["offset"], np.array([handle.next_offset], np.uint64)))
    if (begins != ends).any():
        row = int((begins != ends).argmax())
        raise Corrupt(
            "table of chunks", handle.where, expected=f"offset {begins[row]}", found=f"offset {ends[row]}"
        )
    return table


@dataclass(kw_only=True)
class FragmentWriter:
    """One fragment on its way: its body for the store, and, once that has passed, its entry."""

    handle: ReadHandle
    rows: ChunkTable
    attempt: Attempt
    manifest: Manifest
    metadata: Mapping[str, str]
    copied_epoch: int | None = None
    """Of a copy, the epoch of the first fragment that it copies: what is no writer's own outranks nothing."""
    entry: Entry | None = field(default=None, init=False)
    """What a manifest says of the fragment. Set when the whole body has passed."""

    def __post_init__(self) -> None:
        texts = {name: text for name, text in self.metadata.items() if name != SOURCE_EPOCH}
        if self.manifest.source_epoch:  # a rebuild without roots finds it nowhere else
            texts[SOURCE_EPOCH] = str(self.manifest.source_epoch)
        self._description = encode_description(self.attempt.stream, texts)
        self._data_size_bytes = int(self.rows["size_bytes"].sum())

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return int(self.rows["offset"][0])

    def body(self) -> Body:
        """The object's bytes for the store."""
        tail = len(self.rows) * INDEX_RECORD.size_bytes + len(self._description) + TRAILER.size_bytes
        size = len(FRAGMENT_HEADER) + self._data_size_bytes + tail
        return Body(size_bytes=size, windows=self._windows)

    async def _windows(self) -> AsyncIterator[bytes]:
        checksum = crc32c(FRAGMENT_HEADER)
        checksums = []
        yield FRAGMENT_HEADER
        for rows in windows_of(self.rows):
            raw = await self.handle.read(rows)
            of_chunks, checksum = await asyncio.to_thread(self._check, raw, rows, checksum)
            checksums.append(of_chunks)
            yield raw
        tail, checksum = self._tail(np.concatenate(checksums), checksum)
        self._remember(checksum)
        yield tail

    def _check(self, raw: bytes, rows: ChunkTable, before: int) -> tuple[npt.NDArray[np.uint32], int]:
        try:
            return check_source(raw, rows, where=self.handle.where), crc32c(raw, before)
        except Corrupt as exc:
            raise exc.within(exc.where, stream=self.attempt.stream) from exc

    def _tail(self, checksums: npt.NDArray[np.uint32], data_checksum: int) -> tuple[bytes, int]:
        index = index_of(self.rows, checksums)
        parts = index.tobytes() + self._description
        trailer = FragmentTrailer(
            stream_digest=stream_digest(self.attempt.stream),
            incarnation=self.manifest.incarnation,
            attempt=self.attempt.uid,
            ledger_id=self.attempt.ledger_id,
            epoch=self.manifest.epoch if self.copied_epoch is None else self.copied_epoch,
            base_version=self.manifest.version,
            first_offset=self.first_offset,
            next_offset=self._next_offset(),
            messages=int(self.rows["records"][self.rows["type"] == ChunkType.USER].sum()),
            first_timestamp_ms=int(self.rows["timestamp_ms"].min()),
            last_timestamp_ms=int(self.rows["timestamp_ms"].max()),
            index_start=len(FRAGMENT_HEADER) + self._data_size_bytes,
            index_count=len(self.rows),
            description_size_bytes=len(self._description),
            data_checksum=data_checksum,
            index_checksum=crc32c(parts),
            copied=int(self.copied_epoch is not None),
        )
        check_index(index, trailer, where=self.handle.where)  # windows were checked one by one
        tail = parts + trailer.encode()
        self._trailer = trailer
        return tail, crc32c(tail, data_checksum)

    def _next_offset(self) -> int:
        return int(self.rows["offset"][-1]) + int(self.rows["records"][-1])

    def _remember(self, checksum: int) -> None:
        entry = entry_of(self._trailer, checksum)
        if self.entry is not None and self.entry != entry:
            where, stream = self.handle.where, self.attempt.stream
            raise Corrupt("bytes read again", where, stream=stream, expected=self.entry, found=entry)
        self.entry = entry


def entry_of(trailer: FragmentTrailer, checksum: int) -> Entry:
    """What a manifest says of a fragment whose object has this CRC-32C."""
    return Entry(
        first_offset=trailer.first_offset,
        records=trailer.next_offset - trailer.first_offset,
        messages=trailer.messages,
        first_timestamp_ms=trailer.first_timestamp_ms,
        last_timestamp_ms=trailer.last_timestamp_ms,
        data_size_bytes=trailer.index_start - len(FRAGMENT_HEADER),
        stored_size_bytes=trailer.size_bytes,
        ledger_id=trailer.ledger_id,
        attempt=trailer.attempt,
        checksum=checksum,
        copied=trailer.copied,
    )


def check_source(raw: bytes, rows: ChunkTable, *, where: str) -> npt.NDArray[np.uint32]:
    """Check chunks that a source handed over, and return the CRC-32 of each whole stored chunk.

    Raises `Corrupt` at the first chunk whose bytes are missing, or whose header or CRC does not hold.
    """
    start, size = int(rows["position"][0]), int(rows["size_bytes"].sum())
    if len(raw) < size:
        whole = int(
            np.searchsorted(rows["position"] + rows["size_bytes"], np.uint64(start + len(raw)), side="right")
        )
        if whole:
            check_chunks(
                raw[: int(rows["size_bytes"][:whole].sum())], rows[:whole], window_position=start, where=where
            )
        missing = rows[whole]
        found = start + len(raw) - int(missing["position"])
        position, expected = int(missing["position"]), int(missing["size_bytes"])
        raise Corrupt("chunk size", where, position=position, expected=expected, found=found)
    return check_chunks(raw, rows, window_position=start, where=where)


async def first_damage(handle: ReadHandle) -> tuple[int, Corrupt] | None:
    """The offset of the first chunk of `handle` that does not hold, and what is wrong with it; or None."""
    for rows in windows_of(await handle.table()):
        raw = await handle.read(rows)
        try:
            await asyncio.to_thread(check_source, raw, rows, where=handle.where)
        except Corrupt as damage:
            row = int(np.searchsorted(rows["position"], np.uint64(damage.position), side="right")) - 1
            return int(rows["offset"][max(row, 0)]), damage
    return None
