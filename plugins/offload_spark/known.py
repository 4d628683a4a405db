"""The streams of a streaming query, as its driver saw them last. Runs on the driver, without Spark.

A trigger asks for the newest state of every stream, and mostly nothing is new. So the states are kept between
triggers, and a trigger asks only whether a newer one exists:

    wanted                                        costs
    the newest part of a stream, as before        one listing
    an earlier part of a stream                   nothing: it takes no more data
    the names of all streams, or of a pattern     one listing for 1,000 streams, and one request for a new one
    the parts of streams that were named          one listing each, at most every `LOOK_SECONDS`
    a stream without committed data               as a new one, at most every `LOOK_SECONDS`

Invariants: several streams are asked at a time, at most `STREAMS_AT_ONCE`. A part is loaded after the first
state of the part behind it, so the state that is kept has all of its data. Nothing here decides what a
micro-batch has: that is the work of two marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Final

from offload.contracts.catalogue import Catalogue, StreamView
from offload.ground.env import Env
from offload.ground.errors import BeingRebuilt, NotOffloaded, StreamDeleted
from offload.model.manifest import CommittedStream
from offload.model.part import part_name
from offload.parts.whole_stream import WholeStream, grouped
from offload_spark.options import ReadOptions
from offload_spark.planning import ChosenStream, each_of, raise_with_nearest, stream_of

LOOK_SECONDS: Final = 10.0
"""The least time between two looks for parts that were begun, and for streams that had no data."""


class KnownStreams:
    """The streams of a query, and their newest states. It belongs to one event loop.

    With `look_seconds=0` every call looks for everything.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        options: ReadOptions,
        *,
        env: Env | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.catalogue, self.options = catalogue, options
        self._env, self._look_seconds = env or Env(), look_seconds
        self._looked_at = -inf
        self._names: Sequence[str] | None = None
        self._streams: dict[str, WholeStream] = {}
        self._views: dict[str, dict[int, StreamView]] = {}
        self._empty: set[str] = set()
        """The streams that had no committed data at the last look."""

    async def newest(self) -> list[ChosenStream]:
        """Return every chosen stream with its newest state. Leaves out deleted streams that were not named.

        Raises `NotOffloaded` for a named stream that does not exist or was deleted.
        """
        await self._look()
        asked = [name for name in self._streams if name not in self._empty]
        found = dict(zip(asked, await each_of(self._refreshed, asked), strict=True))
        self._views = {name: views for name, views in found.items() if views}
        self._empty |= found.keys() - self._views.keys()
        return [stream_of(self.catalogue, name, sorted(views.items())) for name, views in self._views.items()]

    @property
    def names(self) -> list[str]:
        """The chosen streams, as the last look found them, deleted ones too."""
        return [*self._streams]

    async def part(self, stream: str, number: int) -> CommittedStream:
        """Return the newest state of one part. One listing if it is known and there is nothing newer.

        Raises as `Catalogue.view` does.
        """
        known = self._views.get(stream, {}).get(number)
        with suppress(StreamDeleted):  # begun again, perhaps: the whole view says what is there now
            if known is not None:
                return (await self.catalogue.newer_view(known.committed) or known).committed
        return (await self.catalogue.view(part_name(stream, number))).committed

    async def _look(self) -> None:
        """Find the streams, and their parts if that is due."""
        now = self._env.monotonic()
        is_due = now - self._looked_at >= self._look_seconds
        if named := self.options.streams.names:
            if is_due:
                names = [*dict.fromkeys(named)]
                found = {name: WholeStream(self.catalogue, name) for name in names}
                await each_of(WholeStream.parts, found.values())
                self._streams = found
        # The names of all parts are in the list. While it is the same, no part was begun.
        elif (names := await self.catalogue.streams()) != self._names:
            every = {stream.name: stream for stream in await grouped(self.catalogue, names=names)}
            self._streams = {name: every[name] for name in self.options.streams.of([*every])}
            self._names = names
        if is_due:  # not before: a look that failed is made again by the next call
            self._looked_at = now
            self._empty.clear()

    async def _refreshed(self, name: str) -> dict[int, StreamView]:
        """Return the newest view of each part that has data; none if a stream has none and was not named."""
        stream, known = self._streams[name], self._views.get(name)
        try:
            if known is not None:
                with suppress(NotOffloaded):  # deleted, or begun again: load everything below
                    return await self._newer(stream, known)
            return dict(await stream.views())
        except NotOffloaded as error:
            if self.options.streams.names:
                await raise_with_nearest(self.catalogue, name, error)
            return {}

    async def _newer(self, stream: WholeStream, known: dict[int, StreamView]) -> dict[int, StreamView]:
        last = max(known)
        try:
            # Before the part that was the newest: it takes no more data after these have a root.
            begun = await (await stream.behind(last)).views()
        except BeingRebuilt:
            raise
        except NotOffloaded:  # they were deleted, or have no commit yet
            begun = []
        newer = await self.catalogue.newer_view(known[last].committed)
        return {**known, last: newer or known[last], **dict(begun)}
