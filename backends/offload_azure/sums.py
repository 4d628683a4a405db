"""MD5, the only checksum that Azure both compares on arrival and keeps. A thread sums long bodies.

It protects bytes in transit, not against an attacker. CRC-64 would need another compiled package.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Final

INLINE_SIZE_BYTES_MAX: Final = 256 * 2**10
"""For fewer bytes a thread would take longer than the sum itself: 0.4 ms at 650 MB/s."""


async def md5_of(data: bytes) -> str:
    """Return the MD5 of some bytes as a header has it."""
    if len(data) <= INLINE_SIZE_BYTES_MAX:
        return _md5(data)
    return await asyncio.to_thread(_md5, data)


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
