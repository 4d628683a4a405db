"""A managed ledger: a broker's own log and a tier as one stream of records.

    ledger = await ManagedLedger.open(log, tier, policy=LedgerPolicy(deletion_lag_seconds=3600))
    offset = await ledger.append([b"one", b"two"])
    async for batch in ledger.read(offset): ...

An append goes to the log alone, and never waits for the tier, unless the log has passed its bound. Everything
else is the work of `step`: it seals ledgers that are old, copies sealed ones, deletes local copies that the
tier has, and applies retention. `ManagedLedgers` calls it when something is due.

    done                            then                                a crash in between
    appended                        the producer is answered            the record is in the log
    sealed, copied, committed       the deletion lag begins             the next offload adopts or drops it
    confirmed on the tier           the local copy is deleted           it is confirmed and deleted again
    trimmed on the tier             the local copy is deleted           the next step deletes it

Invariants:

- A record that was acknowledged is in the log or on the tier, until retention deletes it.
- In doubt, nothing local is deleted: the ledger pauses, with the reason.
- One offload, deletion or trim runs at a time.
- A ledger whose stream another process claimed is fenced, for good: it takes no append, and changes nothing.

docs/adr/0032-managed-ledger.md has the reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from enum import StrEnum
from math import inf
from typing import Final, Self

from offload.contracts.events import (
    AppendsHeld,
    Event,
    LedgerRolled,
    LocalLedgerDeleted,
    StreamPaused,
    StreamResumed,
)
from offload.contracts.log import LedgerLog
from offload.contracts.offloader import LedgerOffloader
from offload.env import Env
from offload.errors import (
    AlreadyRunning,
    Conflict,
    Fenced,
    Misuse,
    OffloadError,
    OutcomeUnknown,
    StreamDeleted,
    Throttled,
    TryAgain,
)
from offload.managed.budget import ByteBudget
from offload.managed.contexts import LedgerContext, contexts_of
from offload.managed.cursors import (
    CursorPlace,
    LogCursors,
    check_cursor_name,
    decode_cursors,
    encode_cursors,
)
from offload.managed.log_source import LogStream
from offload.managed.policy import LedgerPolicy, WhenFull
from offload.managed.rules import (
    LedgerPlan,
    Situation,
    check_ledgers,
    due_offset,
    expired_offset,
    plan_of,
    prefix_before,
    removable_offset,
)
from offload.managed.tier_copy import TierCopy
from offload.model.position import AtOffset, PartOffset, Position
from offload.streams.batches import Messages
from offload.streams.block_cache import BlockCache
from offload.streams.reader import warn_of_skips
from offload.streams.tiered import TieredReader
from offload.streams.watch import StreamWatch
from offload.upkeep.clock import ClockGuard
from offload.upkeep.retention import Retention, delete_stream

__all__ = ["LedgerState", "ManagedLedger"]


APPEND_SIZE_BYTES_MAX: Final = 64 * 2**20
STEP_SECONDS_MAX: Final = 3600.0
RETRY_SECONDS_MAX: Final = 60.0
PAUSED_STEP_SECONDS: Final = 300.0
"""The time between two tries of a ledger that waits for a person."""

SAVE_SECONDS: Final = 1.0
"""Cursors that moved are saved after so much time."""


class LedgerState(StrEnum):
    """The state of a managed ledger."""

    OPEN = "open"
    FENCED = "fenced"
    """Another process has claimed the stream."""
    CLOSED = "closed"


class ManagedLedger:
    """One stream of a broker. It belongs to one event loop; its methods may be called at the same time.

    Every method raises `Misuse` after `close`, and `Fenced` after the stream was claimed by another process.
    """

    def __init__(
        self,
        log: LedgerLog,
        tier: LedgerOffloader,
        *,
        policy: LedgerPolicy,
        place: CursorPlace,
        cache: BlockCache | None,
        watch: StreamWatch,
        budget: ByteBudget,
        env: Env,
        emit: Callable[[Event], None],
        due: Callable[[ManagedLedger, float], None],
    ) -> None:
        """Use `open`."""
        self.log, self.tier, self.policy = log, tier, policy
        self.state = LedgerState.OPEN
        self.error: OffloadError | None = None
        """The error that the last step met. None if there was none."""
        self.source: Final = LogStream(log)
        """The log as a stream of a source, for followers and readers."""

        self._env, self._emit, self._due, self._budget = env, emit, due, budget
        self._cache, self._watch, self._place = cache, watch, place
        self._copy = TierCopy(log=log, source=self.source, tier=tier, env=env, emit=self._tell)
        self._clock = ClockGuard(env)
        self._work = asyncio.Lock()
        self._rolling = asyncio.Lock()
        self._has_room: asyncio.Future[None] | None = None
        self._began_seconds = env.monotonic()
        """The moment since when the open ledger has records, as far as known."""
        self._cursors: dict[str, int] = {}
        self._saved: dict[str, int] = {}
        self._moved_seconds: float | None = None
        self._failures = 0
        self._is_paused = self._is_held = False

    @classmethod
    async def open(
        cls,
        log: LedgerLog,
        tier: LedgerOffloader,
        *,
        policy: LedgerPolicy | None = None,
        cursors: CursorPlace | None = None,
        cache: BlockCache | None = None,
        watch: StreamWatch | None = None,
        budget: ByteBudget | None = None,
        env: Env | None = None,
        emit: Callable[[Event], None] = lambda event: None,
        due: Callable[[ManagedLedger, float], None] = lambda ledger, seconds: None,
    ) -> Self:
        """Return the managed ledger of a log, which it closes. The tier may have the stream, or not yet.

        A log without records, such as that of a new disk, begins where the tier ends. Only for that the tier
        is asked now. `cursors` defaults to a note beside the log. Readers share `cache`; those that wait
        share `watch`; appends under way share `budget`. `due` is called with the seconds after which `step`
        has something to do, if that is earlier than it said.

        Raises `Corrupt` if the log's ledgers are no run, and what the log and the tier raise.
        """
        env = env or Env()
        ledger = cls(
            log,
            tier,
            policy=policy or LedgerPolicy(),
            place=cursors or LogCursors(log),
            cache=cache,
            watch=watch or StreamWatch(tier, env=env),
            budget=budget or ByteBudget(APPEND_SIZE_BYTES_MAX),
            env=env,
            emit=emit,
            due=due,
        )
        await ledger._begin()
        return ledger

    async def _begin(self) -> None:
        check_ledgers(self.log.ledgers, where=self.log.where, stream=self.name)
        await self._copy.load_note()
        note = await self._place.load()
        if note is not None:
            self._cursors = decode_cursors(note, where=self._place.where)
            self._saved = dict(self._cursors)
        if self.log.first_offset == self.log.next_offset:
            manifest = await self._copy.look()
            if manifest is not None and manifest.next_offset > self.log.next_offset:
                await self.log.begin(manifest.next_offset)

    # What a producer calls.

    @property
    def name(self) -> str:
        """The name of the stream, in the log and on the tier."""
        return self.log.name

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return self.log.next_offset

    @property
    def size_bytes(self) -> int:
        """The bytes of the local log."""
        return sum(ledger.size_bytes for ledger in self.log.ledgers)

    async def append(self, records: Sequence[bytes]) -> int:
        """Append records, at least one. Return the offset of the first one when the log keeps them.

        If the log has passed its bound, the call waits, raises `Throttled`, or goes on, by
        `LedgerPolicy.when_full`. Raises what `LedgerLog.append` raises.
        """
        self._refuse_if_over()
        await self._wait_for_room()
        is_first = not self.log.ledgers[-1].records
        async with self._budget.take(sum(map(len, records))):
            self._refuse_if_over()
            offset = await self.log.append(records, timestamp_ms=self._env.now_ms())
        if is_first:
            self._began_seconds = self._env.monotonic()
            self._ask_for_a_step(inf if self.policy.roll_seconds is None else self.policy.roll_seconds)
        self.source.wake()
        if self.log.ledgers[-1].size_bytes >= self.policy.roll_size_bytes:
            await self.roll(self.policy.roll_size_bytes)
        return offset

    async def roll(self, size_bytes_min: int = 1) -> None:
        """Seal the open ledger if it has at least so many bytes. What is sealed can be offloaded."""
        self._refuse_if_over()
        async with self._rolling:
            if self.log.ledgers[-1].size_bytes < size_bytes_min:
                return  # another call has rolled meanwhile
            sealed = await self.log.roll(now_ms=self._env.now_ms())
        if sealed is not None:
            self._tell(
                LedgerRolled(
                    stream=self.name,
                    ledger_id=sealed.ledger_id,
                    records=sealed.records,
                    size_bytes=sealed.size_bytes,
                )
            )
            self._ask_for_a_step(0.0)

    async def _wait_for_room(self) -> None:
        bound = self.policy.local_size_bytes_max
        if bound is None:
            return
        while (size := self.size_bytes) > bound:
            if not self._is_held:
                self._is_held = True
                self._tell(AppendsHeld(stream=self.name, size_bytes=size, size_bytes_max=bound))
                self._ask_for_a_step(0.0)
            if self.policy.when_full is WhenFull.GROW:
                return
            if self.policy.when_full is WhenFull.REJECT:
                why = "" if self.error is None else f": {self.error}"
                raise Throttled(
                    f"stream {self.name!r}: the local log has {size} bytes, above its bound of {bound}, and "
                    f"the tier does not have them yet{why}"
                )
            if self._has_room is None:
                self._has_room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._has_room)
            self._refuse_if_over()
        self._is_held = False

    def _wake_producers(self) -> None:
        waiting, self._has_room = self._has_room, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # What a consumer calls.

    async def read(self, start: Position | int | PartOffset) -> AsyncGenerator[Messages, None]:
        """Yield the messages from a position on, up to the newest, from the log and the tier. Close it.

        Raises as `TieredReader.messages`.
        """
        self._refuse_if_over()
        reader = await self._reader()
        batches = reader.messages(await _place(reader, start))
        async with aclosing(batches):
            async for batch in batches:
                yield batch

    async def follow(self, start: Position | int | PartOffset) -> AsyncGenerator[Messages, None]:
        """Yield the messages from a position on, and then what comes later, at once. Close it.

        Never ends by itself. Raises as `TieredReader.follow`.
        """
        self._refuse_if_over()
        reader = await self._reader()
        batches = reader.follow(await _place(reader, start), watch=self._watch)
        async with aclosing(batches):
            async for batch in batches:
                yield batch

    async def _reader(self) -> TieredReader:
        return await TieredReader.open(
            self.source,
            self.tier,
            priority=self.policy.read_priority,
            hold_back_seconds=0.0,
            cache=self._cache,
            env=self._env,
            emit=self._emit_or_warn,
        )

    @property
    def cursors(self) -> Mapping[str, int]:
        """The cursors by name, each with the offset up to which everything is acknowledged."""
        return dict(self._cursors)

    def open_cursor(self, name: str, start: int | None = None) -> int:
        """Return the position of a cursor, which is made if there is none. It is saved by the next step.

        A new one begins at `start`, by default at the first record of the log. Raises `Misuse` for a name or
        an offset that cannot be one.
        """
        self._refuse_if_over()
        if name not in self._cursors:
            check_cursor_name(name)
            begin = self.log.first_offset if start is None else start
            self._check_offset(begin)
            encode_cursors({**self._cursors, name: begin})
            self._move(name, begin)
        return self._cursors[name]

    def acknowledge(self, name: str, next_offset: int) -> None:
        """Move a cursor: everything below `next_offset` is acknowledged. A lower offset changes nothing.

        The position is saved a second later, and when the ledger is closed. Raises `Misuse` for an unknown
        cursor, and for an offset beyond the end.
        """
        self._refuse_if_over()
        if name not in self._cursors:
            raise Misuse(f"stream {self.name!r} has no cursor {name!r}: open it first")
        self._check_offset(next_offset)
        if next_offset > self._cursors[name]:
            self._move(name, next_offset)

    def reset_cursor(self, name: str, offset: int) -> None:
        """Move a cursor to any offset, also back."""
        self._refuse_if_over()
        if name not in self._cursors:
            raise Misuse(f"stream {self.name!r} has no cursor {name!r}: open it first")
        self._check_offset(offset)
        self._move(name, offset)

    def drop_cursor(self, name: str) -> None:
        """Forget a cursor. It keeps nothing from retention any more. Idempotent."""
        self._refuse_if_over()
        if self._cursors.pop(name, None) is not None:
            self._note_move()

    def _check_offset(self, offset: int) -> None:
        if not 0 <= offset <= self.next_offset:
            raise Misuse(f"stream {self.name!r} ends at offset {self.next_offset}, before {offset}")

    def _move(self, name: str, offset: int) -> None:
        self._cursors[name] = offset
        self._note_move()

    def _note_move(self) -> None:
        if self._moved_seconds is None:
            self._moved_seconds = self._env.monotonic()
            self._ask_for_a_step(SAVE_SECONDS)

    async def _save_cursors(self) -> None:
        if self._cursors == self._saved:
            self._moved_seconds = None
            return
        positions = dict(self._cursors)
        await self._place.save(encode_cursors(positions))
        self._saved = positions
        self._moved_seconds = None if positions == self._cursors else self._env.monotonic()

    # What an operator calls.

    async def offload_prefix(self, position: int) -> int:
        """Offload the sealed ledgers that end at or before `position`. Return where the next one begins.

        The ledger that holds the position stays, even if it is its last record, and so does the open one.
        Ledgers that are on the tier already are left out, and if no other is left, the call succeeds at once.

        Raises `Misuse` for a position that the log does not have, and `AlreadyRunning` if an offload runs.
        Raises the first error of a ledger. Ledgers before it are committed then. Those behind it are not,
        because the tier would have a hole.
        """
        self._refuse_if_over()
        until = prefix_before(self._situation(), position)
        if not self._copy.is_known and self._work.locked():
            raise self._running()
        if not self._copy.is_known:
            async with self._work:
                await self._guarded_look()
        if until <= self._situation().done:
            return until
        if self._work.locked():
            raise self._running()
        async with self._work:
            await self._offload(until)
        return until

    async def plan(self) -> LedgerPlan:
        """Return what the next step would do with each ledger of the log, and why. Nothing is changed.

        Asks the tier for its newest manifest.
        """
        self._refuse_if_over()
        async with self._work:
            await self._guarded_look()
            plan = plan_of(self._situation(), self.policy)
            target = await self._trim_target()
        return LedgerPlan(ledgers=plan.ledgers, trim_before=target)

    def contexts(self) -> AsyncGenerator[LedgerContext, None]:
        """Yield the state of each ledger that the log or the tier has, in order. Close it.

        It is read off the newest manifest and the log.
        """
        self._refuse_if_over()
        return contexts_of(self.tier, self.name, self.log)

    async def close(self) -> None:
        """Save the cursors, let go of the tier, and close the log. Idempotent.

        Appends that wait for room raise `Misuse`. Work that runs is finished first: cancel `step` before, to
        end it earlier.
        """
        if self.state is LedgerState.CLOSED:
            return
        was_open = self.state is LedgerState.OPEN
        self.state = LedgerState.CLOSED
        self._wake_producers()
        self.source.wake()
        async with self._work:
            try:
                if was_open:
                    await self._save_cursors()
                    await self._copy.release()
            except OffloadError as error:
                # The next owner waits a little, or gets old positions. Neither loses a record.
                self.error = error
            finally:
                await self.log.aclose()

    async def delete(self) -> None:
        """Delete the stream on the tier, and then the log. The sweep deletes the objects.

        If the tier does not answer, nothing is deleted. Repeat the call then.
        """
        self._refuse_if_over()
        async with self._work:
            manifest = self._copy.manifest
            try:
                if manifest is not None or await self._copy.look() is not None:
                    await delete_stream(self.tier, self.name, env=self._env)
            except StreamDeleted:
                pass  # an earlier call was interrupted behind it
            self.state = LedgerState.CLOSED
            await self._place.save(encode_cursors({}))
            await self.log.destroy()
        self._wake_producers()
        self.source.wake()

    # The work in the background.

    async def step(self) -> float:
        """Do what is due. Return the seconds until something may be due again, if nothing changes before.

        Raises no error of the framework: `error` has it, and events report a pause and its end.
        """
        try:
            async with self._work:
                if self.state is not LedgerState.OPEN:
                    return inf
                await self._roll_if_old()
                await self._offload_due()
                await self._delete_copies()
                await self._retain()
                if self._moved_seconds is not None:
                    await self._save_cursors()
        except Fenced as error:
            return self._fence(error)
        except (TryAgain, OutcomeUnknown, Conflict) as error:
            self.error, self._failures = error, self._failures + 1
            return self._env.backoff_seconds(self._failures, base_seconds=1.0, max_seconds=RETRY_SECONDS_MAX)
        except OffloadError as error:
            if not self._is_paused or type(error) is not type(self.error):
                self._tell(StreamPaused(stream=self.name, error=error))
            self._is_paused, self.error = True, error
            return PAUSED_STEP_SECONDS
        if self._is_paused:
            self._tell(StreamResumed(stream=self.name))
        self._is_paused, self._failures, self.error = False, 0, None
        return self._seconds_until_due()

    def _ask_for_a_step(self, seconds: float) -> None:
        # After an error the next step comes when that said, however much is appended meanwhile.
        if self.error is None:
            self._due(self, seconds)

    def _fence(self, error: Fenced) -> float:
        self.state, self.error = LedgerState.FENCED, error
        self._tell(StreamPaused(stream=self.name, error=error))
        self._wake_producers()
        self.source.wake()
        return inf

    async def _roll_if_old(self) -> None:
        seconds = self.policy.roll_seconds
        age_seconds = self._env.monotonic() - self._began_seconds
        if seconds is not None and self.log.ledgers[-1].records and age_seconds >= seconds:
            await self.roll()

    async def _offload_due(self) -> None:
        if not self.policy.offloads or len(self.log.ledgers) == 1:
            return
        if not self._copy.is_known:
            await self._copy.look()
        until, _ = due_offset(self._situation(), self.policy)
        if until > self._situation().done:
            await self._offload(until)

    async def _offload(self, until: int) -> None:
        try:
            await self._copy.offload(until)
        except Fenced as error:
            if not isinstance(error, StreamDeleted):
                self._fence(error)
            raise

    async def _delete_copies(self) -> None:
        """Delete the local ledgers that may go, the oldest first."""
        for is_expired in (True, False):
            now = self._situation()
            rule = expired_offset if is_expired else removable_offset
            until, reason = rule(now, self.policy)
            for ledger in now.sealed:
                if ledger.next_offset > until:
                    break
                if not is_expired:
                    await self._copy.confirm(ledger)
                await self.log.delete(ledger.ledger_id)
                self.source.wake()
                self._tell(
                    LocalLedgerDeleted(
                        stream=self.name,
                        ledger_id=ledger.ledger_id,
                        size_bytes=ledger.size_bytes,
                        reason=reason,
                    )
                )
        if self.policy.local_size_bytes_max is None or self.size_bytes <= self.policy.local_size_bytes_max:
            self._wake_producers()

    async def _retain(self) -> None:
        target = await self._trim_target()
        if target is not None:
            await self._copy.trim(target)
            await self._delete_copies()

    async def _trim_target(self) -> int | None:
        policy = self.policy
        if policy.retains_for_ever:
            return None
        if not self._copy.is_known:
            await self._copy.look()
        if policy.retention_seconds is not None:
            self._clock.check()
        size_max = policy.retention_size_bytes
        if size_max is not None:
            now = self._situation()
            only_local = sum(each.size_bytes for each in now.ledgers if each.next_offset > now.done)
            size_max = max(size_max - only_local, 0)
        retention = Retention(age_seconds_max=policy.retention_seconds, size_bytes_max=size_max)
        return await self._copy.trim_target(retention, slowest_offset=self._slowest)

    async def _guarded_look(self) -> None:
        try:
            await self._copy.look()
        except StreamDeleted:
            raise
        except Fenced as error:
            self._fence(error)
            raise

    @property
    def _slowest(self) -> int | None:
        return min(self._cursors.values(), default=None)

    def _situation(self) -> Situation:
        manifest = self._copy.manifest
        return Situation(
            ledgers=self.log.ledgers,
            tier_first=None if manifest is None else manifest.first_offset,
            tier_next=None if manifest is None else manifest.next_offset,
            committed_ms=self._copy.committed_ms,
            slowest_offset=self._slowest,
            now_ms=self._env.now_ms(),
            since_offload_seconds=self._env.monotonic() - self._copy.since_seconds,
        )

    def _seconds_until_due(self) -> float:
        """Return the time until the clock alone makes something due."""
        policy, now, seconds = self.policy, self._situation(), [STEP_SECONDS_MAX]
        if now.ledgers[-1].records and policy.roll_seconds is not None:
            seconds.append(self._began_seconds + policy.roll_seconds - self._env.monotonic())
        waiting = [ledger for ledger in now.sealed if ledger.next_offset > now.done]
        if waiting and policy.offload_age_seconds is not None:
            closed_ms = waiting[0].closed_ms or 0
            seconds.append(policy.offload_age_seconds - (now.now_ms - closed_ms) / 1000)
        if waiting and policy.offload_interval_seconds is not None:
            seconds.append(policy.offload_interval_seconds - now.since_offload_seconds)
        if now.sealed and policy.deletion_lag_seconds is not None:
            ends = (ms for end, ms in now.committed_ms if end >= now.sealed[0].next_offset)
            seen_ms = next(ends, None)
            if seen_ms is not None:
                seconds.append(policy.deletion_lag_seconds - (now.now_ms - seen_ms) / 1000)
        if policy.retention_seconds is not None:
            seconds.append(max(policy.retention_seconds / 10, 1.0))
        if self._moved_seconds is not None:
            seconds.append(SAVE_SECONDS)
        return max(min(seconds), 0.01)

    def _running(self) -> AlreadyRunning:
        return AlreadyRunning(f"stream {self.name!r}: an offload, a deletion or a trim runs already")

    def _refuse_if_over(self) -> None:
        if self.state is LedgerState.FENCED:
            raise Fenced(f"stream {self.name!r} belongs to another process now: {self.error}")
        if self.state is LedgerState.CLOSED:
            raise Misuse(f"stream {self.name!r} was closed: open it again")

    def _tell(self, event: Event) -> None:
        self._watch.committed(event)
        self._emit(event)

    def _emit_or_warn(self, event: Event) -> None:
        warn_of_skips(event)
        self._emit(event)


async def _place(reader: TieredReader, start: Position | int | PartOffset) -> PartOffset:
    if isinstance(start, PartOffset):
        return start
    return await reader.place_of(AtOffset(start) if isinstance(start, int) else start)
