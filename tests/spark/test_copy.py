"""A copy from tier to tier by Spark's tasks: the same streams there, also after growth, a kill, or damage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import osiris_data
from offload_spark.jobs.copy import copy

from offload import Blocking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = 100_000
"""Bytes of a piece: a ledger of the real streams is one, and some are several fragments."""


def delivered(url: str, options: Mapping[str, Any] | None = None) -> dict[str, list[tuple[int, int, bytes]]]:
    """All that a tier's readers get, by stream: offset, time and body of every message."""
    with Blocking(url, storage_options=options) as tier:
        assert not tier.verify().damages
        return {
            stream: [
                (batch.offset + i, batch.timestamp_ms, body)
                for batch in tier.read(stream)
                for i, body in enumerate(batch.bodies)
            ]
            for stream in tier.streams()
        }


def test_all_streams_are_there_as_they_were(spark: SparkSession, tier: str, tmp_path: Path) -> None:
    target = str(tmp_path / "copy")

    done = copy(spark, tier, target, piece_size_bytes=SMALL, read_back=True)

    assert delivered(target) == delivered(tier)
    assert [each.stream for each in done] == sorted(osiris_data.STREAMS)
    again = copy(spark, tier, target)
    assert [(each.fragments, each.taken_over) for each in again] == [(0, 0)] * 3
