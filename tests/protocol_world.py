"""A world for the commit protocol: one bucket, any number of processes, and a judge of every change.

    world = World()
    w0 = world.process("w0")
    world.run(w0.claim())                  # free: runs to its end
    w0.start(w0.prepare(world.ledger(0, 4)))
    w0.run_to("create", "*/root.*")        # stalled before that request; others may run
    w0.step(Fault.LOSE_REPLY)              # one request, with a fault
    attempt = w0.finish()                  # the rest, and its result or error
    world.check()                          # every invariant held at every moment so far

A process is a store with faults, an environment with seeded names and a clock that only sleeping
moves, and an offloader over both. Nothing waits and no thread is started, so the same calls give the
same history. Tests use only public methods of the code under test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from protocol_judge import Judge, Objects, Root

from offload.commit.guest import Delete
from offload.commit.job import Announce, Contribute, Replace
from offload.commit.log import RootLog, Step
from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.change import Change, CommitVerdict
from offload.contracts.events import Event, ManifestCommitted
from offload.contracts.ledger import ReadHandle
from offload.contracts.store import ObjectStore
from offload.formats.anchor import StreamAnchor, TierAnchor
from offload.formats.chunk import scan
from offload.formats.chunk_writer import build_chunk
from offload.formats.keys import TIER_ANCHOR, StreamKeys
from offload.formats.root import decode_root, encode_root
from offload.ground.env import Env
from offload.ground.errors import Conflict, Misuse, OffloadError, OutcomeUnknown, TryAgain
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries
from offload.model.manifest import Manifest, StreamState
from offload.model.tree import Tree
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.store.faults import Call, Fault, FaultyStore, Rule
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator
from offload.upkeep.compact.runs import FragmentRun, copy_run
from offload.upkeep.retention import Retention, delete_stream, trim
from offload.write.job import Job
from offload.write.writer import StreamWriter

T = TypeVar("T")
STREAM: Final = "orders"
KEYS: Final = StreamKeys(STREAM)
CHUNK_RECORDS: Final = 2
SETTLE_ROUNDS_MAX: Final = 100_000


NOTHING_COMMITTED: Final = (TryAgain, Conflict, Misuse)
"""Errors of a commit that promise that the change is not in, and never will be.

`Denied` is not one of them: if the listing after a create is denied, a person must act in any case.
"""


TRACED: Final = (Claim, Prepare, Append, Announce, Contribute, Replace)
"""Changes whose commit a history shows for ever."""


class Crash(BaseException):
    """The error that ends a process. No program catches it."""


def records_of(offset: int, leader: int = 1) -> list[bytes]:
    """Return the records of the chunk that this leader of the broker wrote at this offset."""
    by = b"" if leader == 1 else b", by leader %d" % leader
    return [b"record %d of orders%s" % (offset + i, by) for i in range(CHUNK_RECORDS)]


def timestamp_ms_of(offset: int) -> int:
    """Return the time of the record at this offset. Times rise with offsets, for a million of them."""
    return 1_700_000_000_000 + (offset if offset < 2**19 else (offset + 2**19) % 2**20)


@cache
def chunk(offset: int, leader: int = 1) -> bytes:
    """Return the source's chunk at this offset: the same for every writer under one leader."""
    return build_chunk(
        records_of(offset, leader), offset=offset, timestamp_ms=timestamp_ms_of(offset), epoch=leader
    )


def verdict(change: Change, manifest: Manifest) -> CommitVerdict:
    """Return the verdict of the manifest on the change. All entries are in the root, so nothing is
    fetched.
    """
    try:
        change.verdict(Tree(manifest, _no_group)).send(None)
    except StopIteration as done:
        found: CommitVerdict = done.value
        return found
    raise AssertionError("a verdict on entries in the root waits for nothing")


async def _no_group(manifest: Manifest, entry: Entries) -> Entries:
    raise AssertionError("no entry of this manifest is a group")


