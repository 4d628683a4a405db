"""Processes for tests. Each takes jobs over a pipe, serves many tests, and can be stopped at a request.

    actor.do("open", ground.stoppable(), stream, seed)
    actor.do("claim")
    actor.begin_and_stop(ground, Moment("create", nth=2, when="before"), "offload", 5)
    ...                     # other processes act meanwhile
    outcome = actor.end()   # sends SIGCONT, and waits for the outcome

On a server, the proxy stops the process and holds the request, which lands late. On a folder, nothing is
between a process and its files, so the process stops itself, within its own store.

Invariant: a stop is confirmed (`waitpid`, WUNTRACED) before anything else happens.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, Literal, Self
from uuid import UUID

from faults.rig import Writer, bare_store
from protocol_world import CHUNK_RECORDS, Ledger
from ready import ReadyCommand
from servers import Place, Running
from servers.proxy import Proxy, Request, proxied

from offload.contracts.change import Change
from offload.contracts.store import ObjectStore
from offload.ground.env import Env
from offload.ground.errors import Conflict, Fenced, OffloadError, OutcomeUnknown, TryAgain
from offload.model.attempt import Receipt
from offload.model.manifest import Manifest
from offload.store.faults import FaultyStore
from offload.upkeep.retention import Retention, trim
from offload.upkeep.sweep.tier import sweep

WAIT_SECONDS: Final = 60.0
DATA_MS: Final = 1_700_000_000_000
"""The time of the source's first record. Each record is a millisecond later (`protocol_world`)."""

HOUR_MS: Final = 3_600_000
YEAR_MS: Final = 365 * 24 * HOUR_MS


@dataclass(frozen=True)
class Where:
    """The URL and options by which a process reaches the tier."""

    url: str
    options: dict[str, str]


@dataclass(frozen=True)
class Moment:
    """The request at which a process stops: the n-th of its kind since a job began."""

    kind: Literal["put", "create", "delete", "any"]
    """A write that may overwrite, a write that may not, a delete of any number of objects, or any request."""

    nth: int
    when: Literal["before", "after"]
    """The process stops before the server receives the request, or after the server has answered it."""

    def fits(self, kind: str, when: str) -> bool:
        """Return True if a request of this kind can be the moment."""
        return when == self.when and self.kind in (kind, "any")


class FolderPlace(Place):
    """A folder, accessed without the program under test."""

    scheme = "file"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder / self.name
        self.options = {}

    @property
    def url(self) -> str:
        """See `Place.url`."""
        return f"file://{self.folder}"

    def keys(self) -> set[str]:
        """See `Place.keys`."""
        files = {str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file()}
        return {name for name in files if not name.startswith(".")}

    def get(self, key: str) -> bytes:
        """See `Place.get`."""
        return (self.folder / key).read_bytes()

    def put(self, key: str, data: bytes) -> None:
        """See `Place.put`."""
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@dataclass
class Ground:
    """A place that processes share: a new bucket, with a proxy for the process that stops, or a folder."""

    name: str
    place: Place
    proxy: Proxy | None

    another: Callable[[], Ground]
    """A function that returns another new place on the same server."""

    def direct(self) -> Where:
        """Return the way past the proxy."""
        return Where(self.place.url, self.place.options)

    def stoppable(self) -> Where:
        """Return the way for a process that a test stops. At most one may use it at a time."""
        if self.proxy is None:
            return self.direct()
        return Where(self.place.url, self.proxy.options(self.place.options))


@contextmanager
def ground_of(server: Running | None, folder: Path) -> Iterator[Ground]:
    """Yield a new place on the server, or below `folder` if there is no server."""
    with proxied(server.endpoint) if server else nullcontext() as proxy:

        def another() -> Ground:
            if server is None:
                return Ground("folder", FolderPlace(folder), None, another)
            return Ground(server.server.name, server.place(), proxy, another)

        yield another()


@dataclass(frozen=True)
class Outcome:
    """The result of a job."""

    value: Any
    error: str | None
    """The name of the error that ended the job, if one did."""

    text: str = ""


def kill_at(proxy: Proxy, number: int, moment: str, process: ReadyCommand) -> None:
    """Kill `process` at the `number`-th request after this call."""
    begun = proxy.counts["requests"]

    def watch(request: Request, now: str) -> None:
        if (request.number - begun, now) == (number, moment):
            process.kill()
            process.wait()  # it has ended before anything else happens

    proxy.watch = watch


