"""An object service as providers sell it, and a sound client of it.

The service keeps a row for each deleted key, as log-structured tables do. Such rows fill pages too: a page
may be short or empty although others follow. Each method of `Service` is atomic. The client sends every
request through a pool of connections, and yields to other tasks before and after it.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeVar
from uuid import uuid4

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, Misuse, NotFound
from offload.store.spans import clip

T = TypeVar("T")
SERVICES: Final[dict[str, Service]] = {}
"""By URL: what a process has written is there for its other clients."""


@dataclass(slots=True)
class Pending:
    """An upload that is neither completed nor aborted."""

    key: str
    started_ms: int
    parts: dict[int, bytes] = field(default_factory=dict)


class Service:
    """The service itself."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.keys: list[str] = []  # deleted keys too
        self.uploads: dict[str, Pending] = {}
        self.requests = 0

    def put(self, key: str, data: bytes) -> None:
        if (at := bisect_left(self.keys, key)) == len(self.keys) or self.keys[at] != key:
            insort(self.keys, key)
        self.objects[key] = data

    def create(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        self.put(key, data)
        return True

    def get(self, key: str, span: Span | Suffix | None) -> bytes | None:
        data = self.objects.get(key)
        if data is None:
            return None
        start, end = clip(span, len(data))
        return data[start:end]

    def head(self, key: str) -> tuple[int, int] | None:
        """Return the size and the CRC-32C of an object."""
        data = self.objects.get(key)
        return None if data is None else (len(data), crc32c(data))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    def page(self, prefix: str, after: str, rows_max: int) -> tuple[list[tuple[str, int]], str | None]:
        """Return rows after `after`, and the start of the next page, if there is one."""
        start = max(bisect_left(self.keys, prefix), bisect_right(self.keys, after))
        seen = [key for key in self.keys[start : start + rows_max + 1] if key.startswith(prefix)]
        rows = [(key, len(self.objects[key])) for key in seen[:rows_max] if key in self.objects]
        return rows, seen[rows_max - 1] if len(seen) > rows_max else None

    def begin(self, key: str) -> str:
        name = uuid4().hex
        self.uploads[name] = Pending(key, time.time_ns() // 1_000_000)
        return name

    def add_part(self, name: str, number: int, data: bytes) -> None:
        self._pending(name).parts[number] = data

    def complete(self, name: str, numbers: Sequence[int]) -> None:
        pending = self._pending(name)
        self.put(pending.key, b"".join(pending.parts[number] for number in numbers))
        del self.uploads[name]

    def parts(self, name: str) -> dict[int, bytes]:
        return self._pending(name).parts

    def abort(self, name: str) -> None:
        self.uploads.pop(name, None)

    def pending(self, prefix: str) -> list[Unfinished]:
        found = [(each.key, name, each.started_ms) for name, each in self.uploads.items()]
        return [Unfinished(*each) for each in sorted(found) if each[0].startswith(prefix)]

    def _pending(self, name: str) -> Pending:
        if name not in self.uploads:
            raise Misuse(f"no upload {name}")
        return self.uploads[name]


class ServiceStore(ObjectStore):
    """A sound client of one `Service`."""

    KIND: ClassVar = "store"
    PAGE_ROWS: ClassVar = 1000
    CONNECTIONS: ClassVar = 16
    BATCH: ClassVar = 1000

    def __init__(self, url: str) -> None:
        self._url = url
        self.service = SERVICES.setdefault(url, Service())
        self.connections = asyncio.Semaphore(self.CONNECTIONS)

    @classmethod
    def keys_at(cls, url: str) -> set[str]:
        """Return the keys of the objects at the URL."""
        return {*SERVICES.setdefault(url, Service()).objects}

    @property
    def url(self) -> str:
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            atomic_create=True, strong_listing=True, multipart=True, durable=False, one_process=True
        )

    async def ask(self, request: Callable[..., T], *arguments: Any) -> T:
        """Send one request over one connection."""
        async with self.connections:
            await asyncio.sleep(0)
            self.service.requests += 1
            reply = request(*arguments)
            await asyncio.sleep(0)
            return reply

    async def put(self, key: str, body: Body) -> None:
        check_key(key)
        check_metadata(body.metadata, self.capabilities)
        data = await gathered(body, key)
        await self.ask(self.service.put, key, data)

    async def create(self, key: str, data: bytes) -> None:
        if not await self.ask(self.service.create, check_key(key), bytes(data)):
            raise AlreadyExists(key)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await self.ask(self.service.get, check_key(key), span)
        if data is None:
            raise NotFound(key, store=self._url)
        return data

    async def stored_crc32c(self, key: str) -> int | None:
        head = await self.ask(self.service.head, check_key(key))
        if head is None:
            raise NotFound(key, store=self._url)
        return head[1]

    async def retained(self, key: str) -> str | None:
        if await self.ask(self.service.head, check_key(key)) is None:
            raise NotFound(key, store=self._url)
        return None

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        token: str | None = after
        while token is not None:
            rows, token = await self.ask(self.service.page, prefix, token, self.PAGE_ROWS)
            for key, size_bytes in rows:
                yield Listed(key, size_bytes)

    async def delete(self, keys: Sequence[str]) -> None:
        names = [check_key(key) for key in keys]
        for start in range(0, len(names), self.BATCH):
            await self.ask(self.service.delete, names[start : start + self.BATCH])

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        check_metadata(metadata, self.capabilities)
        name = await self.ask(self.service.begin, check_key(key))
        return ServiceUpload(self, key, name)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        return await self.ask(self.service.pending, prefix)

    async def abort_upload(self, upload: Unfinished) -> None:
        await self.ask(self.service.abort, upload.upload_id)


class ServiceUpload(Upload):
    """An upload whose parts wait in the service."""

    def __init__(self, store: ServiceStore, key: str, name: str) -> None:
        self.store, self.key, self.name = store, key, name
        self.sizes: dict[int, int] = {}

    async def put_part(self, number: int, data: bytes) -> None:
        if number < 1:
            raise Misuse(f"part {number} of {self.key!r}: numbers begin at 1")
        await self.store.ask(self.store.service.add_part, self.name, number, bytes(data))
        self.sizes[number] = len(data)

    async def complete(self) -> None:
        numbers = sorted(self.sizes)
        if not numbers or numbers != [*range(1, len(numbers) + 1)]:
            raise Misuse(f"the upload of {self.key!r} lacks a part: it has {numbers}")
        sizes = [self.sizes[number] for number in numbers]
        if len({*sizes[:-1]}) > 1 or sizes[-1] > sizes[0]:
            raise Misuse(f"the parts of {self.key!r} have different sizes: {sizes}")
        await self.store.ask(self.store.service.complete, self.name, numbers)

    async def abort(self) -> None:
        await self.store.ask(self.store.service.abort, self.name)


async def gathered(body: Body, key: str) -> bytes:
    """Return the bytes of a body. Raise `Misuse` if their number is not the announced one."""
    data = bytearray()
    async for window in body.windows():
        data += window
    if len(data) != body.size_bytes:
        raise Misuse(f"the body of {key!r} has {len(data)} bytes and announced {body.size_bytes}")
    return bytes(data)
