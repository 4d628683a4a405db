"""Tests of sharing: tiers of one session share clients, turns, groups and metrics
(docs/adr/0021-session.md).
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
import session_backends as backends
from offload_conformance import ledger_of
from session_backends import CLOSED, MADE, Bucket, plugins

from offload import (
    Env,
    ObjectStoreOffloader,
    RequestLimits,
    Session,
    StreamWriter,
    TierOptions,
    TierPlan,
    TryAgain,
)
from offload.contracts.events import Event, ManifestCommitted, Waiting
from offload.store.retry import RetryPolicy


async def written(*tiers: Any) -> None:
    """Write a new stream of many fragments to each tier, all at the same time."""

    async def one(tier: Any) -> None:
        writer = await StreamWriter.claim(tier, f"orders-{uuid4()}")
        await writer.offload([ledger_of(40)])

    await asyncio.gather(*map(one, tiers))


MANY = TierOptions(fragment_size_bytes=1, uploads_max=32)


def most_puts(limits: RequestLimits, *urls: str, **options: Any) -> int:
    async def scenario() -> None:
        async with Session(plugins=plugins(), limits=limits) as session:
            await written(*(session.tier(url, options=MANY, storage_options=options) for url in urls))

    asyncio.run(scenario())
    return Bucket.most


def test_a_limit_of_n_requests_bounds_two_tiers_of_a_host_together() -> None:
    assert most_puts(RequestLimits(up_requests_max=3), "bucket://a/x", "bucket://a/y") == 3


def test_tiers_of_two_hosts_each_have_the_whole_limit() -> None:
    assert most_puts(RequestLimits(up_requests_max=3), "bucket://a/x", "bucket://b/x") == 6


def test_an_option_of_a_tier_overrides_that_limit_of_the_session_and_keeps_the_others() -> None:
    async def scenario() -> None:
        limits = RequestLimits(up_requests_max=3, down_requests_max=5)
        async with Session(plugins=plugins(), limits=limits) as session:
            own = session.tier("own://x", storage_options={"up_requests_max": "2"}, options=MANY)
            assert backends.CONTEXTS[-1] is not None
            assert backends.CONTEXTS[-1].limits == RequestLimits(up_requests_max=2, down_requests_max=5)
            await written(own)

    asyncio.run(scenario())
    assert Bucket.most == 2, "a store that the backend opens is bounded too"


@pytest.mark.parametrize(
    ("options", "together"),
    [({"up_requests_max": 2}, 3 + 2), ({"region": "north"}, 3 + 3)],
    ids=["other limits", "other options"],
)
def test_a_tier_with_other_limits_has_its_own_turns(options: Any, together: int) -> None:
    async def scenario() -> None:
        async with Session(plugins=plugins(), limits=RequestLimits(up_requests_max=3)) as session:
            one = session.tier("bucket://a/x", options=MANY)
            await written(one, session.tier("bucket://a/y", options=MANY, storage_options=options))

    asyncio.run(scenario())
    assert Bucket.most == together


def test_patience_clock_and_listener_reach_the_retries_of_each_tier() -> None:
    of_tier: list[Event] = []
    of_session: list[Event] = []
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    env = Env(monotonic=lambda: now, sleep=sleep)

    async def scenario() -> None:
        async with Session(plugins=plugins(), env=env, emit=of_session.append) as session:
            patience = {"patience_seconds": "30"}
            tier = session.tier("bucket://a/x", storage_options=patience, emit=of_tier.append)
            store = session.store("bucket://b", policy=RetryPolicy(patience_seconds=20))
            for bucket in MADE:
                bucket.is_down = True
            with pytest.raises(TryAgain, match="bucket://a is down"):
                await tier.streams()
            with pytest.raises(TryAgain, match="bucket://b is down"):
                await store.get("key")

            assert isinstance(tier, ObjectStoreOffloader)
            assert tier._env is env
            # Through all decorators: each of the two requests that failed at last is no retry.
            failed = session.metrics.times["get", "try_again"].count
            assert session.metrics.retries == {("get", "try_again"): failed - 2}
            assert (session.metrics.requests["get"], tier.metrics.requests["get"]) == (failed, 1)

    asyncio.run(scenario())
    waits = [
        {e.patience_seconds for e in events if isinstance(e, Waiting)} for events in (of_tier, of_session)
    ]
    assert waits == [{30.0}, {20.0}]


def test_tiers_of_one_place_use_one_client_and_the_last_one_closes_it() -> None:
    async def scenario() -> None:
        async with Session(plugins=plugins()) as session:
            one, other = session.tier("bucket://a/x"), session.tier("bucket://a/y")
            await written(one, other)
            assert sum(1 for bucket in MADE if bucket.asked) == 1

            before = len(CLOSED)
            await one.aclose()
            await one.aclose()
            await written(other)
            assert CLOSED[before:] == []

            await other.aclose()
            assert len(CLOSED) == len(MADE)
            await written(session.tier("bucket://a/z"))  # with a client of its own

    asyncio.run(scenario())
    assert len(CLOSED) == len(MADE)
    assert {key.partition("/")[0] for key in backends.OBJECTS["a"]} == {"x", "y", "z"}


@pytest.mark.parametrize(
    ("url", "options"), [("bucket://a/x", {"region": "north"}), ("bucket://b/x", {"region": "south"})]
)
def test_another_bucket_or_other_options_have_their_own_client(url: str, options: Any) -> None:
    async def scenario() -> None:
        async with Session(plugins=plugins()) as session:
            one = session.tier("bucket://a/x", storage_options={"region": "south"})
            await written(one, session.tier(url, storage_options=options))

    asyncio.run(scenario())
    assert [bool(bucket.asked) for bucket in MADE] == [True, True]


def test_another_environment_is_another_place(monkeypatch: Any) -> None:
    """The environment may name the endpoint; with a shared client, the URL would lead to the first server."""

    async def scenario() -> None:
        async with Session(plugins=plugins()) as session:
            for port, name in enumerate("xy"):
                monkeypatch.setenv("BUCKET_ENDPOINT", f"http://localhost:{port}")
                await written(session.tier(f"bucket://a/{name}"))

    asyncio.run(scenario())
    assert [bool(bucket.asked) for bucket in MADE] == [True, True]


def test_a_relative_path_means_the_folder_at_the_moment_of_opening(tmp_path: Any, monkeypatch: Any) -> None:
    """The same path in two working directories means two places."""

    async def scenario() -> None:
        async with Session() as session:
            for name in ("one", "two"):
                (tmp_path / name).mkdir()
                monkeypatch.chdir(tmp_path / name)
                await written(session.tier("tier"))

    asyncio.run(scenario())
    assert [(tmp_path / name / "tier" / "tier.anchor").is_file() for name in ("one", "two")] == [True, True]


def test_two_tiers_share_the_memory_of_groups() -> None:
    """The tests of the cache show that tiers never get each other's groups."""

    async def scenario() -> None:
        async with Session(plugins=plugins()) as session:
            one, other = session.tier("bucket://a/x"), session.tier("bucket://a/y")
            assert isinstance(one, ObjectStoreOffloader)
            assert isinstance(other, ObjectStoreOffloader)
            assert one._groups is other._groups is session._groups

    asyncio.run(scenario())


