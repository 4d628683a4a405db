"""Tests of replay groups: members that die, stall, steal and have wrong clocks, over a model of a stream.

The note lies in a store in memory, and each request of a member is a step. The stream is a list of ledgers
with the topics of their records in order, and a unit is read as `offload_mqtt.reading` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any, Final, NamedTuple, cast
from uuid import UUID, uuid4

import msgspec
import pytest
from campaign import CAMPAIGN
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from offload_mqtt import groups
from offload_mqtt.group_note import OPEN_MAX, Cursor, GroupNote, Lease, OpenUnit, check_group
from offload_mqtt.groups import LEASE_SECONDS, GroupMember
from offload_mqtt.iterators import ReplayIterator, ReplayUnit
from replay_world import ReplayWorld
from sweep_yard import STREAM, Stalled, run

from offload.contracts.store import ObjectStore
from offload.formats.shared_note import NOTE_VALUE_SIZE_BYTES_MAX
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Misuse, OutcomeUnknown, TryAgain
from offload.model.position import AtEdge, AtOffset, Position
from offload.native.shared_note import SharedNote
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.memory import MemoryStore

LIFE: Final = UUID(int=1)
FILTERS: Final = ("t/#",)


class Pause:
    """One step of a coroutine."""

    def __await__(self) -> Generator[None]:
        yield


class Batch(NamedTuple):
    """A run of a replay, as far as a group uses it."""

    at: ReplayIterator
    offsets: list[int]


@dataclass
class ModelStream:
    """A sorted stream: ledgers of topics, some of them indexed, and a replay of it."""

    ledgers: list[list[str]] = field(default_factory=list)
    indexed: list[bool] = field(default_factory=list)
    chunk_records: int = 2
    held: list[str] = field(default_factory=list)
    """The rest of the last ledger, which is not committed yet: a copy was killed."""

    @property
    def topics(self) -> list[str]:
        return [topic for ledger in self.ledgers for topic in ledger]

    @property
    def wanted(self) -> list[int]:
        """The offsets that the filter selects."""
        return [at for at, topic in enumerate(self.topics) if topic.startswith("t/")]

    def append(self, topics: Sequence[str], *, indexed: bool, held: int = 0) -> None:
        """Commit a ledger without the last `held` records. Before that, complete the one before."""
        self.complete()
        topics = sorted(topics)
        kept = max(1, len(topics) - held)
        self.ledgers.append(topics[:kept])
        self.held = topics[kept:]
        self.indexed.append(indexed and not self.held)

    def complete(self) -> None:
        """Commit the rest of the last ledger."""
        if self.held:
            self.ledgers[-1] += self.held
            self.held = []

    def units(self, chunks_max: int) -> list[ReplayUnit]:
        """Return the units as `Replay.streams` does, from the indexes that there are."""
        found, begin, scan = list[ReplayUnit](), 0, None
        for ledger, indexed in zip(self.ledgers, self.indexed, strict=True):
            end = begin + len(ledger)
            if not indexed:
                scan = begin if scan is None else scan
            else:
                if scan is not None:
                    found.append(ReplayUnit(1, scan, begin, 0, scan, begin))
                    scan = None
                found += self._units_of(begin, end, chunks_max)
            begin = end
        if scan is not None:
            found.append(ReplayUnit(1, scan, begin, 0, scan, begin))
        return found

    def _units_of(self, begin: int, end: int, chunks_max: int) -> Iterator[ReplayUnit]:
        runs = list[list[int]]()
        for first in range(begin, end, self.chunk_records):
            stop = min(first + self.chunk_records, end)
            if any(topic.startswith("t/") for topic in self.topics[first:stop]):
                if runs and runs[-1][1] == first and runs[-1][2] < chunks_max:
                    runs[-1][1:] = [stop, runs[-1][2] + 1]
                else:
                    runs.append([first, stop, 1])
        for first, stop, _ in runs:
            yield ReplayUnit(1, begin, end, 1, first, stop)

    def offsets_of(self, unit: ReplayUnit) -> list[int]:
        """Return the offsets that a unit selects: it is rounded to whole topics."""
        topics, at, stop = self.topics, unit.first_offset, unit.next_offset
        if at > unit.ledger:
            while at < stop and topics[at] == topics[unit.first_offset - 1]:
                at += 1
        if at < stop:
            while stop < unit.ledger_end and topics[stop] == topics[unit.next_offset - 1]:
                stop += 1
        return [each for each in range(at, stop) if topics[each].startswith("t/")]

    # The calls of `Replay` that a group makes.

    async def streams(self, filters: Sequence[str], *, chunks_max: int) -> list[ReplayUnit]:
        await Pause()
        return self.units(chunks_max)

    async def iterator(self, filters: Sequence[str], since: Position) -> str:
        await Pause()
        at = {AtEdge.FIRST: 0, AtEdge.NEXT: len(self.topics)}
        offset = since.offset if isinstance(since, AtOffset) else at[cast("AtEdge", since)]
        return str(ReplayIterator(STREAM, "", tuple(filters), 1, offset))

    async def runs(self, iterator: str) -> AsyncGenerator[Batch, None]:
        at = ReplayIterator.parse(iterator)
        assert at.unit is not None
        for offset in self.offsets_of(at.unit):
            if offset >= at.offset:
                await Pause()
                yield Batch(msgspec.structs.replace(at, offset=offset + 1), [offset])
        yield Batch(msgspec.structs.replace(at, offset=at.unit.ledger_end), [])


@dataclass
class Member:
    """A process of the group, with a clock of its own, and what it has handed on."""

    world: World
    number: int
    rate: float = 1.0
    handed_on: list[int] = field(default_factory=list)
    confirmed: int = 0
    store: FaultyStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = FaultyStore(MemoryStore(objects=self.world.objects))

    @cached_property
    def job(self) -> Stalled[None]:
        """The work of the process. It begins when it is first asked for."""
        return Stalled(self._consume())

    @property
    def env(self) -> Env:
        random = Random(self.number)
        return Env(
            uuid=lambda: UUID(int=random.getrandbits(128)),
            monotonic=lambda: self.world.now * self.rate + self.number * 1e6,
            random=random.random,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        until = self.env.monotonic() + seconds
        while self.env.monotonic() < until:
            self.world.now += self.world.tick_seconds
            await Pause()

    async def _confirm(self) -> None:
        """Write what was handed on. A process that dies before has lost it."""
        self.world.delivered += self.handed_on[self.confirmed :]
        self.confirmed = len(self.handed_on)

    def member(self) -> GroupMember:
        return GroupMember(
            replay=cast("Any", self.world.stream),
            note=note_of(self.store, self.env),
            filters=FILTERS,
            env=self.env,
            confirm=self._confirm,
            chunks_max=self.world.chunks_max,
        )

    async def _consume(self) -> None:
        async with aclosing(self.member().runs(self.world.since)) as runs:
            async for each in runs:
                for offset in cast("Batch", each).offsets:
                    self.handed_on.append(offset)
        await self._confirm()


def note_of(store: ObjectStore, env: Env) -> SharedNote:
    """Return the note of the group."""
    return SharedNote(store=store, stream=STREAM, name="mqtt.g", incarnation=LIFE, base_version=1, env=env)


@dataclass
class World:
    """A stream, a group, and everything that was handed on."""

    stream: ModelStream = field(default_factory=ModelStream)
    objects: dict[str, bytes] = field(default_factory=dict)
    since: Position = AtEdge.FIRST
    now: float = 0.0
    tick_seconds: float = 0.5
    chunks_max: int = 2
    delivered: list[int] = field(default_factory=list)
    members: int = 0

    def join(self, rate: float = 1.0) -> Member:
        self.members += 1
        return Member(self, self.members, rate)

    async def join_only(self) -> GroupNote:
        """Begin the group, and do no work."""
        return await Member(self, 1000).member().join(self.since)

    def shared_note(self) -> SharedNote:
        """Return the note, as somebody without faults uses it."""
        return note_of(MemoryStore(objects=self.objects), Env(sleep=lambda seconds: Pause()))

    @property
    def note(self) -> GroupNote | None:
        raw = run(self.shared_note().load())
        return None if raw is None else GroupNote.decode(raw, where="the note")


TOPICS: Final = ["a", "t/1", "t/2", "t/2/x", "t/3", "z"]
ledgers = st.lists(st.sampled_from(TOPICS), min_size=1, max_size=9)


class Group(RuleBasedStateMachine):
    """Members of one group, and what happens to them, to the stream and to its indexes."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.members = list[Member]()
        self.is_disturbed = False
        """True if a member died, stalled or lied: then messages may come twice."""

    @rule(topics=ledgers, indexed=st.booleans(), held=st.sampled_from([0, 0, 1, 4]))
    def seal(self, topics: list[str], indexed: bool, held: int) -> None:
        self.world.stream.append(topics, indexed=indexed, held=held)

    @rule()
    def complete(self) -> None:
        self.world.stream.complete()

    @precondition(lambda self: self.world.stream.ledgers)
    @rule(data=st.data())
    def index_or_lose(self, data: st.DataObject) -> None:
        """An index object is built, or lost."""
        at = data.draw(st.integers(0, len(self.world.stream.ledgers) - 1))
        if at + 1 < len(self.world.stream.ledgers) or not self.world.stream.held:
            self.world.stream.indexed[at] ^= True

    @precondition(lambda self: len(self.members) < 4)
    @rule()
    def join(self) -> None:
        self.members.append(self.world.join())

    @precondition(lambda self: len(self.members) < 4)
    @rule(rate=st.sampled_from([0.1, 30.0]))
    def join_with_a_wrong_clock(self, rate: float) -> None:
        self.is_disturbed |= rate > 1
        self.members.append(self.world.join(rate))

    @precondition(lambda self: self.members)
    @rule(data=st.data(), steps=st.integers(1, 25), fault=st.sampled_from([None, None, *list(Fault)[:3]]))
    def work(self, data: st.DataObject, steps: int, fault: Fault | None) -> None:
        member = data.draw(st.sampled_from(self.members))
        member.store.rules = [] if fault is None else [Rule(fault, nth=1)]
        if fault is not None:
            member.store.rules[0].operation = data.draw(st.sampled_from(["create", "list", "get"]))
        self.step(member, steps)

    def step(self, member: Member, steps: int) -> None:
        try:
            for _ in range(steps):
                if not member.job.step():
                    self.members.remove(member)
                    return
        except (OutcomeUnknown, TryAgain):  # it gives up
            self.is_disturbed = True
            self.members.remove(member)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.is_disturbed = True
        member = data.draw(st.sampled_from(self.members))
        self.members.remove(member)
        member.job.crash()

    @rule(seconds=st.sampled_from([1.0, 30.0, 200.0]))
    def pass_time(self, seconds: float) -> None:
        """Nobody works for a while: all members stall."""
        self.is_disturbed |= seconds >= LEASE_SECONDS / 2
        self.world.now += seconds

    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        for member in self.members:
            run(member.store.land())

    @precondition(lambda self: self.world.objects)
    @rule(back=st.integers(0, 3), steal=st.booleans())
    def lie(self, back: int, steal: bool) -> None:
        """A member takes a unit whose lease has not expired, and moves a place back."""
        self.is_disturbed = True

        def change(raw: bytes | None) -> bytes:
            note = GroupNote.decode(raw or b"", where="the note")
            if not note.open:
                return note.encode()
            each = note.open[0]
            place = max(each.unit.first_offset, each.place - back)
            lease = Lease(bytes(15) + b"L") if steal else each.lease
            return note._with(each, msgspec.structs.replace(each, place=place, lease=lease)).encode()

        run(self.world.shared_note().change(change))

    @invariant()
    def what_is_behind_the_cursor_is_delivered_or_open(self) -> None:
        note = self.world.note
        if note is None:
            return
        missing = {at for at in self.world.stream.wanted if at < note.cursor.offset} - {*self.world.delivered}
        left = {
            at for each in note.open for at in self.world.stream.offsets_of(each.unit) if at >= each.place
        }
        assert missing <= left

    def teardown(self) -> None:
        """The others die, and one member with a good clock does what is left."""
        for member in self.members:
            self.is_disturbed = True
            run(member.store.land())
            member.job.crash()
        self.world.stream.complete()
        last = self.world.join()
        for _ in range(20_000):
            if not last.job.step():
                break
        assert last.job.over, (self.world.note, self.world.stream.units(2), self.world.stream.ledgers)
        assert {*self.world.delivered} == {*self.world.stream.wanted}
        assert_order(self.world)
        note = self.world.note
        assert note is not None
        assert note.open == ()
        if not self.is_disturbed:
            assert sorted(self.world.delivered) == self.world.stream.wanted


