"""`offload trim`: quantities as users write them, its output, and kills at any moment."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from campaign import CAMPAIGN
from command_line import (
    SEED,
    STREAM_TOTALS,
    bodies,
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
from osiris_writer import TIMESTAMP_MS, simple_chunks, write_stream

from offload import StreamReader
from offload.cli.kit.ending import Usage
from offload.cli.kit.quantities import parse_duration, parse_size
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR
from offload.formats.root import decode_root

CHUNKS = 12
"""Of three messages, each in a segment of its own."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_stream(tmp_path / "orders", simple_chunks(CHUNKS), segment_chunks=1)
    return tmp_path / "orders"


@pytest.fixture
def tier(tmp_path: Path, source: Path) -> Path:
    """A tier whose groups take two entries, so that twelve fragments need groups of every kind."""
    return synced(source, tmp_path / "tier")


def synced(source: Path, tier: Path) -> Path:
    tier.mkdir()
    (tier / TIER_ANCHOR).write_bytes(TierAnchor(branching_factor=2).encode())
    sync(source, tier)
    assert {".mgroup"} <= {Path(key).suffix for key in keys(tier)}
    return tier


def totals(tier: Path) -> dict[str, Any]:
    [row] = offload("ls", tier, "--json").objects
    return {key: row[key] for key in STREAM_TOTALS}


class TestQuantities:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("90s", 90),
            ("15m", 900),
            ("36h", 129_600),
            ("7d", 604_800),
            ("2w", 1_209_600),
            ("0s", 0),
            ("1.5h", 5400),
            ("1 D", 86_400),
            ("0.001s", 0.001),
        ],
    )
    def test_a_duration_is_a_number_and_a_unit(self, text: str, seconds: float) -> None:
        assert parse_duration(text, option="--max-age") == seconds

    @pytest.mark.parametrize(
        "text", ["", "7", "d", "-7d", "7y", "7d7h", "1e3s", "7 d d", "\u0667d", "7d\n8d"]
    )
    def test_a_malformed_duration_is_refused(self, text: str) -> None:
        with pytest.raises(Usage, match=r"--max-age takes .* such as 36h or 7d"):
            parse_duration(text, option="--max-age")

    @pytest.mark.parametrize(
        ("text", "size_bytes"),
        [
            ("0", 0),
            ("1000000", 10**6),
            ("12B", 12),
            ("3kB", 3000),
            ("64MiB", 2**26),
            ("100GB", 10**11),
            ("1.5TiB", 3 * 2**39),
            ("2pb", 2 * 10**15),
            ("1 GiB", 2**30),
            ("1.5", 1),
        ],
    )
    def test_a_size_is_a_number_and_a_unit(self, text: str, size_bytes: int) -> None:
        assert parse_size(text, option="--max-bytes") == size_bytes

    @pytest.mark.parametrize("text", ["", "GB", "-1", "1XB", "1K", "1GBit", "0x10", "1,5GB", "nan"])
    def test_a_malformed_size_is_refused(self, text: str) -> None:
        with pytest.raises(Usage, match="--max-bytes takes bytes, such as 100GB, 64MiB"):
            parse_size(text, option="--max-bytes")


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ([], "trim needs a limit: --max-age 7d, --max-bytes 100GB or --before OFFSET"),
            (
                ["--dry-run", "--json"],
                "trim needs a limit: --max-age 7d, --max-bytes 100GB or --before OFFSET",
            ),
            (
                ["--max-age", "7"],
                "--max-age takes a number and one of s, m, h, d, w, such as 36h or 7d, not '7'",
            ),
            (["--max-bytes", "7q"], "--max-bytes takes bytes, such as 100GB, 64MiB or 1000000, not '7q'"),
        ],
    )
    def test_wrong_arguments_give_one_line_and_exit_code_2(
        self, tier: Path, arguments: list[str], says: str
    ) -> None:
        before = contents(tier)

        ran = offload("trim", tier, "orders", *arguments)

        assert (ran.code, ran.stdout, ran.error) == (2, b"", f"offload: {says}")
        assert contents(tier) == before

    def test_an_offset_below_0_is_refused(self, tier: Path) -> None:
        assert offload("trim", tier, "orders", "--before", -1).code == 2

    def test_trimming_an_unknown_stream_is_an_error(self, tier: Path) -> None:
        ran = offload("trim", tier, "invoices", "--before", 9)

        assert (ran.code, ran.stdout) == (1, b"")
        assert "has no stream 'invoices'" in ran.error


