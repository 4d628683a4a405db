"""Mistakes with files."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any

from offload_posix.failures import explained

from newcomers import proofs
from newcomers.registry import Open, bug
from newcomers.sound import Folder
from offload.contracts.store import Body, Upload, check_key
from offload.ground.errors import Misuse
from offload.store.multipart import whole


class _Plain(Folder):
    """The paths of objects, for classes that use `open` and `os` in the ordinary way."""

    def path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    def made(self, key: str) -> str:
        path = self.path(key)
        with explained("making the folder of", path):
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            except FileExistsError as exc:
                raise Misuse(f"{key!r}: an object has the name of its folder") from exc
        return path

    def write(self, key: str, data: bytes, staging: str) -> None:
        """Write a file of this name, and rename it to that of the key."""
        path = self.made(key)
        with explained("writing", path):
            with open(staging, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(staging, path)


async def _beside_its_temporary_name(open_: Open) -> None:
    store = open_()
    await store.put("x.tmp", Body.of(b"mine"))
    await store.put("x", Body.of(b"x"))
    assert await store.get("x.tmp") == b"mine"
    assert await proofs.names(store) == ["x", "x.tmp"]


@bug(_beside_its_temporary_name)
class TemporaryNamesAreKeys(_Plain):
    """A put writes `KEY.tmp` beside the key and renames it: a key `KEY.tmp` is overwritten and gone.

    Breaks "Keys are whole names", and "Listing": the put of one key destroys another.
    """

    async def put(self, key: str, body: Body) -> None:
        await asyncio.to_thread(self.write, key, await whole(body), self.path(key) + ".tmp")


async def _nothing_before_complete(open_: Open) -> None:
    store, other = open_(), open_()
    upload = await store.start_upload("folder/k")
    await upload.put_part(1, b"x" * 10)
    assert await proofs.names(other) == []
    assert await proofs.level(other) == []
    await upload.complete()
    assert await proofs.names(other) == ["folder/k"]


@bug(_nothing_before_complete)
class PartsAreListedAsObjects(_Plain):
    """Parts of an upload wait as files `KEY.part-1` beside the key, and listings show them.

    Breaks "Nothing is visible under its key until `complete` returns", and what listings are of: objects.
    """

    async def start_upload(self, key: str) -> Upload:
        return _PartFiles(self, check_key(key))


class _PartFiles(Upload):
    def __init__(self, store: _Plain, key: str) -> None:
        self.store, self.key = store, key
        self.parts: dict[int, str] = {}

    async def put_part(self, number: int, data: bytes) -> None:
        if number < 1:
            raise Misuse("numbers begin at 1")
        self.parts[number] = f"{self.key}.part-{number}"
        await self.store.put(self.parts[number], Body.of(data))

    async def complete(self) -> None:
        if not self.parts or sorted(self.parts) != [*range(1, len(self.parts) + 1)]:
            raise Misuse("a part is missing")
        data = [await self.store.get(name) for _, name in sorted(self.parts.items())]
        if {*map(len, data[:-1])} - {len(data[0])}:
            raise Misuse("parts differ in size")
        await self.store.put(self.key, Body.of(b"".join(data)))
        await self.abort()

    async def abort(self) -> None:
        await self.store.delete(list(self.parts.values()))


@bug(proofs.uploads([300_000] * 6, at_once=True))
class PartsSeekInOneFile(_Plain):
    """Concurrent parts share one file: each seeks, yields to the loop, and writes where another has sought.

    Breaks "parts may be put in any order and at the same time".
    """

    async def start_upload(self, key: str) -> Upload:
        return _Seeking(self, check_key(key))


class _Seeking(Upload):
    def __init__(self, store: _Plain, key: str) -> None:
        self.store, self.key = store, key
        self.sizes: dict[int, int] = {}
        self.file: Any = None
        self.name = ""

    async def put_part(self, number: int, data: bytes) -> None:
        if number < 1:
            raise Misuse("numbers begin at 1")
        if self.file is None:
            self.name = self.store.made("_") + os.urandom(8).hex()
            self.name = f"{self.store._root}/.part-{os.path.basename(self.name)}"
            self.file = open(self.name, "w+b")  # noqa: ASYNC230, SIM115 - as newcomers write
        self.sizes[number] = len(data)
        self.file.seek((number - 1) * max(self.sizes.values()))
        await asyncio.sleep(0)
        self.file.write(data)

    async def complete(self) -> None:
        if not self.sizes or sorted(self.sizes) != [*range(1, len(self.sizes) + 1)]:
            raise Misuse("a part is missing")
        if {self.sizes[number] for number in sorted(self.sizes)[:-1]} - {self.sizes[1]}:
            raise Misuse("parts differ in size")
        self.file.close()
        path = self.store.made(self.key)
        with explained("writing", path):
            os.replace(self.name, path)

    async def abort(self) -> None:
        if self.file is not None:
            self.file.close()
            with suppress(FileNotFoundError):
                os.unlink(self.name)
