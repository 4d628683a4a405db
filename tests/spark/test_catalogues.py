"""Spark reads any catalogue: a layout that is only read, and an offloader that keeps no objects."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from foreign_tier import LinesCatalogue, installed, write_lines
from offload_conformance import ledger_of
from spark.in_process import Tier

from offload import StreamWriter
from offload.errors import NotOffloaded

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "offload-sqlite-ledger"

COUNT = """
import sys
from offload_spark import session
spark = session(master="local[1]", name="catalogues")
for url in sys.argv[1:]:
    print(spark.read.format("offload").load(url).count())
spark.stop()
"""


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Seven records in two files."""
    root = tmp_path / "lines"
    write_lines(root, "orders", 0, 1000, ["a", "b", "c", "d"])
    write_lines(root, "orders", 4, 2000, ["e", "f", "g"])
    return root


def test_a_layout_that_is_only_read_is_planned_and_scanned(lines: Path) -> None:
    tier = Tier(lambda: LinesCatalogue(lines))
    with tier.blocking:
        rows = tier.rows(tier.plan(minpartitions="3"))
        late = tier.rows(tier.plan(startingtimestamp="1001"))

    assert [(offset, at, value) for _, _, offset, at, value in rows] == [
        (offset, 1000 if offset < 4 else 2000, b"abcdefg"[offset : offset + 1]) for offset in range(7)
    ]
    assert [row[2] for row in late] == [4, 5, 6]


def test_what_such_a_layout_loses_while_it_is_read_is_told(lines: Path) -> None:
    """A file that the newest view does not name was trimmed: the task fails, unless the user goes on."""
    tier = Tier(lambda: LinesCatalogue(lines))
    with tier.blocking:
        planned = tier.plan()
        (lines / "orders" / "0.1000.lines").unlink()

        with pytest.raises(NotOffloaded, match="were trimmed"):
            tier.rows(planned)
        rest = tier.rows(planned, failondataloss="false")

    assert [row[2] for row in rest] == [4, 5, 6]


def test_spark_itself_counts_both(lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes that find the plugins as users' processes do."""
    monkeypatch.syspath_prepend(EXAMPLE)
    asyncio.run(_filled(tmp_path / "tier.db"))
    site = installed(tmp_path / "site")
    installed(site, "sqlite-ledger", "offload_sqlite_ledger.plugin")
    path = os.pathsep.join(map(str, (site, EXAMPLE, ROOT / "tests", *_packages())))

    done = subprocess.run(
        [sys.executable, "-c", COUNT, f"lines://{lines}", f"sqlite-ledger://{tmp_path / 'tier.db'}"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["7", "30"]


async def _filled(path: Path) -> None:
    from offload_sqlite_ledger import SqliteLedgers

    offloader: Any = SqliteLedgers(path)
    async with offloader:
        writer = await StreamWriter.claim(offloader, "orders")
        await writer.offload([ledger_of(10, first_offset=first) for first in (0, 10, 20)])


def _packages() -> list[Path]:
    """What this checkout is found by."""
    return [ROOT, *(ROOT / name for name in ("backends", "plugins", "conformance"))]
