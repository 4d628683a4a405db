"""A store in memory, for tests: the whole contract except durability, and nothing more.

Several stores over one `objects` dict behave like several processes with one bucket. Every request yields to
other tasks once before it acts, so that writers really interleave.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload, check_key
from offload.ground.env import REAL_ENV
from offload.ground.errors import AlreadyExists, Misuse, NotFound
from offload.store.spans import clip

__all__ = ["MemoryStore"]


KEPT_METADATA_SIZE_BYTES_MAX: Final = 8 * 2**10
"""As much as GCS and Azure keep."""

_CREATING: Final = threading.Lock()  # the check and the store of a create are one step, also between threads


class _Described(bytes):
    """The bytes of an object with metadata. Stores that share a dict of objects share their metadata too."""

    metadata: Mapping[str, str]

    @classmethod
    def of(cls, data: bytes, metadata: Mapping[str, str]) -> _Described:
        described = cls(data)
        described.metadata = metadata
        return described


class MemoryStore(ObjectStore):
    """A store of the objects in `objects`. Tests may share and read this dict; its values never change."""

    __slots__ = ("_now_ms", "_unfinished", "_url", "_uuid", "objects")

    def __init__(
        self,
        *,
        objects: dict[str, bytes] | None = None,
        name: str = "",
        now_ms: Callable[[], int] = REAL_ENV.now_ms,
        uuid: Callable[[], UUID] = REAL_ENV.uuid,
    ) -> None:
        self.objects: dict[str, bytes] = {} if objects is None else objects
        self._now_ms, self._uuid = now_ms, uuid
        self._url = f"memory://{name}"
        self._unfinished: dict[str, _MemoryUpload] = {}

    @property
    def url(self) -> str:
        """`memory://` and the store's name."""
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        """All capabilities except durability and use by several processes."""
        return Capabilities(
            atomic_create=True,
            strong_listing=True,
            multipart=True,
            unsized_put=True,
            durable=False,
            one_process=True,
            metadata_size_bytes_max=KEPT_METADATA_SIZE_BYTES_MAX,
        )

    async def put(self, key: str, body: Body) -> None:
        """Gather the windows, then store them in one step."""
        check_key(key)
        metadata = check_metadata(body.metadata, self.capabilities)
        data = b"".join([window async for window in body.windows()])
        body.check_size(len(data))
        # The only wait is before the object is stored: readers see the old object or the new one.
        await _yielded()
        self.objects[key] = _Described.of(data, metadata) if metadata else data

    async def create(self, key: str, data: bytes) -> None:
        """Store `data` unless the key exists."""
        check_key(key)
        await _yielded()
        with _CREATING:
            if key in self.objects:
                raise AlreadyExists(key)
            self.objects[key] = bytes(data)  # a copy, because the caller may change its buffer

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Read the bytes of `span`."""
        check_key(key)
        await _yielded()
        if key not in self.objects:
            raise NotFound(key, store=self._url)
        data = self.objects[key]
        start, end = clip(span, len(data))
        return data[start:end]

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        """Return the metadata of an object. Raises `NotFound`."""
        check_key(key)
        await _yielded()
        if key not in self.objects:
            raise NotFound(key, store=self._url)
        data = self.objects[key]
        return {**data.metadata} if isinstance(data, _Described) else {}

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List the objects as they were when the listing began."""
        await _yielded()
        rows = [
            Listed(key, len(data))
            for key, data in self.objects.items()
            if key.startswith(prefix) and key > after
        ]
        for row in sorted(rows, key=lambda row: row.key):  # code points sort as their UTF-8 bytes do
            yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List the names as they were when the listing began."""
        await _yielded()
        below = (key[len(prefix) :].partition("/") for key in self.objects if key.startswith(prefix))
        for name in sorted({prefix + part + slash for part, slash, _ in below}):
            yield name

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove each key that exists."""
        for key in keys:  # all of them first: a malformed key fails the call before anything is deleted
            check_key(key)
        await _yielded()
        for key in keys:
            self.objects.pop(key, None)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Begin an upload. Its parts are not in `objects` until it completes."""
        check_metadata(metadata, self.capabilities)
        upload_id = str(self._uuid())
        upload = _MemoryUpload(self, check_key(key), upload_id, {**metadata})
        self._unfinished[upload_id] = upload
        return upload

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Return the uploads that were begun on this store, with times of its clock."""
        await _yielded()
        return [
            Unfinished(each.key, name, each.started_ms)
            for name, each in self._unfinished.items()
            if each.key.startswith(prefix)
        ]

    async def abort_upload(self, upload: Unfinished) -> None:
        """Abort the upload if it exists."""
        if (found := self._unfinished.get(upload.upload_id)) is not None:
            await found.abort()


class _MemoryUpload(Upload):
    __slots__ = ("_id", "_metadata", "_over", "_parts", "_store", "key", "started_ms")

    def __init__(self, store: MemoryStore, key: str, upload_id: str, metadata: Mapping[str, str]) -> None:
        self._store = store
        self._id = upload_id
        self.key, self._metadata = key, metadata
        self.started_ms = store._now_ms()
        self._parts: dict[int, bytes] = {}
        self._over = False

    async def put_part(self, number: int, data: bytes) -> None:
        self._check_running()
        if number < 1:
            raise Misuse(f"part {number} of {self.key!r}: numbers begin at 1")
        self._parts[number] = bytes(data)

    async def complete(self) -> None:
        self._check_running()
        numbers = sorted(self._parts)
        if not numbers or numbers != [*range(1, len(numbers) + 1)]:
            raise Misuse(f"the upload of {self.key!r} lacks a part: it has {numbers}")
        sizes = [len(self._parts[number]) for number in numbers]
        if any(size != sizes[0] for size in sizes[:-1]) or sizes[-1] > sizes[0]:
            raise Misuse(f"the parts of {self.key!r} have different sizes: {sizes}")
        # Ended after the put: if the put is cancelled, the upload can still be completed or aborted.
        data = b"".join(self._parts[number] for number in numbers)
        await self._store.put(self.key, Body.of(data, metadata=self._metadata))
        self._end()

    async def abort(self) -> None:
        self._end()

    def _end(self) -> None:
        self._over = True
        self._parts.clear()
        self._store._unfinished.pop(self._id, None)

    def _check_running(self) -> None:
        if self._over:
            raise Misuse(f"the upload of {self.key!r} is over")


async def _yielded() -> None:
    await asyncio.sleep(0)  # noqa: TID251 - it takes no time: other tasks run, also where a test moves the clock
