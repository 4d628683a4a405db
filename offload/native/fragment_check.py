"""Reading a fragment whole and holding every byte of it against every checksum there is.

Used where trust is at stake: by `verify`, and before a fragment that a crash left is adopted.
Memory is one window, or one larger chunk; the object itself says where its chunks are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.contracts.store import ObjectStore, Span, Suffix
from offload.errors import Corrupt
from offload.formats.checksums import crc32c
from offload.formats.chunk import check_chunks, check_stored
from offload.formats.fragment import HEADER, TRAILER, FragmentTail, FragmentTrailer, check_header, table_of
from offload.formats.keys import StreamKeys
from offload.model.chunk_table import ChunkTable, windows_of
from offload.store.checked import checked

CHECK_WINDOW_SIZE_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFragment:
    """A fragment of which every byte held."""

    tail: FragmentTail
    checksum: int
    """CRC-32C of the whole object."""


async def check_fragment(store: ObjectStore, key: str, *, size_bytes: int) -> CheckedFragment:
    """Read the whole object and check it against itself and against its key.

    Raises `Corrupt` at the first byte or part that does not hold, `NotFound` where it is gone.
    """
    tail, raw_tail = await load_own_tail(store, key, size_bytes=size_bytes)
    checksum, row = (
        await checked(store, key, partial(_header_sum, key=key), span=Span(0, HEADER.size_bytes)),
        0,
    )
    for rows in windows_of(table_of(tail.index), size_bytes=CHECK_WINDOW_SIZE_BYTES):
        span = Span(int(rows["position"][0]), int(rows["size_bytes"].sum()))
        sums = tail.index["checksum"][row : row + len(rows)].astype(np.uint32)
        check = partial(_check_window, rows=rows, sums=sums, key=key, before=checksum)
        checksum = await checked(store, key, check, span=span, inline_size_bytes_max=0)
        row += len(rows)
    if checksum != tail.trailer.data_checksum:
        raise Corrupt("data checksum", key, expected=tail.trailer.data_checksum, found=checksum)
    return CheckedFragment(tail=tail, checksum=crc32c(raw_tail, checksum))


def _header_sum(raw: bytes, *, key: str) -> int:
    check_header(raw, where=key)
    return crc32c(raw)


def _check_window(
    raw: bytes, *, rows: ChunkTable, sums: npt.NDArray[np.uint32], key: str, before: int
) -> int:
    """Hold chunks against the index and against themselves; the object's checksum up to their end."""
    start, size = int(rows["position"][0]), int(rows["size_bytes"].sum())
    if len(raw) != size:
        raise Corrupt("object size", key, position=start, expected=size, found=len(raw))
    check_stored(raw, rows, sums, window_position=start, where=key)
    check_chunks(raw, rows, window_position=start, where=key)
    return crc32c(raw, before)


def check_key_of(tail: FragmentTail, key: str) -> None:
    """Raise `Corrupt` where the object says of itself that it belongs under another key."""
    expected = StreamKeys(tail.stream).fragment(tail.trailer.first_offset, tail.trailer.attempt)
    if key != expected:
        raise Corrupt("key", key, position=tail.trailer.index_start, expected=key, found=expected)


async def load_own_tail(store: ObjectStore, key: str, *, size_bytes: int) -> tuple[FragmentTail, bytes]:
    """What an object of this size says of itself, decoded and as bytes, checked to belong under its key.

    Two requests. Raises `Corrupt` where it does not hold, `NotFound` where the object is gone.
    """

    def decode(raw: bytes) -> tuple[FragmentTail, bytes]:
        tail = FragmentTail.decode(raw, where=key, size_bytes=size_bytes)
        check_key_of(tail, key)
        return tail, raw

    trailer = await load_trailer(store, key, size_bytes=size_bytes)
    return await checked(store, key, decode, span=Span(trailer.index_start, trailer.tail_size_bytes))


async def load_trailer(store: ObjectStore, key: str, *, size_bytes: int) -> FragmentTrailer:
    """The trailer of an object of this size. One request. Raises as `load_own_tail` does."""
    if size_bytes < HEADER.size_bytes + TRAILER.size_bytes:
        raise Corrupt(
            "object size", key, expected=f">= {HEADER.size_bytes + TRAILER.size_bytes}", found=size_bytes
        )

    def decode(raw: bytes) -> FragmentTrailer:
        trailer = FragmentTrailer.decode(raw, where=key, position=size_bytes - TRAILER.size_bytes)
        if trailer.size_bytes != size_bytes:
            raise Corrupt("object size", key, expected=trailer.size_bytes, found=size_bytes)
        return trailer

    return await checked(store, key, decode, span=Suffix(TRAILER.size_bytes))
