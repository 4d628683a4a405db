"""A run of chunks as a table: one row per chunk, found by headers alone and checked all at once.

A tier moves chunks by the thousand, and checking each field of each chunk in Python would be too slow. So the
headers of a whole window are gathered and compared as columns. Only the checksums, whose cost is in the
bytes, are computed chunk by chunk.

Invariants:

- The rows of a table are in order. Each begins at the byte and at the offset at which the row before it ends.
- An error names the first damaged chunk in the order of the bytes, for every kind of damage. The columns show
  that a header is wrong. Its chunk is then decoded alone to find out what is wrong.
"""

from __future__ import annotations

import struct
from typing import Final, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32_combine

from offload.formats._chunk_header import (
    CHUNK_HEADER,
    CHUNK_MAGIC,
    CHUNK_SIZE_BYTES_MAX,
    FILTER_SIZE_BYTES_MIN,
    ChunkHeader,
)
from offload.formats.checksums import crc32
from offload.ground.errors import Corrupt, Misuse
from offload.model.chunk_table import CHUNK_TABLE, ChunkTable, ChunkType

_Headers: TypeAlias = npt.NDArray[np.void]
_Mask: TypeAlias = npt.NDArray[np.bool_]
_Positions: TypeAlias = npt.NDArray[np.uint64]

_SIZES: Final = struct.Struct(">IIB")
_SIZES_START: Final = CHUNK_HEADER.offset_of("data_size_bytes")
_HEADER_SIZE_BYTES: Final = CHUNK_HEADER.size_bytes


def scan(data: bytes | memoryview, *, first_position: int = 0, where: str) -> ChunkTable:
    """Return the table of `data`, which must consist of whole chunks.

    Only headers are read; `check_chunks` checks the data. The positions of rows begin at `first_position`.
    Raises `Corrupt` at the first header that breaks a rule or does not continue the offsets, and at a chunk
    that is only partly in `data`.
    """
    rows, whole_size_bytes = scan_head(data, first_position=first_position, where=where)
    if whole_size_bytes != len(data):
        raise Corrupt(
            "incomplete chunk",
            where,
            position=first_position + whole_size_bytes,
            expected=f"{_wanted_size_bytes(data, whole_size_bytes)} bytes",
            found=f"{len(data) - whole_size_bytes} bytes",
        )
    return rows


def scan_head(data: bytes | memoryview, *, first_position: int = 0, where: str) -> tuple[ChunkTable, int]:
    """Return the table of the whole chunks with which `data` begins, and their size in bytes.

    As `scan`, but the last chunk may be cut short: by a read that ended, or by a writer that has not
    finished. The next read begins at that byte. If the header of the cut chunk is present, it is checked too.
    So bytes that cannot become a chunk are `Corrupt`, and not taken for a cut chunk.
    """
    starts, whole_size_bytes = _walk(data)
    headers = headers_at(data, starts)
    # If `offset + records` wraps at 2**64, its own header is unsound, and is found before the one behind it.
    in_order = np.ones(len(starts), np.bool_)
    in_order[1:] = headers["offset"][1:] == (headers["offset"] + headers["records"])[:-1]
    damaged = _first_false(_sound(headers) & in_order)
    if damaged < len(starts):
        _blame_for_its_place(
            data, int(starts[damaged]), _next_offset(headers, damaged), where, first_position
        )

    rows: ChunkTable = np.empty(len(starts), CHUNK_TABLE)
    for name in ("offset", "timestamp_ms", "records", "type"):
        rows[name] = headers[name]
    rows["size_bytes"] = _stored_sizes(headers)
    rows["position"] = starts + np.uint64(first_position)
    whole = int(np.searchsorted(starts, np.uint64(whole_size_bytes)))
    return rows[:whole], whole_size_bytes


