"""`offload rebuild`: it restores a lost manifest from the data, and invents nothing."""

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
    """A source of eight segments."""
    write_stream(tmp_path / "source" / STREAM, simple_chunks(40), segment_chunks=5)
    return tmp_path / "source"


@pytest.fixture
def tier(source: Path, tmp_path: Path) -> Path:
    sync(source, tmp_path / "tier")
    return tmp_path / "tier"


def fragments(tier: Path, stream: str = STREAM) -> list[Path]:
    return sorted((tier / stream / "data").iterdir())


def test_a_rebuild_restores_every_message_and_sync_continues(source: Path, tier: Path) -> None:
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


def test_a_rebuild_needs_confirmation_that_writers_are_stopped(tier: Path) -> None:
    lose_roots(tier)
    before = contents(tier)

    ran = offload("rebuild", tier, STREAM)

    assert ran.code == 2
    assert "Stop every writer, sync and sweep" in ran.error
    assert contents(tier) == before


def test_a_dry_run_shows_the_whole_rebuild_and_writes_nothing(tier: Path) -> None:
    lose_roots(tier)
    before = contents(tier)

    ran = offload("rebuild", tier, STREAM, "--dry-run", "--json")

    assert ran.code == 0
    document = ran.document
    assert (document["committed"], document["version"], document["holes"]) == (False, None, [])
    assert document["fragments"] == len(fragments(tier))
    assert "would rebuild" in offload("rebuild", tier, STREAM, "--dry-run").text
    assert contents(tier) == before


def test_a_rebuild_leaves_a_sound_stream_unchanged(tier: Path) -> None:
    ran = offload("rebuild", tier, STREAM, "--yes")

    assert ran.code == 1
    assert "nothing is lost" in ran.error


def test_a_rebuild_reports_a_gap_with_both_ways_out(source: Path, tier: Path) -> None:
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
    sync(source, tier)  # the first way: copy the missing data
    assert verify(tier)[1]["damages"] == []


def test_a_cron_of_sync_and_sweep_costs_nothing_before_a_rebuild(source: Path, tier: Path) -> None:
    """Meanwhile the source loses its oldest segments, so the tier has the only copy of them."""
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


def test_a_rebuild_joins_a_restarted_stream_to_its_lost_history(source: Path, tier: Path) -> None:
    """An older release began the stream again at the offset at which the source began by then."""
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
    assert "epoch" not in asked.text
    assert ", writers' epochs 1 to " in offload("rebuild", tier, STREAM, "--dry-run", "--verbose").text
    [command] = [line.partition(": ")[2] for line in asked.lines if "to bring it back" in line]
    program, *words = shlex.split(command)
    assert program == "offload"
    assert offload(*words, "--yes").code == 0
    assert offload("read", tier, STREAM).stdout == before
    assert offload("sweep", tier, "--grace", "0").code == 0
    assert verify(tier)[1]["damages"] == []
    sync(source, tier)


def pasted(text: str) -> list[str]:
    """Return the arguments of the command that an error prints, as a shell parses them."""
    return shlex.split(text[text.rindex("offload rebuild ") :].partition("`")[0])[1:]


def test_the_printed_commands_restore_what_is_lost(source: Path, tmp_path: Path) -> None:
    """The folder has spaces and quotes in its name, and a stream name begins with a dash."""
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


@pytest.mark.parametrize("left", [None, b"", b"junk"], ids=["gone", "empty", "junk"])
def test_a_sync_names_once_the_command_that_restores_the_tiers_anchor(
    source: Path, tier: Path, left: bytes | None
) -> None:
    write_stream(source / "bills", simple_chunks(2))
    (tier / "tier.anchor").unlink()
    if left is not None:
        (tier / "tier.anchor").write_bytes(left)

    ran = offload("sync", f"rabbitmq://{source}", tier)

    assert (ran.code, ran.stdout) == (1, b"")
    assert len(ran.stderr.splitlines()) == 1
    assert pasted(ran.error) == ["rebuild", tier.as_uri()]
    assert offload(*pasted(ran.error)).code == 0
    sync(source, tier)


def test_every_command_names_the_command_that_replaces_a_damaged_anchor_of_a_stream(
    source: Path, tier: Path
) -> None:
    anchor = tier / STREAM / "stream.anchor"
    anchor.unlink()
    anchor.write_bytes(b"junk")

    for command in (("sync", f"rabbitmq://{source}", tier), ("ls", tier), ("read", tier, STREAM)):
        ran = offload(*command)
        assert (ran.code, pasted(ran.error)) == (1, ["rebuild", tier.as_uri(), STREAM])

    assert offload("rebuild", tier, STREAM, "--yes").code == 0
    sync(source, tier)


def test_a_sound_anchor_of_another_stream_is_not_called_lost(source: Path, tier: Path) -> None:
    """A rebuild would refuse to replace it, so no error names that command."""
    write_stream(source / "bills", simple_chunks(2))
    sync(source, tier)
    anchor = tier / STREAM / "stream.anchor"
    anchor.unlink()
    anchor.write_bytes((tier / "bills" / "stream.anchor").read_bytes())

    for command in (("ls", tier), ("read", tier, STREAM)):
        ran = offload(*command)
        assert (ran.code, "offload rebuild" in ran.error) == (1, False)


def test_verify_reports_a_tier_without_anchors(tier: Path) -> None:
    (tier / "tier.anchor").unlink()
    (tier / STREAM / "stream.anchor").unlink()

    ran = offload("verify", tier)

    assert ran.code == 1
    assert [pasted(line) for line in ran.lines if line.startswith("DAMAGE")] == [
        ["rebuild", tier.as_uri()],
        ["rebuild", tier.as_uri(), STREAM],
    ]


def test_a_rebuild_restores_lost_anchors(tier: Path) -> None:
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


def test_a_rebuild_killed_at_any_call_completes_when_run_again(tier: Path) -> None:
    """Each round uses a tier that has just lost its roots."""
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
