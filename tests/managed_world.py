"""A broker's log and a tier in memory, and managed ledgers over them, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from uuid import UUID

from kit.world import STREAM, TierWorld

from offload import MemoryHandle, ObjectStoreOffloader
from offload.contracts.ledger import ReadHandle
from offload.contracts.log import LocalLedger
from offload.ground.errors import NotOffloaded
from offload.log.memory_log import MemoryDisk, MemoryLog
from offload.managed.ledger import ManagedLedger
from offload.managed.policy import LedgerPolicy
from offload.model.entry import entries_of_rows
from offload.write.job import Job

MANUAL = LedgerPolicy(offload_size_bytes=None, deletion_lag_seconds=None, roll_seconds=None)
"""Nothing happens of its own accord, except that ledgers are sealed by size."""


class Crash(BaseException):
    """The process ends here."""


@dataclass
class Points:
    """Counts the points of a run at which a process may end, and ends it at one of them."""

    at: int | None = None
    count: int = 0

    def point(self) -> None:
        """Pass a point, or end the process."""
        self.count += 1
        if self.count == self.at:
            raise Crash(f"at point {self.count}")


class CrashingLog(MemoryLog):
    """A log in memory. Before and after each change a process may end."""

    def __init__(self, name: str, *, disk: MemoryDisk, points: Points) -> None:
        super().__init__(name, disk=disk)
        self._points = points

    async def append(self, records: Sequence[bytes], *, timestamp_ms: int) -> int:
        """Append, and perhaps end before or behind it."""
        self._points.point()
        offset = await super().append(records, timestamp_ms=timestamp_ms)
        self._points.point()
        return offset

    async def roll(self, *, now_ms: int) -> LocalLedger | None:
        """Seal, and perhaps end before or behind it."""
        self._points.point()
        sealed = await super().roll(now_ms=now_ms)
        self._points.point()
        return sealed

    async def open_ledger(self, ledger_id: int) -> ReadHandle:
        """Open, or end."""
        self._points.point()
        return await super().open_ledger(ledger_id)

    async def delete(self, ledger_id: int) -> None:
        """Delete, and perhaps end before or behind it."""
        self._points.point()
        await super().delete(ledger_id)
        self._points.point()

    async def begin(self, offset: int, *, epoch: int = 0) -> None:
        """Begin, and perhaps end before or behind it."""
        self._points.point()
        await super().begin(offset, epoch=epoch)
        self._points.point()

    async def save_note(self, name: str, data: bytes) -> None:
        """Save, and perhaps end before or behind it."""
        self._points.point()
        await super().save_note(name, data)
        self._points.point()

    async def destroy(self) -> None:
        """Destroy, and perhaps end before or behind it."""
        self._points.point()
        await super().destroy()
        self._points.point()


@dataclass
class World(TierWorld):
    """A broker's disk beside the tier. It outlives the managed ledgers."""

    disk: MemoryDisk = field(default_factory=MemoryDisk)

    async def open(self, policy: LedgerPolicy = MANUAL, *, log: MemoryLog | None = None) -> ManagedLedger:
        """Open the managed ledger of the disk, as a process that has just started."""
        return await ManagedLedger.open(
            log or MemoryLog(STREAM, disk=self.disk),
            self.tier(),
            policy=policy,
            env=self.env(),
            emit=self.events.append,
        )

    def copied_disk(self) -> MemoryDisk:
        """Return a copy of the disk as it is now, as a backup or a cloned machine has it."""
        return deepcopy(self.disk)

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


async def contribute(tier: ObjectStoreOffloader, *chunks: bytes, ledger_id: int | None = None) -> None:
    """Append chunks as a job does: behind the end of the stream, whoever holds it."""
    job = await Job.begin(tier, STREAM)
    handle = MemoryHandle(chunks, ledger_id=ledger_id)
    manifest, [attempt] = await job.prepare([handle.ledger_id])
    await job.append([await tier.offload(handle, attempt, manifest=manifest, extra_metadata={})])


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    """Run a scenario in a world of its own."""
    asyncio.run(scenario(World()))  # type: ignore[arg-type]  # a coroutine function
