"""A source that grows, a tier in memory, and followers between them: the world of several tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from growing_source import GrowingStream
from kit.world import TierWorld

from offload.follow.follower import Follower
from offload.follow.pauses import LookAtPlace, look_nowhere
from offload.follow.rules import FollowRules, FollowState, FollowStatus, Wait
from offload.ground.errors import NotOffloaded

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
class World(TierWorld):
    """A source that grows beside the tier, and followers of its stream."""

    source: GrowingStream = field(default_factory=GrowingStream)

    def follower(
        self,
        rules: FollowRules = RULES,
        source: GrowingStream | None = None,
        place: LookAtPlace = look_nowhere,
    ) -> Follower:
        """Return a follower in a process of its own."""
        return Follower(
            source=source or self.source,
            offloader=self.tier(),
            rules=rules,
            env=self.env(),
            emit=self.events.append,
            place=place,
        )

    async def run(self, *followers: Follower, seconds: float) -> None:
        """Let the followers look in turn until so much time has passed."""
        end = self.clock.now + seconds
        due = [(self.clock.now, number) for number in range(len(followers))]
        while min(due)[0] <= end:
            now, number = min(due)
            self.clock.now = max(self.clock.now, now)
            due[number] = self.clock.now + (await followers[number].step() or 0.1), number
        self.clock.now = end

    async def committed(self) -> int:
        """Return the end of the tier, after reading every message of it."""
        with suppress(NotOffloaded):
            offsets = [offset for offset, _ in await self.records()]
            assert offsets == list(range(len(offsets)))
            return len(offsets)
        return 0


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    asyncio.run(scenario(World()))  # type: ignore[arg-type]  # a coroutine function
