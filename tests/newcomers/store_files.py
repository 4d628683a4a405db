"""Mistakes with files."""

from __future__ import annotations

import asyncio
import glob
import hashlib
import os
import shutil
import unicodedata
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from offload_posix.failures import explained, failure

from newcomers import proofs
from newcomers.proofs import data_of
from newcomers.registry import Open, bug
from newcomers.sound import Folder
from offload.contracts.store import Body, Listed, Span, Suffix, Upload, check_key
from offload.ground.errors import AlreadyExists, Misuse, NotFound
from offload.store.multipart import whole
from offload.store.spans import clip


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


@bug(proofs.lists(["[x]/1", "[x]/2", "x/1"], prefix="[x]/"))
class PrefixIsAGlob(_Plain):
    """A listing is a glob, in which `[`, `*` and `?` of a prefix are patterns.

    Breaks "Every object whose key begins with `prefix`": a stream whose escaped name has such a character is
    empty.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        keys = {row.key: row.size_bytes async for row in super().list("")}
        found = glob.glob(prefix + "*", root_dir=self._root)
        inside = {key for key in keys if any(key == name or key.startswith(name + "/") for name in found)}
        for key in sorted(key for key in inside if key > after):
            yield Listed(key, keys[key])


@bug(proofs.lists(["a.b/1", "a/1", "a0/1", "a-/1"]))
class FoldersAreWalkedInOrderOfNames(_Plain):
    """`os.walk` with sorted names: the folder `a` comes before `a-`, whose keys are lower than those of `a/`.

    Breaks "Keys ascend by their UTF-8 bytes".
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        found = [row async for row in super().list(prefix, after=after)]
        for row in sorted(found, key=lambda row: row.key.split("/")):
            yield row


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


async def _puts_at_once(open_: Open) -> None:
    one, two = open_(), open_()
    first, second = data_of(3_000_000, 1), data_of(2_000_000, 2)
    for _ in range(20):
        await asyncio.gather(one.put("a/k", Body.of(first)), two.put("a/k", Body.of(second)))
        assert await one.get("a/k") in (first, second)


@bug(_puts_at_once)
class OneTemporaryFileForEachKey(_Plain):
    """The temporary file of a put is named after the key alone, so two puts of one key write to one file.

    Breaks "Puts are whole": the object begins with one's bytes and ends with the other's, or a raw error
    comes.
    """

    async def put(self, key: str, body: Body) -> None:
        staging = f"{self._root}/.tmp-{hashlib.sha256(check_key(key).encode()).hexdigest()}"
        await asyncio.to_thread(self.write, key, await whole(body), staging)


async def _created_whole(open_: Open) -> None:
    one, two = open_(), open_()
    data = data_of(200_000)
    for turn in range(30):
        writing = asyncio.create_task(one.create(f"k{turn}", data))
        while not writing.done():
            with suppress(NotFound):
                assert await two.get(f"k{turn}") == data
        await writing


@bug(_created_whole)
class CreateIsSeenBeforeItIsWritten(_Plain):
    """Create opens the file with `O_EXCL`, and writes into it afterwards.

    Breaks "Puts are whole: a reader finds an object entire or not at all": a root is read half written.
    """

    async def create(self, key: str, data: bytes) -> None:
        def made() -> Any:
            path = self.made(key)
            with explained("creating", path):
                try:
                    return open(path, "xb")
                except FileExistsError as exc:
                    if os.path.isdir(path):
                        raise Misuse(f"{key!r} is a folder") from exc
                    raise AlreadyExists(key) from exc

        with await asyncio.to_thread(made) as file:
            await asyncio.to_thread(file.write, data)


@bug(proofs.answers(NotFound, lambda store: store.get("a/b"), before=["a"]))
class BelowAnObjectIsARawError(_Plain):
    """Reading `a/b` beside an object `a` raises `NotADirectoryError`, which the store does not translate.

    Breaks "Reading a key that is not there raises `NotFound`".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        def read() -> bytes:
            with open(self.path(key), "rb") as file:
                data = file.read()
            start, end = clip(span, len(data))
            return data[start:end]

        try:
            return await asyncio.to_thread(read)
        except (FileNotFoundError, IsADirectoryError) as exc:
            raise NotFound(key) from exc


@bug(proofs.answers(NotFound, lambda store: store.get("a"), before=["a/b"]))
class AFolderIsARawError(_Plain):
    """Reading `a` beside an object `a/b` raises `IsADirectoryError`, which the store does not translate.

    Breaks "Reading a key that is not there raises `NotFound`".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if os.path.isdir(self.path(key)):  # noqa: ASYNC240 - as newcomers write
            raise IsADirectoryError(key)  # as `open` does
        return await super().get(key, span)


async def _delete_a_folders_name(open_: Open) -> None:
    store = open_()
    await proofs.fill(store, ["a/b", "a/c/d", "e"])
    await store.delete(["a", "a/c", "e/f"])
    assert await proofs.names(store) == ["a/b", "a/c/d", "e"]


