"""Tests of changes as pure functions of a manifest: preconditions, effects, and what a manifest shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_world import verdict

from offload.commit.applying import append_entries
from offload.commit.guest import Abort, Delete, Trim, TrimmedTotals, entries_before
from offload.commit.job import Announce, Contribute
from offload.commit.writer import Append, Claim, Prepare, Resolve
from offload.contracts.change import Change, CommitVerdict
from offload.formats.root import encode_root
from offload.ground.errors import Conflict, Fenced, Misuse, OffloadError, StreamDeleted
from offload.model.entry import TOTALS, Entry, entries_of_rows, rows_of_entries
from offload.model.manifest import NOBODY, AttemptKind, Manifest, Running, StreamState

ME, OTHER, GUEST = UUID(int=1), UUID(int=2), UUID(int=3)
MINE, THEIRS, JOBS, COPIES = UUID(int=11), UUID(int=12), UUID(int=13), UUID(int=14)

CLAIM: Final = Claim(stream="orders", writer=ME, first_offset=10, source_epoch=4)
BORN: Final = CLAIM.apply(None)


def running(attempt: UUID, writer: UUID, kind: AttemptKind = AttemptKind.STREAM) -> Running:
    return Running(attempt=attempt, ledger_id=10, epoch=1, writer=writer, kind=kind)


def entry(first_offset: int, records: int = 5, attempt: UUID = MINE, ledger_id: int = 10) -> Entry:
    return Entry(
        first_offset=first_offset,
        records=records,
        messages=records - 1,
        first_timestamp_ms=1,
        last_timestamp_ms=2,
        data_size_bytes=100,
        stored_size_bytes=300,
        ledger_id=ledger_id,
        attempt=attempt,
        checksum=7,
    )


BASE: Final = replace(
    BORN,
    version=7,
    running=(
        running(MINE, ME),
        running(THEIRS, OTHER),
        running(JOBS, GUEST, AttemptKind.JOB),
        running(COPIES, ME, AttemptKind.COPY),
    ),
)
DELETED: Final = Delete(incarnation=BORN.incarnation).apply(BASE)
REBORN: Final = CLAIM.apply(DELETED)
ANNOUNCE: Final = Announce(job=GUEST, incarnation=BORN.incarnation, attempts=[(UUID(int=30), 77)])
CONTRIBUTE: Final = Contribute(
    job=GUEST, incarnation=BORN.incarnation, entries=[entry(10, attempt=JOBS)], finished=frozenset({JOBS})
)
MINE_ONLY: Final[list[Change]] = [
    Prepare(writer=OTHER, attempts=[(UUID(int=30), 1)]),
    Append(writer=OTHER, entries=[entry(10)]),
    Resolve(writer=OTHER, adopted=[]),
]


def attempts_of(manifest: Manifest) -> set[UUID]:
    return {r.attempt for r in manifest.running}


def is_in(change: Change, manifest: Manifest) -> bool:
    """Return True if the manifest shows that the change is in, False if it shows that it is not."""
    found = verdict(change, manifest)
    assert found is not CommitVerdict.UNKNOWN
    return found is CommitVerdict.IN


def dropped(entries: Sequence[Entry], *, ledgers: int) -> TrimmedTotals:
    """Return the totals of these entries, of which `ledgers` ledgers are removed whole."""
    return TrimmedTotals(
        messages=sum(entry.messages for entry in entries),
        data_size_bytes=sum(entry.data_size_bytes for entry in entries),
        stored_size_bytes=sum(entry.stored_size_bytes for entry in entries),
        fragments=len(entries),
        ledgers=ledgers,
    )


def trim(since: int, first_offset: int, entries: Sequence[Entry], *, ledgers: int = 0) -> Trim:
    """Return the trim of exactly these entries, which are the first of the stream."""
    return Trim(
        incarnation=BORN.incarnation,
        since=since,
        first_offset=first_offset,
        dropped=dropped(entries, ledgers=ledgers),
        counted=rows_of_entries(entries).tobytes(),
    )


def test_the_first_claim_is_the_birth_of_a_stream() -> None:
    born = CLAIM.apply(None)

    assert (born.version, born.epoch, born.source_epoch) == (0, 1, 4)
    assert (born.first_offset, born.next_offset, born.fragments) == (10, 10, 0)
    assert (born.writer, born.state) == (ME, StreamState.LIVE)
    assert is_in(CLAIM, born)


def test_a_claim_changes_writer_and_epochs_and_nothing_else() -> None:
    base = append_entries(BASE, [entry(10)])
    claim = replace(CLAIM, writer=OTHER, first_offset=0, source_epoch=5)

    changed = claim.apply(base)

    assert (changed.writer, changed.epoch, changed.source_epoch) == (OTHER, base.epoch + 1, 5)
    for name in set(base.__dataclass_fields__) - {"writer", "epoch", "source_epoch"}:
        assert getattr(changed, name) is getattr(base, name)


@pytest.mark.parametrize("expected_version", [0, BASE.version - 1, BASE.version + 1])
def test_a_claim_is_refused_on_every_base_but_the_one_that_the_claimant_has_seen(
    expected_version: int,
) -> None:
    with pytest.raises(Conflict, match="this claim is late"):
        replace(CLAIM, expected_version=expected_version).apply(BASE)


@given(st.integers(0, 9), st.integers(0, 9))
def test_a_source_epoch_never_falls(recorded: int, claimed: int) -> None:
    """An epoch of 0 means none, so the recorded one stays, also on a tombstone."""
    for base in (replace(BASE, source_epoch=recorded), replace(DELETED, source_epoch=recorded)):
        claim = replace(CLAIM, writer=OTHER, source_epoch=claimed)
        if 0 < claimed < recorded:
            with pytest.raises(Fenced):
                claim.apply(base)
        else:
            assert claim.apply(base).source_epoch == max(recorded, claimed)


def test_a_claim_on_a_tombstone_begins_again_with_higher_numbers() -> None:
    born = replace(CLAIM, writer=OTHER, first_offset=50).apply(DELETED)

    assert (born.version, born.epoch) == (DELETED.version, DELETED.epoch + 1)
    assert (born.first_offset, born.next_offset, born.running) == (50, 50, ())
    assert born.incarnation != DELETED.incarnation
    assert born.state is StreamState.LIVE
    assert born.commit_id == DELETED.commit_id


def test_a_claim_leaves_a_rebuild_alone() -> None:
    with pytest.raises(Conflict):
        CLAIM.apply(replace(BASE, state=StreamState.REBUILDING))


@pytest.mark.parametrize("change", MINE_ONLY, ids=lambda change: type(change).__name__)
def test_only_the_writer_commits(change: Change) -> None:
    for act in (change.apply, partial(verdict, change)):
        with pytest.raises(Fenced) as fenced:
            act(BASE)
        assert fenced.value.epoch == BASE.epoch
        with pytest.raises(StreamDeleted):
            act(DELETED)
    with pytest.raises(Misuse):
        change.apply(None)


def test_announced_attempts_run_for_their_writer_in_its_epoch() -> None:
    fresh = UUID(int=30)
    change = Prepare(writer=ME, attempts=[(fresh, 77)])

    changed = change.apply(BASE)

    assert changed.running[:-1] == BASE.running
    assert changed.running[-1] == Running(attempt=fresh, ledger_id=77, epoch=BASE.epoch, writer=ME)
    assert is_in(change, changed)
    assert not is_in(change, BASE)


def test_an_append_names_its_entries_and_ends_its_attempts() -> None:
    change = Append(writer=ME, entries=[entry(10), entry(15)], finished=frozenset({MINE}))

    changed = change.apply(BASE)

    assert entries_of_rows(changed.entries) == [entry(10), entry(15)]
    assert (changed.next_offset, changed.messages) == (20, 8)
    assert (changed.data_size_bytes, changed.stored_size_bytes) == (200, 600)
    assert (changed.fragments, changed.ledgers, changed.last_ledger_id) == (2, 1, 10)
    assert attempts_of(changed) == {THEIRS, JOBS, COPIES}
    assert is_in(change, changed)
    assert not is_in(change, BASE)
    changed.check("here")


APPENDS: Final[list[Append | Contribute]] = [Append(writer=ME, entries=[]), CONTRIBUTE]


@pytest.mark.parametrize("change", APPENDS, ids=["append", "contribute"])
def test_entries_below_the_end_conflict_with_an_earlier_append(
    change: Append | Contribute,
) -> None:
    with pytest.raises(Conflict, match="9 does not continue 10: another writer appended first"):
        replace(change, entries=[entry(9, attempt=own_attempt(change))]).apply(BASE)


@pytest.mark.parametrize("change", APPENDS, ids=["append", "contribute"])
@pytest.mark.parametrize("offsets", [(11,), (10, 16)], ids=["beyond the end", "a hole within"])
def test_entries_that_leave_a_gap_are_the_callers_misuse(
    change: Append | Contribute, offsets: tuple[int, ...]
) -> None:
    entries = [entry(offset, attempt=own_attempt(change)) for offset in offsets]

    with pytest.raises(Misuse, match="does not continue"):
        replace(change, entries=entries).apply(BASE)


def own_attempt(change: Append | Contribute) -> UUID:
    return JOBS if isinstance(change, Contribute) else MINE


@pytest.mark.parametrize("attempt", [THEIRS, JOBS, COPIES, UUID(int=66)])
def test_a_writer_appends_only_its_own_attempts(attempt: UUID) -> None:
    """It appends neither the attempts of another writer nor those of a job with the same UUID."""
    with pytest.raises(Conflict, match="does not run for this writer"):
        Append(writer=ME, entries=[entry(10), entry(15, attempt=attempt)]).apply(BASE)


@pytest.mark.parametrize("attempt", [MINE, JOBS, COPIES, UUID(int=66)])
def test_a_writer_adopts_only_what_earlier_writers_announced(attempt: UUID) -> None:
    with pytest.raises(Conflict, match="does not run for an earlier writer"):
        Resolve(writer=ME, adopted=[entry(10, attempt=THEIRS), entry(15, attempt=attempt)]).apply(BASE)


def test_a_writer_ends_only_its_own_attempts() -> None:
    change = Append(writer=ME, entries=[entry(10)], finished=frozenset({MINE, THEIRS, JOBS, COPIES}))

    assert attempts_of(change.apply(BASE)) == {THEIRS, JOBS, COPIES}


@pytest.mark.parametrize("attempt", [THEIRS, JOBS, COPIES])
def test_a_writer_does_not_announce_what_runs_for_another(attempt: UUID) -> None:
    change = Prepare(writer=ME, attempts=[(attempt, 10)])

    assert not is_in(change, BASE)
    with pytest.raises(Conflict, match="already runs"):
        change.apply(BASE)


def test_an_append_is_in_if_its_own_fragment_is_named() -> None:
    change = Append(writer=ME, entries=[entry(10)], finished=frozenset({MINE}))
    aborted = Abort(attempts=frozenset({MINE})).apply(BASE)

    assert is_in(change, append_entries(change.apply(BASE), [entry(15)]))
    assert not is_in(change, aborted)
    assert not is_in(change, append_entries(aborted, [entry(10, attempt=THEIRS)]))


@pytest.mark.parametrize("trimmed_to", [15, 20], ids=["within", "whole"])
@pytest.mark.parametrize("finished", [frozenset({MINE}), frozenset[UUID]()], ids=["ended", "part"])
def test_nothing_shows_whether_an_append_that_was_trimmed_was_in(
    finished: frozenset[UUID], trimmed_to: int
) -> None:
    """A part of a long append ends no attempt. Another writer's fragments may have been at its offsets."""
    change = Append(writer=ME, entries=[entry(10, 10)], finished=finished)
    aborted = Abort(attempts=finished).apply(BASE)
    by_another = append_entries(aborted, [entry(10, attempt=THEIRS), entry(15, attempt=THEIRS)])
    gone = entries_of_rows(by_another.entries)[: (trimmed_to - 10) // 5]

    trimmed = trim(10, trimmed_to, gone).apply(by_another)

    assert verdict(change, trimmed) is CommitVerdict.UNKNOWN


def test_an_append_whose_attempt_runs_was_not_in_despite_a_trim() -> None:
    change = Append(writer=ME, entries=[entry(10)], finished=frozenset({MINE}))

    assert not is_in(change, replace(BASE, first_offset=15, next_offset=15))


def test_an_append_of_nothing_is_in_when_its_attempts_have_ended() -> None:
    change = Append(writer=ME, entries=[], finished=frozenset({MINE}))

    assert not is_in(change, BASE)
    assert is_in(change, change.apply(BASE))


def test_a_resolution_adopts_and_drops_every_attempt_of_other_writers_but_jobs() -> None:
    change = Resolve(writer=ME, adopted=[entry(10, attempt=THEIRS)])

    changed = change.apply(BASE)

    assert entries_of_rows(changed.entries) == [entry(10, attempt=THEIRS)]
    assert attempts_of(changed) == {MINE, JOBS, COPIES}
    assert is_in(change, changed)
    assert not is_in(change, BASE)
    assert not is_in(change, replace(changed, running=BASE.running))


def test_an_abort_drops_its_attempts_for_anybody() -> None:
    change = Abort(attempts=frozenset({MINE, JOBS}))

    changed = change.apply(BASE)

    assert attempts_of(changed) == {THEIRS, COPIES}
    assert is_in(change, changed)
    assert not is_in(change, BASE)
    with pytest.raises(StreamDeleted):
        change.apply(DELETED)
    with pytest.raises(Misuse):
        change.apply(None)


def test_a_job_announces_beside_the_writer_and_attempts_of_its_own_kind() -> None:
    changed = ANNOUNCE.apply(BASE)

    announced = Running(
        attempt=UUID(int=30), ledger_id=77, epoch=BASE.epoch, writer=GUEST, kind=AttemptKind.JOB
    )
    assert changed.running == (*BASE.running, announced)
    for name in set(BASE.__dataclass_fields__) - {"running"}:
        assert getattr(changed, name) is getattr(BASE, name)
    assert is_in(ANNOUNCE, changed)
    assert not is_in(ANNOUNCE, BASE)


def test_an_attempt_that_runs_for_another_is_not_announced_again() -> None:
    for attempt in (MINE, JOBS):
        change = replace(ANNOUNCE, job=OTHER, attempts=[(attempt, 77)])

        assert not is_in(change, BASE)
        with pytest.raises(Conflict, match="already runs"):
            change.apply(BASE)


def test_a_running_attempt_proves_the_announcement_of_those_dropped_since() -> None:
    change = replace(ANNOUNCE, attempts=[(UUID(int=30), 77), (UUID(int=31), 78)])

    changed = Abort(attempts=frozenset({UUID(int=30)})).apply(change.apply(BASE))

    assert is_in(change, changed)


def test_a_job_appends_its_fragments_and_ends_its_attempts_and_changes_no_writer() -> None:
    changed = CONTRIBUTE.apply(BASE)

    assert entries_of_rows(changed.entries) == [entry(10, attempt=JOBS)]
    assert attempts_of(changed) == {MINE, THEIRS, COPIES}
    moved = {"running", "entries", "next_offset", "last_ledger_id", "ledgers", *TOTALS}
    for name in set(BASE.__dataclass_fields__) - moved:
        assert getattr(changed, name) is getattr(BASE, name)
    assert is_in(CONTRIBUTE, changed)
    assert not is_in(CONTRIBUTE, BASE)
    changed.check("here")


def test_a_job_ends_no_attempts_but_its_own() -> None:
    change = replace(CONTRIBUTE, finished=frozenset({MINE, THEIRS, JOBS}))

    assert attempts_of(change.apply(BASE)) == {MINE, THEIRS, COPIES}


@pytest.mark.parametrize("attempt", [MINE, THEIRS, UUID(int=66)], ids=["writer's", "another's", "nobody's"])
def test_a_job_appends_only_its_own_running_attempts(attempt: UUID) -> None:
    """It does not append an attempt of the stream's writer with the same UUID."""
    own_but_of_stream = replace(BASE, running=(*BASE.running, running(UUID(int=66), GUEST)))

    with pytest.raises(Conflict, match="does not run for job"):
        replace(CONTRIBUTE, entries=[entry(10, attempt=attempt)]).apply(own_but_of_stream)


def test_a_job_does_not_append_what_another_job_announced() -> None:
    with pytest.raises(Conflict, match="does not run for job"):
        replace(CONTRIBUTE, job=OTHER).apply(BASE)


def test_a_jobs_append_is_in_only_if_its_own_fragment_is_named() -> None:
    by_another = append_entries(BASE, [entry(10, attempt=THEIRS)])

    assert is_in(CONTRIBUTE, append_entries(CONTRIBUTE.apply(BASE), [entry(15)]))
    assert not is_in(CONTRIBUTE, by_another)


@pytest.mark.parametrize("finished", [frozenset({JOBS}), frozenset[UUID]()], ids=["ended", "not ended"])
def test_a_jobs_append_that_a_trim_has_passed_is_in_doubt(finished: frozenset[UUID]) -> None:
    """It may have been in, or the job was aborted and another's fragments were there."""
    change = replace(CONTRIBUTE, finished=finished)
    appended = trim(10, 15, [entry(10, attempt=JOBS)], ledgers=1).apply(change.apply(BASE))
    aborted = Abort(attempts=frozenset({JOBS})).apply(BASE)
    by_another = trim(10, 15, [entry(10)], ledgers=1).apply(append_entries(aborted, [entry(10)]))

    for passed in (appended, by_another):
        assert verdict(change, passed) is CommitVerdict.UNKNOWN


def test_a_jobs_append_was_not_in_if_its_attempts_run() -> None:
    passed = trim(10, 15, [entry(10)], ledgers=1).apply(append_entries(BASE, [entry(10)]))

    assert not is_in(CONTRIBUTE, passed)
    with pytest.raises(Conflict):
        CONTRIBUTE.apply(passed)


def test_a_job_that_appends_nothing_is_done_when_its_attempts_have_ended() -> None:
    change = replace(CONTRIBUTE, entries=[])

    assert not is_in(change, BASE)
    assert is_in(change, change.apply(BASE))


@pytest.mark.parametrize("change", [ANNOUNCE, CONTRIBUTE], ids=["announce", "contribute"])
def test_a_job_ends_with_the_incarnation_that_it_began_on(change: Change) -> None:
    again = change.apply(replace(BASE, incarnation=BORN.incarnation))

    for act in (change.apply, partial(verdict, change)):
        for base in (DELETED, REBORN, replace(again, incarnation=UUID(int=99))):
            with pytest.raises(StreamDeleted):
                act(base)
        with pytest.raises(Conflict):
            act(replace(BASE, state=StreamState.REBUILDING))
    with pytest.raises(Misuse):
        change.apply(None)


@pytest.mark.parametrize(
    ("ledger_ids", "ledgers"),
    [([10, 10, 10], 1), ([10, 20, 20], 2), ([10, 20, 30], 3), ([10, 20, 10], 3)],
    ids=str,
)
@pytest.mark.parametrize("split", range(4))
def test_a_ledger_counts_where_another_one_begins(ledger_ids: list[int], ledgers: int, split: int) -> None:
    """The division into commits does not matter, because the root has the ledger of its newest fragment."""
    entries = [entry(10 + 5 * i, ledger_id=ledger_id) for i, ledger_id in enumerate(ledger_ids)]

    changed = append_entries(append_entries(BASE, entries[:split]), entries[split:])

    assert (changed.ledgers, changed.last_ledger_id) == (ledgers, ledger_ids[-1])
    changed.check("here")


def test_a_trim_drops_whole_fragments_for_anybody_and_changes_nothing_else() -> None:
    base = append_entries(BASE, [entry(10), entry(15), entry(20, ledger_id=20)])
    change = trim(10, 20, [entry(10), entry(15)], ledgers=1)

    changed = change.apply(base)

    assert entries_of_rows(changed.entries) == [entry(20, ledger_id=20)]
    assert (changed.first_offset, changed.next_offset) == (20, 25)
    assert (changed.messages, changed.fragments, changed.ledgers) == (4, 1, 1)
    assert (changed.data_size_bytes, changed.stored_size_bytes) == (100, 300)
    moved = {"first_offset", "entries", *TOTALS, "ledgers"}
    for name in set(base.__dataclass_fields__) - moved:
        assert getattr(changed, name) is getattr(base, name)
    assert is_in(change, changed)
    assert not is_in(change, base)
    changed.check("here")


def test_a_ledger_of_which_a_fragment_stays_still_counts() -> None:
    """The entry of the remaining fragment says that it continues a ledger, and the root counts one ledger."""
    base = append_entries(BASE, [entry(10), entry(15)])

    changed = trim(10, 15, [entry(10)]).apply(base)

    assert changed.entries["ledgers"].tolist() == [0]
    assert changed.ledgers == 1
    changed.check("here")


def test_a_stream_that_is_trimmed_to_its_end_goes_on_from_there() -> None:
    base = append_entries(BASE, [entry(10)])

    changed = trim(10, 15, [entry(10)], ledgers=1).apply(base)
    grown = append_entries(changed, [entry(15)])

    assert (changed.first_offset, changed.next_offset, changed.fragments, changed.ledgers) == (15, 15, 0, 0)
    assert (grown.fragments, grown.ledgers) == (1, 1)
    changed.check("here")
    grown.check("here")


def test_a_trim_of_all_does_not_hold_for_a_stream_that_went_on() -> None:
    """Its last ledger may continue behind it, and then still counts. Found by the simulation."""
    base = append_entries(BASE, [entry(10)])
    counted = replace(trim(10, 15, [entry(10)], ledgers=1), is_all=True)
    grown = append_entries(base, [entry(15)])  # of the same ledger

    assert counted.apply(base).ledgers == 0
    with pytest.raises(Conflict, match="plan the trim again"):
        counted.apply(grown)


def test_a_trim_that_was_counted_on_another_beginning_is_a_conflict() -> None:
    """Its counts would be wrong. While the beginning stays, the committed data behind it never changes."""
    base = append_entries(BASE, [entry(10), entry(15)])
    counted = trim(10, 15, [entry(10)])

    with pytest.raises(Conflict, match="plan the trim again"):
        counted.apply(counted.apply(base))


def test_a_trim_is_for_one_incarnation() -> None:
    base = append_entries(BASE, [entry(10), entry(15)])
    change = trim(10, 15, [entry(10)])
    born = replace(base, incarnation=UUID(int=99))

    assert not is_in(change, replace(born, first_offset=15))
    with pytest.raises(Conflict):
        change.apply(born)


def test_a_tombstone_does_not_pass_for_trimmed() -> None:
    """It begins where it ends, as if every offset below was trimmed. But no trim happened."""
    with pytest.raises(StreamDeleted):
        verdict(trim(10, 15, []), replace(DELETED, first_offset=20, next_offset=20))


@pytest.mark.parametrize("first_offset", [9, 10, 21])
def test_a_trim_to_nowhere_is_misuse(first_offset: int) -> None:
    base = append_entries(BASE, [entry(10), entry(15)])

    with pytest.raises(Misuse):
        trim(10, first_offset, []).apply(base)


def test_a_deletion_leaves_a_tombstone_that_fences_every_writer() -> None:
    base = append_entries(BASE, [entry(10), entry(15)])
    change = Delete(incarnation=base.incarnation)

    changed = change.apply(base)

    assert (changed.state, changed.writer, changed.epoch) == (StreamState.DELETED, NOBODY, base.epoch + 1)
    assert (changed.first_offset, changed.next_offset) == (base.next_offset, base.next_offset)
    assert (len(changed.entries), changed.running, changed.ledgers, changed.last_ledger_id) == (0, (), 0, 0)
    assert [getattr(changed, total) for total in TOTALS] == [0] * len(TOTALS)
    assert changed.source_epoch == base.source_epoch
    assert is_in(change, changed)
    assert not is_in(change, base)
    changed.check("here")


def test_a_deletion_is_for_one_incarnation() -> None:
    """A stream that began under the same name since stays, because the deletion is already in."""
    change = Delete(incarnation=BASE.incarnation)
    born = replace(CLAIM, writer=OTHER).apply(DELETED)

    assert is_in(change, born)


@pytest.mark.parametrize(
    "change", [trim(10, 15, []), Delete(incarnation=BORN.incarnation)], ids=["trim", "delete"]
)
def test_only_a_live_stream_is_trimmed_or_deleted(change: Change) -> None:
    with pytest.raises(Misuse):
        change.apply(None)
    with pytest.raises(StreamDeleted):
        change.apply(DELETED)
    with pytest.raises(Conflict):
        change.apply(replace(BASE, state=StreamState.REBUILDING))


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
    st.builds(
        replace,
        st.just(ANNOUNCE),
        job=st.sampled_from([OTHER, GUEST]),
        attempts=st.lists(
            st.tuples(st.one_of(st.uuids(), st.just(JOBS)), st.integers(0, 9)),
            min_size=1,
            max_size=2,
            unique_by=lambda attempt: attempt[0],
        ),
    ),
    st.builds(
        replace,
        st.just(CONTRIBUTE),
        job=st.sampled_from([OTHER, GUEST]),
        entries=st.integers(0, 3).map(lambda n: [entry(10 + n * 5, attempt=JOBS)]),
        finished=st.frozensets(st.sampled_from([MINE, JOBS])),
    ),
    st.builds(Abort, attempts=st.frozensets(st.sampled_from([MINE, THEIRS, JOBS]))),
    st.integers(0, 3),
    st.just(Delete(incarnation=BORN.incarnation)),
)
"""Each number is a trim of so many fragments, made for the manifest that it meets. None is refused."""


