"""Claims of `managed.rules`, on situations that no disk has to be in."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from managed_world import STREAM

from offload.contracts.log import LocalLedger
from offload.ground.errors import Corrupt
from offload.managed.policy import LedgerPolicy
from offload.managed.rules import (
    LedgerAction,
    Situation,
    check_ledgers,
    due_offset,
    expired_offset,
    plan_of,
    removable_offset,
)

NOW_MS = 1_000_000
NO_TRIGGER = LedgerPolicy(offload_size_bytes=None, retention_seconds=100)


def ledgers(*ends: int, size_bytes: int = 100, closed_ms: int = 0) -> list[LocalLedger]:
    """Return sealed ledgers that end at these offsets, the first one from 0 on, and an empty open one."""
    begins = [0, *ends]
    return [
        LocalLedger(
            ledger_id=begin,
            first_offset=begin,
            next_offset=end,
            size_bytes=size_bytes,
            closed_ms=closed_ms,
        )
        for begin, end in zip(begins, ends, strict=False)
    ] + [LocalLedger(ledger_id=begins[-1], first_offset=begins[-1], next_offset=begins[-1], size_bytes=0)]


def situation(
    run: Sequence[LocalLedger],
    *,
    tier: tuple[int, int] | None = None,
    seen: Sequence[tuple[int, int]] = (),
    slowest_offset: int | None = None,
    committed_offset: int | None = None,
) -> Situation:
    """Return the situation of a log, with what the tier has."""
    return Situation(
        ledgers=run,
        tier_first=None if tier is None else tier[0],
        tier_next=None if tier is None else tier[1],
        committed_ms=seen,
        slowest_offset=slowest_offset,
        now_ms=NOW_MS,
        committed_offset=run[-1].next_offset if committed_offset is None else committed_offset,
    )


@pytest.mark.parametrize(
    ("slowest_offset", "until"), [(None, 30), (30, 30), (29, 20), (20, 20), (15, 10), (0, 0)]
)
def test_retention_of_the_log_alone_ends_before_the_ledger_that_a_cursor_is_in(
    slowest_offset: int | None, until: int
) -> None:
    """Every ledger is old enough, and the tier has nothing of the stream."""
    now = situation(ledgers(10, 20, 30), slowest_offset=slowest_offset)

    assert expired_offset(now, NO_TRIGGER)[0] == until


@pytest.mark.parametrize(("tier_next", "until"), [(9, 0), (10, 10), (11, 10), (19, 10), (20, 20), (30, 30)])
def test_a_ledger_of_which_the_tier_has_a_part_is_not_removable(tier_next: int, until: int) -> None:
    now = situation(ledgers(10, 20, 30), tier=(0, tier_next), seen=[(30, 0)])

    assert removable_offset(now, LedgerPolicy(deletion_lag_seconds=1))[0] == until


def test_the_lag_counts_from_the_first_end_of_the_tier_that_covers_the_ledger() -> None:
    now = situation(ledgers(10, 20), tier=(0, 20), seen=[(10, NOW_MS - 5000), (20, NOW_MS - 1000)])

    assert removable_offset(now, LedgerPolicy(deletion_lag_seconds=4))[0] == 10
    assert removable_offset(now, LedgerPolicy(deletion_lag_seconds=0.5))[0] == 20


def test_a_log_above_its_bound_drops_only_as_many_copies_as_it_must() -> None:
    now = situation(ledgers(10, 20, 30, size_bytes=100), tier=(0, 30))
    policy = LedgerPolicy(deletion_lag_seconds=None, roll_size_bytes=50, local_size_bytes_max=150)

    assert removable_offset(now, policy)[0] == 20


def test_local_retention_by_size_drops_only_as_much_as_it_must() -> None:
    now = situation(ledgers(10, 20, 30, size_bytes=100))
    policy = LedgerPolicy(offload_size_bytes=None, retention_size_bytes=100)

    assert expired_offset(now, policy)[0] == 20
    assert expired_offset(now, LedgerPolicy(offload_size_bytes=None, retention_size_bytes=300))[0] == 0


def test_nothing_is_deleted_for_its_age_while_a_trigger_is_going_to_offload_it() -> None:
    now = situation(ledgers(10, 20))

    assert expired_offset(now, LedgerPolicy(retention_seconds=100))[0] == 0


def test_what_was_trimmed_on_the_tier_expires_by_whole_ledgers() -> None:
    for tier_first, until in ((9, 0), (10, 10), (19, 10), (20, 20)):
        assert expired_offset(situation(ledgers(10, 20), tier=(tier_first, 20)), NO_TRIGGER)[0] == until


def test_a_full_disk_hurries_only_what_the_log_acknowledges() -> None:
    policy = LedgerPolicy(
        offload_size_bytes=None, offload_age_seconds=1e9, roll_size_bytes=50, local_size_bytes_max=100
    )

    now = situation(ledgers(10, 20), committed_offset=15)

    assert due_offset(now, policy)[0] == 10


def test_a_full_disk_hurries_a_ledger_that_is_on_the_tier_in_part() -> None:
    policy = LedgerPolicy(
        offload_size_bytes=None, offload_age_seconds=1e9, roll_size_bytes=50, local_size_bytes_max=100
    )

    now = situation(ledgers(10, 20), tier=(0, 15), committed_offset=20)

    assert due_offset(now, policy)[0] == 20


@pytest.mark.parametrize(
    ("policy", "until"),
    [
        (LedgerPolicy(offload_size_bytes=100), 20),
        (LedgerPolicy(offload_size_bytes=199), 20),
        (LedgerPolicy(offload_size_bytes=200), 10),
        (LedgerPolicy(offload_size_bytes=None, offload_age_seconds=1000), 30),
        (LedgerPolicy(offload_size_bytes=None, offload_age_seconds=1000.001), 10),
        (LedgerPolicy(offload_size_bytes=None), 10),
    ],
)
def test_a_trigger_takes_what_is_above_its_threshold_and_nothing_again(
    policy: LedgerPolicy, until: int
) -> None:
    """The sum goes from the newest sealed ledger down. The oldest is on the tier already."""
    now = situation(ledgers(10, 20, 30), tier=(0, 10))

    assert due_offset(now, policy)[0] == until


@pytest.mark.parametrize(
    ("what", "broken"),
    [
        ("state", ledgers(10)[:1]),
        ("state", [ledgers(10)[1], ledgers(10)[0]]),
        ("first offset", [ledgers(10, 20)[0], *ledgers(10, 20, 30)[2:]]),
        (
            "ledger id",
            [ledgers(10)[0], LocalLedger(ledger_id=0, first_offset=10, next_offset=10, size_bytes=0)],
        ),
        ("records", ledgers(0)),
        ("size", ledgers(10, size_bytes=0)),
        ("size", [LocalLedger(ledger_id=0, first_offset=0, next_offset=0, size_bytes=5)]),
        ("ledgers", []),
    ],
)
def test_ledgers_that_are_no_run_are_corrupt(what: str, broken: list[LocalLedger]) -> None:
    with pytest.raises(Corrupt, match=what):
        check_ledgers(broken, where="log", stream=STREAM)


def test_a_plan_gives_each_ledger_one_action_and_a_reason() -> None:
    now = situation(ledgers(10, 20, 30, 40), tier=(10, 30), seen=[(20, 0), (30, NOW_MS)])

    plan = plan_of(now, LedgerPolicy(deletion_lag_seconds=60))

    assert [(row.action, row.reason) for row in plan.ledgers] == [
        (LedgerAction.DELETE, "trimmed on the tier"),
        (LedgerAction.DELETE_LOCAL, "on the tier for 1000 s"),
        (LedgerAction.KEEP, "on the tier, kept for the deletion lag"),
        (LedgerAction.OFFLOAD, "100 bytes are sealed, above 0"),
        (LedgerAction.KEEP, "open"),
    ]
