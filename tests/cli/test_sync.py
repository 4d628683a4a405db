"""`offload sync`: it copies the new data of a source to the tier, once, up to the first damage."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from command_line import (
    SOURCE,
    STREAM_TOTALS,
    bodies,
    contents,
    expected_totals,
    formula,
    keys,
    offload,
    read,
    sync,
    verify,
)
from offload_posix.store import PosixStore
from offload_rabbitmq import sample_path
from osiris_data import DATA, MANIFEST, STREAMS, TORN
from osiris_writer import append_chunks, simple_chunks, write_stream

from offload.cli.app import run
from offload.contracts.store import Body
from offload.formats.chunk_writer import build_chunk


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier with the real streams. Tests do not change it."""
    tier = tmp_path_factory.mktemp("real") / "tier"
    sync(DATA, tier)
    return tier


class TestWholeStreams:
    def test_sync_prints_one_object_per_stream_with_exactly_these_keys(self, tmp_path: Path) -> None:
        reports = sync(DATA, tmp_path / "tier").objects

        assert [report["stream"] for report in reports] == sorted(STREAMS)
        assert {frozenset(report) for report in reports} == {STREAM_TOTALS | {"uploaded_bytes", "part"}}

    @pytest.mark.parametrize("stream", STREAMS)
    def test_the_numbers_of_a_report_match_the_data(self, tmp_path: Path, stream: str) -> None:
        [report] = sync(DATA, tmp_path / "tier", "--stream", stream).objects

        assert {name: report[name] for name in expected_totals(stream)} == expected_totals(stream)
        assert report["version"] >= 1
        stored = contents(tmp_path / "tier")
        fragments = [raw for key, (raw, _) in stored.items() if key.endswith(".fragment")]
        assert report["uploaded_bytes"] == sum(map(len, fragments))

    @pytest.mark.parametrize("stream", STREAMS)
    def test_every_synced_message_can_be_read(self, real: Path, stream: str) -> None:
        assert bodies(real, stream) == formula(MANIFEST["streams"][stream]["messages"])

    def test_sync_prints_a_line_per_stream(self, tmp_path: Path) -> None:
        ran = offload("sync", SOURCE, tmp_path / "tier")

        assert [line.split(":")[0] for line in ran.lines] == sorted(STREAMS)
        assert "10 messages in offsets [0, 10)" in ran.lines[-1]

    def test_sync_notes_folders_without_segments(self, tmp_path: Path) -> None:
        ran = offload("sync", SOURCE, tmp_path / "tier")

        assert (ran.code, ran.error) == (0, f"note: skipped: {DATA / 'torn'} holds no segments")

    def test_the_folder_of_one_stream_is_a_source(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(DATA)

        assert offload("sync", "rabbitmq://tiny", tmp_path / "tier").code == 0
        assert bodies(tmp_path / "tier", "tiny") == formula(10)

    def test_the_sample_of_the_plugin_syncs(self, tmp_path: Path) -> None:
        [report] = sync(sample_path(), tmp_path / "tier").objects

        assert bodies(tmp_path / "tier", report["stream"]) == formula(10)

    def test_sync_leaves_the_brokers_files_unchanged(self, tmp_path: Path) -> None:
        shutil.copytree(DATA / "torn", tmp_path / "source")
        before = contents(tmp_path / "source")

        offload("sync", f"rabbitmq://{tmp_path}/source", tmp_path / "tier")

        assert contents(tmp_path / "source") == before


class TestAgain:
    def test_a_second_sync_changes_nothing_and_claims_no_epoch(self, tmp_path: Path) -> None:
        tier = tmp_path / "tier"
        first = sync(DATA, tier).objects
        before = contents(tier)

        second = sync(DATA, tier).objects

        assert contents(tier) == before
        assert second == [report | {"uploaded_bytes": 0} for report in first]

    def test_sync_uploads_only_the_new_chunks_of_an_open_segment(self, tmp_path: Path) -> None:
        source, tier = tmp_path / "orders", tmp_path / "tier"
        chunks = list(simple_chunks(30))
        write_stream(source, chunks[:20])
        sync(source, tier)
        before = contents(tier)
        append_chunks(source, chunks[20:])

        [report] = sync(source, tier).objects

        after = contents(tier)
        assert {key: after[key] for key in before} == before
        new = {key: len(raw) for key, (raw, _) in after.items() if key not in before}
        [fragment] = [key for key in new if key.endswith(".fragment")]
        assert report["uploaded_bytes"] == new[fragment]
        assert fragment.startswith("orders/data/00000000000000000060.")
        assert after[fragment][0][16:].startswith(b"".join(chunks[20:]))
        assert (report["ledgers"], report["fragments"], report["next_offset"]) == (1, 2, 90)
        assert bodies(tier, "orders") == [b"message %d" % i for i in range(90)]

    def test_sync_uploads_the_rest_of_a_segment_and_the_next_one(self, tmp_path: Path) -> None:
        source, tier = tmp_path / "orders", tmp_path / "tier"
        chunks = list(simple_chunks(40))
        write_stream(source, chunks[:10])
        sync(source, tier)
        before = contents(tier)
        append_chunks(source, chunks[10:20])
        write_stream(source, chunks[20:])

        [report] = sync(source, tier).objects

        fragments = sorted(key for key in contents(tier).keys() - before.keys() if ".fragment" in key)
        assert [key.split("/")[2].split(".")[0] for key in fragments] == [f"{30:020}", f"{60:020}"]
        assert (report["ledgers"], report["fragments"], report["next_offset"]) == (2, 3, 120)
        assert bodies(tier, "orders") == [b"message %d" % i for i in range(120)]

    def test_a_sync_per_chunk_gives_the_same_stream_as_one_sync(self, tmp_path: Path) -> None:
        source, tier = tmp_path / "orders", tmp_path / "tier"
        chunks = list(simple_chunks(12))
        write_stream(source, chunks[:1])
        for chunk in chunks[1:]:
            sync(source, tier)
            append_chunks(source, [chunk])

        [report] = sync(source, tier).objects

        assert (report["fragments"], report["records"]) == (12, 36)
        assert bodies(tier, "orders") == [b"message %d" % i for i in range(36)]
        assert verify(tier)[1]["damages"] == []

    def test_source_retention_up_to_the_next_offset_loses_nothing(self, tmp_path: Path) -> None:
        source, tier = tmp_path / "orders", tmp_path / "tier"
        chunks = list(simple_chunks(20))
        write_stream(source, chunks[:10])
        sync(source, tier)
        shutil.rmtree(source)
        write_stream(source, chunks[10:])

        [report] = sync(source, tier).objects

        assert (report["first_offset"], report["next_offset"]) == (0, 60)
        assert bodies(tier, "orders") == [b"message %d" % i for i in range(60)]

    def test_source_retention_of_committed_data_takes_nothing_from_the_tier(self, tmp_path: Path) -> None:
        source, tier = tmp_path / "orders", tmp_path / "tier"
        chunks = list(simple_chunks(30))
        write_stream(source, chunks[:20], segment_chunks=10)
        sync(source, tier)
        for file in source.glob(f"{0:020}.*"):
            file.unlink()
        write_stream(source, chunks[20:])

        [report] = sync(source, tier).objects

        assert (report["first_offset"], report["next_offset"]) == (0, 90)
        assert bodies(tier, "orders") == [b"message %d" % i for i in range(90)]


class TestChoosing:
    def test_sync_copies_only_the_named_streams(self, tmp_path: Path) -> None:
        reports = sync(DATA, tmp_path / "tier", "--stream", "tiny", "--stream", "batches").objects

        assert sorted(report["stream"] for report in reports) == ["batches", "tiny"]
        assert not list((tmp_path / "tier").glob("filtered*"))

    def test_an_unknown_name_fails_before_anything_is_copied(self, tmp_path: Path) -> None:
        ran = offload("sync", SOURCE, tmp_path / "tier", "--stream", "tiny", "--stream", "orders")

        assert ran.code == 1
        assert "'orders'" in ran.error
        assert not (tmp_path / "tier").exists()

    def test_a_stream_named_twice_is_synced_once(self, tmp_path: Path) -> None:
        reports = sync(DATA, tmp_path / "tier", "--stream", "tiny", "--stream", "tiny").objects

        assert [report["stream"] for report in reports] == ["tiny"]


class TestTornSources:
    @pytest.mark.parametrize("case", [case for case in TORN if case != "crc_mismatch_middle_chunk"])
    def test_sync_copies_as_much_as_osiris_keeps(self, tmp_path: Path, case: str) -> None:
        kept = MANIFEST["torn"]["cases"][case]["after_osiris_recovery"]["next_offset"]
        begin = 77 if case == "orphan_first_segment" else 0  # the orphan no longer belongs to the stream

        [report] = sync(DATA / "torn" / case, tmp_path / "tier").objects

        assert (report["first_offset"], report["next_offset"]) == (begin, kept)
        assert bodies(tmp_path / "tier", case) == formula(kept)[begin:]

    def test_sync_commits_everything_before_a_damaged_chunk_and_nothing_after_it(
        self, tmp_path: Path
    ) -> None:
        case, tier = "crc_mismatch_middle_chunk", tmp_path / "tier"

        ran = offload("sync", f"rabbitmq://{DATA}/torn/{case}", tier, "--json")

        assert ran.code == 1
        [report] = ran.objects
        assert (report["first_offset"], report["next_offset"], report["messages"]) == (0, 161, 161)
        assert "damaged chunk at offset 161" in ran.error
        assert f"{154:020}.segment" in ran.error
        assert bodies(tier, case) == formula(161)
        assert verify(tier)[1]["damages"] == []

    def test_a_second_sync_of_a_damaged_source_creates_nothing(self, tmp_path: Path) -> None:
        command = ("sync", f"rabbitmq://{DATA}/torn/crc_mismatch_middle_chunk", tmp_path / "tier", "--json")
        first = offload(*command)
        before = contents(tmp_path / "tier")

        second = offload(*command)

        assert (second.code, second.stderr) == (1, first.stderr)
        assert [row["uploaded_bytes"] for row in second.objects] == [0]
        assert contents(tmp_path / "tier") == before

    def test_a_damaged_stream_does_not_stop_the_others(self, tmp_path: Path) -> None:
        ran = offload("sync", f"rabbitmq://{DATA}/torn", tmp_path / "tier", "--json")

        assert ran.code == 1
        assert [report["stream"] for report in ran.objects] == sorted(TORN)
        assert "damaged chunk at offset 161" in ran.error

    def test_a_stream_continues_after_osiris_repairs_it(self, tmp_path: Path) -> None:
        """A sync copies a torn tail up to its last sound chunk. The restarted broker continues from there."""
        source, tier = tmp_path / "orders", tmp_path / "tier"
        chunks = list(simple_chunks(12))
        write_stream(source, chunks[:6])
        with next(source.glob("*.segment")).open("ab") as segment:
            segment.write(chunks[6][:-5])
        sync(source, tier)
        shutil.rmtree(source)
        write_stream(source, chunks)

        sync(source, tier)

        assert bodies(tier, "orders") == [b"message %d" % i for i in range(36)]


class TestEmptySources:
    def test_an_empty_stream_creates_nothing_and_no_tier(self, tmp_path: Path) -> None:
        write_stream(tmp_path / "orders", [])
        (tmp_path / "orders" / f"{0:020}.segment").write_bytes(b"OSIL\0\0\0\1")
        (tmp_path / "orders" / f"{0:020}.index").write_bytes(b"OSII\0\0\0\1")

        [report] = sync(tmp_path / "orders", tmp_path / "tier").objects
        told = offload("sync", f"rabbitmq://{tmp_path / 'orders'}", tmp_path / "tier")

        assert told.stderr.startswith("note: no stream has messages yet, so nothing was written")
        assert report == dict.fromkeys(STREAM_TOTALS | {"uploaded_bytes"}, 0) | {
            "stream": "orders",
            "part": 1,
        }
        assert not (tmp_path / "tier").exists()

    def test_a_stream_begins_at_the_offset_of_its_first_chunk(self, tmp_path: Path) -> None:
        write_stream(tmp_path / "orders", simple_chunks(2, first_offset=500))

        [report] = sync(tmp_path / "orders", tmp_path / "tier").objects

        assert (report["first_offset"], report["next_offset"]) == (500, 506)


class TestTiersAreMadeBySyncAlone:
    @pytest.mark.parametrize("command", [("ls",), ("inspect", "tiny"), ("read", "tiny"), ("verify",)])
    def test_no_other_command_creates_a_tier(self, tmp_path: Path, command: tuple[str, ...]) -> None:
        ran = offload(command[0], tmp_path / "tier", *command[1:])

        assert ran.code == 1
        assert "is no tier" in ran.error
        assert not (tmp_path / "tier").exists()

    def test_sync_makes_a_tier_of_an_empty_folder(self, tmp_path: Path) -> None:
        (tmp_path / "tier").mkdir()

        sync(DATA / "tiny", tmp_path / "tier")

        assert "tier.anchor" in keys(tmp_path / "tier")

    def test_sync_refuses_a_folder_that_holds_anything_else(self, tmp_path: Path) -> None:
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "thesis.txt").write_text("years of work")
        before = contents(tmp_path / "home")

        ran = offload("sync", SOURCE + "/tiny", tmp_path / "home")

        assert ran.code == 1
        assert "no tier and not empty" in ran.error
        assert "thesis.txt" in ran.error
        assert contents(tmp_path / "home") == before

    def test_sync_accepts_the_url_of_a_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

        assert run(["sync", SOURCE, f"file://{tmp_path}/tier", "--stream", "tiny"]) == 0
        assert read(tmp_path / "tier", "tiny").stdout == offload("read", "file://./tier", "tiny").stdout


