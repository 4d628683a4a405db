"""The roles of a simulated world: what each does again and again, and what each must never see.

No role looks at objects, which is the judge's work. Roles use the code under test as its users do, and check
the promises of its docstrings. An error that no docstring names ends the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing, suppress
from math import inf
from typing import Any, TypeVar
from uuid import UUID

from protocol_judge import DELETED
from protocol_world import CHUNK_RECORDS, KEYS, STREAM, Ledger, chunk, timestamp_ms_of

from offload.contracts.events import Event, Skipped
from offload.copy.history import agreement, check_same_history, newest
from offload.ground.errors import (
    Absent,
    Conflict,
    Diverged,
    Fenced,
    Misuse,
    NotOffloaded,
    OutcomeUnknown,
    StreamDeleted,
)
from offload.model.attempt import Attempt, Receipt
from offload.model.entry import entries_of_rows
from offload.model.manifest import Manifest
from offload.model.position import AtEdge, AtOffset, AtTime
from offload.model.tokens import token_of
from offload.read.reader import StreamReader, newer_manifest
from offload.upkeep.compact.runs import FragmentRun, copy_run, plan_runs
from offload.upkeep.retention import Retention, delete_stream, trim
from offload.upkeep.sweep.tier import Sweeper, sweep
from offload.upkeep.verify.tier import verify
from offload.write.job import Job
from offload.write.writer import StreamWriter
from simulation import locksmith
from simulation.broker import Log
from simulation.world import COMPACTED_SIZE_BYTES, Process, after

T = TypeVar("T")


def nobody(event: Event) -> None:
    """Ignore an event."""


async def lead(process: Process) -> None:
    """Live as a writer that believes it leads. It claims, offloads new data, and claims again if fenced."""
    await Leader(process).live()


class Leader:
    """A writer that `lead` runs."""

    def __init__(self, process: Process) -> None:
        self.process, self.world, self.random = process, process.world, process.random
        self.pace_seconds = process.random.choice((0.5, 2.0, 8.0))
        self.writer: StreamWriter | None = None
        self.log = self.world.broker.log
        """The broker's log, as it was when the stream was claimed."""
        self.reached = 0
        """The next offset when the stream was claimed, or when this leader last appended."""
        self.announced: list[tuple[Ledger, Attempt]] = []
        self.copied: list[Receipt] = []

    async def live(self) -> None:
        """Work until the process ends."""
        while await self.process.rest(self.pace_seconds):
            try:
                await self.process.do(self._work())
            except Fenced:
                self._forget()
                if self.random.random() < 0.8:  # otherwise rivals would only fence each other
                    await self.process.rest(5.0 if self.world.weather.mayflies else 60.0)
            except Diverged:  # the broker cut data of the tier: an operator restores its log from the tier
                self._forget()
                self.world.restore_the_broker()
            except (Conflict, *self.process.failures):
                if self.random.random() < 0.2:  # it continues with what it knows, or starts again
                    self._forget()

    def _forget(self) -> None:
        self.writer = None
        self.announced.clear()
        self.copied.clear()

    async def _work(self) -> None:
        writer, choice = self.writer, self.random.random()
        if writer is None or choice < 0.02 or self._is_overtaken(writer):
            self._forget()
            await self._claim()
        elif self.world.receipts and choice < 0.04:
            await self._append_by_mistake(writer)
        elif self.copied and choice < 0.5:
            receipt = self.copied.pop(0)
            await writer.append([receipt])
            self.reached = receipt.next_offset
        elif self.announced and choice < 0.8:
            ledger, attempt = self.announced.pop(0)
            if self.random.random() < 0.2:
                await writer.abort([attempt])
                return
            offload = self.process.offloader.offload
            receipt = await offload(ledger, attempt, manifest=writer.manifest, extra_metadata={})
            self.copied.append(receipt)
        elif choice < 0.3:
            [ledger] = self._ledgers(writer, 1)
            [attempt] = await writer.prepare([ledger.ledger_id])
            self.announced.append((ledger, attempt))
        else:
            ledgers = self._ledgers(writer, self.random.choice((1, 1, 2, 3)))
            await writer.offload(ledgers)
            self.reached = ledgers[-1].next_offset

    def _is_overtaken(self, writer: StreamWriter) -> bool:
        """Return True if a job appended meanwhile. If brokers cut logs, it may have used another log."""
        return bool(self.world.weather.truncates) and writer.manifest.next_offset != self.reached

    async def _claim(self) -> None:
        """Claim the stream as a sync does. It compares histories before and after the claim."""
        offloader, self.log = self.process.offloader, self.world.broker.log
        base = await newest(offloader, STREAM)
        if base is not None:
            await compare(self.process, base, self.log)
        source_epoch = self._source_epoch()
        at = self.world.broker.first_offset if base is None else base.next_offset
        writer = await StreamWriter.claim(
            offloader,
            STREAM,
            base=base,
            first_offset=self.world.broker.first_offset,
            source_epoch=source_epoch,
            agree=agreement(offloader, STREAM, self.log.snapshot(at)),
            env=self.process.env,
        )
        recorded = writer.manifest.source_epoch
        assert source_epoch in (0, recorded), f"a claim with {source_epoch} was accepted after {recorded}"
        await compare(self.process, writer.manifest, self.log)
        self.writer, self.reached = writer, writer.manifest.next_offset

    async def _append_by_mistake(self, writer: StreamWriter) -> None:
        """Try to append an upload of a job."""
        with suppress(Conflict, Misuse):
            await writer.append([self.random.choice(self.world.receipts)])

    def _source_epoch(self) -> int:
        """Return the broker's epoch: none, the newest, or an earlier one."""
        if self.world.weather.truncates:
            return self.log.leader
        root = self.world.judge.root
        recorded = 0 if root is None else int(root.source_epoch)
        return self.random.choice((0, 0, recorded, recorded + 1, max(recorded - 1, 0)))

    def _ledgers(self, writer: StreamWriter, count: int) -> list[Ledger]:
        """Return the next ledgers of the log."""
        return next_ledgers(self.process, self.log, writer.manifest.next_offset, count)


