"""Tests of obstore's errors: their text decides and also contains the key, so no key may look like
an error.
"""

from __future__ import annotations

import asyncio

import pytest
from obstore.store import MemoryStore as ObstoreMemory
from offload_cloud.fast import Fast, FastStore

from offload.contracts.store import Span
from offload.errors import NotFound, OffloadError
from offload.store.memory import MemoryStore


def never(status: int, body: str, *, what: str, key: str, mutation: bool) -> OffloadError | None:
    """Fail, because no reply with a status exists here."""
    raise AssertionError(f"no server answered: {status}")


def fast(objects: ObstoreMemory) -> FastStore:
    async def opened() -> Fast:
        return Fast(reads=objects, writes=objects)

    return FastStore(MemoryStore(), open_fast=opened, explain=never, stall_seconds=10, at_once=1)


@pytest.mark.parametrize("name", ["StartTooLarge", "NotPartial", "ParseContentRange", "orders"])
def test_an_absent_object_is_absent_with_any_stream_name(name: str) -> None:
    """With the first of these names, an absent object was read as an empty one."""
    with pytest.raises(NotFound):
        asyncio.run(fast(ObstoreMemory()).get(f"{name}/stream.anchor"))


def test_a_span_beyond_the_end_is_empty() -> None:
    objects = ObstoreMemory()
    objects.put("key", b"data", attributes={})

    assert asyncio.run(fast(objects).get("key", Span(10, 2))) == b""
