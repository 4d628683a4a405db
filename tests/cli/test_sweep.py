"""`offload sweep` on folders: it deletes what crashes, trims and deletions left, and nothing else."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path
from uuid import UUID

import pytest
import small_tier
from campaign import CAMPAIGN
from command_line import (
    SEED,
    bodies,
    calls_of,
    contents,
    finish,
    formula,
    keys,
    offload,
    start_dying,
    sync,
    verify,
)
from osiris_data import DATA

from offload.cli.sweep import duration_text
from offload.formats.keys import StreamKeys

REPORT = ["dry_run", "grace_seconds", "streams", "strangers", "strangers_count", "trials_deleted"]
STREAM_REPORT = [
    "stream", "state", "version", "listed", "stays", "waits", "waits_seconds", "deleted", "notes", "errors",
]  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier with the real streams. Tests change copies of it."""
    folder = tmp_path_factory.mktemp("sound") / "tier"
    sync(DATA, folder)
    return folder


@pytest.fixture
def tier(sound: Path, tmp_path: Path) -> Path:
    """A tier that a test may change."""
    return shutil.copytree(sound, tmp_path / "tier")


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A tier on which two writers crashed. The attempt of one was abandoned. That of the other still runs."""
    folder = tmp_path / "crashed"
    for key, data in small_tier.make(tmp_path / "source").items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(data)
    return folder


def garbage(tier: Path, stream: str, count: int) -> set[str]:
    """Return fragments of unknown attempts."""
    names = {StreamKeys(stream).fragment(number, UUID(int=number + 1)) for number in range(count)}
    for name in names:
        (tier / name).write_bytes(b"left by a crash")
    return names


def sightings(tier: Path) -> list[Path]:
    return sorted(tier.rglob("*.sighting"))


def test_a_sweep_leaves_a_tier_without_garbage_unchanged(tier: Path) -> None:
    before = contents(tier)

    ran = offload("sweep", tier, "--grace", "0")

    assert ran.code == 0
    assert contents(tier) == before
    assert [line.rpartition("; ")[2] for line in ran.lines] == ["nothing to delete"] * 3


def test_a_sweep_deletes_what_a_crash_left_and_keeps_running_attempts(crashed: Path) -> None:
    _, document = verify(crashed)
    rows = {row["object"]: row["reason"] for row in document["unreferenced"]}
    dropped = {key for key, reason in rows.items() if "given up" in reason}
    assert len(dropped) == 1
    before = keys(crashed)

    ran = offload("sweep", crashed, "--grace", "0", "--json")

    assert ran.code == 0
    assert before - keys(crashed) == dropped
    assert list(ran.document) == REPORT
    marked = next(row for row in ran.document["streams"] if row["stream"] == "marked")
    assert list(marked) == STREAM_REPORT
    assert list(marked["deleted"]) == ["its attempt was dropped"]
    assert marked["deleted"]["its attempt was dropped"]["objects"] == 1
    assert marked["stays"]["its attempt runs"]["objects"] == 1
    assert verify(crashed)[0] == 0


def test_a_sweep_deletes_trimmed_data_and_the_rest_stays_readable(tier: Path) -> None:
    whole = bodies(tier, "batches")
    assert offload("trim", tier, "batches", "--before", "6937").code == 0

    ran = offload("sweep", tier, "batches", "--grace", "0")

    assert ran.code == 0
    assert ran.lines[1].endswith(": trimmed")
    assert len([*tier.glob("batches/data/*")]) == 2
    left = bodies(tier, "batches")
    assert left == whole[-len(left) :]
    assert verify(tier)[1]["unreferenced"] == []


def test_a_sweep_keeps_the_tombstone_and_the_anchor_of_a_deleted_stream(tier: Path) -> None:
    assert offload("delete", tier, "tiny", "--yes").code == 0

    ran = offload("sweep", tier, "--grace", "0")

    assert ran.code == 0
    assert [path.name for path in sorted((tier / "tiny").rglob("*")) if path.is_file()] == [
        max(tier.glob("tiny/metadata/*")).name,
        "stream.anchor",
    ]
    assert ": the stream was deleted" in ran.text
    assert offload("sweep", tier, "tiny", "--grace", "0").lines[-1].endswith("nothing to delete")
    sync(DATA / "tiny", tier)
    assert bodies(tier, "tiny") == formula(10)


def test_the_second_sweep_after_the_grace_period_deletes(tier: Path) -> None:
    names = garbage(tier, "filtered", 3)

    first = offload("sweep", tier, "--grace", "1s")
    assert names <= keys(tier)
    assert "kept for up to 1s more: 3 objects" in first.text
    [note] = sightings(tier)
    reasons = {row["object"]: row["reason"] for row in verify(tier)[1]["unreferenced"]}
    assert reasons[str(note.relative_to(tier))].startswith("a sweep's note")
    time.sleep(1.01)
    second = offload("sweep", tier, "--grace", "1s")

    assert "deleted 3 objects" in second.text
    assert not names & keys(tier)
    assert sightings(tier) == []


def test_a_sweep_keeps_objects_for_an_hour_by_default(tier: Path) -> None:
    names = garbage(tier, "filtered", 2)

    for _ in range(2):
        assert "kept for up to 60m more: 2 objects" in offload("sweep", tier).text

    assert names <= keys(tier)
    assert len(sightings(tier)) == 1


def test_a_dry_run_lists_objects_and_changes_nothing(tier: Path) -> None:
    [name] = garbage(tier, "filtered", 1)
    before = contents(tier)

    later = offload("sweep", tier, "--dry-run", "-v")
    now = offload("sweep", tier, "--dry-run", "--grace", "0", "--verbose")
    counted = offload("sweep", tier, "--dry-run", "--grace", "0")
    document = offload("sweep", tier, "--dry-run", "--json").document

    assert later.lines[0] == f"in 60m: {name}, 15 B: its attempt was dropped"
    assert now.lines[0] == f"now: {name}, 15 B: its attempt was dropped"
    assert "  would delete 1 object, 15 B: its attempt was dropped" in now.lines
    assert counted.lines == now.lines[1:]
    assert [row["object"] for row in document["objects"]] == [name]
    assert list(document["objects"][0]) == ["object", "bytes", "reason", "waits_seconds"]
    assert contents(tier) == before


def test_a_sweep_keeps_and_reports_foreign_objects(tier: Path) -> None:
    strangers = ["README", "photos/cat.jpg", "tiny/data/notes.txt", "tiny/metadata/root.old", "tier.probe.1"]
    for name in strangers:
        (tier / name).parent.mkdir(exist_ok=True)
        (tier / name).write_text("not yours")

    ran = offload("sweep", tier, "--grace", "0", "-v")

    assert {*strangers} <= keys(tier)
    told = [line.split(": ")[0].removeprefix("left alone ") for line in ran.lines if "left alone" in line]
    assert sorted(told) == sorted(["README", "photos/", *strangers[2:]])
    assert ran.code == 0


def test_a_sweep_of_one_stream_leaves_the_others(tier: Path) -> None:
    kept, gone = garbage(tier, "batches", 1), garbage(tier, "tiny", 1)

    assert offload("sweep", tier, "tiny", "--grace", "0").code == 0

    assert kept <= keys(tier)
    assert not gone & keys(tier)
    assert "has no stream 'orders'" in offload("sweep", tier, "orders").error


def test_a_sweep_deletes_nothing_of_a_stream_that_lost_roots(tier: Path) -> None:
    names = garbage(tier, "tiny", 1)
    for root in tier.glob("tiny/metadata/*"):
        root.unlink()
    before = contents(tier)

    ran = offload("sweep", tier, "tiny", "--grace", "0")

    assert ran.code == 1
    assert names <= keys(tier)
    assert contents(tier) == before
    assert ran.text.endswith("; nothing was deleted\n")
    assert "all roots of the manifest are lost" in ran.error
    assert f"offload rebuild file://{tier} tiny" in ran.error


def test_a_sweep_reports_a_damaged_root_and_deletes_nothing_of_its_stream(tier: Path) -> None:
    kept, gone = garbage(tier, "tiny", 1), garbage(tier, "filtered", 1)
    max(tier.glob("tiny/metadata/*")).write_bytes(b"damaged")

    ran = offload("sweep", tier, "--grace", "0")

    assert ran.code == 1
    assert "tiny/metadata/root." in ran.error
    assert kept <= keys(tier)
    assert not gone & keys(tier)


@pytest.mark.parametrize("grace", ["1", "-1h", "soon", ""])
def test_a_malformed_grace_period_is_an_error(tier: Path, grace: str) -> None:
    ran = offload("sweep", tier, f"--grace={grace}")

    assert ran.code == 2
    assert "--grace" in ran.error


def test_a_sweep_killed_at_any_call_completes_when_run_again(tier: Path, tmp_path: Path) -> None:
    """After each kill every referenced object exists, and in the end every message can be read."""
    assert offload("trim", tier, "batches", "--before", "6937").code == 0
    named = keys(tier) - {row["object"] for row in verify(tier)[1]["unreferenced"]}
    names = garbage(tier, "filtered", 200)
    copy = shutil.copytree(tier, tmp_path / "copy")
    calls = calls_of(finish(start_dying(0, "sweep", copy, "--grace", "0")))
    print(f"OFFLOAD_SEED={SEED}")
    chance = random.Random(f"{SEED} sweep")

    left = []
    for _ in range(3 if CAMPAIGN else 2):
        killed = finish(start_dying(chance.randint(1, calls), "sweep", tier, "--grace", "0"))
        assert killed.code in (0, -signal.SIGKILL), killed.stderr  # a deleted object needs no second call
        assert named <= keys(tier)
        left.append(len(names & keys(tier)))
    assert offload("sweep", tier, "--grace", "0").code == 0

    assert left == sorted(left, reverse=True)
    assert not names & keys(tier)
    assert verify(tier) == (0, verify(tier)[1] | {"damages": [], "unreferenced": []})
    assert len(bodies(tier, "filtered")) == 20_000


def test_durations_are_rounded_up() -> None:
    shown = [duration_text(seconds) for seconds in (0.2, 59, 120, 121, 3600, 7200, 7201, 172_800, 172_801)]

    assert shown == ["1s", "59s", "120s", "3m", "60m", "120m", "3h", "48h", "3d"]
