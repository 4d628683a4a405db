"""The time that a step of a request may take, so that a server that sends one byte a second fails.

A time limit for stalls does not end such a request, because a byte moves before each stall would end. The
limit here grows with the bytes that have to move. All transports use it. With the HTTP libraries of the
SDKs, it covers a whole request, and also the wait for a connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offload_cloud.ranges import size_asked_for

__all__ = ["request_seconds", "step_seconds"]

STALLS_MAX: Final = 6
"""A step may take this many times the time limit of a stall, and the time that its size allows on top."""

BYTES_PER_SECOND_MIN: Final = 64 * 1024
"""A transfer that is slower than this on average is cancelled."""

UNSIZED_BYTES_MAX: Final = 128 * 2**20
"""The most bytes that a GET is given time for, and those of a GET without a range: of an object or a list."""


def step_seconds(stall_seconds: float, size_bytes: int) -> float:
    """Return how long it may take to move so many bytes."""
    return STALLS_MAX * stall_seconds + size_bytes / BYTES_PER_SECOND_MIN


def request_seconds(
    stall_seconds: float, method: str, headers: Mapping[str, str], *, range_header: str = "Range"
) -> float:
    """Return how long a whole request may take, by the sizes in its headers."""
    # On Azure, a read of a whole object asks for a range of 2^62 bytes.
    asked = min(size_asked_for(headers.get(range_header, "")) or UNSIZED_BYTES_MAX, UNSIZED_BYTES_MAX)
    if method != "GET":
        asked = 0
    return step_seconds(stall_seconds, int(headers.get("Content-Length", 0)) + asked)
