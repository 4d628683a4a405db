"""Tests of shared notes: rivals, lost replies, zombies, hostile objects, and the upkeep of a tier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Final
from uuid import UUID

import pytest
from campaign import CAMPAIGN
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sweep_yard import KEYS, STREAM, Stalled, Yard, run

from offload.contracts.store import Buffer, Listed, ObjectStore, Span, Suffix
from offload.formats.checksums import crc32c
from offload.formats.keys import NOTE_NUMBER_MAX, NoteName
from offload.formats.shared_note import NOTE_OBJECT_SIZE_BYTES_MAX, NOTE_VALUE_SIZE_BYTES_MAX, NoteObject
from offload.ground.errors import (
    Corrupt,
    Denied,
    Misuse,
    NotOffloaded,
    OutcomeUnknown,
    RootsLost,
    TryAgain,
)
from offload.native.shared_note import SharedNote
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.wrap import StoreDecorator
from offload.upkeep.sweep.page import Why
from offload.upkeep.sweep.report import SweepReport
from offload.upkeep.sweep.tier import sweep
from offload.upkeep.verify.tier import verify

NOTE: Final = "group.g1"
NOTES: Final = KEYS.notes


def note_of(yard: Yard, store: ObjectStore | None = None, *, life: UUID | None = None) -> SharedNote:
    """Return the note as another process uses it."""
    return SharedNote(
        store=store or yard.store,
        stream=STREAM,
        name=NOTE,
        incarnation=life or yard.base.incarnation,
        base_version=yard.base.version,
        env=yard.env,
    )


def failing(yard: Yard, fault: Fault, operation: str) -> FaultyStore:
    """Return the store of a process all of whose requests of one kind fail."""
    return FaultyStore(yard.store, rules=[Rule(fault, operation)])


def adding(word: str) -> Callable[[bytes | None], bytes]:
    """Return a function that adds a word to a value."""
    return lambda old: b" ".join([*(old or b"").split(), word.encode()])


def words(yard: Yard) -> list[str]:
    """Return the words of the newest value, by the objects alone."""
    stored = notes_in(yard)
    if not stored:
        return []
    name = KEYS.parse_note(stored[-1])
    assert name is not None
    return NoteObject.decode(yard.objects[stored[-1]], name, where=stored[-1]).value.decode().split()


def notes_in(yard: Yard) -> list[str]:
    return sorted(key for key in yard.objects if key.startswith(NOTES))


def numbers(yard: Yard) -> list[int]:
    return [name.number for key in notes_in(yard) if (name := KEYS.parse_note(key)) is not None]


class Rivals(RuleBasedStateMachine):
    """Processes that change one note, request by request. Replies get lost, creates land late, some crash.

    Each change adds a word of its own. So the words of the newest value say which changes are in.
    """

    def __init__(self) -> None:
        super().__init__()
        self.yard = Yard()
        self.store = FaultyStore(self.yard.store)
        self.jobs: dict[str, Stalled[bytes]] = {}
        self.value: list[str] = []
        self.done = set[str]()
        self.out = set[str]()
        """The words of changes that were promised not to be in."""

    @precondition(lambda self: len(self.jobs) < 4)
    @rule()
    def begin(self) -> None:
        word = str(len(self.done) + len(self.out) + len(self.jobs) + self.yard.random.getrandbits(40))
        self.jobs[word] = Stalled(note_of(self.yard, self.store).change(adding(word)))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), fault=st.sampled_from([None, None, *list(Fault)[:4]]), steps=st.integers(1, 6))
    def work(self, data: st.DataObject, fault: Fault | None, steps: int) -> None:
        word = data.draw(st.sampled_from(sorted(self.jobs)))
        self.store.rules = [] if fault is None else [Rule(fault, nth=1)]
        self.step(word, steps)
        self.store.rules = []

    def step(self, word: str, steps: int) -> None:
        job = self.jobs[word]
        try:
            for _ in range(steps):
                if not job.step():
                    self.done.add(word)
                    del self.jobs[word]
                    return
                self.check()
        except (TryAgain, Denied):
            self.out.add(word)
            del self.jobs[word]
        except OutcomeUnknown:
            del self.jobs[word]

    @rule(times=st.integers(1, 4))
    def others_change(self, times: int) -> None:
        """Whole changes, so that numbers pass a process that stalls."""
        for _ in range(times):
            run(note_of(self.yard).change(adding("x")))
            self.check()

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.jobs.pop(data.draw(st.sampled_from(sorted(self.jobs)))).crash()

    @rule()
    def land(self) -> None:
        run(self.store.land())

    @rule()
    def tidy(self) -> None:
        assert run(sweep(self.yard.store, env=self.yard.env, grace_seconds=0)).errors == []

    @rule()
    def read(self) -> None:
        found = run(note_of(self.yard).load())
        assert (found or b"").decode().split() == words(self.yard)

    @invariant()
    def check(self) -> None:
        """A value has all words of the one before it, and at most one more. Nothing promised is broken."""
        value = words(self.yard)
        assert value[: len(self.value)] == self.value
        assert len(value) <= len(self.value) + 1
        own = [word for word in value if word != "x"]
        assert len(own) == len(set(own)), "a change is in twice"
        assert self.done <= set(own), "a change is lost"
        assert not self.out & set(own), "a refused change is in"
        self.value = value

    def teardown(self) -> None:
        while self.jobs:
            self.step(next(iter(self.jobs)), 1)
        run(self.store.land())
        self.check()
        self.others_change(1)
        assert len(notes_in(self.yard)) == min(2, len(self.value))


Rivals.TestCase.settings = settings(
    max_examples=2000 if CAMPAIGN else 20, stateful_step_count=60 if CAMPAIGN else 30, deadline=None
)
TestRivals = Rivals.TestCase


def test_many_changes_at_once_are_all_in_and_two_objects_are_left() -> None:
    yard = Yard()

    async def compete() -> None:
        notes = [note_of(yard) for _ in range(20)]
        await asyncio.gather(*(note.change(adding(f"w{at}")) for at, note in enumerate(notes)))

    asyncio.run(compete())

    assert sorted(words(yard)) == sorted(f"w{at}" for at in range(20))
    assert numbers(yard) == [19, 20]


def test_a_change_that_changes_nothing_stores_nothing() -> None:
    yard = Yard()
    run(note_of(yard).change(adding("a")))

    assert run(note_of(yard).change(lambda old: old or b"")) == b"a"
    assert numbers(yard) == [1]
    assert run(note_of(Yard()).load()) is None


def test_a_process_that_stalls_for_long_learns_that_its_create_was_a_zombie() -> None:
    yard = Yard()
    run(note_of(yard).change(adding("a")))
    stalled = Stalled(note_of(yard).change(adding("late")))
    for _ in range(3):  # it has listed and read number 1, and is about to create number 2
        stalled.step()
    for word in "bcd":
        run(note_of(yard).change(adding(word)))
    assert numbers(yard) == [3, 4]
    assert stalled.step()

    assert numbers(yard) == [2, 3, 4]
    assert run(note_of(yard).load()) == b"a b c d"
    assert stalled.finish() == b"a b c d late"
    assert numbers(yard) == [4, 5]


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.DELAY])
@pytest.mark.parametrize("others", [0, 1, 5])
def test_a_change_whose_reply_was_lost_is_in_once(fault: Fault, others: int) -> None:
    yard = Yard()
    store = FaultyStore(yard.store, rules=[Rule(fault, "create", nth=1)])
    job = Stalled(note_of(yard, store).change(adding("mine")))
    for _ in range(3 if fault is Fault.LOSE_REPLY else 2):
        job.step()
    run(store.land())
    for _ in range(others):
        run(note_of(yard).change(adding("x")))

    assert job.finish().split() == [b"mine"]
    assert words(yard) == ["mine", *["x"] * others]


@pytest.mark.parametrize("then", [Fault.FAIL_BEFORE, Fault.DENY])
def test_a_change_that_may_be_in_is_never_reported_as_refused(then: Fault) -> None:
    """The create lands late. What the store says to later requests does not change that."""
    yard = Yard()
    later = Rule(then, "list", nth=2) if then is Fault.FAIL_BEFORE else Rule(then, "create")
    store = FaultyStore(yard.store, rules=[Rule(Fault.DELAY, "create", nth=1), later])

    with pytest.raises(OutcomeUnknown):
        run(note_of(yard, store).change(adding("a")))


@pytest.mark.parametrize("how", ["load", "change"])
def test_nobody_believes_a_zombie(how: str) -> None:
    """Number 2 is listed, superseded, deleted, and created again by a process that stalled for long."""
    yard = Yard()
    run(note_of(yard).change(adding("a")))
    zombie = Stalled(note_of(yard).change(adding("zombie")))
    for _ in range(3):
        zombie.step()
    run(note_of(yard).change(adding("b")))
    reader = note_of(yard)
    job = Stalled(reader.load() if how == "load" else reader.change(lambda old: old or b""))
    for _ in range(2):  # it has listed number 2, and is about to read it
        job.step()
    for word in "cd":
        run(note_of(yard).change(adding(word)))
    zombie.step()
    assert numbers(yard) == [2, 3, 4]

    assert job.finish() == b"a b c d"


def test_nobody_claims_a_change_that_was_overtaken_beyond_what_a_note_remembers() -> None:
    yard = Yard()
    store = FaultyStore(yard.store, rules=[Rule(Fault.LOSE_REPLY, "create")])
    stalled = Stalled(note_of(yard, store).change(adding("mine")))
    for _ in range(2):  # the listing, and the create, whose reply is lost
        stalled.step()
    for _ in range(40):
        run(note_of(yard).change(lambda old: (old or b"")[-50:] + b"x"))

    with pytest.raises(OutcomeUnknown, match="look again"):
        stalled.finish()


class Lagging(StoreDecorator):
    """A store whose listings show the state of some requests ago, which the contract does not allow."""

    __slots__ = ("_shown", "lag")

    def __init__(self, inner: ObjectStore, lag: int) -> None:
        super().__init__(inner)
        self.lag, self._shown = lag, list[list[Listed]]()

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        self._shown.append([row async for row in self.inner.list(prefix)])
        for row in self._shown[max(0, len(self._shown) - 1 - self.lag)]:
            if row.key > after:
                yield row


@pytest.mark.parametrize("lag", [1, 2, 4])
def test_changes_by_listings_that_lag_are_in_or_unknown_and_never_lost(lag: int) -> None:
    yard = Yard()
    store, done = Lagging(yard.store, lag), list[str]()
    for at in range(20):
        try:
            run(note_of(yard, store).change(adding(f"w{at}")))
            done.append(f"w{at}")
        except (OutcomeUnknown, TryAgain, NotOffloaded):
            continue

    assert set(done) <= set(words(yard))
    assert len(done) >= 10


def forged(yard: Yard, name: NoteName, **changes: object) -> bytes:
    """Return a sound object of a stranger."""
    note = NoteObject(name=name, base_version=1, uid=UUID(int=7), parents=(), value=b"forged")
    return replace(note, **changes).encode(KEYS)


HOSTILE: Final[dict[str, Callable[[bytes], bytes]]] = {
    "empty": lambda raw: b"",
    "not a note": lambda raw: b"hello, I am nothing of yours" * 9,
    "cut": lambda raw: raw[:-1],
    "flipped": lambda raw: raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:],
    "too large": lambda raw: raw + bytes(NOTE_OBJECT_SIZE_BYTES_MAX),
    "of another number": lambda raw: raw,
}


class Measured(StoreDecorator):
    """A store that keeps the sizes of its replies."""

    __slots__ = ("sizes",)

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.sizes = list[int]()

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        data = await self.inner.get(key, span)
        self.sizes.append(len(data))
        return data


def test_no_more_of_a_strangers_object_is_fetched_than_a_note_can_have() -> None:
    yard, name = Yard(), NoteName("group%2Eg1", UUID(int=1), 1)
    yard.objects[KEYS.note(name)] = bytes(10 * NOTE_OBJECT_SIZE_BYTES_MAX)
    store = Measured(yard.store)

    with pytest.raises(Corrupt, match="note size"):
        run(note_of(yard, store, life=name.incarnation).load())
    assert set(store.sizes) == {NOTE_OBJECT_SIZE_BYTES_MAX + 1}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_newest_object_is_refused_and_nothing_is_changed(what: str) -> None:
    yard = Yard()
    run(note_of(yard).change(adding("a")))
    first = yard.objects[notes_in(yard)[0]]
    name = NoteName("group%2Eg1", yard.base.incarnation, 2)
    yard.objects[KEYS.note(name)] = HOSTILE[what](first)
    before = dict(yard.objects)

    for job in (note_of(yard).load(), note_of(yard).change(adding("b"))):
        with pytest.raises(Corrupt) as damage:
            run(job)
        assert KEYS.note(name) in str(damage.value)
    assert yard.objects == before
    report = asyncio.run(verify(yard.store, env=yard.env))
    assert [each.where for each in report.damages] == [KEYS.note(name)]
    del yard.objects[KEYS.note(name)]
    assert run(note_of(yard).change(adding("b"))) == b"a b"


def test_no_number_follows_the_last_one() -> None:
    yard = Yard()
    name = NoteName("group%2Eg1", yard.base.incarnation, NOTE_NUMBER_MAX)
    yard.objects[KEYS.note(name)] = forged(yard, name, parents=tuple(UUID(int=at) for at in range(32)))

    assert run(note_of(yard).load()) == b"forged"
    with pytest.raises(Corrupt, match="note number"):
        run(note_of(yard).change(adding("a")))


def test_a_value_above_the_bound_and_a_refused_create_change_nothing() -> None:
    yard = Yard()
    run(note_of(yard).change(lambda old: bytes(NOTE_VALUE_SIZE_BYTES_MAX)))

    with pytest.raises(Misuse, match="65,536"):
        run(note_of(yard).change(lambda old: bytes(NOTE_VALUE_SIZE_BYTES_MAX + 1)))
    with pytest.raises(Denied):
        run(note_of(yard, failing(yard, Fault.DENY, "create")).change(lambda old: b"x"))
    with pytest.raises(LookupError):
        run(note_of(yard).change(lambda old: dict[bytes, bytes]()[b""]))
    assert numbers(yard) == [1]


def begun_again() -> tuple[Yard, SharedNote]:
    """Return a yard whose stream was deleted and begun again, and a note of the life before."""
    yard = Yard()
    note = note_of(yard)
    run(note.change(adding("a")))
    yard.delete()
    yard.claim()
    return yard, note


def swept(yard: Yard) -> SweepReport:
    return run(sweep(yard.store, env=yard.env, grace_seconds=0))


def test_a_stream_that_was_begun_again_has_no_notes_and_a_sweep_deletes_the_old_ones() -> None:
    yard, old = begun_again()
    assert run(note_of(yard).load()) is None
    run(note_of(yard).change(adding("b")))
    report = asyncio.run(verify(yard.store, env=yard.env))
    assert [each.reason for each in report.unreferenced if each.key.startswith(NOTES)] == [
        "a shared note of a deleted life of the stream; a sweep deletes it"
    ]

    [row] = swept(yard).streams

    assert row.deleted.objects[Why.ENDED_NOTE] == 1
    assert row.stays.objects[Why.SHARED_NOTE] == 1
    assert words(yard) == ["b"]
    with pytest.raises(NotOffloaded, match="deleted or begun again"):
        run(old.change(adding("c")))


def test_a_sweep_deletes_what_is_below_the_two_newest_and_no_more() -> None:
    yard = Yard()
    for word in "abcd":
        run(note_of(yard, failing(yard, Fault.FAIL_BEFORE, "delete")).change(adding(word)))
    assert numbers(yard) == [1, 2, 3, 4]

    [row] = swept(yard).streams

    assert numbers(yard) == [3, 4]
    assert row.deleted.objects[Why.OLD_NOTE] == 2


def test_a_note_of_a_newer_program_stays() -> None:
    yard, _ = begun_again()
    [key] = notes_in(yard)
    body = bytearray(yard.objects[key][:-4])
    body[5] = 2
    yard.objects[key] = bytes(body) + crc32c(body).to_bytes(4, "big")

    [row] = swept(yard).streams

    assert row.stays.objects[Why.NEWER_KEY] == 1
    assert notes_in(yard) == [key]


def test_a_note_of_a_life_that_only_lost_roots_knew_proves_the_loss() -> None:
    """Otherwise a sweep would delete the positions of a group whose stream a rebuild then brings back."""
    yard = Yard()
    yard.fragments(2)
    yard.delete()
    tombstone = yard.base.version
    yard.claim()
    run(note_of(yard).change(adding("a")))
    for version in range(tombstone + 1, yard.base.version + 1):
        dict.pop(yard.objects, KEYS.root(version))

    report = swept(yard)

    assert [type(error) for error in report.errors] == [RootsLost]
    assert len(notes_in(yard)) == 1
    damages = asyncio.run(verify(yard.store, env=yard.env)).damages
    assert any(isinstance(each, RootsLost) for each in damages)
