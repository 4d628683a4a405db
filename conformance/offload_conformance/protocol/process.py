"""Processes at a store whose requests can be counted, stopped and spoiled one by one.

    process.spoil(7, Fault.LOSE_REPLY)      # a fault for its seventh request
    process.dies_before = 9                 # it dies instead of sending its ninth
    job = process.begin(process.copy())     # stalls before each request from now on
    await job.run_to("create", "*/root.*")  # this request is not sent yet, and others may run
    await job.finish()

A process consists of a `FaultyStore` before a client of the author's store, an environment whose names come
from a seed and whose clock moves only by sleeping, and the tier on top of both. Invariant: nothing waits for
real time. A job continues when a test lets it, and the test then waits until the job stalls again or ends.
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
from offload.ground.env import Env
from offload.model.attempt import Attempt
from offload.native.offloader import TierOptions
from offload.store.faults import MUTATIONS, Call, Fault, FaultyStore, Rule
from offload.upkeep.retention import Retention, trim
from offload.write.writer import StreamWriter
from offload_conformance.ledgers import BIRTH_MS, ledger_of

STREAM: Final = "orders"
END: Final = 4
TRIMMED: Final = 2
"""`copy` copies the offsets [0, END), and deletes those before TRIMMED."""

CHUNK_SIZE_BYTES: Final = len(ledger_of(1).chunks[0])
OPTIONS: Final = TierOptions(fragment_size_bytes=CHUNK_SIZE_BYTES + 1, uploads_max=1)
"""Two chunks in a fragment, and one request at a time."""

MakeTier = Callable[..., LedgerOffloader]
"""`make(store, env=..., options=...)` opens the tier for a process."""


class Crash(BaseException):
    """The end of a process. It is a `BaseException`, because no program catches its own death."""


async def died(work: Awaitable[object]) -> bool:
    """Await the work. Return True if the process died in it."""
    try:
        await work
    except Crash:
        return True
    except BaseExceptionGroup as group:  # the crash may have ended any group of tasks
        if group.subgroup(Crash) is None:
            raise
        return True
    return False


class Process:
    """A process, as the module's docstring describes. `World.process` makes it."""

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
        """Return the numbers, from 1, of its requests that would change something."""
        return [number for number, call in enumerate(self.store.calls, 1) if call.operation in MUTATIONS]

    async def upload(self, end: int) -> Attempt:
        """Claim the stream, announce one ledger of [0, end) and upload it without committing it."""
        writer = await self.claim()
        [attempt] = await writer.prepare([0])
        await self.offloader.offload(ledger_of(end), attempt, manifest=writer.manifest, extra_metadata={})
        return attempt

    def spoil(self, number: int, fault: Fault) -> None:
        """Plan a fault for the request of this number, from 1."""
        self._faults[number] = fault

    def begin(self, work: Coroutine[Any, Any, Any]) -> ProcessWork:
        """Begin a job that stalls before each of its requests."""
        self.job = ProcessWork(work)
        return self.job

    async def copy(self, end: int = END, *, trimmed: int = TRIMMED) -> None:
        """Do the whole job: claim the stream, copy what is not committed yet, delete what is too old."""
        await self.claim()
        await self.copy_to(end)
        if trimmed:
            await trim(self.offloader, STREAM, Retention(before_offset=trimmed), env=self.env)

    async def claim(self) -> StreamWriter:
        """Claim the stream, and resolve what others left."""
        self.writer = await StreamWriter.claim(self.offloader, STREAM, env=self.env)
        return self.writer

    async def copy_to(self, end: int) -> None:
        """Copy up to this offset as one ledger, as the stream's writer."""
        at = self.holder.manifest.next_offset
        if at < end:
            await self.holder.offload([ledger_of(end - at, first_offset=at)])

    @property
    def holder(self) -> StreamWriter:
        """Return the writer that this process believes to be."""
        assert self.writer is not None, "this process has not claimed the stream"
        return self.writer

    async def _before(self, operation: str, key: str) -> None:
        number = len(self.store.calls)
        # The order matters: while a job stalls, the test may still decide that it dies at this request or set
        # a fault for it.
        if self.job is not None:
            await self.job.stall(Call(operation, key))
        if self.dies_before is not None and number >= self.dies_before:
            raise Crash
        if (fault := self._faults.pop(number, None)) is not None:
            # In front of all other rules, so that exactly this request gets the fault.
            self.store.rules.insert(0, Rule(fault, nth=1))

    async def _sleep(self, seconds: float) -> None:
        self.clock += seconds
        await asyncio.sleep(0)  # other tasks run, as they would during a real pause


class ProcessWork:
    """The work of a process, one request at a time."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.parked: Call | None = None
        """The request before which the work stalls."""

        # Set once the test no longer looks at single requests: the work then stalls no more.
        self._goes_freely = False
        self._changed = asyncio.Event()
        self._gate = asyncio.Event()
        self.task = asyncio.ensure_future(work)
        # Wakes a test that waits in `settled` for work that ends without another request.
        self.task.add_done_callback(lambda _: self._changed.set())

    @property
    def over(self) -> bool:
        """Return True if the work ended."""
        return self.task.done()

    async def stall(self, call: Call) -> None:
        """Stall before a request. The process calls this before each of its requests."""
        if self._goes_freely or self.over:
            return
        # Recorded, and the gate closed, before the test is woken: the test looks at the request at once.
        self.parked = call
        self._gate.clear()
        self._changed.set()
        await self._gate.wait()

    async def settled(self) -> None:
        """Wait until the work stalls, or is over."""
        while self.parked is None and not self.over:
            await self._changed.wait()
            self._changed.clear()

    async def step(self) -> None:
        """Let one request happen. Return when the work stalls before the next one, or ends."""
        await self.settled()
        self._go()
        await self.settled()

    async def run_to(self, operation: str, key: str = "*") -> None:
        """Continue until the work stalls before such a request, which is not sent yet."""
        await self.settled()
        while self.parked is not None:
            if fnmatchcase(self.parked.operation, operation) and fnmatchcase(self.parked.key, key):
                return
            await self.step()
        raise AssertionError(f"the job ended before any {operation} of {key}")

    async def finish(self) -> None:
        """Continue to the end. Raises what the work raises."""
        self._goes_freely = True
        self._go()
        await self.task

    async def cancel(self, *, turns: int) -> None:
        """Let the next request begin, and cancel the work after so many turns of the event loop."""
        self._goes_freely = True
        self._go()
        # Other tasks run for some turns, so the cancellation hits the request at different points.
        for _ in range(turns):
            await asyncio.sleep(0)
        self.task.cancel()
        await asyncio.wait([self.task])

    def _go(self) -> None:
        # Cleared first, or `settled` would return at once for the request that is only now allowed.
        self.parked = None
        self._gate.set()
