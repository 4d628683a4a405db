"""Tests of closing: a session closes everything that it opened, once, whatever else happens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest
from session_backends import CLOSED, MADE, plugins

from offload import Blocking, Misuse, OffloadError, Session, TryAgain, open_tier


def opened(session: Session) -> None:
    """Open one of everything, in this order."""
    session.tier("bucket://a/x")
    session.tier("own://x")
    session.store("bucket://b")
    session.source("noted://s")


ALL_CLOSED = ["noted://s", "b", "beneath", "own", "a"]
"""The order of closing: the newest first, and each tier closes the store that it opened."""


def fails(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail


def test_everything_opened_is_closed_once_and_the_newest_first() -> None:
    async def scenario() -> None:
        session = Session(plugins=plugins())
        opened(session)
        await asyncio.gather(session.aclose(), session.aclose())
        await session.aclose()

    asyncio.run(scenario())
    assert CLOSED == ALL_CLOSED


def test_an_error_of_closing_leaves_nothing_open_and_the_first_is_raised() -> None:
    async def scenario() -> None:
        session = Session(plugins=plugins())
        opened(session)
        by_name = {bucket.name: bucket for bucket in MADE}
        by_name["b"].on_close = fails(TryAgain("the first"))
        by_name["beneath"].on_close = fails(RuntimeError("the second"))
        with pytest.raises(TryAgain, match="the first") as raised:
            await session.aclose()
        assert raised.value.__notes__ == ["and while closing: RuntimeError: the second"]

    asyncio.run(scenario())
    assert {"noted://s", "a"} <= {*CLOSED}


def test_an_error_of_the_block_is_the_one_that_is_raised() -> None:
    async def scenario() -> None:
        async with Session(plugins=plugins()) as session:
            session.tier("bucket://a/x")
            MADE[0].on_close = fails(TryAgain("closing"))
            raise OffloadError("the block")

    with pytest.raises(OffloadError, match="the block") as raised:
        asyncio.run(scenario())
    assert raised.value.__notes__ == ["and while closing: TryAgain: closing"]


def test_a_cancellation_while_closing_is_raised_after_everything_is_closed() -> None:
    async def scenario() -> None:
        session = Session(plugins=plugins())
        opened(session)
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            reached.set()
            await go_on.wait()

        next(bucket for bucket in MADE if bucket.name == "b").on_close = wait
        closing = asyncio.ensure_future(session.aclose())
        await reached.wait()
        for _ in range(2):  # a second cancellation does not interrupt it either
            closing.cancel()
            await asyncio.sleep(0)
        assert not closing.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await closing

    asyncio.run(scenario())
    assert sorted(CLOSED) == sorted(ALL_CLOSED)


def test_a_failed_opening_closes_everything_opened_before() -> None:
    async def scenario() -> None:
        async with Session(plugins=plugins()) as session:
            session.tier("bucket://a/x")
            session.tier("nowhere://x")

    with pytest.raises(Misuse, match="no plugin knows"):
        asyncio.run(scenario())
    assert CLOSED == ["a"]


def test_a_tier_whose_closing_is_cancelled_is_closed_and_the_session_waits_for_it() -> None:
    async def scenario() -> None:
        session = Session(plugins=plugins())
        tier = session.tier("bucket://a/x")
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            reached.set()
            await go_on.wait()

        MADE[0].on_close = wait
        alone = asyncio.ensure_future(tier.aclose())
        await reached.wait()
        alone.cancel()
        whole = asyncio.ensure_future(session.aclose())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not alone.done()
        assert not whole.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await alone
        await whole

    asyncio.run(scenario())
    assert CLOSED == ["a"]


def test_an_unused_client_that_fails_to_close_does_not_disturb_the_shared_one() -> None:
    """Each opening makes a client, and the second tier does not need its own."""

    async def scenario() -> None:
        async with Session(plugins=plugins()) as session:
            one, other = session.tier("bucket://a/x"), session.tier("bucket://a/y")
            _, unused = MADE
            unused.on_close = fails(RuntimeError("unused"))
            await one.aclose()
            with pytest.raises(RuntimeError, match="unused"):
                await other.aclose()
            assert CLOSED == ["a"]

    asyncio.run(scenario())


def test_a_closed_tier_sends_no_requests_although_another_uses_the_client() -> None:
    async def scenario() -> None:
        async with Session(plugins=plugins()) as session:
            one, other = session.tier("bucket://a/x"), session.tier("bucket://a/y")
            await one.open(create=True)
            await one.aclose()
            with pytest.raises(Misuse, match="bucket://a was closed"):
                await one.load_manifest("orders")
            assert one.url == "bucket://a/x"
            await other.open(create=True)

    asyncio.run(scenario())


def test_a_closed_session_opens_nothing() -> None:
    async def scenario() -> None:
        session = Session(plugins=plugins())
        await session.aclose()
        for opening in (session.tier, session.store, session.source):
            with pytest.raises(Misuse, match="was closed"):
                opening("bucket://a")

    asyncio.run(scenario())
    assert MADE == []


def test_a_forked_process_opens_nothing_and_closes_nothing_of_its_parent_process() -> None:
    """The connections belong to the parent: closing them would end its requests."""

    async def scenario() -> None:
        session = Session(plugins=plugins())
        opened(session)
        tier = session.tier("bucket://c/x")
        session._pid = os.getpid() + 1  # the state that a child process finds
        with pytest.raises(Misuse, match="does not survive a fork"):
            session.tier("bucket://a/x")
        await tier.aclose()
        await session.aclose()
        assert CLOSED == []
        session._pid = os.getpid()
        await session.aclose()

    asyncio.run(scenario())
    assert ["c", *ALL_CLOSED] == CLOSED


def test_a_tier_that_was_opened_without_a_session_closes_its_store() -> None:
    async def scenario() -> None:
        async with open_tier("bucket://a/x", plugins=plugins()):
            assert CLOSED == []

    asyncio.run(scenario())
    assert CLOSED == ["a"]


def test_a_blocking_tier_closes_everything_opened_beside_it() -> None:
    with Blocking("bucket://a/x", plugins=plugins()) as tier:

        async def beside() -> None:
            tier.session.tier("bucket://b/x")
            tier.session.source("noted://s")

        tier.run(beside())

    assert sorted(CLOSED) == ["a", "b", "noted://s"]
