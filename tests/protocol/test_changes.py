"""The changes, as pure functions of the manifest they meet: preconditions, effects, and how one sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.errors import Conflict, Fenced, Misuse, OffloadError, StreamDeleted
from offload.formats.manifest import NOBODY, AttemptKind, Entry, Manifest, Running, State, decode_entries
from offload.manifest.changes import Abort, Append, Change, Claim, Prepare, Resolve, append_entries

ME, OTHER, GUEST = UUID(int=1), UUID(int=2), UUID(int=3)
MINE, THEIRS, JOBS = UUID(int=11), UUID(int=12), UUID(int=13)

CLAIM: Final = Claim(stream="orders", writer=ME, incarnation=UUID(int=21), first_offset=10, source_epoch=4)


def running(attempt: UUID, writer: UUID, kind: AttemptKind = AttemptKind.STREAM) -> Running:
    return Running(attempt=attempt, ledger_id=10, epoch=1, writer=writer, kind=kind)


def entry(first_offset: int, records: int = 5, attempt: UUID = MINE) -> Entry:
    return Entry(
        first_offset=first_offset,
        records=records,
        messages=records - 1,
        first_timestamp_ms=1,
        last_timestamp_ms=2,
        data_size_bytes=100,
        stored_size_bytes=300,
        ledger_id=10,
        attempt=attempt,
        checksum=7,
    )


BASE: Final = replace(
    CLAIM.apply(None),
    version=7,
    running=(running(MINE, ME), running(THEIRS, OTHER), running(JOBS, OTHER, AttemptKind.JOB)),
)
DELETED: Final = replace(BASE, state=State.DELETED, writer=NOBODY, running=(), epoch=2)
MINE_ONLY: Final[list[Change]] = [
    Prepare(writer=OTHER, attempts=[(UUID(int=30), 1)]),
    Append(writer=OTHER, entries=[entry(10)]),
    Resolve(writer=OTHER, adopted=[]),
]


def attempts_of(manifest: Manifest) -> set[UUID]:
    return {r.attempt for r in manifest.running}


def test_the_first_claim_is_the_birth_of_a_stream() -> None:
    born = CLAIM.apply(None)

    assert (born.version, born.epoch, born.source_epoch) == (0, 1, 4)
    assert (born.first_offset, born.next_offset, born.fragments) == (10, 10, 0)
    assert (born.writer, born.incarnation, born.state) == (ME, CLAIM.incarnation, State.LIVE)
    assert CLAIM.is_in(born)


def test_a_claim_changes_writer_and_epochs_and_nothing_else() -> None:
    base = append_entries(BASE, [entry(10)])
    claim = replace(CLAIM, writer=OTHER, first_offset=0, incarnation=UUID(int=99), source_epoch=5)

    changed = claim.apply(base)

    assert (changed.writer, changed.epoch, changed.source_epoch) == (OTHER, base.epoch + 1, 5)
    for name in set(base.__dataclass_fields__) - {"writer", "epoch", "source_epoch"}:
        assert getattr(changed, name) is getattr(base, name)


@given(st.integers(0, 9), st.integers(0, 9))
def test_a_source_epoch_never_falls(recorded: int, claimed: int) -> None:
    """0 tells none: the recorded one stays. On a tombstone too."""
    for base in (replace(BASE, source_epoch=recorded), replace(DELETED, source_epoch=recorded)):
        claim = replace(CLAIM, writer=OTHER, source_epoch=claimed)
        if 0 < claimed < recorded:
            with pytest.raises(Fenced):
                claim.apply(base)
        else:
            assert claim.apply(base).source_epoch == max(recorded, claimed)


def test_a_claim_on_a_tombstone_begins_anew_and_numbers_go_on() -> None:
    born = replace(CLAIM, writer=OTHER, incarnation=UUID(int=99), first_offset=50).apply(DELETED)

    assert (born.version, born.epoch) == (DELETED.version, DELETED.epoch + 1)
    assert (born.first_offset, born.next_offset, born.running) == (50, 50, ())
    assert (born.incarnation, born.state) == (UUID(int=99), State.LIVE)
    assert born.commit_id == DELETED.commit_id


def test_a_claim_leaves_a_rebuild_alone() -> None:
    with pytest.raises(Conflict):
        CLAIM.apply(replace(BASE, state=State.REBUILDING))


@pytest.mark.parametrize("change", MINE_ONLY, ids=lambda change: type(change).__name__)
def test_only_the_writer_commits(change: Change) -> None:
    for act in (change.apply, change.check_author):
        with pytest.raises(Fenced) as fenced:
            act(BASE)
        assert fenced.value.epoch == BASE.epoch
        with pytest.raises(StreamDeleted):
            act(DELETED)
        with pytest.raises(Misuse):
            act(None)


def test_announced_attempts_run_for_their_writer_in_its_epoch() -> None:
    fresh = UUID(int=30)
    change = Prepare(writer=ME, attempts=[(fresh, 77)])

    changed = change.apply(BASE)

    assert changed.running[:-1] == BASE.running
    assert changed.running[-1] == Running(attempt=fresh, ledger_id=77, epoch=BASE.epoch, writer=ME)
    assert change.is_in(changed)
    assert not change.is_in(BASE)


def test_an_append_names_its_entries_and_ends_its_attempts() -> None:
    change = Append(writer=ME, entries=[entry(10), entry(15)], finished=frozenset({MINE}))

    changed = change.apply(BASE)

    assert decode_entries(changed.entries) == [entry(10), entry(15)]
    assert (changed.next_offset, changed.messages) == (20, 8)
    assert (changed.data_size_bytes, changed.stored_size_bytes) == (200, 600)
    assert attempts_of(changed) == {THEIRS, JOBS}
    assert change.is_in(changed)
    assert not change.is_in(BASE)
    changed.check("here")


@pytest.mark.parametrize("first_offset", [9, 11])
def test_an_append_that_does_not_begin_at_the_end_is_a_conflict(first_offset: int) -> None:
    with pytest.raises(Conflict):
        Append(writer=ME, entries=[entry(first_offset)]).apply(BASE)


@pytest.mark.parametrize("change", [Append, Resolve])
def test_what_does_not_run_is_not_named(change: type[Append | Resolve]) -> None:
    entries = [entry(10), entry(15, attempt=UUID(int=66))]
    made = Append(writer=ME, entries=entries) if change is Append else Resolve(writer=ME, adopted=entries)

    with pytest.raises(Conflict, match="does not run"):
        made.apply(BASE)


def test_an_append_is_in_where_its_own_fragment_is_named_or_trimmed() -> None:
    change = Append(writer=ME, entries=[entry(10)], finished=frozenset({MINE}))
    by_another = append_entries(BASE, [entry(10, attempt=THEIRS)])
    trimmed = replace(BASE, first_offset=15, next_offset=15, running=())
    born_later = replace(BASE, first_offset=15, next_offset=15)

    assert change.is_in(append_entries(BASE, [entry(10), entry(15)]))
    assert change.is_in(trimmed)
    assert not change.is_in(born_later)
    assert not change.is_in(by_another)


def test_an_append_of_nothing_is_in_when_its_attempts_have_ended() -> None:
    change = Append(writer=ME, entries=[], finished=frozenset({MINE}))

    assert not change.is_in(BASE)
    assert change.is_in(change.apply(BASE))


def test_a_resolution_adopts_and_drops_every_attempt_of_other_writers_but_jobs() -> None:
    change = Resolve(writer=ME, adopted=[entry(10, attempt=THEIRS)])

    changed = change.apply(BASE)

    assert decode_entries(changed.entries) == [entry(10, attempt=THEIRS)]
    assert attempts_of(changed) == {MINE, JOBS}
    assert change.is_in(changed)
    assert not change.is_in(BASE)
    assert not change.is_in(replace(changed, running=BASE.running))


def test_an_abort_drops_its_attempts_for_anybody() -> None:
    change = Abort(attempts=frozenset({MINE, JOBS}))

    changed = change.apply(BASE)

    assert attempts_of(changed) == {THEIRS}
    assert change.is_in(changed)
    assert not change.is_in(BASE)
    change.check_author(BASE)
    with pytest.raises(StreamDeleted):
        change.apply(DELETED)
    with pytest.raises(Misuse):
        change.apply(None)


changes = st.one_of(
    st.builds(replace, st.just(CLAIM), writer=st.sampled_from([ME, OTHER, GUEST])),
    st.builds(
        Prepare,
        writer=st.sampled_from([ME, OTHER]),
        attempts=st.lists(st.tuples(st.uuids(), st.integers(0, 9)), min_size=1, max_size=2),
    ),
    st.builds(
        Append,
        writer=st.sampled_from([ME, OTHER]),
        entries=st.integers(0, 8).map(lambda n: [entry(10 + n % 4 * 5)]),
        finished=st.frozensets(st.sampled_from([MINE, THEIRS])),
    ),
    st.builds(
        Resolve,
        writer=st.sampled_from([ME, OTHER]),
        adopted=st.sampled_from([[], [entry(10, attempt=THEIRS)]]),
    ),
    st.builds(Abort, attempts=st.frozensets(st.sampled_from([MINE, THEIRS, JOBS]))),
)


@given(st.lists(changes, max_size=12))
def test_whatever_is_applied_keeps_the_invariants(sequence: list[Change]) -> None:
    """Applied or refused; what was applied is in, moves nothing backwards, and leaves its base as it was."""
    base = BASE
    for change in sequence:
        raw = base.encode()
        try:
            changed = change.apply(base)
        except OffloadError:
            changed = base
        else:
            assert change.is_in(changed)
        changed.check("here")
        assert base.encode() == raw
        assert (changed.epoch, changed.next_offset) >= (base.epoch, base.next_offset)
        assert changed.next_offset >= base.next_offset
        assert (changed.version, changed.commit_id) == (base.version, base.commit_id)
        assert changed.entries.tobytes().startswith(base.entries.tobytes())
        base = changed
