"""Tests of `Replace` as a pure function of a manifest: preconditions, effects, and what a manifest shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import pytest
from protocol_world import verdict

from offload.commit.applying import append_entries
from offload.commit.guest import Abort, Delete, Trim, TrimmedTotals, entries_before
from offload.commit.job import Contribute, Replace
from offload.commit.writer import Append, Claim, Resolve
from offload.contracts.change import CommitVerdict
from offload.ground.errors import Conflict, Misuse, StreamDeleted
from offload.model.entry import Entry, entries_of_rows, rows_of_entries
from offload.model.manifest import AttemptKind, Manifest, Running
from offload.model.tokens import token_for, with_token

WRITER, JOB, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)
MINE, COPIES, THEIRS = UUID(int=11), UUID(int=12), UUID(int=13)
NAMED = with_token(token_for("a batch"), UUID(int=11))
"""An attempt with another token than the others."""

CLAIM: Final = Claim(stream="orders", writer=WRITER, first_offset=10)
BORN: Final = CLAIM.apply(None)


def running(attempt: UUID, writer: UUID, kind: AttemptKind) -> Running:
    return Running(attempt=attempt, ledger_id=10, epoch=1, writer=writer, kind=kind)


def entry(first_offset: int, records: int = 5, **changes: Any) -> Entry:
    fields: dict[str, Any] = {
        "messages": records,
        "first_timestamp_ms": first_offset,
        "last_timestamp_ms": first_offset + records,
        "data_size_bytes": 10 * records,
        "stored_size_bytes": 10 * records + 100,
        "ledger_id": 10,
        "attempt": MINE,
        "checksum": 7,
    }
    return Entry(first_offset=first_offset, records=records, **fields | changes)


def copy(first_offset: int, records: int, **changes: Any) -> Entry:
    return entry(first_offset, records, **{"attempt": COPIES, "copied": 1} | changes)


OLD: Final = (entry(15), entry(20))
EMPTY: Final = replace(
    BORN,
    version=7,
    running=(running(COPIES, JOB, AttemptKind.COPY), running(THEIRS, OTHER, AttemptKind.JOB)),
)
BASE: Final = append_entries(EMPTY, [entry(10), *OLD, entry(25)])
CHANGE: Final = Replace(job=JOB, incarnation=BORN.incarnation, old=OLD, new=[copy(15, 10)])


def applied(change: Replace, base: Manifest) -> Manifest:
    """Return the manifest after a commit. All fragments are in the root."""
    return replace(change.apply(base), entries=change.edit.edited(base.entries))


def trimmed(base: Manifest, gone: Sequence[Entry]) -> Manifest:
    dropped = TrimmedTotals(
        messages=sum(e.messages for e in gone),
        data_size_bytes=sum(e.data_size_bytes for e in gone),
        stored_size_bytes=sum(e.stored_size_bytes for e in gone),
        fragments=len(gone),
        ledgers=0,
    )
    end = gone[-1].next_offset
    change = Trim(
        incarnation=base.incarnation,
        since=base.first_offset,
        first_offset=end,
        dropped=dropped,
        counted=entries_before(base, end),
    )
    return change.apply(base)


def test_copies_stand_where_the_old_fragments_were_and_nothing_else_moves() -> None:
    changed = applied(CHANGE, BASE)

    assert entries_of_rows(changed.entries) == [entry(10), copy(15, 10), entry(25)]
    assert (changed.fragments, changed.stored_size_bytes) == (3, BASE.stored_size_bytes - 100)
    assert [each.attempt for each in changed.running] == [THEIRS]
    moved = {"entries", "fragments", "stored_size_bytes", "running"}
    for name in set(BASE.__dataclass_fields__) - moved:
        assert getattr(changed, name) is getattr(BASE, name)
    assert verdict(CHANGE, changed) is CommitVerdict.IN
    assert verdict(CHANGE, BASE) is CommitVerdict.OUT
    changed.check("here")


@pytest.mark.parametrize("is_first_of_ledger", [True, False])
def test_a_ledger_begins_with_the_copy_where_it_began_with_what_it_replaces(is_first_of_ledger: bool) -> None:
    first = entry(10, ledger_id=9 if is_first_of_ledger else 10)
    base = append_entries(EMPTY, [first, *OLD, entry(25)])

    changed = applied(CHANGE, base)

    assert changed.entries["ledgers"].tolist() == [1, int(is_first_of_ledger), 0]
    assert changed.ledgers == base.ledgers
    changed.check("here")


@pytest.mark.parametrize(
    "changes",
    [
        {"new": [copy(15, 5)]},
        {"new": [copy(15, 11)]},
        {"new": [copy(20, 10)]},
        {"new": [copy(15, 10, messages=9)]},
        {"new": [copy(15, 10, data_size_bytes=99)]},
        {"new": [copy(15, 10, first_timestamp_ms=16)]},
        {"new": [copy(15, 10, last_timestamp_ms=24)]},
        {"new": [copy(15, 10, ledger_id=11)]},
        {"new": [copy(15, 10, copied=0)]},
        {"new": [copy(15, 3), copy(18, 3), copy(21, 4)]},
        {"new": [copy(15, 4), copy(20, 5)]},
        {"new": []},
        {"old": [], "new": []},
        {"old": [entry(15), entry(25)]},
        {"old": [entry(15), entry(20, ledger_id=11)]},
        {"old": [entry(15), entry(20, attempt=NAMED)]},
        {"new": [copy(15, 10, attempt=NAMED)]},
    ],
    ids=str,
)
def test_a_copy_with_other_records_is_misuse(changes: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        replace(CHANGE, **changes)


@pytest.mark.parametrize(
    "old",
    [(entry(15, attempt=OTHER), entry(20)), (entry(15, checksum=8), entry(20)), (entry(15, 4), entry(19, 6))],
    ids=["another's fragment", "another object", "another cut"],
)
def test_fragments_that_the_base_does_not_name_are_not_replaced(old: tuple[Entry, Entry]) -> None:
    content = {name: getattr(CHANGE.new[0], name) for name in ("first_timestamp_ms", "last_timestamp_ms")}
    change = replace(
        CHANGE, old=[replace(old[0], first_timestamp_ms=15), old[1]], new=[copy(15, 10, **content)]
    )

    with pytest.raises(Conflict, match="other fragments"):
        change.edit.edited(BASE.entries)


def test_fragments_apart_from_each_other_are_not_replaced() -> None:
    with pytest.raises(Conflict, match="one group"):
        CHANGE.edit.edited(rows_of_entries([entry(10), entry(15)]))


def test_the_newest_fragment_is_not_replaced() -> None:
    with pytest.raises(Conflict, match="newest"):
        CHANGE.apply(append_entries(EMPTY, [entry(10), *OLD]))


@pytest.mark.parametrize(
    "attempts",
    [
        (),
        (running(COPIES, OTHER, AttemptKind.COPY),),
        (running(COPIES, JOB, AttemptKind.JOB),),
        (running(COPIES, JOB, AttemptKind.STREAM),),
    ],
    ids=["aborted", "another's", "to be appended", "a writer's"],
)
def test_only_a_running_copy_of_the_job_replaces(attempts: tuple[Running, ...]) -> None:
    with pytest.raises(Conflict, match="does not run as a copy"):
        CHANGE.apply(replace(BASE, running=attempts))


def test_trimmed_fragments_are_not_replaced() -> None:
    """While the copies run, they were never named. Afterwards nothing shows if they were."""
    base = trimmed(BASE, [entry(10), entry(15)])

    assert verdict(CHANGE, base) is CommitVerdict.OUT
    with pytest.raises(Conflict, match="trimmed"):
        CHANGE.apply(base)
    assert verdict(CHANGE, Abort(attempts=frozenset({COPIES})).apply(base)) is CommitVerdict.UNKNOWN


def test_fragments_at_the_beginning_of_the_stream_are_replaced() -> None:
    changed = applied(CHANGE, trimmed(BASE, [entry(10)]))

    assert entries_of_rows(changed.entries) == [copy(15, 10), entry(25)]
    changed.check("here")


def test_a_job_replaces_in_the_incarnation_that_it_began_on() -> None:
    deleted = Delete(incarnation=BORN.incarnation).apply(BASE)
    reborn = CLAIM.apply(deleted)

    for base in (deleted, reborn):
        with pytest.raises(StreamDeleted):
            CHANGE.apply(base)
        with pytest.raises(StreamDeleted):
            verdict(CHANGE, base)


def test_a_copy_that_another_copy_may_have_replaced_is_in_doubt() -> None:
    """If its attempt runs, it never was in."""
    by_another = replace(BASE, entries=rows_of_entries([entry(10), copy(15, 10, attempt=OTHER), entry(25)]))
    over = Abort(attempts=frozenset({COPIES})).apply(by_another)

    assert verdict(CHANGE, by_another) is CommitVerdict.OUT
    assert verdict(CHANGE, over) is CommitVerdict.UNKNOWN


OF_MINE: Final = (entry(15), entry(20))
APPENDS: Final = {
    "append": Append(writer=WRITER, entries=OF_MINE, finished=frozenset({MINE})),
    "resolve": Resolve(writer=WRITER, adopted=OF_MINE),
    "contribute": Contribute(
        job=OTHER,
        incarnation=BORN.incarnation,
        entries=[replace(e, attempt=THEIRS) for e in OF_MINE],
        finished=frozenset({THEIRS}),
    ),
}


@pytest.mark.parametrize("name", APPENDS)
def test_an_append_is_in_doubt_if_a_copy_is_in_its_place(name: str) -> None:
    """It is not in doubt if its attempts run, or if the copy is of a named batch and the append is not."""
    change = APPENDS[name]
    owner, kind = {"append": (WRITER, 0), "resolve": (OTHER, 0), "contribute": (OTHER, 1)}[name]
    attempt = THEIRS if name == "contribute" else MINE
    entries = rows_of_entries([entry(10), copy(15, 10, attempt=COPIES), entry(25)])
    over = replace(BASE, running=(), entries=entries)
    runs = replace(over, running=(running(attempt, owner, AttemptKind(kind)),))

    assert verdict(change, runs) is CommitVerdict.OUT
    assert verdict(change, over) is CommitVerdict.UNKNOWN
    strange = rows_of_entries([entry(10), copy(15, 10, attempt=NAMED), entry(25)])
    assert verdict(change, replace(over, entries=strange)) is CommitVerdict.OUT
    others = replace(over, entries=rows_of_entries([entry(10), entry(15, 10, attempt=OTHER), entry(25)]))
    assert verdict(change, others) is CommitVerdict.OUT


def test_a_trim_that_was_counted_before_a_replacement_is_a_conflict() -> None:
    change = Trim(
        incarnation=BORN.incarnation,
        since=10,
        first_offset=25,
        dropped=TrimmedTotals(
            messages=15, data_size_bytes=150, stored_size_bytes=450, fragments=3, ledgers=0
        ),
        counted=entries_before(BASE, 25),
    )

    with pytest.raises(Conflict, match="plan the trim again"):
        change.apply(applied(CHANGE, BASE))
    change.apply(append_entries(BASE, [entry(30)])).check("here")