def bodies_at(offset: int, records: int = 3) -> list[bytes]:
    return [b"message %d" % (offset + i) for i in range(records)]


def chunk(offset: int, *, epoch: int = 1, records: list[bytes] | None = None) -> bytes:
    """Return a chunk as `simple_chunks` has it at this offset, with these differences."""
    timestamp_ms = 1_700_000_000_000 + 250 * offset // 3
    return build_chunk(records or bodies_at(offset), offset=offset, timestamp_ms=timestamp_ms, epoch=epoch)


BEFORE = list(simple_chunks(10))
BEHIND = list(simple_chunks(2, first_offset=30))
OTHER_HISTORIES = {
    "epoch": ([*BEFORE[:9], chunk(27, epoch=2), *BEHIND], "offset 27"),
    "bytes": (
        [*BEFORE[:9], chunk(27, records=[b"another"] * 3), *BEHIND],
        "offset 27",
    ),
    "boundaries": ([*BEFORE[:8], chunk(24, records=bodies_at(24, 6)), *BEHIND], "offset 27"),
    "ends before": (BEFORE[:9], "ends at offset 27"),
    "begins behind": (list(simple_chunks(3, first_offset=33)), "begins at offset 33"),
    "begins within": ([chunk(28), chunk(31)], "begins within the tier's last chunk, which is at offset 27"),
}


