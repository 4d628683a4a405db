"""A tier in memory, its clock and its events: the world on which families of tests build theirs.

A world outlives the processes in it. `tier` opens the tier as another process does, `clock` moves only if a
test moves it, and `store` lists the requests and fails those that a test chooses. A family of tests adds what
it has besides: a source, followers, owners, keys, a cache, a broker.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from offload_conformance import MemoryLedger

from offload import (
    Blocking,
    Catalogue,
    ObjectStoreOffloader,
    Plugins,
    StreamReader,
    StreamWriter,
    TierOptions,
)
from offload.contracts.events import Event
from offload.ground.env import Env
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore

STREAM = "orders"
"""The stream of a world that has one."""


@dataclass
class Clock:
    """A clock that a test sets."""

    now: float = 1000.0
    skew_seconds: float = 0.0
    """How far the wall clock runs ahead of the monotonic one."""

    def env(self, random: float = 0.5) -> Env:
        """Return an environment with this clock. Its sleep does not wait."""
        return Env(
            monotonic=lambda: self.now,
            now_ms=lambda: int((self.now + self.skew_seconds) * 1000),
            sleep=lambda seconds: asyncio.sleep(0),
            random=lambda: random,
        )


@dataclass
class TierWorld:
    """A tier in memory, a clock, and the events that processes told."""

    clock: Clock = field(default_factory=Clock)
    store: FaultyStore = field(default_factory=lambda: FaultyStore(MemoryStore()))
    events: list[Event] = field(default_factory=list)

    def env(self) -> Env:
        """Return the environment of a process."""
        return self.clock.env()

    def options(self) -> TierOptions:
        """Return how a process opens the tier."""
        return TierOptions()

    def tier(self) -> ObjectStoreOffloader:
        """Return the tier, as another process opens it."""
        return ObjectStoreOffloader(self.store, options=self.options(), env=self.env())

    def others(self) -> ObjectStoreOffloader:
        """Return the tier as everybody else opens it: their requests are not counted, and none fails."""
        return ObjectStoreOffloader(self.store.inner, options=self.options())

    @property
    def objects(self) -> dict[str, bytes]:
        """The objects of the tier."""
        assert isinstance(self.store.inner, MemoryStore)
        return self.store.inner.objects

    @property
    def data(self) -> list[str]:
        """The keys of the fragments, in order."""
        return sorted(key for key in self.objects if "/data/" in key)

    def flip(self, key: str, position: int = 500) -> None:
        """Flip a bit of an object."""
        raw = bytearray(self.objects[key])
        raw[position] ^= 1
        self.objects[key] = bytes(raw)

    def of(self, kind: type[Event]) -> list[Any]:
        """Return the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def told(self, kind: type[Event]) -> int:
        """Return the number of events of a kind."""
        return len(self.of(kind))

    def requests(self) -> Counter[str]:
        """Return the requests since the last call, by operation."""
        found = Counter(call.operation for call in self.store.calls)
        self.store.calls.clear()
        return found

    def fragments_read(self) -> list[str]:
        """Return the fragments of the reads since the last call, and forget all requests."""
        found = [call.key for call in self.store.calls if call.operation == "get" and "/data/" in call.key]
        self.store.calls.clear()
        return found

    async def records(self, stream: str = STREAM) -> list[tuple[int, bytes]]:
        """Return the offset and the body of each message of the tier."""
        reader = await StreamReader.open(self.tier(), stream)
        return [
            (batch.offset + row, bytes(body))
            async for batch in reader.messages(reader.manifest.first_offset)
            for row, body in enumerate(batch.bodies)
        ]


@dataclass
class BlockingWorld(TierWorld):
    """A tier in memory, or another catalogue, and one caller of it that blocks."""

    make: Callable[[], Catalogue] | None = None
    """Opens the other catalogue."""

    def __post_init__(self) -> None:
        self.blocking = Blocking.around(self.make or self.tier, plugins=Plugins.find())

    def write(self, stream: str, ledgers: Sequence[MemoryLedger]) -> None:
        """Begin a stream with these ledgers."""

        async def written() -> None:
            await self.blocking.offloader.open(create=True)
            first = ledgers[0].first_offset
            writer = await StreamWriter.claim(self.blocking.offloader, stream, first_offset=first)
            await writer.offload(ledgers)

        self.blocking.run(written())
