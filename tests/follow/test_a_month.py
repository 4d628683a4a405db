"""A month of a follower in seconds: the clock is virtual, and something goes wrong nearly every day.

`make test` runs five days, and the campaign whole months. Each seed draws what happens hour by hour, and the
test prints it with `-s`. The broker keeps the data of two days, so nothing that it held may be missing on the
tier, as long as no trouble lasts longer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from campaign import CAMPAIGN
from growing_source import GrowingStream
from kit.world import TierWorld

from offload.contracts.events import Event, StreamPaused, StreamResumed, TookOver
from offload.follow.follower import Follower
from offload.follow.rules import FollowRules, FollowState
from offload.ground.errors import Denied, Diverged, NotOffloaded, TryAgain
from offload.ground.pause import PAUSE_SECONDS
from offload.store.faults import Fault, Rule

HOUR = 3600.0
RULES = FollowRules(max_lag_seconds=120.0, hold_back_seconds=5.0)
KEPT_HOURS = 48
"""How long the broker keeps data."""


@dataclass
class Month(TierWorld):
    """A broker, a bucket, and the process that follows."""

    draw: random.Random = field(kw_only=True)
    source: GrowingStream = field(default_factory=GrowingStream)
    said: list[str] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """The end of the source at each hour."""

    def __post_init__(self) -> None:
        self.follower = self.process()

    def process(self) -> Follower:
        """Return a follower in a new process."""
        return Follower(
            source=self.source, offloader=self.tier(), rules=RULES, env=self.env(), emit=self.tell
        )

    def tell(self, event: Event) -> None:
        """Note what an operator would hear."""
        if isinstance(event, StreamPaused | StreamResumed | TookOver):
            self.said.append(f"hour {len(self.ends)}: {event!r}")

    async def hour(self) -> None:
        """Let an hour pass, in which the broker gets data, rolls its segments and deletes old ones."""
        end = self.clock.now + HOUR
        while self.clock.now < end:
            if self.draw.random() < 0.01:
                self.source.append(self.draw.randrange(1, 4))
            pause = await self.follower.step()
            self.clock.now += max(pause, 1.0)
        self.source.append()
        self.source.roll()
        self.ends.append(self.source.next_offset)
        if len(self.ends) > KEPT_HOURS:
            while len(self.source.ledgers) > 2 and self.oldest_end() <= self.ends[-KEPT_HOURS]:
                self.source.drop_first_ledger()

    def oldest_end(self) -> int:
        """Return the end of the broker's oldest ledger."""
        return self.source.first_offset + 10 * len(self.source.ledgers[0])

    async def committed(self) -> list[int]:
        """Return all offsets that the tier has, in the order of reading."""
        return [offset for offset, _ in await self.records()]


def refuse(month: Month) -> None:
    month.store.rules = [Rule(Fault.FAIL_BEFORE)]


def expire(month: Month) -> None:
    month.store.rules = [Rule(Fault.DENY)]


def lose_replies(month: Month) -> None:
    operation = month.draw.choice(["put", "create"])
    month.store.rules = [Rule(Fault.LOSE_REPLY, operation, nth=nth) for nth in range(1, 40, 3)]


def restart(month: Month) -> None:
    month.follower = month.process()


def jump(month: Month) -> None:
    month.clock.now += month.draw.uniform(0, 6 * HOUR)  # as after a suspend: the machine slept


def lose_the_disk(month: Month) -> None:
    month.source.error = month.draw.choice([Denied("no right to read"), TryAgain("the disk does not answer")])


TROUBLES: dict[str, Callable[[Month], None]] = {
    "the bucket refuses": refuse,
    "the credentials expire": expire,
    "replies are lost": lose_replies,
    "the process is killed": restart,
    "the machine sleeps": jump,
    "the source cannot be read": lose_the_disk,
}


async def a_month(month: Month, days: int) -> None:
    hours = 0
    while hours < 24 * days:
        name = month.draw.choice([*TROUBLES])
        lasts = month.draw.choice([1, 1, 2, 5, 24])
        month.said.append(f"hour {len(month.ends)}: {name}, for {lasts} h")
        TROUBLES[name](month)
        for _ in range(lasts):
            await month.hour()
        month.store.rules, month.source.error = [], None
        # A paused stream tries again every five minutes, and after a crash the next process waits.
        for _ in range(2):
            await month.hour()
        end = (await month.follower.offloader.load_manifest("orders")).next_offset
        assert end >= month.ends[-2], month.said
        hours += lasts + 2


@pytest.mark.parametrize("seed", range(20 if CAMPAIGN else 1))
def test_a_month_of_troubles_loses_nothing(seed: int) -> None:
    month = Month(draw=random.Random(seed))
    try:
        asyncio.run(a_month(month, 30 if CAMPAIGN else 5))
        assert asyncio.run(month.committed())[: month.ends[-2]] == list(range(month.ends[-2]))
        assert month.source.first_offset > 0  # the broker has deleted what the tier still has
    finally:
        print("\n".join(month.said))


def test_a_trouble_that_outlasts_the_broker_pauses_the_stream_and_harms_nothing() -> None:
    async def scenario(month: Month) -> None:
        for _ in range(3):
            await month.hour()
        before = await month.committed()
        refuse(month)
        for _ in range(KEPT_HOURS + 2):
            await month.hour()
        month.store.rules = []
        for _ in range(3):
            await month.hour()

        assert month.follower.state is FollowState.PAUSED
        assert isinstance(month.follower.status.error, Diverged)
        assert "there is a gap" in str(month.follower.status.error)
        assert (await month.committed())[: len(before)] == before
        assert sum("StreamPaused" in line for line in month.said) == 1
        month.clock.now += PAUSE_SECONDS

    asyncio.run(scenario(Month(draw=random.Random(0))))


def test_a_bucket_that_was_never_reached_gets_everything_that_the_broker_still_has() -> None:
    async def scenario(month: Month) -> None:
        refuse(month)
        for _ in range(KEPT_HOURS + 2):
            await month.hour()
        with pytest.raises((NotOffloaded, TryAgain)):
            await month.committed()
        month.store.rules = []
        first = month.source.first_offset
        for _ in range(2):
            await month.hour()

        assert first > 0
        found = await month.committed()
        assert found == list(range(found[0], found[-1] + 1))
        assert found[0] >= first
        assert found[-1] >= month.ends[-2] - 1

    asyncio.run(scenario(Month(draw=random.Random(1))))
