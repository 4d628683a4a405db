"""`offload rebuild`: a lost manifest comes back from the data, and nothing is invented."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from command_line import SEED, bodies, calls_of, contents, finish, offload, start_dying, sync, verify
from osiris_writer import simple_chunks, write_stream

STREAM = "orders"


def lose_roots(tier: Path, stream: str = STREAM) -> None:
    for path in (tier / stream / "metadata").glob("root.*"):
        path.unlink()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Eight segments."""
    write_stream(tmp_path / "source" / STREAM, simple_chunks(40), segment_chunks=5)
    return tmp_path / "source"


@pytest.fixture
def tier(source: Path, tmp_path: Path) -> Path:
    sync(source, tmp_path / "tier")
    return tmp_path / "tier"


def fragments(tier: Path, stream: str = STREAM) -> list[Path]:
    return sorted((tier / stream / "data").iterdir())


def test_every_message_is_back_and_sync_goes_on(source: Path, tier: Path) -> None:
    before = bodies(tier, STREAM)
    lose_roots(tier)
    assert offload("read", tier, STREAM, "--format", "body").code == 1

    ran = offload("rebuild", tier, STREAM, "--yes")

    assert ran.code == 0
    assert "rebuilt [0, " in ran.text
    assert bodies(tier, STREAM) == before
    assert verify(tier)[1]["damages"] == []
    again = contents(tier)
    sync(source, tier)
    assert contents(tier) == again, "there was nothing new"


def test_without_a_word_that_writers_are_stopped_nothing_is_done(tier: Path) -> None:
    lose_roots(tier)
    before = contents(tier)

    ran = offload("rebuild", tier, STREAM)

    assert ran.code == 2
    assert "No writer, no sync and no sweep" in ran.error
    assert contents(tier) == before


def test_a_dry_run_shows_it_all_and_writes_nothing(tier: Path) -> None:
    lose_roots(tier)
    before = contents(tier)

    ran = offload("rebuild", tier, STREAM, "--dry-run", "--json")

    assert ran.code == 0
    document = ran.document
    assert (document["committed"], document["version"], document["holes"]) == (False, None, [])
    assert document["fragments"] == len(fragments(tier))
    assert "would rebuild" in offload("rebuild", tier, STREAM, "--dry-run").text
    assert contents(tier) == before


def test_a_sound_stream_is_left_alone(tier: Path) -> None:
    ran = offload("rebuild", tier, STREAM, "--yes")

    assert ran.code == 1
    assert "nothing is lost" in ran.error


def test_a_hole_is_named_with_both_ways_out(source: Path, tier: Path) -> None:
    lose_roots(tier)
    paths = fragments(tier)
    assert len(paths) > 2
    gone, behind = paths[1], int(paths[2].name[:20])
    hole = int(gone.name[:20])
    gone.unlink()
    before = contents(tier)

    ran = offload("rebuild", tier, STREAM, "--yes")

    assert ran.code == 1
    assert f"HOLE no fragment holds offsets [{hole}, {behind})" in ran.text
    assert f"--end-before {hole}" in ran.text
    assert f"--accept-holes-before {behind}" in ran.text
    assert contents(tier) == before

    assert offload("rebuild", tier, STREAM, "--yes", "--end-before", hole).code == 0
    sync(source, tier)  # copies what is missing
    assert verify(tier)[1]["damages"] == []


def test_killed_at_any_call_and_run_again_it_ends_right(tier: Path) -> None:
    """Each time on a tier whose roots are lost anew."""
    before = bodies(tier, STREAM)
    lose_roots(tier)
    calls = calls_of(finish(start_dying(0, "rebuild", tier, STREAM, "--yes")))
    print(f"OFFLOAD_SEED={SEED}")
    chance = random.Random(f"{SEED} rebuild")
    for _ in range(3):
        lose_roots(tier)
        killed = finish(start_dying(chance.randint(1, calls), "rebuild", tier, STREAM, "--yes"))
        assert killed.code in (0, -signal.SIGKILL), killed.stderr
        ran = offload("rebuild", tier, STREAM, "--yes")
        assert ran.code == 0 or "nothing is lost" in ran.error
        assert bodies(tier, STREAM) == before
    assert verify(tier)[1]["damages"] == []
