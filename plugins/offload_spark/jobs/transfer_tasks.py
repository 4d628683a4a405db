"""What the tasks of a transfer do, and what they are given: nothing that is open, and little that is large.

Invariant: a task that is tried again uploads under attempts of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from offload.blocking import Blocking
from offload.model.attempt import Leftover, Receipt
from offload.upkeep.copy.transfer import AnnouncedPart, Reach, UncheckedPart, agreed, read_back, upload

TASK_SIZE_BYTES_MIN: Final = 4 * 1024 * 1024
TASK_SIZE_BYTES_MAX: Final = 256 * 1024 * 1024
"""What is small shares a task up to this, or up to as little as keeps every slot of Spark's busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Where tasks read and write."""

    reach: Reach
    url: str
    options: Mapping[str, Any]
    read_back: bool = False
    """Whether tasks read what they uploaded once more before it is named."""

    def upload(self, parts: Sequence[AnnouncedPart]) -> list[Receipt]:
        """A task: its parts, each under the attempt that was announced for it."""
        from pyspark import TaskContext

        context = TaskContext.get()
        tries = context.attemptNumber() if context is not None else 0

        async def work() -> list[Receipt]:
            receipts = await upload(tier.offloader, self.reach, parts, is_first=not tries)
            if self.read_back:
                await read_back(tier.offloader, receipts)
            return receipts

        with Blocking(self.url, storage_options=dict(self.options)) as tier:
            return tier.run(work())

    def check(self, left: Sequence[UncheckedPart]) -> list[Leftover]:
        """A task: what holds of what an earlier run uploaded."""

        async def work() -> list[Leftover]:
            async with self.reach.opened() as fetch:
                return [each for one in left for each in await agreed(tier.offloader, fetch, one)]

        with Blocking(self.url, storage_options=dict(self.options)) as tier:
            return tier.run(work())


class HasSize(Protocol):
    """What costs a task something."""

    @property
    def size_bytes(self) -> int:
        """About how many; 0 where nobody knows."""


Sized = TypeVar("Sized", bound=HasSize)


def tasks_of(items: Sequence[Sized], slots: int) -> Iterator[list[Sized]]:
    """Items in their order, small ones together. One whose size nobody knows is a task of its own."""
    share = sum(item.size_bytes for item in items) // slots
    size_bytes = min(max(share, TASK_SIZE_BYTES_MIN), TASK_SIZE_BYTES_MAX)
    task: list[Sized] = []
    weight = 0
    for item in items:
        cost = item.size_bytes or size_bytes
        if task and weight + cost > size_bytes:
            yield task
            task, weight = [], 0
        task.append(item)
        weight += cost
    if task:
        yield task