class TestDivergence:
    @pytest.mark.parametrize("what", OTHER_HISTORIES)
    def test_sync_appends_nothing_to_a_history_that_the_source_does_not_continue(
        self, tmp_path: Path, what: str
    ) -> None:
        streams, tier = tmp_path / "streams", tmp_path / "tier"
        for name in ("a", "orders", "z"):
            write_stream(streams / name, BEFORE)
        sync(streams, tier)
        before = contents(tier)
        chunks, place = OTHER_HISTORIES[what]
        shutil.rmtree(streams / "orders")
        write_stream(streams / "orders", chunks)
        for name in ("a", "z"):
            append_chunks(streams / name, BEHIND)

        ran = offload("sync", f"rabbitmq://{streams}", tier, "--json")

        assert ran.code == 1
        assert "stream 'orders'" in ran.error
        assert place in ran.error
        after = contents(tier)
        assert {k: v for k, v in after.items() if k.startswith("orders/")} == {
            k: v for k, v in before.items() if k.startswith("orders/")
        }
        assert {row["stream"]: row["next_offset"] for row in ran.objects} == {"a": 36, "orders": 30, "z": 36}

    def test_the_error_shows_both_histories_at_the_point_where_they_differ(self, tmp_path: Path) -> None:
        write_stream(tmp_path / "orders", BEFORE)
        sync(tmp_path / "orders", tmp_path / "tier")
        shutil.rmtree(tmp_path / "orders")
        write_stream(tmp_path / "orders", OTHER_HISTORIES["epoch"][0])

        ran = offload("sync", f"rabbitmq://{tmp_path}/orders", tmp_path / "tier")

        assert "part at or before offset 27" in ran.error
        assert "leader epoch 1" in ran.error
        assert "leader epoch 2" in ran.error

    def test_a_source_that_was_emptied_has_diverged(self, tmp_path: Path) -> None:
        write_stream(tmp_path / "orders", BEFORE)
        sync(tmp_path / "orders", tmp_path / "tier")
        shutil.rmtree(tmp_path / "orders")
        (tmp_path / "orders").mkdir()
        (tmp_path / "orders" / f"{0:020}.segment").write_bytes(b"OSIL\0\0\0\1")
        (tmp_path / "orders" / f"{0:020}.index").write_bytes(b"OSII\0\0\0\1")
        before = contents(tmp_path / "tier")

        ran = offload("sync", f"rabbitmq://{tmp_path}/orders", tmp_path / "tier")

        assert ran.code == 1
        assert "ends at offset 0" in ran.error
        assert contents(tmp_path / "tier") == before


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_sync_uploads_as_many_fragments_at_once_as_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Each upload waits until there are that many, and a little longer to reveal one too many."""
    under_way, most, put = 0, 0, PosixStore.put
    enough = asyncio.Event()

    async def counted(store: PosixStore, key: str, body: Body) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if most >= at_once:
            enough.set()
        await asyncio.wait_for(enough.wait(), 60)
        await asyncio.sleep(0.05)
        await put(store, key, body)
        under_way -= 1

    monkeypatch.setattr(PosixStore, "put", counted)

    assert run(["sync", SOURCE, str(tmp_path / "tier"), "--at-once", str(at_once)]) == 0

    assert most == at_once
