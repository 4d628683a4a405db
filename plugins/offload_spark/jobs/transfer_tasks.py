"""The tasks of a transfer. They get only small plain values, and open tiers and sources themselves.

Invariant: a task that is tried again uploads under attempts of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from offload.model.attempt import Leftover, Receipt
from offload.upkeep.copy.transfer import AnnouncedRange, Reach, UncheckedRange, agreed, read_back, upload
from offload_spark.opening import TierAddress

TASK_SIZE_BYTES_MIN: Final = 4 * 1024 * 1024
TASK_SIZE_BYTES_MAX: Final = 256 * 1024 * 1024
"""The bounds of a task's size. Small items share a task up to the size at which every slot is busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The two ends of a transfer: the origin that tasks read, and the tier that they write."""

    reach: Reach
    target: TierAddress
    read_back: bool = False
    """True: tasks read their uploads back before the commit."""

    def upload(self, ranges: Sequence[AnnouncedRange]) -> list[Receipt]:
        """Upload a task's ranges, each under the attempt that was announced for it."""
        from pyspark import TaskContext

        context = TaskContext.get()
        tries = context.attemptNumber() if context is not None else 0

        async def work() -> list[Receipt]:
            receipts = await upload(tier.offloader, self.reach, ranges, is_first=not tries)
            if self.read_back:
                await read_back(tier.offloader, receipts)
            return receipts

        with self.target.opened() as tier:
            return tier.run(work())

    def check(self, left: Sequence[UncheckedRange]) -> list[Leftover]:
        """Return the sound ones of these uploads of an earlier run. Runs in a task."""

        async def work() -> list[Leftover]:
            async with self.reach.opened() as fetch:
                return [each for one in left for each in await agreed(tier.offloader, fetch, one)]

        with self.target.opened() as tier:
            return tier.run(work())


class HasSize(Protocol):
    """An item with a size, which is its cost for a task."""

    @property
    def size_bytes(self) -> int:
        """The approximate size; 0 if it is unknown."""


Sized = TypeVar("Sized", bound=HasSize)


def tasks_of(items: Sequence[Sized], slots: int) -> Iterator[list[Sized]]:
    """Yield tasks of items in order, small ones together. An item of unknown size is a task of its own."""
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
