"""Tests of previews: what a stream lacks, and how it grows."""

from __future__ import annotations

import asyncio

from offload import MemoryHandle, Snapshot, build_chunk
from offload.service.preview import StreamPreview, _measured

NOW_MS = 1_800_000_000_000
CHUNK_SIZE_BYTES = len(build_chunk([b"x" * 1000] * 10, offset=0, timestamp_ms=0, epoch=1))


def measured(*ages_seconds: float) -> StreamPreview:
    """Return the preview of a stream that is not on the tier, with a chunk of 10 records of each age."""
    chunks = [
        build_chunk([b"x" * 1000] * 10, offset=10 * at, timestamp_ms=NOW_MS - int(age * 1000), epoch=1)
        for at, age in enumerate(ages_seconds)
    ]
    ledgers = [MemoryHandle([chunk]) for chunk in chunks]
    snapshot = Snapshot(ledgers=ledgers, first_offset=0, next_offset=10 * len(chunks))
    return asyncio.run(_measured(StreamPreview(stream="s", glob="*"), snapshot, None, NOW_MS))


def test_a_stream_that_is_not_on_the_tier_lacks_everything() -> None:
    seen = measured(7200, 100, 5)

    assert (seen.lag_records, seen.lag_size_bytes) == (30, 3 * CHUNK_SIZE_BYTES)
    assert seen.lag_seconds == 7200


def test_growth_is_that_of_the_last_hour() -> None:
    seen = measured(90_000, 3700, 100, 5)

    assert seen.growth.bytes_per_second == 2 * CHUNK_SIZE_BYTES / 3600
    assert seen.growth.chunks_per_second == 2 / 3600


def test_the_growth_of_a_young_source_is_that_of_its_life() -> None:
    assert measured(100, 50).growth.bytes_per_second == 2 * CHUNK_SIZE_BYTES / 100


def test_a_timestamp_in_the_future_is_no_lag() -> None:
    seen = measured(-500)

    assert seen.lag_seconds == 0
    assert seen.growth.bytes_per_second == CHUNK_SIZE_BYTES


def test_each_ledger_that_began_in_the_last_hour_counts_except_the_first_of_a_young_source() -> None:
    assert measured(90_000, 3700, 100, 5).growth.ledgers_per_second == 2 / 3600
    assert measured(100, 50).growth.ledgers_per_second == 1 / 100
