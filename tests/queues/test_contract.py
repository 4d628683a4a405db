"""The contract of queues on each queue that is here."""

from __future__ import annotations

import asyncio
import shutil
from copy import copy
from itertools import count

from campaign import CAMPAIGN
from offload_conformance import QueueBackend, Run
from offload_queue.backing_queue import BackingQueue
from offload_queue.memory_queue import MemoryPlace, MemoryQueue
from offload_queue.message_store import MessageStore
from offload_queue.opening import open_store
from offload_queue.priority_queue import PriorityQueue
from offload_queue.queue_tier import QueueTier
from offload_queue.queue_vhost import QueueVhost, VhostSettings
from offload_queue.variable_queue import VariableQueue

from offload import ObjectStoreOffloader
from offload.ground.env import Env
from offload.store.memory import MemoryStore

STEADY = Env(random=lambda: 0.5)
"""Hypothesis forbids the use of `random` while it draws, in tasks of the background too."""


EXAMPLES = 200 if CAMPAIGN else 10
"""The number of random walks. Each of them has up to 40 calls."""


class TestMemoryQueue(QueueBackend):
    """The model of the contract. Its place outlives it, so that it can be closed and lost."""

    model_examples = EXAMPLES
    keeps_all_in_memory = True

    async def open_queue(self) -> BackingQueue:
        self.place = getattr(self, "place", MemoryPlace())
        return MemoryQueue(self.place)

    async def end_process(self) -> None:
        self.place = copy(self.place)
        self.place.messages = dict(self.place.messages)


class TestPriorityQueue(QueueBackend):
    """Messages without a priority meet one level of ten. `test_priorities` has the others."""

    model_examples = EXAMPLES
    keeps_all_in_memory = True

    async def open_queue(self) -> BackingQueue:
        if not hasattr(self, "places"):
            tags = count()
            self.places = [MemoryPlace(tags=tags) for _ in range(10)]
        return PriorityQueue([MemoryQueue(place) for place in self.places])

    async def end_process(self) -> None:
        self.places = [copy(place) for place in self.places]
        for place in self.places:
            place.messages = dict(place.messages)


async def at_rest(store: MessageStore) -> None:
    """Wait until no thread changes the folder: a copy is of one moment."""
    while store._task is not None:  # noqa: ASYNC110 - nobody but a test waits for this
        await asyncio.sleep(0.001)


class Stored(QueueBackend):
    """A queue of a store. Its process ends as the disk is at that moment: the next one has a copy."""

    model_examples = EXAMPLES
    many = 6000
    log_size_bytes_max = 2**16

    async def open_queue(self) -> BackingQueue:
        if not hasattr(self, "objects"):
            self.objects, self.opened_stores, self.numbers = MemoryStore(), list[MessageStore](), count()
            self.store, self.side = await self.open_parts()
        return await self.of_parts()

    async def open_parts(self) -> tuple[MessageStore, QueueTier]:
        store = await open_store(self.folder, log_size_bytes_max=self.log_size_bytes_max, env=STEADY)
        side = QueueTier(
            store, ObjectStoreOffloader(self.objects, env=STEADY), "vhost", move_size_bytes=2**16
        )
        side.start()
        self.opened_stores.append(store)
        return store, side

    async def of_parts(self) -> BackingQueue:
        raise NotImplementedError

    async def end_process(self) -> None:
        await self.side.aclose()
        await at_rest(self.store)
        old, self.folder = self.folder, self.folder.with_name(f"place-{next(self.numbers)}")
        shutil.copytree(old, self.folder)
        self.store, self.side = await self.open_parts()

    async def close_place(self) -> None:
        await self.side.aclose()
        for store in self.opened_stores:
            await store.aclose()

    async def settle(self, queue: BackingQueue) -> None:
        await queue.flush()
        until = asyncio.get_running_loop().time() + 5
        while self.store.log_size_bytes > self.log_size_bytes_max * 3 // 4:
            assert asyncio.get_running_loop().time() < until, self.side.error
            await asyncio.sleep(0.001)


class TestVariableQueue(Stored):
    """One queue, whose deep messages lie on a tier."""

    def test_the_suite_meets_deep_messages(self, run: Run, queue: BackingQueue) -> None:
        run(queue.publish([b"%d" % number for number in range(self.many)]))
        run(self.page_out(queue))

        assert isinstance(queue, VariableQueue)
        assert sum(run.count for run in queue.stored.places.runs) > self.many // 4

    async def of_parts(self) -> BackingQueue:
        return VariableQueue(self.store, await self.store.declare("orders"), self.side)


class TestPriorityQueueOfAStore(Stored):
    """Two queues of one store, joined."""

    async def of_parts(self) -> BackingQueue:
        levels = [await self.store.declare(f"orders/{level}") for level in range(2)]
        return PriorityQueue([VariableQueue(self.store, each, self.side) for each in levels])


class TestDeclaredQueue(QueueBackend):
    """A queue as a program holds it, in a vhost without supervision."""

    model_examples = EXAMPLES
    many = 3000

    async def open_queue(self) -> BackingQueue:
        if not hasattr(self, "vhost"):
            self.vhost, self.numbers, self.lost = await self.started(), count(), list[QueueVhost]()
        return await self.vhost.declare("orders")

    async def started(self) -> QueueVhost:
        settings = VhostSettings(tier=None, log_size_bytes_max=2**26, on_full="refuse")
        vhost = QueueVhost("v", self.folder, settings)
        await vhost.start()
        return vhost

    async def end_process(self) -> None:
        await at_rest(self.vhost.store)
        old, self.folder = self.folder, self.folder.with_name(f"place-{next(self.numbers)}")
        shutil.copytree(old, self.folder)
        self.lost.append(self.vhost)
        self.vhost = await self.started()

    async def close_place(self) -> None:
        for vhost in (*self.lost, self.vhost):
            await vhost.aclose()
