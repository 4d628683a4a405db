"""A source that grows, a tier in memory, and followers between them: the world of several tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from growing_source import Clock, GrowingStream

from offload import ObjectStoreOffloader, StreamReader
from offload.contracts.events import Event
from offload.follow.follower import Follower
from offload.follow.rules import FollowRules, FollowState, FollowStatus, Wait
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore

LAG: Final = 10.0
RULES: Final = FollowRules(max_lag_seconds=LAG, hold_back_seconds=1.0)


LEADING = FollowStatus(
    stream="orders",
    state=FollowState.LEADING,
    error=None,
    source_next_offset=10,
    committed_offset=4,
    dispatched_offset=8,
    lag_records=6,
    lag_seconds=2.5,
    alarm_seconds=15.0,
    waits=Wait.COPY,
    waits_since_ms=9000,
    gaps=1,
    lost_records=120,
)
"""The status of a follower that leads, and lags."""


@dataclass
class World:
    """A source that grows, a tier in memory, and a clock."""

    clock: Clock = field(default_factory=Clock)
    source: GrowingStream = field(default_factory=GrowingStream)
    store: FaultyStore = field(default_factory=lambda: FaultyStore(MemoryStore()))
    events: list[Event] = field(default_factory=list)

    def tier(self) -> ObjectStoreOffloader:
        """Return the tier, as another process opens it."""
        return ObjectStoreOffloader(self.store, env=self.clock.env())

    def follower(self, rules: FollowRules = RULES, source: GrowingStream | None = None) -> Follower:
        """Return a follower in a process of its own."""
        return Follower(
            source=source or self.source,
            offloader=self.tier(),
            rules=rules,
            env=self.clock.env(),
            emit=self.events.append,
        )

    async def run(self, follower: Follower, seconds: float) -> None:
        """Let the follower look until so much time has passed."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += await follower.step()

    async def committed(self) -> int:
        """Return the end of the tier, after reading every message of it."""
        reader = await StreamReader.open(self.tier(), "orders")
        end = 0
        async for batch in reader.messages(0):
            assert batch.offset == end
            end += len(batch.bodies)
        return end

    def told(self, kind: type[Event]) -> int:
        """Return the number of events of a kind."""
        return sum(isinstance(event, kind) for event in self.events)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    asyncio.run(scenario(World()))  # type: ignore[arg-type]  # a coroutine function
