"""`offload delete`: it asks for the name, says plainly what it deletes, and a sync can begin the stream
again.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
from itertools import count
from pathlib import Path

import pytest
from campaign import few
from command_line import (
    SEED,
    STREAM_TOTALS,
    calls_of,
    contents,
    finish,
    keys,
    offload,
    on_a_terminal,
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
    """A source of three segments, each a chunk of three messages."""
    write_stream(tmp_path / "orders", simple_chunks(3), segment_chunks=1)
    return tmp_path / "orders"


@pytest.fixture
def tier(tmp_path: Path, source: Path) -> Path:
    sync(source, tmp_path / "tier")
    return tmp_path / "tier"


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
    deleted = f"offload: stream 'orders' of file://{tier} was deleted; a sync begins it again"
    assert offload("read", tier, "orders").error == deleted
    assert verify(tier)[0] == 0


def test_a_second_delete_says_that_there_is_nothing_to_do(tier: Path) -> None:
    offload("delete", tier, "orders", "--yes")
    before = contents(tier)

    ran = offload("delete", tier, "orders", "--yes")

    assert (ran.code, ran.lines, ran.stderr) == (0, ["orders: already deleted, nothing to do"], "")
    assert contents(tier) == before


def test_deleting_an_unknown_stream_is_an_error(tier: Path) -> None:
    ran = offload("delete", tier, "invoices", "--yes")

    assert (ran.code, ran.stdout) == (1, b"")
    assert ran.error == GONE.format(tier=tier).replace("orders", "invoices")


def test_a_dry_run_changes_nothing(tier: Path) -> None:
    before = contents(tier)

    ran = offload("delete", tier, "orders", "--dry-run")

    assert (ran.code, ran.stderr) == (0, "")
    assert ran.text.endswith(", offsets [0, 9) would be deleted\n")
    assert contents(tier) == before


def test_delete_requires_yes_without_a_terminal(tier: Path) -> None:
    before = contents(tier)

    ran = finish(start("delete", tier, "orders", stdin=subprocess.DEVNULL))

    assert (ran.code, ran.stdout) == (2, b"")
    assert ran.error.endswith("there is no terminal to ask on: add --yes")
    assert contents(tier) == before


def test_delete_asks_for_the_name_on_a_terminal(tier: Path) -> None:
    ran = on_a_terminal("orders", "delete", tier, "orders")

    assert ran.code == 0
    assert "cannot be undone" in ran.stderr
    assert "offload sweep" in ran.stderr
    assert ran.text.startswith("orders: 9 messages")
    assert offload("ls", tier, "--json").objects == []


@few("answers that are not the name of the stream; make test has two of five", 3)
@pytest.mark.parametrize("typed", ["", "y", "yes", "order", "Orders"])
def test_any_other_answer_deletes_nothing(tier: Path, typed: str) -> None:
    before = contents(tier)

    ran = on_a_terminal(typed, "delete", tier, "orders")

    assert (ran.code, ran.stdout) == (1, b"")
    assert ran.stderr.endswith("offload: that is not the name of stream 'orders'; nothing was deleted\n")
    assert contents(tier) == before


def test_delete_prints_one_json_object(tier: Path) -> None:
    [row] = offload("ls", tier, "--json").objects
    totals = {key: row[key] for key in STREAM_TOTALS}

    [said] = offload("delete", tier, "orders", "--dry-run", "--json").objects
    [done] = offload("delete", tier, "orders", "--yes", "--json").objects
    [again] = offload("delete", tier, "orders", "--yes", "--json").objects

    assert said == {**totals, "dry_run": True, "deleted": False}
    assert done == {**totals, "dry_run": False, "deleted": True}
    assert again == {**dict.fromkeys(totals, 0), "stream": "orders", "dry_run": False, "deleted": False}


class TestBornAgain:
    """A sync to a deleted stream begins a new stream of the same name."""

    def test_the_new_stream_holds_the_source_and_no_deleted_data(self, tier: Path, source: Path) -> None:
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

    def test_a_sync_never_adopts_uploads_of_the_deleted_stream(self, tier: Path, source: Path) -> None:
        """The offsets of this fragment would continue the new stream exactly."""
        ancestors = sorted(key for key in keys(tier) if key.endswith(".fragment"))
        offload("delete", tier, "orders", "--yes")
        sync(source, tier)
        offload("trim", tier, "orders", "--before", 9)
        offload("delete", tier, "orders", "--yes")

        sync(source, tier)

        fragments = offload("inspect", tier, "orders", "--json").document["fragments"]
        assert len([key for key in keys(tier) if key.endswith(".fragment")]) == 9
        assert not {*ancestors} & {fragment["object"] for fragment in fragments}

    def test_the_new_stream_may_begin_at_another_offset(self, tier: Path, tmp_path: Path) -> None:
        """The offsets of a new source need not continue those of the deleted stream."""
        write_stream(tmp_path / "new" / "orders", simple_chunks(2, first_offset=100))
        offload("delete", tier, "orders", "--yes")

        [report] = sync(tmp_path / "new" / "orders", tier).objects

        assert (report["first_offset"], report["next_offset"]) == (100, 106)
        assert [line["offset"] for line in read(tier, "orders").objects] == [*range(100, 106)]


def test_ctrl_d_at_the_prompt_deletes_nothing(tier: Path) -> None:
    """Ctrl-D ends the input before a name is typed."""
    before = contents(tier)
    ran = on_a_terminal("\x04", "delete", tier, "orders")

    assert ran.code == 1
    assert contents(tier) == before


def test_a_delete_killed_at_any_call_completes_when_run_again(
    tier: Path, source: Path, tmp_path: Path
) -> None:
    """After the kill the stream is either whole or deleted. After a second run it is deleted and can begin
    again.
    """
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