def next_ledgers(process: Process, log: Log, first: int, count: int) -> list[Ledger]:
    """Return so many ledgers of a log, from an offset on."""
    ledgers = []
    for _ in range(count):
        ledgers.append(log.ledger(first, after(first, process.random.choice(process.world.ledger_chunks))))
        first = ledgers[-1].next_offset
    return ledgers


async def compare(process: Process, manifest: Manifest, log: Log) -> None:
    """Raise `Diverged` unless the log continues the committed data. If no broker cuts logs, check nothing."""
    if not process.world.weather.truncates:
        return
    try:
        await check_same_history(process.offloader, manifest, log.snapshot(manifest.next_offset))
    except Absent as absent:
        await newer_manifest(process.offloader, manifest, absent)  # raises if it is damage
        raise Conflict("the compared data was trimmed and swept meanwhile") from absent


async def work(process: Process) -> None:
    """Run jobs beside the writers, again and again. Nobody fences a job, and anyone may abort it."""
    while await process.rest(4.0):
        try:
            await process.do(Working(process).run())
        except (NotOffloaded, Conflict, Diverged, *process.failures):
            continue


class Working:
    """One job, from its beginning to its append, or to an earlier end."""

    def __init__(self, process: Process) -> None:
        self.process, self.random = process, process.random
        self.log = process.world.broker.log

    async def run(self) -> None:
        """Append behind the stream's end, or give up. Sometimes continue a job that another process left."""
        uid = left_behind(self.process)
        job = await Job.begin(self.process.offloader, STREAM, uid=uid, env=self.process.env)
        incarnation = job.manifest.incarnation
        if self.random.random() < 0.3:
            await job.abort()
        for _ in range(2):  # uploads for another end do not fit any more: try once more
            await self.process.rest(self.random.choice((0.0, 0.0, 20.0)))
            try:
                await self._add(job)
                break
            except Conflict:
                await job.abort()
        assert job.manifest.incarnation == incarnation, "a job continued in a later incarnation of the stream"

    async def _add(self, job: Job) -> None:
        await compare(self.process, job.manifest, self.log)
        first, count = job.manifest.next_offset, self.random.choice((1, 1, 2, 3))
        ledgers = next_ledgers(self.process, self.log, first, count)
        manifest, attempts = await job.prepare([ledger.ledger_id for ledger in ledgers])
        offload = self.process.offloader.offload
        receipts = [
            await offload(ledger, attempt, manifest=manifest, extra_metadata={})
            for ledger, attempt in zip(ledgers, attempts, strict=True)
        ]
        self.process.world.receipts[:0] = receipts
        del self.process.world.receipts[5:]
        choice = self.random.random()
        if choice < 0.1:
            await job.abort()
            return
        if choice < 0.2:
            await self._append_by_mistake(receipts)
        try:
            await job.append(receipts)
        except OutcomeUnknown:
            await job.append(receipts)
        self.process.world.happened("jobs")

    async def _append_by_mistake(self, receipts: Sequence[Receipt]) -> None:
        """Try to append the uploads under the name of another job."""
        stranger = await Job.begin(self.process.offloader, STREAM, env=self.process.env)
        try:
            await stranger.append(receipts)
        except (Conflict, OutcomeUnknown):
            return
        raise AssertionError("a job appended the attempts of another one")


