"""Reading index objects of a store: the list of them, parts of a directory, and rows, all of them checked.

Memory is bounded by `PIECE_ROWS` rows and by the entries that a caller asks for, whatever an object says.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.contracts.store import Buffer, ObjectStore, Span
from offload.formats.checksums import crc32c
from offload.formats.index_object import (
    HASH_BITS,
    INDEX_OBJECT_HEADER,
    ROW_SIZE_BYTES,
    Directory,
    Hashes,
    IndexShape,
    Offsets,
    check_index_header,
    split_rows,
)
from offload.formats.keys import IndexName, StreamKeys
from offload.formats.range_object import decode_ranges
from offload.ground.errors import Corrupt

__all__ = ["IndexObject", "IndexReads", "check_index", "list_indexes"]

PIECE_ROWS: Final = 2**18
BUCKETS_AT_ONCE: Final = 2**14


@dataclass(slots=True)
class IndexReads:
    """Counts of what was read of indexes."""

    objects: int = 0
    """Index objects that were looked at."""
    requests: int = 0
    """Requests for listings and for parts of objects."""
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class IndexObject:
    """An index object of a store, by its name and its size."""

    store: ObjectStore
    stream: str
    name: IndexName
    size_bytes: int
    reads: IndexReads = field(default_factory=IndexReads)

    @property
    def key(self) -> str:
        """The object's key."""
        return StreamKeys(self.stream).index(self.name)

    @property
    def shape(self) -> IndexShape:
        """The positions in the object. Raises `Corrupt` if no index object has this size."""
        return IndexShape.of_size(self.size_bytes, where=self.key)

    async def directory(self, first: int, stop: int) -> Directory:
        """Return the checked entries of the buckets from `first` to before `stop`, by one request.

        This and the other methods raise `Corrupt`, `NotFound` and the errors of the store.
        """
        shape = self.shape
        raw = await self._get(*shape.entries(first, stop))
        return Directory.decode(raw, shape, first, stop, where=self.key)

    async def whole(self) -> Buffer:
        """Return the whole object, unchecked, by one request."""
        return await self._get(0, self.size_bytes)

    async def check_header(self) -> None:
        """Check the header. One request."""
        shape = self.shape
        raw = await self._get(shape.header_start, INDEX_OBJECT_HEADER.size_bytes)
        check_index_header(raw, self.stream, self.name, shape)

    async def directories(self) -> AsyncGenerator[tuple[int, Directory], None]:
        """Yield all checked entries in pieces, each with the number of its first bucket. Close it."""
        shape = self.shape
        for first in range(0, shape.buckets, BUCKETS_AT_ONCE):
            yield first, await self.directory(first, min(first + BUCKETS_AT_ONCE, shape.buckets))

    async def rows(self, directory: Directory, first: int) -> AsyncGenerator[tuple[Hashes, Offsets], None]:
        """Yield the rows of these buckets, of which `first` is the first, in order and in pieces. Close it.

        A piece is checked before it is yielded. Only of a bucket with more than `PIECE_ROWS` rows, pieces
        come before the last one shows whether they are sound.
        """
        checksum, last = 0, (-1, -1)
        for buckets, at, following in _pieces(directory.edges):
            raw = memoryview(await self._get(at * ROW_SIZE_BYTES, (following - at) * ROW_SIZE_BYTES))
            for number in buckets:
                begin, end = (int(edge) for edge in directory.edges[number : number + 2])
                part = raw[max(begin - at, 0) * ROW_SIZE_BYTES : (min(end, following) - at) * ROW_SIZE_BYTES]
                checksum = crc32c(part, 0 if begin >= at else checksum)
                stored, position = int(directory.checksums[number]), begin * ROW_SIZE_BYTES
                if end <= following and checksum != stored:
                    raise Corrupt(
                        "index rows checksum", self.key, expected=stored, found=checksum, position=position
                    )
            hashes, offsets = split_rows(raw)
            self._check_order(hashes, offsets, last, range(first + buckets.start, first + buckets.stop), at)
            last = int(hashes[-1]), int(offsets[-1])
            yield hashes, offsets

    async def all_rows(self) -> AsyncGenerator[tuple[Hashes, Offsets], None]:
        """Yield all rows in order, in pieces. Close it."""
        async with aclosing(self.directories()) as directories:
            async for first, directory in directories:
                async with aclosing(self.rows(directory, first)) as pieces:
                    async for piece in pieces:
                        yield piece

    def _check_order(
        self, hashes: Hashes, offsets: Offsets, last: tuple[int, int], buckets: range, at: int
    ) -> None:
        """Check that rows ascend in these buckets. A merge relies on it, and no checksum proves it."""
        shift = np.uint64(HASH_BITS - self.shape.bits)
        ascend = (hashes[1:] > hashes[:-1]) | ((hashes[1:] == hashes[:-1]) & (offsets[1:] > offsets[:-1]))
        if not (
            last < (int(hashes[0]), int(offsets[0]))
            and ascend.all()
            and int(hashes[0] >> shift) in buckets
            and int(hashes[-1] >> shift) in buckets
            and offsets.max() < self.name.records
        ):
            position = at * ROW_SIZE_BYTES
            raise Corrupt("index rows", self.key, expected="rows in order", found="others", position=position)

    async def _get(self, start: int, length: int) -> Buffer:
        self.reads.requests += 1
        raw = await self.store.get(self.key, Span(start, length)) if length else b""
        self.reads.bytes += len(raw)
        if len(raw) != length:
            raise Corrupt(
                "index size", self.key, expected=start + length, found=start + len(raw), position=start
            )
        return raw


def _pieces(edges: npt.NDArray[np.int64]) -> Iterator[tuple[range, int, int]]:
    """Yield the buckets, the first row, and the row behind the last one, of each piece that is not empty.

    A piece has as many whole buckets as fit, or a part of one.
    """
    bucket = 0
    while bucket < len(edges) - 1:
        fitting = int(np.searchsorted(edges, edges[bucket] + PIECE_ROWS, side="right")) - 1
        stop = max(fitting, bucket + 1)
        for at in range(int(edges[bucket]), int(edges[stop]), PIECE_ROWS):
            yield range(bucket, stop), at, min(at + PIECE_ROWS, int(edges[stop]))
        bucket = stop


async def check_index(one: IndexObject, *, reads_rows: bool = True) -> None:
    """Check all that the format of an index object promises, or all but the rows, which are most of it.

    Ranges are small, and one checksum covers all of them, so they are always read.
    Raises `Corrupt`, `NotFound`, and `UnsupportedFormat` for an object of a newer version.
    """
    if one.name.has_ranges:
        decode_ranges(await one.whole(), one.stream, one.name)
        return
    await one.check_header()
    async with aclosing(one.all_rows() if reads_rows else one.directories()) as pieces:
        async for _ in pieces:
            pass


async def list_indexes(
    store: ObjectStore, stream: str, folder: str, reads: IndexReads | None = None
) -> list[IndexObject]:
    """Return the index objects of one folder of a stream, in order of their names."""
    keys, reads = StreamKeys(stream), reads or IndexReads()
    reads.requests += 1
    listed = [row async for row in store.list(f"{keys.indexes}{folder}/")]
    return [
        IndexObject(store, stream, name, row.size_bytes, reads)
        for row in listed
        if (name := keys.parse_index(row.key)) is not None
    ]
