"""A managed ledger: a broker's own log and a tier as one stream of records.

    ledger = await ManagedLedger.open(log, tier, policy=LedgerPolicy(deletion_lag_seconds=3600))
    offset = await ledger.append([b"one", b"two"])
    async for batch in ledger.read(offset): ...

An append goes to the log alone, and never waits for the tier, unless the log has passed its bound. Everything
else is the work of `step`: it seals ledgers that are old, copies sealed ones, deletes local copies that the
tier has, saves cursors, and applies retention. `ManagedLedgers` calls it when something is due. A single
managed ledger does none of this until its owner calls `step`.

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
- No append gets an offset that the tier has with another record, as far as the tier can be asked: it is asked
  before the first append after opening, and whenever something is to be copied or deleted.

docs/adr/0032-managed-ledger.md has the reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from enum import StrEnum
from math import inf
from typing import Final, Self

from offload.cache.block_cache import BlockCache
from offload.contracts.events import (
    Event,
    LedgerRolled,
    StreamPaused,
)
from offload.contracts.log import LedgerLog
from offload.contracts.offloader import LedgerOffloader
from offload.formats.chunk_writer import checked_records
from offload.ground.env import Env
from offload.ground.errors import (
    AlreadyRunning,
    Corrupt,
    Diverged,
    Divergence,
    Fenced,
    Misuse,
    OffloadError,
    StreamDeleted,
    TryAgain,
)
from offload.managed.back_pressure import BackPressure
from offload.managed.budget import ByteBudget
from offload.managed.contexts import LedgerContext, contexts_of
from offload.managed.cursors import CursorNote, Cursors, LogCursors
from offload.managed.log_source import LogStream
from offload.managed.policy import LedgerPolicy
from offload.managed.reading import Reading
from offload.managed.rules import (
    LedgerPlan,
    check_ledgers,
    plan_of,
    prefix_before,
)
from offload.managed.tier_copy import LedgerOnTier
from offload.managed.work import SAVE_SECONDS, LedgerWork
from offload.model.position import PartOffset, Position, check_start
from offload.read.batches import Messages
from offload.read.reader import warn_of_skips
from offload.read.watch import StreamWatch
from offload.two_sides.choice import ReadPriority
from offload.two_sides.tiered import TieredReader

__all__ = ["LedgerState", "ManagedLedger"]


APPEND_SIZE_BYTES_MAX: Final = 64 * 2**20
MEET_SECONDS: Final = 10.0
"""How long the first append after opening waits for the tier. Later ones never do."""


def check_log(log: object) -> None:
    """Raise `Misuse` unless this is a log."""
    if not isinstance(log, LedgerLog):
        raise Misuse(f"the log is a LedgerLog, such as `await FolderLog.open(folder)` returns, not {log!r}")


def check_tier(tier: object) -> None:
    """Raise `Misuse` unless this is a tier that was opened."""
    if not isinstance(tier, LedgerOffloader):
        raise Misuse(f"the tier is what `async with open_tier(url) as tier` opens, not {tier!r}")


class LedgerState(StrEnum):
    """The state of a managed ledger."""

    OPEN = "open"
    FENCED = "fenced"
    """Another process has claimed the stream, or deleted it."""
    CLOSED = "closed"


class ManagedLedger:
    """One stream of a broker. It belongs to one event loop; its methods may be called at the same time.

    It has no task of its own: the policy is applied, and cursors are saved, when `step` is called. Open it
    with `ManagedLedgers`, which does so, or call `step` yourself, as its docstring says.

    Every method raises `Misuse` after `close`. It raises `Fenced` after this ledger has learned that another
    process claimed the stream, and `StreamDeleted`, a `Fenced`, in the call that finds the stream deleted.
    """

    def __init__(
        self,
        log: LedgerLog,
        tier: LedgerOffloader,
        *,
        policy: LedgerPolicy,
        place: CursorNote,
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
        """The error that work in the background met and that lasts. None if there is none."""
        self.source: Final = LogStream(log)
        """The log as a stream of a source, for followers and readers."""

        self._env, self._emit, self._due, self._budget = env, emit, due, budget
        self._cache, self._watch = cache, watch
        self._copy = LedgerOnTier(log=log, source=self.source, tier=tier, env=env, emit=self._tell)
        self._room = BackPressure(policy, stream=log.name, size_bytes=lambda: self.size_bytes)
        self._cursors = Cursors(place, stream=log.name)
        self._background = LedgerWork(
            log,
            self.source,
            self._copy,
            self._cursors,
            self._room,
            policy=policy,
            roll=self._roll,
            env=env,
            tell=self._tell,
        )
        self._reading = Reading(
            log=log,
            priority=policy.read_priority,
            opened=self._reader,
            is_doubtful=lambda: self._background.diverged is not None,
            agreed=self._agree_with,
            emit=self._emit_or_warn,
            env=env,
        )
        self._work = asyncio.Lock()
        self._rolling = asyncio.Lock()
        self._is_going = self._is_ended = self._is_fenced = False

    @classmethod
    async def open(
        cls,
        log: LedgerLog,
        tier: LedgerOffloader,
        *,
        policy: LedgerPolicy | None = None,
        cursors: CursorNote | None = None,
        cache: BlockCache | None = None,
        watch: StreamWatch | None = None,
        budget: ByteBudget | None = None,
        env: Env | None = None,
        emit: Callable[[Event], None] = lambda event: None,
        due: Callable[[ManagedLedger, float], None] = lambda ledger, seconds: None,
    ) -> Self:
        """Return the managed ledger of a log, which it closes. The tier may have the stream, or not yet.

        A log without records, such as that of a new disk, begins where the tier ends. Only for that the tier
        is asked now, and must answer: `TryAgain` may take as long as the patience of its store. `cursors`
        defaults to a note beside the log. Readers share `cache`; those that wait share `watch`; appends under
        way share `budget`. `due` is called with the seconds after which `step` has something to do, if that
        is earlier than it said.

        Raises `Misuse` if the log or the tier is something else, such as a URL, `Corrupt` if the log's
        ledgers are no run, and what the log and the tier raise. The caller closes the log then.
        """
        check_log(log)
        check_tier(tier)
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
        if self.log.first_offset == self.log.next_offset:
            await self._copy.begin()
        self._background.first_offset = self.log.first_offset
        await self._cursors.load(self.next_offset)

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

    @property
    def lag_records(self) -> int:
        """The records of the log that the tier is not known to have. Costs no request."""
        return max(self.log.next_offset - max(self._copy.end, self.log.first_offset), 0)

    @property
    def is_paused(self) -> bool:
        """True if some of the work waits for a person. `error` has the reason."""
        return self.error is not None and self._background.is_paused

    def __repr__(self) -> str:
        """Return the name, the state, the offsets of the log, and the end of the tier as far as known."""
        offsets = f"[{self.log.first_offset}, {self.log.next_offset})"
        paused = ", paused" if self.is_paused else ""
        return f"<ManagedLedger {self.name!r}: {self.state}{paused}, log {offsets}, tier to {self._copy.end}>"

    async def append(self, records: Sequence[bytes]) -> int:
        """Append records, at least one. Return the offset of the first one when the log keeps them.

        The first append after opening asks the tier where it ends, for at most 10 seconds. If the tier does
        not answer, the append is accepted, and the next step asks. The first append also compares the last
        chunk of the tier with the log. If the local log has passed its bound, the call waits, raises
        `Throttled`, or appends, by `LedgerPolicy.when_full`. Raises `Diverged` if the tier is
        ahead of the log or has another history, and what `LedgerLog.append` raises.
        """
        self._refuse_if_over()
        records = checked_records(records)
        await self._meet_tier()
        size_bytes = sum(map(len, records))
        while True:
            self._note_hold()
            if not await self._room.enter(self.error):
                self._refuse_if_over()
                continue
            async with self._budget.take(size_bytes):
                self._refuse_if_over()
                # Others may have filled the log while this one waited for its turn.
                if self._room.admits:
                    return await self._append(records)

    async def _append(self, records: Sequence[bytes]) -> int:
        before = self.log.ledgers[-1]
        offset = await self.log.append(records, timestamp_ms=self._env.now_ms())
        if self.state is LedgerState.FENCED:
            self._refuse_if_over()  # nobody will ever read the records
        if not before.records:
            self._background.began_seconds = self._env.monotonic()
            self._due(self, inf if self.policy.roll_seconds is None else self.policy.roll_seconds)
        self.source.wake()
        newest = self.log.ledgers[-1]
        if newest.size_bytes >= self.policy.roll_size_bytes:
            # The records are in the log, so this is no failure of theirs. A step tries again.
            with suppress(OffloadError):
                await self._roll(self.policy.roll_size_bytes)
            self._due(self, 0.0)
        elif newest.ledger_id != before.ledger_id:
            self._due(self, 0.0)  # the log itself, or another call, has rolled
        return offset

    async def roll(self, size_bytes_min: int = 1) -> None:
        """Seal the open ledger if it has at least so many bytes. Sealed ledgers can be offloaded."""
        self._refuse_if_over()
        await self._roll(size_bytes_min)

    async def _roll(self, size_bytes_min: int = 1) -> None:
        async with self._rolling:
            if self.log.ledgers[-1].size_bytes < size_bytes_min:
                return  # another call has rolled meanwhile
            sealed = await self.log.roll(now_ms=self._env.now_ms())
        if sealed is not None:
            # Appends that began before the roll may fill the new ledger, and do not know that they are first.
            self._background.began_seconds = self._env.monotonic()
            self._tell(
                LedgerRolled(
                    stream=self.name,
                    ledger_id=sealed.ledger_id,
                    records=sealed.records,
                    size_bytes=sealed.size_bytes,
                )
            )
            self._due(self, 0.0)

    async def _meet_tier(self) -> None:
        """Ask the tier where it ends, before the first append. Its silence refuses no append."""
        if self._background.diverged is not None:
            raise Diverged(
                str(self._background.diverged), kind=self._background.diverged.kind
            ) from self._background.diverged
        if self._copy.is_compared or self._background.has_asked:
            return
        with self._watching():
            try:
                async with asyncio.timeout(MEET_SECONDS):
                    await self._copy.meet()
            except Fenced:
                raise
            except (OffloadError, TimeoutError) as error:
                # A tier that is away, or has lost the stream, is no reason. One that is ahead is, and one
                # that has another record where this log has its own.
                if isinstance(error, Diverged) and error.kind in (Divergence.BEHIND, Divergence.FORK):
                    raise
                self._due(self, 0.0)
        self._background.has_asked = True

    def _note_hold(self) -> None:
        if (event := self._room.held()) is not None:
            self._tell(event)
            self._due(self, 0.0)

    # What a consumer calls.

    async def read(self, start: Position | int | PartOffset) -> AsyncGenerator[Messages, None]:
        """Yield the messages from a position on, up to the newest, from the log and the tier. Close it.

        A read that prefers the log, and begins in it, asks the log alone. It asks the tier if a local copy
        was deleted or damaged meanwhile. Any other read uses the log alone if the tier does not answer.
        Offsets that neither side has any more are reported as `Skipped`. Raises `Misuse` for what is no
        position, and otherwise as `TieredReader.messages`. `Diverged` and `Fenced` that come from the tier
        also end the appends.
        """
        self._refuse_if_over()
        check_start(start)
        async with aclosing(self._reading.messages(start)) as batches:
            with self._watching(is_read=True):
                async for batch in batches:
                    yield batch

    async def follow(self, start: Position | int | PartOffset) -> AsyncGenerator[Messages, None]:
        """Yield the messages from a position on, and then what comes later, at once. Close it.

        Raises `Misuse` for what is no position. Ends with `Misuse` when the ledger is closed, and with
        `Fenced` when this ledger learns that another process has claimed the stream. Otherwise as `read`, and
        it waits for a tier that does not answer.
        """
        self._refuse_if_over()
        check_start(start)
        async with aclosing(self._reading.messages(start, self._watch)) as batches:
            with self._watching(is_read=True):
                async for batch in batches:
                    yield batch

    async def _agree_with(self, reader: TieredReader) -> bool:
        """Return whether a reader may continue: False if its records were trimmed uncompared."""
        if self._copy.has_agreed(reader.committed):
            return True
        async with self._work:
            self._refuse_if_over()
            await self._copy.agree()
        return reader.committed is None or not self._copy.is_outdated(reader.committed)

    async def _reader(self, priority: ReadPriority, emit: Callable[[Event], None]) -> TieredReader:
        return await TieredReader.open(
            self.source,
            self.tier,
            priority=priority,
            hold_back_seconds=0.0,
            cache=self._cache,
            env=self._env,
            emit=emit,
        )

    @property
    def cursors(self) -> Mapping[str, int]:
        """The cursors by name, each with the offset up to which everything is acknowledged."""
        return self._cursors.positions

    def open_cursor(self, name: str, start: int | None = None) -> int:
        """Return the position of a cursor, which is made if there is none. It is saved by the next step.

        A new one begins at `start`, by default at the first record of the log. Raises `Misuse` for a name or
        an offset that cannot be one.
        """
        with self._moving():
            begin = self.log.first_offset if start is None else start
            return self._cursors.open(name, begin, end=self.next_offset)

    def acknowledge(self, name: str, next_offset: int) -> None:
        """Move a cursor: everything below `next_offset` is acknowledged. A lower offset changes nothing.

        The position is saved by the next `step`, which `ManagedLedgers` calls a second later, and when the
        ledger is closed. Raises `Misuse` for an unknown cursor, and for an offset beyond the end.
        """
        with self._moving():
            self._cursors.move(name, next_offset, end=self.next_offset)

    def reset_cursor(self, name: str, offset: int) -> None:
        """Move a cursor to any offset, also back."""
        with self._moving():
            self._cursors.move(name, offset, end=self.next_offset, may_fall=True)

    def drop_cursor(self, name: str) -> None:
        """Forget a cursor. It keeps nothing from retention any more. Idempotent."""
        with self._moving():
            self._cursors.drop(name)

    @contextmanager
    def _moving(self) -> Iterator[None]:
        self._refuse_if_over()
        was_moved = self._cursors.is_moved
        yield
        if self._cursors.is_moved and not was_moved:
            self._due(self, SAVE_SECONDS)

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
        until = prefix_before(self._background.situation(), position)
        if self._copy.is_compared and until <= self._background.situation().done:
            return until
        if self._work.locked():
            raise AlreadyRunning(f"stream {self.name!r}: an offload, a deletion or a trim runs already")
        async with self._work:
            with self._watching():
                if not self._copy.is_compared:
                    await self._copy.agree()  # ends alone do not show that the tier has this log's records
                if until > self.log.committed_offset:
                    raise TryAgain(
                        f"stream {self.name!r}: the log acknowledges records up to offset "
                        f"{self.log.committed_offset} so far, not up to {until}"
                    )
                if until > self._background.situation().done:
                    await self._copy.offload(until)
                    self._due(self, 0.0)  # the deletion lag begins
        return until

    async def plan(self) -> LedgerPlan:
        """Return what the next step would do with each ledger of the log, and why. Nothing is changed.

        Asks the tier for its newest manifest. Deletions are confirmed as in a step. If the tier
        leaves a doubt, such as a fragment that is damaged, the plan keeps the ledger, and has the reason.
        Raises `Diverged` if the tier has another history than the log.
        """
        self._refuse_if_over()
        async with self._work:
            with self._watching():
                await self._copy.look()
                with suppress(Corrupt):  # a step processes what is sound
                    await self._copy.meet()
                plan = plan_of(self._background.situation(), self.policy)
                plan = await self._background.confirmed(plan)
            target = await self._background.trim_target()
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
        end it earlier. If this is cancelled, repeat it.
        """
        self.state = LedgerState.CLOSED
        self._room.wake()
        async with self._work:
            if self._is_ended:
                return
            try:
                # The cursors of a fenced ledger are those of the next owner.
                if not self._is_fenced and not self._is_going:
                    await self._cursors.save()
                    await self._copy.release()
            except OffloadError as error:
                # The next owner waits a little, or gets old positions. Neither loses a record.
                self.error = error
            finally:
                self.source.end(Misuse(self._closed))
                await self.log.aclose()
                self._is_ended = True
                self._due(self, 0.0)

    async def delete(self) -> None:
        """Delete the stream on the tier, and then the log. The sweep deletes the objects.

        If the tier does not answer, nothing is deleted. After an error, repeat the call.
        """
        if self.state is not LedgerState.FENCED or not isinstance(self.error, StreamDeleted):
            self._refuse_if_over(is_deletion=True)
        async with self._work:
            if self._is_ended:
                return
            with self._watching():
                await self._copy.delete()
            self._is_going = True  # what is appended from now on would be lost
            await self._cursors.clear()
            await self.log.destroy()
            self.state, self._is_ended = LedgerState.CLOSED, True
        self._room.wake()
        self.source.end(Misuse(self._closed))
        self._due(self, 0.0)

    # The work in the background.

    async def step(self) -> float:
        """Do what is due. Return the seconds until something may be due again, if nothing changes before.

        `ManagedLedgers` calls it. Without that, call it again after these seconds, and earlier if `due` of
        `open` says so. A call that finds nothing due costs no request.

        Raises no error of the framework: `error` has it, and events report a pause and its end.
        """
        async with self._work:
            if self.state is not LedgerState.OPEN or self._is_going:
                return inf
            try:
                with self._watching():
                    return await self._background.run()
            except Fenced:
                return inf
            finally:
                if self.state is LedgerState.OPEN:
                    self.error = self._background.error

    @contextmanager
    def _watching(self, *, is_read: bool = False) -> Iterator[None]:
        """Note an error that ends the ledger, or its appends."""
        try:
            yield
        except Fenced as error:
            # A reader also finds the tombstone of a stream that was deleted before this one was begun.
            if not (is_read and isinstance(error, StreamDeleted)):
                self._fence(error)
            raise
        except Diverged as error:
            if self._background.note(error):
                self._due(self, 0.0)  # the next step reports it, and asks whether it lasts
            if self.state is LedgerState.OPEN:
                self.error = self._background.error
            raise

    def _fence(self, error: Fenced) -> None:
        self._is_fenced = True  # also if it is being closed
        if self.state is not LedgerState.OPEN:
            return
        self.state, self.error = LedgerState.FENCED, error
        self._tell(StreamPaused(stream=self.name, error=error))
        self._room.wake()
        self.source.end(Fenced(self._fenced))

    @property
    def _closed(self) -> str:
        return f"stream {self.name!r} was closed: open it again"

    @property
    def _fenced(self) -> str:
        return f"stream {self.name!r} belongs to another process now, or was deleted: {self.error}"

    def _refuse_if_over(self, *, is_deletion: bool = False) -> None:
        if self.state is LedgerState.FENCED:
            raise Fenced(self._fenced)
        if self.state is LedgerState.CLOSED:
            raise Misuse(self._closed)
        if self._is_going and not is_deletion:
            raise Misuse(f"stream {self.name!r} is half deleted: repeat the deletion")

    def _tell(self, event: Event) -> None:
        self._watch.committed(event)
        self._emit(event)

    def _emit_or_warn(self, event: Event) -> None:
        warn_of_skips(event)
        self._emit(event)
