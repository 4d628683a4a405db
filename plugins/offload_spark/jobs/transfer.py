"""From an origin onto a stream of a tier: Spark's tasks upload, one commit names all. What such jobs share.

The driver announces an attempt for each piece, as a guest of the stream (`offload.tier.guest`); the tasks
reach the origin by what they are given, which every executor must be able to, and upload; the driver names
all of it at once.

    stopped               left behind                       cured by
    before the commit     fragments of running attempts     run again: complete ones are taken over, checked
                                                            against the origin; `abort` gives them up
    after the commit      perhaps attempts that still run   run again, or `abort`

Invariants: the transfer of an origin, a stream and its incarnation has one identity, so a run knows what an
earlier one left; what the origin does not continue is not appended; no record passes through the driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from offload.blocking import Blocking
from offload.formats.keys import StreamKeys
from offload.formats.manifest import AttemptKind, Entry, Manifest
from offload.offloader import Attempt, LedgerOffloader, Leftover, ReadHandle, Receipt
from offload.source import Snapshot
from offload.store.port import Listed
from offload.tier.adoption import uploaded_of
from offload.tier.guest import Job
from offload.tier.object_store_offloader import ObjectStoreOffloader
from offload.tier.stream_writer import StreamWriter
from offload.tier.sync import check_same_history, newest
from offload_spark.jobs.transfer_tasks import Ends, Left, Part, Piece, Reach, Sized, tasks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

R = TypeVar("R")

TASKS_PER_SLOT: Final = 4
"""How many tasks a wave has for each of Spark's slots: enough that none waits for the slowest for long."""


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

    def described(self, part: Part, ledger: ReadHandle) -> Part:
        """The part, with what the origin has to say of this ledger to whoever reads it."""
        return part


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a stream has come in this run."""

    stream: str
    taken_over: int
    """Fragments of an earlier run that were found complete."""

    pieces: int = 0
    """How many there are to upload; 0 until that is known."""

    pieces_done: int = 0
    bytes: int = 0
    """Chunk bytes that were uploaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run did for one stream."""

    uploaded: Sequence[Receipt] = ()
    taken_over: Sequence[Receipt] = ()
    """What an earlier run had uploaded."""

    manifest: Manifest | None = None
    """The newest; None where the stream was not begun, since there is nothing for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One stream's."""

    spark: SparkSession
    tier: Blocking
    origin: Origin
    ends: Ends
    progress: Callable[[Progress], None] = lambda progress: None

    def run(self) -> Outcome:
        """Bring what the origin has onto the tier.

        Raises `Conflict` where another appended first, `Diverged` where the two tell different histories, and
        what a task raises, wrapped by Spark: nothing is named then.
        """
        tier = self.tier
        manifest = tier.run(newest(tier.offloader, self.origin.stream))
        snapshot = tier.run(self.origin.snapshot(manifest))
        try:
            ledgers = self.origin.ledgers(snapshot)
            if manifest is None and not ledgers:  # it is not begun for nothing
                return Outcome()
            job = tier.run(self._begun(manifest, snapshot))
            left = self._taken_over(job, ledgers)
            start = end_of(left, job.manifest.next_offset)
            pieces = tier.run(self._announced(job, ledgers, start))
            uploaded = self._uploaded(pieces, Progress(stream=self.origin.stream, taken_over=_count(left)))
        finally:
            tier.run(snapshot.aclose())
        tier.run(self._appended(job, [*left, *uploaded]))
        return Outcome(uploaded=uploaded, taken_over=left, manifest=job.manifest)

    async def _begun(self, manifest: Manifest | None, snapshot: Snapshot) -> Job:
        """The job, on a stream that tells the origin's history. Where the tier has none, it is begun."""
        offloader, stream = self.tier.offloader, self.origin.stream
        if manifest is None:
            await offloader.open(create=True)
            writer = await StreamWriter.claim(
                offloader, stream, first_offset=snapshot.first_offset, source_epoch=snapshot.epoch
            )
            manifest = writer.manifest
        await check_same_history(offloader, manifest, snapshot)
        return await Job.begin(offloader, stream, uid=self.origin.identity(manifest))

    def _taken_over(self, job: Job, ledgers: Sequence[ReadHandle]) -> list[Receipt]:
        """What an earlier run left complete, continues the stream, and is what the origin has."""
        own = {
            running.attempt: running.ledger_id
            for running in job.manifest.running
            if running.writer == job.uid and running.kind is AttemptKind.JOB
        }
        if not own or not isinstance(job.offloader, ObjectStoreOffloader):
            return []
        rows = self.tier.run(_all_of(job.offloader, job.manifest, own))
        found: list[Leftover] = []
        for some in self._in_waves(self._left(job.manifest, rows, ledgers), self.ends.check):
            found += some
            self.progress(Progress(stream=self.origin.stream, taken_over=len(found)))
        return chained(self.origin.stream, job.manifest.next_offset, found, own)

    def _left(self, manifest: Manifest, rows: Sequence[Listed], ledgers: Sequence[ReadHandle]) -> list[Left]:
        """The rows, each with the ledger that holds its first record."""
        keys, firsts = StreamKeys(manifest.stream), [ledger.first_offset for ledger in ledgers]
        by_ledger: dict[int, list[Listed]] = {}
        for row in rows:
            parsed = keys.parse_fragment(row.key)
            number = -1 if parsed is None else bisect_right(firsts, parsed[0]) - 1
            if number >= 0:
                by_ledger.setdefault(number, []).append(row)
        return [
            Left(part=self._part(ledgers[number], 0), incarnation=manifest.incarnation, rows=found)
            for number, found in by_ledger.items()
        ]

    async def _announced(self, job: Job, ledgers: Sequence[ReadHandle], start: int) -> list[Piece]:
        """What is to be uploaded, from `start` on."""
        parts = [self._part(ledger, start) for ledger in ledgers if ledger.next_offset > start]
        if not parts:
            return []
        _, attempts = await job.prepare([part.ledger_id for part in parts])
        return [
            Piece(part=part, job=job.uid, attempt=attempt.uid)
            for part, attempt in zip(parts, attempts, strict=True)
        ]

    def _part(self, ledger: ReadHandle, start: int) -> Part:
        """The ledger from `start` on."""
        part = Part(
            stream=self.origin.stream,
            ledger_id=ledger.ledger_id,
            first_offset=max(ledger.first_offset, start),
            next_offset=ledger.next_offset,
        )
        return self.origin.described(part, ledger)

    def _uploaded(self, pieces: Sequence[Piece], progress: Progress) -> list[Receipt]:
        found: list[Receipt] = []
        size = 0
        for some in self._in_waves(pieces, self.ends.upload):
            found += some
            size += sum(entry.data_size_bytes for receipt in some for entry in receipt.entries)
            self.progress(replace(progress, pieces=len(pieces), pieces_done=len(found), bytes=size))
        return found

    def _in_waves(
        self, items: Sequence[Sized], work: Callable[[Sequence[Sized]], list[R]]
    ) -> Iterator[list[R]]:
        """By tasks, so many at a time that it can be seen how far it came."""
        context = self.spark.sparkContext
        slots: int = context.defaultParallelism
        tasks: Iterator[list[Sized]] = tasks_of(items, slots)
        while wave := [*islice(tasks, slots * TASKS_PER_SLOT)]:
            done = context.parallelize(wave, len(wave)).map(work).collect()
            yield [one for task in done for one in task]

    async def _appended(self, job: Job, receipts: Sequence[Receipt]) -> None:
        if receipts:
            await job.append(receipts)
        await job.abort()  # attempts of tries that failed, and of a run that was killed


