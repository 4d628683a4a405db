"""Tests of the costs of a month: its requests and its old roots are those of a real follower."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import pytest
from campaign import few
from follower_world import World

from offload import ObjectStoreOffloader
from offload.follow.follower import Follower
from offload.follow.rules import FollowRules
from offload.native.offloader import TierOptions
from offload.service.config import RunConfig
from offload.service.costs import (
    MONTH_SECONDS,
    ROOT_LIFE_SWEEPS,
    cost_of,
    root_size_bytes,
    work_of,
    writes_per_second,
)
from offload.service.preview import Growth, StreamPreview, _measured
from offload.store.memory import MemoryStore
from offload.upkeep.sweep.page import ROOTS_KEPT
from offload.upkeep.sweep.tier import sweep

LAG: Final = 30.0
SECONDS: Final = 20 * LAG
SMALL: Final = 30_000
"""A fragment size that less than a minute of the source fills."""


def config_of(tier: str = "s3://bucket/tier", **changes: Any) -> RunConfig:
    return RunConfig.model_validate({"source": "rabbitmq:///x", "tier": tier, **changes})


def preview(**changes: Any) -> StreamPreview:
    return StreamPreview(stream="s", glob="*", **{"source_next_offset": 9, **changes})


async def follow(
    world: World, rules: FollowRules, *, chunk_seconds: float, chunks_of_ledger: int, asks_broker: bool
) -> tuple[Counter[str], Growth, float]:
    """Let a chunk come again and again. Return the requests after the first minutes, the growth, the time."""
    options = TierOptions(fragment_size_bytes=rules.fragment_size_bytes)
    tier = ObjectStoreOffloader(world.store, options=options, env=world.clock.env())
    follower = Follower(source=world.source, offloader=tier, rules=rules, env=world.clock.env())
    due, begun, chunks = world.clock.now, 0.0, 0
    while not begun or world.clock.now < begun + SECONDS:
        if not begun and world.clock.now >= 1000.0 + 10 * LAG:  # the claim is over
            world.store.calls.clear()
            begun = world.clock.now
        while due <= world.clock.now:
            if chunks and chunks % chunks_of_ledger == 0:
                world.source.roll()
            world.source.append(records=1, timestamp_ms=int(1000 * due))
            due, chunks = due + chunk_seconds, chunks + 1
        world.source.committed_offset = world.source.next_offset if asks_broker else None
        world.clock.now += await follower.step()
    requests = Counter(call.operation for call in world.store.calls)
    async with await world.source.snapshot() as snapshot:
        seen = await _measured(preview(), snapshot, None, int(1000 * world.clock.now))
    return requests, seen.growth, world.clock.now - begun


@few("kinds of streams whose costs are estimated; make test has three of eight", 3)
@pytest.mark.parametrize("asks_broker", [False, True])
@pytest.mark.parametrize(
    ("chunk_seconds", "chunks_of_ledger", "fragment_size_bytes", "within"),
    [
        (1.0, 10**6, 2**26, 0.02),  # a dense stream
        (40.0, 10**6, 2**26, 0.02),  # a chunk is a copy
        (1.0, 50, 2**26, 0.1),  # ledgers end
        (0.1, 10**6, SMALL, 0.21),  # a copy has several fragments
    ],
)
def test_the_estimate_has_the_requests_that_a_follower_sends(
    chunk_seconds: float, chunks_of_ledger: int, fragment_size_bytes: int, within: float, asks_broker: bool
) -> None:
    rules = FollowRules(max_lag_seconds=LAG, hold_back_seconds=1.0, fragment_size_bytes=fragment_size_bytes)
    requests, growth, seconds = asyncio.run(
        follow(
            World(),
            rules,
            chunk_seconds=chunk_seconds,
            chunks_of_ledger=chunks_of_ledger,
            asks_broker=asks_broker,
        )
    )

    fragments, commits = writes_per_second(growth, rules, asks_broker=asks_broker)

    assert requests.keys() <= {"put", "create", "list"}
    assert fragments * seconds == pytest.approx(requests["put"], rel=within, abs=1)
    assert commits * seconds == pytest.approx(requests["create"], rel=within, abs=1)
    assert requests["list"] == requests["create"]


def roots(world: World) -> list[bytes]:
    """Return all roots that are stored."""
    store = world.store.inner
    assert isinstance(store, MemoryStore)
    return [raw for key, raw in store.objects.items() if "/root." in key]


def test_old_roots_are_stored_for_one_and_a_half_intervals_of_the_sweep() -> None:
    """The roots are counted at each look of four intervals, after two that fill the store."""
    sweep_seconds, rules = 4000.0, FollowRules(max_lag_seconds=400.0, hold_back_seconds=1.0)
    samples: list[int] = []

    async def scenario(world: World) -> None:
        follower = world.follower(rules)
        for interval in range(6):
            end = world.clock.now + sweep_seconds
            while world.clock.now < end:
                world.source.append()
                world.clock.now += await follower.step()
                if interval >= 2:
                    samples.append(len(roots(world)))
            await sweep(world.tier(), env=world.clock.env())

    asyncio.run(scenario(World()))

    commits = sweep_seconds / rules.look_seconds
    mean = sum(samples) / len(samples) - ROOTS_KEPT
    assert mean == pytest.approx(ROOT_LIFE_SWEEPS * commits, rel=0.1)


def test_a_root_has_half_of_the_entries_that_it_may_have() -> None:
    async def scenario(world: World) -> list[int]:
        follower = world.follower()
        for _ in range(100):
            world.source.append()
            await world.run(follower, seconds=LAG)
        return [len(raw) for raw in roots(world)]

    sizes = asyncio.run(scenario(World()))

    assert sum(sizes) / len(sizes) == pytest.approx(root_size_bytes(100), rel=0.05)
    assert root_size_bytes(10**9) == root_size_bytes(1024)


@pytest.mark.parametrize(
    ("rules", "data"),
    [
        ({}, 1000 + 300 + 10 * MONTH_SECONDS),
        ({"max_age": "1d"}, 10 * 86_400),
        ({"max_age": "52w"}, 1000 + 300 + 10 * MONTH_SECONDS),
        ({"max_bytes": "500B"}, 500),
        ({"max_age": "1s", "max_bytes": "500B"}, 10),
    ],
)
def test_what_is_stored_a_month_from_now_is_what_retention_leaves(rules: dict[str, str], data: int) -> None:
    growth = Growth(bytes_per_second=10)
    seen = preview(data_size_bytes=1000, stored_size_bytes=500, lag_size_bytes=300, growth=growth)

    assert work_of(seen, config_of(streams={"*": rules})).data_stored_bytes == data / 2


@pytest.mark.parametrize(
    ("tier", "prices", "provider", "requests"),
    [
        ("s3://b/t", {}, "AWS S3 Standard", 3 * 0.005),
        ("s3://b/t", {"write_per_1000": 1.0}, "the configuration and AWS S3 Standard", 2 * 1 + 0.005),
        ("/tier", {"write_per_1000": 1.0}, "the configuration", 2 * 1),
    ],
)
def test_prices_of_the_configuration_replace_list_prices(
    tier: str, prices: dict[str, float], provider: str, requests: float
) -> None:
    seen = preview(growth=Growth(chunks_per_second=1.0))

    cost = cost_of(config_of(tier, prices=prices, streams={"*": {"max_lag": "10s"}}), [seen, seen])

    assert cost is not None
    assert cost.price.provider == provider
    assert cost.requests == pytest.approx(2 * requests * MONTH_SECONDS / 2 / 1000)


@pytest.mark.parametrize(
    ("tier", "endpoint"),
    [("/tier", None), ("s3://b/t", "http://127.0.0.1:9000"), ("s3://b/t", "https://amazonaws.com.example")],
)
def test_a_folder_and_a_server_of_ones_own_have_no_price(tier: str, endpoint: str | None) -> None:
    options = {} if endpoint is None else {"endpoint_url": endpoint}

    assert cost_of(config_of(tier, options=options), []) is None


def test_an_endpoint_of_the_provider_itself_has_its_list_prices() -> None:
    regional = {"endpoint_url": "https://s3.eu-central-1.amazonaws.com"}

    cost = cost_of(config_of("s3://b/t", options=regional), [])

    assert cost is not None
    assert cost.price.provider == "AWS S3 Standard"
