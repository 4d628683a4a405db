"""Compaction by Spark's tasks: each copies a run of small fragments, the driver puts the copy in its place.

Steps as in `offload.tier.compaction`. The driver plans, and announces a wave of copies at once; a task that
is tried again announces others, since the first try may still be under way; then each run is one commit.

    stopped            left behind                       cured by
    before a commit    copies of attempts that run       run again: they are given up, for the sweep
    after it           the fragments that were replaced  the sweep

Invariants: the compaction of a stream's incarnation has one identity, so a run knows what an earlier one
left; of two at a time one gives up what the other has under way, and nothing worse. What was trimmed,
deleted or replaced meanwhile is left as it is, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_URL, UUID, uuid5

from offload.blocking import Blocking
from offload.errors import Absent, Conflict, OutcomeUnknown
from offload.formats.manifest import Manifest, encode_entries
from offload.offloader import Attempt, LedgerOffloader, Receipt
from offload.tier.compaction import FragmentRun, copy_run, plan_runs
from offload.tier.guest import Job
from offload.tier.object_store_offloader import TierOptions
from offload.tier.opening import open_tier
from offload.tier.reader import newer_manifest
from offload_spark.planning import of_fragments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS_PER_SLOT: Final = 4
"""How many runs a wave has for each of Spark's slots: enough that none waits for the slowest for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a run of the job did for one stream, or has done so far."""

    stream: str
    runs: int = 0
    """Runs of fragments that are one fragment now."""

    fragments: int = 0
    """How many fragments they were."""

    bytes: int = 0
    """Chunk bytes that were copied for that."""

    passed_over: int = 0
    """Runs that others trimmed or replaced meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run as a task is given it."""

    run: FragmentRun
    named: bytes
    """An encoded manifest that names the run's fragments, and runs the attempt."""

    attempt: Attempt
    """For the first try; another one announces an attempt of its own."""

    job: UUID


def compact(
    spark: SparkSession,
    url: str,
    *,
    streams: Sequence[str] = (),
    storage_options: Mapping[str, Any] | None = None,
    fragment_size_bytes: int = TierOptions().fragment_size_bytes,
    fragments_min: int = 2,
    progress: Callable[[Compacted], None] = lambda compacted: None,
) -> list[Compacted]:
    """Put fragments of up to this size in the place of small ones: of all streams, or of those named.

    Runs of fewer than `fragments_min` fragments stay. Readers and writers go on meanwhile, and notice
    nothing. `progress` is told after each wave of tasks. Raises `NotOffloaded` where the place is no tier or
    lacks a stream that is named, and what a task raises, such as `Corrupt` at damage, wrapped by Spark: what
    is in stays in then. Needs a session that is no Connect session.
    """
    options = dict(storage_options or {})
    done = []
    with _opened(url, options, fragment_size_bytes) as tier:
        for stream in [*dict.fromkeys(streams)] or tier.streams():
            compaction = _Compaction(
                spark=spark, url=url, options=options, tier=tier, size_bytes=fragment_size_bytes
            )
            done.append(compaction.run(stream, fragments_min, progress))
    return done


def give_up(url: str, stream: str, *, storage_options: Mapping[str, Any] | None = None) -> None:
    """Give up what a run of `compact` left that did not end: the sweep takes it. Repeatable."""
    with Blocking(url, storage_options=dict(storage_options or {})) as tier:
        tier.run(tier.run(_begun(tier.offloader, stream)).abort())


def identity(manifest: Manifest) -> UUID:
    """The job of a stream's incarnation: the same in every run."""
    return uuid5(NAMESPACE_URL, f"compact#{manifest.stream}#{manifest.incarnation}")


async def _begun(offloader: LedgerOffloader, stream: str) -> Job:
    manifest = await offloader.load_manifest(stream)
    return await Job.begin(offloader, stream, uid=identity(manifest))


