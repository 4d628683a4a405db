"""Errors that name what the user may have meant: an option, a column or a stream. Imports no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

NAMES_MAX: Final = 20
"""The most names that an error lists: a tier may have thousands of streams."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the hint `; did you mean 'orders'?` with up to three names that are like `name`, or nothing."""
    found = [repr(near) for near in get_close_matches(name, [*known], n=3) if near != name]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def listed(names: Sequence[str]) -> str:
    """Return the names with commas, up to `NAMES_MAX` of them."""
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
