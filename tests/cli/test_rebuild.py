"""`offload rebuild`: a lost manifest comes back from the data, and nothing is invented."""

from __future__ import annotations

import random
import shlex
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


def test_a_cron_of_sync_and_sweep_costs_nothing_before_a_rebuild(source: Path, tier: Path) -> None:
    """The source meanwhile drops its oldest segments: the tier has the only copy of them."""
    before, held = offload("read", tier, STREAM).stdout, fragments(tier)
    lose_roots(tier)

    for _ in range(3):
        oldest = min((source / STREAM).glob("*.segment"))
        oldest.unlink()
        oldest.with_suffix(".index").unlink()
        for command in (
            ("sync", f"rabbitmq://{source}", tier),
            ("sweep", tier, "--grace", "0"),
            ("verify", tier),
        ):
            ran = offload(*command)
            assert ran.code == 1, command
            assert f"offload rebuild file://{tier} {STREAM}" in ran.text + ran.stderr, command

    assert fragments(tier) == held
    assert offload("rebuild", tier, STREAM, "--yes").code == 0
    assert offload("read", tier, STREAM).stdout == before
    sync(source, tier)
    assert verify(tier)[1]["damages"] == []


def test_a_stream_that_was_begun_again_is_joined_to_its_lost_history(source: Path, tier: Path) -> None:
    """As an older release did it: it began the stream again where the source begins by then."""
    before = offload("read", tier, STREAM).stdout
    lose_roots(tier)
    lost = (tier / STREAM / "data").rename(tier.parent / "lost")
    for oldest in sorted((source / STREAM).glob("*.segment"))[:3]:
        oldest.unlink()
        oldest.with_suffix(".index").unlink()
    sync(source, tier)
    for path in lost.iterdir():
        path.rename(tier / STREAM / "data" / path.name)

    asked = offload("rebuild", tier, STREAM, "--yes")

    assert asked.code == 1
    assert "data of 2 histories was found" in asked.text
    assert ", which the manifest names: " in asked.text
    [command] = [line.partition(": ")[2] for line in asked.lines if "to bring it back" in line]
    program, *words = shlex.split(command)
    assert program == "offload"
    assert offload(*words, "--yes").code == 0
    assert offload("read", tier, STREAM).stdout == before
    assert offload("sweep", tier, "--grace", "0").code == 0
    assert verify(tier)[1]["damages"] == []
    sync(source, tier)


def pasted(text: str) -> list[str]:
    """The arguments of the command that an error prints, as a shell takes them."""
    return shlex.split(text[text.rindex("offload rebuild ") :].partition("`")[0])[1:]


def test_the_printed_commands_restore_what_is_lost(source: Path, tmp_path: Path) -> None:
    """The place has spaces and quotes in its name, and a stream begins with a dash."""
    tier, stream = tmp_path / "a tier's place", "-x y"
    (source / STREAM).rename(source / stream)
    sync(source, tier)
    [folder] = {path.parent for path in tier.rglob("stream.anchor")}
    before = offload("read", tier, "--", stream).stdout

    (tier / "tier.anchor").unlink()
    (folder / "stream.anchor").unlink()
    for command in ("ls", "ls"):
        ran = offload(command, tier)
        assert ran.code == 1
        assert offload(pasted(ran.error)[0], "--yes", *pasted(ran.error)[1:]).code == 0
    lose_roots(tier, folder.name)
    ran = offload("ls", tier)
    assert offload(pasted(ran.stderr.strip())[0], "--yes", *pasted(ran.stderr.strip())[1:]).code == 0

    assert offload("read", tier, "--", stream).stdout == before


def test_a_verify_finds_a_tier_that_lost_all_anchors(tier: Path) -> None:
    (tier / "tier.anchor").unlink()
    (tier / STREAM / "stream.anchor").unlink()

    ran = offload("verify", tier)

    assert ran.code == 1
    assert [pasted(line) for line in ran.lines if line.startswith("DAMAGE")] == [
        ["rebuild", tier.as_uri()],
        ["rebuild", tier.as_uri(), STREAM],
    ]


def test_lost_anchors_come_back(tier: Path) -> None:
    before = offload("read", tier, STREAM).stdout
    (tier / "tier.anchor").unlink()
    (tier / STREAM / "stream.anchor").unlink()

    of_tier, of_stream = offload("rebuild", tier), offload("rebuild", tier, STREAM, "--yes")

    assert (of_tier.code, of_stream.code) == (0, 0)
    assert "its anchor was lost, and is restored" in of_tier.text
    assert "its anchor was lost and is restored" in of_stream.text
    assert offload("read", tier, STREAM).stdout == before
    assert verify(tier)[1]["damages"] == []
    assert [offload("rebuild", tier).code, offload("rebuild", tier, STREAM, "--yes").code] == [1, 1]


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
