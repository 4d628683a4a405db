"""Values that a caller of managed ledgers gets wrong: each is refused at once, with what is right."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from managed_world import World, bodies, fill, run

from offload.errors import Misuse, Throttled
from offload.managed.policy import LedgerPolicy, WhenFull
from offload.streams.choice import ReadPriority


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("when_full", "rejct", "when_full is one of 'block', 'reject', 'grow', not 'rejct'"),
        ("when_full", None, "when_full is one of"),
        ("read_priority", "tier", "read_priority is one of 'local-first', 'tier-first'"),
        ("roll_size_bytes", 1.5, "roll_size_bytes is a finite whole number of bytes"),
        ("roll_size_bytes", "64MiB", "roll_size_bytes is a finite whole number of bytes"),
        ("roll_size_bytes", None, "roll_size_bytes is a number of bytes"),
        ("local_size_bytes_max", True, "local_size_bytes_max is a finite whole number of bytes"),
        ("roll_seconds", "1h", "roll_seconds is a finite number of seconds"),
        ("retention_seconds", timedelta(hours=1), "retention_seconds is a finite number of seconds"),
        ("deletion_lag_seconds", float("nan"), "deletion_lag_seconds is a finite number of seconds"),
    ],
)
def test_an_impossible_value_of_a_policy_is_misuse_that_names_field_and_unit(
    field: str, value: Any, expected: str
) -> None:
    with pytest.raises(Misuse, match=expected):
        LedgerPolicy(**{field: value})


def test_a_choice_given_as_text_does_what_the_choice_does() -> None:
    given: Any = {"when_full": "reject", "read_priority": "tier-first"}
    policy = LedgerPolicy(roll_size_bytes=100, local_size_bytes_max=200, roll_seconds=None, **given)
    assert policy.when_full is WhenFull.REJECT
    assert policy.read_priority is ReadPriority.TIER_FIRST

    async def scenario(world: World) -> None:
        ledger = await world.open(policy)
        with pytest.raises(Throttled):
            await fill(ledger, 10)
        assert await bodies(ledger)
        await ledger.close()

    run(scenario)
