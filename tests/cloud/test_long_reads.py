"""Tests of several reads from one reply: the right bytes, few requests, nothing left open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_cloud import long_reads
from offload_cloud.long_reads import LongReads, RangeReply

from offload.contracts.store import Buffer, Span, Suffix
from offload.ground.errors import TryAgain
from offload.store.buffers import BufferPool
from offload.store.memory import MemoryStore
from offload.store.metrics import MeteredStore

OBJECT = bytes(range(256)) * 3


@dataclass
class Server:
    """Serves `OBJECT` under every key. `steps` says which requests and receives fail, hang or work."""

    steps: list[str] = field(default_factory=list)
    ignores_ranges: bool = False
    asked: list[Span] = field(default_factory=list)
    open: set[Reply] = field(default_factory=set)

    async def step(self) -> None:
        await asyncio.sleep(0)
        match self.steps.pop(0) if self.steps else "work":
            case "fail":
                raise TryAgain("the connection broke")
            case "slow":
                for _ in range(5):
                    await asyncio.sleep(0)

    async def ask(self, key: str, span: Span) -> RangeReply | None:
        self.asked.append(span)
        await self.step()
        if span.start >= len(OBJECT):
            return None
        reply = Reply(self, 0 if self.ignores_ranges else span.start)
        self.open.add(reply)
        stop = len(OBJECT) if self.ignores_ranges else min(span.start + span.length, len(OBJECT))
        return RangeReply(reply, reply.at, stop)


class Reply:
    def __init__(self, server: Server, at: int) -> None:
        self.server, self.at = server, at

    async def readinto(self, buffer: memoryview) -> None:
        assert self in self.server.open, "nobody reads from a reply that has ended"
        await self.server.step()
        buffer[:] = OBJECT[self.at : self.at + len(buffer)]
        self.at += len(buffer)

    def close(self) -> None:
        self.server.open.discard(self)


def run(server: Server, act: Callable[[LongReads], Awaitable[None]], *, connections_max: int = 8) -> None:
    async def scenario() -> None:
        reads = LongReads(server.ask, BufferPool(), connections_max=connections_max)
        await act(reads)
        reads.close()
        assert not server.open

    asyncio.run(scenario())


def spans(start: int, *lengths: int) -> list[Span]:
    """Return reads of these lengths, each with the hint of all that follow it."""
    rest, found = sum(lengths), []
    for length in lengths:
        rest -= length
        found.append(Span(start, length, follows=rest))
        start += length
    return found


def bytes_of(span: Span) -> bytes:
    return OBJECT[span.start : span.start + span.length]


reading = st.tuples(
    st.integers(0, len(OBJECT) + 50), st.lists(st.integers(1, 300), min_size=1, max_size=5)
).map(lambda drawn: spans(drawn[0], *drawn[1]))


@settings(max_examples=300 if CAMPAIGN else 20)
@given(
    st.lists(reading, min_size=1, max_size=3),
    st.lists(st.sampled_from(["work", "work", "slow", "fail"]), max_size=20),
    st.sets(st.integers(0, 14)),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_each_read_gets_its_own_bytes_whatever_happens_to_others(readers, steps, cancelled, ignores, random):
    wanted = [span for reader in readers for span in reader]

    async def act(reads: LongReads) -> None:
        tasks = [asyncio.create_task(reads.get("key", span)) for span in wanted]
        for number, task in enumerate(tasks):
            if number in cancelled:
                for _ in range(random.randrange(8)):
                    await asyncio.sleep(0)
                task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        for span, data in zip(wanted, found, strict=True):
            if not isinstance(data, TryAgain | asyncio.CancelledError):
                assert data == bytes_of(span)
        await asyncio.sleep(0.001)
        assert not server.open, "only a reply that somebody reads is open for longer than it may be idle"

    server = Server(steps, ignores_ranges=ignores)
    with patch.object(long_reads, "IDLE_SECONDS", 0.0):
        run(server, act)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_reader_that_says_what_follows_sends_one_request(at_once: bool) -> None:
    server, wanted = Server(), spans(10, 20, 30, 5)

    async def act(reads: LongReads) -> None:
        if at_once:
            found = list(await asyncio.gather(*(reads.get("key", span) for span in wanted)))
        else:
            found = [await reads.get("key", span) for span in wanted]
        assert found == [bytes_of(span) for span in wanted]
        assert not server.open, "a reply that is used up is closed at once"

    run(server, act)

    assert server.asked == [Span(10, 55)]


def test_every_read_either_sends_a_request_or_is_counted_as_shared() -> None:
    server, wanted = Server([*["work"] * 4, "fail"]), [*spans(0, 10, 10, 10, 10), Span(5, 3)]

    class Store(MemoryStore):
        async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
            assert isinstance(span, Span)
            return await reads.get(key, span)

    metered = MeteredStore(Store())

    async def act(given: LongReads) -> None:
        nonlocal reads
        reads = given
        await asyncio.gather(*(metered.get("key", span) for span in wanted), return_exceptions=True)

    reads: Any = None
    run(server, act)

    found = metered.metrics
    assert 1 < len(server.asked) < len(wanted)
    assert found.reads_shared + len(server.asked) == found.requests["get"] == len(wanted)


def test_a_read_that_fails_costs_the_others_a_request_each_and_no_byte() -> None:
    server, wanted = Server(["work", "fail"]), spans(0, 10, 10, 10)

    async def act(reads: LongReads) -> None:
        first, *others = await asyncio.gather(
            *(reads.get("key", span) for span in wanted), return_exceptions=True
        )
        assert isinstance(first, TryAgain)
        assert others == [bytes_of(span) for span in wanted[1:]]

    run(server, act)

    assert server.asked == [Span(0, 30), Span(10, 10), Span(20, 10)]


def test_replies_that_nobody_reads_are_few_and_end_soon() -> None:
    server = Server()

    async def act(reads: LongReads) -> None:
        for key in "abcdef":
            await reads.get(key, Span(0, 10, follows=10))
        assert len(server.open) == 2
        async with asyncio.timeout(60):
            while server.open:  # noqa: ASYNC110 - the end of a reply sets no event
                await asyncio.sleep(0.01)
        assert await reads.get("f", Span(10, 10)) == OBJECT[10:20]

    with patch.object(long_reads, "IDLE_SECONDS", 1.0):  # longer than the six reads take on any machine
        run(server, act, connections_max=4)

    assert len(server.asked) == 7


def test_a_read_that_is_cancelled_while_it_waits_ends_the_reply_behind_the_one_before() -> None:
    server, wanted = Server(), spans(0, 10, 10, 10)

    async def act(reads: LongReads) -> None:
        first, second, third = [asyncio.create_task(reads.get("key", span)) for span in wanted]
        await asyncio.sleep(0)
        second.cancel()
        assert (await first, await third) == (bytes_of(wanted[0]), bytes_of(wanted[2]))
        assert not server.open

    run(server, act)

    assert server.asked == [Span(0, 30), Span(20, 10)]


def test_a_reader_that_stops_leaves_no_reply_open() -> None:
    server = Server()

    async def act(reads: LongReads) -> None:
        first, *waiting = [asyncio.create_task(reads.get("key", span)) for span in spans(0, 10, 10, 10)]
        await first
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not server.open

    run(server, act)
