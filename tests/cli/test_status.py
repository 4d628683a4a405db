"""`offload status`: how far a tier is behind its source, without a running process, and without a change."""

from __future__ import annotations

from pathlib import Path

from command_line import offload, sync
from osiris_data import DATA
from osiris_writer import append_chunks, simple_chunks, write_stream


def source_url(folder: Path) -> str:
    return f"rabbitmq://{folder}"


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_status_shows_what_the_tier_lacks_and_changes_nothing(tmp_path: Path) -> None:
    tier, chunks = tmp_path / "tier", list(simple_chunks(3))
    write_stream(tmp_path / "orders", chunks[:1])
    sync(tmp_path / "orders", tier)
    (first,) = tier.rglob("*.fragment")
    append_chunks(tmp_path / "orders", chunks[1:2])
    sync(tmp_path / "orders", tier)
    assert offload("trim", tier, "orders", "--before", 3).code == 0
    append_chunks(tmp_path / "orders", chunks[2:])
    before = files(tier)

    ran = offload("status", source_url(tmp_path / "orders"), tier, "--json", "--unused")

    (row,) = ran.document["streams"]
    assert ran.code == 0, ran.stderr
    assert (row["stream"], row["source_next_offset"], row["committed_offset"]) == ("orders", 9, 6)
    assert (row["lag_records"], row["lag_bytes"]) == (3, len(chunks[2]))
    assert row["unused_bytes"] == first.stat().st_size
    assert files(tier) == before


def test_a_source_that_does_not_continue_the_tier_is_an_error(tmp_path: Path) -> None:
    write_stream(tmp_path / "orders", simple_chunks(2))
    sync(tmp_path / "orders", tmp_path / "tier")
    write_stream(tmp_path / "other" / "orders", simple_chunks(3, records=2))

    ran = offload("status", source_url(tmp_path / "other" / "orders"), tmp_path / "tier")

    assert ran.code == 1
    assert "offload: stream 'orders': " in ran.stderr


def test_a_tier_that_does_not_exist_lacks_everything_and_is_not_made(tmp_path: Path) -> None:
    ran = offload("status", source_url(DATA / "tiny"), tmp_path / "tier", "--unused")

    assert ran.code == 0, ran.stderr
    assert ran.lines[1].split("\t")[:4] == ["tiny", "10", "-", "10"]
    assert not (tmp_path / "tier").exists()