def assert_order(world: World) -> None:
    """Each topic came first in the order of its offsets."""
    first = list(dict.fromkeys(world.delivered))
    topics = world.stream.topics
    for topic in set(topics):
        offsets = [at for at in first if topics[at] == topic]
        assert offsets == sorted(offsets), topic


Group.TestCase.settings = settings(
    max_examples=3000 if CAMPAIGN else 20, stateful_step_count=60 if CAMPAIGN else 30, deadline=None
)
TestGroup = Group.TestCase


def group_of(world: World, *rates: float, steps: int = 5_000) -> list[Member]:
    """Let members work by turns until all of them have ended."""
    members = [world.join(rate) for rate in rates]
    for _ in range(steps):
        if not [member for member in members if not member.job.over and member.job.step()]:
            return members
    raise AssertionError(f"the group does not end: {world.note}")


def long_world(ledger_count: int = 4, seed: int = 0) -> World:
    random, world = Random(seed), World(tick_seconds=5.0)
    for at in range(ledger_count):
        world.stream.append(random.choices(TOPICS, k=40), indexed=bool(at % 3))
    return world


def test_members_that_all_live_share_the_work_and_hand_on_each_message_once_in_order() -> None:
    world = long_world()

    members = group_of(world, 1, 1, 1)

    assert sorted(world.delivered) == world.stream.wanted
    assert_order(world)
    assert all(member.handed_on for member in members)


