"""The time that a step of a request may take, so that a server that sends one byte a second fails.

A time limit for stalls does not end such a request, because a byte moves before each stall would end. The
limit here grows with the bytes that have to move.
"""

from __future__ import annotations

from typing import Final

__all__ = ["step_seconds"]

STALLS_MAX: Final = 6
"""A step may take this many times the time limit of a stall, and the time that its size allows on top."""

BYTES_PER_SECOND_MIN: Final = 64 * 1024
"""A transfer that is slower than this on average is cancelled."""


def step_seconds(stall_seconds: float, size_bytes: int) -> float:
    """Return how long it may take to move so many bytes."""
    return STALLS_MAX * stall_seconds + size_bytes / BYTES_PER_SECOND_MIN
