"""`offload ls` and `offload inspect`: they report what the tier holds, from the tier alone."""

from __future__ import annotations

import shutil
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

STORED = {"stored_bytes", "ratio", "codecs", "encrypted"}


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier with the real streams. Tests do not change it."""
    folder = tmp_path_factory.mktemp("look") / "tier"
    sync(DATA, folder)
    return folder


def make_small_tier(folder: Path) -> None:
    """Create the small tier of other tests, as a folder."""
    for key, raw in small_tier.make(folder).items():
        path = folder / "tier" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)


def make_trimmed_tier(folder: Path, *, timestamps_ms: list[int]) -> Path:
    """Create a stream of three fragments. The first two are in a group, and the first is trimmed."""
    write_stream(folder / "orders", simple_chunks(3, timestamps_ms=timestamps_ms), segment_chunks=1)
    (folder / "tier").mkdir()
    (folder / "tier" / TIER_ANCHOR).write_bytes(TierAnchor(branching_factor=2).encode())
    sync(folder / "orders", folder / "tier")
    assert offload("trim", folder / "tier", "orders", "--before", 3).code == 0
    return folder / "tier"


class TestLs:
    def test_ls_prints_one_object_per_stream_in_order_of_names(self, tier: Path) -> None:
        ran = offload("ls", tier, "--json")

        assert (ran.code, ran.stderr) == (0, "")
        assert [row["stream"] for row in ran.objects] == sorted(STREAMS)
        for row in ran.objects:
            assert set(row) == STREAM_TOTALS | STORED | {"newest", "name"}
            assert row | expected_totals(row["stream"]) == row

    def test_json_carries_every_column_of_the_table(self, tier: Path) -> None:
        table = [line.split("\t") for line in offload("ls", tier).lines]

        columns = [name.replace(" ", "_") for name in table[0]]
        for row, shown in zip(offload("ls", tier, "--json").objects, table[1:], strict=True):
            row["size"], row["stored"] = size_text(row["bytes"]), size_text(row["stored_bytes"])
            row["ratio"], row["codecs"] = f"{row['ratio']:.2f}", ", ".join(row["codecs"])
            assert [str(row[column]) for column in columns] == shown

    def test_ls_reports_the_same_numbers_as_sync(self, tmp_path: Path) -> None:
        [report] = sync(DATA / "tiny", tmp_path / "tier").objects

        [row] = offload("ls", tmp_path / "tier", "--json").objects

        assert {key: row[key] for key in STREAM_TOTALS} == {key: report[key] for key in STREAM_TOTALS}

    def test_ls_prints_a_head_and_one_line_per_stream(self, tier: Path) -> None:
        head, *rows = offload("ls", tier).lines

        assert head.startswith("stream\tmessages\t")
        assert [row.split("\t")[:2] for row in rows] == [
            [stream, str(MANIFEST["streams"][stream]["messages"])] for stream in sorted(STREAMS)
        ]

    def test_the_newest_time_ignores_trimmed_chunks(self, tmp_path: Path) -> None:
        """A wrong clock gave one chunk a later time. That chunk is trimmed, but its group still contains the
        time.
        """
        tier = make_trimmed_tier(tmp_path, timestamps_ms=[9000, 1000, 2000])

        assert offload("ls", tier).lines[1].split("	")[-1] == "1970-01-01T00:00:02.000Z"

    def test_a_damaged_group_fails_the_listing_of_one_stream_only(self, tmp_path: Path) -> None:
        tier = make_trimmed_tier(tmp_path, timestamps_ms=[9000, 1000, 2000])
        [group] = tier.rglob("*.group")
        group.unlink()

        table, json = offload("ls", tier), offload("ls", tier, "--json")

        assert (table.code, len(table.lines)) == (1, 1)
        assert (json.code, json.lines) == (1, [])
        assert group.name in table.error == json.error

    def test_ls_of_an_empty_tier_prints_nothing(self, tmp_path: Path) -> None:
        sync(DATA / "tiny", tmp_path / "tier")
        for path in sorted((tmp_path / "tier" / "tiny").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

        assert offload("ls", tmp_path / "tier", "--json").stdout == b""

    def test_ls_omits_a_stream_without_a_commit(self, tmp_path: Path) -> None:
        """A writer leaves this if it dies after the stream's anchor and before its first root."""
        sync(DATA / "tiny", tmp_path / "tier")
        for path in (tmp_path / "tier" / "tiny").glob("*/*"):
            path.unlink()

        assert offload("ls", tmp_path / "tier", "--json").stdout == b""
        assert offload("inspect", tmp_path / "tier", "tiny").code == 1


