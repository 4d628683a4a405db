"""Managed ledgers in a simulated world: two brokers that both believe they own the stream.

Each broker has a disk of its own: a new one, or a copy of the other's, as a broker has that took over. It
appends, rolls, offloads, acknowledges, reads, closes, deletes and crashes, while its background work runs.
Each call of its log is a turn, so a broker may also die between two of them. A broker that lost is begun
again, on the same disk, a new one, or a copy.

Guests append to the stream by jobs (`guests`). They need no claim, and compare nothing with any log.

These invariants hold beside those of the judge:

    an offset of an incarnation has one chunk. An owner appends only what a log had behind the chunk before it
    a local copy is deleted only if the tier's history has had all of it, after the deletion lag
    a read has each offset once, in order, with the record of this disk, or else of the tier
    a read reaches the end that was acknowledged before it, and leaves out only what was trimmed
    a broker is fenced only after another one claimed the stream, or somebody deleted it, and then for good
    a log that agrees with the tier is never called diverged
    retention trims no record that a cursor has not passed
    at the end, each log that agrees with the tier goes on, and its local copies go. A log is refused if the
    tier still shows other records
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol_judge import LIVE, Root
from protocol_world import STREAM

from offload.commit.guest import Trim
from offload.commit.writer import Claim
from offload.contracts.events import Event, LocalLedgerDeleted, Skipped
from offload.contracts.log import LocalLedger
from offload.formats.entries import messages
from offload.ground.errors import (
    AlreadyRunning,
    Conflict,
    Denied,
    Diverged,
    Fenced,
    NotOffloaded,
    OffloadError,
    StreamDeleted,
)
from offload.log.memory_log import MemoryDisk, MemoryLog
from offload.managed.ledger import LedgerState, ManagedLedger
from offload.managed.policy import LedgerPolicy
from offload.model.manifest import Manifest
from offload.two_sides.choice import ReadPriority
from offload.write.job import Job
from simulation.broker import Broker

if TYPE_CHECKING:
    from simulation.world import Process, World

LAST_LAG_SECONDS = 1.0


@dataclass
class Disk:
    """The disk of one broker, and all that was ever on it."""

    memory: MemoryDisk = field(default_factory=MemoryDisk)
    chunks: dict[int, bytes] = field(default_factory=dict)
    """Every chunk that was appended, by its offset, in order."""
    records: dict[int, bytes] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)

    @property
    def next_offset(self) -> int:
        """The end of the log."""
        return self.memory.ledgers[-1].facts.next_offset if self.memory.ledgers else 0


@dataclass
class Life:
    """What was committed in one incarnation of the stream, trimmed data included."""

    chunks: dict[int, bytes] = field(default_factory=dict)
    ending_at: dict[int, bytes] = field(default_factory=dict)
    """The chunks, by the offset behind each."""
    breaks: set[int] = field(default_factory=set)
    """The offsets where a log went on that has another history, behind a tier that was trimmed whole."""
    records: dict[int, bytes] = field(default_factory=dict)


@dataclass
class OwnedBroker(Broker):
    """The chunks of all logs, in place of the log that a formula makes."""

    behind: dict[bytes, set[bytes | None]] = field(default_factory=dict)
    """The chunks that a log had before each chunk. None: the log began with it."""
    at: dict[int, list[bytes]] = field(default_factory=dict)
    """The chunks that some log had at each offset."""
    lives: dict[bytes, Life] = field(default_factory=dict)
    """What was committed in each incarnation."""
    since: dict[bytes, float] = field(default_factory=dict)
    """The time at which each chunk was committed first."""
    now: Callable[[], float] = lambda: 0.0
    jobs: set[bytes] = field(default_factory=set)
    """The jobs of guests. What they append need not continue any log."""

    def contributed(self, offset: int, chunk: bytes) -> None:
        """Record that a guest is about to append a chunk, perhaps one that no log has."""
        if chunk not in self.at.setdefault(offset, []):
            self.at[offset].append(chunk)
        self.behind.setdefault(chunk, set())

    def appended(self, disk: Disk, offset: int, chunk: bytes) -> None:
        """Record that a log appended a chunk."""
        before = next(reversed(disk.chunks.values()), None)
        self.behind.setdefault(chunk, set()).add(before)
        self.at.setdefault(offset, []).append(chunk)
        disk.chunks[offset] = chunk
        for rank, body in enumerate(messages(chunk, where="a log")):
            disk.records[offset + rank] = body

    def wrote(self, root: Root, first_offset: int, next_offset: int, data: bytes) -> bool:
        """Return True if the data is chunks of logs that continue the committed ones."""
        at, offset, life = 0, first_offset, self.lives.setdefault(root.incarnation, Life())
        while offset < next_offset:
            found = next((each for each in self.at.get(offset, ()) if data.startswith(each, at)), None)
            if found is None or life.chunks.get(offset, found) != found:
                return False
            before, is_new = life.ending_at.get(offset), offset not in life.chunks
            if is_new and before is not None and not self.behind[found] & {None, before}:
                if offset <= root.first_offset:
                    life.breaks.add(offset)  # everything before it was trimmed, so nothing could be compared
                elif root.committer not in self.jobs:
                    return False
            life.chunks[offset] = found
            bodies = messages(found, where="a log")
            life.records.update(enumerate(bodies, offset))
            self.since.setdefault(found, self.now())
            at, offset = at + len(found), offset + len(bodies)
            life.ending_at[offset] = found
        return (at, offset) == (len(data), next_offset)

    def holds(self, chunk: bytes, offset: int) -> bool:
        """Return True if the tier has, or has had, this chunk at this offset."""
        return any(life.chunks.get(offset) == chunk for life in self.lives.values())


class SimulatedLog(MemoryLog):
    """The log of one process. Before and after each change, others may act, and the process may end."""

    def __init__(self, process: Process, disk: Disk, lag_seconds: float | None) -> None:
        super().__init__(STREAM, disk=disk.memory)
        self.disk = disk
        self._process, self._lag_seconds = process, lag_seconds
        self._requests = process.requests()

    async def append(self, records: Sequence[bytes], *, timestamp_ms: int) -> int:
        """Append, in a turn of its own."""
        await self._requests.turn("append", self.where)
        offset = await super().append(records, timestamp_ms=timestamp_ms)
        broker_of(self._process.world).appended(self.disk, offset, self.disk.memory.ledgers[-1].chunks[-1])
        await self._requests.turn("  appended", self.where)
        return offset

    async def roll(self, *, now_ms: int) -> LocalLedger | None:
        """Seal, in a turn of its own."""
        await self._requests.turn("roll", self.where)
        return await super().roll(now_ms=now_ms)

    async def delete(self, ledger_id: int) -> None:
        """Delete, in a turn of its own, after a look at the tier's history."""
        await self._requests.turn("delete", f"{self.where}, ledger {ledger_id}")
        self._check_deletion(ledger_id)
        await super().delete(ledger_id)
        await self._requests.turn("  deleted", self.where)

    async def begin(self, offset: int, *, epoch: int = 0) -> None:
        """Begin, in a turn of its own."""
        await self._requests.turn("start", self.where)
        self.disk.chunks.clear()  # what it had is not in front of what it appends from now on
        await super().begin(offset, epoch=epoch)

    async def save_note(self, name: str, data: bytes) -> None:
        """Save, in a turn of its own."""
        await self._requests.turn("note", f"{self.where}, {name}")
        await super().save_note(name, data)

    async def destroy(self) -> None:
        """Destroy, in a turn of its own."""
        await self._requests.turn("destroy", self.where)
        await super().destroy()

    def _check_deletion(self, ledger_id: int) -> None:
        world = self._process.world
        broker = broker_of(world)
        found = [each for each in self.disk.memory.ledgers if each.facts.ledger_id == ledger_id]
        for facts in (each.facts for each in found):
            chunks = {
                at: each
                for at, each in self.disk.chunks.items()
                if facts.first_offset <= at < facts.next_offset
            }
            for offset, chunk in chunks.items():
                if not broker.holds(chunk, offset):
                    world.fail(f"{self._process.name} deletes its copy of {offset}, which the tier never had")
                    return
            root = world.judge.root
            is_trimmed = root is None or root.state != LIVE or facts.next_offset <= root.first_offset
            if is_trimmed or self._lag_seconds is None or world.weather.clocks_jump:
                continue
            age = world.loop.now - max(broker.since[chunk] for chunk in chunks.values())
            if age < self._lag_seconds:
                world.fail(f"{self._process.name} deletes its copy of ledger {ledger_id} after {age:.1f} s")


