"""The origin of a replay: the source of the stream that was sorted, read on in the order of arrival.

A replay reads from it what is not sorted yet. Offsets of the origin are those that sorted records carry, so
the two join at an exact message, whichever ledgers are sealed, sorted and deleted meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

from offload.formats.records import RecordRun

__all__ = ["OriginTrimmed", "ReplayOrigin"]


class OriginTrimmed(Exception):
    """The origin begins behind the wanted offset now: at `first_offset`."""

    def __init__(self, first_offset: int) -> None:
        super().__init__(f"the origin begins at offset {first_offset}")
        self.first_offset = first_offset


class ReplayOrigin(ABC):
    """What a replay needs of a source."""

    __slots__ = ()

    @abstractmethod
    async def next_offset(self) -> int:
        """Return the end of what the source has."""

    @abstractmethod
    def runs(self, offset: int) -> AsyncGenerator[RecordRun, None]:
        """Yield the messages from an offset to the newest, in order, as topic records. Close it.

        Offsets without a message, such as those of tracking records, are left out. Raises `OriginTrimmed` if
        the source has deleted messages from `offset` on, before it yields one behind them.
        """

    @abstractmethod
    async def begins_ledger(self, offset: int) -> bool:
        """Return whether a ledger begins at this offset. True also if nobody knows any more.

        Only there a sorted stream and its origin can be joined: the beginning of a sorted ledger has messages
        from everywhere in it.
        """

    @abstractmethod
    async def wait(self) -> None:
        """Return when the source may have more, or after a short time."""