@bug(_delete_a_folders_name)
class DeleteTakesAFolder(_Plain):
    """Delete removes anything that has the name, including a folder with all its files.

    Breaks "Remove these objects": deleting the absent key `a` also deletes `a/b`.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for path in [self.path(key) for key in keys]:
            if os.path.isdir(path):  # noqa: ASYNC240 - as newcomers write
                shutil.rmtree(path)
            else:
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(path)


@bug(_delete_a_folders_name)
class DeletingAFolderIsARawError(_Plain):
    """Deleting an absent key that is the name of a folder raises `IsADirectoryError`.

    Breaks "Deleting what is absent succeeds".
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for path in [self.path(key) for key in keys]:
            with suppress(FileNotFoundError):
                os.unlink(path)


async def _puts_beside_deletes(open_: Open) -> None:
    one, two = open_(), open_()

    async def churn(store: Any, name: str) -> None:
        for turn in range(150):
            await store.put(f"deep/er/{name}{turn}", Body.of(b"x"))
            await store.delete([f"deep/er/{name}{turn}"])

    await asyncio.gather(*(churn(store, f"{number}-") for number, store in enumerate([one, two] * 3)))


@bug(_puts_beside_deletes)
class EmptyFoldersArePruned(_Plain):
    """Delete removes empty folders, also one that a put has created for its file a moment before.

    Breaks "methods may be called at the same time": the put ends in a raw `FileNotFoundError`.
    """

    async def put(self, key: str, body: Body) -> None:
        data = await whole(body)

        def write() -> None:
            path, staging = self.made(key), f"{self._root}/.tmp-{os.urandom(8).hex()}"
            with open(staging, "wb") as file:
                file.write(data)
            try:
                os.replace(staging, path)
            except FileNotFoundError:
                raise
            except OSError as exc:
                raise failure(exc, "writing", path) from exc

        await asyncio.to_thread(write)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            with suppress(OSError):
                os.removedirs(os.path.dirname(self.path(key)))


@bug(proofs.apart("caf\u00e9/1", "cafe\u0301/1"))
class NamesAreNormalised(_Plain):
    """Names are normalised (NFC), as some file systems and sync clients do.

    Breaks "Keys are whole names": two streams whose names look alike share their objects.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(unicodedata.normalize("NFC", key), body)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(unicodedata.normalize("NFC", key), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(unicodedata.normalize("NFC", key), span)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([unicodedata.normalize("NFC", key) for key in keys])


@bug(proofs.keeps(0, 1))
class EmptyObjectsAreNeverWritten(_Plain):
    """The file is created with the first window, so an object of no bytes is never created.

    Breaks "Store an object whole": an empty object is absent, or what it should replace stays.
    """

    async def put(self, key: str, body: Body) -> None:
        if body.size_bytes:
            await super().put(key, body)
        else:
            check_key(key)
            async for window in body.windows():
                raise Misuse(f"the body has {len(window)} bytes")


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


async def _complete_is_whole(open_: Open) -> None:
    store, other = open_(), open_()
    parts = [data_of(2**20, number) for number in range(6)]
    for turn in range(10):
        upload = await store.start_upload(f"k{turn}")
        for number, part in enumerate(parts, 1):
            await upload.put_part(number, part)
        completing = asyncio.create_task(upload.complete())
        while not completing.done():
            with suppress(NotFound):
                assert await other.get(f"k{turn}", Suffix(2**20)) == parts[-1]
        await completing


@bug(_complete_is_whole)
class CompleteWritesUnderTheKey(_Plain):
    """`complete` copies the parts into the object under its own name, one after the other.

    Breaks "Make the object visible, whole": a reader meanwhile finds the beginning of a
    fragment.
    """

    async def start_upload(self, key: str) -> Upload:
        return _Copying(self, check_key(key))


class _Copying(Upload):
    def __init__(self, store: _Plain, key: str) -> None:
        self.store, self.key = store, key
        self.parts: dict[int, bytes] = {}

    async def put_part(self, number: int, data: bytes) -> None:
        if number < 1:
            raise Misuse("numbers begin at 1")
        self.parts[number] = data

    async def complete(self) -> None:
        if not self.parts or sorted(self.parts) != [*range(1, len(self.parts) + 1)]:
            raise Misuse("a part is missing")
        data = [part for _, part in sorted(self.parts.items())]
        if {*map(len, data[:-1])} - {len(data[0])}:
            raise Misuse("parts differ in size")
        path = await asyncio.to_thread(self.store.made, self.key)
        with explained("writing", path), open(path, "wb", buffering=0) as file:  # noqa: ASYNC230 - as newcomers write
            for part in data:
                await asyncio.to_thread(file.write, part)
            os.fsync(file.fileno())

    async def abort(self) -> None:
        self.parts.clear()


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