def broker_of(world: World) -> OwnedBroker:
    """Return the broker of a world of owners."""
    assert isinstance(world.broker, OwnedBroker)
    return world.broker


async def own(process: Process) -> None:
    """Live as a broker that believes it owns the stream. Its role is also the name of its disk."""
    await Owner(process).live()


class Owner:
    """A broker that `own` runs."""

    def __init__(self, process: Process) -> None:
        self.process, self.world, self.random = process, process.world, process.random
        self.slot = process.name.partition(".")[0]
        self.pace_seconds = process.random.choice((0.3, 1.0, 4.0))
        self.ledger: ManagedLedger | None = None
        self.backup: Disk | None = None
        self.skips: list[Event] = []
        self.is_deleting = False
        self.log: SimulatedLog
        self._written = self._checked = self._opened = 0

    @property
    def disk(self) -> Disk:
        """The disk of this broker, at first a new one, or a copy of a rival's."""
        disks = self.world.disks
        if self.slot not in disks:
            disks[self.slot] = self._copied()
        return disks[self.slot]

    def _copied(self) -> Disk:
        rivals = [disk for slot, disk in sorted(self.world.disks.items()) if slot != self.slot]
        if rivals and self.random.random() < 0.7:
            return deepcopy(self.random.choice(rivals))
        return Disk()

    async def live(self) -> None:
        """Work until the process ends."""
        self.process.start(self._tend())
        while await self.process.rest(self.pace_seconds):
            try:
                await self.process.do(self._work())
            except Fenced as error:
                await self._check_fenced(error)
            except Diverged as error:
                self._check_diverged(error)
            except (Conflict, AlreadyRunning, NotOffloaded, *self.process.failures):
                continue
        if self.ledger is not None and self.random.random() < 0.5:
            await self.ledger.close()

    async def _tend(self) -> None:
        """Run the work in the background, again and again."""
        while await self.process.rest(3.0):
            if (ledger := self.ledger) is not None:
                await ledger.step()
                self._check_background(ledger)

    async def _work(self) -> None:
        ledger, choice = self.ledger, self.random.random()
        if ledger is None:
            await self._open()
        elif ledger.state is LedgerState.CLOSED:  # by a call that was cancelled
            await self._close(ledger)
        elif self.is_deleting and ledger.state is LedgerState.OPEN:
            await self._delete(ledger)
        elif self._has_lost(ledger) and choice < 0.3:
            await self._begin_again()
        elif choice < 0.4:
            await self._append(ledger)
        elif choice < 0.55:
            await ledger.roll()
        elif choice < 0.7:
            first, end = self.log.ledgers[0].first_offset, ledger.next_offset
            if first < end:
                await ledger.offload_prefix(self.random.randrange(first, end))
                self.world.happened("offloads of a prefix")
        elif choice < 0.8:
            for name in ledger.cursors:
                ledger.acknowledge(name, self.random.randrange(ledger.next_offset + 1))
        elif choice < 0.94:
            await self._read(ledger)
        elif choice < 0.97:
            await ledger.plan()
        elif choice < 0.99 or not self.world.weather.deletes:
            await self._close(ledger)
            if self.backup is not None and self.random.random() < 0.2:
                self._replace(self.backup)
                self.world.happened("restored disks")
        else:
            await self._delete(ledger)

    async def _delete(self, ledger: ManagedLedger) -> None:
        """Delete the stream. A deletion that was interrupted is repeated before anything else."""
        self.is_deleting = True
        await ledger.delete()
        self._replace(Disk())
        self.world.happened("deletions by an owner")

    def _replace(self, disk: Disk) -> None:
        """Continue on another disk, unless a successor of this process has the disk by now."""
        self.is_deleting = False
        if not self.process.dead:
            self.ledger, self.backup, self.world.disks[self.slot] = None, None, disk

    async def _open(self) -> None:
        await self.process.requests().turn("open", self.slot)  # a process that ended opens no disk
        policy = self._policy()
        if self.random.random() < 0.3:
            self.backup = deepcopy(self.disk)
        self._opened = len(self.process.offloader.commits)
        self.log = SimulatedLog(self.process, self.disk, policy.deletion_lag_seconds)
        ledger = await ManagedLedger.open(
            self.log, self.process.offloader, policy=policy, env=self.process.env, emit=self._emit
        )
        if self.random.random() < 0.5:
            ledger.open_cursor("billing")
        self.ledger = ledger
        self.world.happened("openings")

    def _policy(self) -> LedgerPolicy:
        offload_size_bytes = self.random.choice((None, 0))
        retention_seconds = self.random.choice((None, None, 20.0))
        return LedgerPolicy(
            roll_size_bytes=self.random.choice((1, 300, 2**20)),
            roll_seconds=self.random.choice((None, 5.0)),
            offload_size_bytes=offload_size_bytes,
            deletion_lag_seconds=self.random.choice((None, 0.0, 0.0, 4.0, 15.0)),
            # If nothing is offloaded, retention deletes the only copy, as it should.
            retention_seconds=None if offload_size_bytes is None else retention_seconds,
            read_priority=self.random.choice((ReadPriority.LOCAL_FIRST, ReadPriority.TIER_FIRST)),
        )

    def _emit(self, event: Event) -> None:
        if isinstance(event, Skipped):
            self.skips.append(event)
        if isinstance(event, LocalLedgerDeleted):
            self.world.happened("deleted local copies")

    async def _append(self, ledger: ManagedLedger) -> None:
        disk, bodies = self.disk, []
        for _ in range(self.random.choice((1, 1, 2, 3))):
            self._written += 1
            bodies.append(f"{self.process.name}:{self._written:04}".encode())
        if self.random.random() < 0.1:
            bodies = [b"the same"]  # a producer that sent a record to both brokers
        offset = await ledger.append(bodies)
        offsets = {*range(offset, offset + len(bodies))}
        assert not offsets & disk.acknowledged, f"offset {offset} was acknowledged twice"
        assert [disk.records[each] for each in sorted(offsets)] == bodies
        disk.acknowledged |= offsets
        self.world.happened("appends")

    async def _read(self, ledger: ManagedLedger) -> None:
        """Read from anywhere, and compare each record with those of this disk and of the tier."""
        disk, end = self.disk, ledger.next_offset
        at = self.random.choice((0, self.log.first_offset, self.random.randrange(end + 1)))
        self.skips.clear()
        try:
            at = await self._compare(ledger, disk, at)
        except StreamDeleted:  # a consumer learns it, and the ledger when it looks at the tier
            self.world.happened("reads of a deleted stream")
            return
        if at < end:
            self._check_gap(at, end, is_reported=False)
        self.world.happened("reads")

    async def _compare(self, ledger: ManagedLedger, disk: Disk, at: int) -> int:
        """Read from an offset, and return where the read ended."""
        begin = at
        async with aclosing(ledger.read(at)) as batches:
            async for batch in batches:
                self._check_gap(at, batch.offset, is_reported=at > begin)
                at = batch.offset
                lives = [life.records for life in broker_of(self.world).lives.values()]
                for body in batch.bodies:
                    known = {each.get(at) for each in (disk.records, *lives)}
                    assert body in known, f"a read of offset {at} returned {body!r}, not one of {known}"
                    ours = disk.records.get(at, body) if lives_of(self.world) == 1 else body
                    assert body == ours, f"a read of offset {at} returned {body!r}, and the log had {ours!r}"
                    at += 1
        return at

    def _check_gap(self, at: int, offset: int, *, is_reported: bool) -> None:
        """Check that what a read left out was trimmed. A read may begin behind it without a report."""
        if at == offset or lives_of(self.world) > 1:
            return
        trimmed = max(root.first_offset for root in self.world.judge.history.values())
        assert at < offset <= trimmed, f"a read left out [{at}, {offset}), and [0, {trimmed}) was trimmed"
        assert self.skips or not is_reported, f"a read left out [{at}, {offset}) and did not report it"

    # What a loser does.

    @staticmethod
    def _has_lost(ledger: ManagedLedger) -> bool:
        return ledger.state is LedgerState.FENCED or isinstance(ledger.error, Diverged)

    async def _begin_again(self) -> None:
        """Begin again, as an operator decides: with this disk, a new one, or a copy of the rival's."""
        assert self.ledger is not None
        await self._close(self.ledger)
        self.world.happened("losers that begin again")
        if self.random.random() < 0.7:
            self._replace(self._copied())

    async def _close(self, ledger: ManagedLedger) -> None:
        await ledger.close()
        self.ledger, self.is_deleting = None, False

    async def _check_fenced(self, error: Fenced) -> None:
        """Check that somebody else owns the stream, and that the ledger knows it for good."""
        check_fence(self.process, error, since=self._opened)
        ledger = self.ledger
        if ledger is None:
            self._replace(self._copied())  # it cannot even be opened
            return
        assert ledger.state is LedgerState.FENCED, f"the ledger is {ledger.state} after {error}"
        with suppress(Fenced, *self.process.failures):
            await ledger.append([b"late"])
            raise AssertionError("a fenced ledger took an append")
        self.world.happened("fenced owners")

    def _check_diverged(self, error: Diverged) -> None:
        check_divergence(self.world, self.disk, error)
        self.world.happened("diverged owners")
        if self.ledger is None:
            self._replace(self._copied())

    def _check_background(self, ledger: ManagedLedger) -> None:
        """Check the errors of the last step, and its trims."""
        if self.process.dead:  # its log belongs to another process by now
            return
        error = ledger.error
        if isinstance(error, Fenced) and self.ledger is ledger:
            check_fence(self.process, error, since=self._opened)
            assert ledger.state is not LedgerState.OPEN, f"the ledger is open after {error}"
        elif isinstance(error, Diverged) and self.ledger is ledger:
            check_divergence(self.world, self.disk, error)
        elif error is not None and not isinstance(error, Fenced | Diverged):
            expected = (Conflict, NotOffloaded, *self.process.failures)
            if self.world.weather.clocks_jump:
                expected = (*expected, Denied)
            if not isinstance(error, expected):
                self.world.fail(f"{self.process.name}: a step met {type(error).__name__}: {error}", error)
        commits = self.process.offloader.commits
        for change, result in commits[self._checked :]:
            if isinstance(change, Trim) and isinstance(result, Manifest) and self.ledger is ledger:
                slowest = min(ledger.cursors.values(), default=change.first_offset)
                assert change.first_offset <= slowest, f"a trim at {change.first_offset} passed {slowest}"
                self.world.happened("trims by an owner")
        self._checked = len(commits)


