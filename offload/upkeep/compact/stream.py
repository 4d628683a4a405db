"""Compacting a stream, step by step: by one process here, or with the copying spread over many machines.

    begin      what an earlier run left is given up
    wave       the next runs are planned, and a copy of each is announced; all by one commit
    copied     each run is copied, by whoever drives the steps
    replace    one commit puts a copy where its run was
    end        attempts that came to nothing are dropped

    stopped            left behind                       cured by
    before a commit    copies of attempts that run       the next run: it gives them up, for the sweep
    after it           the fragments that were replaced  the sweep

Invariants: the compaction of a stream's incarnation has one identity, whoever drives it, so each knows what
an earlier one left. If two are under way, one gives up what the other has announced, and nothing worse. A run
of fragments that others trimmed, deleted or replaced meanwhile is left as it is, and counted. The plan is
made as it is used: it holds the runs of one group at a time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Final, Self
from uuid import NAMESPACE_URL, UUID, uuid5

from offload.contracts.offloader import LedgerOffloader
from offload.errors import Absent, Conflict, NotOffloaded, OffloadError, OutcomeUnknown, StoreDenied
from offload.model.attempt import Attempt, Receipt
from offload.model.entry import rows_of_entries
from offload.model.excerpt import of_fragments
from offload.model.manifest import Manifest, Running
from offload.streams.job import Job
from offload.streams.reader import newer_manifest
from offload.tasks import in_order, one_by_one
from offload.upkeep.compact.runs import FragmentRun, copy_run, plan_runs

__all__ = ["AnnouncedRun", "Compacted", "Compaction", "begin_job", "compact", "copied"]


RUNS_AT_ONCE: Final = 4
RUNS_PER_WAVE: Final = 16
"""How many runs `compact` copies at once, and how many it announces by one commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a compaction did for one stream, or has done so far."""

    stream: str
    runs: int = 0
    """Runs of fragments that are one fragment now."""

    fragments: int = 0
    """How many fragments they were."""

    bytes: int = 0
    """Chunk bytes that were copied for that."""

    passed_over: int = 0
    """Runs that others trimmed or replaced meanwhile."""

    error: OffloadError | None = None
    """What stopped it. What was put in place before stays."""

    def as_json(self) -> dict[str, object]:
        """One line of `offload compact --json`."""
        plain = {name: value for name, value in asdict(self).items() if name != "error"}
        return plain if self.error is None else {**plain, "error": str(self.error)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedRun:
    """A run of fragments as it is given to whoever copies it. Spark pickles it: it holds plain values."""

    run: FragmentRun
    named: Manifest
    """It names the run's fragments, and runs the attempt, and nothing else."""

    attempt: Attempt
    """For the first try; another one announces an attempt of its own."""

    job: UUID


@dataclass(kw_only=True)
class Compaction:
    """One stream's. Made by `begin`; used by one task. Call `end` whatever happens."""

    job: Job
    fragment_size_bytes: int
    fragments_min: int
    done: Compacted
    offsets: range
    """The stream's when the compaction began."""

    reached: int
    """What is below this offset was dealt with."""

    _runs: AsyncGenerator[FragmentRun, None] = field(init=False)

    def __post_init__(self) -> None:
        self._runs = self._planned()

    @classmethod
    async def begin(
        cls, offloader: LedgerOffloader, stream: str, *, fragment_size_bytes: int, fragments_min: int = 2
    ) -> Self:
        """Begin, and give up what an earlier run left. Raises `NotOffloaded` if there is no such stream."""
        job = await begin_job(offloader, stream)
        await job.abort()
        begun = job.manifest
        return cls(
            job=job,
            fragment_size_bytes=fragment_size_bytes,
            fragments_min=fragments_min,
            done=Compacted(stream=stream),
            offsets=range(begun.first_offset, begun.next_offset),
            reached=begun.first_offset,
        )

    async def wave(self, runs_max: int) -> list[AnnouncedRun]:
        """Plan and announce the next runs, at most so many. An empty list is the end."""
        runs: list[FragmentRun] = []
        while len(runs) < runs_max and (run := await anext(self._runs, None)) is not None:
            runs.append(run)
        if not runs:
            return []
        manifest, attempts = await self.job.prepare_copies([run.entries for run in runs])
        running = {each.attempt: each for each in manifest.running}
        return [
            AnnouncedRun(
                run=run, named=_naming(manifest, run, running[attempt.uid]), attempt=attempt, job=self.job.uid
            )
            for run, attempt in zip(runs, attempts, strict=True)
        ]

    async def replace(self, run: FragmentRun, receipt: Receipt | None) -> None:
        """Put the copy in the run's place, and count what came of it; None is a run that changed before."""
        self.reached = run.entries[-1].next_offset
        if receipt is None or not await self._is_replaced(run, receipt):
            self.done = replace(self.done, passed_over=self.done.passed_over + 1)
            return
        self.done = replace(
            self.done,
            runs=self.done.runs + 1,
            fragments=self.done.fragments + len(run.entries),
            bytes=self.done.bytes + run.data_size_bytes,
        )

    async def end(self) -> None:
        """Drop the attempts of tries that failed, and of what was passed over. Repeatable."""
        await self._runs.aclose()
        await self.job.abort()

    async def _is_replaced(self, run: FragmentRun, receipt: Receipt) -> bool:
        try:
            try:
                await self.job.replace(run.entries, [receipt])
            except OutcomeUnknown:
                await self.job.replace(run.entries, [receipt])
        except Conflict:
            return False
        return True

    async def _planned(self) -> AsyncGenerator[FragmentRun, None]:
        """Every run. If a group was replaced and swept, the plan goes on behind it by the newest manifest."""
        offloader, manifest = self.job.offloader, self.job.manifest
        planned_to = manifest.first_offset
        while True:
            runs = plan_runs(
                offloader.tree(manifest),
                fragment_size_bytes=self.fragment_size_bytes,
                fragments_min=self.fragments_min,
                since=planned_to,
            )
            try:
                async with aclosing(runs):
                    async for run in runs:
                        planned_to = run.entries[-1].next_offset
                        yield run
            except Absent as absent:
                manifest = await newer_manifest(offloader, manifest, absent)
            else:
                return