def test_units_of_a_later_ledger_are_taken_only_when_all_of_the_earlier_are_done() -> None:
    """EMQX: streams of the next generation are leased only when all of this one are at their end."""
    world = World(chunks_max=1)
    for _ in range(2):
        world.stream.append(["t/1", "t/1", "t/2", "t/2", "t/3", "t/3"], indexed=True)
    members = [world.join() for _ in range(5)]
    for _ in range(400):
        for member in members:
            member.job.step()
        note = world.note
        if note is not None and any(each.unit.ledger == 6 for each in note.open):
            assert {*range(6)} <= {*world.delivered}

    assert all(member.job.over for member in members)
    assert sorted(world.delivered) == [*range(12)]


@pytest.mark.parametrize("indexed", [False, True])
def test_a_topic_goes_on_where_a_killed_copy_had_ended_its_ledger(*, indexed: bool) -> None:
    """The unit before it ended there, so it could not have the rest of the topic."""
    world = World()
    world.stream.append(["t/1"] * 6, indexed=False, held=4)
    group_of(world, 1)
    assert world.delivered == [0, 1]
    world.stream.complete()
    world.stream.indexed = [indexed]

    group_of(world, 1)

    assert world.delivered == [*range(6)]


def test_the_first_member_sets_the_start_and_later_ones_only_take_work() -> None:
    """EMQX: first client wins; a missing group is created by its first member."""
    world = long_world(2)
    world.since = AtOffset(40)
    run(world.join_only())
    world.since = AtEdge.FIRST

    group_of(world, 1, 1)

    assert sorted(world.delivered) == [at for at in world.stream.wanted if at >= 40]


