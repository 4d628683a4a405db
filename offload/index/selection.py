"""Which chunks a selection of records needs: by ranges of keys, and all that no sound index covers.

A selector knows what keys mean, and decides about each record in the end. So an index that is lost, or that
is no index of this decoder, costs time and no record.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import pairwise

import numpy as np

from offload.contracts.catalogue import Catalogue
from offload.contracts.decoder import RecordSelector
from offload.ground.errors import Corrupt
from offload.index.find import FindReport, OffsetChoice
from offload.index.ranges import PartRanges, look_up_ranges
from offload.index.terms import Spec

__all__ = ["SelectedChunks", "neighbours", "select", "wanted_ranges"]


class SelectedChunks(OffsetChoice):
    """The chunks of one part that can hold selected records."""

    def __init__(self, part: PartRanges, ranges: Sequence[range]) -> None:
        """`ranges` are the offsets of these chunks."""
        super().__init__(np.zeros(0, np.uint64), ranges)
        self.reader, self.ranges = part.reader, ranges


async def select(
    catalogue: Catalogue, stream: str, selector: RecordSelector, *, report: FindReport | None = None
) -> AsyncGenerator[SelectedChunks, None]:
    """Yield the selection of each part of a stream, in order of parts. Reads indexes and no record.

    Close the generator. Raises as `look_up_ranges` does.
    """
    lookups = look_up_ranges(catalogue, stream, by=Spec.parse(selector.ranges), report=report)
    async with aclosing(lookups):
        async for part in lookups:
            yield SelectedChunks(part, wanted_ranges(part, selector))


def wanted_ranges(part: PartRanges, selector: RecordSelector) -> list[range]:
    """Return the offsets that can hold selected records, in order and without overlap."""
    ranges = [*part.to_scan]
    for ledger in part.ledgers:
        edges = [*ledger.offsets.tolist(), ledger.next_offset]
        try:
            chunks = selector.candidates(ledger.about, ledger.keys)
        except Corrupt:  # somebody else's index: its checksum is right, and its keys are none of ours
            chunks = range(len(edges) - 1)
        ranges += [range(edges[run[0]], edges[run[-1] + 1]) for run in neighbours(chunks)]
    return sorted(ranges, key=lambda each: each.start)


def neighbours(numbers: Sequence[int], most: int | None = None) -> Iterator[list[int]]:
    """Yield runs of ascending numbers that follow each other, of at most so many."""
    cuts = [at + 1 for at, (one, other) in enumerate(pairwise(numbers)) if other != one + 1]
    for first, stop in pairwise([0, *cuts, len(numbers)]):
        for begin in range(first, stop, most or max(stop - first, 1)):
            yield [*numbers[begin : min(begin + (most or stop), stop)]]