class TestInspect:
    @pytest.mark.parametrize("stream", STREAMS)
    def test_inspect_prints_one_document_with_totals_root_attempts_and_fragments(
        self, tier: Path, stream: str
    ) -> None:
        ran = offload("inspect", tier, stream, "--json")

        document = ran.document
        assert (ran.code, ran.stderr) == (0, "")
        names = ["stream", "totals", "root", "groups", "fragments", "attempts", "keys", "default_compression"]
        assert list(document) == [*names, "gaps"]
        assert document["stream"] == stream
        assert set(document["totals"]) == STREAM_TOTALS | STORED
        assert document["totals"] | expected_totals(stream) == document["totals"]
        assert list(document["root"]) == ROOT
        assert document["groups"] == document["attempts"] == []
        assert document["root"]["state"] == "live"
        assert document["root"]["object"] in keys(tier)

    @pytest.mark.parametrize(("options", "default"), [((), "none"), (("--compress", "zstd"), "zstd:1")])
    def test_inspect_shows_the_default_compression_of_the_tier(
        self, tmp_path: Path, options: tuple[str, ...], default: str
    ) -> None:
        """The fragments do not show it: each run may have had a codec of its own."""
        sync(DATA / "tiny", tmp_path / "tier", *options)

        assert (
            offload("inspect", tmp_path / "tier", "tiny", "--json").document["default_compression"] == default
        )
        shown = offload("inspect", tmp_path / "tier", "tiny").text
        assert f"default compression of the tier: {default}\n" in shown

    @pytest.mark.parametrize("stream", STREAMS)
    def test_the_fragments_of_a_stream_are_its_segments(self, tier: Path, stream: str) -> None:
        known = MANIFEST["streams"][stream]["segments"]
        rows = offload("inspect", tier, stream, "--json").document["fragments"]

        assert [
            (row["first_offset"], row["next_offset"], row["messages"], row["ledger_id"]) for row in rows
        ] == [(s["first_chunk_id"], s["next_offset"], s["messages"], s["first_chunk_id"]) for s in known]
        for row in rows:
            assert (tier / row["object"]).stat().st_size == row["stored_bytes"]
            assert str(UUID(row["attempt"])) in row["object"]

    def test_the_totals_are_the_sums_of_the_fragments(self, tier: Path) -> None:
        document = offload("inspect", tier, "batches", "--json").document

        for name in ("records", "messages", "bytes", "stored_bytes"):
            assert document["totals"][name] == sum(row[name] for row in document["fragments"])

    def test_inspect_shows_groups_without_fetching_them(self, tmp_path: Path) -> None:
        """The root describes each group, so `inspect` costs no more for a long stream."""
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

    def test_inspect_shows_running_attempts(self, tmp_path: Path) -> None:
        """A writer announces its attempts before it uploads, so `inspect` shows those of a crashed one."""
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

    def test_inspect_prints_a_tree(self, tier: Path) -> None:
        ran = offload("inspect", tier, "batches")

        assert ran.lines[0].startswith("batches  12240 messages in offsets [0, 12271)")
        assert "fragments: 4, ledgers: 4" in ran.text
        assert "[3669, 6937)" in ran.text

    def test_inspecting_an_unknown_stream_is_an_error(self, tier: Path) -> None:
        ran = offload("inspect", tier, "orders", "--json")

        assert (ran.code, ran.stdout) == (1, b"")
        assert ran.error.endswith("has no stream 'orders'; `offload ls` shows which it has")


