"""A queue with priorities beside a list that is sorted by level and order."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_queue import MemoryPlace, MemoryQueue, MessageProperties, PriorityQueue, PublishedMessages

from offload.ground.errors import Misuse, TryAgain

PRIORITIES = st.lists(st.one_of(st.integers(0, 5), st.sampled_from((9, 255, 10**6, -1))), max_size=12)


def levels_of(number: int) -> list[MemoryQueue]:
    tags = count()
    return [MemoryQueue(MemoryPlace(tags=tags)) for _ in range(number)]


def priorities(each: Sequence[int]) -> list[MessageProperties]:
    return [MessageProperties(priority=priority, expires_ms=1 + max(priority, 0)) for priority in each]


@given(st.lists(PRIORITIES, max_size=4), st.integers(1, 5), st.integers(0, 12), st.data())
def test_higher_levels_come_first_and_each_in_its_order(
    batches: list[list[int]], number: int, taken: int, data: st.DataObject
) -> None:
    """The highest level that a queue has counts for all above it, and a requeue restores the place."""

    async def scenario() -> None:
        queue = PriorityQueue(levels_of(number))
        listed, bodies = list[tuple[int, int, int]](), count()
        for batch in batches:
            names = [b"%d" % next(bodies) for _ in batch]
            found = await queue.put(names, properties=priorities(batch))
            await found.confirmed
            levels = [max(0, min(priority, number - 1)) for priority in batch]
            listed += zip((-level for level in levels), map(int, names), found.tags, strict=True)
        listed.sort()
        tags = [tag for _, _, tag in listed]

        first = await queue.fetch(taken)
        assert [each.tag for each in first] == tags[:taken]
        assert [int(each.body) for each in first] == [body for _, body, _ in listed[:taken]]
        back = data.draw(st.permutations(tags[:taken]))[: taken // 2]
        assert (
            await queue.ackfold(back) == [each for tag in back for each in first if each.tag == tag] or taken
        )
        assert await queue.requeue(back) == back
        held = [(each.message.tag, each.is_unacked) async for each in queue.fold()]
        assert held == [(tag, tag in tags[:taken] and tag not in back) for tag in tags]
        assert [await queue.length(), await queue.depth()] == [len(tags) - len(first) + len(back), len(tags)]
        rest = await queue.drop(len(tags), ack_required=True)
        assert rest == [tag for tag in tags if tag in back or tag in tags[taken:]]
        assert await queue.ack(tags[::-1]) == tags[::-1]

    asyncio.run(scenario())


def test_a_condition_is_asked_level_by_level_until_one_has_a_survivor() -> None:
    async def scenario() -> None:
        queue = PriorityQueue(levels_of(3))
        await queue.publish([b"%d" % n for n in range(6)], properties=priorities([0, 0, 1, 1, 2, 2]))

        found, survivor = await queue.fetchwhile(lambda its: its.expires_ms != 2)
        assert ([each.body for each in found], survivor) == ([b"4", b"5"], priorities([1])[0])
        assert await queue.dropwhile(lambda its: its.expires_ms != 1) == priorities([0])[0]
        assert await queue.dropwhile(lambda its: True) is None
        assert [await queue.purge(), await queue.purge_acks(), await queue.depth()] == [0, 2, 0]

    asyncio.run(scenario())


@pytest.mark.parametrize("ack_required", [True, False])
@pytest.mark.parametrize("method", ["fetch", "drop", "fetchwhile"])
@pytest.mark.parametrize("error", [TryAgain("the tier is away"), asyncio.CancelledError()], ids=repr)
def test_what_was_taken_before_a_level_fails_is_put_back(
    method: str, ack_required: bool, error: BaseException
) -> None:
    class Away(MemoryQueue):
        async def fetch(self, *args: Any, **options: Any) -> Any:
            raise error

        drop = fetchwhile = fetch

    async def scenario() -> None:
        tags = count()
        low, high = Away(MemoryPlace(tags=tags)), MemoryQueue(MemoryPlace(tags=tags))
        queue = PriorityQueue([low, high])
        await queue.publish([b"low", b"high"], properties=priorities([0, 1]))

        calls = {
            "fetch": partial(queue.fetch, 2, ack_required=ack_required),
            "drop": partial(queue.drop, 2, ack_required=ack_required),
            "fetchwhile": partial(queue.fetchwhile, lambda its: True),
        }

        with pytest.raises(type(error)):
            await calls[method]()
        assert await queue.length() == 2

    asyncio.run(scenario())


def test_a_ram_target_is_shared_by_the_levels() -> None:
    targets = list[int | None]()

    class Told(MemoryQueue):
        def set_ram_target(self, size_bytes: int | None) -> None:
            targets.append(size_bytes)

    queue = PriorityQueue([Told(), Told(), Told()])
    queue.set_ram_target(100)
    queue.set_ram_target(None)

    assert targets == [33, 33, 33, None, None, None]


class Waiting(MemoryQueue):
    """Confirms when a test says so."""

    confirmed: Future[None]

    async def put(
        self,
        bodies: Sequence[bytes],
        *,
        properties: Sequence[MessageProperties] | None = None,
        delivered: bool = False,
    ) -> PublishedMessages:
        found = await super().put(bodies, properties=properties, delivered=delivered)
        self.confirmed = asyncio.get_running_loop().create_future()
        return PublishedMessages(found.tags, self.confirmed)


def test_a_batch_of_several_levels_is_confirmed_by_all_of_them() -> None:
    async def scenario() -> None:
        low, high = Waiting(), Waiting()
        queue = PriorityQueue([low, high])

        found = await queue.put([b"a", b"b"], properties=priorities([0, 1]))
        high.confirmed.set_result(None)
        await asyncio.sleep(0)
        assert not found.confirmed.done()
        low.confirmed.set_result(None)
        await found.confirmed

        found = await queue.put([b"a", b"b"], properties=priorities([0, 1]))
        high.confirmed.set_exception(TryAgain("a full disk"))
        low.confirmed.set_result(None)
        with pytest.raises(TryAgain, match="a full disk"):
            await found.confirmed

    asyncio.run(scenario())


def test_delivered_messages_need_all_levels_empty() -> None:
    async def scenario() -> None:
        queue = PriorityQueue(levels_of(2))
        await queue.publish([b"a"], properties=priorities([1]))
        with pytest.raises(Misuse):
            await queue.put([b"b"], delivered=True)
        assert await queue.depth() == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [0, 257])
def test_a_queue_has_1_to_256_levels(number: int) -> None:
    with pytest.raises(Misuse):
        PriorityQueue(levels_of(number))
    assert PriorityQueue(levels_of(256))