def made_for(base: Manifest, change: Change | int) -> Change:
    """Return the change for this base. Only a trim depends on it."""
    if isinstance(change, Change):
        return change
    entries = entries_of_rows(base.entries)[:change]
    first_offset = entries[-1].next_offset if entries else base.first_offset
    change = trim(base.first_offset, first_offset, entries, ledgers=int(first_offset == base.next_offset))
    return replace(change, counted=entries_before(base, first_offset))


@given(st.lists(changes, max_size=12))
def test_every_applied_change_keeps_the_invariants(sequence: list[Change | int]) -> None:
    """An applied change is in, moves no number backwards, and leaves its base unchanged."""
    base = BASE
    for each in sequence:
        change, raw = made_for(base, each), encode_root(base)
        try:
            changed = change.apply(base)
        except OffloadError:
            changed = base
        else:
            assert is_in(change, changed)
        changed.check("here")
        assert encode_root(base) == raw
        assert changed.epoch >= base.epoch
        assert (changed.version, changed.commit_id) == (base.version, base.commit_id)
        if base.state is not StreamState.DELETED:
            assert changed.next_offset >= base.next_offset
            assert changed.first_offset >= base.first_offset
        if isinstance(change, Trim):
            assert base.entries.tobytes().endswith(changed.entries.tobytes())
        elif not isinstance(change, Delete):
            assert changed.entries.tobytes().startswith(base.entries.tobytes())
        base = changed
