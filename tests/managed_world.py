"""A broker's log and a tier in memory, and managed ledgers over them, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from uuid import UUID

from growing_source import Clock

from offload import ObjectStoreOffloader
from offload.contracts.events import Event
from offload.env import Env
from offload.errors import NotOffloaded
from offload.local.memory_log import MemoryDisk, MemoryLog
from offload.managed.ledger import ManagedLedger
from offload.managed.policy import LedgerPolicy
from offload.model.entry import entries_of_rows
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore

STREAM = "orders"
MANUAL = LedgerPolicy(offload_size_bytes=None, deletion_lag_seconds=None, roll_seconds=None)
"""Nothing happens of its own accord, except that ledgers are sealed by size."""


@dataclass
class World:
    """A disk, a store and a clock. They outlive the managed ledgers."""

    clock: Clock = field(default_factory=Clock)
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    store: FaultyStore = field(default_factory=lambda: FaultyStore(MemoryStore()))
    events: list[Event] = field(default_factory=list)
    skew_seconds: float = 0.0
    """How far the wall clock runs ahead of the monotonic one."""

    def env(self) -> Env:
        """Return the clock, whose wall clock may run ahead."""
        env = self.clock.env()
        return replace(env, now_ms=lambda: int((self.clock.now + self.skew_seconds) * 1000))

    def tier(self) -> ObjectStoreOffloader:
        """Return the tier, as another process opens it."""
        return ObjectStoreOffloader(self.store, env=self.env())

    async def open(self, policy: LedgerPolicy = MANUAL, *, log: MemoryLog | None = None) -> ManagedLedger:
        """Open the managed ledger of the disk, as a process that has just started."""
        return await ManagedLedger.open(
            log or MemoryLog(STREAM, disk=self.disk),
            self.tier(),
            policy=policy,
            env=self.env(),
            emit=self.events.append,
        )

    async def complete(self) -> list[int]:
        """Return the ids of the ledgers that the tier has, from its own entries."""
        tier = self.tier()
        try:
            view = await tier.view(STREAM)
        except NotOffloaded:
            return []
        ids = [entry.ledger_id async for run in view.walk() for entry in entries_of_rows(run)]
        return list(dict.fromkeys(ids))

    async def attempts(self) -> list[UUID]:
        """Return the attempts of the fragments on the tier."""
        view = await self.tier().view(STREAM)
        return [entry.attempt async for run in view.walk() for entry in entries_of_rows(run)]

    def local(self) -> list[int]:
        """Return the ids of the ledgers on the disk, the open one included."""
        return [ledger.facts.ledger_id for ledger in self.disk.ledgers]

    def told(self, kind: type[Event]) -> int:
        """Return the number of events of a kind."""
        return sum(isinstance(event, kind) for event in self.events)


async def fill(ledger: ManagedLedger, *counts: int, size_bytes: int = 10) -> list[bytes]:
    """Append so many records to each of several ledgers, sealing each but the last. Return all records."""
    records = []
    for rank, count in enumerate(counts):
        if rank:
            await ledger.roll()
        for _ in range(count):
            record = str(ledger.next_offset).encode().ljust(size_bytes, b".")
            await ledger.append([record])
            records.append(record)
    return records


async def bodies(ledger: ManagedLedger, start: int = 0) -> list[bytes]:
    """Return all messages from an offset on, and check that no offset is left out."""
    found: list[bytes] = []
    async for batch in ledger.read(start):
        assert batch.offset == start + len(found)
        found += batch.bodies
    return found


def objects(world: World) -> list[str]:
    """Return the keys on the store."""
    store = world.store.inner
    assert isinstance(store, MemoryStore)
    return sorted(store.objects)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    """Run a scenario in a world of its own."""
    asyncio.run(scenario(World()))  # type: ignore[arg-type]  # a coroutine function
