"""Quantities as people write them: `7d` and `36h`, `100GB` and `64MiB`."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from offload.ground.errors import Misuse

__all__ = ["seconds_from", "size_bytes_from"]


SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
"""The units of a duration."""

SIZES: Final = {
    "": 1,
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate(("k", "M", "G", "T", "P"), start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T", "P"), start=1)},
}
"""The units of a size, decimal and binary. Upper and lower case are the same."""

_QUANTITY: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)")


def seconds_from(text: str) -> float:
    """Return a duration in seconds. Raises `Misuse` if the text is no duration."""
    seconds = _parsed(text, SECONDS)
    if seconds is None:
        raise Misuse(f"takes a number and one of {', '.join(SECONDS)}, such as 36h or 7d, not {text[:80]!r}")
    return float(seconds)


def size_bytes_from(text: str) -> int:
    """Return a size in bytes. Raises `Misuse` if the text is no size."""
    size_bytes = _parsed(text, SIZES)
    if size_bytes is None:
        raise Misuse(f"takes bytes, such as 100GB, 64MiB or 1000000, not {text[:80]!r}")
    return int(size_bytes)


def _parsed(text: str, units: dict[str, int]) -> Fraction | None:
    match = _QUANTITY.fullmatch(text.strip())
    by_name = {name.lower(): factor for name, factor in units.items()}
    if match is None or match[2].lower() not in by_name:
        return None
    return Fraction(match[1]) * by_name[match[2].lower()]
