"""Following one stream of a source: what is new is copied by one kept writer, until somebody else takes over.

A follower looks at the source again and again. If the source's mark has not changed, a look sends no request.
New data waits until it is worth a fragment, until its ledger ends, or until it would be late: a record shall
be readable on the tier `max_lag_seconds` after it came into the source.

Of several processes that follow replicas of one stream, one leads and the others stand by. A process takes
over only if its source holds records that it would have committed by now, and nobody has committed anything
for `takeover_seconds` of its own monotonic clock. The writer of a tier that works always has an attempt that
runs. A stream without one has no writer, and is taken at once, unless the broker says that another node
leads the stream: then the process beside that node has `REPLICA_PATIENCE` times as long to take it.

Invariants:

- Nothing is copied that the broker does not vouch for: up to `SourceStream.vouched`, or, if that is not
  known, what has been in the source for `hold_back_seconds`.
- Who leads decides about cost, and never about safety: the tier's fence keeps two writers apart.
- The lag is the age of the oldest record that is not committed, whoever leads, and in whichever life of this
  process it was written. If it is not known, the status says so.
- An error that only a person can mend pauses this stream alone. One event reports it, and the follower tries
  again slowly, or at once if `follow.pauses` shows that something was mended.
- A paused stream has resumed when data of it was committed, or nothing waits for that. A try that has not
  failed yet resumes nothing: the state and the alerts of one cause do not flap.
- A stream that a person has paused sends no request until a person resumes it.

docs/adr/0024-followers.md has the reasons.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

from offload.contracts.events import Event, StreamPaused, StreamResumed, TookOver
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot, SourceStream
from offload.copy.copier import StreamCopier
from offload.copy.hold_back import Arrivals, vouched_end
from offload.copy.instance import Instance
from offload.copy.log_order import LogPlace, LogTurns, end_in_window, log_place
from offload.copy.next_part import PartOnTier
from offload.follow.due import due
from offload.follow.gaps import Losses
from offload.follow.pauses import (
    SIGNS_SECONDS,
    LookAtPlace,
    PausedBefore,
    Signs,
    look_nowhere,
)
from offload.follow.rules import FollowRules, FollowState, FollowStatus, Wait
from offload.ground.env import Env
from offload.ground.errors import (
    Conflict,
    Corrupt,
    Diverged,
    Divergence,
    Fenced,
    Misuse,
    NotOffloaded,
    OffloadError,
    OutcomeUnknown,
    StreamDeleted,
    TryAgain,
)
from offload.ground.pause import PAUSE_SECONDS, Pause
from offload.ground.tracing import span
from offload.model.manifest import AttemptKind, Manifest
from offload.read.snapshots import oldest_ms

__all__ = ["Follower"]


CUT_SHARE: Final = 0.6
"""The share of the lag after which waiting data is cut. The rest is for a look, the upload and the commit."""

REPLICA_PATIENCE: Final = 2
"""How many times as long a process waits before it takes over, if another node of the broker leads.

