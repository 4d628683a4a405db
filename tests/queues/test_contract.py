"""The contract of queues on each queue that is here."""

from __future__ import annotations

from copy import copy
from itertools import count

from offload_conformance.queues import QueueBackend
from offload_queue.backing_queue import BackingQueue
from offload_queue.memory_queue import MemoryPlace, MemoryQueue
from offload_queue.priority_queue import PriorityQueue


class TestMemoryQueue(QueueBackend):
    """The model of the contract. Its place outlives it, so that it can be closed and lost."""

    keeps_all_in_memory = True

    async def open_queue(self) -> BackingQueue:
        self.place = getattr(self, "place", MemoryPlace())
        return MemoryQueue(self.place)

    async def end_process(self) -> None:
        self.place = copy(self.place)
        self.place.messages = dict(self.place.messages)


class TestPriorityQueue(QueueBackend):
    """Messages without a priority meet one level of ten. `test_priorities` has the others."""

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
