"""The base of the queue clauses: the place of a test, its queue, and messages with numbers for bodies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

import pytest
from offload_queue.backing_queue import BackingQueue, QueueDelivery

from offload_conformance.asynchronous import Asynchronous, Run


class QueueClauses(Asynchronous, ABC):
    """The place of a test, and its queue."""

    layer: ClassVar[str] = "queue"

    many: ClassVar[int] = 2000
    """More messages than the queue keeps in one unit: a segment, a page, a run."""

    is_durable: ClassVar[bool] = True
    """False for a queue that ends with its process. `end_process` is then not called."""

    keeps_all_in_memory: ClassVar[bool] = False
    """True for a queue whose bodies have no other place, so that a RAM target means nothing to it."""

    folder: Path
    """A folder that does not exist yet, in a temporary folder of the test's own."""

    name: str
    """A unique name."""

    @abstractmethod
    async def open_queue(self) -> BackingQueue:
        """Return the queue of this test's place. It is empty at first, and keeps its messages when closed."""

    @abstractmethod
    async def end_process(self) -> None:
        """Lose the open queue as a killed process does: nothing is closed, what is not durable is gone."""

    async def close_place(self) -> None:
        """Close what the place has besides its queue, at the end of a test. Optional."""

    async def settle(self, queue: BackingQueue) -> None:
        """Let the queue move messages to where deep ones lie, as far as it does so in time. Optional."""

    @pytest.fixture(autouse=True)
    def _fresh_place(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "place"
        self.name = f"conformance-{uuid4()}"

    @pytest.fixture
    def queue(self, run: Run) -> Iterator[BackingQueue]:
        """Return the queue of the test, empty. The last one that was opened is closed after the test."""
        self.opened = run(self.open_queue())
        yield self.opened
        run(self.opened.aclose())
        run(self.close_place())

    async def again(self, *, is_killed: bool = False) -> BackingQueue:
        """Close the queue, or end its process, and open it again."""
        await (self.end_process() if is_killed else self.opened.aclose())
        self.opened = await self.open_queue()
        return self.opened

    async def page_out(self, queue: BackingQueue) -> None:
        """Move all bodies out of memory, and as deep as they go."""
        queue.set_ram_target(0)
        await self.settle(queue)


def numbered(first: int, count: int) -> list[bytes]:
    """Return bodies with the numbers from `first` on."""
    return [b"%d" % number for number in range(first, first + count)]


def marked(found: Sequence[QueueDelivery]) -> list[tuple[int, bool]]:
    """Return the number in each body, and whether it is redelivered."""
    return [(int(bytes(each.body)), each.redelivered) for each in found]


def tags_of(found: Sequence[QueueDelivery]) -> list[int]:
    """Return the tags of deliveries."""
    return [each.tag for each in found]
