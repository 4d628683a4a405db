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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from offload.blocking import Blocking
from offload.formats.manifest import AttemptKind, Entry, Manifest
from offload.offloader import Attempt, CutHandle, LedgerOffloader, ReadHandle, Receipt
from offload.source import Snapshot
from offload.tier.adoption import find_complete
from offload.tier.guest import Job
from offload.tier.object_store_offloader import ObjectStoreOffloader
from offload.tier.stream_writer import StreamWriter
from offload.tier.sync import check_same_history, checksum_at, newest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    def run(self) -> Outcome:
        """Bring what the origin has onto the tier.

        Raises `Conflict` where another appended first, `Diverged` where the two tell different histories, and
        what a task raises, wrapped by Spark: nothing is named then.
        """
        planned = self.tier.run(self._planned())
        if planned is None:
            return Outcome(uploaded=(), taken_over=(), manifest=None)
        job, left, pieces = planned
        uploaded: list[Receipt] = []
        if pieces:
            work = partial(_uploaded, self.url, self.options, self.origin.reach)
            uploaded = self.spark.sparkContext.parallelize(pieces, len(pieces)).map(work).collect()
        self.tier.run(self._appended(job, [*left, *uploaded]))
        return Outcome(uploaded=uploaded, taken_over=left, manifest=job.manifest)

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
                    _piece(ledger, attempt, start, job.uid)
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


def _uploaded(url: str, options: Mapping[str, Any], reach: Reach, piece: Piece) -> Receipt:
    """What a task does: one piece, under the attempt that was announced for it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    tries = context.attemptNumber() if context is not None else 0
    with Blocking(url, storage_options=dict(options)) as tier:
        return tier.run(upload(tier.offloader, reach, piece, is_first=not tries))


async def upload(offloader: LedgerOffloader, reach: Reach, piece: Piece, *, is_first: bool) -> Receipt:
    """Upload a piece. A further try announces another attempt: the first one may still be under way."""
    job = await Job.begin(offloader, piece.stream, uid=piece.job)
    manifest = job.manifest
    attempt = Attempt(stream=piece.stream, ledger_id=piece.ledger_id, uid=piece.attempt)
    if not is_first:
        manifest, (attempt,) = await job.prepare([piece.ledger_id])
    async with reach.opened() as fetch:
        whole = await fetch(piece)
        handle = CutHandle(whole, first_offset=piece.first_offset, next_offset=piece.next_offset)
        return await offloader.offload(handle, attempt, manifest=manifest, extra_metadata={})
