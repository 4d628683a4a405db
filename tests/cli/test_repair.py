"""`offload repair`: its output and exit codes, with the files of a broker and with a copy of the tier."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import offload
from osiris_data import DATA as FIXTURES

SOURCE = f"rabbitmq://{FIXTURES / 'filtered'}"


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """Return a tier with a stream of four fragments, of which one has a flipped byte and one is lost."""
    tier = tmp_path / "tier"
    assert offload("sync", SOURCE, tier).code == 0
    shutil.copytree(tier, tmp_path / "copy")
    flipped, lost = fragments(tier)[1:3]
    raw = bytearray(flipped.read_bytes())
    raw[5000] ^= 1
    flipped.write_bytes(raw)
    lost.unlink()
    return tier


def fragments(tier: Path) -> list[Path]:
    return sorted((tier / "filtered" / "data").glob("*.fragment"))


@pytest.mark.parametrize("place", ["source", "copy"])
def test_damage_is_repaired_and_the_tier_is_sound(tier: Path, place: str) -> None:
    url = SOURCE if place == "source" else str(tier.parent / "copy")

    ran = offload("repair", tier, "filtered", "--from", url)

    assert (ran.code, ran.stderr) == (0, "")
    assert ran.lines[1::2] == [
        f"repaired filtered: [12500, 18750) from {url}: its totals and the chunk behind it are the same",
        f"repaired filtered: [6250, 12500) from {url}: each chunk is that of its index",
    ]
    assert all(line.startswith("DAMAGE stream 'filtered': filtered/data/") for line in ran.lines[:4:2])
    assert ran.lines[-1] == "2 damages, 2 repaired"
    verified = offload("verify", tier)
    assert verified.code == 0
    assert "damaged, and a copy of its records is in its place; a sweep deletes it" in verified.text
    assert offload("repair", tier, "filtered", "--from", url).lines == ["no damage"]


def test_a_dry_run_says_what_can_be_repaired(tier: Path) -> None:
    ran = offload("repair", tier, "filtered", "--from", SOURCE, "--dry-run", "--json")

    assert ran.code == 0
    assert [(row["first_offset"], row["compared"], row["copy"], row["error"]) for row in ran.objects] == [
        (12500, "chunk-behind", None, None),
        (6250, "index", None, None),
    ]
    assert offload("verify", tier).code == 1


def test_records_that_the_place_lacks_are_an_error_and_exit_code_1(tier: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broker" / "filtered"
    folder.mkdir(parents=True)
    for each in (FIXTURES / "filtered").glob("*12500.*"):
        shutil.copy(each, folder)

    ran = offload("repair", tier, "filtered", "--from", f"rabbitmq://{folder}")

    assert ran.code == 1
    assert ran.lines[-1] == "2 damages, 1 repaired"
    assert ran.error == (
        "offload: the records [6250, 12500) are needed, and the other place has [12500, 18750)"
    )


def test_the_tier_itself_is_refused_as_the_other_place(tier: Path) -> None:
    ran = offload("repair", tier, "filtered", "--from", tier)

    assert (ran.code, ran.stdout) == (1, b"")
    assert "name another place" in ran.error