def _opened(url: str, options: Mapping[str, Any], size_bytes: int) -> Blocking:
    how = TierOptions(fragment_size_bytes=size_bytes)
    return Blocking.around(lambda: open_tier(url, storage_options=options, options=how))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compaction:
    spark: SparkSession
    url: str
    options: Mapping[str, Any]
    tier: Blocking
    size_bytes: int

    def run(self, stream: str, fragments_min: int, progress: Callable[[Compacted], None]) -> Compacted:
        """All of one stream, as it is when its turn comes."""
        job = self.tier.run(_begun(self.tier.offloader, stream))
        self.tier.run(job.abort())  # what an earlier run left
        done = Compacted(stream=stream)
        slots = self.spark.sparkContext.defaultParallelism
        try:
            runs = iter(self.tier.run(self._planned(stream, fragments_min)))
            while wave := [*islice(runs, slots * RUNS_PER_SLOT)]:
                for piece, receipt in self._copied(self.tier.run(_announced(job, wave))):
                    done = self.tier.run(_replaced(job, piece.run, receipt, done))
                progress(done)
        finally:
            self.tier.run(job.abort())  # tries that failed, and what was passed over
        return done

    async def _planned(self, stream: str, fragments_min: int) -> list[FragmentRun]:
        offloader = self.tier.offloader
        manifest = await offloader.load_manifest(stream)
        while True:
            runs = plan_runs(
                offloader.tree(manifest), fragment_size_bytes=self.size_bytes, fragments_min=fragments_min
            )
            try:
                async with aclosing(runs):
                    return [run async for run in runs]
            except Absent as absent:  # trimmed or replaced, and swept
                manifest = await newer_manifest(offloader, manifest, absent)

    def _copied(self, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Receipt | None]]:
        """By tasks, one for each run."""
        work = partial(_copied_by_task, self.url, self.options, self.size_bytes)
        receipts = self.spark.sparkContext.parallelize(pieces, len(pieces)).map(work).collect()
        yield from zip(pieces, receipts, strict=True)


async def _announced(job: Job, runs: Sequence[FragmentRun]) -> list[Piece]:
    manifest, attempts = await job.prepare_copies([run.entries for run in runs])
    running = {each.attempt: each for each in manifest.running}
    return [
        Piece(run=run, named=_naming(manifest, run, running[attempt.uid]), attempt=attempt, job=job.uid)
        for run, attempt in zip(runs, attempts, strict=True)
    ]


def _naming(manifest: Manifest, run: FragmentRun, running: Any) -> bytes:
    return replace(of_fragments(manifest, encode_entries(run.entries)), running=(running,)).encode()


async def _replaced(job: Job, run: FragmentRun, receipt: Receipt | None, done: Compacted) -> Compacted:
    """`done` after this run, whatever became of it."""
    try:
        if receipt is None:
            raise Conflict("the run changed before it was copied")
        try:
            await job.replace(run.entries, [receipt])
        except OutcomeUnknown:
            await job.replace(run.entries, [receipt])
    except Conflict:
        return replace(done, passed_over=done.passed_over + 1)
    return replace(
        done,
        runs=done.runs + 1,
        fragments=done.fragments + len(run.entries),
        bytes=done.bytes + run.data_size_bytes,
    )


def _copied_by_task(url: str, options: Mapping[str, Any], size_bytes: int, piece: Piece) -> Receipt | None:
    """What a task does: one run. None where it changed meanwhile."""
    from pyspark import TaskContext

    context = TaskContext.get()
    tries = context.attemptNumber() if context is not None else 0
    with _opened(url, options, size_bytes) as tier:
        return tier.run(copied(tier.offloader, piece, is_first=not tries))


async def copied(offloader: LedgerOffloader, piece: Piece, *, is_first: bool) -> Receipt | None:
    """Copy a run, under the attempt that was announced for it, or in a further try under one of its own."""
    manifest, attempt = Manifest.decode(piece.named, where="a run to compact"), piece.attempt
    try:
        if not is_first:
            job = await Job.begin(offloader, attempt.stream, uid=piece.job)
            manifest, (attempt,) = await job.prepare_copies([piece.run.entries])
        return await copy_run(offloader, piece.run, attempt, manifest=manifest)
    except Conflict:
        return None
