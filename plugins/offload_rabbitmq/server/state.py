"""What all connections of a listener share: the streams, and who knows their names, users and offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from offload.contracts.listener import ListenerCounts, ServedStream, ServedStreams
from offload.ground.env import Env
from offload.ground.errors import NotOffloaded, OffloadError
from offload_rabbitmq.server.delivery import explain
from offload_rabbitmq.stream_frames import Code

if TYPE_CHECKING:
    from offload_rabbitmq.server.connection import ServedConnection

_log: Final = logging.getLogger(__name__)
_T = TypeVar("_T")


class StreamNames(Protocol):
    """Knows which stream of a tier a client means (`server.names`)."""

    async def learn(self) -> None:
        """Find out what can be known before a client asks."""

    async def resolve(self, virtual_host: str, name: str) -> str:
        """Return the name on the tier. Raises `NotOffloaded`, or another error if it cannot be told."""

    async def partitions(self, virtual_host: str, name: str) -> Sequence[str]:
        """Return the streams of a super stream, as clients name them. Raises `NotOffloaded`."""


class Logins(Protocol):
    """Knows who may log in (`server.users`)."""

    mechanisms: Sequence[str]

    async def may_enter(self, mechanism: str, data: bytes | None, *, host: str) -> Code:
        """Return `OK`, or the code of the refusal. `host` is where the client is."""


class StoredOffsets(Protocol):
    """Remembers how far consumers have come (`server.offsets`)."""

    def store(self, stream: str, reference: str, offset: int) -> None:
        """Remember an offset."""

    def query(self, stream: str, reference: str) -> int | None:
        """Return the offset that was stored last. None if there is none."""


@dataclass(slots=True, kw_only=True)
class ServerState:
    """The state. It belongs to one event loop."""

    streams: ServedStreams
    names: StreamNames
    logins: Logins
    offsets: StoredOffsets
    advertised: tuple[str, int]
    """The host and the port that clients dial, as texts of Metadata and of Open."""

    counts: ListenerCounts
    env: Env
    connections: set[ServedConnection] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a task until it ends. What is left of them is cancelled at the end of the listener."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def find(self, virtual_host: str, name: str) -> str | Code:
        """Return the stream on the tier that a client means, or the code of the refusal."""
        return await or_code(name, self.names.resolve(virtual_host, name))

    async def open(self, virtual_host: str, name: str) -> ServedStream | Code:
        """Return a new reader of the stream that a client means, or the code of the refusal."""
        stream = await self.find(virtual_host, name)
        return stream if isinstance(stream, Code) else await or_code(name, self.streams.open(stream))


async def or_code(name: str, asked: Awaitable[_T]) -> _T | Code:
    """Return what was asked about a stream, or the code of the refusal. `name` is for the log."""
    try:
        return await asked
    except NotOffloaded:
        return Code.NO_STREAM
    except OffloadError as error:
        _log.warning("%s", explain(name, error))
        return Code.STREAM_NOT_AVAILABLE
