"""The contract of a listener: a server that speaks a broker's protocol, and serves the streams of a tier.

A plugin declares a `ListenerType` by a URL scheme, and `offload serve` runs it:

    open      the target is called with the URL. It checks the options, and opens nothing
    listen    takes the port. All ports are taken before anything starts
    serve     answers until the framework sets `stopping`
    aclose    releases the port

The framework opens the tier, and a source beside it if there is one, keeps the cache that all listeners
share, and ends the process. A listener speaks the protocol, and decides who may read what.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from offload.contracts.chunks import StoredChunk
from offload.model.manifest import CommittedStream
from offload.model.position import PartOffset, Position

__all__ = ["Listener", "ListenerCounts", "ServedPart", "ServedStream", "ServedStreams"]


class ServedPart(Protocol):
    """A part of a stream on the tier."""

    @property
    def part(self) -> int:
        """The number of the part."""
        ...

    @property
    def manifest(self) -> CommittedStream:
        """The committed state of the part that the reader knows."""
        ...


class ServedStream(Protocol):
    """One reader of a stream, for one consumer. `StreamReader` and `TieredReader` document the methods."""

    @property
    def parts(self) -> Sequence[ServedPart]:
        """The parts that are on the tier, in order. A source beside it continues the newest."""
        ...

    async def place_of(self, position: Position) -> PartOffset:
        """Return the place at which reading from a position begins."""
        ...

    def follow_chunks(
        self, start: int | PartOffset, *, caught_up: Callable[[], None] = ...
    ) -> AsyncGenerator[StoredChunk, None]:
        """Yield the stored chunks from the one that holds a place on, and then what comes later. Close it."""
        ...


class ServedStreams(Protocol):
    """The streams that a listener may serve. All methods raise `TryAgain` if a store does not answer."""

    async def names(self) -> Sequence[str]:
        """Return the names on the tier and of the source, in order. Some may be deleted, or have no data."""
        ...

    async def open(self, stream: str) -> ServedStream:
        """Return a new reader of a stream. Readers share a cache, and look for news together.

        Raises `NotOffloaded` if there is no such stream, and `StreamDeleted` if it was deleted.
        """
        ...


@dataclass(slots=True, kw_only=True)
class ListenerCounts:
    """The numbers of a listener, for metrics. It counts them up and down itself."""

    connections: int = 0
    """Those that are open now."""

    subscriptions: int = 0
    """Those that exist now."""

    accepted: int = 0
    refused: int = 0
    """Connections that were refused: too many of them, or a wrong login."""

    delivered_chunks: int = 0
    delivered_bytes: int = 0
    damaged: int = 0
    """Subscriptions that damage has ended."""

    problems: dict[str, str] = field(default_factory=dict)
    """A line for each thing that an operator must know, by what it is about. `/readyz` shows them."""


class Listener(ABC):
    """A server at one address. Belongs to one event loop.

    **No chunk is changed.** A listener sends records only from chunks as they are stored.
    **Its memory is bounded.** It bounds connections, what a peer may make it keep, and what waits for a slow
    peer, which is one chunk for each consumer.
    **A peer ends itself only.** Whatever a peer sends, the other connections are served.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def url(self) -> str:
        """The address at which it answers, for messages. With port 0, the port is known after `listen`."""

    @property
    @abstractmethod
    def counts(self) -> ListenerCounts:
        """Its numbers. Sends no request."""

    @abstractmethod
    def listen(self) -> None:
        """Take the port. Raises `Misuse` if the address is not this machine's, or is in use."""

    @abstractmethod
    async def serve(self, streams: ServedStreams, stopping: asyncio.Event) -> None:
        """Answer until `stopping` is set. Then end all connections as the protocol ends them, and return.

        If this is cancelled, all connections are closed at once.
        """

    async def aclose(self) -> None:
        """Release the port. Idempotent."""
