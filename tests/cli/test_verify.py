"""`offload verify` as a command: its document, its exit code, and its verdict while a sync runs."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from campaign import CAMPAIGN
from command_line import SOURCE, bodies, contents, finish, keys, offload, read, start, sync, verify
from osiris_data import DATA
from osiris_writer import simple_chunks, write_stream

from offload.cli.app import run
from offload.cli.kit.ending import Interrupted
from offload.ground.errors import TryAgain
from offload.upkeep.verify.stream import StreamJudge

DOCUMENT = ["level", "streams", "objects", "bytes", "not_compared", "not_opened", "judged_to", "damages"]
DOCUMENT += ["unchecked", "unreferenced"]

TIERS_MIN = 3 if CAMPAIGN else 1
"""So many tiers are made beside `verify`, or more."""

BESIDE_A_SYNC = (
    "its attempt runs",
    "of a trial of the store that runs",
    "nothing was ever committed to this stream",  # between its anchor and its first root
)
"""How the reasons begin by which no manifest names an object while a sync runs."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier with the real streams. Tests damage copies of it."""
    folder = tmp_path_factory.mktemp("sound") / "tier"
    sync(DATA, folder)
    return folder


@pytest.fixture
def tier(sound: Path, tmp_path: Path) -> Path:
    """A tier that a test may damage."""
    return shutil.copytree(sound, tmp_path / "tier")


