"""Offsets have 64 bits. More digits give a result or one error line, never a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import contents, offload, sync
from osiris_data import DATA


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """A tier with ten messages, offsets 0 to 9."""
    sync(DATA / "tiny", tmp_path / "tier")
    return tmp_path / "tier"


@pytest.mark.parametrize("offset", [2**64, 10**20, 10**40])
def test_read_refuses_an_offset_beyond_64_bits(tier: Path, offset: int) -> None:
    ran = offload("read", tier, "tiny", "--from", offset)

    assert (ran.code, ran.stdout) == (2, b"")
    assert ran.error == f"offload: '{offset}' is not an offset: the greatest is {2**64 - 1}"


@pytest.mark.parametrize("offset", [2**64 - 1, 2**64, 10**40])
def test_a_trim_before_an_offset_beyond_the_end_deletes_everything(tier: Path, offset: int) -> None:
    before = contents(tier)

    ran = offload("trim", tier, "tiny", "--before", offset, "--dry-run", "--json")

    assert (ran.code, ran.stderr) == (0, "")
    assert (ran.document["first_offset"], ran.document["dropped"]["next_offset"]) == (10, 10)
    assert contents(tier) == before
    assert offload("trim", tier, "tiny", "--before", offset).code == 0
    assert offload("read", tier, "tiny").stdout == b""


@pytest.mark.parametrize("start", ["@" + "9" * 18, f"@-{2**63}", f"@{2**63 - 1}"])
def test_read_accepts_times_before_and_after_all_messages(tier: Path, start: str) -> None:
    ran = offload("read", tier, "tiny", "--from", start)

    is_before = start.startswith("@-")
    assert (ran.code, len(ran.objects)) == (0, 10 if is_before else 0)
    assert ran.stderr == "" if is_before else ran.error.startswith("note: nothing to read from ")
