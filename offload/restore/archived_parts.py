"""The parts of a stream that a restore puts into one target, in order.

    part                                      in the restore
    deleted, or without records               left out
    behind a gap                              follows the part before; the gap is reported
    repeats offsets of the part before        follows it whole: nobody knows which records are the same ones
    begins behind a chunk of another target   follows the part before
    begins behind a chunk of this target      ends it: its messages are in the target (`Comparison`)

An offset that several parts have is that of the oldest one, as for readers (`read.joined`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offload.contracts.catalogue import Catalogue
from offload.model.gaps import PartEnds, StreamGap
from offload.model.part import part_like
from offload.model.position import OFFSET_MAX, Position
from offload.parts.whole_stream import LivePart, WholeStream
from offload.read.reader import StreamReader
from offload.read.salvage import Archive

__all__ = ["ArchivedParts", "archived_parts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedParts:
    """The range of a stream that is restored."""

    archives: Sequence[Archive]
    """The parts with records between the two positions, in order; if there are none, one without records."""

    gaps: Sequence[StreamGap]
    """The gaps between these parts."""

    live: Sequence[LivePart]
    """All parts that have a commit and were not deleted, in order."""


async def archived_parts(
    catalogue: Catalogue,
    reader: StreamReader,
    position: Position,
    *,
    until: int = OFFSET_MAX,
    skip_damage: bool = False,
) -> ArchivedParts:
    """Return the parts of an open stream from a position on, up to the offset `until`.

    A stream with parts costs one listing. Raises as `StreamReader.place_of`.
    """
    whole = _whole(catalogue, reader)
    listed = await whole.parts()
    known = {part.name: part for part in listed}
    alone = WholeStream(catalogue, reader.manifest.stream).first
    named = [known.get(each.manifest.stream, alone) for each in reader.parts]
    place = await reader.place_of(position)
    archives, numbers = list[Archive](), list[int]()
    for part, each in zip(named, reader.parts, strict=True):
        if each.part < place.part:
            continue
        committed, is_last = each.manifest, until <= each.manifest.next_offset or each is reader.parts[-1]
        behind = [other.behind for other in listed if numbers and numbers[-1] < other.number <= part.number]
        archive = Archive(
            catalogue=catalogue,
            reader=each,
            skip_damage=skip_damage,
            number=part.number,
            start=place.offset if each.part == place.part else committed.first_offset,
            until=until if is_last else OFFSET_MAX,
            behind=[header for header in behind if header],
        )
        if archives:
            ended = archives[-1].reader.manifest.next_offset
            archive.is_continued = not archive.behind and ended <= committed.first_offset
        # One without records is restored too if there is no other: nothing is written, and nothing fails.
        if archive.start < archive.end or (is_last and not archives):
            archives.append(archive)
            numbers.append(part.number)
        if is_last:
            break
    ends = {part.number: PartEnds.of(each.manifest) for part, each in zip(named, reader.parts, strict=True)}
    gaps = await whole.gaps_between(ends)
    return ArchivedParts(
        archives=archives,
        gaps=[gap for gap in gaps if numbers[0] < gap.part <= numbers[-1]],
        live=[LivePart(part, each.manifest) for part, each in zip(named, reader.parts, strict=True)],
    )


def _whole(catalogue: Catalogue, reader: StreamReader) -> WholeStream:
    """Return an open stream with its parts, also those without data. `reader` may be of one part alone."""
    if len(reader.parts) > 1:
        return WholeStream(catalogue, reader.stream)
    like = part_like(reader.manifest.stream)
    whole = WholeStream(catalogue, like.first)
    return whole if like.number > 1 else WholeStream(catalogue, like.first, listed=[whole.first])
