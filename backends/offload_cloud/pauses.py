"""How long a server asks to be left alone: its header `Retry-After`, in seconds or as a date."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

__all__ = ["pause_of"]


def pause_of(retry_after: str, *, now: Callable[[], float] = time.time) -> float | None:
    """The pause that the header's value asks for; None if nothing was said, or nothing that can be read.

    `now` is the time since 1970, in seconds. A date that has passed asks for no pause.
    """
    said = retry_after.strip()
    if said.isascii() and said.isdigit():
        return float(said)
    try:
        return max(parsedate_to_datetime(said).timestamp() - now(), 0.0)
    except (ValueError, OverflowError):
        return None
