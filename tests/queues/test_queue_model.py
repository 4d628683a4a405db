"""Random histories of a vhost with two queues, compared with lists.

Processes are killed, another machine takes the vhost, the tier is away. After each rule, the places, the
counts and the lists agree.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from campaign import CAMPAIGN
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from offload_queue.backing_queue import MessageProperties, QueueDelivery
from offload_queue.variable_queue import VariableQueue, put_into, records_of
from queue_world import QueueWorld, Vhost

from offload.ground.errors import Fenced, OffloadError

NAMES = ("a", "b")
names = st.sampled_from(NAMES)


@dataclass
class Model:
    """A queue as a list of bodies in order, none of which occurs twice."""

    ready: list[bytes] = field(default_factory=list)
    unacked: dict[bytes, int] = field(default_factory=dict)
    """Bodies with their tags."""
    delivered: set[bytes] = field(default_factory=set)
    gone: set[bytes] = field(default_factory=set)
    """Acknowledged ones. A takeover may bring them back."""
    for_good: set[bytes] = field(default_factory=set)
    """Those of them that a crash does not bring back: the log has the acknowledgement."""

    def all(self) -> list[bytes]:
        return sorted([*self.ready, *self.unacked])


class QueueMachine(RuleBasedStateMachine):
    """One vhost. Bodies are numbers, so the order of bodies is the order of publishing."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.world = QueueWorld(folder=self.folder)
        self.models = {name: Model() for name in NAMES}
        self.on_tier = dict.fromkeys(NAMES, frozenset[bytes]())
        self.published = 0
        self.is_away = False
        self.vhost: Vhost

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def queue(self, name: str) -> VariableQueue:
        found: VariableQueue = self.run(self.vhost.queue(name))
        return found

    @initialize()
    def begin(self) -> None:
        self.run(self.world.begin())
        self.vhost = self.run(self.world.open())

    @rule(
        to=st.sets(names, min_size=1),
        count=st.integers(1, 8),
        size=st.sampled_from([0, 50, 5000]),
        expires=st.booleans(),
        confirmed=st.booleans(),
    )
    def publish(self, to: set[str], count: int, size: int, expires: bool, confirmed: bool) -> None:
        bodies = [b"%08d" % (self.published + each) + bytes(size) for each in range(count)]
        self.published += count
        queues = [self.queue(name) for name in sorted(to)]
        properties = [MessageProperties(1000 if expires else 0, 3, b"h" * (size % 7))] * count

        async def publish() -> None:
            numbers = [each.stored.number for each in queues]
            put = put_into(self.vhost.store, queues, records_of([], bodies, properties, numbers), tier=None)
            if confirmed:
                await put.confirmed

        self.run(publish())
        for name in to:
            self.models[name].ready += bodies

    @rule(name=names, count=st.integers(1, 12), ack=st.booleans(), drop=st.booleans())
    def fetch(self, name: str, count: int, ack: bool, drop: bool) -> None:
        model, queue = self.models[name], self.queue(name)
        expected = model.ready[:count]
        try:
            found: list[QueueDelivery] = [] if drop else self.run(queue.fetch(count, ack_required=not ack))
            dropped = self.run(queue.drop(count, ack_required=not ack)) if drop else []
        except OffloadError:
            assert self.is_away
            assert queue.stored.places.runs
            return
        model.ready = model.ready[count:]
        tags = dropped if drop else [each.tag for each in found]
        if not drop:
            assert [each.body for each in found] == expected
            assert {each.body for each in found if not each.redelivered}.isdisjoint(model.delivered)
        assert len(tags) == len(expected)
        model.delivered.update(expected)
        if ack:
            model.gone.update(expected)
        else:
            model.unacked.update(zip(expected, tags, strict=True))

    @rule(name=names, data=st.data(), again=st.booleans())
    def acknowledge(self, name: str, data: st.DataObject, again: bool) -> None:
        model = self.models[name]
        chosen = (
            data.draw(st.lists(st.sampled_from(sorted(model.unacked)), unique=True)) if model.unacked else []
        )
        tags = [model.unacked.pop(body) for body in chosen]
        assert list(self.run(self.queue(name).ack([*tags, 2**40]))) == tags
        assert not again or list(self.run(self.queue(name).ack(tags))) == []
        model.gone.update(chosen)

    @rule(name=names, data=st.data())
    def requeue(self, name: str, data: st.DataObject) -> None:
        model = self.models[name]
        chosen = (
            data.draw(st.lists(st.sampled_from(sorted(model.unacked)), unique=True)) if model.unacked else []
        )
        tags = [model.unacked.pop(body) for body in chosen]
        assert list(self.run(self.queue(name).requeue([2**40, *tags]))) == tags
        model.ready = sorted([*model.ready, *chosen])

    @rule(name=names, acks=st.booleans())
    def purge(self, name: str, acks: bool) -> None:
        model, queue = self.models[name], self.queue(name)
        if acks:
            assert self.run(queue.purge_acks()) == len(model.unacked)
            model.gone.update(model.unacked)
            model.unacked = {}
        else:
            assert self.run(queue.purge()) == len(model.ready)
            model.gone.update(model.ready)
            model.ready = []

    @rule(name=names)
    @precondition(lambda self: not self.is_away)
    def expire(self, name: str) -> None:
        """Messages that expire go from the head, up to the first that does not."""
        model, queue = self.models[name], self.queue(name)
        left: MessageProperties | None = self.run(queue.expire(2000))
        assert (left is None) == (self.run(queue.length()) == 0)
        assert left is None or left.expires_ms == 0
        count = len(model.ready) - self.run(queue.length())
        model.gone.update(model.ready[:count])
        model.ready = model.ready[count:]

    @rule(name=names)
    def forget_bodies(self, name: str) -> None:
        self.queue(name).set_ram_target(0)
        assert self.queue(name).ram_size_bytes == 0
        self.queue(name).set_ram_target(None)

    @rule()
    def page(self) -> None:
        try:
            self.run(self.vhost.page())
        except OffloadError:
            assert self.is_away
        else:
            assert not self.is_away or not self.vhost.store.counts.live_count()
            self._note_tier()

    @rule()
    @precondition(lambda self: not self.is_away)
    def collect(self) -> None:
        while self.run(self.vhost.tier.work()):
            pass

    @rule(is_away=st.booleans())
    def tier_away(self, is_away: bool) -> None:
        self.is_away = is_away
        self.world.away(is_away)

    @rule(flush=st.booleans())
    def kill(self, flush: bool) -> None:
        if flush:
            self.run(self.vhost.store.flush())
            for model in self.models.values():
                model.for_good |= model.gone
        durable = self.run(self._survivors())
        self.run(self.world.killed(self.vhost))
        self._reopen()
        self._reconcile(dict.fromkeys(NAMES, durable))

    @rule()
    def restart(self) -> None:
        self.run(self.vhost.close())
        for model in self.models.values():
            model.ready = model.all()
            model.unacked.clear()
            model.for_good |= model.gone
        self._reopen()

    @rule()
    @precondition(lambda self: not self.is_away)
    def take_over(self) -> None:
        """Another machine has what was moved. The old owner finds out."""
        if not any(self.on_tier.values()):
            return
        old, self.vhost = self.vhost, self.run(self.world.taken_over())
        with pytest.raises(Fenced):
            self.run(_beaten(old))
        self.run(old.vanish())
        self._reconcile(self.on_tier, is_taken=True)
        self._note_tier()

    @invariant()
    def the_lists_agree(self) -> None:
        self.vhost.check()
        for name, model in self.models.items():
            queue = self.queue(name)
            assert self.run(queue.length()) == len(model.ready)
            assert self.run(queue.depth()) == len(model.ready) + len(model.unacked)

    def teardown(self) -> None:
        if hasattr(self, "vhost"):
            self.world.away(False)
            for name in NAMES:
                found = self.run(self._all(name))
                assert found == self.models[name].all()
            self.run(self.vhost.vanish())
        self.runner.close()
        shutil.rmtree(self.folder)

    async def _all(self, name: str) -> list[bytes]:
        queue = await self.vhost.queue(name)
        return [held.message.body async for held in queue.fold()]

    async def _survivors(self) -> frozenset[bytes]:
        """Return the bodies that are written at this moment."""
        await (
            self.vhost.store.flush()
        )  # a killed process may have written all, or less: then nothing is claimed
        return frozenset(body for model in self.models.values() for body in model.all())

    def _reopen(self) -> None:
        self.vhost = self.run(self.world.open())

    def _note_tier(self) -> None:
        self.on_tier = {name: frozenset(model.all()) for name, model in self.models.items()}

    def _reconcile(self, kept: dict[str, frozenset[bytes]], *, is_taken: bool = False) -> None:
        """Compare with what is there after a crash: all that is kept, in order, and nothing unknown."""
        if self.is_away:
            self.world.away(False)
        for name, model in self.models.items():
            found = self.run(self._all(name))
            known = model.all()
            assert found == sorted(set(found))
            assert set(found) <= set(known) | model.gone - (set() if is_taken else model.for_good)
            assert set(found) >= set(known) & kept[name]
            model.ready, model.unacked = found, {}
            model.gone = (model.gone | set(known)) - set(found)
            model.for_good &= model.gone
            model.delivered.update(found)  # False is a promise that the new process cannot make
        self.world.away(self.is_away)


async def _beaten(old: Vhost) -> None:
    """Let an old owner go on until it must find out."""
    queue = await old.queue("a")
    await queue.publish([b"late"])
    await old.page()


QueueMachine.TestCase.settings = settings(
    max_examples=1000 if CAMPAIGN else 25, stateful_step_count=60 if CAMPAIGN else 40, deadline=None
)
TestQueueModel = QueueMachine.TestCase