class TestOneStreamsTrouble:
    def test_ls_shows_the_other_streams_beside_a_damaged_root(self, tmp_path: Path) -> None:
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

    def test_ls_shows_the_other_streams_beside_folders_whose_anchors_are_of_no_use(
        self, tmp_path: Path
    ) -> None:
        """One folder was copied under another name, and the anchor of another one is damaged."""
        tier = tmp_path / "tier"
        sync(DATA, tier)
        shutil.copytree(tier / "tiny", tier / "tiny-old")
        anchor = tier / "batches" / "stream.anchor"
        anchor.write_bytes(anchor.read_bytes()[:-2] + b"?\n")

        ran = offload("ls", tier, "--json")

        assert ran.code == 1
        assert [row["stream"] for row in ran.objects] == ["filtered", "tiny"]
        damaged, copied = ran.stderr.splitlines()
        assert damaged.startswith("offload: stream 'batches': batches/stream.anchor")
        assert damaged.endswith(f"offload rebuild file://{tier} batches")
        assert copied == (
            "offload: stream 'tiny-old': tiny-old/stream.anchor at byte 0: stream in the anchor: "
            "expected that of tiny-old/, found 'tiny'; "
            "if somebody renamed or copied this folder, move it back or out of the tier"
        )


class TestEncryptedStreams:
    """Nothing is asked of a key service: the commands run without `--keys`."""

    @pytest.fixture
    def encrypted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return a tier with a plain stream, and `orders`, whose second fragment is encrypted."""
        monkeypatch.setenv("OFFLOAD_KEY_MAIN", "bW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW0=")
        source, tier = tmp_path / "orders", tmp_path / "tier"
        write_stream(source, simple_chunks(2))
        sync(source, tier)
        sync(DATA / "tiny", tier)
        append_chunks(source, simple_chunks(1, first_offset=6))
        ran = offload("sync", f"rabbitmq://{source}", tier, "--keys", "keyenv:", "--encrypt", "main")
        assert ran.code == 0, ran.stderr
        monkeypatch.delenv("OFFLOAD_KEY_MAIN")
        return tier

    def test_ls_has_a_column_if_any_stream_is_encrypted(self, encrypted: Path) -> None:
        table = [line.split("\t") for line in offload("ls", encrypted).lines]

        assert [row[-1] for row in table] == ["encrypted", "yes", "no"]
        assert [row["encrypted"] for row in offload("ls", encrypted, "--json").objects] == [True, False]

    def test_inspect_shows_keys_and_which_fragments_need_one(self, encrypted: Path) -> None:
        document = offload("inspect", encrypted, "orders", "--json").document
        verbose = offload("inspect", encrypted, "orders", "--json", "--verbose").document

        [key] = document["keys"]
        assert key | {"key": ""} == {"key": "", "label": "main", "own": False, "generation": 1, "copies": 2}
        assert document["totals"]["encrypted"]
        assert [row["encrypted"] for row in document["fragments"]] == [False, True]
        assert [row.get("key") for row in document["fragments"]] == [None, None]
        assert [row.get("key") for row in verbose["fragments"]] == [None, key["key"]]

        tree, more = (
            offload("inspect", encrypted, "orders", *options).text for options in ((), ("--verbose",))
        )
        assert f"{key['key']}  master key main (shared), generation 1, 2 copies" in tree
        assert ", not encrypted\n" in tree
        assert tree.endswith(", encrypted\n")
        assert more.endswith(f", encrypted by key {key['key']}\n")

    def test_inspect_shows_a_key_that_is_half_lost_or_damaged(self, encrypted: Path) -> None:
        copy, key = sorted(encrypted.glob("orders/keys/*"))
        key.unlink()
        assert offload("inspect", encrypted, "orders", "--json").document["keys"][0]["copies"] == 1
        copy.write_bytes(b"damaged")

        [row] = offload("inspect", encrypted, "orders", "--json").document["keys"]

        assert (row["label"], row["own"], row["copies"]) == (None, None, 1)
        assert "damaged, generation 1, 1 copy" in offload("inspect", encrypted, "orders").text

    def test_a_plain_stream_has_no_word_of_encryption(self, encrypted: Path) -> None:
        text = offload("inspect", encrypted, "tiny", "--verbose").text

        assert "key" not in text
        assert "crypt" not in text