def test_a_group_is_declared_before_its_members_come_and_waits_for_new_ledgers() -> None:
    """EMQX: a declaration creates a group earlier, with another start time. New streams appear later."""
    world = long_world(1)
    world.since = AtEdge.NEXT
    run(world.join_only())
    world.stream.append(["t/1", "t/2"], indexed=False)
    world.since = AtEdge.FIRST

    group_of(world, 1)

    assert sorted(world.delivered) == [40, 41]


def test_a_member_that_was_handed_nothing_does_not_hide_what_it_took() -> None:
    """EMQX: after a crash, work since the last checkpoint is repeated, and delivery is at least once."""
    world = World()
    world.stream.append(["t/1"] * 6, indexed=False)
    dead = world.join()
    while len(dead.handed_on) < 3:
        dead.job.step()
    dead.job.crash()
    assert world.note is not None
    assert [each.place for each in world.note.open] == [0]

    group_of(world, 1)

    assert world.now >= LEASE_SECONDS
    assert world.delivered == [0, 1, 2, 3, 4, 5]


def test_a_saved_place_is_not_read_again() -> None:
    world = World()
    world.stream.append(["t/1"] * 6, indexed=False)
    dead = world.join()
    while len(dead.handed_on) < 3:
        dead.job.step()
    world.now += groups.SAVE_SECONDS
    while not (world.note and world.note.open[0].place):
        dead.job.step()
    assert dead.confirmed == len(dead.handed_on) == 4
    dead.job.crash()

    group_of(world, 1)

    assert world.delivered == [0, 1, 2, 3, 4, 5]


