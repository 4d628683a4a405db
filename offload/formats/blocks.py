"""Blocks: runs of consecutive chunks that are compressed together.

Small chunks alone compress little. A block ends with the chunk that brings it to 64 KiB of plain bytes
(docs/adr/0022-format-2.md has the measurements), so a reader of one message fetches some 13 KiB. A larger
chunk is a block of its own.

Invariants: a block holds whole chunks; those before its last one have less than 64 KiB; blocks are back to
back; chunks that would not shrink by 5 % together are stored plain, each as a block of its own; all other
blocks have the codec of the fragment; each block has a checksum of its stored bytes, which needs no codec.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from offload.formats.block_codecs import compressor, decompressed
from offload.formats.checksums import crc32c
from offload.formats.layout import layout
from offload.formats.sealing import TAG_SIZE_BYTES, DataKey, SealedKind, SealedRange
from offload.formats.sections import SECTION
from offload.ground.errors import Corrupt
from offload.model.chunk_table import ChunkTable, cut
from offload.model.compression import BlockCodec, Compression

BLOCK_SIZE_BYTES: Final = 64 * 1024
"""The plain size that ends a block."""

SHRINKS_TO: Final = 0.95

BLOCK: Final = layout(
    "Block record, one per block, in order",
    ("chunks", "I", "number of chunks in the block"),
    ("size_bytes", "I", "stored length"),
    ("codec", "B", "the codec of the trailer, or 0: stored plain; any other is refused"),
    ("reserved", "3s", "zero, and refused otherwise"),
    ("checksum", "I", "CRC-32C of the stored block"),
)

BlockRecords = npt.NDArray[np.void]
"""Block records as stored: an array of `BLOCK.dtype`."""


def compressed_blocks(
    data: bytes | memoryview,
    rows: ChunkTable,
    compression: Compression,
    *,
    key: DataKey | None = None,
    first_number: int = 0,
    is_end: bool = False,
) -> tuple[bytes, bytes]:
    """Return the chunks of `rows`, whose bytes are `data`, as blocks; and the records of the blocks.

    With a `key`, each is encrypted: `first_number` is the number of the first one in the fragment, and with
    `is_end` the last one ends the fragment.
    """
    view, at, bodies, records = memoryview(data), 0, list[bytes](), list[bytes]()
    left, compress = int(rows["size_bytes"].sum()), compressor(compression)

    def add(body: bytes, codec: BlockCodec, chunks: int, plain_size_bytes: int) -> None:
        nonlocal left
        left -= plain_size_bytes
        if key is not None:
            number, is_last = first_number + len(records), is_end and not left
            body = key.seal(body, block_part(number, plain_size_bytes, codec, is_last=is_last))
        size, checksum = len(body), crc32c(body)
        records.append(
            BLOCK.pack(chunks=chunks, size_bytes=size, codec=codec, reserved=bytes(3), checksum=checksum)
        )
        bodies.append(body)

    for run in cut(rows, size_bytes=BLOCK_SIZE_BYTES, count_max=len(rows)):
        sizes = run["size_bytes"].tolist()
        plain = view[at : at + sum(sizes)]
        at += len(plain)
        body = compress(plain)
        if len(body) <= SHRINKS_TO * len(plain):
            add(body, compression.codec, len(run), len(plain))
            continue
        # One block for each chunk: a reader of one message then fetches no other chunk.
        for stop, size in zip(accumulate(sizes), sizes, strict=True):
            add(bytes(plain[stop - size : stop]), BlockCodec.NONE, 1, size)
    return b"".join(bodies), b"".join(records)


def block_part(number: int, plain_size_bytes: int, codec: int, *, is_last: bool) -> SealedRange:
    """Return the place of a block in its fragment, for encryption."""
    return SealedRange(
        kind=SealedKind.BLOCK, number=number, plain_size_bytes=plain_size_bytes, codec=codec, is_last=is_last
    )


def blocks_size_bytes_max(chunks: int) -> int:
    """Return the most bytes by which blocks make a fragment larger than verbatim chunks do."""
    # Chunks that do not shrink are stored as they are, each as a block of its own. A tag makes it larger.
    return chunks * (BLOCK.size_bytes + TAG_SIZE_BYTES) + SECTION.size_bytes


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a fragment: which chunks they hold, and where they are in the object."""

    records: BlockRecords
    rows: npt.NDArray[np.int64]
    """The number of the first chunk of each block, and the number of chunks."""
    positions: npt.NDArray[np.int64]
    """The position of each block in the object, and that behind the last."""
    plain_positions: npt.NDArray[np.int64]
    """The position of each block among the plain chunks, and that behind the last."""

    @classmethod
    def decode(
        cls, raw: bytes, *, start: int, table: ChunkTable, codec: int, where: str, position: int
    ) -> Blocks:
        """Return the blocks of the chunks in `table`. They begin at byte `start` of the object.

        `codec` is the fragment's, and `position` is that of `raw` in the object. Raises `Corrupt` if the
        blocks do not hold exactly these chunks, if a block has bytes behind the chunk that ends it, or if a
        record is malformed or names another codec.
        """
        count, rest = divmod(len(raw), BLOCK.size_bytes)
        records = np.frombuffer(raw, BLOCK.dtype, count=count)
        rows = _from_zero(records["chunks"])
        is_malformed = (records["chunks"] == 0) | (records["size_bytes"] == 0)
        is_malformed |= records["reserved"] != np.void(bytes(3))
        is_malformed |= (records["codec"] != BlockCodec.NONE) & (records["codec"] != codec)
        if rest or int(rows[-1]) != len(table) or is_malformed.any():
            expected, found = f"blocks of {len(table)} chunks", f"{count} blocks of {int(rows[-1])} chunks"
            raise Corrupt("blocks", where, expected=expected, found=found, position=position)
        positions = start + _from_zero(records["size_bytes"])
        plain_positions = start + _from_zero(table["size_bytes"])[rows]
        # Every writer ends blocks so. Without this check, a forged block of many chunks could ask for as much
        # memory as its codec can yield. Now it can ask for little more than its last chunk.
        before_last = np.diff(plain_positions) - table["size_bytes"][rows[1:] - 1].astype(np.int64)
        if (before_last >= BLOCK_SIZE_BYTES).any():
            expected, found = f"less than {BLOCK_SIZE_BYTES} bytes before its last chunk", before_last.max()
            raise Corrupt("plain size of a block", where, expected=expected, found=found, position=position)
        return cls(records, rows, positions, plain_positions)

    def holding(self, first: int, stop: int) -> range:
        """Return the numbers of the blocks that hold the chunks from number `first` up to `stop`."""
        begin = int(np.searchsorted(self.rows, first, side="right")) - 1
        return range(begin, int(np.searchsorted(self.rows, stop, side="left")))

    def check(self, raw: bytes | memoryview, numbers: range, *, where: str) -> None:
        """Raise `Corrupt` at the first of these blocks whose stored bytes are missing or damaged."""
        origin, view = int(self.positions[numbers.start]), memoryview(raw)
        for number, (start, stop) in zip(numbers, self._borders(numbers), strict=True):
            expected = int(self.records["checksum"][number])
            found = crc32c(view[start - origin : stop - origin])
            if found != expected:
                damage = Corrupt("checksum of a block", where, expected=expected, found=found)
                raise self.in_block(damage, number)

    def decoded(
        self, raw: bytes | memoryview, numbers: range, *, key: DataKey | None = None, where: str
    ) -> bytes:
        """Return the plain bytes of these blocks, whose stored bytes are `raw`.

        Raises `Corrupt` as `check`, `DataKey.open` and `decompressed` do.
        """
        self.check(raw, numbers, where=where)
        origin, view = int(self.positions[numbers.start]), memoryview(raw)
        return b"".join(
            self._plain(view[start - origin : stop - origin], number, key, where)
            for number, (start, stop) in zip(numbers, self._borders(numbers), strict=True)
        )

    def in_block(self, damage: Corrupt, number: int, *, plain_position: int | None = None) -> Corrupt:
        """Return the same damage, located at a block, or at `plain_position` within it."""
        if plain_position is None:
            plain_position = int(self.plain_positions[number])
        return Corrupt(
            damage.what,
            damage.where,
            expected=damage.expected,
            found=damage.found,
            position=int(self.positions[number]),
            stream=damage.stream,
            plain_position=plain_position,
        )

    def _plain(self, body: bytes | memoryview, number: int, key: DataKey | None, where: str) -> bytes:
        size = int(self.plain_positions[number + 1] - self.plain_positions[number])
        codec = int(self.records["codec"][number])
        try:
            if key is not None:
                part = block_part(number, size, codec, is_last=number == len(self.records) - 1)
                body = key.open(body, part, where=where, position=0)
            return decompressed(body, codec, size_bytes=size, where=where, position=0)
        except Corrupt as damage:
            raise self.in_block(damage, number) from damage

    def _borders(self, numbers: range) -> pairwise[tuple[int, int]]:
        return pairwise(self.positions[numbers.start : numbers.stop + 1].tolist())


def _from_zero(sizes: npt.NDArray[np.unsignedinteger[Any]]) -> npt.NDArray[np.int64]:
    """Return the position of each item, and that behind the last, if the first is at zero."""
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