The leader's process looks at least every 0.6 of that time, so it claims first if it works.
"""

PEEK_SECONDS: Final = 10.0
"""The time between two peeks at the source while a look waits. A store may not answer for minutes."""

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Follower:
    """Follows one stream of a source. `step` is one look. Used by one task."""

    source: SourceStream
    offloader: LedgerOffloader
    rules: FollowRules = field(default_factory=FollowRules)
    stream: str = ""
    """The stream's name on the tier: that of the source, unless another is given."""
    taken: Callable[[], Collection[str]] = tuple
    """Returns the names of all streams that are followed. No new part gets one of them."""
    env: Env = field(default_factory=Env)
    emit: Callable[[Event], None] = lambda event: None
    is_ending: Callable[[], bool] = lambda: False
    """Returns True when the process stops. A copy whose turn comes then is not begun."""
    place: LookAtPlace = look_nowhere
    """Looks at the place of the tier, for signs that what paused the stream is mended."""
    instance: Instance | None = None
    """The identity of this process. None: it does not know writers of its earlier lives."""
    state: FollowState = FollowState.STANDBY

    _part: PartOnTier = field(init=False)
    """The newest part of the stream that is known."""
    _looked: tuple[PartOnTier, int] | None = None
    """The part and the version of its root at which no later part was found last."""
    _copier: StreamCopier = field(init=False)
    _mark: Hashable | None = None
    _looked_seconds: float | None = None
    _arrivals: Arrivals = field(default_factory=Arrivals)
    _source_first_offset: int | None = None
    _source_next_offset: int | None = None
    _begun_offset: int = 0
    """The end of the source at the first look of this process."""
    _seen_seconds: float = 0.0
    """The moment of the newest snapshot."""
    _committed_offset: int | None = None
    """The end of the newest manifest that was seen. It outlives the copier that saw it."""
    _root_ms: int | None = None
    """When the newest root was seen last. None if it never was."""
    _oldest: tuple[int, int | None] | None = None
    """The oldest record that is not committed: its offset, and when it was written, if that is known."""
    _waits: tuple[Wait, int] = (Wait.NOTHING, 0)
    """What the records wait for, and since when, if no error stopped the last look."""
    _dispatched_offset: int | None = None
    """The end of the copy that is under way. None if there is none."""
    _watched: tuple[int, float] | None = None
    """The newest version that a process that stands by has seen, and when it saw it first."""
    _watch_again_seconds: float = 0.0
    _own_writer: UUID | None = None
    _retakes: bool = False
    """True if the root that was seen last is that of an earlier life of this process, which is dead."""
    _refusals: int = 0
    """The number of claims of such roots that were refused since this process led last."""
    _pause: Pause = field(init=False)
    """The errors of the looks. The stream is paused by one if it has a kind."""
    _is_doubted: bool = False
    """True if the last look found damage that is not believed yet."""
    _signs: Signs = field(init=False)
    _paused_signs: tuple[Hashable, ...] | None = None
    """The surroundings after the try that failed last. None before the first look at them."""
    _paused_offset: int | None = None
    """The end of what was committed at that try. None if that is not known yet."""
    _held_ms: int | None = None
    """When a person paused the stream. None if nobody has."""
    _is_wanted: bool = False
    """True if somebody asked for a look at once."""
    _is_hurried: bool = False
    """True if somebody asked for a copy of what the source has at the next look."""
    _hurried_until: int = 0
    """The end of the source when somebody asked for a copy. What is before it does not wait for more."""
    _losses: Losses = field(init=False)

    def __post_init__(self) -> None:
        self.stream = self.stream or self.source.name
        self._losses = Losses(stream=self.stream, emit=self.emit)
        self._pause = Pause(env=self.env)
        self._part = PartOnTier.first(self.offloader, self.stream)
        self._copier = self._fresh_copier()
        self._signs = Signs(source=self.source, place=self.place)

    @property
    def status(self) -> FollowStatus:
        """The status that the last look has shown."""
        now, committed, oldest = self.env.monotonic(), self._committed_offset, self._arrivals.oldest
        lacking = self.lacking
        waits, since_ms = self._waits
        if self._pause.error is not None:
            waits, since_ms = Wait.RETRY, self._pause.since_ms
        if self.state is FollowState.PAUSED:
            waits, since_ms = Wait.PERSON, self._pause.since_ms
        if self._held_ms is not None:
            waits, since_ms = Wait.RESUME, self._held_ms
        return FollowStatus(
            stream=self.stream,
            state=self.state,
            error=self._pause.error,
            source_next_offset=self._source_next_offset,
            committed_offset=committed,
            dispatched_offset=committed if self._dispatched_offset is None else self._dispatched_offset,
            lag_records=None if lacking is None else len(lacking),
            alarm_seconds=self.rules.alarm_seconds,
            part=self._part.number,
            lag_seconds=self._lag_seconds,
            waited_seconds=0.0 if oldest is None else now - oldest.since_seconds,
            waits=waits,
            waits_since_ms=since_ms,
            gaps=self._losses.gaps,
            lost_records=self._losses.records,
        )

    @property
    def lacking(self) -> range | None:
        """The offsets that the source had at the last look, and that are not committed. None before it."""
        first, end = self._source_first_offset, self._source_next_offset
        if first is None or end is None:
            return None
        # The source may begin behind the tier's end. What it has deleted does not wait for a copy.
        start = max(first, self._committed_offset or 0)
        return range(start, max(start, end))

    @property
    def _lag_seconds(self) -> float | None:
        if self._root_ms is None or self._source_next_offset is None:
            return None
        if self._oldest is None:
            return 0.0
        _, written_ms = self._oldest
        if written_ms is None:
            return None
        # Somebody else may have committed since this process looked. A process with an error does not know,
        # and the lag that it knows of grows until it does.
        is_standby = self.state is FollowState.STANDBY and self._pause.error is None
        until_ms = self._root_ms if is_standby else self.env.now_ms()
        return max(0.0, (until_ms - written_ms) / 1000)

    async def step(self, turns: LogTurns | None = None) -> float:
        """Look at the source once, copy what is due, and return the seconds until the next look.

        A copy waits for one of the `turns`. Raises no error: the stream pauses, stands by or backs off, as
        the error's class says.
        """
        if self._held_ms is not None:
            return await self._hold()
        if self._pause.kind and not await self._is_worth_a_try():
            await self._peek()
            return SIGNS_SECONDS
        self._is_wanted = False
        try:
            has_more = await self._look(turns)
        except StreamDeleted as error:
            return await self._stop(error)
        except (Fenced, Conflict):
            # Another process leads now. Our data may be its data: nothing is dropped or deleted. A stream
            # that is rebuilt refuses every claim, so the next one is not at once.
            self._stand_by()
            # The last commit of a dead process may have arrived late. That happens once.
            self._refusals += 1
            if not self._retakes or self._refusals > 1:
                self._watch_again_seconds = self.env.monotonic() + self._watch_seconds()
            return self.rules.look_seconds
        except (TryAgain, OutcomeUnknown) as error:
            return self._pause.retry(error)
        except Corrupt as error:
            # A broker that cuts a file writes it again. It may do so between the snapshot and the read.
            return await self._doubt(error)
        except OffloadError as error:
            return await self._stop(error)
        except Exception as error:  # noqa: BLE001 - a mistake of ours or of a source stops this stream alone
            _log.exception("stream %r failed", self.stream)
            return await self._stop(OffloadError(f"{type(error).__name__}: {error}"))
        self._note_success()
        return 0.0 if has_more else self._pause_seconds()

    def _pause_seconds(self) -> float:
        """Return the time until the next look, if nothing is left to copy at once."""
        oldest = self._arrivals.oldest
        if oldest is None or not self._hurries(oldest.next_offset - 1):
            return self.rules.look_seconds
        held_seconds = oldest.seen_seconds + self.rules.hold_back_seconds - self.env.monotonic()
        return min(held_seconds, self.rules.look_seconds) if held_seconds > 0 else self.rules.look_seconds

    def recall(self, before: PausedBefore) -> None:
        """Begin as the process before has left the stream: paused, but it is tried at once."""
        if before.kind:
            self._pause = Pause(
                env=self.env,
                error=OffloadError(before.reason),
                since_ms=before.since_ms,
                kind=before.kind,
                try_seconds=self.env.monotonic(),
            )
            self.state = FollowState.PAUSED
        self._held_ms = before.held_ms

    def retry(self) -> None:
        """Let the next step try at once: a paused stream, and one that waits after an error."""
        self._is_wanted, self._pause.failures, self._watch_again_seconds = True, 0, 0.0

    def hurry(self) -> None:
        """Let the next step copy what the source has then, however small it is. Otherwise as `retry`.

        What the broker does not vouch for yet waits for that alone. A process that stands by copies nothing.
        """
        self._is_hurried = True
        self.retry()

    def hold(self) -> None:
        """Pause the stream on behalf of a person. The next step gives up the lead. Idempotent."""
        if self._held_ms is None:
            self._held_ms = self.env.now_ms()

    def let_go(self) -> None:
        """Go on after `hold`. Idempotent."""
        if self._held_ms is not None:
            self._held_ms, self.state = None, FollowState.STANDBY
            if self._pause.kind:
                self.state = FollowState.PAUSED
            self.retry()

    async def lost_tail(self) -> range:
        """Return the offsets that the last look saw, and that are not on the tier, of a stream that is gone.

        Looks at the tier once more, because another process may have copied them. If it does not answer, what
        was known of it before counts.
        """
        with suppress(OffloadError):
            if (manifest := await self._newest()) is not None:
                self._committed_offset = manifest.next_offset
        return self.lacking or range(0)

    async def release(self) -> None:
        """Stop leading: drop what is announced ahead, so that another process may take over at once.

        Raises as a commit does. Then another process waits for `takeover_seconds`.
        """
        if self._copier.writer is not None:
            await self._copier.writer.release()
        self._stand_by()
        self._own_writer = None

    async def _look(self, turns: LogTurns | None) -> bool:
        """Return True if something is left to copy at once."""
        now = self.env.monotonic()
        before, self._looked_seconds = self._looked_seconds, now
        mark = await self.source.mark()
        if mark is not None and mark == self._mark and not self._arrivals:
            self._wait_for(Wait.NOTHING)
            return False
        with self._peeking():
            return await self._look_at(mark, now, now if before is None else before, turns)

    async def _look_at(
        self,
        mark: Hashable | None,
        now: float,
        since_seconds: float,
        turns: LogTurns | None,
    ) -> bool:
        if self.source.needs_since and self._copier.manifest is None:
            self._copier.manifest = await self._newest()
        async with await self.source.snapshot(self._copier.manifest) as snapshot:
            self._notice(snapshot, since_seconds)
            # Only now: if the snapshot failed, the next look must not believe that nothing is new.
            self._mark = mark
            is_due = await self._is_due(snapshot)
            await self._measure(snapshot)
            if not is_due:
                if snapshot.damage is not None:
                    raise snapshot.damage
                return False
            turn: AbstractAsyncContextManager[None] = nullcontext()
            if turns is not None:
                turn = turns.turn(await self._place(snapshot))
        # The snapshot is closed by now: many streams may wait, and each one holds tables and open files.
        self._wait_for(Wait.TURN)
        async with turn:
            if self.is_ending():
                return False
            async with await self.source.snapshot(self._copier.manifest) as snapshot:
                self._notice(snapshot, now)
                self._wait_for(Wait.COPY)
                has_more = await self._copy(snapshot)
                await self._measure(snapshot)
                self._wait_for(Wait.MORE if self._arrivals else Wait.NOTHING)
                if snapshot.damage is not None and not has_more:
                    raise snapshot.damage
                return has_more

    @contextmanager
    def _peeking(self) -> Iterator[None]:
        """Peek now and then while a look waits for the store."""
        is_over = asyncio.Event()
        peeking = asyncio.ensure_future(self._peek_until(is_over))
        try:
            yield
        finally:
            # Not awaited, so that a commit and the state that it leads to are seen together.
            is_over.set()
            peeking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def _peek_until(self, is_over: asyncio.Event) -> None:
        while True:
            # Not the sleep of `env`: a peek decides nothing, and is no part of schedules that tests replay.
            with suppress(TimeoutError):
                async with asyncio.timeout(PEEK_SECONDS):
                    await is_over.wait()
                    return
            await self._peek(is_over.is_set)

    async def _peek(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Look at the source for the status alone: its ends, its losses, the oldest record that waits."""
        if self._source_next_offset is None or self.source.needs_since:
            return  # the first look notes more than that, or only the tier says where the ends are
        with suppress(OffloadError):  # a look finds that out too, and says it
            async with await self.source.snapshot() as snapshot:
                if not is_over():
                    self._source_first_offset = snapshot.first_offset
                    self._source_next_offset = snapshot.next_offset
                    self._losses.grow_to(snapshot.first_offset)
                    await self._measure(snapshot)

    def _notice(self, snapshot: Snapshot, since_seconds: float) -> None:
        self._seen_seconds, end = self.env.monotonic(), snapshot.next_offset
        if self._source_next_offset is None and end == snapshot.first_offset:
            _log.info("stream %r: its source has no whole chunk yet: nothing to copy", self.stream)
        self._begun_offset = end if self._source_next_offset is None else min(self._begun_offset, end)
        self._arrivals.notice(end, since_seconds=since_seconds, seen_seconds=self._seen_seconds)
        self._source_first_offset, self._source_next_offset = snapshot.first_offset, end
        if self._is_hurried:
            self._is_hurried, self._hurried_until = False, end
        self._forget_copied(snapshot)

    def _forget_copied(self, snapshot: Snapshot) -> None:
        if self._copier.manifest is not None:
            self._committed_offset = self._copier.manifest.next_offset
        done = self._copier.start(snapshot)
        # A source that ends before the tier lags, or its records belong to a later part, which the next look
        # at the root finds. So nothing shows that they are copied.
        if snapshot.next_offset < done:
            return
        self._arrivals.forget(done)

    async def _measure(self, snapshot: Snapshot) -> None:
        """Note the oldest record that is not committed, for the lag."""
        start = max(self._committed_offset or 0, snapshot.first_offset)
        if start >= snapshot.next_offset:
            self._oldest = None
        elif self._oldest is None or self._oldest[0] != start or self._oldest[1] is None:
            written_ms = None
            with suppress(Corrupt, TryAgain):  # a copy finds that out too, and says more
                written_ms = await oldest_ms(snapshot, start)
            self._oldest = start, written_ms

    def _wait_for(self, what: Wait) -> None:
        """Note what records wait for, and since when."""
        if what is not self._waits[0]:
            self._waits = what, self.env.now_ms()

    async def _is_due(self, snapshot: Snapshot) -> bool:
        """Return True if this process shall copy something now. Notes what the records wait for otherwise."""
        if not self._arrivals:
            self._wait_for(Wait.NOTHING)
            return False
        # A root that may be claimed is not loaded at each look until something is due.
        is_behind = snapshot.next_offset < self._copier.start(snapshot)
        is_free = self._copier.expected_version is not None and not is_behind
        if self._copier.writer is None and not is_free and not await self._may_lead(snapshot):
            self._wait_for(Wait.LEADER if self._arrivals else Wait.NOTHING)
            return False
        try:
            until, _ = await self._due(snapshot)
        except Misuse:
            return True  # no chunk begins at the tier's end: the copy compares the histories first
        return until > self._copier.start(snapshot)

    async def _place(self, snapshot: Snapshot) -> LogPlace | None:
        """Return the place of the first record to copy in the log of its broker, if streams share one."""
        start = self._copier.start(snapshot)
        if not snapshot.first_offset <= start < snapshot.next_offset:
            return None  # there is a gap, or another history: the copy finds that out, and reports it
        return await log_place(self.source, start)

    async def _copy(self, snapshot: Snapshot) -> bool:
        """Copy what is due. Return True if more of it is left than fits into one turn."""
        # Another process may have begun while this one waited for its turn.
        if self._copier.writer is None and not await self._may_lead(snapshot):
            return False
        try:
            await self._copier.compare(snapshot, known_to_be_new=self._copier.manifest is None)
            self._losses.go_on()
            due_until, is_all = await self._due(snapshot)
            until = await end_in_window(self.source, snapshot, self._copier.start(snapshot), due_until)
            is_all = is_all and until == due_until
            self._dispatched_offset = until
            with span("follow", stream=self.stream, until=until):
                await self._copier.copy(snapshot, until, ahead=True)
        except Diverged as stopped:
            return await self._go_on(stopped, snapshot)
        except OffloadError:
            # What the root says now may be unknown, and attempts of ours may run. The next claim settles it.
            # It waits for nobody if the root is that of our last claim.
            self._note_copied(snapshot)
            self._copier = self._fresh_copier()
            raise
        finally:
            self._dispatched_offset = None
        self._note_copied(snapshot)
        await self._losses.look(self.offloader, self._part.number)
        return not is_all

    def _note_copied(self, snapshot: Snapshot) -> None:
        """Note whose stream this is, and what is committed."""
        writer = self._copier.writer
        if writer is not None and writer.writer != self._own_writer:
            self._own_writer = writer.writer
            if not self._pause.kind:  # otherwise this claim is a try, and the stream may stay paused
                self.emit(TookOver(stream=self._part.name, epoch=writer.manifest.epoch))
        self._forget_copied(snapshot)

    async def _go_on(self, stopped: Diverged, snapshot: Snapshot) -> bool:
        """Go on in the newest part, or begin one if the rules allow it. Otherwise raise `stopped`."""
        later, manifest = await self._part.newest(), self._copier.manifest
        if later is None:
            if not self.rules.new_part or manifest is None:
                if manifest is not None and stopped.kind is Divergence.GAP:
                    self._losses.stop_at(manifest.next_offset, snapshot.first_offset)
                raise stopped
            later = await self._part.begin_next(
                manifest,
                stopped,
                snapshot,
                taken=self.taken(),
                env=self.env,
                emit=self.emit,
            )
        self._enter(later)
        return True

    def _enter(self, part: PartOnTier) -> None:
        """Follow this part from now on. `_part` stays if uploads of a crashed writer closed its gap."""
        if part != self._part:
            self._part, self._committed_offset, self._own_writer = part, None, None
            self._hurried_until = 0  # an offset of the part before
        self._stand_by()

    async def _may_lead(self, snapshot: Snapshot) -> bool:
        """Return True if this process shall claim the stream, now that its source has something new."""
        now = self.env.monotonic()
        if now < self._watch_again_seconds:
            return False
        manifest = await self._newest()
        self._copier.manifest = manifest
        version = 0 if manifest is None else manifest.version
        self._copier.expected_version = None
        self._forget_copied(snapshot)
        # The broker may have deposed the leader that this source is of. Then every claim is refused.
        is_deposed = manifest is not None and 0 < snapshot.epoch < manifest.source_epoch
        # A source that ends before the tier has nothing to copy, until it has grown again.
        is_behind = manifest is not None and snapshot.next_offset < manifest.next_offset
        can_lead = not is_deposed and not is_behind
        self._retakes = manifest is not None and self._is_of_earlier_life(manifest)
        is_ours = self._retakes or (manifest is not None and manifest.writer == self._own_writer)
        is_free = manifest is None or not _is_at_work(manifest)
        # A process beside a replica leaves the stream to the one beside the leader, unless it works already.
        is_beside = not is_ours and await self.source.leads() is False
        if can_lead and (is_ours or (is_free and not is_beside)):
            self._copier.expected_version = version
            return bool(self._arrivals)
        if self._watched is None or self._watched[0] != version:
            self._watched = version, now
        # The jitter keeps processes apart that began to watch at the same moment.
        patience = self.rules.quiet_seconds * (REPLICA_PATIENCE if is_beside else 1)
        is_quiet = now - self._watched[1] >= patience
        if is_quiet and can_lead and self._is_late(now):
            self._copier.expected_version = version
            return True
        self._watch_again_seconds = now + self._watch_seconds()
        return False

    def _is_of_earlier_life(self, manifest: Manifest) -> bool:
        """Return True if an earlier process with the identity of this one claimed this root."""
        if self.instance is None or not self.instance.is_of_another(manifest.writer):
            return False
        if self._own_writer is not None:  # it claimed after this process did
            self.instance.note_shared(self._part.name)
        return not self.instance.is_shared

    def _hurries(self, offset: int) -> bool:
        """Return True if a record waits for the end of the hold-back alone.

        An earlier life of this process may have let it wait for nearly `max_lag_seconds` already, or somebody
        asked for a copy.
        """
        return (self._retakes and offset < self._begun_offset) or offset < self._hurried_until

    def _watch_seconds(self) -> float:
        """Return the time until this process looks at the root again."""
        return self.rules.quiet_seconds * (0.4 + 0.2 * self.env.random())

    async def _newest(self) -> Manifest | None:
        """Return the newest manifest of the newest part. None if it has none yet."""
        manifest = await self._find_newest()
        if manifest is not None:
            await self._losses.look(self.offloader, self._part.number)
        return manifest

    async def _find_newest(self) -> Manifest | None:
        manifest = await self._newest_of_part()
        # A part with a writer at work is the newest, because nobody has closed it. To close it changes its
        # root, so one look is enough for each version.
        if manifest is None or _is_at_work(manifest) or self._looked == (self._part, manifest.version):
            return manifest
        later = await self._part.newest()
        self._looked = self._part, manifest.version  # only now: a look that failed found nothing
        if later is None:
            return manifest
        self._enter(later)
        return await self._newest_of_part()

    async def _newest_of_part(self) -> Manifest | None:
        try:
            newest = await self.offloader.load_manifest(self._part.name)
        except StreamDeleted as error:
            if self._part.number > 1:
                # Such a part is over, and the stream is not: it continues from the parts that are left.
                self._enter(PartOnTier.first(self.offloader, self.stream))
                return await self._find_newest()
            # Somebody deleted it on purpose. A process that runs for years must not undo that by itself.
            raise StreamDeleted(f"{error}, and this process does not", epoch=error.epoch) from error
        except NotOffloaded:
            newest = None
        self._root_ms = self.env.now_ms()
        return newest

    def _is_late(self, now: float) -> bool:
        """Return True if something waits that a leader with these rules would have committed by now."""
        late, oldest = now - self.rules.max_lag_seconds - self.rules.hold_back_seconds, self._arrivals.oldest
        return oldest is not None and oldest.seen_seconds <= late

    async def _due(self, snapshot: Snapshot) -> tuple[int, bool]:
        """Return the offset up to which to copy now, and whether that is all that is due."""
        now, start = self.env.monotonic(), self._copier.start(snapshot)
        since = now if self._arrivals.oldest is None else self._arrivals.oldest.since_seconds
        is_late = (
            self._hurries(start)
            or since + CUT_SHARE * self.rules.max_lag_seconds <= now + self.rules.look_seconds
        )
        until_within = partial(
            due, snapshot, start, is_late=is_late, fragment_size_bytes=self.rules.fragment_size_bytes
        )
        until, is_all = await until_within(limit=snapshot.next_offset)
        if until <= start:
            self._wait_for(Wait.MORE)
        else:
            # A broker is asked only about what would be copied now.
            limit = await vouched_end(
                self.source,
                snapshot,
                self._arrivals,
                seen_seconds=self._seen_seconds,
                hold_back_seconds=self.rules.hold_back_seconds,
            )
            until, is_all = await until_within(limit=limit)
            if until <= start:
                self._wait_for(Wait.BROKER)
        return until, is_all

    def _stand_by(self) -> None:
        if self.state is FollowState.LEADING:
            self.state = FollowState.STANDBY
        self._copier = self._fresh_copier()
        self._watched, self._watch_again_seconds = None, 0.0

    async def _hold(self) -> float:
        """Give up the lead, once, so that another process may take over."""
        if self.state is not FollowState.PAUSED or self._copier.writer is not None:
            with suppress(OffloadError):
                await self.release()
        self.state, self._mark = FollowState.PAUSED, None
        return PAUSE_SECONDS

    async def _is_worth_a_try(self) -> bool:
        """Return True if a paused stream shall be tried now."""
        if self._is_wanted or self._pause.left_seconds <= 0:
            return True
        return await self._signs.look(self._part, self.env.monotonic()) != self._paused_signs

    async def _stop(self, error: OffloadError) -> float:
        """Pause the stream until a person has mended this."""
        self._stand_by()
        if self._pause.wait(error):
            self.emit(StreamPaused(stream=self.stream, error=error))
        self.state, self._mark, self._paused_offset = FollowState.PAUSED, None, self._committed_offset
        self._paused_signs = await self._signs.look(self._part, self.env.monotonic(), afresh=True)
        return SIGNS_SECONDS

    async def _doubt(self, error: Corrupt) -> float:
        """Look again soon, with a new snapshot. Pause if damage was found twice in a row."""
        if self._is_doubted or self._pause.kind:
            return await self._stop(error)
        self._is_doubted, self._mark = True, None
        return self._pause.retry(error)

    def _note_success(self) -> None:
        """Note that a look has ended without an error. A paused stream resumes if it shows that it can."""
        if self._pause.kind:
            if not self._is_mended():
                # It may wait for its turn to lead, or for more data. The looks come as if it were not paused.
                self._pause.try_seconds = self.env.monotonic()
                return
            self.emit(StreamResumed(stream=self.stream))
        self._pause.clear()
        self.state, self._is_doubted = FollowState.STANDBY, False
        if self._copier.writer is not None:
            self.state, self._refusals = FollowState.LEADING, 0

    def _is_mended(self) -> bool:
        """Return True if data was committed since the stream paused, or none waits for that."""
        if self._copier.writer is not None or not self._arrivals:
            return True
        committed = self._committed_offset
        if self._paused_offset is None or committed is None:
            self._paused_offset = committed
            return False
        return committed > self._paused_offset  # by another process

    def _fresh_copier(self) -> StreamCopier:
        return StreamCopier(
            part=self._part,
            env=self.env,
            emit=self.emit,
            instance=self.instance,
        )


def _is_at_work(manifest: Manifest) -> bool:
    """Return True if the writer of this root has an attempt that runs: it works, or it crashed."""
    kind = AttemptKind.STREAM
    return any(each.writer == manifest.writer and each.kind is kind for each in manifest.running)