def check_chunks(
    window: bytes | memoryview, rows: ChunkTable, *, window_position: int, where: str
) -> npt.NDArray[np.uint32]:
    """Check the chunks in `window` against `rows` and their own checksums.

    Return the CRC-32 of each whole chunk. `window` holds exactly the stored chunks of `rows`, and begins at
    `window_position` of `where`. The header of each chunk must keep the rules of the format and agree with
    its row. The data section must have the CRC-32 that the header states. An index keeps the returned
    checksums, because osiris' own checksum leaves out header, filter and trailer.

    Not promised: that leader epoch, filter and trailer are undamaged, because no checksum covers them until
    the returned one is kept. Raises `Corrupt` for the first damaged chunk in order, for every kind of damage.
    """
    starts = _starts(window, rows, window_position, where)
    headers = headers_at(window, starts)
    # The first chunk with a damaged header. Chunks before it are checked first, because a damaged data
    # section among them must be reported before it.
    sound = _first_false(_sound(headers) & _agree(headers, rows))

    data_starts = starts + np.uint64(_HEADER_SIZE_BYTES) + headers["filter_size_bytes"]
    data_stops = data_starts + headers["data_size_bytes"]
    stops = starts + rows["size_bytes"]
    columns = (starts, data_starts, data_stops, stops, headers["crc"])
    view = memoryview(window)
    checksums = []
    for start, data_start, data_stop, stop, expected in zip(
        *(column[:sound].tolist() for column in columns), strict=True
    ):
        found = crc32(view[data_start:data_stop])
        if found != expected:
            at = window_position + data_start
            raise Corrupt("chunk data checksum", where, position=at, expected=expected, found=found)
        # The checksum of the data is known, so it is combined with that of the header: no byte is read twice.
        whole = crc32_combine(crc32(view[start:data_start]), found, data_stop - data_start)
        checksums.append(crc32(view[data_stop:stop], whole) if stop > data_stop else whole)
    if sound < len(rows):
        _blame_for_its_row(window, int(starts[sound]), rows[sound], where, window_position)
    return np.array(checksums, np.uint32)


def check_stored(
    window: bytes | memoryview,
    rows: ChunkTable,
    checksums: npt.NDArray[np.uint32],
    *,
    window_position: int,
    where: str,
) -> None:
    """Check the chunks in `window` against `rows`, and every byte of them against `checksums`.

    `checksums` are those that `check_chunks` returned when the chunks were stored, one for each row. The
    bytes are read once, because the checksum of the whole chunk covers the data too. Raises `Corrupt` for the
    first damaged chunk in order, for every kind of damage.
    """
    if len(checksums) != len(rows):
        raise Misuse(f"{len(checksums)} checksums for {len(rows)} chunks of {where}")
    starts = _starts(window, rows, window_position, where)
    headers = headers_at(window, starts)
    sound = _first_false(_sound(headers) & _agree(headers, rows))

    columns = (starts, starts + rows["size_bytes"], checksums)
    view = memoryview(window)
    for start, stop, expected in zip(*(column[:sound].tolist() for column in columns), strict=True):
        found = crc32(view[start:stop])
        if found != expected:
            at = window_position + start
            raise Corrupt("stored chunk checksum", where, position=at, expected=expected, found=found)
    if sound < len(rows):
        _blame_for_its_row(window, int(starts[sound]), rows[sound], where, window_position)


def _walk(data: bytes | memoryview) -> tuple[_Positions, int]:
    """Return the positions of all headers, found by their sizes, and the end of the last whole chunk.

    The header of a chunk that is cut short is among them. A damaged header leads the walk astray. But the
    check of the headers finds it first, because all headers before it are sound.
    """
    starts, at, size = [], 0, len(data)
    while at + _HEADER_SIZE_BYTES <= size:
        starts.append(at)
        stop = at + _wanted_size_bytes(data, at)
        if stop > size:
            break
        at = stop
    return np.array(starts, np.uint64), at


def _wanted_size_bytes(data: bytes | memoryview, start: int) -> int:
    """Return the size of the chunk at `start`, or that of a header if the header is cut short."""
    if start + _HEADER_SIZE_BYTES > len(data):
        return _HEADER_SIZE_BYTES
    data_size, trailer_size, filter_size = _SIZES.unpack_from(data, start + _SIZES_START)
    return _HEADER_SIZE_BYTES + int(filter_size + data_size + trailer_size)


def headers_at(window: bytes | memoryview, starts: _Positions) -> _Headers:
    """Return the headers at these positions of `window`."""
    # The window is seen as an array of overlapping records, one for each byte, so that one indexing operation
    # gathers all headers.
    if not len(starts):
        return np.empty(0, CHUNK_HEADER.dtype)
    everywhere = np.ndarray(
        (len(window) - _HEADER_SIZE_BYTES + 1,), f"V{_HEADER_SIZE_BYTES}", window, strides=(1,)
    )
    return everywhere[starts].view(CHUNK_HEADER.dtype)


def _stored_sizes(headers: _Headers) -> npt.NDArray[np.uint64]:
    sizes = headers["data_size_bytes"].astype(np.uint64)  # the sum may exceed 32 bits
    sizes += headers["trailer_size_bytes"]
    sizes += headers["filter_size_bytes"]
    sizes += np.uint64(_HEADER_SIZE_BYTES)
    return sizes