class TestOutput:
    def test_trim_says_what_it_deleted_and_what_remains(self, tier: Path) -> None:
        ran = offload("trim", tier, "orders", "--before", 10)

        assert (ran.code, ran.stderr) == (0, "")
        gone, stays = ran.lines
        assert gone.startswith("orders: dropped 3 fragments, ")
        assert gone.endswith(", offsets [0, 9)")
        assert stays.startswith("orders: 9 fragments, ")
        assert stays.endswith(", offsets [9, 36) stay")

    def test_trim_says_that_there_is_nothing_to_delete(self, tier: Path) -> None:
        before = contents(tier)

        ran = offload("trim", tier, "orders", "--before", 2)

        assert ran.lines[0] == "orders: nothing to drop"
        assert ran.code == 0
        assert contents(tier) == before

    def test_a_person_who_does_not_say_yes_keeps_everything(self, tier: Path) -> None:
        before = contents(tier)

        ran = on_a_terminal("", "trim", tier, "orders", "--before", 10)

        assert (ran.code, contents(tier)) == (1, before)
        assert ran.lines[0].startswith("orders: would drop 3 fragments, ")
        assert ran.stderr.endswith("offload: nothing was dropped of stream 'orders'\n")

    def test_a_person_says_yes_once_or_beforehand(self, tier: Path) -> None:
        answered = on_a_terminal("y", "trim", tier, "orders", "--before", 10)
        beforehand = on_a_terminal("n", "trim", tier, "orders", "--before", 36, "--yes")

        assert "orders: dropped 3 fragments, " in answered.text
        assert beforehand.lines[-1] == "orders: nothing stays; offset 36 is the next"

    def test_trim_can_empty_a_stream(self, tier: Path) -> None:
        ran = offload("trim", tier, "orders", "--before", 36)

        assert ran.lines[-1] == "orders: nothing stays; offset 36 is the next"

    def test_a_dry_run_says_would_and_changes_nothing(self, tier: Path) -> None:
        before = contents(tier)

        ran = offload("trim", tier, "orders", "--before", 10, "--dry-run")

        gone, stays = ran.lines
        assert gone.startswith("orders: would drop 3 fragments, ")
        assert stays.endswith(", offsets [9, 36) would stay")
        assert contents(tier) == before

    @pytest.mark.parametrize("before", [2, 10, 36])
    def test_trim_prints_one_json_object_with_correct_sums(self, tier: Path, before: int) -> None:
        was = totals(tier)

        [said] = offload("trim", tier, "orders", "--before", before, "--dry-run", "--json").objects
        [done] = offload("trim", tier, "orders", "--before", before, "--json").objects

        dropped = done.pop("dropped")
        assert said.pop("dropped") == dropped
        assert [*dropped] == [
            "ledgers", "fragments", "messages", "first_offset", "next_offset", "bytes", "stored_bytes"
        ]  # fmt: skip
        assert (said.pop("dry_run"), done.pop("dry_run")) == (True, False)
        assert done == totals(tier)
        assert {**said, "version": 0} == {**done, "version": 0}
        for key in ("ledgers", "fragments", "messages", "bytes"):
            assert dropped[key] + done[key] == was[key]
        assert (dropped["first_offset"], dropped["next_offset"]) == (0, done["first_offset"])


def test_a_trim_by_age_deletes_older_fragments_and_keeps_the_last(tmp_path: Path) -> None:
    now_ms = int(time.time() * 1000)
    ages_hours = [50, 40, 30, 20, 10]
    chunks = simple_chunks(5, timestamps_ms=[now_ms - hours * 3_600_000 for hours in ages_hours])
    write_stream(tmp_path / "orders", chunks, segment_chunks=1)
    sync(tmp_path / "orders", tmp_path / "tier")

    assert offload("trim", tmp_path / "tier", "orders", "--max-age", "35h").code == 0
    assert totals(tmp_path / "tier")["first_offset"] == 6
    assert offload("trim", tmp_path / "tier", "orders", "--max-age", "1s").code == 0
    assert totals(tmp_path / "tier")["first_offset"] == 12


