"""Tests that commands show a stream and its parts as one stream, and a part by its own name alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from campaign import CAMPAIGN, few
from command_line import calls_of, finish, keys, offload, read, start_dying

from offload import MemoryHandle, StreamWriter, build_chunk, delete_stream, open_tier
from offload.model.part import StreamPart

PARTS = ((0, 6), (9, 3), (10, 4))
"""The first offset and the number of records of each part. Part 2 is behind a gap, and part 3 is a fork."""
RECORDS = [(number, first + k) for number, (first, count) in enumerate(PARTS, start=1) for k in range(count)]
"""The part and the offset of every record, in the order of reading."""


async def write(url: str, numbers: Sequence[int] = (1, 2, 3), *, name: str = "orders") -> None:
    """Write a stream with these parts, one fragment for each record, and a stream without parts."""
    async with open_tier(url) as tier:
        for number in numbers:
            part, (first, count) = StreamPart(name, number), PARTS[number - 1]
            if number > 1:
                await tier.begin_part(part, before=None)
            writer = await StreamWriter.claim(tier, part.name, first_offset=first)
            for offset in range(first, first + count):
                body = b"%d/%d" % (number, offset)
                at_ms = 1000 * (10 * number + offset)
                chunk = build_chunk([body], offset=offset, timestamp_ms=at_ms, epoch=1)
                await writer.offload([MemoryHandle([chunk], ledger_id=offset)])
        if name != "orders":
            return
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

        assert head[-2:] == ["parts", "gaps"]
        assert orders[:4] == ["orders", "13", "0", "14"]
        assert orders[-2:] == ["3", "2"]
        assert (plain[0], *plain[-2:]) == ("plain", "1", "0")

    def test_verbose_prints_the_parts_below_their_stream(self, tier: Path) -> None:
        rows = [line.split("\t") for line in offload("ls", tier, "--verbose").lines[1:]]

        assert [(row[0], row[1], row[-2]) for row in rows] == [
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
        assert (orders["gaps"], orders["lost_records"]) == (2, 3)
        for key in ("messages", "records", "bytes", "stored_bytes", "fragments"):
            assert orders[key] == sum(part[key] for part in orders["parts"])
        assert orders["newest"] == orders["parts"][-1]["newest"] == "1970-01-01T00:00:43.000Z"

    def test_a_part_whose_anchor_is_lost_is_an_error_and_hides_no_other_row(self, tier: Path) -> None:
        (tier / "orders-part-2" / "stream.anchor").unlink()

        ran = offload("ls", tier)

        assert ran.code == 1
        assert [line.split("\t")[0] for line in ran.lines[1:]] == ["orders", "orders-part-3", "plain"]
        assert "orders-part-2/stream.anchor" in ran.error


GAPS = [
    {"stream": "orders", "part": 2, "from_offset": 6, "to_offset": 9, "records": 3, "kind": "lost"},
    {
        "stream": "orders",
        "part": 3,
        "from_offset": 12,
        "to_offset": 10,
        "records": None,
        "kind": "other-history",
    },
]


class TestGaps:
    def test_they_are_listed_with_the_number_of_lost_records(self, tier: Path) -> None:
        ran = offload("gaps", tier)

        assert ran.code == 1, "records are lost"
        assert [line.split("\t") for line in ran.lines[1:-1]] == [
            ["orders", "2", "6", "9", "3"],
            ["orders", "3", "12", "10", "not known"],
        ]
        assert ran.lines[-1] == "2 gaps, 3 records lost, and others of which it is not known"
        assert offload("gaps", tier, "orders", "--json").objects == GAPS

    def test_a_stream_without_a_gap_has_exit_code_0(self, tier: Path) -> None:
        ran = offload("gaps", tier, "plain")

        assert (ran.code, ran.lines) == (0, ["no gap"])

    def test_a_damaged_part_hides_no_gap_of_another_stream(self, tier: Path) -> None:
        asyncio.run(write(str(tier), name="other"))
        (tier / "orders-part-2" / "stream.anchor").unlink()

        ran = offload("gaps", tier, "--json")

        assert ran.code == 1
        assert [row["stream"] for row in ran.objects] == ["other", "other"]
        assert "orders-part-2/stream.anchor" in ran.error

    def test_inspect_shows_them_and_the_command_that_lists_them(self, tier: Path) -> None:
        assert offload("inspect", tier, "orders", "--json").document["gaps"] == GAPS
        assert (
            f"2 gaps, 3 records lost, and others of which it is not known:  offload gaps {tier} orders"
            in (offload("inspect", tier, "orders").text)
        )


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


def spans(tier: Path) -> list[tuple[int, int]]:
    """Return the first and the next offset of each part of `orders` that is there."""
    [orders] = [row for row in offload("ls", tier, "--json").objects if row["stream"] == "orders"]
    return [(part["first_offset"], part["next_offset"]) for part in orders.get("parts", [orders])]


class TestTrim:
    @few("limits of a trim over parts; make test has four of seven", 2)
    @pytest.mark.parametrize(
        ("options", "left"),
        [
            (("--before", 4), [(4, 6), (9, 12), (10, 14)]),
            (("--before", 11), [(6, 6), (11, 12), (10, 14)]),
            (("--before", 12), [(6, 6), (12, 12), (10, 14)]),
            (("--before", 13), [(6, 6), (12, 12), (13, 14)]),
            (("--max-bytes", 1), [(6, 6), (12, 12), (13, 14)]),
            (("--max-age", "1d"), [(6, 6), (12, 12), (13, 14)]),
            (("--max-bytes", "1GB"), [(0, 6), (9, 12), (10, 14)]),
        ],
    )
    def test_limits_count_all_parts_and_the_oldest_data_goes_first(
        self, tier: Path, options: tuple[object, ...], left: list[tuple[int, int]]
    ) -> None:
        """By age and size, the last fragment of the newest part stays, and of no other."""
        ran = offload("trim", tier, "orders", *options, "--json")

        assert ran.code == 0, ran.stderr
        assert spans(tier) == left
        [document] = ran.objects
        assert document["dropped"]["messages"] == 13 - document["messages"]

    def test_a_size_counts_the_bytes_of_newer_parts(self, tier: Path) -> None:
        """The records of `orders` have the same size but for the digits of an offset."""
        [orders] = [row for row in offload("ls", tier, "--json").objects if row["stream"] == "orders"]
        newest = sum(part["bytes"] for part in orders["parts"][1:])

        assert offload("trim", tier, "orders", "--max-bytes", newest).code == 0

        assert spans(tier) == [(6, 6), (9, 12), (10, 14)]

    def test_reading_from_first_begins_behind_a_part_that_was_trimmed_empty(self, tier: Path) -> None:
        offload("trim", tier, "orders", "--before", 11)

        assert shown(tier, "orders") == RECORDS[RECORDS.index((2, 11)) :]


class TestDelete:
    def test_the_first_name_deletes_all_parts(self, tier: Path) -> None:
        ran = offload("delete", tier, "orders", "--yes")

        assert ran.code == 0, ran.stderr
        assert [line.partition(":")[0] for line in ran.lines] == ["orders", "orders-part-2", "orders-part-3"]
        assert [row["stream"] for row in offload("ls", tier, "--json").objects] == ["plain"]
        assert offload("read", tier, "orders").code == 1
        assert offload("delete", tier, "orders", "--yes").lines == ["orders: already deleted, nothing to do"]

    def test_the_name_of_a_part_deletes_it_alone_and_says_that_readers_skip_it(self, tier: Path) -> None:
        ran = offload("delete", tier, "orders-part-2", "--yes")

        assert (ran.code, len(ran.lines)) == (0, 1)
        assert ran.error == "note: this is part 2 of stream 'orders', whose readers will skip it"
        assert shown(tier, "orders") == [record for record in RECORDS if record[0] != 2]
        assert offload("read", tier, "orders-part-2").error.endswith("was deleted"), "no sync begins it again"

    def test_a_deletion_that_is_killed_leaves_the_oldest_parts(self, tier: Path) -> None:
        """A kill at each call to the file system, and then the same command again."""
        calls = calls_of(finish(start_dying(0, "delete", tier, "orders", "--yes", "--dry-run")))
        left = set[int]()
        for number in range(calls, calls + 400, 12 if CAMPAIGN else 90):
            killed = finish(start_dying(number, "delete", tier, "orders", "--yes"))
            read_now = offload("read", tier, "orders")
            parts = sorted({row.get("part", 1) for row in read_now.objects})
            assert parts == [*range(1, len(parts) + 1)]
            left.add(len(parts))
            if killed.code == 0:
                break
        assert left >= {0, 3}


class TestCopy:
    def test_the_copy_is_read_as_one_stream(self, tier: Path, tmp_path: Path) -> None:
        copied = tmp_path / "copied"

        assert offload("copy", tier, copied).code == 0

        assert read(copied, "orders").objects == read(tier, "orders").objects
        assert spans(copied) == spans(tier)

    def test_a_named_stream_is_copied_with_its_parts_also_behind_one_that_was_deleted(
        self, tier: Path, tmp_path: Path
    ) -> None:
        copied = tmp_path / "copied"
        offload("delete", tier, "orders-part-2", "--yes")

        ran = offload("copy", tier, copied, "orders")

        assert ran.code == 0, ran.stderr
        assert shown(copied, "orders") == [record for record in RECORDS if record[0] != 2]

    def test_a_part_is_not_copied_onto_a_stream_of_its_own(self, tier: Path, tmp_path: Path) -> None:
        """The copy would hide it from the readers of its stream."""
        copied = tmp_path / "copied"
        asyncio.run(begin_stranger(str(copied)))

        ran = offload("copy", tier, copied, "orders")

        assert ran.code == 1
        assert "'orders-part-2' is not part 2 of 'orders'" in ran.stderr

    @pytest.mark.parametrize("stream", ["orders-part-3", "alone-part-2"])
    def test_the_first_stream_on_an_empty_target_may_be_named_like_a_part(
        self, stream: str, tier: Path, tmp_path: Path
    ) -> None:
        copied = tmp_path / "copied"
        asyncio.run(begin_stranger(str(tier), "alone-part-2"))

        ran = offload("copy", tier, copied, stream)

        assert ran.code == 0, ran.stderr
        assert read(copied, stream).objects == read(tier, stream).objects

    def test_a_part_does_not_take_the_name_of_a_stream_that_is_not_copied_yet(self, tmp_path: Path) -> None:
        source, copied = tmp_path / "source", tmp_path / "copied"
        asyncio.run(begin_stranger(str(source)))
        asyncio.run(write(str(source), numbers=(1, 3)))

        ran = offload("copy", source, copied, "orders")

        assert ran.code == 1
        assert "copy stream 'orders-part-2' first" in ran.stderr
        assert offload("copy", source, copied).code == 0
        assert read(copied, "orders-part-2").objects == read(source, "orders-part-2").objects
        assert spans(copied) == spans(source)

    @pytest.mark.parametrize("end", ["trim", "delete"])
    def test_a_stream_whose_first_part_has_no_data_is_found_by_its_name_in_the_copy(
        self, tier: Path, tmp_path: Path, end: str
    ) -> None:
        copied = tmp_path / "copied"
        if end == "trim":
            assert offload("trim", tier, "orders", "--before", 9, "--yes").code == 0
        else:  # as a deletion of all parts that was killed would not, but a person may
            asyncio.run(delete_first(str(tier)))

        for _ in range(2):  # the second copy finds what the first one made
            ran = offload("copy", tier, copied)
            assert ran.code == 0, ran.stderr

        assert shown(copied, "orders") == [record for record in RECORDS if record[0] != 1]
        assert offload("verify", copied, "orders").code == 0
        named = offload("copy", tier, tmp_path / "named", "orders")
        assert named.code == 0, named.stderr
        assert shown(tmp_path / "named", "orders") == shown(copied, "orders")


async def delete_first(url: str) -> None:
    async with open_tier(url) as tier:
        await delete_stream(tier, "orders")


class TestVerify:
    def test_the_name_of_a_stream_verifies_all_of_its_parts(self, tier: Path) -> None:
        [fragment] = (tier / "orders-part-3" / "data").glob("*00010.*")
        whole = offload("verify", tier, "orders", "--json").document
        raw = bytearray(fragment.read_bytes())
        raw[60] ^= 1
        fragment.write_bytes(raw)

        ran = offload("verify", tier, "orders", "--json")

        assert (whole["streams"], whole["damages"]) == (3, [])
        assert (ran.code, {each["stream"] for each in ran.document["damages"]}) == (1, {"orders-part-3"})
        assert offload("verify", tier, "orders-part-2").code == 0

    def test_an_interrupted_verify_of_a_stream_resumes_in_the_part_where_it_ended(self, tier: Path) -> None:
        of_part_2 = sorted(key for key in keys(tier) if key.startswith("orders-part-2/"))

        rest = offload("verify", tier, "orders", "--after", of_part_2[-1], "--json").document
        third = offload("verify", tier, "orders-part-3", "--json").document

        assert (rest["streams"], rest["judged_to"]) == (1, third["judged_to"])
        refused = offload("verify", tier, "orders", "--after", "plain/data/x")
        assert (refused.code, "is no object of stream 'orders'" in refused.error) == (1, True)

    def test_a_part_whose_anchor_is_lost_is_reported(self, tier: Path) -> None:
        (tier / "orders-part-2" / "stream.anchor").unlink()

        ran = offload("verify", tier, "orders")

        assert (ran.code, "orders-part-2/stream.anchor" in ran.text) == (1, True)


class TestSweep:
    def test_the_name_of_a_stream_sweeps_all_of_its_parts(self, tier: Path) -> None:
        offload("trim", tier, "orders", "--before", 11)
        offload("trim", tier, "plain", "--before", 1)

        ran = offload("sweep", tier, "orders", "--grace", "0", "--json")

        assert ran.code == 0, ran.stderr
        swept = [(row["stream"], row["deleted"]["trimmed"]["objects"]) for row in ran.document["streams"][:2]]
        assert swept == [("orders", 6), ("orders-part-2", 2)]
        assert [row["stream"] for row in ran.document["streams"][2:]] == ["orders-part-3"]
        assert [*(tier / "orders-part-2" / "data").glob("*00009.*")] == []

    def test_the_name_of_a_part_sweeps_it_alone(self, tier: Path) -> None:
        document = offload("sweep", tier, "orders-part-2", "--json").document

        assert [row["stream"] for row in document["streams"]] == ["orders-part-2"]

    def test_a_stream_that_is_only_named_like_a_part_is_not_swept_with_the_other(
        self, tmp_path: Path
    ) -> None:
        async def two_streams() -> None:
            async with open_tier(str(tmp_path / "tier")) as tier:
                for name in ("orders", "orders-part-2"):
                    await StreamWriter.claim(tier, name)

        asyncio.run(two_streams())

        document = offload("sweep", tmp_path / "tier", "orders", "--json").document

        assert [row["stream"] for row in document["streams"]] == ["orders"]

    def test_a_part_whose_anchor_is_lost_is_reported_and_part_1_is_swept(self, tier: Path) -> None:
        offload("trim", tier, "orders", "--before", 11)
        (tier / "orders-part-2" / "stream.anchor").unlink()

        ran = offload("sweep", tier, "orders", "--grace", "0", "--json")

        first, second = ran.document["streams"]
        assert (ran.code, first["stream"], first["errors"]) == (1, "orders", [])
        assert first["deleted"]["trimmed"]["objects"] == 6
        assert (second["stream"], second["deleted"]) == ("orders-part-2", {})
        assert "orders-part-2/stream.anchor" in ran.stderr


class TestInspect:
    def test_the_name_of_a_stream_shows_its_totals_and_each_part(self, tier: Path) -> None:
        shown = offload("inspect", tier, "orders")
        document = offload("inspect", tier, "orders", "--json").document
        [listed] = [row for row in offload("ls", tier, "--json").objects if row["stream"] == "orders"]

        assert shown.lines[0].startswith("orders  13 messages in offsets [0, 14), ")
        assert shown.lines[0].endswith(", in 3 parts")
        heads = [line for line in shown.lines if " messages in offsets " in line]
        assert [line.lstrip("├└─ ").split("  ")[0] for line in heads] == [
            "orders", "orders", "orders-part-2", "orders-part-3",
        ]  # fmt: skip
        assert document["totals"].items() <= listed.items()
        assert [part["part"] for part in document["parts"]] == [1, 2, 3]
        assert [len(part["fragments"]) for part in document["parts"]] == [6, 3, 4]

    def test_the_name_of_a_part_shows_it_alone(self, tier: Path) -> None:
        document = offload("inspect", tier, "orders-part-2", "--json").document

        assert (document["stream"], "parts" in document) == ("orders-part-2", False)

    def test_damage_to_a_part_hides_no_other_and_is_an_error(self, tier: Path) -> None:
        for root in (tier / "orders-part-2" / "metadata").glob("root.*"):
            root.write_bytes(b"damaged")

        ran = offload("inspect", tier, "orders", "--json")

        assert (ran.code, [part["part"] for part in ran.document["parts"]]) == (1, [1, 3])
        assert "orders-part-2/metadata/root." in ran.stderr


class TestALostAnchor:
    @pytest.mark.parametrize("raw", [None, "flipped"])
    def test_a_rebuild_asks_if_the_stream_is_a_part_and_restores_the_link(
        self, tier: Path, raw: str | None
    ) -> None:
        anchor = tier / "orders-part-2" / "stream.anchor"
        sound = anchor.read_bytes()
        anchor.unlink()
        if raw is not None:
            anchor.write_bytes(sound[:30] + bytes([sound[30] ^ 1]) + sound[31:])
        assert offload("read", tier, "orders").code == 1

        asked = offload("rebuild", tier, "orders-part-2", "--yes")
        assert asked.code != 0
        assert "add --part, or --no-part" in asked.error
        assert offload("rebuild", tier, "orders-part-2", "--yes", "--part").code == 0

        assert anchor.read_bytes() == sound
        assert shown(tier, "orders") == RECORDS

    def test_a_rebuild_restores_a_stream_of_its_own_if_told_so(self, tier: Path) -> None:
        (tier / "orders-part-3" / "stream.anchor").unlink()

        assert offload("rebuild", tier, "orders-part-3", "--yes", "--no-part").code == 0

        assert shown(tier, "orders") == RECORDS[:9]


async def begin_stranger(url: str, name: str = "orders-part-2") -> None:
    """Begin a stream that is only named like a part."""
    async with open_tier(url) as tier:
        writer = await StreamWriter.claim(tier, name)
        await writer.offload([MemoryHandle([build_chunk([b"own"], offset=0, timestamp_ms=5, epoch=1)])])
