"""A store over any file system of fsspec, written as an author would who trusts the documentation.

It is short and reads well, but it keeps less of the contract than it seems to. `test_fsspec` lists the
failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from offload import (
    AlreadyExists,
    Body,
    Capabilities,
    Listed,
    Misuse,
    NotFound,
    ObjectStore,
    Span,
    Suffix,
    Upload,
)
from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.store import check_key
from offload.store.spans import clip


class FsspecStore(ObjectStore):
    """A store whose objects are files below `root` of `files`, an `AbstractFileSystem`."""

    def __init__(self, files: Any, root: str) -> None:
        self._files, self._root = files, root.rstrip("/")

    @property
    def url(self) -> str:
        protocol = self._files.protocol
        return f"{protocol if isinstance(protocol, str) else protocol[0]}://{self._root}"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(atomic_create=True, strong_listing=True, multipart=False)

    async def put(self, key: str, body: Body) -> None:
        path = self._path(key)
        if body.metadata:
            raise Misuse("files have no metadata")
        data = b"".join([window async for window in body.windows()])
        if len(data) != body.size_bytes:
            raise Misuse(f"the body of {key!r} is not of the {body.size_bytes} bytes announced")
        await asyncio.to_thread(self._write, path, data, "wb")

    async def create(self, key: str, data: bytes) -> None:
        try:
            await asyncio.to_thread(self.write_new, self._path(key), data)
        except FileExistsError as exc:
            raise AlreadyExists(key) from exc

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        path = self._path(key)

        def read() -> bytes:
            start, end = clip(span, self._files.size(path))
            data: bytes = self._files.cat_file(path, start, end)
            return data

        try:
            return await asyncio.to_thread(read)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as exc:
            raise NotFound(key, store=self.url) from exc

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        found = await asyncio.to_thread(self._files.find, self._root, detail=True)
        sizes = {path.removeprefix(f"{self._root}/"): row["size"] for path, row in found.items()}
        for key in sorted(sizes):
            if key.startswith(prefix) and key > after:
                yield Listed(key, sizes[key])

    async def level(self, prefix: str) -> AsyncIterator[str]:
        parts = [row.key.removeprefix(prefix).partition("/") async for row in self.list(prefix)]
        for part, slash in dict.fromkeys((part, slash) for part, slash, _ in parts):
            yield prefix + part + slash

    async def delete(self, keys: Sequence[str]) -> None:
        for path in [self._path(key) for key in keys]:
            with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
                await asyncio.to_thread(self._files.rm_file, path)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        check_key(key)
        raise Misuse("there are no multipart uploads")

    def write_new(self, path: str, data: bytes) -> None:
        """Create a file with mode `x`, like Python's own `open`."""
        self._write(path, data, "xb")

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    def _make_room(self, path: str) -> None:
        """Raise `Misuse` if a part of the path is a file: a file system has no `a` beside `a/b`."""
        folder = path.rpartition("/")[0]
        if self._files.isdir(path) or self._files.isfile(folder):
            raise Misuse(f"{path!r} is a folder, or is in what is a file")
        self._files.makedirs(folder, exist_ok=True)

    def _write(self, path: str, data: bytes, mode: str) -> None:
        self._make_room(path)
        with self._files.open(path, mode) as file:
            file.write(data)


class PipingStore(FsspecStore):
    """The same store with the other way of creating a file that fsspec documents."""

    def write_new(self, path: str, data: bytes) -> None:
        self._make_room(path)
        self._files.pipe_file(path, data, mode="create")
