"""Reading the whole tier once in each interval, in the background, so that a flipped byte is found.

A round reads every object, in order of keys, at a bounded rate. It runs beside the other jobs, because it may
take days. Its progress is noted on the tier (`formats.verify_notes`): a process that is started again, or
another one that takes over, continues the round behind the last note.

    stopped              left behind                         cured by
    at any moment        notes of up to 10 minutes ago       the next process reads these 10 minutes again

Invariants:

- One of several processes works on a round, whoever leads the streams: an idle stream has no leader, and is
  read all the same. The others see fresh notes of that process, and wait until these are half an hour old.
  The next life of the same instance need not wait. Two that begin at the same moment may read twice, which
  harms nothing.
- Damage is reported when it is found, and not at the end of the round.
- An error of the store ends a run, not the round: the next run resumes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from offload.contracts.events import DamageFound, Event, UpkeepFinished
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import Body
from offload.formats.keys import VERIFY_NOTES
from offload.formats.verify_notes import VerifyNotes
from offload.ground.env import Env
from offload.ground.errors import Denied, NotFound, NotOffloaded, OffloadError
from offload.ground.pause import Pause
from offload.native.layout_check import native_or_none
from offload.service.config import RunConfig
from offload.upkeep.verify.report import VerifyLevel, VerifyReport
from offload.upkeep.verify.tier import verify

__all__ = ["VerifyRounds"]

NOTE_SECONDS: Final = 600.0
"""The time between two notes, between two looks at the notes of others, and after an error."""
FOREIGN_SECONDS: Final = 3 * NOTE_SECONDS
STOP_SECONDS: Final = 5.0
RATE_MIN: Final = 4 * 2**20
"""The least rate, in bytes a second, if the configuration names none."""
SHARE: Final = 0.9
"""A round begins this share of the interval after the one before, and one more for the jitter."""

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class VerifyRounds:
    """The rounds of one process."""

    config: RunConfig
    interval_seconds: float
    tier: LedgerOffloader
    env: Env
    emit: Callable[[Event], None]
    identity: str | None = None
    """The identity that this process shares with its earlier lives (`copy.instance`), if it has one."""
    last: UpkeepFinished | None = None
    is_running: bool = False
    _notes: VerifyNotes | None = None
    """The newest notes that are known. None before the first look."""
    _uid: str = field(init=False)
    _jitter: float = field(init=False)
    _unreadable: Pause = field(init=False)
    """Why the notes cannot be read."""
    _unwritten: Pause = field(init=False)
    """Why the notes cannot be written."""

    def __post_init__(self) -> None:
        self._unreadable = Pause(env=self.env, seconds=NOTE_SECONDS)
        self._unwritten = Pause(env=self.env, seconds=NOTE_SECONDS)
        self._uid, self._jitter = self.identity or str(self.env.uuid()), self.env.random()

    @property
    def oldest_seconds(self) -> float | None:
        """The time for which some fragment has not been read, at most. None if it is not known."""
        if self._notes is None:
            return None
        return max(0.0, (self.env.now_ms() - self._notes.oldest_ms) / 1000)

    def as_json(self) -> dict[str, Any]:
        """Return the job as the other jobs of `/status`."""
        due_ms = None if self._notes is None else self._next_ms(self._notes)
        due = 0.0 if due_ms is None else max(0.0, (due_ms - self.env.now_ms()) / 1000)
        oldest = self.oldest_seconds
        return {
            "job": "verify",
            "running": self.is_running,
            "interval_seconds": self.interval_seconds,
            "due_in_seconds": round(due, 1),
            "reached": None if self._notes is None else self._notes.reached,
            "oldest_unverified_seconds": None if oldest is None else round(oldest, 1),
        }

    async def run(self) -> None:
        """Work on rounds until the task is cancelled."""
        while True:
            seconds = NOTE_SECONDS
            try:
                seconds = await self._turn()
                self._unreadable.clear()
            except NotOffloaded:  # nothing was copied yet
                pass
            except OffloadError as error:
                if self._unreadable.wait(error):
                    _log.warning("the notes of the verify cannot be read: %s", error)
            except Exception:  # noqa: BLE001 - see below
                # A mistake of ours must not end the upkeep of a process that runs for years.
                _log.exception("the verify failed")
            await self.env.sleep(min(seconds, self.interval_seconds))

    async def _turn(self) -> float:
        """Work on the round if it is due, and return the seconds until the next look."""
        now_ms = self.env.now_ms()
        self._notes = notes = await self._load(now_ms)
        is_foreign = notes.by not in ("", self._uid) and now_ms - notes.saved_ms < 1000 * FOREIGN_SECONDS
        due_ms = self._next_ms(notes)
        if due_ms is None and is_foreign:
            return NOTE_SECONDS
        if due_ms is not None:
            if now_ms < due_ms:
                return self._pause_seconds()
            self._notes = notes.begun(now_ms)
        if await self._claim(now_ms):
            await self._work()
        return self._pause_seconds()

    def _pause_seconds(self) -> float:
        """Return the time until the next look."""
        due_ms = None if self._notes is None else self._next_ms(self._notes)
        if due_ms is None:
            return NOTE_SECONDS
        return min(NOTE_SECONDS, max(0.0, due_ms - self.env.now_ms()) / 1000)

    async def _claim(self, now_ms: int) -> bool:
        """Note that this process works on the round. Return False if another one has noted that since."""
        await self._save()
        self._notes = await self._load(now_ms)
        return self._notes.by == self._uid

    def _next_ms(self, notes: VerifyNotes) -> float | None:
        """Return when the next round begins. None while one is under way.

        The first one comes in the first tenth of the interval, so that many processes do not begin together.
        """
        jitter = (1 - SHARE) * self._jitter
        if notes.began_ms is None:
            return notes.since_ms + 1000 * jitter * self.interval_seconds
        if notes.ended_ms is None:
            return None
        return notes.began_ms + 1000 * (SHARE + jitter) * self.interval_seconds

    async def _work(self) -> None:
        """Go on with the round until it ends or an error stops it, and report that."""
        began, report = self.env.monotonic(), VerifyReport()
        error: OffloadError | None = None
        self.is_running = True
        reading = asyncio.ensure_future(self._read(report))
        try:
            while not reading.done():
                await self._save()
                pause = asyncio.ensure_future(self.env.sleep(NOTE_SECONDS))
                await asyncio.wait({reading, pause}, return_when=asyncio.FIRST_COMPLETED)
                pause.cancel()
            await reading
            assert self._notes is not None
            self._notes = replace(self._notes, ended_ms=self.env.now_ms())
        except OffloadError as raised:
            error = raised
        except Exception as mistake:  # noqa: BLE001 - reported as the error of the run
            _log.exception("the verify failed")
            error = OffloadError(f"{type(mistake).__name__}: {mistake}")
        finally:
            self.is_running = False
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await asyncio.shield(self._leave())
        self.last = UpkeepFinished(
            job="verify",
            streams=report.streams,
            objects=report.objects,
            size_bytes=report.bytes,
            seconds=self.env.monotonic() - began,
            error=error or _error_of(report),
        )
        self.emit(self.last)

    async def _read(self, report: VerifyReport) -> None:
        told = 0

        def progress(seen: VerifyReport) -> None:
            nonlocal told
            for damage in seen.damages[told:]:
                self.emit(DamageFound(damage=damage))
            told = len(seen.damages)
            if seen.judged_to is not None and self._notes is not None:
                self._notes = self._notes.reaching(seen.judged_to, self.env.now_ms())

        assert self._notes is not None
        await verify(
            self.tier,
            level=VerifyLevel.BYTES,
            after=self._notes.reached,
            bytes_per_second_max=await self._rate(),
            env=self.env,
            report=report,
            progress=progress,
        )

    async def _rate(self) -> float:
        """Return the configured rate, or one at which the tier is read in half of the interval."""
        if (configured := self.config.upkeep.verify_bytes_per_second_max) is not None:
            return configured
        size_bytes = 0
        for stream in await self.tier.streams():
            try:
                size_bytes += (await self.tier.load_manifest(stream)).stored_size_bytes
            except OffloadError:  # the verify finds out, and says more
                continue
        return max(RATE_MIN, 2 * size_bytes / self.interval_seconds)

    async def _load(self, now_ms: int) -> VerifyNotes:
        """Return the newest notes: those on the tier, or ours if they could not be written."""
        known, found = self._notes, None
        if (tier := native_or_none(self.tier)) is not None:
            await tier.open()
            with suppress(NotFound):
                found = VerifyNotes.decode(bytes(await tier.store.get(VERIFY_NOTES)))
        if found is not None and (known is None or found.saved_ms >= known.saved_ms):
            return found
        if known is None:
            # Written at once: a process that is started again and again would never begin its first round.
            self._notes = known = VerifyNotes(since_ms=now_ms)
            await self._save(by="")
        return known

    async def _save(self, *, by: str | None = None) -> None:
        """Write the notes. If that fails, the round continues, and a restart reads more of it again."""
        if (tier := native_or_none(self.tier)) is None or self._notes is None:
            return
        by = self._uid if by is None else by
        self._notes = replace(self._notes, by=by, saved_ms=self.env.now_ms())
        try:
            await tier.store.put(VERIFY_NOTES, Body.of(self._notes.encode()))
            self._unwritten.clear()
        except OffloadError as error:
            if self._unwritten.wait(error):
                _log.warning("the notes of the verify cannot be written: %s", error)

    async def _leave(self) -> None:
        """Write the notes for the next process, which need not wait then. Bounded: this process may stop."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._save(by="")
        except TimeoutError:
            _log.warning("the notes of the verify were not written in time")


def _error_of(report: VerifyReport) -> OffloadError | None:
    """Return the first damage of a round, or else the first reason why something was not checked."""
    left = [
        row.error if row.is_newer else Denied(f"{row.key} cannot be checked: {row.reason}")
        for row in report.unchecked.values()
    ]
    return next(iter([*report.damages, *left]), None)
