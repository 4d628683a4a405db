"""The plan of a read by topic: partitions for the chunks that can have a match, by indexes of ranges.

The driver asks the decoder and the indexes (`offload.index.selection`). A fragment without such a chunk gets
no task, and a task fetches only these chunks. The topic of each record decides in the end, so what no sound
index covers is read whole. Runs without Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.contracts.catalogue import Catalogue
from offload.contracts.decoder import RecordSelector
from offload.formats.records import RecordRun
from offload.index.find import FindReport, of_rows
from offload.index.selection import SelectedChunks, select
from offload.model.record_columns import RecordBytes
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
class TopicRows:
    """The records whose topic a filter of the read matches."""

    selector: RecordSelector

    @classmethod
    def of(cls, options: ReadOptions, plugins: Plugins) -> TopicRows | None:
        """Return the selection of a read; None if it has none. Raises `Misuse` for a wrong filter."""
        if not options.topics:
            return None
        return cls(decoder_named(options.decode, plugins).topic_selector(options.topics))

    def among(self, run: RecordRun, part: PlannedPart) -> RecordRun:
        """Return the records of a run that are selected."""
        records = RecordBytes(np.frombuffer(run.data, np.uint8), run.starts, run.sizes)
        return of_rows(run, np.flatnonzero(self.selector.matches(records)))


async def plan_selected(
    catalogue: Catalogue, options: ReadOptions, bounds: ScanBounds
) -> list[list[PlannedPart]]:
    """Return the partitions of a read by topic. Raises as `planning.plan` does."""
    rows, report = TopicRows.of(options, Plugins.find()), FindReport()
    assert rows is not None
    selector = rows.selector
    ranges = dict[tuple[str, int], npt.NDArray[np.uint64]]()

    async def selected_in(stream: ChosenStream) -> list[PlannedPiece]:
        pieces = list[PlannedPiece]()
        start, end = await stream.bounds(options)
        async with aclosing(select(catalogue, stream.name, selector, report=report)) as parts:
            async for part in parts:
                reader = part.reader
                within = bounds.and_offsets(stream.begin_in(reader, start), stream.begin_in(reader, end))
                found = await pieces_of(
                    catalogue, reader.manifest, within, stream=stream.name, part=reader.part
                )
                pieces += _overlapping(found, part)
                edges = [(each.start, each.stop) for each in part.ranges]
                ranges[stream.name, reader.part] = np.array(edges, np.uint64).reshape(-1, 2)
        return pieces

    found = await each_of(selected_in, await chosen(catalogue, options, bounds))
    pieces = [piece for those in found for piece in those]
    told = "%d index objects, %d requests of indexes; %d fragments can have matches"
    _log.info(told, report.objects, report.requests, len(pieces))
    partitions = partitions_of(
        pieces, size_bytes=options.partition_size_bytes, count_min=options.min_partitions
    )
    return [[_with_ranges(part, ranges[part.stream, part.part]) for part in parts] for parts in partitions]


def _overlapping(pieces: Sequence[PlannedPiece], part: SelectedChunks) -> list[PlannedPiece]:
    firsts = np.array([each.first for each in pieces], np.uint64)
    wanted = part.overlap(firsts, np.array([each.until for each in pieces], np.uint64))
    return [piece for piece, is_wanted in zip(pieces, wanted, strict=True) if is_wanted]


def _with_ranges(part: PlannedPart, ranges: npt.NDArray[np.uint64]) -> PlannedPart:
    """Return the part with the ranges that its chunks can overlap. A chunk may end behind the part."""
    first = np.searchsorted(ranges[:, 1], np.uint64(part.first), side="right")
    return replace(part, ranges=ranges[first : np.searchsorted(ranges[:, 0], np.uint64(part.until)) + 1])
