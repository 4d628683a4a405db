"""The parts of a stream: a part continues a stream whose data its source could not continue.

A part is a stream of its own. Its name is derived from the name of the first part, so that it can be found
without a list of parts. The first part is the stream itself, and has number 1.

Invariant: a part's number is never used again, and only the newest part of a stream takes new data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

__all__ = ["StreamPart", "part_like", "part_name"]

PART_MAX: Final = 999_999_999


@dataclass(frozen=True, slots=True, order=True)
class StreamPart:
    """One part of the stream `first`."""

    first: str
    """The name of the first part, which is the name of the whole stream."""

    number: int = 1

    behind: bytes = field(default=b"", compare=False, repr=False)
    """The header of the source's chunk behind which the part begins, if a restore began the part. A part that
    was listed has it, and parts are the same without it."""

    @property
    def name(self) -> str:
        """The part's own name, for example `orders-part-2`."""
        return part_name(self.first, self.number)

    @property
    def following(self) -> StreamPart:
        """The part of the next number."""
        return self.numbered(self.number + 1)

    def numbered(self, number: int) -> StreamPart:
        """Return the part of this number of the same stream, without what its record says."""
        return StreamPart(self.first, number)


def part_name(stream: str, number: int) -> str:
    """Return the name of a part of a stream, for example `orders-part-2`."""
    return stream if number == 1 else f"{stream}-part-{number}"


def part_like(name: str) -> StreamPart:
    """Return the part that has this name, if the stream has that part at all, and else part 1."""
    match = re.fullmatch("(.+)-part-([1-9][0-9]{0,8})", name, re.DOTALL)
    number = 1 if match is None else int(match[2])
    return StreamPart(name) if match is None or number == 1 else StreamPart(match[1], number)
