"""The event loop that the clauses run on."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading

import pytest
from offload_conformance.asynchronous import Loop


def test_an_error_that_no_one_took_is_logged_outside_of_garbage_collection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python 3.11 cannot parse source while it parses source, and a logged traceback parses."""
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
