"""`offload delete`: for good, asked for by name, and said plainly; and the stream that is born again."""

from __future__ import annotations

import os
import pty
import random
import shutil
import signal
import subprocess
from itertools import count
from pathlib import Path

import pytest
from command_line import (
    SEED,
    STREAM_TOTALS,
    Ran,
    calls_of,
    contents,
    finish,
    keys,
    offload,
    read,
    start,
    start_dying,
    sync,
    verify,
)
from osiris_writer import simple_chunks, write_stream

GONE = "offload: file://{tier} has no stream 'orders'; `offload ls` shows which it has"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three segments of a chunk of three messages each."""
    write_stream(tmp_path / "orders", simple_chunks(3), segment_chunks=1)
    return tmp_path / "orders"


@pytest.fixture
def tier(tmp_path: Path, source: Path) -> Path:
    sync(source, tmp_path / "tier")
    return tmp_path / "tier"


def on_a_terminal(typed: str, *arguments: object) -> Ran:
    """Run a command whose stdin is a terminal, at which somebody types this line."""
    ours, theirs = pty.openpty()
    try:
        process = start(*arguments, stdin=theirs)
        os.write(ours, f"{typed}\n".encode())
        return finish(process)
    finally:
        os.close(ours)
        os.close(theirs)


def test_the_stream_is_gone_and_its_objects_are_left_to_the_sweep(tier: Path) -> None:
    before = keys(tier)

    ran = offload("delete", tier, "orders", "--yes")

    assert (ran.code, ran.stderr) == (0, "")
    [line] = ran.lines
    assert line.startswith("orders: 9 messages, ")
    assert line.endswith(", offsets [0, 9) deleted; `offload sweep` frees their space")
    assert before < keys(tier)
    assert [*(keys(tier) - before)] == [f"orders/metadata/root.{4:020}.manifest"]
    assert offload("ls", tier, "--json").objects == []
    deleted = f"offload: stream 'orders' of file://{tier} was deleted; a sync begins it anew"
    assert offload("read", tier, "orders").error == deleted
    assert verify(tier)[0] == 0


def test_again_it_says_that_there_is_nothing_to_do(tier: Path) -> None:
    offload("delete", tier, "orders", "--yes")
    before = contents(tier)

    ran = offload("delete", tier, "orders", "--yes")

    assert (ran.code, ran.lines, ran.stderr) == (0, ["orders: deleted already, nothing to do"], "")
    assert contents(tier) == before


def test_a_stream_that_never_was(tier: Path) -> None:
    ran = offload("delete", tier, "invoices", "--yes")

    assert (ran.code, ran.stdout) == (1, b"")
    assert ran.error == GONE.format(tier=tier).replace("orders", "invoices")


def test_a_dry_run_changes_nothing(tier: Path) -> None:
    before = contents(tier)

    ran = offload("delete", tier, "orders", "--dry-run")

    assert (ran.code, ran.stderr) == (0, "")
    assert ran.text.endswith(", offsets [0, 9) would go\n")
    assert contents(tier) == before


def test_without_a_terminal_it_must_be_told_yes(tier: Path) -> None:
    before = contents(tier)

    ran = finish(start("delete", tier, "orders", stdin=subprocess.DEVNULL))

    assert (ran.code, ran.stdout) == (2, b"")
    assert ran.error.endswith("there is none here: add --yes")
    assert contents(tier) == before


def test_on_a_terminal_the_name_is_asked_for(tier: Path) -> None:
    ran = on_a_terminal("orders", "delete", tier, "orders")

    assert ran.code == 0
    assert "cannot be undone" in ran.stderr
    assert "offload sweep" in ran.stderr
    assert ran.text.startswith("orders: 9 messages")
    assert offload("ls", tier, "--json").objects == []


@pytest.mark.parametrize("typed", ["", "y", "yes", "order", "Orders"])
def test_anything_else_deletes_nothing(tier: Path, typed: str) -> None:
    before = contents(tier)

    ran = on_a_terminal(typed, "delete", tier, "orders")

    assert (ran.code, ran.stdout) == (1, b"")
    assert ran.stderr.endswith("offload: that is not the name of stream 'orders'; nothing was deleted\n")
    assert contents(tier) == before


def test_one_json_object(tier: Path) -> None:
    [row] = offload("ls", tier, "--json").objects
    totals = {key: row[key] for key in STREAM_TOTALS}

    [said] = offload("delete", tier, "orders", "--dry-run", "--json").objects
    [done] = offload("delete", tier, "orders", "--yes", "--json").objects
    [again] = offload("delete", tier, "orders", "--yes", "--json").objects

    assert said == {**totals, "dry_run": True, "deleted": False}
    assert done == {**totals, "dry_run": False, "deleted": True}
    assert again == {**dict.fromkeys(totals, 0), "stream": "orders", "dry_run": False, "deleted": False}


class TestBornAgain:
    """A sync onto a deleted stream begins a new one of the same name."""

    def test_it_holds_what_the_source_holds_and_nothing_of_its_ancestor(
        self, tier: Path, source: Path
    ) -> None:
        ancestors = {key for key in keys(tier) if key.endswith(".fragment")}
        [before] = offload("ls", tier, "--json").objects
        offload("delete", tier, "orders", "--yes")

        [report] = sync(source, tier).objects

        assert report["uploaded_bytes"] > report["bytes"]
        for key in STREAM_TOTALS - {"version"}:
            assert report[key] == before[key]
        fragments = offload("inspect", tier, "orders", "--json").document["fragments"]
        assert len(fragments) == 3
        assert not ancestors & {fragment["object"] for fragment in fragments}
        assert len(read(tier, "orders").objects) == 9
        assert sync(source, tier).objects == [report | {"uploaded_bytes": 0}]
        assert verify(tier)[0] == 0

    def test_what_an_upload_left_of_the_ancestor_is_never_adopted(self, tier: Path, source: Path) -> None:
        """A fragment that would continue the new stream exactly, by its offsets."""
        ancestors = sorted(key for key in keys(tier) if key.endswith(".fragment"))
        offload("delete", tier, "orders", "--yes")
        sync(source, tier)
        offload("trim", tier, "orders", "--before", 9)
        offload("delete", tier, "orders", "--yes")

        sync(source, tier)

        fragments = offload("inspect", tier, "orders", "--json").document["fragments"]
        assert len([key for key in keys(tier) if key.endswith(".fragment")]) == 9
        assert not {*ancestors} & {fragment["object"] for fragment in fragments}

    def test_it_may_begin_elsewhere(self, tier: Path, tmp_path: Path) -> None:
        """The offsets of a new source need not go on where the deleted stream ended."""
        write_stream(tmp_path / "new" / "orders", simple_chunks(2, first_offset=100))
        offload("delete", tier, "orders", "--yes")

        [report] = sync(tmp_path / "new" / "orders", tier).objects

        assert (report["first_offset"], report["next_offset"]) == (100, 106)
        assert [line["offset"] for line in read(tier, "orders").objects] == [*range(100, 106)]


def test_the_end_of_input_is_no_name(tier: Path) -> None:
    """Ctrl-D."""
    before = contents(tier)
    ran = on_a_terminal("\x04", "delete", tier, "orders")

    assert ran.code == 1
    assert contents(tier) == before


def test_killed_at_any_call_and_run_again(tier: Path, source: Path, tmp_path: Path) -> None:
    """After the kill the stream is whole, or deleted. Run again it is deleted, and may be born again."""
    copies = (shutil.copytree(tier, tmp_path / f"copy-{number}") for number in count())
    reference = next(copies)
    calls = calls_of(finish(start_dying(0, "delete", reference, "orders", "--yes")))
    print(f"OFFLOAD_SEED={SEED}")
    chance = random.Random(f"{SEED} delete")

    for number in chance.sample(range(1, calls + 1), 3):
        copy = next(copies)
        killed = finish(start_dying(number, "delete", copy, "orders", "--yes"))
        assert killed.code in (0, -signal.SIGKILL), killed.stderr
        is_whole = keys(copy) == keys(tier)
        assert is_whole or keys(copy) == keys(reference)
        assert len(offload("ls", copy, "--json").objects) == is_whole
        assert offload("delete", copy, "orders", "--yes").code == 0
        assert keys(copy) == keys(reference), "one tombstone, and nothing else"
        assert offload("ls", copy, "--json").objects == []
        sync(source, copy)
        assert len(read(copy, "orders").objects) == 9
        assert verify(copy)[0] == 0