def test_a_member_that_stalled_beyond_its_lease_stops_before_it_hands_on_more() -> None:
    world = World()
    world.stream.append(["t/1"] * 6, indexed=False)
    stalled = world.join()
    while len(stalled.handed_on) < 2:
        stalled.job.step()
    world.now += 1
    group_of(world, 1)
    assert world.delivered == [0, 1, 2, 3, 4, 5]

    stalled.job.finish()

    assert stalled.handed_on == [0, 1]


def test_the_note_of_the_most_units_with_the_largest_numbers_fits() -> None:
    units, base = list[OpenUnit](), 2**61
    for at in range(OPEN_MAX):
        unit = ReplayUnit(2**62 - 1, base, 2**62 - 1, 2**62 - 1, base + 2 * at, base + 2 * at + 1)
        units.append(OpenUnit(unit, base + 2 * at, Lease(bytes([255] * 16), 2**62 - 1)))
    cursor = Cursor(2**62 - 1, 2**62 - 1, within=True)
    note = GroupNote(1, cursor, 2**62 - 1, -(2**62), cursor, tuple(units))

    raw = note.encode()

    assert len(raw) < NOTE_VALUE_SIZE_BYTES_MAX
    assert GroupNote.decode(raw, where="x") == note
    assert note.taken(b"m" * 16, [ReplayUnit(1, 0, 9, 0, 0, 9)], lambda each: False) is note


def hostile_notes() -> Iterator[tuple[str, bytes]]:
    unit = ReplayUnit(1, 0, 20, 1, 4, 8)
    each = OpenUnit(unit, 4, Lease(b"m" * 16))
    good = GroupNote(1, Cursor(1, 0), 0, 0, Cursor(1, 8), (each,))
    changed = msgspec.structs.replace
    yield "no note", b"hello"
    yield "cut", good.encode()[:-1]
    yield "a newer version", msgspec.msgpack.encode(changed(good, version=2))
    yield "a negative number", msgspec.msgpack.encode(changed(good, origin=-1))
    yield "a number out of range", msgspec.msgpack.encode(changed(good, origin=2**63))
    yield "a unit behind the cursor", changed(good, cursor=Cursor(1, 7)).encode()
    yield "overlapping units", changed(good, open=(each, each)).encode()
    yield "a place beyond the ledger", changed(good, open=(changed(each, place=21),)).encode()
    yield "a place before the unit", changed(good, open=(changed(each, place=3),)).encode()
    yield "an empty unit", changed(good, open=(changed(each, unit=changed(unit, next_offset=4)),)).encode()
    yield "too many units", msgspec.msgpack.encode(changed(good, open=(each,) * (OPEN_MAX + 1)))
    yield "a short member", msgspec.msgpack.encode(changed(good, open=(changed(each, lease=Lease(b"m")),)))


@pytest.mark.parametrize(("what", "raw"), [pytest.param(*each, id=each[0]) for each in hostile_notes()])
def test_a_note_of_a_stranger_stops_a_member_before_it_reads(what: str, raw: bytes) -> None:
    world = World()
    world.stream.append(["t/1"], indexed=False)
    run(world.shared_note().change(lambda old: raw))

    with pytest.raises(Corrupt, match=r"note 'mqtt.g' of stream 'orders'.*group note"):
        world.join().job.finish()
    assert world.delivered == []


