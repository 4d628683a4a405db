"""Compacting a stream, step by step: by one process here, or with the copying spread over many machines.

    begin      drop the attempts that an earlier, interrupted compaction left
    wave       plan the next runs of fragments, and announce a copy of each, all by one commit
    copied     copy each run; the driver of the steps decides where
    replace    put a copy where its run was, by one commit
    end        drop the attempts whose copies were not used

    stopped            left behind                       cured by
    before a commit    copies of attempts that run       the next compaction drops them, then the sweep
    after it           the fragments that were replaced  the sweep

Invariants:

- All compactions of a stream's incarnation have the same identity, whoever drives them. So each one knows
  what an earlier one left.
- If two compactions run at the same time, one drops what the other has announced. Nothing worse happens.
- A run of fragments that others trimmed, deleted or replaced meanwhile stays as it is, and is counted.
- The plan is made as it is used: it holds the runs of one group at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Final, Self
from uuid import NAMESPACE_URL, UUID, uuid5

from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import Absent, Conflict, NotOffloaded, OffloadError, OutcomeUnknown, StoreDenied
from offload.ground.tasks import in_order, one_by_one
from offload.model.attempt import Attempt, Receipt
from offload.model.entry import rows_of_entries
from offload.model.excerpt import of_fragments
from offload.model.manifest import Manifest, Running
from offload.parts.whole_stream import with_parts
from offload.read.reader import newer_manifest
from offload.upkeep.compact.runs import FragmentRun, copy_run, plan_runs
from offload.write.job import Job

__all__ = ["AnnouncedRun", "Compacted", "Compaction", "begin_job", "compact", "copied"]


RUNS_AT_ONCE: Final = 4
RUNS_PER_WAVE: Final = 16
"""How many runs `compact` copies at once, and how many it announces by one commit.

A larger wave saves commits. It also announces more attempts, which every commit of the stream carries.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The result of a compaction for one stream, final or so far."""

    stream: str
    runs: int = 0
    """Number of runs that were merged: each is one fragment now."""

    fragments: int = 0
    """Number of fragments that were in these runs."""

    bytes: int = 0
    """Chunk bytes that were copied for them, before compression."""

    stored_bytes: int = 0
    """Size of the fragments that they became."""

    passed_over: int = 0
    """Number of runs that others trimmed or replaced meanwhile."""

    dropped_sections: Mapping[str, int] = field(default_factory=dict)
    """Sections of other programs that were left out: the name of each, and how many fragments had one."""

    error: OffloadError | None = None
    """The error that stopped it; None if none did. Runs that were merged before stay merged."""

    def as_json(self) -> dict[str, object]:
        """Return a line of `offload compact --json`."""
        plain = {name: value for name, value in asdict(self).items() if name != "error"}
        return plain if self.error is None else {**plain, "error": str(self.error)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedRun:
    """A run of fragments as the process that copies it gets it. Spark pickles it: plain values only."""

    run: FragmentRun
    named: Manifest
    """A manifest that names only the run's fragments, and runs only the attempt."""

    attempt: Attempt
    """The attempt of the first try. A further try announces its own."""

    job: UUID