def left_behind(process: Process) -> UUID | None:
    """Return, now and then, a job with running attempts. The process that began it may still run."""
    root = process.world.judge.root
    rows = [] if root is None else root.announced.values()
    jobs = sorted({row["writer"] for row in rows if row["kind"]})
    return UUID(bytes=process.random.choice(jobs)) if jobs and process.random.random() < 0.3 else None


async def compact(process: Process) -> None:
    """Replace small fragments by larger ones, again and again."""
    while await process.rest(2.0):
        try:
            await process.do(Compacting(process).run())
        except (NotOffloaded, Conflict, *process.failures):
            continue


class Compacting:
    """One compaction of some runs. Sometimes a run is not a real one, or the replacement is a mistake."""

    def __init__(self, process: Process) -> None:
        self.process, self.random = process, process.random

    async def run(self) -> None:
        """Plan, copy, and replace, or give up. Sometimes continue a job that another process left."""
        uid = left_behind(self.process)
        job = await Job.begin(self.process.offloader, STREAM, uid=uid, env=self.process.env)
        if self.random.random() < 0.3:
            await job.abort()
        runs = await self._plan(job.manifest)
        await self.process.rest(self.random.choice((0.0, 0.0, 0.0, 20.0)))
        for run in self.random.sample(runs, min(len(runs), self.random.choice((1, 3)))):
            try:
                await self._replace(job, run)
            except Conflict:
                await job.abort()

    async def _plan(self, manifest: Manifest) -> list[FragmentRun]:
        """Return the runs that a compaction plans, or now and then any adjacent fragments of a ledger."""
        tree = self.process.offloader.tree(manifest)
        try:
            if self.random.random() < 0.6:
                return [run async for run in plan_runs(tree, fragment_size_bytes=COMPACTED_SIZE_BYTES)]
            entries = [entry async for run in tree.walk() for entry in entries_of_rows(run)]
        except Absent as absent:
            await newer_manifest(self.process.offloader, manifest, absent)
            return []
        first = self.random.randrange(len(entries)) if entries else 0
        some = entries[first : first + self.random.choice((1, 2, 3))]
        kinds = [(entry.ledger_id, token_of(entry.attempt)) for entry in some]
        alike = [entry for entry, kind in zip(some, kinds, strict=True) if kind == kinds[0]]
        return [FragmentRun(tuple(alike))] if some else []

    async def _replace(self, job: Job, run: FragmentRun) -> None:
        manifest, [attempt] = await job.prepare_copies([run.entries])
        receipt = await copy_run(job.offloader, run, attempt, manifest=manifest)
        choice = self.random.random()
        if choice < 0.1:
            await job.abort()
            return
        if choice < 0.2:
            await self._by_mistake(run, receipt)
        try:
            await job.replace(run.entries, [receipt])
        except OutcomeUnknown:
            await job.replace(run.entries, [receipt])
        self.process.world.happened("compactions")

    async def _by_mistake(self, run: FragmentRun, receipt: Receipt) -> None:
        """Try to replace under the name of another job, or to append the copy."""
        job = await Job.begin(self.process.offloader, STREAM, env=self.process.env)
        try:
            if self.random.random() < 0.5:
                await job.replace(run.entries, [receipt])
            else:
                await job.append([receipt])
        except (Conflict, OutcomeUnknown):
            return
        raise AssertionError("a job committed the copies of another one")


