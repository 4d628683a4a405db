"""Tests of a replay that goes on at the source, while its ledgers are sealed, sorted and deleted."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random

import pytest
from campaign import CAMPAIGN
from kit.world import STREAM
from offload_mqtt.decoder import MqttDecoder
from offload_mqtt.iterators import HistoryTrimmed
from offload_mqtt.selector import RANGES
from replay_world import ReplayWorld, all_of

from offload import AtOffset
from offload.index.job import index as index_stream
from offload.index.terms import Spec

TOPICS = ("a/1", "a/2", "b/1", "b/2/x", "c", "")
FILTERS = [["#"], ["a/+"], ["b/#", "+/1"], ["c", "c", "none/#"]]


@pytest.mark.parametrize("block", range(50 if CAMPAIGN else 1))
def test_no_interleaving_loses_a_message_or_delivers_one_twice(block: int) -> None:
    """20 random interleavings in each block: 1,000 in the campaign."""
    for seed in range(block * 20, block * 20 + 20):
        asyncio.run(_Walk(seed).run())


class _Walk:
    """A reader that stops at random places while everything else moves, and the model of what it must get."""

    def __init__(self, seed: int) -> None:
        self.random, self.world = Random(seed), ReplayWorld()
        self.filters = self.random.choice(FILTERS)
        self.may_lose = seed % 2 == 1
        self.was_told = False
        self.got: list[int] = []
        self.replay = self.world.replay()

    async def run(self) -> None:
        await self.append()
        self.iterator = await self.replay.iterator(self.filters)
        steps = [self.append, self.append, self.seal, self.sort, self.half, self.delete, self.roll]
        steps += [self.read, self.read, self.crash, self.trim, self.index]
        for _ in range(40):
            await self.random.choice(steps)()
        while await self.world.sort():
            pass
        for _ in range(len(self.world.log) + 3):
            await self.read(most=1000)
        await self.replay.aclose()
        self.check()

    def check(self) -> None:
        wanted = self.world.wanted(self.filters)
        missing = {*wanted}.difference(self.got)

        assert len(self.got) == len({*self.got})
        assert {*self.got} <= {*wanted}
        for topic in TOPICS:
            of_topic = [origin for origin in self.got if self.world.log[origin] == topic]
            assert of_topic == sorted(of_topic), topic
        assert missing <= self.world.gone
        assert self.was_told or not missing
        assert self.world.gone or not self.was_told

    async def append(self) -> None:
        self.world.append(*self.random.choices(TOPICS, k=self.random.randint(1, 12)))

    async def seal(self) -> None:
        self.world.seal()

    async def sort(self) -> None:
        """Sort a ledger, or leave it behind half done."""
        await self.world.sort(chunks_max=self.random.choice((1, 1000)))

    async def delete(self) -> None:
        self.world.delete_ledger(only_sorted=not (self.may_lose and self.random.random() < 0.3))

    async def half(self) -> None:
        """Leave the beginning of a sorted ledger behind, while somebody reads."""
        self.world.seal()
        await self.world.sort(chunks_max=self.random.randint(1, 2))
        await self.read()
        await self.read(most=self.random.choice((3, 1000)))

    async def roll(self) -> None:
        """Seal a ledger, sort it, and delete all that is sorted at the source, as a fast broker does."""
        self.world.seal()
        while await self.world.sort():
            self.world.delete_ledger()

    async def index(self) -> None:
        """Index all that is sorted, or lose all indexes."""
        if self.world.sorted_end and self.random.random() < 0.8:
            await self.world.index()
        else:
            self.world.lose_indexes()

    async def trim(self) -> None:
        if self.may_lose and self.world.sorted_end:
            await self.world.trim(self.random.randint(0, self.world.sorted_end))

    async def read(self, most: int = 0) -> None:
        try:
            answer = await self.replay.next(self.iterator, most or self.random.randint(1, 9))
        except HistoryTrimmed as gone:
            self.was_told, self.iterator = True, gone.iterator
            return
        self.got += [each.origin for each in answer.messages]
        self.iterator = answer.iterator
        for each in answer.messages:
            assert each.topic.decode() == self.world.log[each.origin]
            assert each.rest == b"%d" % each.origin

    async def crash(self) -> None:
        """Begin another process with the last iterator. What the dead one has read ahead is lost with it."""
        await self.replay.aclose()
        self.replay = self.world.replay()


@pytest.mark.parametrize("is_indexed", [False, True], ids=["scanned", "indexed"])
def test_a_start_in_a_ledger_that_is_sorted_in_pieces_leaves_nothing_out(*, is_indexed: bool) -> None:
    """A message is anywhere in its sorted ledger, also before what was committed or indexed first."""

    async def index() -> None:
        if is_indexed:
            tier = world.others()
            await tier.open()
            async with aclosing(index_stream(tier, STREAM, Spec.parse(RANGES), MqttDecoder())) as reports:
                assert [each.built async for each in reports] == [1]

    world = ReplayWorld()

    async def main() -> None:
        world.append(*[f"a/{37 * number % 40:02}" for number in range(40)])
        world.seal()
        await world.sort(chunks_max=3)
        begun = await world.replay(joined=False).iterator(["#"], AtOffset(20))
        await index()
        early, iterator = await all_of(world.replay(joined=False), begun)
        await world.sort()
        await index()
        late, _ = await all_of(world.replay(joined=False), iterator)
        whole, _ = await all_of(world.replay(joined=False), begun)

        assert early
        assert sorted(each.origin for each in [*early, *late]) == [*range(20, 40)]
        assert whole == [*early, *late]

    asyncio.run(main())


def test_a_trim_while_a_ledger_is_read_says_where_history_begins() -> None:
    """The fragments that were fetched are delivered. Then an error says where the others begin."""

    async def main() -> None:
        world = ReplayWorld()
        world.append(*[f"a/{number % 50:02}" for number in range(1000)])
        world.seal()
        await world.sort()
        replay = world.replay(joined=False)
        begun = await replay.next(await replay.iterator(["a/#"]), 1)
        await world.trim(900)

        with pytest.raises(HistoryTrimmed) as gone:
            await all_of(replay, begun.iterator)
        rest, _ = await all_of(replay, gone.value.iterator)

        assert [each.offset for each in rest] == [offset for offset, _ in await world.records()]
        assert "history begins at 9" in str(gone.value) or "history begins at 8" in str(gone.value)

    asyncio.run(main())
