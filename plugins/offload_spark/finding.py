"""The plan of a read by terms: partitions for the places that indexes name, and for what they do not cover.

The driver looks the terms up (`offload.index.find`). Each fragment with such places is a partition of its
own, and a task fetches only the chunks that hold them. What no sound index object covers is planned as any
read, and scanned.

Invariants: a row is in the result only if its record has one of the terms by itself. The places of a fragment
and the ranges to scan share no offset, so no row comes twice. Runs without Spark.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.contracts.catalogue import Catalogue
from offload.contracts.decoder import Decoder
from offload.formats.records import RecordRun
from offload.index.find import FindReport, PartLookup, look_up, of_rows, with_terms
from offload.index.terms import Spec
from offload.model.entry import Entries
from offload.model.excerpt import of_fragments
from offload.opening.plugins import Plugins
from offload_spark.bounds import ScanBounds
from offload_spark.columns import decoder_named
from offload_spark.options import ReadOptions
from offload_spark.planning import (
    ChosenStream,
    PlannedPart,
    PlannedPiece,
    chosen,
    each_of,
    partitions_of,
    pieces_of,
)

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TermFilter:
    """The records with one of some terms."""

    by: Spec
    terms: frozenset[bytes]
    decoder: Decoder

    @classmethod
    def of(cls, options: ReadOptions, plugins: Plugins) -> TermFilter | None:
        """Return the filter of a read; None if it has none.

        Raises `Misuse` for a decoder or a section that does not exist.
        """
        if options.by is None:
            return None
        found = cls(options.by, frozenset(options.terms), decoder_named(options.by.decoder, plugins))
        found.by.check(found.decoder)
        return found

    def among(self, run: RecordRun, part: PlannedPart) -> RecordRun:
        """Return the records of a run that a part wants, and that have a term."""
        if part.places is not None:
            run = of_rows(run, np.flatnonzero(np.isin(run.offsets, part.places)))
        return with_terms(run, self.terms, self.by, self.decoder)


async def plan_found(
    catalogue: Catalogue, options: ReadOptions, bounds: ScanBounds
) -> list[list[PlannedPart]]:
    """Return the partitions of a read by terms. Raises as `planning.plan` does."""
    assert options.by is not None
    by, report = options.by, FindReport()

    async def found_in(stream: ChosenStream) -> tuple[list[list[PlannedPart]], list[PlannedPiece]]:
        named, pieces = list[list[PlannedPart]](), list[PlannedPiece]()
        start, end = await stream.bounds(options)
        lookups = look_up(
            catalogue, stream.name, options.terms, by=by, start=start, until=end, report=report
        )  # fmt: skip
        async with aclosing(lookups):
            async for each in lookups:
                manifest, part = each.reader.manifest, each.reader.part
                async with aclosing(_named(catalogue, stream.name, each, bounds)) as parts:
                    named += [[one] async for one in parts]
                for offsets in each.to_scan:
                    within = bounds.and_offsets(offsets.start, offsets.stop)
                    pieces += await pieces_of(catalogue, manifest, within, stream=stream.name, part=part)
        return named, pieces

    found = await each_of(found_in, await chosen(catalogue, options, bounds))
    named = [one for parts, _ in found for one in parts]
    pieces = [piece for _, those in found for piece in those]
    to_scan = partitions_of(
        pieces, size_bytes=options.partition_size_bytes, count_min=options.min_partitions - len(named)
    )
    told = "%d index objects, %d requests of indexes; %d fragments have named records, %d pieces are scanned"
    _log.info(told, report.objects, report.requests, len(named), len(pieces))
    return named + to_scan


async def _named(
    catalogue: Catalogue, stream: str, lookup: PartLookup, bounds: ScanBounds
) -> AsyncGenerator[PlannedPart, None]:
    """Yield a part for each fragment with places that indexes name."""
    committed, places = lookup.reader.manifest, lookup.offsets
    for offsets in lookup.to_scan:
        places = places[(places < offsets.start) | (places >= offsets.stop)]
    view, at = catalogue.view_of(committed), 0
    while at < len(places):
        async with aclosing(view.walk(int(places[at]))) as runs:
            run = await anext(runs)
        stop = int(np.searchsorted(places, run["first_offset"][-1] + run["records"][-1]))
        rows = np.searchsorted(run["first_offset"], places[at:stop], side="right") - 1
        for those in np.split(np.arange(at, stop), np.flatnonzero(np.diff(rows)) + 1):
            row = int(rows[those[0] - at])
            if bounds.of_fragments(run[row : row + 1]).all():
                yield _part(stream, lookup, run[row : row + 1], places[those], bounds)
        at = stop


def _part(
    stream: str, lookup: PartLookup, entry: Entries, places: npt.NDArray[np.uint64], bounds: ScanBounds
) -> PlannedPart:
    first = int(entry["first_offset"][0])
    return PlannedPart(
        stream=stream,
        part=lookup.reader.part,
        committed=of_fragments(lookup.reader.manifest, entry),
        first=first,
        until=first + int(entry["records"][0]),
        bounds=bounds.and_offsets(int(places[0]), int(places[-1]) + 1),
        places=places,
    )
