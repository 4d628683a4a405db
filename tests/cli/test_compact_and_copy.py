"""`offload compact` and `offload copy`: their output and exit codes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import bodies, keys, offload, sync, verify
from osiris_writer import append_chunks, simple_chunks, write_stream

from offload.formats.sections import encode_sections

CHUNKS = 9


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for name in ("orders", "prices"):
        write_stream(folder / name, simple_chunks(CHUNKS))
    return folder


@pytest.fixture
def tier(tmp_path: Path, source: Path) -> Path:
    sync(source, tmp_path / "tier")
    return tmp_path / "tier"


def test_compact_merges_a_ledger_that_grew_and_shows_a_table(tmp_path: Path) -> None:
    source, tier = tmp_path / "source", tmp_path / "tier"
    chunks = [*simple_chunks(CHUNKS)]
    write_stream(source / "orders", chunks[:2])
    sync(source, tier)
    for first in (2, 4, 6):
        append_chunks(source / "orders", chunks[first : first + 2])
        sync(source, tier)
    before = bodies(tier, "orders")

    ran = offload("compact", tier)
    again = offload("compact", tier, "orders", "--json")

    assert (ran.code, ran.stderr) == (0, "")
    heads, row = (line.split("\t") for line in ran.lines)
    assert heads == ["stream", "fragments", "became", "copied", "stored", "changed meanwhile"]
    assert (row[0], row[1], row[2], row[5]) == ("orders", "3", "1", "0")
    [done] = again.objects
    nothing = {"runs": 0, "fragments": 0, "bytes": 0, "stored_bytes": 0, "passed_over": 0}
    nothing |= {"dropped_sections": {}}
    assert done == {"stream": "orders", **nothing}
    assert bodies(tier, "orders") == before
    assert verify(tier)[0] == 0


def test_copy_shows_a_table_and_a_second_copy_uploads_nothing(tier: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"

    ran = offload("copy", tier, target, "orders")
    again = offload("copy", tier, target, "--json")

    assert (ran.code, ran.stderr) == (0, "")
    heads, row = (line.split("\t") for line in ran.lines)
    assert heads == ["stream", "uploaded", "fragments", "taken over", "next offset"]
    assert (row[0], row[2], row[3]) == ("orders", "1", "0")
    assert [(each["stream"], each["fragments"]) for each in again.objects] == [("orders", 0), ("prices", 1)]
    assert bodies(target, "orders") == bodies(tier, "orders")
    assert verify(target)[0] == 0


@pytest.fixture
def tier_of_a_later_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tier whose three small fragments have sections that today's program does not know."""
    source, tier, chunks = tmp_path / "later", tmp_path / "later-tier", [*simple_chunks(CHUNKS)]

    def encode(parts: dict[str, bytes], **how: Any) -> list[tuple[bytes, bytes]]:
        parts |= {"words": b"of messages", "later": b"bytes"}
        return encode_sections(parts, **how)

    write_stream(source / "orders", chunks[:2])
    with monkeypatch.context() as patched:
        patched.setattr("offload.formats.fragment.encode_sections", encode)
        for first in (2, 4, 6):
            sync(source, tier, "--compress", "zstd")
            append_chunks(source / "orders", chunks[first : first + 2])
    sync(source, tier)
    return tier


@pytest.mark.parametrize("command", ["compact", "copy"])
def test_sections_of_other_programs_that_a_copy_lacks_are_reported(
    tier_of_a_later_program: Path, tmp_path: Path, command: str
) -> None:
    tier, target = tier_of_a_later_program, [tmp_path / "target"] if command == "copy" else []
    again = tmp_path / "again"
    shutil.copytree(tier, again)

    shown = offload(command, tier, *target)

    assert shown.code == 0
    text = "note: orders: dropped sections of other programs: later in 3 fragments; words in 3 fragments\n"
    assert shown.stderr == text
    [done] = offload(command, again, *(each / "json" for each in target), "--json").objects
    assert done["dropped_sections"] == {"later": 3, "words": 3}
    [done] = offload(command, tier, *target, "--json").objects
    assert done["dropped_sections"] == {}


def test_copy_skips_a_deleted_stream_unless_it_is_named(tier: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    assert offload("delete", tier, "orders", "--yes").code == 0

    copied, compacted = offload("copy", tier, target), offload("compact", tier, "--json")

    assert copied.code == compacted.code == 0
    assert [line.split("\t")[0] for line in copied.lines] == ["stream", "prices"]
    assert "note: orders: not copied: " in copied.stderr
    assert [each["stream"] for each in compacted.objects] == ["prices"]
    for ran in (offload("copy", tier, target, "orders"), offload("compact", tier, "orders")):
        assert (ran.code, "was deleted" in ran.error) == (1, True)


def test_damage_stops_the_copy_of_one_stream_only(tier: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    [damaged] = (tier / key for key in keys(tier) if key.startswith("orders/data/"))
    raw = bytearray(damaged.read_bytes())
    raw[100] ^= 1
    damaged.chmod(0o644)
    damaged.write_bytes(raw)

    ran = offload("copy", tier, target, "--json")

    orders, prices = ran.objects
    assert ran.code == 1
    assert damaged.name in orders["error"]
    assert ran.error == f"offload: stream 'orders': {orders['error']}"
    assert prices["fragments"] == 1
    given_up = offload("copy", tier, target, "orders", "--give-up")
    assert given_up.code == 0
    assert offload("abandon", target, "orders", "--json").document["jobs"] == []


def test_copy_refuses_a_target_with_another_history_and_leaves_it_unchanged(
    tier: Path, tmp_path: Path
) -> None:
    other, target = tmp_path / "other", tmp_path / "target"
    write_stream(other / "orders", simple_chunks(CHUNKS, records=2))
    sync(other, target)
    before = bodies(target, "orders")

    ran = offload("copy", tier, target, "orders")

    assert ran.code == 1
    assert "offload help a-sync-stopped" in ran.error
    assert bodies(target, "orders") == before


@pytest.mark.parametrize("options", [(), ("--give-up", "orders")])
def test_a_tier_is_not_copied_to_itself(
    tier: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """Also if it is spelled in another way."""
    before = keys(tier)
    monkeypatch.chdir(tier.parent)

    ran = offload("copy", tier, "tier/", *options)

    assert (ran.code, ran.stdout) == (1, b"")
    assert (
        ran.error == f"offload: file://{tier} is the source and the target: name another place for the copy"
    )
    assert keys(tier) == before


def test_a_place_that_is_no_tier_is_an_error_of_one_line(tmp_path: Path) -> None:
    for line in (("compact", tmp_path / "nowhere"), ("copy", tmp_path / "nowhere", tmp_path / "target")):
        ran = offload(*line)
        assert ran.code == 1
        assert "is no tier" in ran.error
    ran = offload("copy", "one", "other", "--give-up")
    assert (ran.code, "--give-up needs the names of the streams" in ran.error) == (2, True)
