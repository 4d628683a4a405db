"""A stream with all of its parts, as one object: which parts there are, their newest states, and their gaps.

    stream = WholeStream(catalogue, "orders")
    await stream.names()        # the name of each part that was recorded, part 1 first
    await stream.views()        # the newest state of each part that has a commit and was not deleted
    await stream.gaps()         # the offsets between two parts that no part has

A reader, a command or a job begins here, and then has names, numbers and views. `copy.next_part` begins,
closes and ends parts: that needs claims, and this module sends no request that changes anything.

An object is one look at a stream. It lists the parts once, when they are first asked for, and remembers them:
make another one to look again.

Invariants: the parts are listed before any of them is loaded, and the newest is loaded first. A part takes no
more data after the next one has its first root (`copy.next_part`), so the view of a part that has a successor
here holds all of its data. A part that is being rebuilt is an error and never left out: readers would miss
records, and not know it.

`tests/tier/test_whole_stream.py` has a test of each. `tests/tier/test_joined_reads.py` compares what is read
through parts with a model, while parts begin and end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from offload.contracts.catalogue import Catalogue, StreamView
from offload.ground.errors import (
    BeingRebuilt,
    Corrupt,
    NotOffloaded,
    OffloadError,
    StreamDeleted,
    UnsupportedFormat,
)
from offload.model.gaps import PartEnds, StreamGap, gaps_between
from offload.model.manifest import CommittedStream
from offload.model.part import StreamPart, part_like

__all__ = ["LivePart", "WholeStream", "grouped", "part_named", "with_parts"]


class LivePart(NamedTuple):
    """A part that has a commit and was not deleted, with its state."""

    part: StreamPart
    committed: CommittedStream


class WholeStream:
    """A stream of a catalogue with its parts, or with those behind part `after`."""

    def __init__(
        self,
        catalogue: Catalogue,
        name: str,
        *,
        after: int = 0,
        listed: Sequence[StreamPart] | None = None,
    ) -> None:
        """`listed` are the parts, if the caller has looked them up."""
        self.catalogue, self.name = catalogue, name
        self._after, self._listed = after, listed

    @property
    def first(self) -> StreamPart:
        """Part 1, which is the stream itself."""
        return StreamPart(self.name)

    async def parts(self, *, damaged: Callable[[OffloadError], None] | None = None) -> Sequence[StreamPart]:
        """Return the parts that were recorded, in order, also those that were deleted or have no commit.

        Costs one listing. If `damaged` is given, it is called with damage that hides the later parts, and
        part 1 is returned alone. Otherwise the damage is raised.
        """
        if self._listed is None:
            own = [] if self._after else [self.first]
            try:
                self._listed = [*own, *await self.catalogue.parts(self.name, after=max(self._after, 1))]
            except (Corrupt, UnsupportedFormat) as error:
                if damaged is None:
                    raise
                damaged(error)
                return own  # not remembered: the next call shows the damage too
        return self._listed

    async def names(self) -> list[str]:
        """Return the name of each part that was recorded, in order. Costs one listing."""
        return [part.name for part in await self.parts()]

    async def part(self, number: int) -> StreamPart:
        """Return one part as it was recorded. A part that is not listed is returned without a record."""
        if number > 1:
            for part in await self.catalogue.parts(self.name, after=number - 1):
                if part.number == number:
                    return part
        return self.first.numbered(number)

    async def behind(self, number: int) -> WholeStream:
        """Return the stream with the parts behind this number alone, from the same look."""
        later = [part for part in await self.parts() if part.number > number]
        return WholeStream(self.catalogue, self.name, after=number, listed=later)

    async def views(
        self, *, damaged: Callable[[OffloadError], None] | None = None
    ) -> list[tuple[int, StreamView]]:
        """Return the number and the newest view of each part that has a commit and was not deleted, in order.

        Raises `NotOffloaded` if the stream was never begun or a part is being rebuilt, and `StreamDeleted` if
        every part was deleted. If `damaged` is given, it is called with damage that hides parts.
        """
        found: list[tuple[int, StreamView]] = []
        deleted: StreamDeleted | None = None
        for part in reversed(await self.parts(damaged=damaged)):
            try:
                found.insert(0, (part.number, await self.catalogue.view(part.name)))
            except StreamDeleted as error:
                deleted = error
            except BeingRebuilt:
                raise
            except NotOffloaded:
                if part.number == 1:
                    raise  # a later part may be begun, and wait for its first commit
            except (Corrupt, UnsupportedFormat) as error:
                if damaged is None:
                    raise
                damaged(error)
        if deleted is not None and not found:
            raise deleted
        return found

    async def gaps(self) -> list[StreamGap]:
        """Return the gaps between the parts, from their newest states. Raises as `views` does."""
        views = [(number, view.committed) for number, view in await self.views()]
        return await self.gaps_between({number: PartEnds.of(each) for number, each in views})

    async def gaps_between(self, ends: Mapping[int, PartEnds]) -> list[StreamGap]:
        """Return the gaps between the parts with these ends, by the numbers of the parts."""
        parts = await self.parts()
        behind = [part.number for part in parts if part.behind]
        return gaps_between(self.name, {part.number: ends.get(part.number) for part in parts}, behind)


async def grouped(
    catalogue: Catalogue,
    *,
    names: Sequence[str] | None = None,
    damaged: Callable[[OffloadError], None] | None = None,
) -> list[WholeStream]:
    """Return the streams of a tier, or those of `names`, in order of names, each with its parts.

    A part is in its stream alone. Requests are sent only for streams that seem to have parts. If `damaged` is
    given, it is called with the error of a stream whose parts cannot be found, and the stream and each of its
    parts are then streams by themselves. Otherwise the error is raised.
    """
    names = await catalogue.streams() if names is None else names
    known, taken = {*names}, set[str]()
    found: list[WholeStream] = []
    for name in names:  # the name of a part comes after that of its stream, which is the beginning of it
        if name in taken:
            continue
        stream = WholeStream(catalogue, name)
        has_parts = stream.first.following.name in known
        parts = await stream.parts(damaged=damaged) if has_parts else [stream.first]
        taken |= {part.name for part in parts}
        found.append(WholeStream(catalogue, name, listed=parts))
    return found


async def with_parts(catalogue: Catalogue, streams: Sequence[str]) -> list[str]:
    """Return these streams, each followed by its parts, and no name twice. One listing for each stream."""
    found = [name for stream in streams for name in await WholeStream(catalogue, stream).names()]
    return [*dict.fromkeys(found)]


async def part_named(catalogue: Catalogue, name: str) -> StreamPart | None:
    """Return the later part of a stream that has this name, or None. A name of another form costs nothing."""
    part = part_like(name)
    found = [] if part.number == 1 else await catalogue.parts(part.first, after=part.number - 1)
    return next((each for each in found if each == part), None)