async def abort(process: Process) -> None:
    """Delete attempts that run or left objects, of any writer. The writer finds out."""
    while await process.rest(20.0):
        try:
            manifest = await process.do(process.offloader.load_manifest(STREAM))
            uids = [running.attempt for running in manifest.running]
            uids += await process.do(uploaded(process))
            if not uids:
                continue
            attempt = Attempt(stream=STREAM, ledger_id=0, uid=process.random.choice(uids))
            before = process.world.deletes_at_once
            process.world.deletes_at_once |= process.world.judge.ever_named(attempt.uid)
            try:
                await process.do(process.offloader.delete_offloaded(attempt))
            except Conflict:  # it is still named, so none of its objects is deleted
                process.world.deletes_at_once = before
        except (NotOffloaded, Fenced, Conflict, *process.failures):
            continue
        process.world.happened("deleted attempts")


async def uploaded(process: Process) -> list[UUID]:
    """Return the attempts with listed fragments."""
    found = [KEYS.parse_fragment(row.key) async for row in process.offloader.store.list(KEYS.data)]
    return [each[1] for each in found if each is not None]


async def fetch(process: Process) -> None:
    """Read whole attempts, as copies between tiers do. Each is returned whole, or refused."""
    while await process.rest(10.0):
        try:
            await process.do(_fetch_one(process))
        except (NotOffloaded, Conflict, *process.failures):
            continue
        process.world.happened("attempts read")


async def _fetch_one(process: Process) -> None:
    offloader, manifest = process.offloader, await process.offloader.load_manifest(STREAM)
    try:
        entries = [entry async for run in offloader.tree(manifest).walk() for entry in entries_of_rows(run)]
        if not entries:
            return
        entry = process.random.choice(entries)
        attempt = Attempt(stream=STREAM, ledger_id=entry.ledger_id, uid=entry.attempt)
        async with await offloader.read_offloaded(attempt) as handle:
            table = await handle.table()
            data = await handle.read(table)
    except Absent as absent:
        await newer_manifest(offloader, manifest, absent)  # raises if it is damage
        return
    begin, end = handle.first_offset, handle.next_offset
    incarnation = manifest.incarnation.bytes
    assert data == process.world.broker.chunks(incarnation, begin, end), f"not all of [{begin}, {end})"


async def retain(process: Process) -> None:
    """Trim as a guest, by every kind of limit. A trim leaves data unless it was asked to reach the end."""
    while await process.rest(10.0):
        retention = _retention(process)
        try:
            report = await process.do(trim(process.offloader, STREAM, retention, env=process.env))
        except (NotOffloaded, StreamDeleted, *process.failures):
            continue
        process.world.happened("trims")
        asked = retention.before_offset
        if report.trim is not None and report.trim.first_offset >= report.manifest.next_offset:
            assert (asked or 0) >= report.trim.first_offset, f"{retention} left nothing"


