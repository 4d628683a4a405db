"""The work that nobody calls for: sealing, copying, deleting local copies, retention, and saving cursors.

Each kind is a chore of its own (`chores`). `rules` says what is due. Before anything is deleted, the rule is
asked again with the newest manifest.

Invariants: a local copy goes only if the log continues the tier, or if no tier has the stream and retention
deletes it; retention trims the tier first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

from offload.contracts.events import Event, LocalLedgerDeleted, StreamPaused, StreamResumed
from offload.contracts.log import LedgerLog, LocalLedger
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Diverged, Divergence, Fenced, OffloadError
from offload.ground.pause import PAUSE_SECONDS, Pause
from offload.managed.back_pressure import BackPressure
from offload.managed.chores import Chore
from offload.managed.cursors import Cursors
from offload.managed.log_source import LogStream
from offload.managed.policy import LedgerPolicy
from offload.managed.rules import (
    LedgerAction,
    LedgerPlan,
    PlannedLedger,
    Situation,
    check_ledgers,
    due_offset,
    expired_offset,
    removable_offset,
)
from offload.managed.tier_copy import LedgerOnTier
from offload.upkeep.clock import ClockGuard
from offload.upkeep.retention import Retention

__all__: list[str] = []

STEP_SECONDS_MAX: Final = 3600.0
SAVE_SECONDS: Final = 1.0
"""Cursors that moved are saved after so much time."""


class LedgerWork:
    """The work in the background of one ledger. Used by one task at a time."""

    def __init__(
        self,
        log: LedgerLog,
        source: LogStream,
        copy: LedgerOnTier,
        cursors: Cursors,
        room: BackPressure,
        *,
        policy: LedgerPolicy,
        roll: Callable[[], Awaitable[None]],
        env: Env,
        tell: Callable[[Event], None],
    ) -> None:
        self.log, self.source, self.copy, self.cursors, self.policy = log, source, copy, cursors, policy
        self.env, self._room, self._roll, self._tell = env, room, roll, tell
        self.began_seconds = env.monotonic()
        """The moment since when the open ledger has records, as far as known."""
        self.first_offset = log.first_offset
        """The first offset that this process has left in the log."""
        self.diverged: Diverged | None = None
        """The reason why the log takes no append: the tier has another history, or is ahead."""
        self.has_asked = False
        """True if an append has asked the tier, which may not have answered."""
        self._asked_ms = 0
        """The moment at which the rules of deletion were last asked, by the wall clock."""
        self._clock = ClockGuard(env)
        # In the order in which one gives work to the next: what is sealed can be copied, and what is copied
        # can be deleted here. Cursors need nothing of the others, so the shortest work comes first.
        self._chores = [
            Chore(run=run, due_seconds=due_seconds, env=env)
            for run, due_seconds in (
                (cursors.save, self._seconds_until_save),
                (self._roll_due, self._seconds_until_roll),
                (self._offload_due, self._seconds_until_offload),
                (self._tend_copies, self._seconds_until_deletion),
            )
        ]

    async def run(self) -> float:
        """Do what is due. Return the seconds until something may be due again. Raises `Fenced`."""
        before = {pause.kind for pause in self._waiting}
        for chore in self._chores:
            await chore.turn()
        self._report(before)
        # Never 0: a chore whose time has come only by a rounding would keep the loop from appends.
        return min(STEP_SECONDS_MAX, *(max(chore.seconds, 0.01) for chore in self._chores))

    @property
    def error(self) -> OffloadError | None:
        """The error that lasts: one that waits for a person, if there is one. None if all goes well."""
        pauses = [*self._waiting, *(chore.pause for chore in self._chores)]
        return next((pause.error for pause in pauses if pause.error is not None), self.diverged)

    @property
    def is_paused(self) -> bool:
        """True if a chore waits for a person, or appends are refused."""
        return self.diverged is not None or bool(self._waiting)

    @property
    def _waiting(self) -> list[Pause]:
        """The pauses of the chores that wait for a person."""
        return [chore.pause for chore in self._chores if chore.pause.kind]

    def note(self, error: OffloadError) -> bool:
        """Refuse appends from now on, if this error says that the stream is not this log's any more.

        Return True if appends were not refused before.
        """
        # Only these give an offset of the tier to another record. After a gap or a loss, appends do no harm.
        if not isinstance(error, Diverged) or error.kind not in (Divergence.BEHIND, Divergence.FORK):
            return False
        was_refused, self.diverged = self.diverged is not None, error
        return not was_refused

    def _report(self, before: set[str]) -> None:
        """Say what paused, or that nothing is paused now. `before` has the kinds of earlier pauses."""
        told = set(before)
        for pause in self._waiting:
            assert pause.error is not None
            self.note(pause.error)
            # Two chores that fail for one reason are one event.
            if pause.kind not in told:
                told.add(pause.kind)
                self._tell(StreamPaused(stream=self.log.name, error=pause.error))
        if before and not self._waiting:
            self._tell(StreamResumed(stream=self.log.name))

    async def _roll_due(self) -> None:
        newest, seconds = self.log.ledgers[-1], self.policy.roll_seconds
        age_seconds = self.env.monotonic() - self.began_seconds
        is_old = seconds is not None and age_seconds >= seconds
        if newest.records and (is_old or newest.size_bytes >= self.policy.roll_size_bytes):
            await self._roll()

    def _seconds_until_roll(self) -> float:
        if not self.log.ledgers[-1].records or self.policy.roll_seconds is None:
            return inf
        return self.began_seconds + self.policy.roll_seconds - self.env.monotonic()

    def _seconds_until_save(self) -> float:
        return SAVE_SECONDS if self.cursors.is_moved else inf

    async def _offload_due(self) -> None:
        # Here alone are appends allowed again: `agree` raises as long as the histories differ.
        if self.diverged is not None:
            await self.copy.agree()
            self.diverged = None
        # The first append asked a tier that did not answer. No trigger may be due, but the log must be
        # compared before it grows far beside another history.
        if self.has_asked and not self.copy.is_compared:
            await self.copy.agree()
        until, _ = due_offset(self.situation(), self.policy)
        if until > self.situation().done:
            await self.copy.offload(until)

    def _seconds_until_offload(self) -> float:
        policy, now, seconds = self.policy, self.situation(), [inf]
        if now.waiting and policy.offload_age_seconds is not None:
            closed_ms = now.waiting[0].closed_ms or 0
            seconds.append(policy.offload_age_seconds - (now.now_ms - closed_ms) / 1000)
        if now.waiting and policy.offload_interval_seconds is not None:
            seconds.append(policy.offload_interval_seconds - now.since_offload_seconds)
        return min(seconds)

    async def _tend_copies(self) -> None:
        # Before retention, which fails while the store is down or the clock is in doubt.
        await self._delete_copies()
        if self.policy.retains_for_ever:
            return
        if not self.copy.is_known:
            await self.copy.look()
        # Asked of the known manifest first, which costs no request, and again of the one that `agree` has
        # loaded.
        if await self.trim_target() is None or not await self.copy.agree():
            return
        target = await self.trim_target()
        if target is not None:
            # The tier first: if the process ends between the two, a copy is left here, and not the only one
            # gone.
            await self.copy.trim(target)
            await self._delete_copies()

    async def _delete_copies(self) -> None:
        """Delete the local ledgers that may go, the oldest first."""
        self._asked_ms = self.env.now_ms()
        for rule in (expired_offset, removable_offset):
            now = self.situation()
            if rule(now, self.policy)[0] > now.ledgers[0].first_offset:
                # No proof of one history: another disk's log may have these offsets. But if no tier has the
                # stream, there is no history to differ from, and only retention deletes.
                is_agreed = await self.copy.agree()
                if is_agreed or self.copy.manifest is None:
                    await self._delete_by(rule)
        if (event := self._room.held()) is not None:
            self._tell(event)
        if self._room.is_there:
            self._room.wake()

    async def confirmed(self, plan: LedgerPlan) -> LedgerPlan:
        """Return the plan, with ledgers kept that a step would not delete. Raises `Fenced`, `Diverged`."""
        rows, doubt = list[PlannedLedger](), ""
        for row in plan.ledgers:
            goes = row.action in (LedgerAction.DELETE, LedgerAction.DELETE_LOCAL)
            if goes and not doubt:
                doubt = await self._doubt(row.ledger)
            rows.append(PlannedLedger(row.ledger, LedgerAction.KEEP, doubt) if goes and doubt else row)
        return LedgerPlan(ledgers=rows, trim_before=plan.trim_before)

    async def _doubt(self, ledger: LocalLedger) -> str:
        """Return why a ledger that is due to go would stay; empty if it would go."""
        if self.copy.manifest is not None and not await self.copy.agree():
            return "the tier has no record that shows whether it has this log's history"
        try:
            await self._confirm(ledger)
        except Fenced:  # no doubt about this ledger: this process may delete nothing at all any more
            raise
        except OffloadError as error:
            return f"kept in doubt: {error}"
        return ""

    async def _confirm(self, ledger: LocalLedger) -> None:
        """Raise an error unless a ledger that is due to go may go."""
        if self.copy.manifest is None:
            self._clock.check()  # retention deletes the only copy, by its age
        else:
            await self.copy.confirm(ledger)

    async def _delete_by(self, rule: Callable[[Situation, LedgerPolicy], tuple[int, str]]) -> None:
        now = self.situation()  # by the newest manifest
        until, reason = rule(now, self.policy)
        for ledger in now.sealed:
            if ledger.next_offset > until:
                return  # oldest first, without a gap: a log with a hole is damage (`check_ledgers`)
            await self._confirm(ledger)
            # Before the deletion: if that fails half-way, the log may begin behind the ledger, and
            # `situation` would report a loss.
            self.first_offset = ledger.next_offset
            await self.log.delete(ledger.ledger_id)
            self.source.wake()
            self._tell(
                LocalLedgerDeleted(
                    stream=self.log.name,
                    ledger_id=ledger.ledger_id,
                    size_bytes=ledger.size_bytes,
                    reason=reason,
                )
            )

    def _seconds_until_deletion(self) -> float:
        policy, now, seconds = self.policy, self.situation(), [inf]
        if now.sealed and policy.deletion_lag_seconds is not None:
            ends = (ms for end, ms in now.committed_ms if end >= now.sealed[0].next_offset)
            seen_ms = next(ends, None)
            if seen_ms is not None:
                lag_ms = policy.deletion_lag_seconds * 1000
                # If it was over when the rules were asked, the copies are still here for a doubt.
                was_over = self._asked_ms - seen_ms > lag_ms
                # A moment more, because the rule wants an age above the lag.
                left = max(lag_ms - (now.now_ms - seen_ms), 0) / 1000 + 0.001
                seconds.append(PAUSE_SECONDS if was_over else left)
        if policy.retention_seconds is not None:
            seconds.append(max(policy.retention_seconds / 10, 1.0))
        return min(seconds)

    async def trim_target(self) -> int | None:
        """Return the offset below which retention deletes records on the tier. None: none."""
        policy = self.policy
        if policy.retains_for_ever:
            return None
        if policy.retention_seconds is not None:
            self._clock.check()
        size_max = policy.retention_size_bytes
        if size_max is not None:
            # The limit is for the stream: what only the log has takes its share before the tier.
            now = self.situation()
            only_local = sum(each.size_bytes for each in now.ledgers if each.next_offset > now.done)
            size_max = max(size_max - only_local, 0)
        retention = Retention(age_seconds_max=policy.retention_seconds, size_bytes_max=size_max)
        return await self.copy.trim_target(retention, slowest_offset=self.cursors.slowest)

    def situation(self) -> Situation:
        """Return what the rules look at. Raises `Corrupt` if the log has lost a ledger."""
        ledgers, manifest, seen_ms = self.log.ledgers, self.copy.manifest, self.copy.committed_ms
        check_ledgers(ledgers, where=self.log.where, stream=self.log.name)
        if ledgers[0].first_offset > self.first_offset:
            raise Corrupt(
                "first offset of the log",
                self.log.where,
                expected=self.first_offset,
                found=ledgers[0].first_offset,
                stream=self.log.name,
            )
        # Before the tier was asked, the note says what it had. Whatever is done by it asks the tier first.
        believed = seen_ms[-1][0] if seen_ms and not self.copy.is_known else None
        return Situation(
            ledgers=ledgers,
            tier_first=manifest.first_offset if manifest else None if believed is None else 0,
            tier_next=manifest.next_offset if manifest else believed,
            committed_ms=seen_ms,
            slowest_offset=self.cursors.slowest,
            now_ms=self.env.now_ms(),
            since_offload_seconds=self.env.monotonic() - self.copy.since_seconds,
            committed_offset=self.log.committed_offset,
        )
