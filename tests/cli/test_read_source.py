"""`offload read --source`: a broker's folder and the tier, read as one stream."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import offload, sync
from osiris_writer import append_chunks, simple_chunks, write_stream

from offload.formats.chunk_writer import build_chunk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stream of three segments, of which the tier has everything but the last chunk."""
    folder = tmp_path / "orders"
    write_stream(folder, simple_chunks(12), segment_chunks=4)
    sync(folder, tmp_path / "tier")
    append_chunks(folder, simple_chunks(1, first_offset=36))
    return folder


def offsets(folder: Path, *options: object) -> tuple[list[int], str]:
    """Return the offsets that a read prints, and what it says."""
    ran = offload("read", folder.parent / "tier", "orders", "--source", f"rabbitmq://{folder}", *options)
    assert ran.code == 0, ran.stderr
    return [line["offset"] for line in ran.objects], ran.stderr


def delete_oldest(folder: Path) -> None:
    """Delete the oldest segment, as the broker does: its index first."""
    oldest = min(folder.glob("*.segment"))
    oldest.with_suffix(".index").unlink()
    oldest.unlink()


@pytest.mark.parametrize(
    ("priority", "local", "tier"), [("local-first", 27, 12), ("tier-first", 3, 36), ("tier-only", 0, 36)]
)
def test_each_message_is_printed_once_and_a_note_says_where_it_was(
    folder: Path, priority: str, local: int, tier: int
) -> None:
    delete_oldest(folder)

    found, said = offsets(folder, "--priority", priority)

    assert found == list(range(local + tier))
    assert said == f"note: {local} messages came from the source, {tier} messages from the tier\n"


def test_a_read_of_the_source_alone_begins_where_the_source_does(folder: Path) -> None:
    delete_oldest(folder)

    found, said = offsets(folder, "--priority", "local-only", "--from", "5")

    assert found == list(range(12, 39))
    assert said.splitlines()[0] == "note: offset 5 is below the first; reading starts at offset 12"


def test_positions_and_limits_work_across_both(folder: Path) -> None:
    assert offsets(folder, "--from", "last")[0] == [36, 37, 38]
    assert offsets(folder, "--from", "35", "--to", "38")[0] == [35, 36, 37]
    assert offsets(folder, "--from", "37", "--follow", "--limit", "2")[0] == [37, 38]
    assert offsets(folder, "--from", "next")[0] == []


def test_a_source_that_was_rewritten_is_refused_in_one_line(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    chunks = [build_chunk([b"another"] * 3, offset=at, timestamp_ms=5, epoch=2) for at in range(0, 42, 3)]
    write_stream(folder, chunks)

    ran = offload("read", folder.parent / "tier", "orders", "--source", f"rabbitmq://{folder}")

    assert (ran.code, ran.stdout) == (1, b"")
    assert "source and tier part at or before offset 33" in ran.error
    assert ran.error.endswith("to read the tier alone, leave the source out")


def test_a_source_without_the_stream_is_an_error_that_says_how_to_go_on(folder: Path) -> None:
    ran = offload(
        "read", folder.parent / "tier", "orders", "--source", f"rabbitmq://{folder.parent / 'absent'}"
    )

    assert (ran.code, ran.stdout) == (1, b"")
    assert ran.error.endswith("does not exist; to read the tier alone, leave --source out")


@pytest.mark.parametrize(
    "options",
    [("--priority", "tier-first"), ("--hold-back", "1s"), ("--broker", "rabbitmq-stream://localhost")],
)
def test_options_of_a_source_need_one(folder: Path, options: tuple[str, str]) -> None:
    ran = offload("read", folder.parent / "tier", "orders", *options)

    assert (ran.code, ran.stdout) == (2, b"")
    assert ran.error == f"offload: {options[0]} needs --source: without it, only the tier is read"


@pytest.mark.parametrize("text", ["soon", "1", "-1s"])
def test_a_hold_back_that_is_no_duration_is_refused(folder: Path, text: str) -> None:
    source = ("--source", f"rabbitmq://{folder}", "--hold-back", text)

    ran = offload("read", folder.parent / "tier", "orders", *source)

    assert ran.code == 2
    assert ran.error.startswith("offload: --hold-back takes a number and one of")
