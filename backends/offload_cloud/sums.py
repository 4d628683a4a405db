"""Sums of whole replies, beside the event loop if they are long: it would stand still meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["check_sum"]

INLINE_SIZE_BYTES_MAX: Final = 2**20
"""For fewer bytes a thread would take longer than the sum itself: some 50 µs for CRC-32C."""


async def check_sum(check: Callable[[], None], size_bytes: int) -> None:
    """Call `check`, which sums so many bytes and raises if the sum is wrong. Raises what it raises."""
    if size_bytes <= INLINE_SIZE_BYTES_MAX:
        check()
    else:
        await asyncio.to_thread(check)
