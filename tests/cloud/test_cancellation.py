"""Tests of calls that are cancelled, stores that are closed, and processes that fork, while bytes move."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product
from typing import Final

import pytest
from campaign import keeping
from cloud.calls import DIGITS, put_part
from cloud.clients import CLIENTS
from offload_cloud.exchange import Request, TimeLimits
from offload_cloud.long_reads import LongReads, RangeReply, range_reply
from offload_cloud.ranges import range_of
from offload_cloud.transport import Transport
from wire import Answer, Heard, wire

from offload import Body, ObjectStore, Span
from offload.store.buffers import BufferPool

AT_ONCE: Final = 3
TRIES: Final = 100
DATA: Final = bytes(range(256)) * 8192


async def long_read(store: ObjectStore) -> None:
    """Read an object by one request for two reads."""
    for span in (Span(0, 4, follows=6), Span(4, 6)):
        assert await store.get("a/key", span) == DIGITS[span.start : span.start + span.length]


async def put_large(store: ObjectStore) -> None:
    await store.put("a/key", Body.of(DATA))


async def cancelled(call: Awaitable[None], seconds: float, steps: int) -> None:
    """Begin a call, and cancel it after some time and some steps of the event loop."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(seconds)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "case",
    keeping(
        [("s3", long_read), ("gcs", put_large), ("azure", put_part)],
        [("s3", put_part), ("azure", put_part), *product(CLIENTS, (long_read, put_large))],
        "each store by one call, each call on one store",
        id_=lambda case: f"{case[0]}-{case[1].__name__}",
    ),
)
def test_cancelled_calls_leave_their_turns_and_no_bytes_to_others(
    case: tuple[str, Callable[[ObjectStore], Awaitable[None]]],
) -> None:
    """Calls are cancelled at a hundred moments. Then as many requests as before are under way at once."""
    name, call = case
    client, together = CLIENTS[name], threading.Barrier(AT_ONCE, timeout=30)

    def all_at_once(heard: Heard) -> Answer:
        if "last" in heard.target:  # else it was cancelled on its way here
            together.wait()
        return client.answers(heard)

    async def act(store: ObjectStore) -> None:
        await call(store)
        began = time.monotonic()
        await call(store)
        lasted = time.monotonic() - began
        for number in range(TRIES):
            await cancelled(call(store), 1.2 * lasted * number / TRIES, number % 7)
        server.answer = all_at_once
        spans = [Span(start, 3) for start in range(AT_ONCE)]
        found = await asyncio.gather(*(store.get("last", span) for span in spans))
        assert found == [DIGITS[span.start : span.start + 3] for span in spans]

    with wire(client.answers) as server:
        client.of_store(server.url, act, connections_max=AT_ONCE)
    gc.collect()  # a socket that is still open gives a ResourceWarning, which fails the test


# The transport beneath, without a service


@asynccontextmanager
async def long_reads(url: str) -> AsyncIterator[tuple[LongReads, Transport]]:
    """Yield reads of an object by the byte transport. Its time limits are longer than a test lasts."""
    limits = TimeLimits(connect_seconds=60.0, stall_seconds=60.0)
    transport = Transport(limits=limits, connections_max=4, context=lambda: pytest.fail("no TLS here"))

    async def ask(key: str, span: Span) -> RangeReply:
        request = Request(method="GET", url=f"{url}/{key}", headers={"Range": range_of(span) or ""})
        reply = await transport.ask(request, proxy=None)
        where, size_bytes = reply.headers.get("content-range"), reply.check_body()
        return range_reply(
            reply, span, status=reply.status, content_range=where, size_bytes=size_bytes, where=key
        )

    reads = LongReads(ask, BufferPool(), connections_max=4)
    try:
        yield reads, transport
    finally:
        reads.close()
        await transport.aclose()


def served(heard: Heard) -> Answer:
    first, last = map(int, heard.headers["range"].removeprefix("bytes=").split("-"))
    part = {"Content-Range": f"bytes {first}-{last}/{len(DATA)}"}
    return Answer(206, DATA[first : last + 1], part)


def test_closing_while_a_read_waits_ends_it_at_once_and_blocks_nobody() -> None:
    def half(heard: Heard) -> Answer:
        found = served(heard)
        return replace(found, body=DATA[:1000], headers={**found.headers, "Content-Length": str(len(DATA))})

    async def act() -> None:
        async with long_reads(server.url) as (reads, transport):
            for number in range(5):  # more often than there are connections
                reading = asyncio.create_task(reads.get("key", Span(0, len(DATA) - 1, follows=1)))
                while len(server.heard) <= number:  # noqa: ASYNC110 - another thread hears it
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.05)  # the reply has begun
                began = time.monotonic()
                reads.close()
                await transport.aclose()
                with pytest.raises(Exception, match="cancelled"):
                    await asyncio.wait_for(reading, 60)
                assert time.monotonic() - began < 30
        gc.collect()

    with wire(half) as server:
        asyncio.run(act())


def test_a_connection_that_comes_back_after_closing_is_closed() -> None:
    async def act() -> None:
        async with long_reads(server.url) as (reads, transport):
            reading = asyncio.create_task(reads.get("key", Span(0, len(DATA))))
            while not server.heard:  # noqa: ASYNC110 - another thread hears it
                await asyncio.sleep(0.001)
            await transport.aclose()
            assert await reading == DATA
            assert not transport._idle
        gc.collect()

    with wire(served) as server:
        asyncio.run(act())


def test_a_forked_child_leaves_the_replies_of_its_parent_alone() -> None:
    """Both go on with the same reply: the parent gets its bytes, and the child sends a request."""
    first, second = Span(0, 2**20, follows=2**20), Span(2**20, 2**20)

    async def act() -> tuple[int, bool]:
        async with long_reads(server.url) as (reads, _):
            await reads.get("key", first)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    asyncio.events._set_running_loop(None)
                    found = asyncio.new_event_loop().run_until_complete(reads.get("key", second))
                    code = 0 if found == DATA[2**20 :] else 2
                finally:
                    os._exit(code)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            return os.waitstatus_to_exitcode(status), await reads.get("key", second) == DATA[2**20 :]

    with wire(served) as server:
        assert asyncio.run(act()) == (0, True)

    assert [heard.headers["range"] for heard in server.heard] == ["bytes=0-2097151", "bytes=1048576-2097151"]
