"""Spark reads any catalogue: read-only layouts, Pulsar's too, and an offloader that keeps no objects."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from campaign import campaign
from foreign_tier import LinesCatalogue, write_lines
from offload_conformance import ledger_of
from pulsar_sets import objects_of
from spark.conftest import SQLITE_LEDGER
from spark.in_process import Tier

from offload import StreamWriter
from offload.ground.errors import NotOffloaded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """A folder of the layout with seven records in two files."""
    root = tmp_path / "lines"
    write_lines(root, "orders", 0, 1000, ["a", "b", "c", "d"])
    write_lines(root, "orders", 4, 2000, ["e", "f", "g"])
    return root


def test_a_read_only_layout_is_planned_and_scanned(lines: Path) -> None:
    tier = Tier(make=lambda: LinesCatalogue(lines))
    with tier.blocking:
        rows = tier.rows(tier.plan(minpartitions="3"))
        late = tier.rows(tier.plan(startingtimestamp="1001"))

    assert [(offset, at, value) for _, _, offset, at, value in rows] == [
        (offset, 1000 if offset < 4 else 2000, b"abcdefg"[offset : offset + 1]) for offset in range(7)
    ]
    assert [row[2] for row in late] == [4, 5, 6]


def test_a_file_that_is_lost_during_a_read_fails_its_task(lines: Path) -> None:
    """The newest view does not name the file, so it was trimmed.

    With `failOnDataLoss=false` the read continues.
    """
    tier = Tier(make=lambda: LinesCatalogue(lines))
    with tier.blocking:
        planned = tier.plan()
        (lines / "orders" / "0.1000.lines").unlink()

        with pytest.raises(NotOffloaded, match="were trimmed"):
            tier.rows(planned)
        rest = tier.rows(planned, failondataloss="false")

    assert [row[2] for row in rest] == [4, 5, 6]


@campaign("Spark over other catalogues; make test plans and scans them without Spark")
def test_spark_counts_the_records_of_all(
    spark: SparkSession, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's workers find the plugins as users' processes do."""
    monkeypatch.syspath_prepend(SQLITE_LEDGER)
    asyncio.run(_filled(tmp_path / "tier.db"))

    bucket = tmp_path / "bucket"
    bucket.mkdir()
    for row, data in objects_of("messages"):
        (bucket / row["key"]).write_bytes(data)

    urls = (f"lines://{lines}", f"sqlite-ledger://{tmp_path / 'tier.db'}", f"pulsar+file://{bucket}")

    assert [spark.read.format("offload").load(url).count() for url in urls] == [7, 30, 124]


async def _filled(path: Path) -> None:
    from offload_sqlite_ledger import SqliteLedgers

    offloader: Any = SqliteLedgers(path)
    async with offloader:
        writer = await StreamWriter.claim(offloader, "orders")
        await writer.offload([ledger_of(10, first_offset=first) for first in (0, 10, 20)])