@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "a\0", "x" * 1025])
def test_a_group_has_a_name_that_mqtt_allows(name: str) -> None:
    with pytest.raises(Misuse, match="group"):
        check_group(name)


async def real_world() -> ReplayWorld:
    """Return a stream on a tier in memory: three sorted ledgers, the last of them without an index."""
    random, world = Random(0), ReplayWorld()
    for at in range(3):
        world.append(*random.choices(["", "a/1", "a/2", "a/2/x", "b/1", "b/2/y"], k=60))
        world.seal()
        await world.sort()
        if at < 2:
            await world.index()
    return world


async def real_member(world: ReplayWorld, group: str, *filters: str) -> GroupMember:
    """Return a member with a replay and a tier of its own, as a process has them."""
    tier, env = world.tier(), world.clock.env()
    member = await GroupMember.of(
        tier,
        world.replay(joined=False),
        STREAM,
        group,
        filters,
        env=replace(env, uuid=uuid4, sleep=asyncio.sleep),
    )
    member.chunks_max = 2
    return member


async def consume(member: GroupMember, found: list[int], most: int | None = None) -> None:
    """Take the origins of so many runs, or of all."""
    async with aclosing(member.runs()) as runs:
        async for each in runs:
            found += [message.origin for message in each.messages()]
            await asyncio.sleep(0)
            most = most if most is None else most - 1
            if most == 0:
                return


def test_members_share_a_real_replay_and_the_units_of_the_dead_are_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "LOOK_SECONDS", 0.001)

    async def main() -> None:
        world, found = await real_world(), list[int]()
        dead = [await real_member(world, "g", "a/#", "b/+") for _ in range(3)]
        await asyncio.gather(*(consume(member, found, 1) for member in dead))
        world.clock.now += LEASE_SECONDS
        alive = [await real_member(world, "g", "b/+", "a/#") for _ in range(7)]
        work = asyncio.gather(*(consume(member, found) for member in alive))
        while not work.done():
            world.clock.now += 1
            await asyncio.sleep(0.001)
        await work

        assert {*found} == {*world.wanted(["a/#", "b/+"])}
        assert len(found) - len({*found}) <= 60

    asyncio.run(main())


def test_a_start_at_an_offset_leaves_out_nothing_of_a_later_part() -> None:
    """The broker's stream was begun again, so the offsets of the part count from 0 again."""
    read = list[ReplayIterator]()

    class Parts:
        async def iterator(self, filters: Sequence[str], since: Position) -> str:
            return str(ReplayIterator(STREAM, LIFE.hex, tuple(filters), 1, 0, origin=40))

        async def streams(self, filters: Sequence[str], *, chunks_max: int) -> list[ReplayUnit]:
            return [ReplayUnit(part, 0, 50, 0, 0, 50) for part in (1, 2)]

        async def runs(self, iterator: str) -> AsyncGenerator[Batch, None]:
            read.append(at := ReplayIterator.parse(iterator))
            yield Batch(msgspec.structs.replace(at, offset=50), [])

    async def main() -> None:
        env = Env()
        member = GroupMember(
            replay=cast("Any", Parts()), note=note_of(MemoryStore(), env), filters=FILTERS, env=env
        )
        async with aclosing(member.runs(AtOffset(40))) as runs:
            assert [each async for each in runs]

    asyncio.run(main())

    assert [(each.part, each.origin) for each in read] == [(1, 40), (2, 0)]


def test_other_filters_are_another_group_and_a_shared_filter_is_its_inner_one() -> None:
    """EMQX: there is one state for each group and filter. MQTT: `$share/GROUP/FILTER` matches as FILTER."""

    async def main() -> None:
        world = await real_world()
        for filters, wanted in ((["a/#"], ["a/#"]), (["$share/g/b/+"], ["b/+"]), (["b/+"], [])):
            found = list[int]()
            await consume(await real_member(world, "g", *filters), found)
            assert sorted(found) == world.wanted(wanted)

    asyncio.run(main())
