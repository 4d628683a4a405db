"""The compressions of payloads, undone without trust in the sizes that an entry states.

An entry states the plain size of its payload. Nothing is allocated beyond it, and it must be exact: a payload
that yields another size is damage. Of a size that so few bytes cannot yield, nothing is allocated at all.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from offload.contracts.store import Buffer
from offload.ground.errors import Corrupt, UnsupportedFormat

__all__ = ["CompressionName", "plain_payload"]


PLAIN_SIZE_BYTES_MAX: Final = 64 * 2**20
"""The most that one payload may yield. Brokers take entries of 5 MiB by default."""

CompressionName: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
"""The names of the compressions, by their numbers."""

_RATIO_MAX: Final = (1, 255, 1032, 2**15, 64)
"""The most plain bytes for each stored byte, by the number of the compression. They are generous."""


def plain_payload(stored: Buffer, compression: int, size_bytes: int, *, where: str) -> bytes:
    """Return the plain payload. `size_bytes` is its size, as the entry states it.

    Raises `Corrupt` if the payload yields another size or is damaged, or if its size is beyond the limit.
    Raises `UnsupportedFormat` for an unknown compression.
    """
    if not 0 <= compression < len(CompressionName):
        raise UnsupportedFormat(f"{where}: compression {compression} is not known; upgrade the program")
    if compression == 0:
        return bytes(stored)
    most = min(PLAIN_SIZE_BYTES_MAX, _RATIO_MAX[compression] * len(stored))
    if size_bytes > most:
        raise Corrupt("plain size of the payload", where, expected=f"at most {most}", found=size_bytes)
    try:
        plain = _FROM[compression](bytes(stored), size_bytes)
    except Exception as exc:  # each library has errors of its own, and one raises those of its engine
        name = CompressionName[compression]
        raise Corrupt("payload", where, expected=name, found=str(exc) or type(exc).__name__) from exc
    if len(plain) != size_bytes:
        found = len(plain) if len(plain) < size_bytes else "more"
        raise Corrupt("plain size of the payload", where, expected=size_bytes, found=found)
    return plain


def _lz4(stored: bytes, size_bytes: int) -> bytes:
    import lz4.block

    return bytes(lz4.block.decompress(stored, uncompressed_size=size_bytes))


def _zlib(stored: bytes, size_bytes: int) -> bytes:
    # Pulsar flushes its streams and does not end them, so only such an object reads them.
    return zlib.decompressobj().decompress(stored, size_bytes + 1)


def _zstd(stored: bytes, size_bytes: int) -> bytes:
    import zstandard

    limited = zstandard.ZstdDecompressor(max_window_size=PLAIN_SIZE_BYTES_MAX)
    with limited.stream_reader(stored) as reader:
        return bytes(reader.read(size_bytes + 1))


def _snappy(stored: bytes, size_bytes: int) -> bytes:
    import cramjam

    # The library allocates the size that the payload itself states.
    stated = cramjam.snappy.decompress_raw_len(stored)
    if stated != size_bytes:
        raise ValueError(f"a payload that states {stated} bytes")
    return bytes(cramjam.snappy.decompress_raw(stored))


_FROM: Final[dict[int, Callable[[bytes, int], bytes]]] = {1: _lz4, 2: _zlib, 3: _zstd, 4: _snappy}
