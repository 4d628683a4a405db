"""Looking for the gaps of a stream on its tier, and following them while a process runs.

Invariant: what the numbers say is on the tier, or in the source at this moment. So a restart counts nothing
twice. It changes them only by what a trim or a deletion has taken from the tier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Event, RecordsLost
from offload.contracts.offloader import LedgerOffloader
from offload.copy.next_part import PartOnTier
from offload.ground.errors import NotOffloaded, OffloadError, StreamDeleted
from offload.model.gaps import GapKind, StreamGap, lost_records
from offload.parts.whole_stream import WholeStream

__all__ = ["Losses", "SeenTail", "lost_of"]


@dataclass(frozen=True, slots=True)
class SeenTail:
    """The last records of a stream that a process saw in the source, and not on the tier."""

    from_offset: int
    to_offset: int
    is_told: bool = False
    """True if the stream was deleted, and its loss was reported."""


async def lost_of(offloader: LedgerOffloader, stream: str, tail: SeenTail) -> range:
    """Return the offsets of `tail` that are not on the tier now. Raises as `load_manifest` does.

    Nothing of a stream is lost that somebody deleted on the tier, too.
    """
    try:
        first = PartOnTier.first(offloader, stream)
        part = await first.newest() or first
        begin = max(tail.from_offset, (await offloader.load_manifest(part.name)).next_offset)
    except StreamDeleted:
        return range(0)
    except NotOffloaded:
        begin = tail.from_offset
    return range(begin, max(begin, tail.to_offset))


@dataclass(slots=True, kw_only=True)
class Losses:
    """What the follower of one stream knows of lost records. Emits `RecordsLost` for each new loss."""

    stream: str
    emit: Callable[[Event], None]
    _gaps: tuple[StreamGap, ...] | None = None
    """The gaps before the part that is followed. None if nobody looked yet."""
    _part: int = 0
    """The part that was followed at that look."""
    _open: tuple[int, int] | None = None
    """The end of the tier and the beginning of the source, if the stream waits there for a person."""

    @property
    def gaps(self) -> int | None:
        """The number of gaps. None if it is not known."""
        return None if self._gaps is None else len(self._gaps) + (self._open is not None)

    @property
    def records(self) -> int | None:
        """The number of records that are lost for certain. None if it is not known."""
        if self._gaps is None:
            return None
        begin, end = self._open or (0, 0)
        return lost_records(self._gaps) + end - begin

    async def look(self, catalogue: Catalogue, part: int) -> None:
        """Look at the ends of all parts, if this part, which has a commit, is followed for the first time.

        If the tier cannot be read now, the numbers stay as they are, and the next call tries again.
        """
        if part == self._part:
            return
        found: list[StreamGap] = []
        if part > 1:
            try:
                found = await WholeStream(catalogue, self.stream).gaps()
            except OffloadError:
                return
        if self._gaps is not None:
            for gap in found:
                if gap.part > self._part and gap.kind is GapKind.LOST:
                    self._tell(gap.from_offset, gap.to_offset)
        self._gaps, self._part, self._open = tuple(found), part, None

    def stop_at(self, from_offset: int, to_offset: int) -> None:
        """Note that the tier ends at `from_offset`, and that the source begins behind it."""
        self._tell(from_offset, to_offset)
        self._open = from_offset, to_offset

    def grow_to(self, to_offset: int) -> None:
        """Note that the source begins here now, if the stream waits at a gap for a person."""
        if self._open is not None and to_offset > self._open[1]:
            self.stop_at(self._open[0], to_offset)

    def go_on(self) -> None:
        """Note that the source continues the tier: what it lacked before is in it again."""
        self._open = None

    def _tell(self, from_offset: int, to_offset: int) -> None:
        """Report the offsets of a gap that were not reported yet: the broker may delete more meanwhile."""
        begin = from_offset
        if self._open is not None and self._open[0] == from_offset:
            begin = max(begin, self._open[1])
        if begin < to_offset:
            self.emit(
                RecordsLost(
                    stream=self.stream,
                    from_offset=begin,
                    to_offset=to_offset,
                    records=to_offset - begin,
                    cause="the source deleted them before they were copied",
                )
            )
