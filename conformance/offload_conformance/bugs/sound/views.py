"""A view in front of another, and helpers of proofs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any, TypeVar
from uuid import uuid4

from offload.commit.writer import Prepare
from offload.contracts.catalogue import StreamView
from offload.contracts.ledger import ReadHandle
from offload.model.entry import Entries, Entry
from offload.model.manifest import CommittedStream, Manifest
from offload_conformance.bugs.registry import OpenClient, Proof

T = TypeVar("T")
# Proofs


async def filled(store: Any, keys: Iterable[str]) -> None:
    """Create an object of its own name under each key."""
    for key in keys:
        await store.create(key, key.encode("utf-8", "surrogatepass"))


async def listed(store: Any, prefix: str = "", after: str = "") -> list[str]:
    """Return the keys that a listing shows."""
    return [row.key async for row in store.list(prefix, after=after)]


def keeps_keys(*keys: str) -> Proof:
    """Prove that objects of these keys are apart, are listed by their names, and go alone."""

    async def proof(open_: OpenClient) -> None:
        store = open_()
        await filled(store, keys)
        for key in keys:
            assert bytes(await store.get(key)) == key.encode(), key
        assert await listed(open_()) == sorted(keys, key=str.encode)
        for gone, key in enumerate(keys):
            await store.delete([key])
            assert await listed(store) == sorted(keys[gone + 1 :], key=str.encode), key

    return proof


async def ended(*calls: Any, seconds: float = 10) -> list[Any]:
    """Return what the calls returned or raised, within a time."""
    async with asyncio.timeout(seconds):
        return await asyncio.gather(*calls, return_exceptions=True)


class Glance(StreamView):
    """A view without a mistake, in front of another."""

    def __init__(self, view: StreamView) -> None:
        self.seen = view

    @property
    def committed(self) -> CommittedStream:
        return self.seen.committed

    @property
    def where(self) -> str:
        return self.seen.where

    def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        return self.seen.walk(offset)

    async def find(self, offset: int) -> Entry | None:
        return await self.seen.find(offset)

    async def first_since(self, timestamp_ms: int) -> Entry | None:
        return await self.seen.first_since(timestamp_ms)

    async def last_with_messages(self) -> Entry | None:
        return await self.seen.last_with_messages()

    async def last_timestamp_ms(self) -> int | None:
        return await self.seen.last_timestamp_ms()

    def name_of(self, row: Entries) -> str:
        return self.seen.name_of(row)

    async def names(self, where: str) -> bool:
        return await self.seen.names(where)

    async def open(self, entry: Entry) -> ReadHandle:
        return await self.seen.open(entry)


async def opened(open_: OpenClient) -> Any:
    """Return a client of a place that is a tier."""
    tier = open_()
    await tier.open(create=True)
    return tier


async def prepared(
    tier: Any, stream: str, manifest: Manifest, ledger_id: int = 99
) -> tuple[Prepare, Manifest]:
    """Announce an attempt of the manifest's writer, and return the change and what it returned."""
    change = Prepare(writer=manifest.writer, attempts=[(uuid4(), 99)])
    return change, await tier.commit_manifest(stream, change, base=None, committer=manifest.writer)