def _sound(headers: _Headers) -> _Mask:
    """Return a mask of the headers that keep the rules of the format: those of `ChunkHeader.decode`."""
    raw = headers.view(np.uint8).reshape(-1, _HEADER_SIZE_BYTES)
    records, filter_sizes = headers["records"], headers["filter_size_bytes"]
    offsets = headers["offset"]
    sound: _Mask = headers["magic"] == CHUNK_MAGIC
    sound &= headers["type"] <= max(ChunkType)
    sound &= (headers["type"] == ChunkType.USER) | (records == 1)
    sound &= headers["entries"] >= 1
    sound &= headers["entries"] <= records
    sound &= (filter_sizes == 0) | (filter_sizes >= FILTER_SIZE_BYTES_MIN)
    sound &= ~raw[:, CHUNK_HEADER.offset_of("reserved") :].any(axis=1)
    sound &= _stored_sizes(headers) <= CHUNK_SIZE_BYTES_MAX
    sound &= offsets + records >= offsets  # otherwise the sum has wrapped: beyond 64 bits
    return sound


def _agree(headers: _Headers, rows: ChunkTable) -> _Mask:
    """Return a mask of the headers that agree with their rows."""
    agree: _Mask = _stored_sizes(headers) == rows["size_bytes"]
    for name in ("offset", "timestamp_ms", "records", "type"):
        agree &= headers[name] == rows[name]
    return agree


def _starts(window: bytes | memoryview, rows: ChunkTable, window_position: int, where: str) -> _Positions:
    """Return the positions of the chunks in `window`. Raises `Corrupt` unless the rows cover it exactly.

    The offsets of the rows must follow each other too.
    """
    # Rows may come from a stored index. They are checked before anything is read at their positions.
    sizes: _Positions = rows["size_bytes"]
    starts = np.cumsum(sizes, dtype=np.uint64) - sizes
    total = int(sizes.sum())
    if total != len(window):
        raise Corrupt(
            "size of a run of chunks", where, position=window_position, expected=total, found=len(window)
        )
    tiled: _Mask = rows["position"] == starts + np.uint64(window_position)
    tiled &= (sizes >= _HEADER_SIZE_BYTES) & (sizes <= CHUNK_SIZE_BYTES_MAX)
    tiled[1:] &= rows["offset"][1:] == (rows["offset"] + rows["records"])[:-1]
    odd = _first_false(tiled)
    if odd < len(rows):
        raise Corrupt(
            "table of chunks",
            where,
            position=window_position + int(starts[odd]),
            expected="a chunk that begins at this byte and continues the offsets",
            found=f"{rows['size_bytes'][odd]} bytes at byte {rows['position'][odd]}, "
            f"offset {rows['offset'][odd]}",
        )
    return starts


def _first_false(mask: _Mask) -> int:
    """Return the first index at which `mask` is False, or its length."""
    return len(mask) if mask.all() else int(mask.argmin())


def _next_offset(headers: _Headers, index: int) -> int | None:
    """Return the offset at which chunk `index` must begin according to the chunk before it.

    None for the first.
    """
    return int(headers["offset"][index - 1]) + int(headers["records"][index - 1]) if index else None


def _blame_for_its_place(
    data: bytes | memoryview, start: int, offset: int | None, where: str, origin: int
) -> NoReturn:
    """Raise the error of the header at `start`, which should begin at `offset`."""
    # If a rule of the format is broken, `decode` raises. Otherwise only the offset can be wrong.
    header = ChunkHeader.decode(data, start, where=where, origin=origin)
    at = origin + start + CHUNK_HEADER.offset_of("offset")
    raise Corrupt("chunk offset", where, position=at, expected=offset, found=header.offset)


def _blame_for_its_row(
    window: bytes | memoryview, start: int, row: np.void, where: str, origin: int
) -> NoReturn:
    """Raise the error of the header at `start`: of the header itself, or else against its row."""
    header = ChunkHeader.decode(window, start, where=where, origin=origin)
    for field, name in (
        ("type", "type"),
        ("records", "records"),
        ("timestamp_ms", "timestamp_ms"),
        ("offset", "offset"),
        ("data_size_bytes", "size_bytes"),
    ):
        expected, found = int(row[name]), int(getattr(header, name))
        if found != expected:
            at = origin + start + CHUNK_HEADER.offset_of(field)
            raise Corrupt(f"chunk {name}", where, position=at, expected=expected, found=found)
    raise AssertionError("a header that agrees with its row was taken for damaged")