def test_a_session_counts_the_requests_and_reports_the_events_of_all_its_tiers() -> None:
    events: list[Event] = []

    async def scenario() -> Session:
        async with Session(plugins=plugins(), emit=events.append) as session:
            await written(session.tier("bucket://a/x"), session.tier("bucket://b/x"), session.tier("own://x"))
            return session

    session = asyncio.run(scenario())

    assert session.metrics.requests["put"] == sum(bucket.asked for bucket in MADE) > 0
    assert {bucket.name for bucket in MADE if bucket.asked} == {"a", "b", "beneath"}
    assert len({id(event.manifest) for event in events if isinstance(event, ManifestCommitted)}) >= 6


def test_a_commit_store_belongs_to_the_session_too() -> None:
    async def scenario() -> Session:
        async with Session(plugins=plugins()) as session:
            tier = session.tier(
                "bucket://a/x",
                plan=TierPlan(commit_store="bucket://a/roots"),
                storage_options={"commit.region": "north", "up_requests_max": "5"},
            )
            await written(tier)
            bounds = [limits for (_, _, limits), _ in session._turns]  # type: ignore[misc]
            assert bounds == [RequestLimits(up_requests_max=5)] * 2
            return session

    session = asyncio.run(scenario())

    assert {bucket.options.get("region") for bucket in MADE} == {None, "north"}
    assert session.metrics.requests["create"] > 0
    assert len(CLOSED) == len(MADE)


@pytest.mark.parametrize(
    "bucket", ["s3://bucket", "gs://bucket", "az://container", "abfs://box@disk.blob.host"]
)
def test_prefixes_of_a_real_bucket_are_one_place(bucket: str) -> None:
    """Opening sends nothing, so no server is needed."""

    async def scenario() -> None:
        async with Session() as session:
            for url in (bucket, f"{bucket}/x/", f"{bucket}/x/y"):
                session.tier(url)
            [shared] = session._shared.stores
            assert shared.leases == 3
            session.tier(f"{bucket}/x", storage_options={"connections_max": "5"})
            assert len(session._shared.stores) == 2

    asyncio.run(scenario())
