"""The pause that a server asks for: the header `Retry-After`, in seconds or as a date."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime

__all__ = ["pause_of"]


def pause_of(retry_after: str, *, now_ms: Callable[[], int]) -> float | None:
    """Return the pause in seconds that the header asks for; None if it is empty or cannot be read.

    `now_ms` is the time since 1970. A date that has passed asks for no pause.
    """
    said = retry_after.strip()
    if said.isascii() and said.isdigit():
        return float(said)
    try:
        return max(parsedate_to_datetime(said).timestamp() - now_ms() / 1000, 0.0)
    except (ValueError, OverflowError):
        return None
