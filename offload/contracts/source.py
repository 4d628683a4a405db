"""The contract of a source: a broker's local data, read and never changed.

A plugin declares a source by a URL scheme. The framework asks the source for its streams, takes a snapshot of
each, and copies the snapshot's ledgers. The framework checks the bytes. The source decides which bytes the
broker itself would still show after a crash.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from offload.contracts.catalogue import Catalogue
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Corrupt, Misuse, NotOffloaded
from offload.model.manifest import Manifest
from offload.model.own_names import named_so

__all__ = ["SharedLog", "Snapshot", "Source", "SourceStream"]


LOG_WINDOW_SIZE_BYTES: Final = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLog:
    """A log in which a broker writes the records of several streams, one behind the other."""

    key: Hashable
    """Equal for all streams of the log."""

    window_size_bytes: int = LOG_WINDOW_SIZE_BYTES
    """How much of the log the source keeps at hand: the page cache, or buffers of its own.

    All streams are copied within one window of the log before any of them continues in the next one. A copy
    may have to reach back into the window before. Each stream gets a fragment of its own in each window, so a
    small window makes many small fragments.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The data of a stream's source at one moment: ledgers that follow each other without a hole.

    The broker's appends and retention do not change it. But the broker may delete its files: reading then
    raises `TryAgain`. Close it to release the files.
    """

    ledgers: Sequence[ReadHandle]
    first_offset: int
    next_offset: int
    epoch: int = 0
    """The broker's own leader epoch of the newest chunk. 0 if the broker has none.

    A source of entries whose store states none has the offset of entry 0 of the newest ledger here.
    """

    ledgers_at_once: int | None = None
    """The most ledgers that a copy opens together, for a source that has an open one in memory. None: any."""

    damage: Corrupt | None = None
    """The damage that cuts the snapshot short. None if the snapshot ends with the source."""

    committed_offset: int | None = None
    """The offset up to which the broker itself vouches for the data. None if the source does not know it."""

    holds: Callable[[bytes], Awaitable[str | None]] | None = None
    """Returns the reason why the source does not contain this committed chunk, or None if it does.

    For sources that build chunks themselves, and may cut them elsewhere the next time: they compare records.
    If the snapshot begins within the chunk, they compare those that both have.
    If this is None, the source's chunk at the same offset must have the same leader epoch, timestamp and CRC.
    """

    async def aclose(self) -> None:
        """Release the files. Idempotent."""
        for ledger in self.ledgers:
            await ledger.aclose()

    async def __aenter__(self) -> Self:
        """Return the snapshot. The exit closes it."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


class SourceStream(ABC):
    """One stream of a source."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """The stream's name on a tier. The same data always has the same name."""

    @property
    def broker_name(self) -> str:
        """The stream's name for a `BrokerView`. By default it is `name`."""
        return self.name

    @property
    def needs_since(self) -> bool:
        """True if `snapshot` numbers its records from what is committed, so that it must be loaded first.

        `since` is then None only if the tier has nothing of the stream. By default it is False: None also
        means that nobody has looked.
        """
        return False

    def for_tier(self, tier: Catalogue) -> Self:
        """Return this stream, which is to be copied to `tier`. It is called before the first snapshot.

        By default nothing changes. A source that numbers its records from what is committed may look there,
        if the manifest alone does not show enough.
        """
        return self

    @abstractmethod
    async def snapshot(self, since: Manifest | None = None) -> Snapshot:
        """Return the data that the broker would show of the stream now. Its own rules leave torn tails out.

        `since` is what a tier has committed. A source that builds its chunks begins one exactly at
        `since.next_offset`, and may number its records from what is committed. Changes no file. Raises
        `Corrupt` if nothing of the stream can be read, and `TryAgain` if the broker
        moved files meanwhile.
        """

    async def mark(self) -> Hashable | None:
        """Return a token that changes when the stream has something new. Cheap: it is asked every second.

        None, the default, says nothing: whoever wants to know must take a snapshot. Raises as `snapshot`
        does.
        """
        return None

    async def changed(self, mark: Hashable) -> bool:
        """Wait until `mark` is another one than this, and return True.

        Optional: a source whose broker is in this process wakes its readers at once. By default it returns
        False at once, and whoever waits looks at intervals.
        """
        return False

    async def vouched(self, snapshot: Snapshot) -> int | None:
        """Return the offset up to which the broker vouches for a snapshot. None if nobody knows.

        It is asked only if something of the snapshot is to be copied. By default it is what the snapshot
        itself says. `follow.vouched` asks the broker.
        """
        return snapshot.committed_offset

    async def leads(self) -> bool | None:
        """Return whether the broker beside this source leads the stream. None, the default, if nobody knows.

        It decides about cost only: which of several processes claims the stream first.
        """
        return None

    @property
    def shared_log(self) -> SharedLog | None:
        """The log that holds the records of this stream and of others. None, the default, if there is none.

        Streams that share a log take their turns in its order, so that one pass over the log feeds all of
        them. It decides about order and cost only. It never changes.
        """
        return None

    async def log_position(self, offset: int) -> int:
        """Return the byte of `shared_log` at which the record at `offset` begins.

        Positions ascend with offsets. It is called only if there is a shared log, for offsets of the newest
        snapshot, some 20 times for each turn. So it must not read the log itself. Raises as `snapshot` does.
        """
        raise NotImplementedError(f"stream {self.name!r} has a shared log and no log_position")


class Source(ABC):
    """A broker's local data, opened by URL."""

    __slots__ = ()

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of the data, for messages."""

    @property
    def folder(self) -> Path | None:
        """The folder of the data on this machine, whose disk the broker fills. None if there is none."""
        return None

    @abstractmethod
    async def streams(self) -> Sequence[SourceStream]:
        """Return the streams, in order of names. Raises `NotOffloaded` if there is none."""

    @property
    @abstractmethod
    def notes(self) -> Sequence[str]:
        """The files and folders that `streams` skipped, and the reasons: one line each, for people."""

    async def stream(self, name: str) -> SourceStream:
        """Return the stream of this name, or with this own name (`model.own_names`).

        Raises `NotOffloaded` if there is none, and `Misuse` if several have this own name.
        """
        streams = {stream.name: stream for stream in await self.streams()}
        found = named_so(streams, name)
        if found[1:]:
            raise Misuse(f"{len(found)} streams are called {name!r}: name one of {', '.join(found)}")
        if found:
            return streams[found[0]]
        raise NotOffloaded(f"{self.url} has no stream {name!r}")

    async def aclose(self) -> None:
        """Release connections. Idempotent."""