def _retention(process: Process) -> Retention:
    """Return a limit, mostly an offset. A record's time is its offset, in milliseconds of the world."""
    random, root = process.random, process.world.judge.root
    choice = random.random()
    if choice < 0.7:
        next_offset = 0 if root is None else root.next_offset
        return Retention(before_offset=max(0, next_offset - random.choice((0, 1, 2, 4, 6, 10))))
    if choice < 0.85:
        return Retention(size_bytes_max=random.choice((0, 3 * len(chunk(0)), 10 * len(chunk(0)))))
    return Retention(age_seconds_max=random.choice((0.0, 10.0, 200.0)))


async def remove(process: Process) -> None:
    """Delete the whole stream, now and then."""
    while await process.rest(5.0 if process.world.weather.mayflies else 200.0):
        try:
            if await process.do(delete_stream(process.offloader, STREAM, env=process.env)) is not None:
                process.world.happened("deletions")
        except (NotOffloaded, Fenced, Conflict, *process.failures):
            continue


async def clean(process: Process) -> None:
    """Sweep again and again, as a process with a memory or as a command that keeps notes in the tier."""
    options: dict[str, Any] = {
        "grace_seconds": process.world.weather.grace_seconds,
        "env": process.env,
        "uploads_seconds": process.world.weather.grace_seconds,
        "page_keys_max": process.random.choice((3, 10, 100)),
        "roots_kept": process.random.choice((1, 1, 2, 16)),
    }
    sweeper = Sweeper(process.offloader, **options)
    is_command = process.random.random() < 0.4
    rest_seconds = process.random.choice((1.0, 5.0))

    async def once() -> None:
        report = await (sweep(process.offloader, **options) if is_command else sweeper.sweep())
        for stream in report.streams:
            for error in stream.errors:
                if not isinstance(error, process.failures):
                    raise error
        for stream in report.streams:
            for why, number in stream.deleted.objects.items():
                process.world.figures.counts[f"swept: {why}"] += number

    while await process.rest(rest_seconds):
        try:
            await process.do(once())
        except (NotOffloaded, *process.failures):
            continue
        process.world.happened("sweeps")


async def scrub(process: Process) -> None:
    """Verify the tier again and again. There is no damage, unless roots are lost."""
    judge = process.world.judge
    while await process.rest(5.0 if process.world.weather.loses_roots else 20.0):
        losses, is_proven = judge.losses, judge.is_proven
        try:
            report = await process.do(verify(process.offloader, env=process.env))
        except (NotOffloaded, *process.failures):
            continue
        process.world.happened("scrubs")
        if is_proven and judge.is_proven and losses == judge.losses:
            assert report.damages, "verify found nothing while objects prove that roots are lost"
            process.world.happened("losses that verify reported")
        if not (process.world.weather.flips or process.world.in_doubt or process.lived_through_a_loss):
            damaged = {damage.where for damage in report.damages}
            keys = {each.where for each in report.damages if locksmith.may_be_reported(process, each)}
            assert damaged <= process.world.torn | keys, report.damages


async def read(process: Process) -> None:
    """Read from anywhere. A reader gets the source's data in order, and a report of each skip."""
    while await process.rest(10.0):
        try:
            await process.do(Reading(process).run())
        except process.failures:
            continue