async def compact(
    offloader: LedgerOffloader,
    *,
    streams: Sequence[str] = (),
    fragment_size_bytes: int,
    fragments_min: int = 2,
    progress: Callable[[Compaction], None] = lambda compaction: None,
) -> AsyncIterator[Compacted]:
    """Put fragments of up to this size in the place of small ones: of all streams, or of those named.

    Runs of fewer than `fragments_min` fragments stay. Readers and writers go on meanwhile, and notice
    nothing. The offloader's own fragment size must be at least `fragment_size_bytes`. Killed at any moment
    and called again, it goes on: what was put in place stays, the rest is copied again. `progress` hears of
    each run of fragments.

    A stream that fails is reported with its error, and the next one goes on; after `StoreDenied` none does.
    Raises `NotOffloaded` if the place is no tier.
    """
    await offloader.open()
    for stream in [*dict.fromkeys(streams)] or await offloader.streams():
        found = await _compacted(offloader, stream, fragment_size_bytes, fragments_min, progress)
        if streams or not isinstance(found.error, NotOffloaded):  # of all streams, some are deleted
            yield found
        if isinstance(found.error, StoreDenied):  # every other stream would be denied too
            return


async def _compacted(
    offloader: LedgerOffloader,
    stream: str,
    fragment_size_bytes: int,
    fragments_min: int,
    progress: Callable[[Compaction], None],
) -> Compacted:
    try:
        compaction = await Compaction.begin(
            offloader, stream, fragment_size_bytes=fragment_size_bytes, fragments_min=fragments_min
        )
    except OffloadError as error:
        return Compacted(stream=stream, error=error)
    try:
        await _drive(compaction, progress)
    except BaseException as error:
        with suppress(OffloadError):  # the first error is the one to report; the next run gives the rest up
            await compaction.end()
        if isinstance(error, OffloadError):
            return replace(compaction.done, error=error)
        raise
    return compaction.done


async def _drive(compaction: Compaction, progress: Callable[[Compaction], None]) -> None:
    """Copy in this process, some runs at once, and put each in place in its turn."""
    offloader = compaction.job.offloader
    while wave := await compaction.wave(RUNS_PER_WAVE):
        copies = in_order(partial(copied, offloader), one_by_one(wave), at_once=RUNS_AT_ONCE)
        async with aclosing(copies):
            async for announced, receipt in copies:
                await compaction.replace(announced.run, receipt)
                progress(compaction)
    await compaction.end()


async def copied(
    offloader: LedgerOffloader, announced: AnnouncedRun, *, is_first: bool = True
) -> Receipt | None:
    """Copy a run, under the attempt that was announced for it; in a further try under one of its own.

    A further try must not share the attempt, since the first may still be under way. Returns None if the run
    changed meanwhile.
    """
    manifest, attempt = announced.named, announced.attempt
    try:
        if not is_first:
            job = await Job.begin(
                offloader, attempt.stream, uid=announced.job, incarnation=manifest.incarnation
            )
            manifest, (attempt,) = await job.prepare_copies([announced.run.entries])
        return await copy_run(offloader, announced.run, attempt, manifest=manifest)
    except Conflict:
        return None


async def begin_job(offloader: LedgerOffloader, stream: str) -> Job:
    """Begin the stream's compaction as a job. Its `abort` gives up what a run left that did not end."""
    manifest = await offloader.load_manifest(stream)
    return await Job.begin(offloader, stream, uid=compaction_identity(manifest))


def compaction_identity(manifest: Manifest) -> UUID:
    """Return the job of a stream's incarnation: the same in every run."""
    return uuid5(NAMESPACE_URL, f"compact#{manifest.stream}#{manifest.incarnation}")


def _naming(manifest: Manifest, run: FragmentRun, running: Running) -> Manifest:
    excerpt = of_fragments(manifest, rows_of_entries(run.entries))
    return replace(excerpt, running=(running,))
