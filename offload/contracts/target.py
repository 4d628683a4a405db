"""The contract of a restore target: a stream of a broker into which archived data goes back.

A plugin declares a target by a URL scheme. There are two kinds, because data can go back in two ways:

    MessageTarget   a stream of a running broker. Messages are published, and get new offsets and timestamps
    ChunkTarget     the files of a stopped broker. Chunks are written as they are stored, offsets included

The framework reads and checks the archive, skips damage if it is asked to, bounds the rate, and compares what
a target holds with the archive. A target refuses a place that is not fit, and writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from offload.contracts.store import Buffer
from offload.model.chunk_table import ChunkTable

__all__ = ["ChunkTarget", "MessageTarget", "RestoreOrigin", "RestoreTarget", "TargetMessages", "Tell"]

Tell = Callable[[str], None]
"""Called with a sentence that a person must know before anything is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOrigin:
    """The part of an archived stream that is restored: the offsets from `first_offset` to `next_offset`.

    A stream that has further parts has an origin for each of them.
    """

    stream: str
    incarnation: UUID
    first_offset: int
    next_offset: int
    size_bytes: int
    """The size of the chunks of all parts that are restored, not compressed by the tier: an upper bound."""

    epoch: int | None
    """The broker's leader epoch of the newest archived chunk. None if the tier does not know it."""

    has_tracking: bool
    """True if some offsets of the stream are records of the broker's own, which are no messages."""


@dataclass(frozen=True, slots=True)
class TargetMessages:
    """The messages of a chunk as a target delivers them. Body k has offset `offset + k` in the target."""

    offset: int
    bodies: list[bytes]
    header: bytes
    """The header of the chunk, with the offset, epoch and CRC that it has in the broker's files."""


class RestoreTarget(ABC):
    """A place to restore one stream to. Belongs to one event loop.

    Every method may raise `TryAgain` if the broker does not answer, and `Denied` without permission. The
    same restore may then be run again: it continues.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of the target, for messages. Carries no password."""

    async def aclose(self) -> None:
        """Release the target. Idempotent. An unfinished restore stays as it is."""


class MessageTarget(RestoreTarget):
    """A stream of a running broker, to which messages are published under ascending ids.

    **Publishing is idempotent.** A message whose id is not above the highest one that the broker has of this
    publisher is dropped by the broker. The publisher's name is made of the stream and its incarnation, so
    every restore of the same archive has the same name.
    **Each part has a publisher.** A stream that has further parts is published part by part. `open` is
    called again, with the origin of the part, after `flush`. Later messages are published under its name.
    **Ids are offsets.** The id of a message is its archived offset plus 1. So 0 means that there is none.

    Not promised: anything about messages that were published and not flushed.
    """

    __slots__ = ()

    @abstractmethod
    async def open(self, origin: RestoreOrigin, tell: Tell) -> None:
        """Connect, and check that the target can hold the stream. Publishes nothing.

        May be called again, with another origin, which ends the first connection. Calls `tell` with
        everything that the restored stream will lack or do differently. Raises
        `NotOffloaded` if the target does not exist, and `Misuse` or `NoSpace` if its retention would delete
        restored messages.
        """

    @abstractmethod
    async def last_id(self) -> int:
        """Return the highest id that the broker has of this publisher, or 0 if it has none."""

    @abstractmethod
    def messages(self) -> AsyncGenerator[TargetMessages, None]:
        """Yield all messages of the target in order, also those of other publishers. Close it.

        They include every message that the broker had confirmed before the call.
        """

    @abstractmethod
    async def publish(self, first_id: int, bodies: Sequence[bytes]) -> None:
        """Publish messages under consecutive ids. Returns as soon as more may be published."""

    @abstractmethod
    async def flush(self) -> None:
        """Return once the broker has confirmed every message that was published."""


class ChunkTarget(RestoreTarget):
    """The folder of a stream of a stopped broker.

    **All or nothing.** Until `finish` returns, the broker would still find the folder as it was.
    **Repeating continues.** `open` returns the offset up to which an earlier, killed restore got.
    """

    __slots__ = ()

    @abstractmethod
    async def open(self, origin: RestoreOrigin, tell: Tell) -> int:
        """Check the folder, and return the offset of the chunk to begin with.

        It is `origin.first_offset`, or higher if an earlier restore of the same origin was killed. Calls
        `tell` as a `MessageTarget` does. Raises `Diverged` if the folder holds chunks.
        """

    @abstractmethod
    async def write(self, rows: ChunkTable, data: Buffer) -> None:
        """Write whole chunks behind those before. `rows` describes `data`, which begins with the first."""

    @property
    @abstractmethod
    def last_header(self) -> bytes:
        """The header of the last chunk, as the broker will find it. Valid when all chunks were written."""

    @abstractmethod
    async def finish(self) -> int:
        """Make everything durable, and then visible to the broker.

        Returns the offset behind the last chunk.
        """
