"""A view whose entries do not show which records are messages: every number of messages is still right.

Each fragment has a tracking record at both of its ends, and the newest has nothing else.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import offload
from foreign_tier import write_lines
from kit.installed import declare
from offload_spark.java_plans import certain_rows, with_rows
from spark.in_process import Tier
from uncounted_tier import UncountedCatalogue

from offload import AtEdge, Blocking, Corrupt, StreamReader, VerifyReport
from offload.opening.tables import ArrowTier
from offload.read.tables import count_messages
from offload.restore.archived_parts import archived_parts
from offload.restore.target import origin_of
from offload.upkeep.verify.entries import check_table
from offload.upkeep.verify.tier import verify

LINES = {0: ["#", "a", "b", "#"], 4: ["#", "c", "#"], 7: ["#", "#"], 9: ["#"]}
OFFSETS = [1, 2, 5]
"""The offsets of the messages."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(declare(tmp_path / "site", "uncounted", {"uncounted": "uncounted_tier"}))
    for first_offset, lines in LINES.items():
        write_lines(tmp_path / "place", "orders", first_offset, 1000 + first_offset, lines)
    write_lines(tmp_path / "place", "silent", 0, 1000, ["#", "#"])
    return tmp_path / "place"


def test_messages_of_any_range_are_counted_by_tables(root: Path) -> None:
    async def main() -> None:
        tier = UncountedCatalogue(root)
        reader = await StreamReader.open(tier, "orders")
        for begin in range(11):
            for end in range(begin, 11):
                counted = await count_messages(tier, reader, begin, until=end)
                assert counted == sum(begin <= offset < end for offset in OFFSETS)

    asyncio.run(main())


def test_arrow_counts_the_rows_that_it_gives(root: Path) -> None:
    with ArrowTier.around(Blocking.around(lambda: UncountedCatalogue(root))) as tier:
        stream = tier["orders"]

        assert stream.count() == stream.to_arrow().num_rows == len(OFFSETS)
        assert "at most 10 rows in offsets [0, 10)" in repr(stream)


def test_ls_and_inspect_mark_a_bound_as_one(root: Path) -> None:
    url = f"uncounted://{root}"
    [row, _] = offload("ls", url, "--json").objects

    assert (row["messages"], row["fragments"], row["counts_messages"]) == (10, 4, False)
    assert "≤ 10\t0\t10" in offload("ls", url).text
    assert "≤ 10 messages in offsets [0, 10)" in offload("inspect", url, "orders").text


def test_the_last_message_is_found_in_tables_from_the_end(root: Path) -> None:
    async def main() -> None:
        tier = UncountedCatalogue(root)
        last = await (await tier.view("orders")).last_with_messages()
        reader = await StreamReader.open(tier, "orders")

        assert last is not None
        assert (last.first_offset, last.next_offset) == (4, 7)
        assert tier.opened == [f"orders/{first}.{1000 + first}.lines" for first in (9, 7, 4)]
        assert await reader.offset_of(AtEdge.LAST) == 5
        assert await (await tier.view("silent")).last_with_messages() is None

    asyncio.run(main())


def test_verify_takes_the_number_of_an_entry_for_a_bound(root: Path) -> None:
    async def main() -> None:
        report = await verify(UncountedCatalogue(root))

        assert isinstance(report, VerifyReport)
        assert (report.objects, report.damages) == (5, [])

    asyncio.run(main())


def test_verify_reports_more_messages_than_the_bound(root: Path) -> None:
    async def main() -> None:
        view = await UncountedCatalogue(root).view("orders")
        entry = await view.find(0)
        assert entry is not None
        table = await (await view.open(entry)).table()

        check_table(table, replace(entry, messages=2), is_measured=False, counts=False, where="here")
        with pytest.raises(Corrupt, match="messages: expected 1, found 2"):
            check_table(table, replace(entry, messages=1), is_measured=False, counts=False, where="here")

    asyncio.run(main())


def test_spark_takes_no_partition_for_certain_rows(root: Path) -> None:
    """A limit of three rows must not end the plan after three offsets."""
    tier = Tier(make=lambda: UncountedCatalogue(root))
    with tier.blocking:
        planned = tier.plan(stream="orders", minpartitions="4")

        assert sum(certain_rows(part) for parts in planned for part in parts) == 0
        assert with_rows(planned, 3) == planned
        assert [row[2] for row in tier.rows(planned)] == OFFSETS


def test_a_restore_expects_tracking_records(root: Path) -> None:
    async def main() -> None:
        tier = UncountedCatalogue(root)
        reader = await StreamReader.open(tier, "orders")
        [archive] = (await archived_parts(tier, reader, AtEdge.FIRST)).archives

        assert origin_of(archive, 0).has_tracking

    asyncio.run(main())
