"""The two checksums of the format, through the fastest well-kept libraries we found.

CRC-32 (IEEE 802.3, as in zlib) is what osiris keeps over a chunk's data, and what our index keeps
over each whole stored chunk. CRC-32C (Castagnoli, RFC 3720) is what object stores keep over an
object, and what we keep over every other part of ours. Both release the GIL on long input.
"""

from __future__ import annotations

import google_crc32c
from isal import isal_zlib


def crc32(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """CRC-32 of `data`, continuing from the checksum of what came before it."""
    return isal_zlib.crc32(data, before)


def crc32c(data: bytes, before: int = 0) -> int:
    """CRC-32C of `data`, continuing from the checksum of what came before it.

    Only `bytes`: the library takes no buffer that might change under it.
    """
    return int(google_crc32c.extend(before, data))
