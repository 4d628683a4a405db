"""MD5, the one checksum that Azure both compares on the way in and keeps; in a thread where it takes long.

It guards bytes on their way, not against anybody's malice. CRC-64 would take a compiled package more.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Final

INLINE_SIZE_BYTES_MAX: Final = 256 * 2**10
"""Up to here a thread would take longer than the sum: at 650 MB/s this is 0.4 ms."""


async def md5_of(data: bytes) -> str:
    """The MD5 of some bytes as headers write it."""
    if len(data) <= INLINE_SIZE_BYTES_MAX:
        return _md5(data)
    return await asyncio.to_thread(_md5, data)


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