def source_epoch_of(world: World) -> int:
    """Return the leader epoch that the newest root records."""
    root = world.judge.root
    return 0 if root is None else int(root.source_epoch)


def lives_of(world: World) -> int:
    """Return the number of lives of the stream, in which a deleted one counts twice."""
    roots = world.judge.history.values()
    live = {root.incarnation for root in roots if root.state == LIVE}
    newest = world.judge.root
    return len(live) + (newest is not None and newest.state != LIVE and bool(live))


def check_fence(process: Process, error: Fenced, *, since: int) -> None:
    """Fail if nobody else has claimed the stream from this process, or deleted it."""
    root, world = process.world.judge.root, process.world
    commits = process.offloader.commits[since:]
    mine = {change.writer.bytes for change, _ in commits if isinstance(change, Claim)}
    if isinstance(error, StreamDeleted) or lives_of(world) > 1:
        assert lives_of(world) > 1 or world.weather.first_version, f"nobody deleted the stream: {error}"
    else:
        assert root is not None, f"nobody claimed the stream: {error}"
        assert root.writer not in mine, f"nobody claimed the stream from {process.name}: {error}"


def agrees(world: World, disk: Disk, *, always: bool = False) -> bool:
    """Return True if this log has the history of the tier, as far as both go, and reaches its end.

    `always`: also before a break, of which the tier shows nothing any more.
    """
    root, broker = world.judge.root, broker_of(world)
    if root is None or root.state != LIVE:
        return True
    life = broker.lives.get(root.incarnation, Life())
    begin = max(next(iter(disk.chunks), disk.next_offset), *(() if always else life.breaks), 0)
    both = all(disk.chunks.get(at) == chunk for at, chunk in life.chunks.items() if at >= begin)
    return both and root.next_offset <= disk.next_offset


