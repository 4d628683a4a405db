"""The compressions of a sub-batch, undone without trusting anything that the sub-batch says.

The broker stores sub-batches as clients sent them and never opens one. So a size claimed in a header
is a claim: memory grows with what decompression really yields, step by step, and ends as soon as that is
more than was claimed. What was claimed must come out exactly, from one compressed stream that ends
exactly where the bytes end: no second stream, no garbage, nothing missing.

The streams are those of the usual clients: gzip (RFC 1952), the snappy framing format, the lz4 frame
format and zstd frames (RFC 8878), each with the checksums that its format has.
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

from offload.errors import Corrupt, UnsupportedFormat

__all__ = ["Codec"]


SUB_BATCH_SIZE_BYTES_MAX: Final = 256 * 2**20
"""The most that the sub-batches of one chunk may decompress to, taken together; more is refused."""

_STEP_SIZE_BYTES: Final = 2**20
_ZSTD_STEP_SIZE_BYTES: Final = 256  # of input: at most 64 blocks, hence 8 MiB of output a step
_SNAPPY_HEAD: Final = b"\xff\x06\x00\x00sNaPpY"


class Codec(IntEnum):
    """How a sub-batch is compressed. The numbers 5 to 7 have no meaning yet."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class _Decompressor(Protocol):
    """What the streams of bz2, and those made after their pattern, have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _StreamError(Exception):
    """A compressed stream does not end where its bytes end."""


def compress(data: bytes, codec: Codec) -> bytes:
    """One stream of `codec` that `decompress` turns back into `data`."""
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
    """The `size_bytes` bytes that `payload` was made from.

    Raises `UnsupportedFormat` for a codec that has no meaning yet, and `Corrupt` (at `position` of
    `where`) when `payload` is no single whole stream of `codec`, or yields another number of bytes, or
    when `size_bytes` is more than `SUB_BATCH_SIZE_BYTES_MAX`. The memory it takes is about twice what the
    stream yields, up to `size_bytes`, and a few MiB for the step that is under way.
    """
    if codec not in _PIECES:
        raise UnsupportedFormat(
            f"{where} at byte {position}: sub-batch compression {codec} is not known; upgrade"
        )
    if size_bytes > SUB_BATCH_SIZE_BYTES_MAX:
        limit = f"at most {SUB_BATCH_SIZE_BYTES_MAX}"
        raise Corrupt("sub-batch size", where, position=position, expected=limit, found=size_bytes)
    pieces, size = [], 0
    try:
        for piece in _PIECES[Codec(codec)](payload, size_bytes):
            size += len(piece)
            if size > size_bytes:
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
    step = min(size_bytes + 1, _STEP_SIZE_BYTES)
    piece = stream.decompress(payload, step)
    while piece and not stream.eof:
        yield piece
        piece = stream.decompress(b"", step)
    yield piece
    _must_end(stream.eof, stream.unused_data)


def _snappy(payload: bytes, _size_bytes: int) -> Iterator[bytes]:
    """Frame by frame: each yields at most 64 KiB, which the engine checks along with its checksum."""
    if not payload.startswith(_SNAPPY_HEAD):
        raise _StreamError("no snappy stream identifier")
    stream, at = snappy.StreamDecompressor(), len(_SNAPPY_HEAD)
    while at < len(payload):
        stop = at + 4 + int.from_bytes(payload[at + 1 : at + 4], "little")
        _must_end(stop <= len(payload))
        yield bytes(stream.decompress(payload[at:stop]))
        at = stop


def _zstd(payload: bytes, _size_bytes: int) -> Iterator[bytes]:
    """In small steps of input, since its stream has no way to bound the output of one step."""
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
