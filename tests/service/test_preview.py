"""Tests of previews: what a stream lacks, how it grows, and what a month of it costs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from offload import MemoryHandle, Snapshot, build_chunk
from offload.service.config import RunConfig, StreamConfig
from offload.service.preview import MONTH_SECONDS, StreamPreview, _measured, cost_of

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


def config_of(**changes: Any) -> StreamConfig:
    return StreamConfig.model_validate(changes)


def test_a_stream_that_is_not_on_the_tier_lacks_everything() -> None:
    seen = measured(7200, 100, 5)

    assert (seen.lag_records, seen.lag_size_bytes) == (30, 3 * CHUNK_SIZE_BYTES)
    assert seen.lag_seconds == 7200


def test_growth_is_that_of_the_last_hour() -> None:
    seen = measured(90_000, 3700, 100, 5)

    assert seen.growth_bytes_per_second == 2 * CHUNK_SIZE_BYTES / 3600
    assert seen.chunks_per_second == 2 / 3600


def test_the_growth_of_a_young_source_is_that_of_its_life() -> None:
    assert measured(100, 50).growth_bytes_per_second == 2 * CHUNK_SIZE_BYTES / 100


def test_a_timestamp_in_the_future_is_no_lag() -> None:
    seen = measured(-500)

    assert seen.lag_seconds == 0
    assert seen.growth_bytes_per_second == CHUNK_SIZE_BYTES


def test_a_rare_record_is_a_commit_and_many_share_one() -> None:
    rules = config_of(max_lag="10s").rules
    rare = StreamPreview(stream="s", glob="*", chunks_per_second=1 / 3600)
    dense = StreamPreview(stream="s", glob="*", chunks_per_second=1000, growth_bytes_per_second=1e6)
    huge = StreamPreview(stream="s", glob="*", chunks_per_second=1000, growth_bytes_per_second=2**30)

    commits = [each.commits_per_month(rules) / MONTH_SECONDS for each in (rare, dense, huge)]
    assert commits == [pytest.approx(1 / 3600), pytest.approx(1 / 5), pytest.approx(16)]


@pytest.mark.parametrize(
    ("changes", "data"),
    [
        ({}, 1000 + 300 + 10 * MONTH_SECONDS),
        ({"max_age": "1d"}, 10 * 86_400),
        ({"max_age": "52w"}, 1000 + 300 + 10 * MONTH_SECONDS),
        ({"max_bytes": "500B"}, 500),
        ({"max_age": "1s", "max_bytes": "500B"}, 10),
    ],
)
def test_what_is_stored_a_month_from_now_is_what_retention_leaves(changes: dict[str, str], data: int) -> None:
    seen = StreamPreview(
        stream="s",
        glob="*",
        data_size_bytes=1000,
        stored_size_bytes=500,
        lag_size_bytes=300,
        growth_bytes_per_second=10,
    )

    assert seen.stored_bytes_in_a_month(config_of(**changes)) == data / 2


def test_prices_of_the_configuration_replace_list_prices() -> None:
    document = {"source": "rabbitmq:///x", "tier": "s3://b", "streams": {"*": {"max_lag": "10s"}}}
    seen = StreamPreview(stream="s", glob="*", chunks_per_second=1.0)
    listed = cost_of(RunConfig.model_validate(document), [seen])
    own = cost_of(RunConfig.model_validate(document | {"prices": {"write_per_1000": 1.0}}), [seen])

    assert listed is not None
    assert own is not None
    commits = MONTH_SECONDS / 5
    assert listed.requests == pytest.approx(3 * commits * 0.005 / 1000)
    assert own.requests == pytest.approx(2 * commits / 1000 + commits * 0.005 / 1000)


def test_a_folder_has_no_price() -> None:
    config = RunConfig.model_validate({"source": "rabbitmq:///x", "tier": "/tier"})

    assert cost_of(config, []) is None