def shows_another(world: World, disk: Disk) -> bool:
    """Return True if the tier has records that this log has not. What was trimmed shows nothing any more."""
    root = world.judge.root
    if root is None or root.first_offset == root.next_offset:
        return False
    life = broker_of(world).lives.get(root.incarnation, Life())
    begin = max(next(iter(disk.chunks), disk.next_offset), root.first_offset)
    is_other = any(disk.chunks.get(at) != chunk for at, chunk in life.chunks.items() if at >= begin)
    return is_other or root.next_offset > disk.next_offset


def is_in_doubt(world: World, disk: Disk, error: OffloadError | None) -> bool:
    """Return True if an owner only keeps its copies of trimmed data, which the tier may never have had."""
    root, ledgers = world.judge.root, disk.memory.ledgers
    is_trimmed = root is not None and bool(ledgers) and ledgers[0].facts.first_offset < root.first_offset
    is_doubt = is_trimmed and isinstance(error, Diverged) and error.kind is None
    if is_doubt:
        world.happened("copies kept in doubt")
    return is_doubt


def check_divergence(world: World, disk: Disk, error: Diverged) -> None:
    """Fail if the log has the history of the tier, and has no copy of what may never have been there."""
    if lives_of(world) == 1 and not is_in_doubt(world, disk, error):
        # A step may have compared before the break.
        assert not agrees(world, disk, always=True), f"a log that agrees with the tier is refused: {error}"