def flip(path: Path, position: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1 << bit
    path.write_bytes(raw)


def test_a_sound_tier_passes(tier: Path) -> None:
    code, document = verify(tier)

    assert code == 0
    assert list(document) == DOCUMENT
    assert document["streams"] == 3
    assert document["objects"] == len(keys(tier))
    assert document["bytes"] == sum(len(contents(tier)[key][0]) for key in keys(tier))
    assert (document["damages"], document["unreferenced"]) == ([], [])


def test_a_damage_has_exactly_these_keys(tier: Path) -> None:
    victim = min(tier.glob("filtered/data/*"))
    flip(victim, 60_000, 5)

    code, document = verify(tier)

    assert code == 1
    [damage] = document["damages"]
    assert list(damage) == ["stream", "object", "position", "what", "expected", "found"]
    assert (damage["stream"], damage["object"]) == ("filtered", str(victim.relative_to(tier)))
    assert 0 < damage["position"] <= 60_000
    assert damage["expected"] != damage["found"]


def test_an_unreferenced_object_has_exactly_these_keys_and_is_not_damage(tier: Path) -> None:
    (tier / "README").write_text("hello")

    code, document = verify(tier)

    assert code == 0
    [row] = document["unreferenced"]
    assert list(row) == ["object", "attempt", "reason"]
    assert (row["object"], row["attempt"]) == ("README", None)


def test_verify_finds_a_flipped_bit_anywhere_in_real_fragments(sound: Path, tier: Path) -> None:
    choose = random.Random(1)
    fragments = sorted(tier.rglob("*.fragment"))
    for _ in range(40):
        victim = choose.choice(fragments)
        position, bit = choose.randrange(victim.stat().st_size), choose.randrange(8)
        flip(victim, position, bit)

        code, document = verify(tier, victim.relative_to(tier).parts[0])

        assert code == 1, (victim.name, position, bit)
        found = [damage["object"] for damage in document["damages"]]
        assert found == [str(victim.relative_to(tier))], (position, bit)
        flip(victim, position, bit)
    assert verify(tier)[0] == 0


def test_verify_prints_a_line_per_damage_and_a_verdict(tier: Path) -> None:
    assert offload("verify", tier).lines[-1].endswith("all of them sound")
    flip(min(tier.glob("tiny/data/*")), 100)
    (tier / "README").write_text("hello")

    ran = offload("verify", tier)

    damage, unreferenced, verdict = ran.lines
    assert ran.code == 1
    assert damage.startswith("DAMAGE stream 'tiny': tiny/data/")
    assert unreferenced.startswith("unreferenced README: ")
    assert verdict.endswith("1 damaged")


def test_verify_counts_the_objects_of_one_reason_and_names_them_if_asked(tier: Path) -> None:
    strangers = [tier / f"note{number}" for number in range(3)]
    for path in strangers:
        path.write_text("hello")

    *summary, verdict = offload("verify", tier).lines
    *each, same_verdict = offload("verify", tier, "-v").lines

    assert summary == ["unreferenced 3 objects: not an object of this format; no command touches it"]
    assert [line.split(":")[0] for line in each] == [f"unreferenced {path.name}" for path in strangers]
    assert verdict == same_verdict


def test_verify_checks_one_stream_alone(tier: Path) -> None:
    flip(min(tier.glob("tiny/data/*")), 100)

    assert verify(tier, "batches")[0] == 0
    assert verify(tier, "tiny")[0] == 1
    assert offload("verify", tier, "orders").code == 1


def test_verify_says_what_it_did_not_compare(tier: Path) -> None:
    """Folders keep no checksums. So `verify` does not find a flipped bit, and claims no comparison."""
    flip(min(tier.glob("tiny/data/*")), 1000)

    ran = offload("verify", tier, "tiny", "--level", "checksum")
    code, document = verify(tier, "--level", "checksum")

    assert (ran.code, code) == (0, 0)
    assert ran.lines[0] == "1 object was not compared: the store keeps no CRC-32C"
    assert ran.lines[1].endswith(
        "all there, with the right sizes and with those checksums that the store keeps"
    )
    assert document["not_compared"] == len([*tier.rglob("*.fragment")])


def test_an_error_says_what_was_found_and_how_to_continue(
    tier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_, last = sorted(tier.rglob("*.fragment"))
    flip(first, 1000)

    async def fail(self: StreamJudge, size_bytes: int, key: str, *more: Any) -> None:
        if key.endswith(last.name):
            raise TryAgain("the store is busy")
        await check(self, size_bytes, key, *more)

    check = StreamJudge._check_named
    with monkeypatch.context() as patch:
        patch.setattr(StreamJudge, "_check_named", fail)
        ran = offload("verify", tier, "--json")

    assert ran.code == 1
    note, error = ran.stderr.splitlines()
    judged_to = ran.document["judged_to"]
    assert note.endswith(f"resume with --after {judged_to}")
    assert error == "offload: the store is busy"
    assert [damage["object"] for damage in ran.document["damages"]] == [str(first.relative_to(tier))]
    assert judged_to < str(last.relative_to(tier))
    code, rest = verify(tier, "--after", judged_to)
    assert (code, rest["damages"]) == (0, [])
    assert ran.document["objects"] + rest["objects"] == len(keys(tier))


def test_ctrl_c_says_how_to_continue(
    tier: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    last = max(tier.rglob("*.fragment"))

    async def wait(self: StreamJudge, size_bytes: int, key: str, *more: Any) -> None:
        if key.endswith(last.name):
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        await check(self, size_bytes, key, *more)

    check = StreamJudge._check_named
    monkeypatch.setattr(StreamJudge, "_check_named", wait)
    with pytest.raises(Interrupted) as stopped:
        run(["verify", str(tier), "--json"])

    judged_to = json.loads(capsys.readouterr().out)["judged_to"]
    assert judged_to < str(last.relative_to(tier))
    assert str(stopped.value) == f"everything up to {judged_to} was verified; resume with --after {judged_to}"


@pytest.mark.parametrize("rate", ["0", "fast", "-1"])
def test_a_malformed_rate_is_refused(tier: Path, rate: str) -> None:
    ran = offload("verify", tier, f"--rate={rate}")

    assert ran.code == 2
    assert "--rate" in ran.error


def test_verify_changes_nothing(tier: Path) -> None:
    flip(min(tier.glob("tiny/data/*")), 100)
    before = contents(tier)

    verify(tier)

    assert contents(tier) == before


def test_read_prints_the_sound_part_of_a_damaged_stream_and_then_fails(tier: Path) -> None:
    whole = bodies(tier, "filtered")
    victim = sorted(tier.glob("filtered/data/*"))[1]  # [6250, 12500)
    flip(victim, victim.stat().st_size // 2)

    ran = offload("read", tier, "filtered", "--decode", "amqp", "--format", "body")

    found = ran.stdout.split(b"\n")[:-1]
    assert ran.code == 1
    assert "stream 'filtered'" in ran.error
    assert victim.name in ran.error
    assert found == whole[: len(found)]
    assert 6250 <= len(found) < 12500
    assert len(found) % 250 == 0  # whole chunks of 250 messages each


@pytest.mark.parametrize("victim", ["tier.anchor", "tiny/stream.anchor", "newest root"])
def test_no_command_trusts_a_damaged_anchor_or_root(tier: Path, victim: str) -> None:
    """Not even `sync` does, which would otherwise build upon it."""
    path = max(tier.glob("tiny/metadata/*")) if victim == "newest root" else tier / victim
    flip(path, path.stat().st_size - 3)
    before = contents(tier)

    assert offload("read", tier, "tiny").code == 1
    assert offload("inspect", tier, "tiny").code == 1
    ran = offload("sync", f"{SOURCE}/tiny", tier)

    assert ran.code == 1
    assert str(path.relative_to(tier)) in ran.error
    assert contents(tier) == before


def test_verify_reports_no_damage_beside_a_running_sync(tmp_path: Path) -> None:
    """`verify` runs repeatedly, from before the tier exists until after the sync has ended.

    It may miss a sync that ends before it is done, so syncs of new tiers run until it has seen enough of one.
    """
    chunks = simple_chunks(6000, records=20)
    write_stream(tmp_path / "orders", chunks, segment_chunks=60)
    rounds = 0
    for number in range(30):
        tier = tmp_path / f"tier{number}"
        with start("sync", f"rabbitmq://{tmp_path}/orders", tier) as process:
            while process.poll() is None:
                ran = offload("verify", tier, "--json")
                if ran.code != 0:
                    assert not ran.stdout, ran.text
                    assert re.search("is no tier|became a tier while it was verified: run again", ran.error)
                    continue
                rounds += 1
                unreferenced = [row["reason"] for row in ran.document["unreferenced"]]
                assert all(reason.startswith(BESIDE_A_SYNC) for reason in unreferenced), unreferenced
            assert finish(process).code == 0
        code, document = verify(tier)
        assert (code, document["unreferenced"]) == (0, [])
        if rounds >= 3 and number >= TIERS_MIN - 1:
            break
    assert rounds >= 3  # `verify` saw the sync at work
    assert len(read(tier, "orders").lines) == 120_000


def test_verify_refuses_a_folder_that_is_not_a_stream(tmp_path: Path) -> None:
    sync(DATA / "tiny", tmp_path / "tier")
    (tmp_path / "tier" / "foreign").mkdir()
    (tmp_path / "tier" / "foreign" / "file").write_bytes(b"x")

    ran = offload("verify", tmp_path / "tier", "foreign")

    assert ran.code == 1
    assert "has no stream 'foreign'" in ran.stderr
