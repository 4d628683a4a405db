"""A stream that waits for a person: what stopped it, and the signs that this is mended.

A paused stream is tried again every `PAUSE_SECONDS` (`ground.pause`). Between two tries its surroundings are
looked at, because whoever mends something wants to see that it helped:

    the place of the tier    its rights, its owners, and the room on its disk, if the tier is a folder
    the source               whether it can be read
    the tier                 whether the stream can be read, its newest part, and how far it goes

The stream is tried at once if one of these has changed. What no look can show, such as the quota of a bucket,
is found by the next try, or by `offload ctl retry`.

Invariants: a look changes nothing on the tier. What the tries of this process leave there is no sign: two
processes that are stopped by one cause do not wake each other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final

from offload.contracts.source import SourceStream
from offload.copy.next_part import PartOnTier

__all__ = ["LookAtPlace", "PausedBefore", "Signs", "look_nowhere"]


SIGNS_SECONDS: Final = 10.0
"""The time between two looks at the source and at the place of the tier. They send no request to a store."""

TIER_SIGNS_SECONDS: Final = 30.0
"""The time between two looks at the tier: that of a process which stands by."""

LookAtPlace = Callable[[str], Awaitable[Hashable]]
"""Returns what the place of the tier looks like for the stream of this name. Raises nothing."""


async def look_nowhere(stream: str) -> Hashable:
    """Return nothing: the look at a place that shows nothing, such as a bucket."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedBefore:
    """How the process before left a stream that was paused."""

    kind: str = ""
    """The name of the class of the error that paused it. Empty if none has."""
    reason: str = ""
    """The text of that error."""
    since_ms: int = 0
    held_ms: int | None = None
    """When a person paused it. None if nobody has."""


@dataclass(slots=True, kw_only=True)
class Signs:
    """Looks at what may have stopped one stream."""

    source: SourceStream
    place: LookAtPlace = look_nowhere
    _tier: Hashable = None
    _ask_seconds: float = 0.0

    async def look(self, part: PartOnTier, now: float, *, afresh: bool = False) -> tuple[Hashable, ...]:
        """Return the surroundings of a part, to be compared with an earlier look. Raises nothing.

        The tier is asked if that was long ago, or if the look is to be `afresh`.
        """
        if afresh or now >= self._ask_seconds:
            self._tier, self._ask_seconds = await self._of_tier(part), now + TIER_SIGNS_SECONDS
        return await self.place(part.name), await self._of_source(), self._tier

    async def _of_source(self) -> Hashable:
        try:
            await self.source.mark()
        except Exception as error:  # noqa: BLE001 - whatever it is, the stream waits already
            return type(error).__name__
        return None

    async def _of_tier(self, part: PartOnTier) -> Hashable:
        # Without the version: a try that fails may leave a root, which must be no sign for another process.
        try:
            newest = await part.newest() or part
            manifest = await part.offloader.load_manifest(newest.name)
        except Exception as error:  # noqa: BLE001 - as above
            return type(error).__name__
        return newest.number, manifest.incarnation, manifest.next_offset
