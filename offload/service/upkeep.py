"""Keeping a tier in order beside the followers: retention, compaction, the sweep and a verify.

Each job has an interval. The first run comes at a random moment of the first interval, and each later one
after 0.9 to 1.1 of it, so that many processes do not begin together. A job whose interval is None never runs.

    retention    trims the streams that this process leads, by the limits of their globs
    compact      merges the small fragments of the streams that this process leads
    index        indexes the streams that this process leads, by the SPECs of their globs
    sweep        deletes unused objects of the tier
    verify       reads every object of the tier, at a bounded rate (`service.rounds`)

Invariants:

- One job runs at a time, so no two sweeps of this process are at work together. Only the verify runs beside
  the others: it may take days, and changes nothing.
- A process that leads no stream does nothing but verify, if no other process does: of several processes,
  those that stand by cost one request every ten minutes here.
- An error ends its run, and an event reports it. It stops neither the followers nor a later run.
- A job that is cancelled leaves nothing that the next run does not cure: each is safe to kill.
- Nothing is trimmed by age, and nothing is swept, once the wall clock has run ahead of the monotonic one. The
  age of data and the grace of a sweep are counted by the wall clock: if it jumps a year ahead, all data looks
  old.

A trim and a compaction commit as guests, beside the kept writer of a stream. Its next commit finds the newer
root and builds on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from offload.contracts.decoder import Decoder
from offload.contracts.events import Event, UpkeepFinished
from offload.contracts.offloader import LedgerOffloader
from offload.ground.env import Env
from offload.ground.errors import OffloadError, StoreDenied
from offload.index.job import index
from offload.index.terms import Spec
from offload.native.layout_check import native
from offload.native.offloader import TierOptions
from offload.service.config import RunConfig
from offload.service.rounds import VerifyRounds
from offload.upkeep.clock import ClockGuard
from offload.upkeep.compact.stream import compact
from offload.upkeep.parts import trim_parts
from offload.upkeep.retention import TrimReport
from offload.upkeep.sweep.tier import sweep

__all__ = ["Upkeep"]


JITTER: Final = 0.1
FRAGMENTS_MIN: Final = 8
"""The fewest fragments that are merged into one: a merge copies all their bytes, so it has to be worth it."""

INDEX_CHECK_SECONDS: Final = 86_400.0
"""How often the objects of an index are checked, also if the stream has no new data."""

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class JobTally:
    """The counts of a run so far."""

    streams: int = 0
    objects: int = 0
    size_bytes: int = 0
    error: OffloadError | None = None
    """The first error of any stream."""

    def add(self, objects: int, size_bytes: int, error: OffloadError | None = None) -> None:
        """Count one stream."""
        self.streams += 1
        self.objects += objects
        self.size_bytes += size_bytes
        self.error = self.error or error


@dataclass(slots=True, kw_only=True)
class _Job:
    name: str
    interval_seconds: float
    run: Callable[[JobTally], Awaitable[None]]
    due_seconds: float
    last: UpkeepFinished | None = None


@dataclass(slots=True, kw_only=True)
class Upkeep:
    """The jobs of one process. `led` returns the streams that it leads at this moment."""

    config: RunConfig
    tier_for: Callable[[str], LedgerOffloader]
    tier: LedgerOffloader
    led: Callable[[], list[str]]
    decoder: Callable[[str], Decoder]
    """Return a decoder by its name, for the index."""
    ends: Callable[[], Mapping[str, object]] = dict
    """Return a mark of the end of each stream that is led, which changes with each commit, if it is known."""
    env: Env = field(default_factory=Env)
    emit: Callable[[Event], None] = lambda event: None
    identity: str | None = None
    """See `VerifyRounds`."""
    running: str | None = None
    """The name of the job that runs now."""
    rounds: VerifyRounds | None = field(init=False, default=None)
    """The verify, if there is one."""
    _jobs: list[_Job] = field(init=False)
    _clock: ClockGuard = field(init=False)
    _noted: set[str] = field(default_factory=set)
    """The notes about timestamps in the future that are in the log."""
    _indexed: dict[tuple[str, Spec], tuple[object, float]] = field(default_factory=dict)
    """The end of a stream that is indexed as far as that, and when the index was checked."""

    def __post_init__(self) -> None:
        self._clock = ClockGuard(self.env)
        every = self.config.upkeep
        jobs = {
            "retention": (every.retention_seconds, self._retain),
            "compact": (every.compact_seconds, self._compact),
            "index": (every.index_seconds if self.config.is_indexed else None, self._index),
            "sweep": (every.sweep_seconds, self._sweep),
        }
        now = self.env.monotonic()
        self._jobs = [
            _Job(name=name, interval_seconds=seconds, run=run, due_seconds=now + seconds * self.env.random())
            for name, (seconds, run) in jobs.items()
            if seconds is not None
        ]
        if every.verify_seconds is not None:
            self.rounds = VerifyRounds(
                config=self.config,
                interval_seconds=every.verify_seconds,
                tier=self.tier,
                env=self.env,
                emit=self.emit,
                identity=self.identity,
            )

    async def run(self, stopping: asyncio.Event) -> None:
        """Run each job when it is due, until `stopping` is set. A job that runs then is cancelled."""
        works = [self._work()] if self._jobs else []
        works += [] if self.rounds is None else [self.rounds.run()]
        if not works:
            return
        waits = [*map(asyncio.ensure_future, works), asyncio.ensure_future(stopping.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def as_json(self) -> list[dict[str, Any]]:
        """Return the jobs with their next due times and last results, for `/status`."""
        now = self.env.monotonic()
        rounds = self.rounds
        rows = [] if rounds is None else [rounds.as_json() | {"last": _last_of(rounds.last)}]
        return rows + [
            {
                "job": job.name,
                "running": job.name == self.running,
                "interval_seconds": job.interval_seconds,
                "due_in_seconds": round(max(job.due_seconds - now, 0.0), 1),
                "last": _last_of(job.last),
            }
            for job in self._jobs
        ]

    async def _work(self) -> None:
        while True:
            job = min(self._jobs, key=lambda job: job.due_seconds)
            await self.env.sleep(max(job.due_seconds - self.env.monotonic(), 0.0))
            try:
                if self.led():
                    await self._run(job)
            finally:
                self.running = None
                share = 1 - JITTER + 2 * JITTER * self.env.random()
                job.due_seconds = self.env.monotonic() + job.interval_seconds * share

    async def _run(self, job: _Job) -> None:
        self.running, began, tally = job.name, self.env.monotonic(), JobTally()
        try:
            await job.run(tally)
        except OffloadError as error:
            tally.error = error
        except Exception as error:  # noqa: BLE001 - see below
            # A mistake of ours must not end the upkeep of a process that runs for years.
            _log.exception("job %s failed", job.name)
            tally.error = OffloadError(f"{type(error).__name__}: {error}")
        job.last = UpkeepFinished(
            job=job.name,
            streams=tally.streams,
            objects=tally.objects,
            size_bytes=tally.size_bytes,
            seconds=self.env.monotonic() - began,
            error=tally.error,
        )
        self.emit(job.last)

    async def _retain(self, tally: JobTally) -> None:
        for stream in self.led():
            retention = self.config.of(stream).retention
            if retention is None:
                continue
            try:
                if retention.age_seconds_max is not None:
                    self._clock.check()
                reports = await trim_parts(self.tier_for(stream), stream, retention, env=self.env)
            except StoreDenied:  # every other stream would be denied too
                raise
            except OffloadError as error:
                tally.add(0, 0, error)
            else:
                self._note_ahead(reports)
                dropped = [report.dropped for report in reports]
                tally.add(
                    sum(each.fragments for each in dropped), sum(each.stored_size_bytes for each in dropped)
                )

    def _note_ahead(self, reports: Sequence[TrimReport]) -> None:
        """Report timestamps in the future, each of them once: the data may stay for long."""
        for report in reports:
            if report.note is not None and report.note not in self._noted:
                self._noted.add(report.note)
                _log.warning("%s", report.note)

    async def _compact(self, tally: JobTally) -> None:
        for stream in self.led():
            error: OffloadError | None = None
            done = compact(
                self.tier_for(stream),
                streams=[stream],
                fragment_size_bytes=TierOptions().fragment_size_bytes,
                fragments_min=FRAGMENTS_MIN,
            )
            try:
                async for one in done:
                    error = one.error
                    tally.add(one.fragments, one.stored_bytes, error)
            except OffloadError as raised:  # the parts of this stream could not be listed
                error = raised
                tally.add(0, 0, error)
            if isinstance(error, StoreDenied):  # every other stream would be denied too
                return

    async def _index(self, tally: JobTally) -> None:
        ends = self.ends()
        for stream in self.led():
            for spec in map(Spec.parse, self.config.of(stream).index):
                now, end = self.env.monotonic(), ends.get(stream)
                known, checked = self._indexed.get((stream, spec), (None, -inf))
                is_checked = now - checked >= INDEX_CHECK_SECONDS
                if end is not None and known == end and not is_checked:
                    continue
                tier = native(self.tier_for(stream), to="index")
                decoder = self.decoder(spec.decoder)
                parts = index(tier, stream, spec, decoder, is_checked=is_checked, env=self.env)
                is_whole = True
                try:
                    async with aclosing(parts):
                        async for one in parts:
                            is_whole = is_whole and not one.damages
                            tally.add(one.built + one.merged, one.bytes, next(iter(one.damages), None))
                    if is_whole:
                        self._indexed[stream, spec] = end, now if is_checked else checked
                except StoreDenied:  # every other stream would be denied too
                    raise
                except OffloadError as error:
                    tally.add(0, 0, error)

    async def _sweep(self, tally: JobTally) -> None:
        self._clock.check()
        report = await sweep(self.tier, env=self.env)
        for row in report.streams:
            error = row.errors[0] if row.errors else None
            tally.add(row.deleted.objects.total(), row.deleted.bytes.total(), error)


def _last_of(done: UpkeepFinished | None) -> dict[str, Any] | None:
    if done is None:
        return None
    return {
        "streams": done.streams,
        "objects": done.objects,
        "bytes": done.size_bytes,
        "seconds": round(done.seconds, 3),
        "error": None if done.error is None else str(done.error),
    }
