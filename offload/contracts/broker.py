"""The contract of a broker that runs: what it says about its streams, beside the files that it writes.

A source reads files, and files do not say which chunks a majority of replicas has, or which replica leads. A
plugin that can ask the broker declares a `BrokerType` by a URL scheme.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from offload.ground.errors import OffloadError

__all__ = ["BrokerView", "CommittedChunk", "LeadingNode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedChunk:
    """A chunk, as the broker describes it, that the broker has committed."""

    first_offset: int
    next_offset: int
    epoch: int
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingNode:
    """The node of a cluster that leads a stream."""

    address: str
    """`host:port`, as the cluster knows it."""

    is_asked: bool | None
    """True if it is the node that was asked. None if that node does not say who it is."""


class BrokerView(ABC):
    """A running broker, asked about its streams. It is never asked to change anything.

    **It is believed about nothing but its own chunks.** The caller compares an answer with its source. A
    wrong answer must not do more harm than no answer.
    **It never blocks for long.** If the broker does not answer, a method raises `TryAgain` within seconds,
    and at once as long as a failed connection is not tried again. Only `committed` may wait.

    A stream's name is the `SourceStream.broker_name` of the source. Every method may raise `TryAgain` (the
    broker does not answer), `NotOffloaded` (it has no such stream) and `Denied` (it refuses this user).
    """

    __slots__ = ()

    @property
    @abstractmethod
    def url(self) -> str:
        """The broker's address, for messages. It has no login."""

    @property
    @abstractmethod
    def error(self) -> OffloadError | None:
        """The reason why the broker does not answer. None if it answered last. Sends no request."""

    @abstractmethod
    async def committed(self, stream: str, offset: int) -> CommittedChunk:
        """Wait until the chunk that holds `offset` is committed, and return it.

        This may take for ever, because a broker without a majority commits nothing. So the caller bounds it.
        """

    @abstractmethod
    async def leader(self, stream: str) -> LeadingNode:
        """Return the node that leads the stream. Raises `TryAgain` if nobody leads it now."""

    async def aclose(self) -> None:
        """Release the connection. Idempotent."""
