"""Writing fragments: a ledger's chunks are cut into runs, checked, and streamed into objects.

The ledger's table alone decides where a fragment ends. So its key and its plain size are fixed before its
first byte is read. The bytes then pass through in windows, each checked and compressed on its way. Memory is
one or two windows for each fragment in flight, however large the fragment is.

Invariants: a chunk never spans two fragments, and a fragment never spans two ledgers; a chunk with a wrong
header, length or CRC ends the upload with `Corrupt`, and nothing of the fragment becomes visible; a second
pass over the windows yields the same bytes or raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Body, Buffer
from offload.formats.blocks import BLOCK, blocks_size_bytes_max, compressed_blocks
from offload.formats.checksums import crc32c
from offload.formats.chunk_check import check_source
from offload.formats.fragment import SOURCE_EPOCH, encode_description, encode_tail, verbatim_size_bytes
from offload.formats.fragment_trailer import FRAGMENT_HEADER, FragmentTrailer, stream_digest
from offload.formats.sealing import KEY_SECTION, TAG_SIZE_BYTES, DataKey
from offload.formats.sections import SECTION
from offload.ground.errors import Corrupt
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable, ChunkType, windows_of
from offload.model.compression import Compression
from offload.model.entry import Entry
from offload.model.manifest import Manifest

__all__ = ["covering_table"]

KEY_PARTS_SIZE_BYTES: Final = KEY_SECTION.size_bytes + 2 * SECTION.size_bytes + 2 * TAG_SIZE_BYTES
"""The size of the sections `key` and `seal`, with their rows, and of the tag of `checksums`."""


async def covering_table(handle: ReadHandle) -> ChunkTable:
    """Return the handle's table, checked to cover exactly the handle's offsets, without hole or overlap."""
    # A plugin's handle makes the table. A hole in it would be committed, and could never be filled.
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
    """A fragment that is being uploaded: its body for the store and, once all of it has passed, its entry."""

    handle: ReadHandle
    rows: ChunkTable
    attempt: Attempt
    manifest: Manifest
    metadata: Mapping[str, str]
    compression: Compression
    turns: AbstractAsyncContextManager[object]
    """Bounds the threads that check and compress at once, over all fragments."""
    key: DataKey | None = None
    """The key that encrypts the fragment."""
    key_section: bytes = b""
    """The key, wrapped."""
    copied_epoch: int | None = None
    """For a copy, the epoch of the first fragment that it copies. A rebuild prefers higher epochs, and a copy
    must not outrank data that was written later."""
    entry: Entry | None = field(default=None, init=False)
    """The fragment's entry for a manifest. Set after the whole body has passed."""

    def __post_init__(self) -> None:
        texts = {name: text for name, text in self.metadata.items() if name != SOURCE_EPOCH}
        # A rebuild after the loss of all roots finds the source epoch nowhere else.
        if self.manifest.source_epoch:
            texts[SOURCE_EPOCH] = str(self.manifest.source_epoch)
        self._description = encode_description(self.attempt.stream, texts)
        self._data_size_bytes = int(self.rows["size_bytes"].sum())

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return int(self.rows["offset"][0])

    @property
    def chunk_size_bytes_max(self) -> int:
        """The size of the largest chunk, which is in memory whole."""
        return int(self.rows["size_bytes"].max())

    @property
    def _has_blocks(self) -> bool:
        return bool(self.compression.codec) or self.key is not None

    def body(self) -> Body:
        """Return the object's bytes for the store. If they are compressed, their size is only bounded."""
        size = verbatim_size_bytes(self._data_size_bytes, len(self.rows), self._description)
        if not self._has_blocks:
            return Body(size_bytes=size, windows=self._windows, crc32c=self._checksum)
        most = size + blocks_size_bytes_max(len(self.rows)) + KEY_PARTS_SIZE_BYTES
        return Body(size_bytes=most, windows=self._windows, is_bound=True, crc32c=self._checksum)

    def _checksum(self) -> int | None:
        return None if self.entry is None else self.entry.checksum

    async def _windows(self) -> AsyncIterator[Buffer]:
        coded = _Coded(crc32c(FRAGMENT_HEADER), len(FRAGMENT_HEADER))
        yield FRAGMENT_HEADER
        # Not the handle's windows: blocks are cut within windows, and a second pass must cut the same.
        at = 0
        for rows in windows_of(self.rows):
            at += len(rows)
            raw = await self.handle.read_on(rows, self.rows[at:])
            async with self.turns:
                data = await asyncio.to_thread(self._code, raw, rows, coded)
            yield data
        async with self.turns:
            tail, entry = await asyncio.to_thread(self._tail, coded)
        # A retry reads the source again. If its bytes have changed, this raises before the tail is handed to
        # the store, while the object is still incomplete.
        self._remember(entry)
        yield tail

    def _code(self, raw: Buffer, rows: ChunkTable, coded: _Coded) -> Buffer:
        """Check a window of chunks, and return its stored bytes."""
        try:
            coded.checksums.append(check_source(raw, rows, where=self.handle.where))
        except Corrupt as exc:
            raise exc.within(exc.where, stream=self.attempt.stream) from exc
        if self._has_blocks:
            raw, records = compressed_blocks(
                raw,
                rows,
                self.compression,
                key=self.key,
                first_number=coded.block_count,
                is_end=bool(rows["offset"][-1] == self.rows["offset"][-1]),
            )
            coded.blocks.append(records)
            coded.block_count += len(records) // BLOCK.size_bytes
        coded.checksum, coded.size_bytes = crc32c(raw, coded.checksum), coded.size_bytes + len(raw)
        return raw

    def _tail(self, coded: _Coded) -> tuple[bytes, Entry]:
        rows, last = self.rows, self.rows[-1]
        trailer = FragmentTrailer(
            codec=self.compression.codec,
            copied=int(self.copied_epoch is not None),
            encrypted=int(self.key is not None),
            stream_digest=stream_digest(self.attempt.stream),
            incarnation=self.manifest.incarnation,
            attempt=self.attempt.uid,
            ledger_id=self.attempt.ledger_id,
            epoch=self.manifest.epoch if self.copied_epoch is None else self.copied_epoch,
            base_version=self.manifest.version,
            first_offset=self.first_offset,
            next_offset=int(last["offset"]) + int(last["records"]),
            messages=int(rows["records"][rows["type"] == ChunkType.USER].sum()),
            first_timestamp_ms=int(rows["timestamp_ms"].min()),
            last_timestamp_ms=int(rows["timestamp_ms"].max()),
            data_size_bytes=self._data_size_bytes,
            tail_start=coded.size_bytes,
            chunk_count=len(rows),
            data_checksum=coded.checksum,
        )
        tail, trailer = encode_tail(
            trailer,
            rows,
            np.concatenate(coded.checksums),
            blocks=b"".join(coded.blocks),
            description=self._description,
            compression=self.compression,
            key=self.key,
            key_section=self.key_section,
        )
        return tail, entry_of(trailer, crc32c(tail, coded.checksum))

    def _remember(self, entry: Entry) -> None:
        if self.entry is not None and self.entry != entry:
            where, stream = self.handle.where, self.attempt.stream
            raise Corrupt("bytes of a second read", where, stream=stream, expected=self.entry, found=entry)
        self.entry = entry


@dataclass(slots=True)
class _Coded:
    """The sums and counts of one pass over the source so far."""

    checksum: int
    """CRC-32C of the stored bytes."""
    size_bytes: int
    block_count: int = 0
    checksums: list[npt.NDArray[np.uint32]] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)


def entry_of(trailer: FragmentTrailer, checksum: int) -> Entry:
    """Return the entry of a fragment whose object has this CRC-32C."""
    return Entry(
        first_offset=trailer.first_offset,
        records=trailer.next_offset - trailer.first_offset,
        messages=trailer.messages,
        first_timestamp_ms=trailer.first_timestamp_ms,
        last_timestamp_ms=trailer.last_timestamp_ms,
        data_size_bytes=trailer.data_size_bytes,
        stored_size_bytes=trailer.size_bytes,
        ledger_id=trailer.ledger_id,
        attempt=trailer.attempt,
        checksum=checksum,
        tail_size_bytes=trailer.tail_size_bytes,
        codec=trailer.codec,
        encrypted=trailer.encrypted,
        copied=trailer.copied,
    )