def source(first_offset: int, next_offset: int) -> bytes:
    """Return the source's bytes of a range of offsets that begins and ends with a chunk."""
    return b"".join(map(chunk, range(first_offset, next_offset, CHUNK_RECORDS)))


class Ledger(ReadHandle):
    """A ledger of generated chunks."""

    def __init__(self, first_offset: int, next_offset: int, *, raw: bytes | None = None) -> None:
        self._range = first_offset, next_offset
        self._raw = source(first_offset, next_offset) if raw is None else raw
        self._table = scan(self._raw, where=self.where)

    @property
    def ledger_id(self) -> int:
        return self._range[0]

    @property
    def first_offset(self) -> int:
        return self._range[0]

    @property
    def next_offset(self) -> int:
        return self._range[1]

    @property
    def where(self) -> str:
        return f"ledger of [{self._range[0]}, {self._range[1]})"

    async def table(self) -> ChunkTable:
        return self._table

    async def read(self, rows: ChunkTable) -> bytes:
        start = int(rows["position"][0])
        return self._raw[start : start + int(rows["size_bytes"].sum())]


class ResendingClient(StoreDecorator):
    """A client library that repeats a create without an answer, as SDKs do."""

    async def create(self, key: str, data: bytes) -> None:
        """Create the object, with at most two requests."""
        try:
            await self.inner.create(key, data)
        except OutcomeUnknown:
            await self.inner.create(key, data)


