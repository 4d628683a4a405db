"""What a broker has sealed, onto a tier, each ledger by a task of Spark's; then one commit.

The driver announces an attempt for each ledger, as a guest of the stream (`offload.tier.guest`); the tasks
read the source by its URL, which every executor must reach, and upload; the driver names all of it at once.

    stopped               left behind                       cured by
    before the commit     fragments of running attempts     run again: complete ones are taken over, checked
                                                            against the source; `abandon` gives them up
    after the commit      perhaps attempts that still run   run again, or `abandon`

Invariants: the job of a source, a stream and its incarnation has one identity, so a run knows what an earlier
one left; a task that is tried again uploads under an attempt of its own; what the source does not continue is
not appended. The newest ledger stays with the broker: it may still grow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, UUID, uuid5

from offload.blocking import Blocking
from offload.errors import NotOffloaded
from offload.formats.manifest import AttemptKind, Entry, Manifest
from offload.offloader import Attempt, CutHandle, LedgerOffloader, ReadHandle, Receipt
from offload.source import Snapshot, SourceStream
from offload.tier.adoption import find_complete
from offload.tier.guest import Job
from offload.tier.object_store_offloader import ObjectStoreOffloader
from offload.tier.opening import open_source
from offload.tier.stream_writer import StreamWriter
from offload.tier.sync import check_same_history, checksum_at, newest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """What a run did for one stream."""

    stream: str
    ledgers: int
    """Uploaded by this run."""

    taken_over: int
    """Fragments that an earlier run had uploaded."""

    next_offset: int
    """Where the tier's stream ends now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A ledger, or the rest of one, as a task is given it."""

    source: str
    stream: str
    ledger_id: int
    first_offset: int
    next_offset: int
    job: UUID
    attempt: UUID
    """For the first try; another one announces an attempt of its own."""


def backfill(
    spark: SparkSession,
    source: str,
    url: str,
    *,
    streams: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[Backfilled], None] = lambda done: None,
) -> list[Backfilled]:
    """Bring the sealed ledgers of a source onto the tier, stream after stream: all, or those that are named.

    A stream that the tier does not have is begun. `progress` is told after each stream. Raises `Conflict`
    where another appended first: run again. `Diverged`, where source and tier tell different histories, and
    what a task raises, such as `Corrupt` at damage in the source, wrapped by Spark: nothing is named then.
    Needs a session that is no Connect session.
    """
    options = dict(storage_options or {})
    done = []
    with Blocking(url, storage_options=options) as tier:
        opened = open_source(source)
        found = tier.run(opened.streams())
        for stream in [each for each in found if not streams or each.name in streams]:
            done.append(_Backfill(spark, source, url, options, tier, stream).run())
            progress(done[-1])
    return done


def abandon(source: str, url: str, stream: str, *, storage_options: Mapping[str, Any] | None = None) -> None:
    """Give up what a run of `backfill` left that did not end: the sweep takes it. Repeatable."""
    with Blocking(url, storage_options=dict(storage_options or {})) as tier:

        async def abort() -> None:
            manifest = await tier.offloader.load_manifest(stream)
            job = await Job.begin(tier.offloader, stream, uid=identity(source, manifest))
            await job.abort()

        tier.run(abort())


def identity(source: str, manifest: Manifest) -> UUID:
    """The job of a source and a stream's incarnation: the same in every run."""
    return uuid5(NAMESPACE_URL, f"{source}#{manifest.stream}#{manifest.incarnation}")