async def abort(offloader: LedgerOffloader, stream: str, identity: Callable[[Manifest], UUID]) -> None:
    """Give up what a run left that did not end: the sweep takes it. Repeatable."""
    manifest = await offloader.load_manifest(stream)
    job = await Job.begin(offloader, stream, uid=identity(manifest))
    await job.abort()


async def _all_of(
    offloader: ObjectStoreOffloader, manifest: Manifest, attempts: Mapping[UUID, int]
) -> list[Listed]:
    return [row async for row in uploaded_of(offloader.store, manifest, attempts)]


def chained(
    stream: str, next_offset: int, found: Sequence[Leftover], own: Mapping[UUID, int]
) -> list[Receipt]:
    """Of what was found, one chain without a hole from `next_offset` on; `own` has each attempt's ledger."""
    by_attempt: dict[UUID, list[Entry]] = {}
    for entry in sorted((each.entry for each in found), key=lambda entry: entry.first_offset):
        if entry.first_offset == next_offset and entry.ledger_id == own[entry.attempt]:
            by_attempt.setdefault(entry.attempt, []).append(entry)
            next_offset = entry.next_offset
    return [
        Receipt(attempt=Attempt(stream=stream, ledger_id=own[uid], uid=uid), entries=entries)
        for uid, entries in by_attempt.items()
    ]


def end_of(receipts: Sequence[Receipt], next_offset: int) -> int:
    """Where the stream ends with these. The last receipt need not end last: a later run fills holes."""
    return max([next_offset, *(receipt.next_offset for receipt in receipts)])


def _count(receipts: Sequence[Receipt]) -> int:
    return sum(len(receipt.entries) for receipt in receipts)