class Reading:
    """One reader, from its opening to the end of its view."""

    def __init__(self, process: Process) -> None:
        self.process, self.world = process, process.world
        self.offset = 0
        self.promised_since = -inf
        slow = process.world.weather.slow_readers
        self.grace_seconds = process.world.weather.grace_seconds
        choices = (0.7 * self.grace_seconds, 4 * self.grace_seconds) if slow else (0.0, 1.0)
        self._patience_seconds = process.random.choice(choices)

    async def run(self) -> None:
        """Open a reader, find an offset, and read on."""
        before, self.promised_since = self.world.judge.newest, self.world.loop.now
        try:
            reader = await StreamReader.open(self.process.offloader, STREAM, in_flight=2, emit=self._hear)
        except NotOffloaded:
            assert not before or self._was_deleted(before), "an existing stream was called absent"
            return
        opened = reader.manifest
        try:
            await self.process.rest(self._patience_seconds)
            self.offset = await self._begin(reader)
            await (self._read(reader) if self.process.random.random() < 0.5 else self._read_windows(reader))
        except StreamDeleted:
            assert self._was_deleted(opened.version), "a reader reports a deletion that never happened"
            if not self.world.house.is_shredding:  # a shred ends the reading at once, and is meant to
                self._assert_grace_is_over("deleted")
            return
        self.world.happened("reads")
        reached = reader.manifest.next_offset
        assert self.offset >= reached, f"reading ended at {self.offset}, before {reached}"

    def _was_deleted(self, since: int) -> bool:
        """Return True if a tombstone was the newest root at any moment since that root."""
        roots = self.world.judge.history.items()
        return any(number >= since and root.state == DELETED for number, root in roots)

    async def _begin(self, reader: StreamReader) -> int:
        random, manifest = self.process.random, reader.manifest
        choice = random.random()
        if choice < 0.4:
            return await reader.offset_of(AtEdge.FIRST)
        if choice < 0.6:
            offset = random.randint(max(manifest.first_offset - 4, 0), manifest.next_offset)
            found = await reader.offset_of(AtOffset(offset))
            assert found == max(offset, reader.manifest.first_offset)
            return found
        if choice < 0.7:
            last = await reader.offset_of(AtEdge.LAST)
            assert last == reader.manifest.next_offset - CHUNK_RECORDS * (reader.manifest.messages > 0)
            return last
        offset = random.randint(max(manifest.first_offset - 4, 0), manifest.next_offset + 1)
        found = await reader.offset_of(AtTime(timestamp_ms_of(offset)))
        manifest = reader.manifest
        whole = -(-offset // CHUNK_RECORDS) * CHUNK_RECORDS  # all records of a chunk have one time
        assert found == min(max(whole, manifest.first_offset), manifest.next_offset), (
            "the offset does not belong to that time"
        )
        return found

    async def _read(self, reader: StreamReader) -> None:
        async with aclosing(reader.messages(self.offset)) as batches:
            async for batch in batches:
                assert batch.offset == self.offset, f"{batch.offset} came after {self.offset}"
                assert batch.bodies
                for offset, body in enumerate(batch.bodies, batch.offset):
                    assert body == self._record(reader, offset)
                self.offset += len(batch.bodies)

    def _record(self, reader: StreamReader, offset: int) -> bytes:
        within = offset % CHUNK_RECORDS
        return self.world.broker.records(reader.manifest.incarnation.bytes, offset - within)[within]

    async def _read_windows(self, reader: StreamReader) -> None:
        """Read whole chunks, a window at a time. The first window holds the requested offset."""
        async with aclosing(reader.windows(self.offset)) as windows:
            async for window in windows:
                first, last = window.rows[0], window.rows[-1]
                begin, end = int(first["offset"]), int(last["offset"]) + int(last["records"])
                assert begin <= self.offset < end, f"[{begin}, {end}) came at {self.offset}"
                incarnation = reader.manifest.incarnation.bytes
                assert window.data == self.world.broker.chunks(incarnation, begin, end)
                self.offset = end
                await self.process.rest(self._patience_seconds)

    def _hear(self, event: Event) -> None:
        if not isinstance(event, Skipped):
            assert self.world.weather.flips, event
            return
        self.world.happened("skips")
        assert event.from_offset == self.offset or self.offset == 0, f"{event} at {self.offset}"
        trimmed = max(root.first_offset for root in self.world.judge.history.values())
        assert event.to_offset <= trimmed, f"{event}, but no trim went beyond {trimmed}"
        self._assert_grace_is_over("trimmed")
        self.promised_since = -inf  # it now reads by a manifest that was loaded at an unknown time
        self.offset = event.to_offset

    def _assert_grace_is_over(self, what: str) -> None:
        """Assert that a reader's data stayed for the grace, unless clocks jump or an attempt was deleted."""
        if not (self.world.weather.clocks_jump or self.world.deletes_at_once):
            seconds = self.world.loop.now - self.promised_since
            assert seconds >= self.grace_seconds, f"{what} and swept under a reader after {seconds:.1f} s"