@dataclass(kw_only=True)
class Compaction:
    """The compaction of one stream. Made by `begin`, and used by one task. Always call `end`."""

    job: Job
    fragment_size_bytes: int
    fragments_min: int
    done: Compacted
    offsets: range
    """The stream's offsets when the compaction began."""

    reached: int
    """All fragments below this offset are done."""

    _runs: AsyncGenerator[FragmentRun, None] = field(init=False)

    def __post_init__(self) -> None:
        self._runs = self._planned()

    @classmethod
    async def begin(
        cls, offloader: LedgerOffloader, stream: str, *, fragment_size_bytes: int, fragments_min: int = 2
    ) -> Self:
        """Begin, and drop what an earlier run left. Raises `NotOffloaded` if there is no such stream."""
        job = await begin_job(offloader, stream)
        # The abort comes before this run announces anything, because it drops every attempt of the job.
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
        """Plan and announce the next runs, at most `runs_max`. An empty list is the end of the stream."""
        runs: list[FragmentRun] = []
        while len(runs) < runs_max and (run := await anext(self._runs, None)) is not None:
            runs.append(run)
        if not runs:
            return []
        # Announced before the first byte is uploaded: a sweep deletes a fragment whose attempt does not run.
        manifest, attempts = await self.job.prepare_copies([run.entries for run in runs])
        running = {each.attempt: each for each in manifest.running}
        # Each run gets a manifest of its own, with nothing else in it: a large one would be pickled with
        # every task, and this one is enough to open the run without a request.
        return [
            AnnouncedRun(
                run=run, named=_naming(manifest, run, running[attempt.uid]), attempt=attempt, job=self.job.uid
            )
            for run, attempt in zip(runs, attempts, strict=True)
        ]

    async def replace(self, run: FragmentRun, receipt: Receipt | None) -> None:
        """Put the copy in the run's place, and count it. `receipt` is None if the run changed before."""
        self.reached = run.entries[-1].next_offset
        # Passed over: the copy stays under a running attempt until `end` drops it.
        if receipt is None or not await self._is_replaced(run, receipt):
            self.done = replace(self.done, passed_over=self.done.passed_over + 1)
            return
        self.done = replace(
            self.done,
            runs=self.done.runs + 1,
            fragments=self.done.fragments + len(run.entries),
            bytes=self.done.bytes + run.data_size_bytes,
            stored_bytes=self.done.stored_bytes + sum(entry.stored_size_bytes for entry in receipt.entries),
            dropped_sections=dict(Counter(self.done.dropped_sections) + Counter(receipt.dropped_sections)),
        )

    async def end(self) -> None:
        """Drop the attempts of failed tries, and of runs that were skipped. May be repeated."""
        await self._runs.aclose()  # it may be in the middle of a group
        await self.job.abort()

    async def _is_replaced(self, run: FragmentRun, receipt: Receipt) -> bool:
        try:
            try:
                await self.job.replace(run.entries, [receipt])
            except OutcomeUnknown:
                # Replace is repeatable: if the first one was committed after all, the second one finds the
                # copy named and changes nothing.
                await self.job.replace(run.entries, [receipt])
        except Conflict:
            return False
        return True

    async def _planned(self) -> AsyncGenerator[FragmentRun, None]:
        """Yield every run. If a group was replaced and swept, continue by the newest manifest."""
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
                        # Set before the yield: if the manifest changes, this run is not planned twice.
                        planned_to = run.entries[-1].next_offset
                        yield run
            except Absent as absent:  # raised again if the newest manifest still names the group: damage
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
    """Merge small fragments into fragments of up to `fragment_size_bytes`: of all streams, or of those named.

    Runs of fewer than `fragments_min` fragments stay as they are. Readers and writers continue meanwhile, and
    notice nothing. The offloader's own fragment size must be at least `fragment_size_bytes`. After a kill,
    call it again: runs that were merged stay merged, the others are copied again. `progress` is called after
    each run of fragments.

    A stream that fails is reported with its error, and the next stream follows. After `StoreDenied` no stream
    follows. Raises `NotOffloaded` if the place is no tier.
    """
    await offloader.open()
    for stream in await with_parts(offloader, streams) or await offloader.streams():
        found = await _compacted(offloader, stream, fragment_size_bytes, fragments_min, progress)
        # Of all streams, and of all parts, some are deleted.
        if stream in streams or not isinstance(found.error, NotOffloaded):
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
        # The attempts end after Ctrl-C too: while they run, no sweep deletes their copies. If this fails, the
        # next compaction drops them, and the first error is the one to report.
        with suppress(OffloadError):
            await compaction.end()
        if isinstance(error, OffloadError):
            return replace(compaction.done, error=error)
        raise
    return compaction.done


async def _drive(compaction: Compaction, progress: Callable[[Compaction], None]) -> None:
    """Copy in this process, several runs at once, and put each in place in its turn."""
    offloader = compaction.job.offloader
    while wave := await compaction.wave(RUNS_PER_WAVE):
        # Copies run together, replaces one after another: each is a commit of the same stream, and two at
        # once would only conflict.
        copies = in_order(partial(copied, offloader), one_by_one(wave), at_once=RUNS_AT_ONCE)
        async with aclosing(copies):
            async for announced, receipt in copies:
                await compaction.replace(announced.run, receipt)
                progress(compaction)
    await compaction.end()


async def copied(
    offloader: LedgerOffloader, announced: AnnouncedRun, *, is_first: bool = True
) -> Receipt | None:
    """Copy a run, and return the receipt; None if the run changed meanwhile.

    The first try uses the attempt that was announced for it. A further try announces its own, since the first
    one may still be under way, and attempts never share an object.
    """
    manifest, attempt = announced.named, announced.attempt
    try:
        if not is_first:
            # Raises `StreamDeleted` if the stream was begun again since the run was announced.
            job = await Job.begin(
                offloader, attempt.stream, uid=announced.job, incarnation=manifest.incarnation
            )
            manifest, (attempt,) = await job.prepare_copies([announced.run.entries])
        return await copy_run(offloader, announced.run, attempt, manifest=manifest)
    except Conflict:
        return None


async def begin_job(offloader: LedgerOffloader, stream: str) -> Job:
    """Begin the stream's compaction as a job. Its `abort` drops what an unfinished compaction left."""
    manifest = await offloader.load_manifest(stream)
    return await Job.begin(offloader, stream, uid=compaction_identity(manifest))


def compaction_identity(manifest: Manifest) -> UUID:
    """Return the identity of the compaction of a stream's incarnation: the same in every run."""
    return uuid5(NAMESPACE_URL, f"compact#{manifest.stream}#{manifest.incarnation}")


def _naming(manifest: Manifest, run: FragmentRun, running: Running) -> Manifest:
    excerpt = of_fragments(manifest, rows_of_entries(run.entries))
    return replace(excerpt, running=(running,))
