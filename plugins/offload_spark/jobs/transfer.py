"""From an origin onto a stream of a tier: Spark's tasks upload, one commit names all. What such jobs share.

The driver announces an attempt for each piece, as a guest of the stream (`offload.tier.guest`); the tasks
reach the origin by what they are given, which every executor must be able to, and upload; the driver names
all of it at once.

    stopped               left behind                       cured by
    before the commit     fragments of running attempts     run again: complete ones are taken over, checked
                                                            against the origin; `abort` gives them up
    after the commit      perhaps attempts that still run   run again, or `abort`

Invariants: the transfer of an origin, a stream and its incarnation has one identity, so a run knows what an
earlier one left; a task that is tried again uploads under attempts of its own; what the origin does not
continue is not appended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from offload.blocking import Blocking
from offload.errors import Absent, Misuse
from offload.formats.keys import StreamKeys
from offload.formats.manifest import AttemptKind, Entry, Manifest
from offload.offloader import Attempt, CutHandle, LedgerOffloader, ReadHandle, Receipt
from offload.source import Snapshot
from offload.tier.adoption import find_complete
from offload.tier.guest import Job
from offload.tier.object_store_offloader import ObjectStoreOffloader
from offload.tier.stream_writer import StreamWriter
from offload.tier.sync import check_same_history, checksum_at, newest
from offload_spark.jobs.verify import is_checked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_SIZE_BYTES_MIN: Final = 4 * 1024 * 1024
TASK_SIZE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Small pieces share a task up to this, or up to as little as keeps every slot of Spark's busy."""

TASKS_PER_SLOT: Final = 4
"""How many tasks a wave has for each of Spark's slots: enough that none waits for the slowest for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A ledger, or a part of one, as a task is given it."""

    stream: str
    ledger_id: int
    first_offset: int
    next_offset: int
    job: UUID
    attempt: UUID
    """For the first try; another one announces an attempt of its own."""

    size_bytes: int = 0
    """About how many chunk bytes it has; 0 where nobody knows."""

    named: bytes = b""
    """Of a tier's stream, an encoded manifest that names what the piece is cut from, and nothing else."""


Fetch = Callable[[Piece], Awaitable[ReadHandle]]
"""A handle on what a piece is cut from: its ledger, or as much of it as holds the piece."""


class Reach(ABC):
    """How a task reaches the origin. It is pickled: it holds what names the origin, and nothing open."""

    __slots__ = ()

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[Fetch]:
        """The origin, open as long as the context is."""


