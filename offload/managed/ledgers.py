"""The managed ledgers of one process: one tier, one block cache, one task for all of their work.

    async with ManagedLedgers(tier, policy=policy) as ledgers:
        orders = await ledgers.open(log)

A ledger says when something may be due, and whoever changes it wakes it. So an idle ledger costs a place in a
heap, and no request. At most `turns_max` ledgers work at once.

The whole process takes at most

    cache.size_bytes * 9/8        as decision 31 says
    + append_size_bytes_max       records of appends that are under way, and one append that is larger
    + turns_max * uploads         what an offloader holds for its uploads
    + some 20 KiB a ledger        its log, cursors and manifest; with groups, 16 MiB for all tiers together

Invariants: a ledger has one step at a time; an error of one ledger stops no other; when the block ends, no
task is left, and every log is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Final, Self

from offload.cache.block_cache import BlockCache
from offload.contracts.events import Event
from offload.contracts.log import LedgerLog
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Source, SourceStream
from offload.ground.env import Env
from offload.ground.errors import Misuse, NotOffloaded
from offload.ground.pause import PAUSE_SECONDS
from offload.managed.budget import ByteBudget
from offload.managed.cursors import CursorNote
from offload.managed.ledger import (
    APPEND_SIZE_BYTES_MAX,
    LedgerState,
    ManagedLedger,
    check_log,
    check_tier,
)
from offload.managed.policy import LedgerPolicy
from offload.read.watch import StreamWatch

__all__ = ["ManagedLedgers"]


HEAP_SPARE: Final = 64
"""How many moments that are out of date may be kept besides one for each ledger."""

_log: Final = logging.getLogger(__name__)


class ManagedLedgers:
    """The managed ledgers of a process, by name. It belongs to one event loop. Enter it, then open them."""

    def __init__(
        self,
        tier: LedgerOffloader,
        *,
        policy: LedgerPolicy | None = None,
        cache: BlockCache | None = None,
        turns_max: int = 4,
        append_size_bytes_max: int = APPEND_SIZE_BYTES_MAX,
        env: Env | None = None,
        emit: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """`policy` is for ledgers that are opened without one. The caller closes `tier` and `cache`."""
        check_tier(tier)
        if turns_max < 1:
            raise Misuse(f"turns_max is at least 1, not {turns_max}")
        self._tier, self._policy, self._cache = tier, policy or LedgerPolicy(), cache
        self._env, self._emit, self._turns_max = env or Env(), emit, turns_max
        self._watch = StreamWatch(tier, env=self._env)
        self._budget = ByteBudget(append_size_bytes_max)
        self._ledgers: dict[str, ManagedLedger] = {}
        self._opening: set[str] = set()
        self._heap: list[tuple[float, int, ManagedLedger]] = []
        """The moments of `_due`, and some that are out of date."""
        self._due: dict[ManagedLedger, float] = {}
        """When each ledger is due. Neither those that work now are here, nor those that are over."""
        self._working: dict[ManagedLedger, float] = {}
        """The ledgers that work now, each with the moment for which it was woken since."""
        self._order = count()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        """Return the tier and the number of ledgers that are open."""
        return f"<ManagedLedgers on {self._tier.url}: {len(self.ledgers)} open>"

    @property
    def ledgers(self) -> Mapping[str, ManagedLedger]:
        """The ledgers that are open, by name."""
        return {name: each for name, each in self._ledgers.items() if each.state is not LedgerState.CLOSED}

    @property
    def source(self) -> Source:
        """The logs of all ledgers as a source, for a `Dispatcher`, or for `sync` to another tier."""
        return _LedgerSource(self._ledgers)

    async def open(
        self,
        log: LedgerLog,
        *,
        policy: LedgerPolicy | None = None,
        cursors: CursorNote | None = None,
    ) -> ManagedLedger:
        """Open the managed ledger of a log, which is closed with it. See `ManagedLedger.open`.

        If that raises, the log is closed. Raises `Misuse` if a ledger of this name is open.
        """
        check_log(log)
        try:
            self._refuse_if_over()
            known = self._ledgers.get(log.name)
            if log.name in self._opening or (known is not None and known.state is not LedgerState.CLOSED):
                raise Misuse(f"a managed ledger {log.name!r} is open already")
            self._opening.add(log.name)
            try:
                ledger = await ManagedLedger.open(
                    log,
                    self._tier,
                    policy=policy or self._policy,
                    cursors=cursors,
                    cache=self._cache,
                    watch=self._watch,
                    budget=self._budget,
                    env=self._env,
                    emit=self._emit,
                    due=self._wake,
                )
            finally:
                self._opening.discard(log.name)
            self._refuse_if_over()
        except BaseException:
            await log.aclose()
            raise
        self._ledgers[log.name] = ledger
        self._schedule(ledger, 0.0)
        return ledger

    def _refuse_if_over(self) -> None:
        if self._task is None or self._task.done() or self._task.cancelling():
            raise Misuse("managed ledgers are opened inside `async with ManagedLedgers(...)`")

    async def __aenter__(self) -> Self:
        """Begin to work."""
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """End the work that runs, and close all ledgers. Unfinished work is left as after a crash."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        closing = (ledger.close() for ledger in self._ledgers.values())
        ended = await asyncio.gather(*closing, return_exceptions=True)
        self._ledgers.clear()
        # Every log was tried. More than one error has one cause, such as a full disk.
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def _run(self) -> None:
        turns = asyncio.Semaphore(self._turns_max)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await turns.acquire()
                ledger = await self._next()
                tasks.create_task(self._step(ledger, turns))

    async def _next(self) -> ManagedLedger:
        """Wait until a ledger is due, and return it."""
        while True:
            self._woken.clear()
            while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
                heappop(self._heap)  # it was scheduled earlier since
            at = self._heap[0][0] if self._heap else inf
            if at <= self._env.monotonic():
                ledger = heappop(self._heap)[2]
                del self._due[ledger]
                self._working[ledger] = inf
                return ledger
            await self._sleep_until(at)

    async def _sleep_until(self, at_seconds: float) -> None:
        waits = [asyncio.ensure_future(self._woken.wait())]
        if at_seconds < inf:
            sleeping = self._env.sleep(at_seconds - self._env.monotonic())
            waits.append(asyncio.ensure_future(sleeping))  # type: ignore[arg-type]  # any awaitable will do
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _step(self, ledger: ManagedLedger, turns: asyncio.Semaphore) -> None:
        try:
            seconds = await ledger.step()
        except Exception:  # noqa: BLE001 - a mistake of ours, or of a log, stops this ledger alone
            _log.exception("managed ledger %r failed", ledger.name)
            seconds = PAUSE_SECONDS
        finally:
            turns.release()
        woken_at = self._working.pop(ledger)
        if ledger.state is LedgerState.CLOSED:
            if self._ledgers.get(ledger.name) is ledger:
                del self._ledgers[ledger.name]
            return
        self._schedule(ledger, min(seconds, woken_at - self._env.monotonic()))

    def _wake(self, ledger: ManagedLedger, seconds: float) -> None:
        """Let a ledger work in so many seconds: something has changed."""
        if ledger in self._working:
            self._working[ledger] = min(self._working[ledger], self._env.monotonic() + seconds)
        elif self._ledgers.get(ledger.name) is ledger:
            self._schedule(ledger, seconds)

    def _schedule(self, ledger: ManagedLedger, seconds: float) -> None:
        at = self._env.monotonic() + seconds
        known = self._due.get(ledger)
        if seconds == inf or (known is not None and known <= at):
            return
        self._due[ledger] = at
        heappush(self._heap, (at, next(self._order), ledger))
        if len(self._heap) > 2 * len(self._due) + HEAP_SPARE:
            # A ledger that is woken early leaves its later moment behind, once a second perhaps.
            self._heap = [row for row in self._heap if self._due.get(row[2]) == row[0]]
            heapify(self._heap)
        self._woken.set()


class _LedgerSource(Source):
    """The logs of managed ledgers as the streams of a source."""

    __slots__ = ("_ledgers",)

    def __init__(self, ledgers: Mapping[str, ManagedLedger]) -> None:
        self._ledgers = ledgers

    @property
    def url(self) -> str:
        return "the managed ledgers of this process"

    @property
    def notes(self) -> Sequence[str]:
        return ()

    async def streams(self) -> Sequence[SourceStream]:
        if not self._ledgers:
            raise NotOffloaded("this process has no managed ledger open")
        return [self._ledgers[name].source for name in sorted(self._ledgers)]
