"""MD5, the only checksum that Azure both compares on arrival and keeps. A thread sums long bodies.

It protects bytes in transit, not against an attacker. Azure compares a CRC-64 too, which takes half the time.
It is not used: Azurite refuses its header, so nothing could be tested, and Azure does not keep it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Sequence
from typing import Final

from offload.contracts.store import Buffer

INLINE_SIZE_BYTES_MAX: Final = 256 * 2**10
"""For fewer bytes a thread would take longer than the sum itself: 0.4 ms at 650 MB/s."""


async def md5_of(windows: Sequence[Buffer]) -> str:
    """Return the MD5 of windows as if they were joined, as a header has it."""
    if sum(map(len, windows)) <= INLINE_SIZE_BYTES_MAX:
        return _md5(windows)
    return await asyncio.to_thread(_md5, windows)


def _md5(windows: Sequence[Buffer]) -> str:
    found = hashlib.md5(usedforsecurity=False)
    for window in windows:
        found.update(window)
    return base64.b64encode(found.digest()).decode()
