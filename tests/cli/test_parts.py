"""Tests that commands show a stream and its parts as one stream, and a part by its own name alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from command_line import offload, read

from offload import MemoryHandle, StreamWriter, build_chunk, open_tier
from offload.model.part import StreamPart

PARTS = ((0, 6), (9, 3), (10, 4))
"""The first offset and the number of records of each part. Part 2 is behind a gap, and part 3 is a fork."""
RECORDS = [(number, first + k) for number, (first, count) in enumerate(PARTS, start=1) for k in range(count)]
"""The part and the offset of every record, in the order of reading."""


async def write(url: str) -> None:
    """Write the stream `orders` with its parts, one fragment for each record, and a stream without parts."""
    async with open_tier(url) as tier:
        for number, (first, count) in enumerate(PARTS, start=1):
            part = StreamPart("orders", number)
            if number > 1:
                before = StreamPart("orders", number - 1).name
                await tier.begin_part(part, before=await tier.load_manifest(before))
            writer = await StreamWriter.claim(tier, part.name, first_offset=first)
            for offset in range(first, first + count):
                body = b"%d/%d" % (number, offset)
                at_ms = 1000 * (10 * number + offset)
                chunk = build_chunk([body], offset=offset, timestamp_ms=at_ms, epoch=1)
                await writer.offload([MemoryHandle([chunk], ledger_id=offset)])
        writer = await StreamWriter.claim(tier, "plain")
        await writer.offload([MemoryHandle([build_chunk([b"x"], offset=0, timestamp_ms=5, epoch=1)])])


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """Return a tier with `orders` in three parts, and `plain`."""
    asyncio.run(write(str(tmp_path / "tier")))
    return tmp_path / "tier"


def shown(tier: Path, stream: str, *options: object) -> list[tuple[int, int]]:
    """Return the part and the offset of each message that `read` prints."""
    return [(row.get("part", 1), row["offset"]) for row in read(tier, stream, *options).objects]


class TestLs:
    def test_it_prints_one_row_with_the_totals_of_all_parts(self, tier: Path) -> None:
        head, orders, plain = (line.split("\t") for line in offload("ls", tier).lines)

        assert head[-1] == "parts"
        assert orders[:4] == ["orders", "13", "0", "14"]
        assert orders[-1] == "3"
        assert (plain[0], plain[-1]) == ("plain", "1")

    def test_verbose_prints_the_parts_below_their_stream(self, tier: Path) -> None:
        rows = [line.split("\t") for line in offload("ls", tier, "--verbose").lines[1:]]

        assert [(row[0], row[1], row[-1]) for row in rows] == [
            ("orders", "13", "3"),
            ("orders", "6", "part 1"),
            ("orders-part-2", "3", "part 2"),
            ("orders-part-3", "4", "part 3"),
            ("plain", "1", "1"),
        ]

    def test_json_has_the_sums_and_each_part(self, tier: Path) -> None:
        orders, plain = offload("ls", tier, "--json").objects

        assert "parts" not in plain
        assert [part["part"] for part in orders["parts"]] == [1, 2, 3]
        for key in ("messages", "records", "bytes", "stored_bytes", "fragments"):
            assert orders[key] == sum(part[key] for part in orders["parts"])
        assert orders["newest"] == orders["parts"][-1]["newest"] == "1970-01-01T00:00:43.000Z"

    def test_a_part_whose_anchor_is_lost_is_an_error_and_hides_no_other_row(self, tier: Path) -> None:
        (tier / "orders-part-2" / "stream.anchor").unlink()

        ran = offload("ls", tier)

        assert ran.code == 1
        assert [line.split("\t")[0] for line in ran.lines[1:]] == ["orders", "orders-part-3", "plain"]
        assert "orders-part-2/stream.anchor" in ran.error


class TestRead:
    def test_the_first_name_prints_all_parts_and_a_note_between_two(self, tier: Path) -> None:
        ran = read(tier, "orders")

        assert [(row.get("part", 1), row["offset"]) for row in ran.objects] == RECORDS
        gap, fork = ran.stderr.splitlines()
        assert gap.startswith("note: no part has the offsets [6, 9); part 2 begins at offset 9; ")
        assert fork.startswith(
            "note: part 3 begins at offset 10, so it repeats offsets below 12, with other records; "
        )

    def test_the_name_of_a_part_prints_it_alone(self, tier: Path) -> None:
        assert shown(tier, "orders-part-2") == [(1, 9), (1, 10), (1, 11)]

    @pytest.mark.parametrize(
        ("options", "begin"),
        [
            (("--from", "last"), (3, 13)),
            (("--from", 7), (2, 9)),
            (("--from", 11), (2, 11)),
            (("--from", 11, "--part", 3), (3, 11)),
            (("--from", "first", "--part", 2), (2, 9)),
            (("--from", "@30000"), (2, 10)),
        ],
    )
    def test_reading_begins_in_the_part_that_holds_the_position(
        self, tier: Path, options: tuple[object, ...], begin: tuple[int, int]
    ) -> None:
        assert shown(tier, "orders", *options) == RECORDS[RECORDS.index(begin) :]

    def test_a_part_that_the_stream_does_not_have_is_an_error(self, tier: Path) -> None:
        ran = offload("read", tier, "orders", "--part", 4)

        assert (ran.code, ran.stdout) == (1, b"")
        assert "stream 'orders' has no part 4; it has 1, 2, 3" in ran.error