class WitnessedOffloader(ObjectStoreOffloader):
    """An offloader that records the result of each commit: the returned manifest, or the error.

    `factor` is the branching factor; without it, the tier's anchor decides.
    """

    def __init__(self, *args: Any, factor: int | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.factor = factor
        self.commits: list[tuple[Change, Manifest | OffloadError]] = []

    def log(self, stream: str) -> RootLog:
        """Return the offloader's log, with this branching factor."""
        log = super().log(stream)
        return log if self.factor is None else replace(log, factor=self.factor)

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        """Commit as the offloader does, and record the result."""
        try:
            manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        except OffloadError as error:
            self.commits.append((change, error))
            raise
        self.commits.append((change, manifest))
        return manifest


class Process:
    """A process that uses the bucket, made by `World.process`."""

    def __init__(
        self, world: World, name: str, *, wrap: Callable[[ObjectStore], ObjectStore], chunks_per_fragment: int
    ) -> None:
        self.world = world
        self.name = name
        self.random = Random(f"{world.seed}/{name}")
        self.store = FaultyStore(
            MemoryStore(objects=world.objects, name=name), before=self._before, after=self._after
        )
        self.env = Env(
            uuid=lambda: UUID(int=self.random.getrandbits(128), version=4),
            monotonic=lambda: self.clock,
            sleep=self._sleep,
            random=self.random.random,
        )
        self.offloader = WitnessedOffloader(
            wrap(self.store),
            env=self.env,
            options=TierOptions(
                fragment_size_bytes=(chunks_per_fragment - 1) * len(chunk(0)) + 1, uploads_max=1
            ),
            emit=self._emit,
            witness=self._witness,
            factor=world.factor_of_offloaders,
        )
        self.clock = 0.0
        self.writer: StreamWriter | None = None
        self.job: Job | None = None
        self.task: asyncio.Task[Any] | None = None
        self.parked: Call | None = None
        """The request before which the process stalls."""
        self.dead = False
        self.crash_at: Step | None = None
        self.crash_before: int | None = None
        self.crash_after: int | None = None
        self.steps: list[Step] = []
        self._gate: asyncio.Event | None = None
        self._gated = False

    @property
    def log(self) -> RootLog:
        """Return the stream's roots as this process sees them."""
        return RootLog(store=self.store, stream=STREAM, env=self.env)

    @property
    def holder(self) -> StreamWriter:
        """Return the writer that this process believes itself to be."""
        assert self.writer is not None, f"{self.name} never claimed"
        return self.writer

    @property
    def guest(self) -> Job:
        """Return the job that this process runs."""
        assert self.job is not None, f"{self.name} never began a job"
        return self.job

    # The actions of a process. Each is a coroutine that a test runs freely or in steps.

    async def claim(self, *, first_offset: int = 0, source_epoch: int = 0) -> StreamWriter:
        """Load the newest root, claim on it, resolve."""
        base = await self.log.load_newest()
        return await self.claim_on(base, first_offset=first_offset, source_epoch=source_epoch)

    async def claim_on(
        self, base: Manifest | None, *, first_offset: int = 0, source_epoch: int = 0
    ) -> StreamWriter:
        """Claim on a manifest that was loaded some time ago, and resolve."""
        self.writer = await StreamWriter.claim(
            self.offloader,
            STREAM,
            base=base,
            first_offset=first_offset,
            source_epoch=source_epoch,
            env=self.env,
        )
        return self.writer

    async def prepare(self, ledger: Ledger) -> Attempt:
        """Announce an attempt for the ledger."""
        [attempt] = await self.holder.prepare([ledger.ledger_id])
        return attempt

    async def upload(self, ledger: Ledger, attempt: Attempt) -> Receipt:
        """Copy the ledger."""
        return await self.offloader.offload(ledger, attempt, manifest=self.holder.manifest, extra_metadata={})

    async def append(self, *receipts: Receipt) -> None:
        """Commit what was copied."""
        await self.holder.append(receipts)

    async def begin_job(self, *, uid: UUID | None = None) -> Job:
        """Begin a job, which does not claim the stream."""
        self.job = await Job.begin(self.offloader, STREAM, uid=uid, env=self.env)
        return self.job

    async def announce(self, *ledgers: Ledger, token: bytes = b"") -> list[Attempt]:
        """Announce an attempt of the job for each ledger."""
        return (await self.guest.prepare([ledger.ledger_id for ledger in ledgers], token=token))[1]

    async def copy(self, ledgers: Sequence[Ledger], attempts: Sequence[Attempt]) -> list[Receipt]:
        """Upload the job's ledgers, as its workers do."""
        manifest = self.guest.manifest
        return [
            await self.offloader.offload(ledger, attempt, manifest=manifest, extra_metadata={})
            for ledger, attempt in zip(ledgers, attempts, strict=True)
        ]

    async def do_job(self, *ledgers: Ledger) -> None:
        """Run a whole job: begin, announce, copy and contribute."""
        await self.begin_job()
        receipts = await self.copy(ledgers, await self.announce(*ledgers))
        await self.guest.append(receipts)

    async def plan(self, first_offset: int, next_offset: int) -> FragmentRun:
        """Return the fragments of a range in this process's newest manifest, for a compaction."""
        tree = self.offloader.tree(await self.offloader.load_manifest(STREAM))
        entries = []
        while first_offset < next_offset:
            entry = await tree.find(first_offset)
            if entry is None:
                raise Conflict(f"offset {first_offset} was trimmed")
            entries.append(entry)
            first_offset = entry.next_offset
        return FragmentRun(tuple(entries))

    async def copy_run(self, run: FragmentRun) -> Receipt:
        """Announce a copy of a run, and upload it."""
        manifest, [attempt] = await self.guest.prepare_copies([run.entries])
        return await copy_run(self.offloader, run, attempt, manifest=manifest)

    async def compact(self, first_offset: int, next_offset: int) -> None:
        """Begin a job, and replace the fragments of a range by one."""
        await self.begin_job()
        run = await self.plan(first_offset, next_offset)
        await self.guest.replace(run.entries, [await self.copy_run(run)])

    async def trim(self, before_offset: int) -> None:
        """Trim the fragments that end at or below this offset, as a guest without a claim."""
        await trim(self.offloader, STREAM, Retention(before_offset=before_offset), env=self.env)

    async def delete_stream(self) -> None:
        """Delete the stream as a guest, which leaves a tombstone."""
        await delete_stream(self.offloader, STREAM, env=self.env)

    async def offload(self, *ledgers: Ledger) -> None:
        """Prepare, copy and commit a ledger."""
        await self.holder.offload(ledgers)

    async def claim_and_offload(self, *ledgers: Ledger) -> None:
        """Claim, then copy and commit the uncommitted ones of these ledgers."""
        await self.claim()
        left = [ledger for ledger in ledgers if ledger.next_offset > self.holder.manifest.next_offset]
        if left and left[0].first_offset < self.holder.manifest.next_offset:
            left[0] = Ledger(self.holder.manifest.next_offset, left[0].next_offset)
        if left:
            await self.offload(*left)

    # Stepping: a started job stalls before each of its requests until a test lets it continue.

    def start(self, job: Coroutine[Any, Any, Any]) -> Self:
        """Begin a job, and stall it before its first request."""
        assert self.task is None or self.task.done(), f"{self.name} is busy"
        self._gated = True
        self.task = self.world.loop.create_task(_ungrouped(job))
        self._settle()
        return self

    def step(self, fault: Fault | None = None) -> None:
        """Let the stalled request happen, with or without a fault, up to the next one or the end."""
        assert self._gate is not None, f"{self.name} does not stall"
        rule = Rule(fault, nth=1) if fault else None
        if rule:
            self.store.rules.insert(0, rule)
        self._open()
        self._settle()
        if rule:
            self.store.rules.remove(rule)

    def run_to(self, operation: str, key: str = "*", *, times: int = 1) -> Self:
        """Continue until the job stalls before such a request (the n-th from here), which has not
        happened yet.
        """
        while True:
            assert self.parked is not None, f"{self.name} ended before {operation} of {key}"
            if fnmatchcase(self.parked.operation, operation) and fnmatchcase(self.parked.key, key):
                times -= 1
                if not times:
                    return self
            self.step()

    def finish(self) -> Any:
        """Continue to the end, and return the job's result or raise its error."""
        assert self.task is not None
        self._gated = False
        if self._gate is not None:
            self._open()
        return self.world.run_task(self.task)

    def crash(self) -> None:
        """End the process at this moment. Requests in flight may still take effect."""
        self.dead = True
        if self._gate is not None:
            self._open()
        if self.task is not None and not self.task.done():
            self._settle()

    def cancel(self) -> None:
        """Cancel the stalled job, as a caller's timeout does. The process continues to exist."""
        assert self.task is not None
        self.task.cancel()
        self._gated = False
        self._gate = self.parked = None
        self.world.loop.run_until_complete(asyncio.wait([self.task]))

    @property
    def busy(self) -> bool:
        """Return True if a started job has not ended."""
        return self.task is not None and not self.task.done()

    def _open(self) -> None:
        assert self._gate is not None
        self._gate.set()
        self._gate = self.parked = None

    def _settle(self) -> None:
        async def settled() -> None:
            assert self.task is not None
            for _ in range(SETTLE_ROUNDS_MAX):
                if self.task.done() or self._gate is not None:
                    return
                await asyncio.sleep(0)
            raise AssertionError(f"{self.name} neither asks the store nor ends")

        self.world.loop.run_until_complete(settled())

    async def _before(self, operation: str, key: str) -> None:
        # The store calls `after` only if it did not refuse, so refusals are not recorded here.
        unheard = self.crash_after is not None and len(self.store.calls) > self.crash_after
        self._die_if(self.dead or unheard)
        if self._gated:
            self.parked = Call(operation, key)
            self._gate = gate = asyncio.Event()
            await gate.wait()
            self._die_if(self.dead)
        self._die_if(len(self.store.calls) == self.crash_before)
        if operation == "put":
            self.world.judge.sent(key, self.name)

    async def _after(self, _operation: str, _key: str) -> None:
        self._die_if(self.dead or len(self.store.calls) == self.crash_after)

    def _witness(self, step: Step) -> None:
        self.steps.append(step)
        self._die_if(self.dead or step is self.crash_at)

    def _die_if(self, condition: bool) -> None:
        if condition:
            self.dead = True
            raise Crash

    def _emit(self, event: Event) -> None:
        if isinstance(event, ManifestCommitted):
            self.world.judge.told(event.manifest, self.name)

    async def _sleep(self, seconds: float) -> None:
        self.clock += seconds
        await asyncio.sleep(0)


class World:
    """A world, as the module's docstring describes it."""

    def __init__(self, seed: int = 0, *, empty: bool = False, factor: int = 2) -> None:
        """Make a tier whose groups take `factor` entries: so few that four fragments make groups of two
        kinds.

        An empty bucket is not a tier yet. An offloader makes tiers with the default factor, so it gets
        this one.
        """
        self.seed = seed
        self.factor_of_offloaders = factor if empty else None
        self.judge = Judge(source)
        self.objects = Objects(self.judge)
        self.processes: list[Process] = []
        self._runner = asyncio.Runner()
        self.loop = self._runner.get_loop()
        self.loop.set_default_executor(_Inline())
        if not empty:
            self.objects[TIER_ANCHOR] = TierAnchor(branching_factor=factor).encode()
            self.objects[KEYS.anchor] = StreamAnchor(stream=STREAM).encode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.dead = True
        self._runner.close()
        for process in self.processes:
            if process.task is not None and not process.task.cancelled():
                process.task.exception()  # the error is retrieved, so that asyncio does not warn about it

    def process(
        self,
        name: str,
        *,
        wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store,
        opened: bool = True,
        chunks_per_fragment: int = 1,
    ) -> Process:
        """Make a new process. If it is `opened`, it has already read the tier's anchor."""
        process = Process(self, name, wrap=wrap, chunks_per_fragment=chunks_per_fragment)
        self.processes.append(process)
        if opened:
            self.run(process.offloader.open())
            process.store.calls.clear()
        return process

    def ledger(self, first_offset: int, next_offset: int) -> Ledger:
        """Return a ledger of the source."""
        return Ledger(first_offset, next_offset)

    def run(self, job: Coroutine[Any, Any, T]) -> T:
        """Run a job to its end."""
        return self.run_task(self.loop.create_task(_ungrouped(job)))

    def run_task(self, task: asyncio.Task[T]) -> T:
        """Run until the task ends, and return its result or raise its error."""
        return self.loop.run_until_complete(task)

    @property
    def root(self) -> Root:
        """Return the newest root, as the judge reads it."""
        assert self.judge.root is not None
        return self.judge.root

    @property
    def fragments(self) -> set[str]:
        """Return the keys of all existing fragments."""
        return {key for key in self.objects if key.startswith(KEYS.data)}

    @property
    def groups(self) -> set[str]:
        """Return the keys of all existing groups."""
        return {key for key in self.objects if KEYS.parse_group(key)}

    @property
    def roots(self) -> list[int]:
        """Return the numbers of all existing roots, in order."""
        numbers = map(KEYS.parse_root, self.objects)
        return sorted(number for number in numbers if number is not None)

    def newest(self) -> Manifest:
        """Return the newest root, decoded by the code under test, for tests that make one by hand."""
        key = KEYS.root(self.roots[-1])
        return decode_root(self.objects[key], where=key)

    def tombstone(self) -> Manifest:
        """Delete the stream by hand (2.7), without disturbing any process."""
        base = self.newest()
        tomb = replace(
            Delete(incarnation=base.incarnation).apply(base),
            version=base.version + 1,
            committer=UUID(int=99),
            commit_id=UUID(int=base.version),
            parent_commit_id=base.commit_id,
        )
        self.objects[KEYS.root(tomb.version)] = encode_root(tomb)
        return tomb

    def rebuilding(self) -> None:
        """Lose all roots, and create the fence of a rebuild by hand (2.9, step 1)."""
        base = self.newest()
        fence = replace(
            Delete(incarnation=base.incarnation).apply(base),  # a tombstone names nothing either
            version=base.version + 2**32,
            state=StreamState.REBUILDING,
            writer=UUID(int=98),
            next_offset=base.first_offset,
            first_offset=base.first_offset,
        )
        self.objects.lose_roots()
        self.objects[KEYS.root(fence.version)] = encode_root(fence)

    @property
    def history(self) -> list[Root]:
        """Return the true history: every root that was the newest at some time, in order."""
        return [self.judge.history[number] for number in sorted(self.judge.history)]

    def check(self) -> None:
        """Raise `AssertionError` if any invariant was broken at any moment so far."""
        assert not self.judge.violations, self.judge.violations[0]

    def check_nothing_is_left(self) -> None:
        """Raise `AssertionError` unless the newest root names every existing fragment and group."""
        for keys, named in ((self.fragments, self.root.named), (self.groups, self.root.groups)):
            assert {key.rpartition("/")[2] for key in keys} == set(named)

    def check_what_was_told(self) -> None:
        """Check the results of all commits with `check_told`."""
        check_told(self.judge, ((process.name, process.offloader.commits) for process in self.processes))


def check_told(
    judge: Judge, told: Iterable[tuple[str, Sequence[tuple[Change, Manifest | OffloadError]]]]
) -> None:
    """Check that each commit that returned is in the history, and each that promised otherwise is not."""
    for name, commits in told:
        for change, result in commits:
            if not isinstance(result, OffloadError):
                is_in = _was_in(judge, change) or _is_named(judge, change)
                assert is_in, f"{name} got a success for a commit that is not in"
            elif isinstance(result, NOTHING_COMMITTED) and isinstance(change, TRACED):
                assert not _was_in(judge, change), f"{name} got a wrong result: {result}"


def _was_in(judge: Judge, change: Change) -> bool:
    """Return True if the true history ever showed the change, or if the change leaves no trace."""
    roots = judge.history.values()
    if isinstance(change, Claim):
        return any(root.writer == change.writer.bytes for root in roots)
    if isinstance(change, Prepare):
        return any(uid.bytes in root.running for uid, _ in change.attempts for root in roots)
    if isinstance(change, Announce):
        return any(
            change.job.bytes == root.announced[uid.bytes]["writer"]
            for uid, _ in change.attempts
            for root in roots
            if uid.bytes in root.running
        )
    if isinstance(change, Replace):
        last = change.new[-1]
        name = f"{last.first_offset:020d}.{last.attempt}.fragment"
        return judge.named_first_by(name) == change.job.bytes
    if isinstance(change, Append | Contribute) and change.entries:
        first = change.entries[0]
        name = f"{first.first_offset:020d}.{first.attempt}.fragment"
        author = change.job if isinstance(change, Contribute) else change.writer
        return judge.named_first_by(name) == author.bytes
    return True


def _is_named(judge: Judge, change: Change) -> bool:
    """Return True if any root named the fragment of an append. No manifest shows whose commit it was."""
    if not isinstance(change, Append | Contribute) or not change.entries:
        return False
    last = change.entries[-1]
    return judge.named_first_by(f"{last.first_offset:020d}.{last.attempt}.fragment") is not None


async def _ungrouped(job: Coroutine[Any, Any, T]) -> T:
    """Return the crash itself out of the exception group of the tasks that it ended."""
    try:
        return await job
    except BaseExceptionGroup as group:
        if group.subgroup(Crash) is None:
            raise
        raise Crash from None


class _Inline(ThreadPoolExecutor):
    """An executor that runs each call at once in the caller's thread, so no scheduler matters."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as exc:  # noqa: BLE001 - handed to whoever waits, as an executor does
            future.set_exception(exc)
        return future