# The end of a history.


async def finish(world: World) -> None:
    """Open each disk, and then a new one, while there is no trouble. Each goes on, or is refused."""
    for slot in (*sorted(world.disks), "new"):
        disk = world.disks.get(slot) or Disk()
        is_empty = not any(ledger.facts.records for ledger in disk.memory.ledgers)
        was_right = lives_of(world) <= 1 and (is_empty or agrees(world, disk))
        is_wrong = lives_of(world) == 1 and not is_empty and shows_another(world, disk)
        root, end = world.judge.root, disk.next_offset
        is_behind = lives_of(world) == 1 and not is_empty and root is not None and root.next_offset > end
        refusal = await _refusal(world, disk, may_lag=not is_empty)
        assert not is_behind or disk.next_offset == end, f"the log {slot} is behind, and took an append"
        if was_right:
            is_kept = is_in_doubt(world, disk, refusal)
            assert refusal is None or is_kept, (
                f"the log {slot} agrees with the tier, and is refused: {refusal}"
            )
        elif is_wrong:
            assert refusal is not None, f"the log {slot} should be refused"
        world.check()
    last = world.process("last")
    manifest = await last.offloader.load_manifest(STREAM)
    for job in sorted({running.writer for running in manifest.running}):
        await (await Job.begin(last.offloader, STREAM, uid=job, env=last.env)).abort()


