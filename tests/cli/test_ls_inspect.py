"""`offload ls` and `offload inspect`: what the tier alone says it holds."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
import small_tier
from command_line import STREAM_TOTALS, expected_totals, keys, offload, sync
from osiris_data import DATA, MANIFEST, STREAMS
from osiris_writer import append_chunks, simple_chunks, write_stream

from offload.cli.kit.output import size_text
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR

ROOT = [
    "object", "version", "state", "incarnation", "writer", "epoch", "source_epoch",
    "committer", "commit_id", "parent_commit_id",
]  # fmt: skip


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier with the real streams. Tests only look at it."""
    folder = tmp_path_factory.mktemp("look") / "tier"
    sync(DATA, folder)
    return folder


def make_small_tier(folder: Path) -> None:
    """The small tier of other tests, as a folder."""
    for key, raw in small_tier.make(folder).items():
        path = folder / "tier" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)


def make_trimmed_tier(folder: Path, *, timestamps_ms: list[int]) -> Path:
    """Three fragments, of which the first two are in a group; the first one is trimmed."""
    write_stream(folder / "orders", simple_chunks(3, timestamps_ms=timestamps_ms), segment_chunks=1)
    (folder / "tier").mkdir()
    (folder / "tier" / TIER_ANCHOR).write_bytes(TierAnchor(branching_factor=2).encode())
    sync(folder / "orders", folder / "tier")
    assert offload("trim", folder / "tier", "orders", "--before", 3).code == 0
    return folder / "tier"


