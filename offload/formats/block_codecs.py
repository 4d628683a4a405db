"""The compressions of a fragment's blocks and sections. They are undone without trust in the stored bytes.

A block's plain size is known from the index, so nothing is allocated beyond it: a stream that yields another
size is damage, and a size that so few bytes cannot yield is refused first. The bytes are one zstd frame
(RFC 8878) that states its content's size, or one raw lz4 block. The fragment's own checksums protect both, so
the frames have none.

Each function imports its library itself: most commands read and write no block, and start faster without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from offload.ground.errors import Corrupt, UnsupportedFormat
from offload.model.compression import BlockCodec, Compression

_RATIO_MAX: Final[dict[int, int]] = {BlockCodec.ZSTD: 2**15, BlockCodec.LZ4: 255}
"""The most plain bytes for each stored byte.

A zstd block has 4 bytes or more and yields at most 128 KiB. A byte of an lz4 length stands for at most 255.
"""

LZ4_SIZE_BYTES_MAX: Final = 0x7E000000
"""The most bytes that the library compresses at once. A chunk may be larger."""


def compressor(by: Compression) -> Callable[[bytes | memoryview], bytes]:
    """Return a function that compresses, or returns its bytes as they are if the codec cannot take so many.

    The same codec, level and library yield the same bytes. The function keeps a context, which takes a fifth
    of the CPU time of a block to make: use it for many blocks, in one thread at a time.
    """
    match by.codec:
        case BlockCodec.NONE:
            return bytes
        case BlockCodec.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor(level=by.level, write_content_size=True).compress
        case BlockCodec.LZ4:
            return _to_lz4


def _to_lz4(data: bytes | memoryview) -> bytes:
    import lz4.block

    if len(data) > LZ4_SIZE_BYTES_MAX:
        return bytes(data)  # the caller stores plain what does not become smaller
    return bytes(lz4.block.compress(data, store_size=False))


def decompressed(raw: bytes | memoryview, codec: int, *, size_bytes: int, where: str, position: int) -> bytes:
    """Undo a `compressor`. Allocates at most `size_bytes`, and no more than such a stream can yield.

    Raises `Corrupt` (at `position` of `where`) if `raw` does not yield exactly `size_bytes`, and
    `UnsupportedFormat` for an unknown codec.
    """
    if codec in _RATIO_MAX and size_bytes > (most := _RATIO_MAX[codec] * len(raw)):
        raise Corrupt("plain size", where, expected=f"<= {most}", found=size_bytes, position=position)
    match codec:
        case BlockCodec.NONE:
            found = bytes(raw)
        case BlockCodec.ZSTD:
            found = _from_zstd(raw, size_bytes=size_bytes, where=where, position=position)
        case BlockCodec.LZ4:
            found = _from_lz4(raw, size_bytes=size_bytes, where=where, position=position)
        case _:
            raise UnsupportedFormat(f"{where}: codec {codec} is not known; upgrade the program")
    if len(found) != size_bytes:
        raise Corrupt("plain size", where, expected=size_bytes, found=len(found), position=position)
    return found


def _from_zstd(raw: bytes | memoryview, *, size_bytes: int, where: str, position: int) -> bytes:
    import zstandard

    try:
        # The library allocates the size that the frame states, whatever limit it is given.
        stated = zstandard.get_frame_parameters(raw).content_size
        if stated != size_bytes:
            raise Corrupt("plain size", where, expected=size_bytes, found=stated, position=position)
        return zstandard.ZstdDecompressor().decompress(raw, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise Corrupt("compressed bytes", where, expected="zstd", found=str(exc), position=position) from exc


def _from_lz4(raw: bytes | memoryview, *, size_bytes: int, where: str, position: int) -> bytes:
    import lz4.block

    try:
        return bytes(lz4.block.decompress(raw, uncompressed_size=size_bytes))
    except (lz4.block.LZ4BlockError, OverflowError) as exc:  # it counts to 2**31 - 1
        raise Corrupt("compressed bytes", where, expected="lz4", found=str(exc), position=position) from exc