async def _refusal(world: World, disk: Disk, *, may_lag: bool) -> OffloadError | None:
    """Return what refuses this disk. None if it goes on. Its epoch may lag behind that of the tier."""
    while True:
        try:
            await _go_on(world, disk)
        except Diverged as error:
            return error
        except Fenced as error:
            # A copy of a disk may have been opened less often than the other. Each opening raises its epoch.
            if not may_lag or disk.memory.epoch > source_epoch_of(world):
                return error
        else:
            return None


async def _go_on(world: World, disk: Disk) -> None:
    """Append, offload, let the local copies go, and read everything that is left. Raises what refuses it."""
    process = world.process("last")
    log = SimulatedLog(process, disk, LAST_LAG_SECONDS)
    policy = LedgerPolicy(deletion_lag_seconds=LAST_LAG_SECONDS, roll_seconds=None)
    ledger = await ManagedLedger.open(log, process.offloader, policy=policy, env=process.env)
    try:
        await ledger.append([b"last"])
        await ledger.roll()
        for _ in range(3):
            await ledger.step()
            if ledger.error is not None:
                raise ledger.error
            world.loop.now += 2 * LAST_LAG_SECONDS
        is_timely = not world.weather.clocks_jump  # the time of a commit may be one to come
        assert len(disk.memory.ledgers) == 1 or not is_timely, "local copies are left that the tier has"
        root = world.judge.root
        assert root is not None
        at, committed = root.first_offset, broker_of(world).lives[root.incarnation].records
        assert committed[ledger.next_offset - 1] == b"last"
        async with aclosing(ledger.read(at)) as batches:
            async for batch in batches:
                assert batch.offset == at, f"a read left out [{at}, {batch.offset})"
                for body in batch.bodies:
                    assert body == committed[at], f"offset {at} is {body!r}, not {committed[at]!r}"
                    assert disk.records.get(at, body) == body, f"offset {at} is not what this log had"
                    at += 1
        assert at == ledger.next_offset, f"a read ended at {at}"
    finally:
        await ledger.close()
