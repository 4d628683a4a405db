"""The cases of RabbitMQ's `backing_queue_SUITE`, and what the contract of a queue promises besides.

Each clause names its cases, without their prefix `variable_queue_`. A case on the files of a store or of an
index has no subject here, such as the deletion of a segment: what it asks of messages is asked of every
queue.
"""

from __future__ import annotations

import asyncio

import pytest
from offload_queue.backing_queue import BackingQueue, MessageProperties

from offload.ground.errors import Misuse
from offload_conformance.asynchronous import Run
from offload_conformance.clauses import since
from offload_conformance.queues.base import QueueClauses, marked, numbered, tags_of
from offload_conformance.raising import raises

EXPIRING = [MessageProperties(expires_ms=number) for number in range(10)]
PROPERTIES = (MessageProperties(), MessageProperties(2**53, 0, b"\x00\xff" * 300), MessageProperties(12345))
BODIES = (b"", b"\x00", b"x" * 2**20)
TAKES_TAGS = ("ack", "requeue", "ackfold")
CALLS = (*TAKES_TAGS, "fetch", "drop", "purge", "purge_acks", "length", "depth", "flush")
SECONDS_MAX = 20.0
"""How long a queue may take to move bodies out of memory."""


class CaseClauses(QueueClauses):
    """One clause for each case, or for a few that ask the same."""

    @since("0.4")
    def test_the_first_in_is_the_first_out(self, run: Run, queue: BackingQueue) -> None:
        """Messages come in the order of their tags, which rise, and none comes twice (`batch_publish`)."""
        assert [*queue.rates()] == [0, 0, 0]
        first, second = run(queue.put(numbered(0, 7))), run(queue.put(numbered(7, 3)))
        assert [run(queue.length()), run(queue.depth())] == [10, 10]

        found = [*run(queue.fetch(4))]
        assert len(found) == 4
        found += run(queue.fetch(100))

        assert marked(found) == [(number, False) for number in range(10)]
        assert tags_of(found) == [*first.tags, *second.tags] == sorted({*first.tags, *second.tags})
        assert [*run(queue.fetch()), *run(queue.fetch(0)), *run(queue.drop())] == []
        assert [run(queue.length()), run(queue.depth())] == [0, 10]
        assert [each > 0 for each in queue.rates()] == [True, True, False]

    @since("0.4")
    def test_properties_and_bodies_come_back(self, run: Run, queue: BackingQueue) -> None:
        """Bodies and properties come back as they were, also paged out (`bq_queue_index_props`)."""
        run(queue.publish(BODIES, properties=PROPERTIES))
        run(self.page_out(queue))

        found = run(run(self.again()).fetch(3))

        assert [each.properties for each in found] == [*PROPERTIES]
        assert [bytes(each.body) for each in found] == [*BODIES]

    @since("0.4")
    def test_delivered_messages_are_unacknowledged(self, run: Run, queue: BackingQueue) -> None:
        """`put` of delivered messages leaves nothing ready (`batch_publish_delivered`)."""
        tags = run(queue.put(numbered(0, 10), delivered=True)).tags
        assert [run(queue.length()), run(queue.depth())] == [0, 10]
        assert [*run(queue.requeue(tags[:2]))] == [*tags[:2]]

        with raises(Misuse, "a delivered message for a queue that is not empty"):
            run(queue.put([b"no"], delivered=True))
        with raises(Misuse, "two bodies with one item of properties"):
            run(queue.put([b"no", b"no"], properties=[MessageProperties()]))

        assert [*run(queue.ack(tags))] == [*tags[2:]]
        run(queue.put(numbered(10, 1)))
        assert marked(run(queue.fetch(9))) == [(0, True), (1, True), (10, False)]

    @since("0.4")
    def test_dropped_messages_may_come_back(self, run: Run, queue: BackingQueue) -> None:
        """`drop` gives a tag to acknowledge or to requeue, or forgets the message (`drop`)."""
        run(queue.publish(numbered(0, 1)))
        tags = run(queue.drop(ack_required=True))
        assert run(queue.is_empty())

        assert [*run(queue.requeue(tags))] == tags
        assert [*run(queue.drop(5))] == tags

        assert run(queue.depth()) == 0
        assert [*run(queue.requeue(tags))] == []

    @since("0.4")
    def test_unknown_tags_are_skipped(self, run: Run, queue: BackingQueue) -> None:
        """Tags that are ready, gone, repeated or never given are skipped. The others keep their order."""
        a, b, c, ready, _ = run(queue.put(numbered(0, 5))).tags
        run(queue.fetch(3))
        never = [ready + 10**6, -1, 2**70]

        assert tags_of(run(queue.ackfold([c, ready, *never, a]))) == [c, a]
        assert [*run(queue.ack([c, ready, *never, a, c]))] == [c, a]
        assert [*run(queue.requeue([a, ready, b, *never, b]))] == [b]
        assert [*run(queue.ack([b]))] == []
        assert [run(queue.length()), run(queue.depth())] == [3, 3]

    @since("0.4")
    def test_a_requeue_restores_the_place(self, run: Run, queue: BackingQueue) -> None:
        """Requeued messages are where they were, before fresh ones (`requeue`, `requeue_ram_beta`)."""
        run(self.make_holes(queue))
        ready = [n for n in range(self.many + 9) if n % 3 or n >= self.many]

        assert [run(queue.length()), run(queue.depth())] == [len(ready), self.many + 9]
        assert marked(run(queue.fetch(2 * self.many))) == [(n, n < self.many) for n in ready]

    @since("0.4")
    def test_fold_shows_all_and_changes_nothing(self, run: Run, queue: BackingQueue) -> None:
        """`fold` yields all messages in order, and may be left anywhere (`fold`, `fold_msg_on_disk`)."""
        unacked = run(self.make_holes(queue))
        depth = self.many + 9

        async def folded(most: int) -> list[tuple[int, bool]]:
            found = list[tuple[int, bool]]()
            async for each in queue.fold():
                if len(found) == most:
                    break
                found.append((int(bytes(each.message.body)), each.is_unacked))
            return found

        for cut in (0, 1, 2, depth // 2, depth - 1, depth, 2 * depth):
            expected = [(n, n % 3 == 0 and n < self.many) for n in range(min(cut, depth))]
            assert run(folded(cut)) == expected
        assert [run(queue.length()), run(queue.depth())] == [depth - len(unacked), depth]
        read = marked(run(queue.ackfold(unacked[::-1])))
        assert [number for number, _ in read] == [*range(0, self.many, 3)][::-1]
        assert [*run(queue.ack(unacked))] == unacked
        assert marked(run(queue.fetch(2))) == [(1, True), (2, True)]

    @pytest.mark.parametrize("is_deep", [False, True], ids=["in memory", "paged out"])
    @since("0.4")
    def test_while_stops_at_the_first_survivor(self, run: Run, queue: BackingQueue, is_deep: bool) -> None:
        """`fetchwhile` and `dropwhile` end at a survivor (`dropfetchwhile`, `*_varying_ram_duration`)."""
        run(queue.publish(numbered(0, 10), properties=EXPIRING))
        if is_deep:
            run(self.page_out(queue))

        assert run(queue.dropwhile(lambda found: False)) == EXPIRING[0]
        found, survivor = run(queue.fetchwhile(lambda found: found.expires_ms <= 5))
        assert (marked(found), survivor) == ([(n, False) for n in range(6)], EXPIRING[6])
        run(queue.requeue(tags_of(found)))
        queue.set_ram_target(None)
        assert run(queue.expire(5)) == EXPIRING[0], "a message without a time never expires"
        assert [*run(queue.drop())] == tags_of(found[:1])
        assert run(queue.expire(5)) == EXPIRING[6]
        assert marked(run(queue.fetch(2))) == [(6, False), (7, False)]
        assert run(queue.dropwhile(lambda found: True)) is None
        assert [*run(queue.fetchwhile(lambda found: True))] == [[], None]
        assert run(queue.depth()) == 2

    @since("0.4")
    def test_purge_leaves_what_is_unacknowledged(self, run: Run, queue: BackingQueue) -> None:
        """`purge` drops ready messages, and `purge_acks` the unacknowledged ones (`purge`)."""
        run(queue.publish(numbered(0, 10)))
        tags = tags_of(run(queue.fetch(6)))

        assert run(queue.purge()) == 4
        assert [run(queue.length()), run(queue.depth())] == [0, 6]
        assert [*run(queue.requeue(tags[:2]))] == tags[:2]
        assert run(queue.purge_acks()) == 4
        assert [run(queue.length()), run(queue.depth())] == [2, 2]
        assert [*run(queue.ack(tags))] == []
        assert marked(run(queue.fetch(9))) == [(0, True), (1, True)]

    @since("0.4")
    def test_a_ram_target_changes_no_message(self, run: Run, queue: BackingQueue) -> None:
        """Bodies leave memory, and come back in order (`dynamic_duration_change`, `ack_limiting`)."""
        half, bodies = self.many // 2, numbered(0, 2 * self.many)
        run(queue.publish(bodies[: self.many]))
        assert marked(run(queue.fetch(half))) == [(n, False) for n in range(half)]
        for start, target in zip(range(0, 250, 50), (self.many, 0, 10, None, 0), strict=True):
            queue.set_ram_target(target)
            run(self.settle(queue))
            if target is not None and not self.keeps_all_in_memory:
                run(bounded(queue, target))
            run(queue.publish(bodies[self.many + start :][:50]))
            found = run(queue.fetch(50))
            assert [*run(queue.ack(tags_of(found)))] == tags_of(found)
            assert marked(found) == [(n, False) for n in range(half + start, half + start + 50)]

        left = marked(run(queue.fetch(2 * self.many)))
        assert left == [(n, False) for n in range(half + 250, self.many + 250)]

    @pytest.mark.parametrize("is_flushed", [False, True], ids=["not flushed", "flushed"])
    @since("0.4")
    def test_a_closed_queue_keeps_its_messages(self, run: Run, queue: BackingQueue, is_flushed: bool) -> None:
        """Unacknowledged messages are ready again (`all_the_bits_*`, `dropwhile_*restart`, `queue_index`)."""
        properties = [MessageProperties(expires_ms=number) for number in range(self.many)]
        run(queue.publish(numbered(0, self.many), properties=properties))
        run(self.page_out(queue))
        assert run(queue.dropwhile(lambda found: found.expires_ms < 5)) == properties[5]
        tags = tags_of(run(queue.fetch(8)))
        run(queue.ack([tags[1], tags[4]]))
        run(queue.requeue([tags[0]]))
        if is_flushed:
            run(queue.flush())

        queue = run(self.again())

        assert run(queue.length()) == run(queue.depth()) == self.many - 7
        run(queue.publish(numbered(self.many, 1)))
        found = marked(run(queue.fetch(self.many)))
        assert found == [(n, n < 13) for n in range(5, self.many + 1) if n not in (6, 9)]

    @since("0.4")
    def test_confirmed_messages_outlive_the_process(self, run: Run, queue: BackingQueue) -> None:
        """A confirmed message is there after a crash, in its order, redelivered (`bq_queue_recover`)."""
        if not self.is_durable:
            pytest.skip("the queue ends with its process")
        run(queue.publish(numbered(0, self.many)))
        run(self.page_out(queue))
        tags = tags_of(run(queue.fetch(10)))
        run(queue.ack(tags[:5]))
        run(queue.flush())

        queue = run(self.again(is_killed=True))

        assert run(queue.length()) == run(queue.depth()) == self.many - 5
        assert min(run(queue.put(numbered(self.many, 1))).tags) > max(tags)
        found = marked(run(queue.fetch(self.many)))
        assert found == [(n, n < self.many) for n in range(5, self.many + 1)]

    @since("0.4")
    def test_a_deleted_queue_leaves_nothing(self, run: Run, queue: BackingQueue) -> None:
        """A queue with large bodies is purged and deleted (`delete_msg_store_files_callback`)."""
        run(queue.publish([b"x" * 2**20] * 12))
        queue.set_ram_target(0)
        assert len(run(queue.fetch(1))[0].body) == 2**20
        assert run(queue.purge()) == 11
        run(queue.publish(numbered(0, 5)))
        run(queue.delete())

        queue = run(self.again())

        assert [run(queue.length()), run(queue.depth())] == [0, 0]

    @pytest.mark.parametrize("way", ["aclose", "delete"])
    @since("0.4")
    def test_a_closed_queue_refuses_every_call(self, run: Run, queue: BackingQueue, way: str) -> None:
        """After `aclose` and `delete`, every other method raises `Misuse`."""

        async def called(name: str) -> None:
            match name:
                case "put":
                    await queue.put([b"no"])
                case "fold":
                    await anext(queue.fold())
                case "dropwhile" | "fetchwhile":
                    await getattr(queue, name)(lambda found: True)
                case _:
                    await getattr(queue, name)(*[[0]] * (name in TAKES_TAGS))

        run(getattr(queue, way)())
        for name in (*CALLS, "put", "fold", "dropwhile", "fetchwhile"):
            with raises(Misuse, f"{name} after {way}"):
                run(called(name))
        run(getattr(queue, way)())

    @since("0.4")
    def test_every_put_is_confirmed(self, run: Run, queue: BackingQueue) -> None:
        """Confirms come for many callers, for messages that are gone, and beside a cancelled caller."""

        async def scenario() -> list[int]:
            gone = await queue.put([b"1000"])
            await queue.drop()
            callers = [asyncio.ensure_future(queue.publish(numbered(3 * n, 3))) for n in range(40)]
            await asyncio.sleep(0)
            is_cancelled = callers[7].cancel()
            answers = await asyncio.gather(*callers, return_exceptions=True)
            assert [answer for n, answer in enumerate(answers) if n != 7] == [None] * 39
            assert callers[7].cancelled() == is_cancelled
            await gone.confirmed
            return [int(bytes(each.body)) for each in await queue.fetch(200)]

        found = run(scenario())
        assert [n for n in found if n // 3 != 7] == [n for n in range(120) if n // 3 != 7]
        assert [n for n in found if n // 3 == 7] in ([], [21, 22, 23])

    async def make_holes(self, queue: BackingQueue) -> list[int]:
        """Publish `many` messages and 9 fresh ones. Requeue two of three, and return the tags of the others.

        They are requeued in four ways, while the queue is paged out: so every part of it has holes.
        """
        queue.set_ram_target(0)
        await queue.publish(numbered(0, self.many))
        await self.settle(queue)
        tags = tags_of(await queue.fetch(self.many))
        back = [tag for number, tag in enumerate(tags) if number % 3]
        head, tail = back[: len(back) // 2], back[len(back) // 2 :]
        await queue.requeue(tail[1:])
        await self.settle(queue)
        await queue.requeue(tail[:1])
        for tag in head[:20]:
            await queue.requeue([tag])
        await queue.requeue(head[:19:-1])
        queue.set_ram_target(None)
        await queue.publish(numbered(self.many, 9))
        return tags[::3]


async def bounded(queue: BackingQueue, target: int) -> None:
    """Wait until the bodies in memory are within the target."""
    loop = asyncio.get_running_loop()
    until = loop.time() + SECONDS_MAX
    while queue.ram_size_bytes > target:
        assert loop.time() < until, f"{queue.ram_size_bytes} bytes of bodies in memory, above {target}"
        await asyncio.sleep(0.01)
