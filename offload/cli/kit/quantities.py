"""Durations and sizes as arguments of a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from offload.cli.kit.ending import Usage
from offload.ground.errors import Misuse
from offload.model.quantities import seconds_from, size_bytes_from

__all__ = ["parse_size"]


T = TypeVar("T")


def parse_duration(text: str, *, option: str) -> float:
    """Return a duration in seconds. Raises `Usage`, which names `option`, if the text is no duration."""
    return _named(seconds_from, text, option)


def parse_size(text: str, *, option: str) -> int:
    """Return a size in bytes. Raises `Usage`, which names `option`, if the text is no size."""
    return _named(size_bytes_from, text, option)


def _named(parse: Callable[[str], T], text: str, option: str) -> T:
    try:
        return parse(text)
    except Misuse as error:
        raise Usage(f"{option} {error}") from error
