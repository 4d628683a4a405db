"""Tests of the readers of a session: they share a cache, wait together, and hear of its commits."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from offload_conformance import ledger_of
from session_backends import plugins

from offload import Env, Misuse, Session, StreamReader, StreamWriter
from offload.contracts.events import Event

STREAM = "orders"
RECORDS = 1000


async def fill(session: Session, url: str) -> None:
    writer = await StreamWriter.claim(session.tier(url), STREAM)
    await writer.offload([ledger_of(RECORDS)])


async def count(reader: StreamReader) -> int:
    async with aclosing(reader.messages(0)) as batches:
        return sum([len(batch.bodies) async for batch in batches])


async def for_ever(_: float) -> None:
    await asyncio.Event().wait()


def run(
    act: Callable[[Session], Awaitable[None]],
    *,
    env: Env | None = None,
    cache_size_bytes: int | None = None,
) -> None:
    async def scenario() -> None:
        opened = Session(env=env, emit=lambda event: None, cache_size_bytes=cache_size_bytes)
        async with asyncio.timeout(60), opened as session:
            await act(session)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "something runs on"
        assert opened._cache is None or opened._cache.counts.size_bytes == 0

    asyncio.run(scenario())


def test_eight_readers_of_a_session_send_the_requests_of_one(tmp_path: Path) -> None:
    async def act(session: Session) -> None:
        await fill(session, str(tmp_path))
        tier = session.catalogue(str(tmp_path))

        async def requests_of(number: int) -> int:
            readers = [await session.reader(tier, STREAM) for _ in range(number)]
            before = session.metrics.requests["get"]
            assert await asyncio.gather(*map(count, readers)) == [RECORDS] * number
            return session.metrics.requests["get"] - before

        assert await requests_of(8) == 2  # a tail and a block
        assert await requests_of(1) == 0

    run(act)


def test_a_reader_that_allows_old_views_opens_without_a_request(tmp_path: Path) -> None:
    async def act(session: Session) -> None:
        await fill(session, str(tmp_path))
        tier, heard = session.catalogue(str(tmp_path)), list[Event]()
        await session.reader(tier, STREAM)
        before = session.metrics.requests.total()
        reader = await session.reader(tier, STREAM, max_staleness_seconds=3600, emit=heard.append)
        assert session.metrics.requests.total() == before
        assert reader.emit == heard.append

    run(act)


def test_the_cache_hears_of_requests_that_the_stores_refuse(tmp_path: Path) -> None:
    async def act(session: Session) -> None:
        session.metrics.times["get", "throttled"].add(0.001)
        assert session.cache.throttled() == 1

    run(act)


def test_readers_of_two_tiers_share_one_bound(tmp_path: Path) -> None:
    async def act(session: Session) -> None:
        for name in ("a", "b"):
            await fill(session, str(tmp_path / name))
            reader = await session.reader(session.catalogue(str(tmp_path / name)), STREAM)
            assert await count(reader) == RECORDS
        assert session.cache.counts.fetched == 4
        assert session.cache.size_bytes == 10_000
        assert session.cache.counts.size_bytes <= 10_000

    run(act, cache_size_bytes=10_000)


def test_followers_look_together_and_a_commit_of_the_session_wakes_them(tmp_path: Path) -> None:
    """They look once. They would look again when time has passed, which it never does here."""

    async def act(session: Session) -> None:
        tier = session.tier(str(tmp_path))
        writer = await StreamWriter.claim(tier, STREAM)
        await writer.offload([ledger_of(RECORDS)])
        readers = [await session.reader(tier, STREAM) for _ in range(3)]
        before = session.metrics.requests["list"]
        followed = [reader.follow(RECORDS) for reader in readers]
        waiting = [asyncio.ensure_future(anext(batches)) for batches in followed]
        while session.metrics.requests["list"] < before + 2:  # noqa: ASYNC110 - a count sets no event
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.7)  # without the clock of the session, each would look again after 0.5 s
        assert session.metrics.requests["list"] == before + 2
        await writer.offload([ledger_of(5, first_offset=RECORDS)])
        assert [batch.offset for batch in await asyncio.gather(*waiting)] == [RECORDS] * 3
        for batches in followed:
            await batches.aclose()

    run(act, env=Env(sleep=for_ever))


def test_a_session_watches_its_own_tiers_alone(tmp_path: Path) -> None:
    async def act(session: Session) -> None:
        async with Session(emit=lambda event: None) as another:
            tier = another.tier(str(tmp_path))
            with pytest.raises(Misuse, match="not opened by this session"):
                session.watch(tier)
            assert another.watch(tier) is another.watch(tier)
            assert another.watch(tier) is not another.watch(another.tier(str(tmp_path)))

    run(act)


def test_a_tier_that_a_backend_opens_by_itself_is_watched(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Session(plugins=plugins(), emit=lambda event: None) as session:
            tier = session.catalogue("plain://x")
            gc.collect()
            assert session.watch(tier) is session.watch(tier)

    asyncio.run(scenario())


def test_a_tier_that_was_closed_and_dropped_leaves_memory(tmp_path: Path) -> None:
    async def act(session: Session) -> None:
        tier = session.tier(str(tmp_path))
        session.watch(tier)
        await tier.aclose()
        gone = weakref.ref(tier)
        del tier
        gc.collect()
        assert gone() is None

    run(act)


def test_a_reader_that_goes_on_behind_its_session_gets_an_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Session(emit=lambda event: None) as session:
            await fill(session, str(tmp_path))
            tier = session.catalogue(str(tmp_path))
            reader = await session.reader(tier, STREAM)
        with pytest.raises(Misuse, match="closed"):
            await anext(reader.messages(0))
        with pytest.raises(Misuse, match="closed"):
            session.watch(tier)

    asyncio.run(scenario())