def test_a_trim_by_size_deletes_the_oldest_fragments_and_keeps_the_last(tier: Path) -> None:
    """The size is that of the chunks, as `ls --json` reports it."""
    size = totals(tier)["bytes"]

    offload("trim", tier, "orders", "--max-bytes", size // 2)
    assert 0 < totals(tier)["bytes"] <= size // 2
    offload("trim", tier, "orders", "--max-bytes", "0")
    assert (totals(tier)["fragments"], totals(tier)["first_offset"]) == (1, 33)


def test_reads_verifies_and_syncs_work_beside_a_trim(tier: Path, source: Path) -> None:
    """The source still has the trimmed data, and a sync does not copy it again."""
    offload("trim", tier, "orders", "--before", 10)

    assert [line["offset"] for line in read(tier, "orders").objects] == [*range(9, 36)]
    assert read(tier, "orders", "--from", 4, "--limit", 1).error == (
        "note: offset 4 is below the first; reading starts at offset 9"
    )
    assert read(tier, "orders", "--from", f"@{TIMESTAMP_MS}", "--limit", 1).objects[0]["offset"] == 9
    assert verify(tier)[0] == 0
    [nothing_new] = sync(source, tier).objects
    assert (nothing_new["first_offset"], nothing_new["uploaded_bytes"]) == (9, 0)

    write_stream(source, simple_chunks(2, first_offset=36), segment_chunks=1)
    [grown] = sync(source, tier).objects
    assert (grown["first_offset"], grown["next_offset"], grown["fragments"]) == (9, 42, 11)
    assert [line["offset"] for line in read(tier, "orders").objects] == [*range(9, 42)]


def test_a_sync_continues_an_emptied_stream(tier: Path, source: Path) -> None:
    offload("trim", tier, "orders", "--before", 36)
    write_stream(source, simple_chunks(2, first_offset=36), segment_chunks=1)

    [grown] = sync(source, tier).objects

    assert (grown["first_offset"], grown["next_offset"], grown["fragments"]) == (36, 42, 2)
    assert len(bodies(tier, "orders")) == 6


def test_a_reader_overtaken_by_a_trim_says_so_on_stderr(tier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep deletes the trimmed data immediately after the reader has opened the stream."""
    opened = StreamReader.open
    swept = [path for number in (0, 3, 6) for path in tier.glob(f"orders/data/{number:020}.*")]

    async def open_and_be_overtaken(*args: Any, **options: Any) -> StreamReader:
        reader = await opened(*args, **options)
        ran = finish(start("trim", tier, "orders", "--before", 10))
        assert ran.code == 0, ran.stderr
        for path in swept:
            path.unlink()
        return reader

    monkeypatch.setattr(StreamReader, "open", open_and_be_overtaken)
    ran = read(tier, "orders")

    assert [line["offset"] for line in ran.objects] == [*range(9, 36)]
    assert (
        ran.error == "note: offsets [0, 9) were trimmed before they were read; reading continues at offset 9"
    )


def test_a_trim_killed_at_any_call_completes_when_run_again(tmp_path: Path, source: Path) -> None:
    """Several trims are each killed at a random call. Totals stay correct, and only roots are added."""
    tier = synced(source, tmp_path / "tier")
    objects = keys(tier)
    print(f"OFFLOAD_SEED={SEED}")
    chance = random.Random(f"{SEED} trim")
    calls = calls_of(finish(start_dying(0, "trim", tier, "orders", "--before", 3)))

    was = 3
    for before in range(6, 36, 6 if CAMPAIGN else 24):
        # later cuts take another path down the tree
        killed = finish(start_dying(chance.randint(1, calls), "trim", tier, "orders", "--before", before))
        assert killed.code in (0, -signal.SIGKILL), killed.stderr
        assert totals(tier)["first_offset"] in (was, before)
        assert verify(tier)[0] == 0
        ran = offload("trim", tier, "orders", "--before", before)
        assert ran.code == 0, ran.stderr

        row = totals(tier)
        left = (36 - before) // 3
        assert (row["first_offset"], row["fragments"], row["ledgers"]) == (before, left, left)
        assert row["messages"] == row["records"] == 36 - before
        assert [line["offset"] for line in read(tier, "orders").objects] == [*range(before, 36)]
        was = before
    assert objects <= keys(tier)
    assert {Path(key).suffix for key in keys(tier) - objects} == {".manifest"}
    for path in tier.glob("orders/metadata/*.manifest"):
        decode_root(path.read_bytes(), where=path.name)  # this checks all invariants