class Origin(ABC):
    """Where a stream comes from, as the driver sees it."""

    __slots__ = ()

    @property
    @abstractmethod
    def stream(self) -> str:
        """The stream's name, there and on the tier."""

    @property
    @abstractmethod
    def reach(self) -> Reach:
        """What tasks are given."""

    @abstractmethod
    async def snapshot(self, committed: Manifest | None) -> Snapshot:
        """What the origin holds now. Where it covers all from `committed`'s last chunk on, that is enough."""

    @abstractmethod
    def ledgers(self, snapshot: Snapshot) -> Sequence[ReadHandle]:
        """Those of a snapshot that are copied: all that will not change any more."""

    @abstractmethod
    def identity(self, manifest: Manifest) -> UUID:
        """The job's, for this incarnation of the tier's stream: the same in every run."""

    def described(self, piece: Piece, ledger: ReadHandle) -> Piece:
        """The piece, with what the origin has to say of this ledger to whoever reads it."""
        return piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a stream has come in this run."""

    stream: str
    pieces: int
    pieces_done: int
    bytes: int
    """Chunk bytes that were uploaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run did for one stream."""

    uploaded: Sequence[Receipt]
    taken_over: Sequence[Receipt]
    """What an earlier run had uploaded."""

    manifest: Manifest | None
    """The newest; None where the stream was not begun, since there is nothing for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One stream's."""

    spark: SparkSession
    url: str
    options: Mapping[str, Any]
    tier: Blocking
    origin: Origin
    read_back: bool = False
    """Whether tasks read what they uploaded once more before it is named."""

    progress: Callable[[Progress], None] = lambda progress: None

    def run(self) -> Outcome:
        """Bring what the origin has onto the tier.

        Raises `Conflict` where another appended first, `Diverged` where the two tell different histories, and
        what a task raises, wrapped by Spark: nothing is named then.
        """
        planned = self.tier.run(self._planned())
        if planned is None:
            return Outcome(uploaded=(), taken_over=(), manifest=None)
        job, left, pieces = planned
        uploaded = self._uploaded(pieces)
        self.tier.run(self._appended(job, [*left, *uploaded]))
        return Outcome(uploaded=uploaded, taken_over=left, manifest=job.manifest)

    def _uploaded(self, pieces: Sequence[Piece]) -> list[Receipt]:
        """By tasks, in waves, so that it can be seen how far it came."""
        context = self.spark.sparkContext
        slots = context.defaultParallelism
        work = partial(_uploaded_by_task, self.url, self.options, self.origin.reach, self.read_back)
        found: list[Receipt] = []
        tasks = _tasks(pieces, slots)
        while wave := [*islice(tasks, slots * TASKS_PER_SLOT)]:
            for receipts in context.parallelize(wave, len(wave)).map(work).collect():
                found += receipts
            size = sum(entry.data_size_bytes for receipt in found for entry in receipt.entries)
            self.progress(
                Progress(stream=self.origin.stream, pieces=len(pieces), pieces_done=len(found), bytes=size)
            )
        return found

    async def _planned(self) -> tuple[Job, list[Receipt], list[Piece]] | None:
        """The job, what an earlier run of it left, and what is to be uploaded; announced.

        None where there is nothing to copy of a stream that the tier does not have: it is not begun for it.
        """
        offloader, stream = self.tier.offloader, self.origin.stream
        manifest = await newest(offloader, stream)
        async with await self.origin.snapshot(manifest) as snapshot:
            ledgers = self.origin.ledgers(snapshot)
            if manifest is None and not ledgers:
                return None
            manifest = manifest or await self._begun(snapshot)
            await check_same_history(offloader, manifest, snapshot)
            job = await Job.begin(offloader, stream, uid=self.origin.identity(manifest))
            left = await _left_by(job, snapshot)
            start = left[-1].next_offset if left else job.manifest.next_offset
            ledgers = [ledger for ledger in ledgers if ledger.next_offset > start]
            pieces = []
            if ledgers:
                _, attempts = await job.prepare([ledger.ledger_id for ledger in ledgers])
                pieces = [
                    self.origin.described(_piece(ledger, attempt, start, job.uid), ledger)
                    for ledger, attempt in zip(ledgers, attempts, strict=True)
                ]
        return job, left, pieces

    async def _begun(self, snapshot: Snapshot) -> Manifest:
        """The first manifest of a stream that the tier does not have."""
        offloader = self.tier.offloader
        await offloader.open(create=True)
        writer = await StreamWriter.claim(
            offloader, self.origin.stream, first_offset=snapshot.first_offset, source_epoch=snapshot.epoch
        )
        return writer.manifest

    async def _appended(self, job: Job, receipts: Sequence[Receipt]) -> None:
        if receipts:
            await job.append(receipts)
        await job.abort()  # attempts of tries that failed, and of a run that was killed


def _piece(ledger: ReadHandle, attempt: Attempt, start: int, job: UUID) -> Piece:
    return Piece(
        stream=attempt.stream,
        ledger_id=ledger.ledger_id,
        first_offset=max(ledger.first_offset, start),
        next_offset=ledger.next_offset,
        job=job,
        attempt=attempt.uid,
    )


async def abort(offloader: LedgerOffloader, stream: str, identity: Callable[[Manifest], UUID]) -> None:
    """Give up what a run left that did not end: the sweep takes it. Repeatable."""
    manifest = await offloader.load_manifest(stream)
    job = await Job.begin(offloader, stream, uid=identity(manifest))
    await job.abort()


