"""Queues with one mistake each, and the clause of the layer `queue` that finds it.

A suite that passes everything proves nothing. The sound queue passes every clause, also with its fixtures
called by hand as here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from copy import copy
from itertools import count as numbers
from typing import Any, Final

import pytest
from offload_conformance.asynchronous import Loop
from offload_conformance.clauses import clauses_of
from offload_conformance.queues import QueueBackend
from offload_queue import MessageProperties, PublishedMessages, QueueDelivery, QueueRates
from offload_queue.backing_queue import BackingQueue, HeldMessage
from offload_queue.memory_queue import MemoryPlace, MemoryQueue

from offload.ground.errors import OffloadError

BREACHES: Final = (AssertionError, pytest.fail.Exception, OffloadError, asyncio.CancelledError, KeyError)
MODEL: Final = "any_calls_answer_as_a_list_would"
BUGS: Final[dict[str, type[MemoryQueue]]] = {}
CLAUSES: Final[dict[str, str]] = {}


def found_by(clause: str) -> Callable[[type[MemoryQueue]], type[MemoryQueue]]:
    """Register a queue with a mistake that this clause finds."""

    def register(bug: type[MemoryQueue]) -> type[MemoryQueue]:
        BUGS[bug.__name__], CLAUSES[bug.__name__] = bug, clause
        return bug

    return register


class Tried(QueueBackend):
    """The suite on one class of queues in memory."""

    def __init__(self, kind: type[MemoryQueue]) -> None:
        self.kind, self.place = kind, MemoryPlace()
        self.keeps_all_in_memory = kind is not IgnoresTheTarget  # type: ignore[misc]

    async def open_queue(self) -> BackingQueue:
        return self.kind(self.place)

    async def end_process(self) -> None:
        self.place = copy(self.place)
        self.place.messages = dict(self.place.messages)


def fails(kind: type[MemoryQueue], clause: str) -> bool:
    """Call a clause with each of its parameters, and return whether one of the calls fails."""
    test = getattr(QueueBackend, f"test_{clause}")
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    cases = [{mark.args[0]: value} for mark in marks for value in mark.args[1]] or [{}]
    return any(_fails(kind, test, case) for case in cases)


def _fails(kind: type[MemoryQueue], test: Callable[..., None], case: dict[str, Any]) -> bool:
    loop, tried = Loop(1.0 if kind in HANGING else 20.0), Tried(kind)
    opened: Iterator[BackingQueue] = inspect.unwrap(QueueBackend.queue)(tried, loop.run)  # type: ignore[arg-type]
    try:
        test(tried, loop.run, next(opened), **case)
    except BREACHES:
        return True
    finally:
        loop.close()
    return False


@found_by("the_first_in_is_the_first_out")
class LastInFirstOut(MemoryQueue):
    """A stack."""

    async def fetch(self, count: int = 1, *, ack_required: bool = True) -> Sequence[QueueDelivery]:
        self._ready.sort(reverse=True)
        tags = [self._ready.pop(0) for _ in range(min(count, len(self._ready)))]
        found = self._deliveries(tags)
        self._ready.sort()
        self._unacked.update(tags)
        if not ack_required:
            self._forget(tags)
        return found


@found_by("the_first_in_is_the_first_out")
class OneTooMany(MemoryQueue):
    """A prefetch of one that is not counted."""

    async def fetch(self, count: int = 1, *, ack_required: bool = True) -> Sequence[QueueDelivery]:
        return await super().fetch(count + 1, ack_required=ack_required)


@found_by("the_first_in_is_the_first_out")
class RatesOfNothing(MemoryQueue):
    """Rates that nobody counts."""

    def rates(self) -> QueueRates:
        return QueueRates(0, 0, 0)


@found_by("the_first_in_is_the_first_out")
class DepthOfReadyMessages(MemoryQueue):
    """A depth without the unacknowledged messages."""

    async def depth(self) -> int:
        return await self.length()


@found_by("properties_and_bodies_come_back")
class ForgetsHeaders(MemoryQueue):
    """A reopened queue has the properties that it looks at, and no others."""

    def __init__(self, place: MemoryPlace) -> None:
        super().__init__(place)
        for tag, (body, facts) in place.messages.items():
            place.messages[tag] = body, facts._replace(headers=b"")


@found_by("properties_and_bodies_come_back")
class PagedOutForGood(MemoryQueue):
    """A body that left memory is read from nowhere."""

    def set_ram_target(self, size_bytes: int | None) -> None:
        if size_bytes == 0:
            for tag, (_, facts) in self._kept().messages.items():
                self._place.messages[tag] = b"0", facts


@found_by("delivered_messages_are_unacknowledged")
class DeliversTwice(MemoryQueue):
    """Messages that a consumer has already are ready."""

    async def put(
        self,
        bodies: Sequence[bytes],
        *,
        properties: Sequence[MessageProperties] | None = None,
        delivered: bool = False,
    ) -> PublishedMessages:
        return await super().put(bodies, properties=properties)


@found_by("delivered_messages_are_unacknowledged")
class DeliveredBeforeOthers(MemoryQueue):
    """Messages overtake those that are ready."""

    async def put(
        self,
        bodies: Sequence[bytes],
        *,
        properties: Sequence[MessageProperties] | None = None,
        delivered: bool = False,
    ) -> PublishedMessages:
        ready, self._ready = self._ready, []
        found = await super().put(bodies, properties=properties, delivered=delivered)
        self._ready[:0] = ready
        return found


@found_by("dropped_messages_may_come_back")
class DropsForGood(MemoryQueue):
    """`drop` forgets, whatever it is asked for."""

    async def drop(self, count: int = 1, *, ack_required: bool = False) -> Sequence[int]:
        return await super().drop(count)


@found_by("unknown_tags_are_skipped")
class AcksReadyMessages(MemoryQueue):
    """An acknowledgement of a message that nobody has."""

    async def ack(self, tags: Sequence[int]) -> Sequence[int]:
        found = [tag for tag in dict.fromkeys(tags) if tag in self._kept().messages]
        self._ready = [tag for tag in self._ready if tag not in found]
        self._forget(found)
        return found


@found_by("unknown_tags_are_skipped")
class SortedAnswers(MemoryQueue):
    """The tags of an answer in an order of its own."""

    async def ack(self, tags: Sequence[int]) -> Sequence[int]:
        return sorted(await super().ack(tags))


@found_by("unknown_tags_are_skipped")
class AnswersTheQuestion(MemoryQueue):
    """All given tags are called requeued."""

    async def requeue(self, tags: Sequence[int]) -> Sequence[int]:
        await super().requeue(tags)
        return tags


@found_by("a_requeue_restores_the_place")
class RequeuesAtTheEnd(MemoryQueue):
    """A requeue is one more publish."""

    async def requeue(self, tags: Sequence[int]) -> Sequence[int]:
        found = self._taken(tags)
        kept = [self._kept().messages[tag] for tag in found]
        self._forget(found)
        await self.put([body for body, _ in kept], properties=[facts for _, facts in kept])
        return found


@found_by("a_requeue_restores_the_place")
class RequeuesInSecret(MemoryQueue):
    """A requeued message looks as if it were new."""

    async def fetch(self, count: int = 1, *, ack_required: bool = True) -> Sequence[QueueDelivery]:
        found = await super().fetch(count, ack_required=ack_required)
        return [each._replace(redelivered=False) for each in found]


@found_by("fold_shows_all_and_changes_nothing")
class FoldsReadyMessages(MemoryQueue):
    """A fold leaves out what consumers have."""

    async def fold(self) -> AsyncGenerator[HeldMessage, None]:
        async for each in super().fold():
            if not each.is_unacked:
                yield each


@found_by("fold_shows_all_and_changes_nothing")
class FoldsByTaking(MemoryQueue):
    """A fold is a fetch, and a requeue when it is over."""

    async def fold(self) -> AsyncGenerator[HeldMessage, None]:
        held = [each async for each in super().fold()]
        taken = await self.fetch(len(held))
        for each in held:
            yield each
        await self.requeue([each.tag for each in taken])


@found_by("while_stops_at_the_first_survivor")
class DropsTheSurvivor(MemoryQueue):
    """The first that stays does not stay."""

    async def dropwhile(self, condition: Callable[[MessageProperties], bool]) -> MessageProperties | None:
        survivor = await super().dropwhile(condition)
        await self.drop()
        return survivor


@found_by("while_stops_at_the_first_survivor")
class LooksAtAll(MemoryQueue):
    """Messages behind the first survivor are taken, too."""

    async def fetchwhile(
        self, condition: Callable[[MessageProperties], bool]
    ) -> tuple[Sequence[QueueDelivery], MessageProperties | None]:
        found = await self.fetch(len(self._ready))
        taken = [each for each in found if condition(each.properties)]
        await self.requeue([each.tag for each in found if each not in taken])
        return taken, None


@found_by("purge_leaves_what_is_unacknowledged")
class PurgesAll(MemoryQueue):
    """A purge takes what consumers have."""

    async def purge(self) -> int:
        ready = await super().purge()
        await self.purge_acks()
        return ready


@found_by("purge_leaves_what_is_unacknowledged")
class CountsTheDepth(MemoryQueue):
    """A purge counts more than it takes."""

    async def purge(self) -> int:
        depth = await self.depth()
        await super().purge()
        return depth


@found_by("a_ram_target_changes_no_message")
class IgnoresTheTarget(MemoryQueue):
    """It says that it keeps a bound, and keeps everything in memory."""

    def set_ram_target(self, size_bytes: int | None) -> None:
        """Forget it."""


@found_by("a_closed_queue_keeps_its_messages")
class ClosesWithItsConsumers(MemoryQueue):
    """What consumers have is lost when they cannot answer any more."""

    async def aclose(self) -> None:
        if not self._is_closed:
            await self.purge_acks()
        await super().aclose()


@found_by("a_closed_queue_keeps_its_messages")
class OpensAsNew(MemoryQueue):
    """A reopened queue has forgotten what was delivered."""

    def __init__(self, place: MemoryPlace) -> None:
        place.given = -1
        super().__init__(place)


@found_by("confirmed_messages_outlive_the_process")
class CrashesInSecret(MemoryQueue):
    """After a crash, only messages that are known as delivered are redelivered."""

    def __init__(self, place: MemoryPlace) -> None:
        place.is_open = False
        super().__init__(place)


@found_by("confirmed_messages_outlive_the_process")
class CountsFromTheStart(MemoryQueue):
    """Tags are used again after a crash."""

    def __init__(self, place: MemoryPlace) -> None:
        place.tags = numbers(100_000 - 10 * len(place.messages))
        super().__init__(place)


@found_by("a_deleted_queue_leaves_nothing")
class DeletesItsName(MemoryQueue):
    """A deleted queue is found again."""

    async def delete(self) -> None:
        await self.aclose()


@found_by("a_closed_queue_refuses_every_call")
class AnswersWhenClosed(MemoryQueue):
    """A closed queue counts what it had."""

    async def depth(self) -> int:
        return len(self._place.messages)


class _Shared(MemoryQueue):
    """Puts of one turn of the event loop share a confirm."""

    waiting: asyncio.Future[None] | None = None

    async def put(
        self,
        bodies: Sequence[bytes],
        *,
        properties: Sequence[MessageProperties] | None = None,
        delivered: bool = False,
    ) -> PublishedMessages:
        found = await super().put(bodies, properties=properties, delivered=delivered)
        if self.waiting is None or self.waiting.done():
            loop = asyncio.get_running_loop()
            self.waiting = loop.create_future()
            loop.call_later(0.01, self.confirm, self.waiting)
        return PublishedMessages(found.tags, self.waiting)

    def confirm(self, waiting: asyncio.Future[None]) -> None:
        if not waiting.done():
            waiting.set_result(None)


@found_by("every_put_is_confirmed")
class OneConfirmForAll(_Shared):
    """A caller that is cancelled cancels the confirm of the others."""


@found_by("every_put_is_confirmed")
class ConfirmsWhatStays(MemoryQueue):
    """A message that is gone before it is durable is never confirmed."""

    async def put(
        self,
        bodies: Sequence[bytes],
        *,
        properties: Sequence[MessageProperties] | None = None,
        delivered: bool = False,
    ) -> PublishedMessages:
        found = await super().put(bodies, properties=properties, delivered=delivered)
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def confirm() -> None:
            if not waiting.done() and all(tag in self._place.messages for tag in found.tags):
                waiting.set_result(None)

        asyncio.get_running_loop().call_later(0.01, confirm)
        return PublishedMessages(found.tags, waiting)


@found_by(MODEL)
class LosesLargeHeaders(MemoryQueue):
    """Sixteen bytes of headers fit into a slot."""

    async def put(
        self,
        bodies: Sequence[bytes],
        *,
        properties: Sequence[MessageProperties] | None = None,
        delivered: bool = False,
    ) -> PublishedMessages:
        facts = [each._replace(headers=each.headers[:16]) for each in properties or ()]
        return await super().put(bodies, properties=facts or properties, delivered=delivered)


HANGING: Final = (IgnoresTheTarget, ConfirmsWhatStays)
"""Their clause waits until its deadline."""


def test_the_sound_queue_passes_every_clause() -> None:
    names = [clause.id.partition("/")[2] for clause in clauses_of(QueueBackend)]

    assert len(names) > 15
    assert [name for name in names if fails(MemoryQueue, name)] == []


def test_every_clause_finds_a_bug() -> None:
    assert {*CLAUSES.values()} == {clause.id.partition("/")[2] for clause in clauses_of(QueueBackend)}


@pytest.mark.parametrize("name", BUGS)
def test_a_clause_finds_the_bug(name: str) -> None:
    assert fails(BUGS[name], CLAUSES[name])
