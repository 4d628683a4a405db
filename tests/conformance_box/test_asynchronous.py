"""The event loop on which clauses run: its errors, and its messages about hangs."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from offload_conformance import asynchronous
from offload_conformance.asynchronous import Loop, Overdue


def test_an_unretrieved_error_is_logged_outside_of_garbage_collection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python 3.11 cannot parse source while it parses source, and logging a traceback parses source."""
    loop = Loop(60)
    threads = []

    class Where(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            threads.append(threading.current_thread().name)

    async def fail() -> None:
        raise ValueError("nobody awaits me")

    async def leave_behind() -> None:
        ring: list[object] = [asyncio.create_task(fail())]
        ring.append(ring)
        await asyncio.sleep(0)

    where = Where()
    logging.getLogger("asyncio").addHandler(where)
    gc.disable()
    try:
        loop.run(leave_behind())
        gc.collect()
        loop.run(asyncio.sleep(0))
    finally:
        gc.enable()
        logging.getLogger("asyncio").removeHandler(where)
        loop.close()

    assert threads == ["conformance"]
    assert "nobody awaits me" in caplog.text


def test_a_hang_is_placed_in_the_backend_s_listing_and_not_in_the_clause_that_reads_it() -> None:
    async def rows() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield "never"

    assert "found the backend still waiting, in `rows` at " in hang(lambda: read(rows()))


async def read(rows: AsyncIterator[str]) -> list[str]:
    return [row async for row in rows]


def test_a_hang_is_placed_in_the_backend_alone_if_the_clause_waits_for_several_calls() -> None:
    async def create() -> None:
        await asyncio.Event().wait()

    clause: dict[str, Any] = {"asyncio": asyncio}
    source = "async def clause(*calls): await asyncio.gather(*(call() for call in calls))"
    exec(compile(source, str(Path(asynchronous.__file__).with_name("probes.py")), "exec"), clause)

    found = hang(lambda: clause["clause"](create, create))

    assert found.count(" in `") == 1
    assert "found the backend still waiting, in `create` at " in found


def hang(start: Callable[[], Coroutine[Any, Any, object]]) -> str:
    """Return the message about a coroutine that never ends."""
    loop = Loop(0.1)
    try:
        with pytest.raises(Overdue) as caught:
            loop.run(start())
    finally:
        loop.close()
    return str(caught.value)
