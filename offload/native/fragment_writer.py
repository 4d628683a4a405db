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
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Body
from offload.errors import Corrupt
from offload.formats.checksums import crc32c
from offload.formats.chunk_check import check_source
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
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable, ChunkType, windows_of
from offload.model.entry import Entry
from offload.model.manifest import Manifest

__all__ = ["covering_table"]


INDEX_COUNT_MAX: Final = 2**20
"""Chunks of one fragment: keeps an index of tiny chunks below 40 MiB."""


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