@dataclass(frozen=True, slots=True)
class _Backfill:
    """One stream's."""

    spark: SparkSession
    source: str
    url: str
    options: Mapping[str, Any]
    tier: Blocking
    stream: SourceStream

    def run(self) -> Backfilled:
        planned = self.tier.run(self._planned())
        if planned is None:
            return Backfilled(stream=self.stream.name, ledgers=0, taken_over=0, next_offset=0)
        job, left, pieces = planned
        uploaded: list[Receipt] = []
        if pieces:
            work = partial(_uploaded, self.url, self.options)
            uploaded = self.spark.sparkContext.parallelize(pieces, len(pieces)).map(work).collect()
        self.tier.run(self._appended(job, [*left, *uploaded]))
        return Backfilled(
            stream=self.stream.name,
            ledgers=len(uploaded),
            taken_over=sum(len(receipt.entries) for receipt in left),
            next_offset=job.manifest.next_offset,
        )

    async def _planned(self) -> tuple[Job, list[Receipt], list[Piece]] | None:
        """The job, what an earlier run of it left, and what is to be uploaded; announced.

        None where nothing is sealed of a stream that the tier does not have: it is not begun for nothing.
        """
        offloader = self.tier.offloader
        async with await self.stream.snapshot() as snapshot:
            manifest = await newest(offloader, self.stream.name)
            if manifest is None and not snapshot.ledgers[:-1]:
                return None
            manifest = manifest or await self._begun(snapshot)
            await check_same_history(offloader, manifest, snapshot)
            job = await Job.begin(offloader, self.stream.name, uid=identity(self.source, manifest))
            left = await _left_by(job, snapshot)
            start = left[-1].next_offset if left else job.manifest.next_offset
            ledgers = [ledger for ledger in snapshot.ledgers[:-1] if ledger.next_offset > start]
            pieces = []
            if ledgers:
                _, attempts = await job.prepare([ledger.ledger_id for ledger in ledgers])
                pieces = [
                    self._piece(ledger, attempt, start, job.uid)
                    for ledger, attempt in zip(ledgers, attempts, strict=True)
                ]
        return job, left, pieces

    async def _begun(self, snapshot: Snapshot) -> Manifest:
        """The first manifest of a stream that the tier does not have."""
        offloader = self.tier.offloader
        await offloader.open(create=True)
        writer = await StreamWriter.claim(
            offloader, self.stream.name, first_offset=snapshot.first_offset, source_epoch=snapshot.epoch
        )
        return writer.manifest

    def _piece(self, ledger: ReadHandle, attempt: Attempt, start: int, job: UUID) -> Piece:
        return Piece(
            source=self.source,
            stream=self.stream.name,
            ledger_id=ledger.ledger_id,
            first_offset=max(ledger.first_offset, start),
            next_offset=ledger.next_offset,
            job=job,
            attempt=attempt.uid,
        )

    async def _appended(self, job: Job, receipts: Sequence[Receipt]) -> None:
        if receipts:
            await job.append(receipts)
        await job.abort()  # attempts of tries that failed, and of a run that was killed


async def _left_by(job: Job, snapshot: Snapshot) -> list[Receipt]:
    """What an earlier run left complete, continues the stream, and is what the source has."""
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


def _uploaded(url: str, options: Mapping[str, Any], piece: Piece) -> Receipt:
    """What a task does: one ledger, under the attempt that was announced for it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    tries = context.attemptNumber() if context is not None else 0
    with Blocking(url, storage_options=dict(options)) as tier:
        return tier.run(upload(tier.offloader, piece, is_first=not tries))


async def upload(offloader: LedgerOffloader, piece: Piece, *, is_first: bool) -> Receipt:
    """Upload a piece. A further try announces another attempt: the first one may still be under way."""
    job = await Job.begin(offloader, piece.stream, uid=piece.job)
    manifest = job.manifest
    attempt = Attempt(stream=piece.stream, ledger_id=piece.ledger_id, uid=piece.attempt)
    if not is_first:
        manifest, (attempt,) = await job.prepare([piece.ledger_id])
    stream = await open_source(piece.source).stream(piece.stream)
    async with await stream.snapshot() as snapshot:
        handle = CutHandle(
            _ledger(snapshot, piece), first_offset=piece.first_offset, next_offset=piece.next_offset
        )
        return await offloader.offload(handle, attempt, manifest=manifest, extra_metadata={})


def _ledger(snapshot: Snapshot, piece: Piece) -> ReadHandle:
    for ledger in snapshot.ledgers:
        if ledger.ledger_id == piece.ledger_id:
            return ledger
    raise NotOffloaded(f"{piece.source}: stream {piece.stream!r} has no ledger {piece.ledger_id} any more")