async def _left_by(job: Job, snapshot: Snapshot) -> list[Receipt]:
    """What an earlier run left complete, continues the stream, and is what the origin has."""
    own = {
        running.attempt: running.ledger_id
        for running in job.manifest.running
        if running.writer == job.uid and running.kind is AttemptKind.JOB
    }
    if not own or not isinstance(job.offloader, ObjectStoreOffloader):
        return []
    by_attempt: dict[UUID, list[Entry]] = {}
    for left in await find_complete(job.offloader.store, job.manifest, own):
        if await checksum_at(snapshot, left.last_chunk_offset) != left.last_chunk_checksum:
            break
        by_attempt.setdefault(left.entry.attempt, []).append(left.entry)
    return [
        Receipt(attempt=Attempt(stream=job.manifest.stream, ledger_id=own[uid], uid=uid), entries=entries)
        for uid, entries in by_attempt.items()
    ]


def _tasks(pieces: Sequence[Piece], slots: int) -> Iterator[list[Piece]]:
    """Pieces in their order, small ones together. One whose size nobody knows is a task of its own."""
    share = sum(piece.size_bytes for piece in pieces) // slots
    size_bytes = min(max(share, TASK_SIZE_BYTES_MIN), TASK_SIZE_BYTES_MAX)
    task: list[Piece] = []
    weight = 0
    for piece in pieces:
        cost = piece.size_bytes or size_bytes
        if task and weight + cost > size_bytes:
            yield task
            task, weight = [], 0
        task.append(piece)
        weight += cost
    if task:
        yield task


def _uploaded_by_task(
    url: str, options: Mapping[str, Any], reach: Reach, read_back: bool, pieces: Sequence[Piece]
) -> list[Receipt]:
    """What a task does: its pieces, each under the attempt that was announced for it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    tries = context.attemptNumber() if context is not None else 0

    async def work() -> list[Receipt]:
        receipts = await upload(tier.offloader, reach, pieces, is_first=not tries)
        if read_back:
            await _read_back(tier.offloader, receipts)
        return receipts

    with Blocking(url, storage_options=dict(options)) as tier:
        return tier.run(work())


async def upload(
    offloader: LedgerOffloader, reach: Reach, pieces: Sequence[Piece], *, is_first: bool
) -> list[Receipt]:
    """Upload pieces of one stream.

    A further try announces other attempts: those of the first one may still be under way.
    """
    stream = pieces[0].stream
    job = await Job.begin(offloader, stream, uid=pieces[0].job)
    manifest = job.manifest
    attempts = [Attempt(stream=stream, ledger_id=each.ledger_id, uid=each.attempt) for each in pieces]
    if not is_first:
        manifest, attempts = await job.prepare([each.ledger_id for each in pieces])
    receipts = []
    async with reach.opened() as fetch:
        for piece, attempt in zip(pieces, attempts, strict=True):
            async with await fetch(piece) as whole:
                handle = CutHandle(whole, first_offset=piece.first_offset, next_offset=piece.next_offset)
                receipts.append(
                    await offloader.offload(handle, attempt, manifest=manifest, extra_metadata={})
                )
    return receipts


async def _read_back(offloader: LedgerOffloader, receipts: Sequence[Receipt]) -> None:
    """Raise `Corrupt` unless each uploaded fragment, read whole, is what a manifest will say of it."""
    if not isinstance(offloader, ObjectStoreOffloader):
        raise Misuse(f"{offloader.url} is no object store; there are no objects to read back")
    manifest = await offloader.load_manifest(receipts[0].attempt.stream)
    for receipt in receipts:
        for entry in receipt.entries:
            key = StreamKeys(manifest.stream).fragment(entry.first_offset, entry.attempt)
            if not await is_checked(offloader, manifest, entry, key):
                raise Absent(key, manifest.stream)
