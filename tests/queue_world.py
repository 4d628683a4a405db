"""A folder, a tier in memory, and vhosts over them whose processes end in every way, for tests of queues."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from kit.world import TierWorld
from offload_queue.log_records import StoreState
from offload_queue.message_store import MessageStore, OnFull
from offload_queue.opening import open_store
from offload_queue.queue_tier import QueueTier, take_over
from offload_queue.variable_queue import VariableQueue

from offload.ground.errors import OffloadError
from offload.log.disk import Disk
from offload.store.faults import Fault, Rule

STREAM = "vhost"
BOUND = 2**20


@dataclass
class QueueWorld(TierWorld):
    """A tier, and the folders of the machines that had the vhost, one after the other."""

    folder: Path = field(default_factory=Path)
    machines: int = 0

    async def begin(self) -> None:
        """Make the tier."""
        await self.tier().open(create=True)

    def away(self, is_away: bool) -> None:
        """Let the tier refuse every request, or answer again."""
        self.store.rules = [Rule(Fault.FAIL_BEFORE)] if is_away else []

    async def open(
        self,
        *,
        took: StoreState | None = None,
        disk: Disk | None = None,
        on_full: OnFull = "block",
        bound: int = BOUND,
        confirms: bool = False,
    ) -> Vhost:
        """Open the vhost in the newest folder."""
        store = await open_store(
            self.folder / str(self.machines), log_size_bytes_max=bound, on_full=on_full,
            begin=lambda: _soon(took), env=self.env(), disk=disk,
        )  # fmt: skip
        tier = QueueTier(store, self.tier(), STREAM, confirms=confirms, move_size_bytes=3000)
        return Vhost(store, tier)

    async def killed(self, vhost: Vhost) -> None:
        """Leave the folder as it is now, in a copy, and close the files of a process that is gone."""
        old = self.folder / str(self.machines)
        self.machines += 1
        shutil.copytree(old, self.folder / str(self.machines), copy_function=shutil.copy2)
        await vhost.vanish()

    async def taken_over(self) -> Vhost:
        """Open the vhost on another machine, whose folder is empty."""
        self.machines += 1
        return await self.open(took=await take_over(self.tier(), STREAM, self.env()))


@dataclass
class Vhost:
    """One process that has the vhost."""

    store: MessageStore
    tier: QueueTier
    queues: dict[str, VariableQueue] = field(default_factory=dict)

    async def queue(self, name: str) -> VariableQueue:
        """Declare a queue, or return it."""
        if name not in self.queues:
            self.queues[name] = VariableQueue(self.store, await self.store.declare(name), self.tier)
        return self.queues[name]

    async def page(self) -> None:
        """Move all messages of the log to the tier."""
        await self.store.flush()
        bound, self.store.log_size_bytes_max = self.store.log_size_bytes_max, 1
        try:
            while await self.tier.work():
                pass
        finally:
            self.store.log_size_bytes_max = bound

    async def close(self) -> None:
        """End the process in order."""
        await self.tier.aclose()
        for queue in self.queues.values():
            await queue.aclose()
        await self.store.aclose()

    async def vanish(self) -> None:
        """Close the files. Nothing that it writes from here on counts."""
        await self.tier.aclose()
        self.store.failed = self.store.failed or OffloadError("killed")
        with suppress(OffloadError):
            await self.store.aclose()

    def check(self) -> None:
        """Assert that places and counts agree with each other."""
        store, counted = self.store, Counter[int]()
        for queue in store.queues.values():
            queue.places.check(store.moved)
            counted.update(queue.local_below(store.counts.end, store.moved).tolist())
            ready = {*queue.places.near.values.tolist(), *queue.places.front.values.tolist()}
            assert set(queue.records) <= ready
            assert queue.ram_size_bytes == sum(map(len, queue.records.values()))
        tags = np.arange(store.counts.first, store.counts.end)
        references = store.counts.references(tags)
        assert counted == {int(tag): int(count) for tag, count in zip(tags, references, strict=True) if count}


async def _soon(state: StoreState | None) -> StoreState | None:
    return state


async def bodies_of(queue: VariableQueue) -> list[bytes]:
    """Return all bodies of a queue, in order."""
    return [held.message.body async for held in queue.fold()]


def run(coroutine):  # type: ignore[no-untyped-def]
    """Run a coroutine of a test."""
    return asyncio.run(coroutine)
