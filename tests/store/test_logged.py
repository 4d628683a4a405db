"""The log of requests: each attempt is a line with its outcome, and no line holds an object's bytes."""

from __future__ import annotations

import asyncio
import logging

import pytest

from offload.contracts.store import Body, Span
from offload.ground.errors import NotFound
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.logged import LoggedStore
from offload.store.memory import MemoryStore
from offload.store.retry import RetryingStore


def test_each_attempt_is_a_line_with_its_outcome_and_without_the_bytes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def no_time(seconds: float) -> None:
        pass

    async def main() -> None:
        faulty = FaultyStore(MemoryStore(), rules=[Rule(Fault.FAIL_BEFORE, "put", nth=1)])
        store = RetryingStore(LoggedStore(faulty, clock=lambda: 7.0), sleep=no_time, random=lambda: 0.99)
        await store.put("a/key", Body.of(b"hush hush"))
        await store.get("a/key", Span(5, 4))
        assert [row.key async for row in store.list("a/")] == ["a/key"]
        await store.delete(["a/key"])
        with pytest.raises(NotFound):
            await store.get("a/key")

    with caplog.at_level(logging.DEBUG, logger="offload"):
        asyncio.run(main())

    assert caplog.messages == [
        "put a/key, 9 bytes: 0.000 s, TryAgain: put of 'a/key' failed on purpose",
        "memory://: waits 0.1 s after attempt 1",
        "put a/key, 9 bytes: 0.000 s",
        "get a/key [5, 9): 0.000 s, 4 bytes",
        "list 'a/' after '': 0.000 s, rows: 1",
        "delete a/key: 0.000 s",
        "get a/key: 0.000 s, NotFound",
    ]
