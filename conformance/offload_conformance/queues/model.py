"""Random calls of a queue, drawn by Hypothesis, whose answers are compared with those of a list.

What was acknowledged and not flushed may come back after a crash. So a crash follows a flush here, and all
answers are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from offload_queue.backing_queue import BackingQueue, MessageProperties, QueueDelivery

from offload_conformance.asynchronous import Run
from offload_conformance.clauses import since
from offload_conformance.pytest_plugin import first_difference
from offload_conformance.queues.base import QueueClauses, tags_of

OFTEN = ("put", "put", "fetch", "fetch", "ack", "requeue", "requeue", "page", "look") * 2
SELDOM = ("drop", "take_while", "purge", "close", "crash")
STEPS = st.tuples(
    st.sampled_from(OFTEN + SELDOM),
    st.lists(st.integers(0, 20), min_size=1, max_size=8),  # the messages that it is about
    st.integers(0, 3),
)


@dataclass(slots=True)
class ListedMessage:
    """A message of the list."""

    tag: int
    body: bytes
    properties: MessageProperties
    is_unacked: bool = False
    is_redelivered: bool = False


@dataclass
class ListedQueue:
    """A queue, and a list that should have the same messages. Each method is a call of both."""

    clauses: QueueClauses
    queue: BackingQueue
    messages: list[ListedMessage] = field(default_factory=list)
    number: int = 0

    def rows(self, *, is_unacked: bool) -> list[ListedMessage]:
        """Return the messages of one state, in order."""
        return [each for each in self.messages if each.is_unacked == is_unacked]

    def gone(self, rows: Sequence[ListedMessage]) -> None:
        """Forget messages."""
        tags = {each.tag for each in rows}
        self.messages = [each for each in self.messages if each.tag not in tags]

    def taken(self, rows: Sequence[ListedMessage], found: Sequence[QueueDelivery]) -> None:
        """Compare deliveries with messages, which are unacknowledged from now on."""
        wanted = [(each.tag, brief(each.body), each.is_redelivered, each.properties) for each in rows]
        same([(each.tag, brief(each.body), each.redelivered, each.properties) for each in found], wanted)
        for each in rows:
            each.is_unacked = each.is_redelivered = True

    async def put(self, picks: Sequence[int], which: int) -> None:
        """Append messages, small and large ones, and perhaps wait for their confirm."""
        bodies = [b"%d" % (self.number + n) + bytes(pick % 3 * 2500) for n, pick in enumerate(picks)]
        self.number += len(bodies)
        facts = [MessageProperties(expires_ms=which, headers=b"h" * pick) for pick in picks]
        found = await self.queue.put(bodies, properties=facts)
        self.messages += map(ListedMessage, found.tags, bodies, facts)
        if which:
            await found.confirmed

    async def fetch(self, picks: Sequence[int], which: int) -> None:
        """Take messages from the head."""
        rows = self.rows(is_unacked=False)[: len(picks)]
        self.taken(rows, await self.queue.fetch(len(picks), ack_required=which > 0))
        if which == 0:
            self.gone(rows)

    async def drop(self, picks: Sequence[int], which: int) -> None:
        """Drop messages from the head."""
        count = len(picks) // 2
        rows = self.rows(is_unacked=False)[:count]
        assert [*await self.queue.drop(count)] == [each.tag for each in rows]
        self.gone(rows)

    async def ack(self, picks: Sequence[int], which: int) -> None:
        """Acknowledge messages of any state."""
        tags, rows = self.picked(picks)
        assert [*await self.queue.ack(tags)] == [each.tag for each in rows]
        self.gone(rows)

    async def requeue(self, picks: Sequence[int], which: int) -> None:
        """Requeue messages of any state, after a look at them."""
        tags, rows = self.picked(picks)
        assert tags_of(await self.queue.ackfold(tags)) == [each.tag for each in rows]
        assert [*await self.queue.requeue(tags)] == [each.tag for each in rows]
        for each in rows:
            each.is_unacked = False

    async def take_while(self, picks: Sequence[int], which: int) -> None:
        """Take or drop messages from the head while they expire early."""
        ready = self.rows(is_unacked=False)
        stop = next((n for n, each in enumerate(ready) if each.properties.expires_ms > which), len(ready))
        survivor = ready[stop].properties if stop < len(ready) else None
        if picks[0] % 2:
            found, first = await self.queue.fetchwhile(lambda found: found.expires_ms <= which)
            self.taken(ready[:stop], found)
        else:
            first = await self.queue.dropwhile(lambda found: found.expires_ms <= which)
            self.gone(ready[:stop])
        assert first == survivor

    async def purge(self, picks: Sequence[int], which: int) -> None:
        """Drop all ready messages, or all unacknowledged ones."""
        rows = self.rows(is_unacked=which > 1)
        assert await (self.queue.purge_acks() if which > 1 else self.queue.purge()) == len(rows)
        self.gone(rows)

    async def page(self, picks: Sequence[int], which: int) -> None:
        """Move bodies out of memory, or let them come back."""
        self.queue.set_ram_target((0, 0, 3000, None)[which])
        if which:
            await self.clauses.settle(self.queue)

    async def look(self, picks: Sequence[int], which: int) -> None:
        """Look at all messages, and count them."""
        found = [
            (each.message.tag, bytes(each.message.body), each.is_unacked) async for each in self.queue.fold()
        ]
        assert found == [(each.tag, each.body, each.is_unacked) for each in self.messages]
        assert await self.queue.depth() == len(self.messages)
        assert await self.queue.length() == len(self.rows(is_unacked=False))

    async def close(self, picks: Sequence[int], which: int) -> None:
        """Open the queue again. All messages are ready."""
        self.queue = await self.clauses.again()
        for each in self.messages:
            each.is_unacked = False

    async def crash(self, picks: Sequence[int], which: int) -> None:
        """End the process after a flush. Every message may have been delivered."""
        if self.clauses.is_durable:
            await self.queue.flush()
            self.queue = await self.clauses.again(is_killed=True)
            for each in self.messages:
                each.is_unacked, each.is_redelivered = False, True

    def picked(self, picks: Sequence[int]) -> tuple[list[int], list[ListedMessage]]:
        """Return tags, most of them of unacknowledged messages, and these messages, each once."""
        there = self.rows(is_unacked=True)
        others = [*self.rows(is_unacked=False)[:2], ListedMessage(10**9, b"", MessageProperties())]
        groups = [others if pick % 5 == 0 or not there else there for pick in picks]
        tags = [group[pick % len(group)].tag for group, pick in zip(groups, picks, strict=True)]
        by_tag = {each.tag: each for each in there}
        return tags, [by_tag[tag] for tag in dict.fromkeys(tags) if tag in by_tag]


def same(found: Sequence[object], wanted: Sequence[object]) -> None:
    """Fail unless two lists are the same. `assert` would explain each of many failures at length."""
    if found != wanted:
        raise AssertionError(first_difference(found, wanted))


def brief(body: bytes) -> tuple[bytes, int]:
    """Return a body of the walk, which is a number and zeros, as a short text and its size."""
    return bytes(body).rstrip(b"\0"), len(body)


class QueueModelClauses(QueueClauses):
    """All promises at once, in random sequences of calls."""

    model_examples: ClassVar[int] = 30
    """The number of sequences."""

    model_calls: ClassVar[int] = 40
    """The largest number of calls in a sequence."""

    @since("0.4")
    def test_any_calls_answer_as_a_list_would(self, run: Run, queue: BackingQueue) -> None:
        """Any calls in any order get the answers that a list of messages would give."""

        async def walk(steps: list[tuple[str, list[int], int]]) -> None:
            await self.opened.delete()
            listed = ListedQueue(self, await self.again())
            for number, (name, picks, which) in enumerate([*steps, ("look", [0], 0)]):
                try:
                    await getattr(listed, name)(picks, which)
                except Exception as error:
                    error.add_note(f"the last of these calls: {steps[:number]}, {name} {picks} {which}")
                    raise

        drawn = settings(
            max_examples=self.model_examples,
            database=None,
            report_multiple_bugs=False,
            phases=[Phase.generate],  # to shrink takes long, and a walk ends at its first wrong answer
            deadline=None,
            suppress_health_check=[*HealthCheck],
        )
        steps = st.lists(STEPS, min_size=self.model_calls // 2, max_size=self.model_calls)
        drawn(given(steps)(lambda steps: run(walk(steps))))()
