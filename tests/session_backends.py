"""Backends of each kind for tests of sessions. They record every opening and closing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from offload import (
    Backend,
    Catalogue,
    LedgerOffloader,
    ObjectStoreOffloader,
    OpeningContext,
    Plugins,
    Span,
    Suffix,
    TierOptions,
    TryAgain,
)
from offload.contracts.plugin import SourceType
from offload.contracts.store import Body, ObjectStore
from offload.opening.plugins import Plugin, PluginDeclaration
from offload.store.memory import MemoryStore
from offload.store.prefix import PrefixStore

OBJECTS: dict[str, dict[str, bytes]] = {}
"""The objects of each bucket in this process."""

MADE: list[Bucket] = []
CLOSED: list[str] = []
CONTEXTS: list[OpeningContext | None] = []


class Bucket(MemoryStore):
    """A bucket that counts the puts in progress, over all clients of a host, and fails on request."""

    running = 0
    most = 0

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(objects=OBJECTS.setdefault(name, {}), name=name)
        self.name, self.options = name, options
        self.asked = 0
        self.is_down = False
        self.on_close: Callable[[], Awaitable[None]] | None = None
        MADE.append(self)

    @property
    def url(self) -> str:
        return f"bucket://{self.name}"

    async def put(self, key: str, body: Body) -> None:
        self.asked += 1
        Bucket.running += 1
        Bucket.most = max(Bucket.most, Bucket.running)
        for _ in range(5):
            await asyncio.sleep(0)
        await super().put(key, body)
        Bucket.running -= 1

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if self.is_down:
            raise TryAgain(f"{self.url} is down")
        return await super().get(key, span)

    async def aclose(self) -> None:
        if self.on_close is not None:
            await self.on_close()
        CLOSED.append(self.name)


class Own(ObjectStoreOffloader):
    """An offloader that a backend makes itself."""

    async def aclose(self) -> None:
        await super().aclose()
        CLOSED.append("own")


def open_bucket(url: str, *, options: Mapping[str, Any]) -> ObjectStore:
    bucket, _, prefix = url.partition("://")[2].partition("/")
    store = Bucket(bucket, options)
    return PrefixStore(store, prefix.strip("/")) if prefix.strip("/") else store


def open_own(
    url: str, *, options: Mapping[str, Any], context: OpeningContext | None = None
) -> LedgerOffloader:
    CONTEXTS.append(context)
    if context is None:
        return Own(MemoryStore())
    how = TierOptions(
        fragment_size_bytes=context.fragment_size_bytes or TierOptions().fragment_size_bytes,
        uploads_max=context.uploads_max or TierOptions().uploads_max,
    )
    return Own(context.open_store("bucket://beneath", {}), emit=context.emit, options=how)


def open_plain(url: str, *, options: Mapping[str, Any]) -> Catalogue:
    return Own(MemoryStore())


class NotedSource:
    """A source that only records its closing, which is all that a session needs."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def aclose(self) -> None:
        CLOSED.append(self.url)


class OnStore:
    """A source that notes how it was opened, and opens a store by its context."""

    def __init__(self, url: str, *, options: Mapping[str, Any], context: OpeningContext | None) -> None:
        assert context is not None
        self.url, self.options, self.context = url, options, context
        self.store = context.open_store(url.removeprefix("on+"), context.store_options)


HERE = "session_backends"
ALL = ("emit", "env", "fragment_size_bytes", "limits", "metrics", "uploads_max")
DECLARED = [
    Backend(name="bucket", target=f"{HERE}:open_bucket", schemes=("bucket",), options=("region",)),
    Backend(
        name="own",
        target=f"{HERE}:open_own",
        schemes=("own",),
        kind="offloader",
        options=("speed",),
        takes=ALL,
    ),
    Backend(
        name="plain", target=f"{HERE}:open_plain", schemes=("plain",), kind="offloader", options=("speed",)
    ),
    Backend(
        name="seen", target=f"{HERE}:open_plain", schemes=("seen",), kind="catalogue", options=("speed",)
    ),
]
SOURCES = [
    SourceType(name="noted", target=f"{HERE}:NotedSource", schemes=("noted",)),
    SourceType(
        name="on store",
        target=f"{HERE}:OnStore",
        schemes=("on+bucket",),
        options=("first",),
        opens_stores=True,
    ),
]


def plugins() -> Plugins:
    """Return these backends, and forget the records of earlier tests."""
    for noted in (OBJECTS, MADE, CLOSED, CONTEXTS):
        noted.clear()
    Bucket.running = Bucket.most = 0
    plugin = Plugin(name="tests", distribution="tests", version="1")
    declared = [PluginDeclaration(kind="backend", plugin=plugin, declaration=each) for each in DECLARED]
    declared += [PluginDeclaration(kind="source", plugin=plugin, declaration=each) for each in SOURCES]
    return Plugins(plugins=[plugin], declared=declared)
