"""Processes at a store whose requests can be counted, stopped and spoiled one by one.

    process.spoil(7, Fault.LOSE_REPLY)      # what goes wrong with its seventh request
    process.dies_before = 9                 # it dies instead of sending its ninth
    job = process.begin(process.copy())     # stalls before each request from now on
    await job.run_to("create", "*/root.*")  # the request was not sent yet; others may run
    await job.finish()

A process is a `FaultyStore` before a client of the author's store, an environment whose names come from a
seed and whose clock only sleeping moves, and the tier that is made of both. Nothing waits for time: a job
goes on when it is told to, and whoever tells it awaits that it stalls again or ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from fnmatch import fnmatchcase
from random import Random
from typing import Any, Final
from uuid import UUID

from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import ObjectStore
from offload.env import Env
from offload.model.attempt import Attempt
from offload.native.offloader import TierOptions
from offload.store.faults import MUTATIONS, Call, Fault, FaultyStore, Rule
from offload.streams.writer import StreamWriter
from offload.upkeep.retention import Retention, trim
from offload_conformance.ledgers import BIRTH_MS, ledger_of

STREAM: Final = "orders"
END: Final = 4
TRIMMED: Final = 2
"""What `copy` copies: the offsets [0, END), and what is before TRIMMED goes again."""

CHUNK_SIZE_BYTES: Final = len(ledger_of(1).chunks[0])
OPTIONS: Final = TierOptions(fragment_size_bytes=CHUNK_SIZE_BYTES + 1, uploads_max=1)
"""Two chunks to a fragment, and one request at a time."""

MakeTier = Callable[..., LedgerOffloader]
"""`make(store, env=..., options=...)`: the tier as a process opens it."""


class Crash(BaseException):
    """The process is gone. No program catches this."""


async def died(work: Awaitable[object]) -> bool:
    """Await this; whether the process died of it."""
    try:
        await work
    except Crash:
        return True
    except BaseExceptionGroup as group:  # whichever group of tasks the crash ended
        if group.subgroup(Crash) is None:
            raise
        return True
    return False


class Process:
    """See the module's head. Made by `World.process`."""

    def __init__(
        self, client: ObjectStore, make: MakeTier, *, seed: str, options: TierOptions = OPTIONS
    ) -> None:
        self.random = Random(seed)
        self.clock = 0.0
        self.store = FaultyStore(client, before=self._before)
        self.env = Env(
            uuid=lambda: UUID(int=self.random.getrandbits(128), version=4),
            monotonic=lambda: self.clock,
            now_ms=lambda: BIRTH_MS + int(self.clock * 1000),
            sleep=self._sleep,
            random=self.random.random,
        )
        self.offloader = make(self.store, env=self.env, options=options)
        self.writer: StreamWriter | None = None
        self.dies_before: int | None = None
        self.job: ProcessWork | None = None
        self._faults: dict[int, Fault] = {}

    @property
    def mutations(self) -> list[int]:
        """The numbers, from 1, of those of its requests that would change something."""
        return [number for number, call in enumerate(self.store.calls, 1) if call.operation in MUTATIONS]

    async def upload(self, end: int) -> Attempt:
        """Claim, announce one ledger of [0, end) and upload it. It is not committed."""
        writer = await self.claim()
        [attempt] = await writer.prepare([0])
        await self.offloader.offload(ledger_of(end), attempt, manifest=writer.manifest, extra_metadata={})
        return attempt

    def spoil(self, number: int, fault: Fault) -> None:
        """Have this happen to its request of this number, from 1."""
        self._faults[number] = fault

    def begin(self, work: Coroutine[Any, Any, Any]) -> ProcessWork:
        """Begin a job, which stalls before each of its requests."""
        self.job = ProcessWork(work)
        return self.job

    async def copy(self, end: int = END, *, trimmed: int = TRIMMED) -> None:
        """The whole job: take the stream, copy what is not committed yet, drop what is too old."""
        await self.claim()
        await self.copy_to(end)
        if trimmed:
            await trim(self.offloader, STREAM, Retention(before_offset=trimmed), env=self.env)

    async def claim(self) -> StreamWriter:
        """Take the stream, and settle what others left."""
        self.writer = await StreamWriter.claim(self.offloader, STREAM, env=self.env)
        return self.writer

    async def copy_to(self, end: int) -> None:
        """As the stream's writer, copy up to this offset, as one ledger."""
        at = self.holder.manifest.next_offset
        if at < end:
            await self.holder.offload([ledger_of(end - at, first_offset=at)])

    @property
    def holder(self) -> StreamWriter:
        """The writer that this process takes itself for."""
        assert self.writer is not None, "it claimed nothing"
        return self.writer

    async def _before(self, operation: str, key: str) -> None:
        number = len(self.store.calls)
        if self.job is not None:
            await self.job.stall(Call(operation, key))
        if self.dies_before is not None and number >= self.dies_before:
            raise Crash
        if (fault := self._faults.pop(number, None)) is not None:
            self.store.rules.insert(0, Rule(fault, nth=1))

    async def _sleep(self, seconds: float) -> None:
        self.clock += seconds
        await asyncio.sleep(0)


class ProcessWork:
    """What a process is at, one request at a time."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.parked: Call | None = None
        """The request before which it stalls."""

        self._goes_freely = False
        self._changed = asyncio.Event()
        self._gate = asyncio.Event()
        self.task = asyncio.ensure_future(work)
        self.task.add_done_callback(lambda _: self._changed.set())

    @property
    def over(self) -> bool:
        """Whether it ended."""
        return self.task.done()

    async def stall(self, call: Call) -> None:
        """Asked by the process before each request."""
        if self._goes_freely or self.over:
            return
        self.parked = call
        self._gate.clear()
        self._changed.set()
        await self._gate.wait()

    async def settled(self) -> None:
        """Until it stalls, or is over."""
        while self.parked is None and not self.over:
            await self._changed.wait()
            self._changed.clear()

    async def step(self) -> None:
        """Let the next request happen, up to the one behind it or the end."""
        await self.settled()
        self._go()
        await self.settled()

    async def run_to(self, operation: str, key: str = "*") -> None:
        """Go on until it stalls before such a request, which did not happen yet."""
        await self.settled()
        while self.parked is not None:
            if fnmatchcase(self.parked.operation, operation) and fnmatchcase(self.parked.key, key):
                return
            await self.step()
        raise AssertionError(f"the job ended before any {operation} of {key}")

    async def finish(self) -> None:
        """Go on to the end. Raises as the job does."""
        self._goes_freely = True
        self._go()
        await self.task

    async def cancel(self, *, turns: int) -> None:
        """Let the next request go, and cancel it when others had so many turns meanwhile."""
        self._goes_freely = True
        self._go()
        for _ in range(turns):
            await asyncio.sleep(0)
        self.task.cancel()
        await asyncio.wait([self.task])

    def _go(self) -> None:
        self.parked = None
        self._gate.set()