class Actor:
    """The test's side of a process."""

    def __init__(self, name: str) -> None:
        self.name = name
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe()
        self._stops, self._stopped = spawning.Pipe(duplex=False)
        self._process = spawning.Process(target=_live, args=(theirs, self._stopped, name), daemon=True)
        self._process.start()
        theirs.close()
        self.busy = False
        """True while a job runs or is stopped."""

        self._is_stopped = False
        self._released = threading.Event()
        self._proxy: Proxy | None = None

    def do(self, job: str, *arguments: Any) -> Any:
        """Run a job to its end, and return its value. The job must succeed."""
        outcome = self.begin(job, *arguments).end()
        assert outcome.error is None, f"{self.name}, {job}: {outcome.text}"
        return outcome.value

    def begin(self, job: str, *arguments: Any) -> Self:
        """Begin a job, a method of `Life`."""
        return self._begin(job, arguments, None)

    def begin_and_stop(self, ground: Ground, moment: Moment, job: str, *arguments: Any) -> bool:
        """Begin a job, and wait until the process stops. Return False if the job ended without a stop."""
        by_itself = None if ground.proxy else moment
        if ground.proxy is not None:
            self._proxy = ground.proxy
            self._proxy.watch = self._watch_for(moment)
        self._begin(job, arguments, by_itself)
        ready = wait([self._pipe, self._stops], WAIT_SECONDS)
        assert ready, f"{self.name} neither stopped nor ended"
        if self._stops not in ready:
            return False
        if self._stops.recv() == _BY_ITSELF:
            self._confirm()
        self._is_stopped = True
        return True

    def end(self, *, wait_seconds: float = WAIT_SECONDS) -> Outcome:
        """Continue the process if it is stopped, and return the outcome of its job."""
        if self._is_stopped:
            os.kill(self._pid, signal.SIGCONT)
            self._is_stopped = False
        self._released.set()
        if self._proxy is not None:
            self._proxy.watch = lambda request, when: None
        assert self._pipe.poll(wait_seconds), f"{self.name} does not end"
        outcome = self._pipe.recv()
        assert isinstance(outcome, Outcome)
        self.busy = False
        return outcome

    def kill(self) -> None:
        """Kill the process, stopped or not, and release the request that the proxy holds."""
        self._released.set()
        self._process.kill()
        self._process.join()

    @property
    def _pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def _begin(self, job: str, arguments: tuple[Any, ...], stop: Moment | None) -> Self:
        assert not self.busy, f"{self.name} is busy"
        self.busy = True
        self._released.clear()
        self._pipe.send((job, arguments, stop))
        return self

    def _watch_for(self, moment: Moment) -> Callable[[Request, str], None]:
        """Return a watch for the proxy's thread. It stops the process at this moment, once."""
        seen = 0

        def watch(request: Request, when: str) -> None:
            nonlocal seen
            if not moment.fits(_kind(request), when):
                return
            seen += 1
            if seen == moment.nth:
                os.kill(self._pid, signal.SIGSTOP)
                self._confirm()
                self._stopped.send(_BY_PROXY)
                self._released.wait(WAIT_SECONDS)

        return watch

    def _confirm(self) -> None:
        _, status = os.waitpid(self._pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"{self.name} ended instead of stopping"


def _kind(request: Request) -> str:
    """Return the kind of a request, by its method and target."""
    if request.method == "DELETE" or re.search(r"\?delete|[/=]batch", request.target):
        return "delete"
    if request.creates:
        return "create"
    return "put" if request.method in ("PUT", "POST") else "read"


_BY_ITSELF: Final = "by itself"
_BY_PROXY: Final = "by the proxy"


class Clock:
    """Clocks that jump before they are read. The wall clock jumps both ways, also to the time of the data."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._ahead_ms = 0
        self._slept_seconds = 0.0

    def now_ms(self) -> int:
        """Return the time of the wall clock."""
        chance = self._chance
        jump = chance.choice(("none", "forward", "back", "to the data"))
        if jump == "forward":
            self._ahead_ms += chance.randint(1, 48) * HOUR_MS
        elif jump == "back":
            self._ahead_ms -= chance.randint(1, 9) * YEAR_MS
        elif jump == "to the data":
            self._ahead_ms = DATA_MS + HOUR_MS + chance.randint(0, 100) - time.time_ns() // 1_000_000
        return max(time.time_ns() // 1_000_000 + self._ahead_ms, 0)

    def monotonic(self) -> float:
        """Return the time of the steady clock. It also jumps, as over a suspension, but never back."""
        if self._chance.random() < 0.5:
            self._slept_seconds += self._chance.uniform(0, 5 * 3600)
        return time.monotonic() + self._slept_seconds


def jumpy(env: Env, seed: str) -> Env:
    """Return the same environment, with clocks that jump."""
    clock = Clock(random.Random(f"{seed} clock"))
    return replace(env, now_ms=clock.now_ms, monotonic=clock.monotonic)


class Life:
    """The jobs of a process. Each public method is a job."""

    def __init__(self, name: str, stopped: Connection) -> None:
        self.name = name
        self.stop: Moment | None = None
        """The moment at which the process stops itself, if any."""

        self.seen = 0
        self._stopped = stopped
        self._client: ObjectStore | None = None
        self._where: Where | None = None

    async def open(self, where: Where, stream: str, seed: str, jumping: bool = False) -> None:
        """Forget everything, and begin at a stream. The client of a tier is kept, as a new one is slow."""
        if where != self._where:
            await self.close()
            store = bare_store(where.url, where.options)
            self._client = FaultyStore(store, before=self._before, after=self._after)
            self._where = where
        assert self._client is not None
        self.stream = stream
        self.chance = random.Random(f"{seed} {self.name}")
        names = random.Random(f"{seed} names of {self.name}")
        env = Env(uuid=lambda: UUID(int=names.getrandbits(128), version=4), random=names.random)
        self.env = jumpy(env, f"{seed} {self.name}") if jumping else env
        self.writer = Writer(self.name, self._client, chance=names, env=self.env)
        self.copied: Receipt | None = None

    async def close(self) -> None:
        """Close the client of the tier."""
        if self._client is not None:
            await self._client.aclose()
        self._client = self._where = None

    async def told(self) -> list[tuple[Change, Manifest | OffloadError]]:
        """Return the results of the commits since the last call."""
        return self.writer.commits_told()

    async def claim(self) -> int:
        """Claim the stream, and return its next offset."""
        return (await self.writer.claim(self.stream)).manifest.next_offset

    async def offload(self, chunks: int) -> tuple[int, int]:
        """Prepare, copy and commit a ledger of so many chunks. Return its range of offsets."""
        holder = self.writer.holder
        first = holder.manifest.next_offset
        await holder.offload([Ledger(first, first + chunks * CHUNK_RECORDS)])
        return first, first + chunks * CHUNK_RECORDS

    async def copy(self, chunks: int) -> None:
        """Prepare and copy a ledger of so many chunks. It is not committed."""
        holder = self.writer.holder
        first = holder.manifest.next_offset
        [attempt] = await holder.prepare([first])
        ledger = Ledger(first, first + chunks * CHUNK_RECORDS)
        self.copied = await self.writer.offloader.offload(
            ledger, attempt, manifest=holder.manifest, extra_metadata={}
        )

    async def append(self) -> None:
        """Commit the ledger that was copied."""
        assert self.copied is not None
        await self.writer.holder.append([self.copied])
        self.copied = None

    async def lead(self, seconds: float) -> tuple[list[tuple[int, int]], list[str]]:
        """Offload as fast as possible for so long, claim again if another process has, and end as the leader.

        Return the ledgers that were committed and the names of the errors. After a loss, this process lets
        the other lead for as long as one or two ledgers take, and for twice as long after the next loss.
        Without these pauses both would only claim.
        """
        committed, errors = [], []
        usual = 0.05
        begun = time.monotonic()
        leads = False
        while (now := time.monotonic()) < begun + seconds or not leads:
            assert now < begun + seconds + WAIT_SECONDS / 2, f"it never led again: {errors[-9:]}"
            try:
                if self.writer.writer is None:
                    await self.claim()
                committed.append(await self.offload(self.chance.randint(1, 5)))
            except (Fenced, Conflict, TryAgain, OutcomeUnknown) as error:
                errors.append(type(error).__name__)
                self.writer.writer, leads = None, False
                await asyncio.sleep(self.chance.uniform(0, 2 * usual))
                usual = min(2 * usual, 5.0)
            else:
                leads = True
                usual = time.monotonic() - now
        return committed, errors

    async def trim_by_age(self, seconds: float) -> tuple[int | None, int]:
        """Trim by age. Return the new first offset, or None, and the time by which the trim was planned."""
        now_ms = self.env.now_ms()
        limit = Retention(age_seconds_max=seconds)
        report = await trim(self.writer.offloader, self.stream, limit, now_ms=now_ms, env=self.env)
        return None if report.trim is None else report.trim.first_offset, now_ms

    async def sweep(self, grace_seconds: float) -> list[str]:
        """Sweep the stream as `offload sweep` does, and return its errors."""
        report = await sweep(
            self.writer.offloader, stream=self.stream, grace_seconds=grace_seconds, env=self.env
        )
        return [str(error) for error in report.errors]

    async def _before(self, operation: str, _key: str) -> None:
        self._stop_if(operation, "before")

    async def _after(self, operation: str, _key: str) -> None:
        self._stop_if(operation, "after")

    def _stop_if(self, operation: str, when: str) -> None:
        if self.stop is not None and self.stop.fits(operation, when):
            self.seen += 1
            if self.seen == self.stop.nth:
                self._stopped.send(_BY_ITSELF)
                os.kill(os.getpid(), signal.SIGSTOP)


def _live(pipe: Connection, stopped: Connection, name: str) -> None:
    """Run jobs until the test closes the pipe. This is the process."""
    life = Life(name, stopped)

    async def run() -> None:
        while True:
            job, arguments, life.stop = await asyncio.to_thread(pipe.recv)
            life.seen = 0
            try:
                outcome = Outcome(await getattr(life, job)(*arguments), None)
            except OffloadError as error:
                outcome = Outcome(None, type(error).__name__, f"{type(error).__name__}: {error}")
            pipe.send(outcome)

    with suppress(EOFError):  # the test is over
        asyncio.run(run())