class TestLs:
    def test_one_object_per_stream_in_order_of_names(self, tier: Path) -> None:
        ran = offload("ls", tier, "--json")

        assert (ran.code, ran.stderr) == (0, "")
        assert [row["stream"] for row in ran.objects] == sorted(STREAMS)
        for row in ran.objects:
            assert set(row) == STREAM_TOTALS | {"stored_bytes", "newest"}
            assert row | expected_totals(row["stream"]) == row

    def test_json_carries_every_column_of_the_table(self, tier: Path) -> None:
        table = [line.split("\t") for line in offload("ls", tier).lines]

        columns = [name.replace(" ", "_") for name in table[0]]
        for row, shown in zip(offload("ls", tier, "--json").objects, table[1:], strict=True):
            row["size"] = size_text(row["stored_bytes"])
            assert [str(row[column]) for column in columns] == shown

    def test_it_says_what_sync_said(self, tmp_path: Path) -> None:
        [report] = sync(DATA / "tiny", tmp_path / "tier").objects

        [row] = offload("ls", tmp_path / "tier", "--json").objects

        assert {key: row[key] for key in STREAM_TOTALS} == {key: report[key] for key in STREAM_TOTALS}

    def test_for_people_a_head_and_a_line_per_stream(self, tier: Path) -> None:
        head, *rows = offload("ls", tier).lines

        assert head.startswith("stream\tmessages\t")
        assert [row.split("\t")[:2] for row in rows] == [
            [stream, str(MANIFEST["streams"][stream]["messages"])] for stream in sorted(STREAMS)
        ]

    def test_the_newest_is_the_newest_of_what_lives(self, tmp_path: Path) -> None:
        """The clock stood ahead for a while. That chunk is trimmed, and its group still tells of it."""
        tier = make_trimmed_tier(tmp_path, timestamps_ms=[9000, 1000, 2000])

        assert offload("ls", tier).lines[1].split("	")[-1] == "1970-01-01T00:00:02.000Z"

    def test_a_group_that_is_asked_for_that_and_damaged_is_one_streams_trouble(self, tmp_path: Path) -> None:
        tier = make_trimmed_tier(tmp_path, timestamps_ms=[9000, 1000, 2000])
        [group] = tier.rglob("*.group")
        group.unlink()

        table, json = offload("ls", tier), offload("ls", tier, "--json")

        assert (table.code, len(table.lines)) == (1, 1)
        assert (json.code, json.lines) == (1, [])
        assert group.name in table.error == json.error

    def test_a_tier_may_hold_nothing_yet(self, tmp_path: Path) -> None:
        sync(DATA / "tiny", tmp_path / "tier")
        for path in sorted((tmp_path / "tier" / "tiny").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

        assert offload("ls", tmp_path / "tier", "--json").stdout == b""

    def test_a_stream_that_was_begun_and_never_committed_is_not_listed(self, tmp_path: Path) -> None:
        """What a writer leaves that dies between the stream's anchor and its first root."""
        sync(DATA / "tiny", tmp_path / "tier")
        for path in (tmp_path / "tier" / "tiny").glob("*/*"):
            path.unlink()

        assert offload("ls", tmp_path / "tier", "--json").stdout == b""
        assert offload("inspect", tmp_path / "tier", "tiny").code == 1


class TestInspect:
    @pytest.mark.parametrize("stream", STREAMS)
    def test_one_document_with_totals_root_attempts_and_fragments(self, tier: Path, stream: str) -> None:
        ran = offload("inspect", tier, stream, "--json")

        document = ran.document
        assert (ran.code, ran.stderr) == (0, "")
        assert list(document) == ["stream", "totals", "root", "groups", "fragments", "attempts"]
        assert document["stream"] == stream
        assert set(document["totals"]) == STREAM_TOTALS | {"stored_bytes"}
        assert document["totals"] | expected_totals(stream) == document["totals"]
        assert list(document["root"]) == ROOT
        assert document["groups"] == document["attempts"] == []
        assert document["root"]["state"] == "live"
        assert document["root"]["object"] in keys(tier)

    @pytest.mark.parametrize("stream", STREAMS)
    def test_its_fragments_are_the_segments(self, tier: Path, stream: str) -> None:
        known = MANIFEST["streams"][stream]["segments"]
        rows = offload("inspect", tier, stream, "--json").document["fragments"]

        assert [
            (row["first_offset"], row["next_offset"], row["messages"], row["ledger_id"]) for row in rows
        ] == [(s["first_chunk_id"], s["next_offset"], s["messages"], s["first_chunk_id"]) for s in known]
        for row in rows:
            assert (tier / row["object"]).stat().st_size == row["stored_bytes"]
            assert str(UUID(row["attempt"])) in row["object"]

    def test_totals_are_the_sums(self, tier: Path) -> None:
        document = offload("inspect", tier, "batches", "--json").document

        for name in ("records", "messages", "bytes", "stored_bytes"):
            assert document["totals"][name] == sum(row[name] for row in document["fragments"])

    def test_groups_are_shown_and_not_fetched(self, tmp_path: Path) -> None:
        """What a group says of itself stands in the root, so `inspect` costs no more for a long stream."""
        make_small_tier(tmp_path)
        document = offload("inspect", tmp_path / "tier", "marked", "--json").document

        [group], [fragment] = document["groups"], document["fragments"]
        assert (tmp_path / "tier" / group["object"]).exists()
        assert group["object"].endswith(".group")
        assert (group["kind"], group["fragments"]) == ("group", 2)
        assert (group["first_offset"], group["next_offset"], fragment["first_offset"]) == (0, 15, 15)
        for name in ("records", "messages", "bytes", "stored_bytes"):
            assert document["totals"][name] == group[name] + fragment[name]
        assert (document["totals"]["fragments"], document["totals"]["ledgers"]) == (3, 2)
        (tmp_path / "tier" / group["object"]).unlink()
        assert offload("inspect", tmp_path / "tier", "marked", "--json").document == document
        assert "[0, 15)  group of 2 fragments, " in offload("inspect", tmp_path / "tier", "marked").text

    def test_what_runs_is_shown(self, tmp_path: Path) -> None:
        """A writer announces its attempts before it uploads: what a crash leaves can be seen here."""
        make_small_tier(tmp_path)

        document = offload("inspect", tmp_path / "tier", "marked", "--json").document

        [running] = document["attempts"]
        assert list(running) == ["attempt", "ledger_id", "epoch", "writer", "kind"]
        assert (running["ledger_id"], running["kind"]) == (25, "stream")
        assert (running["writer"], running["epoch"]) == (
            document["root"]["writer"],
            document["root"]["epoch"],
        )
        assert "running attempts: 1" in offload("inspect", tmp_path / "tier", "marked").text

    def test_each_growth_adds_a_fragment_and_raises_the_epoch(self, tmp_path: Path) -> None:
        source, tier = tmp_path / "orders", tmp_path / "tier"
        write_stream(source, simple_chunks(2))
        sync(source, tier)
        before = offload("inspect", tier, "orders", "--json").document
        append_chunks(source, simple_chunks(1, first_offset=6))
        sync(source, tier)

        after = offload("inspect", tier, "orders", "--json").document

        assert after["fragments"][:1] == before["fragments"]
        assert len(after["fragments"]) == 2
        assert after["root"]["epoch"] == before["root"]["epoch"] + 1
        assert after["root"]["incarnation"] == before["root"]["incarnation"]
        assert after["root"]["writer"] != before["root"]["writer"]

    def test_for_people_a_tree(self, tier: Path) -> None:
        ran = offload("inspect", tier, "batches")

        assert ran.lines[0].startswith("batches  12240 messages in offsets [0, 12271)")
        assert "fragments: 4, ledgers: 4" in ran.text
        assert "[3669, 6937)" in ran.text

    def test_an_unknown_stream(self, tier: Path) -> None:
        ran = offload("inspect", tier, "orders", "--json")

        assert (ran.code, ran.stdout) == (1, b"")
        assert ran.error.endswith("has no stream 'orders'; `offload ls` shows which it has")


class TestOneStreamsTrouble:
    def test_a_damaged_root_hides_no_other_stream(self, tmp_path: Path) -> None:
        sync(DATA, tmp_path / "tier")
        newest = max((tmp_path / "tier" / "tiny" / "metadata").glob("root.*"))
        raw = bytearray(newest.read_bytes())
        raw[40] ^= 1
        newest.write_bytes(raw)

        ran = offload("ls", tmp_path / "tier", "--json")

        assert ran.code == 1
        assert [row["stream"] for row in ran.objects] == ["batches", "filtered"]
        assert "stream 'tiny'" in ran.stderr
        assert ran.stderr.count("\n") == 1
