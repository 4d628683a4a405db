"""The compressions of a sub-batch. They are undone without trust in the sub-batch's header.

The broker stores sub-batches as clients sent them and never opens one. So the size in a header is only a
claim. Decompression proceeds step by step: memory grows with the bytes that it really yields, and it stops as
soon as they exceed the claim. The stream must yield exactly the claimed size, and must end exactly at the end
of the bytes: no second stream, no garbage, nothing missing.

The formats are those of the usual clients: gzip (RFC 1952), the snappy framing format, the lz4 frame format
and zstd frames (RFC 8878), each with the checksums of its format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final, Protocol

import cramjam  # the engine of python-snappy, which lets the engine's own errors through
import lz4.frame
import snappy
import zstandard
from isal import igzip, igzip_lib

from offload.ground.errors import Corrupt, UnsupportedFormat

__all__ = ["Codec"]


SUB_BATCH_SIZE_BYTES_MAX: Final = 256 * 2**20
"""The most bytes to which all sub-batches of one chunk together may decompress. More is refused."""

_STEP_SIZE_BYTES: Final = 2**20  # of output
_ZSTD_STEP_SIZE_BYTES: Final = 256  # of input: at most 64 blocks, which yield at most 8 MiB in a step
_SNAPPY_HEAD: Final = b"\xff\x06\x00\x00sNaPpY"


class Codec(IntEnum):
    """The compression of a sub-batch. The numbers 5 to 7 have no meaning yet."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class _Decompressor(Protocol):
    """The methods of a decompressor of bz2, which other libraries imitate."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _StreamError(Exception):
    """The error of a compressed stream that does not end at the end of its bytes."""


def compress(data: bytes, codec: Codec) -> bytes:
    """Return one stream of `codec` that `decompress` turns back into `data`."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return igzip.compress(data, mtime=0)
        case Codec.SNAPPY:
            return bytes(snappy.StreamCompressor().add_chunk(data)) or _SNAPPY_HEAD
        case Codec.LZ4:
            return bytes(lz4.frame.compress(data, content_checksum=True))
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def decompress(payload: bytes, codec: int, *, size_bytes: int, where: str, position: int) -> bytes:
    """Return the `size_bytes` bytes from which `payload` was made.

    Raises `UnsupportedFormat` for a codec that has no meaning yet. Raises `Corrupt` (at `position` of
    `where`) if `payload` is not a single whole stream of `codec`, if it yields another number of bytes, or if
    `size_bytes` is more than `SUB_BATCH_SIZE_BYTES_MAX`. It takes about twice the memory of the yielded
    bytes, up to `size_bytes`, and a few MiB for the current step.
    """
    if codec not in _PIECES:
        raise UnsupportedFormat(
            f"{where} at byte {position}: unknown sub-batch compression {codec}; upgrade the program"
        )
    if size_bytes > SUB_BATCH_SIZE_BYTES_MAX:
        limit = f"at most {SUB_BATCH_SIZE_BYTES_MAX}"
        raise Corrupt("sub-batch size", where, position=position, expected=limit, found=size_bytes)
    pieces, size = [], 0
    try:
        for piece in _PIECES[Codec(codec)](payload, size_bytes):
            size += len(piece)
            if size > size_bytes:  # before the piece is kept: a bomb must not grow beyond its claim
                break
            pieces.append(piece)
    except _FAILURES as exc:
        name = Codec(codec).name.lower()
        what = f"{name} stream of a sub-batch"
        raise Corrupt(what, where, position=position, expected="one whole stream", found=exc) from exc
    if size != size_bytes:
        found = f"more than {size_bytes}" if size > size_bytes else size
        raise Corrupt("sub-batch size", where, position=position, expected=size_bytes, found=found)
    return b"".join(pieces)


def _none(payload: bytes, _size_bytes: int) -> Iterator[bytes]:
    yield payload


def _gzip(payload: bytes, size_bytes: int) -> Iterator[bytes]:
    return _stepwise(igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP), payload, size_bytes)


def _lz4(payload: bytes, size_bytes: int) -> Iterator[bytes]:
    return _stepwise(lz4.frame.LZ4FrameDecompressor(), payload, size_bytes)


def _stepwise(stream: _Decompressor, payload: bytes, size_bytes: int) -> Iterator[bytes]:
    step = min(size_bytes + 1, _STEP_SIZE_BYTES)  # one byte more than claimed shows that the claim is wrong
    piece = stream.decompress(payload, step)
    while piece and not stream.eof:
        yield piece
        piece = stream.decompress(b"", step)
    yield piece
    _must_end(stream.eof, stream.unused_data)


def _snappy(payload: bytes, _size_bytes: int) -> Iterator[bytes]:
    """Decompress frame by frame. Each yields at most 64 KiB, and the engine checks that and the checksum."""
    if not payload.startswith(_SNAPPY_HEAD):
        raise _StreamError("no snappy stream identifier")
    stream, at = snappy.StreamDecompressor(), len(_SNAPPY_HEAD)
    while at < len(payload):
        stop = at + 4 + int.from_bytes(payload[at + 1 : at + 4], "little")
        _must_end(stop <= len(payload))
        yield bytes(stream.decompress(payload[at:stop]))
        at = stop


def _zstd(payload: bytes, _size_bytes: int) -> Iterator[bytes]:
    """Decompress in small steps of input, because the library cannot bound the output of one step."""
    stream = zstandard.ZstdDecompressor().decompressobj()
    for at in range(0, len(payload), _ZSTD_STEP_SIZE_BYTES):
        if stream.eof:
            raise _StreamError("bytes after the stream")
        yield stream.decompress(payload[at : at + _ZSTD_STEP_SIZE_BYTES])
    _must_end(stream.eof, stream.unused_data)


def _must_end(ended: bool, rest: bytes | None = b"") -> None:
    if not ended:
        raise _StreamError("a stream cut short")
    if rest:
        raise _StreamError(f"{len(rest)} bytes or more after the stream")


_PIECES: Final[dict[int, Callable[[bytes, int], Iterator[bytes]]]] = {
    Codec.NONE: _none,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}

_FAILURES: Final[tuple[type[Exception], ...]] = (
    _StreamError,
    igzip_lib.IsalError,  # type: ignore[assignment]  # typed as an instance; it is a class
    EOFError,
    cramjam.DecompressionError,
    OSError,  # what the engine of snappy raises for a bad checksum, among others
    RuntimeError,  # what lz4 raises
    zstandard.ZstdError,
)
