"""Fifth set, stores: what a service does to names, bytes and descriptions on their way."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from hashlib import sha256
from typing import Any

from newcomers.fifth_sound import filled, keeps_keys, listed
from newcomers.fourth_sound import Client, described
from newcomers.proofs import raises
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory
from offload.contracts.store import Body, Listed, Span, Suffix, check_key
from offload.ground.errors import AlreadyExists, Denied, NotFound

# Bytes


# Names


async def _after_in_bytes(open_: Open) -> None:
    store = open_()
    keys = ["\uff5e", "\U0001f600", "\U0001f601"]
    await filled(store, keys)
    for at, key in enumerate(keys):
        assert await listed(store, after=key) == keys[at + 1 :], key


@bug(_after_in_bytes)
class AfterInUtf16(SharedMemory):
    """The server compares `after` in UTF-16, and sends its rows in order of UTF-8.

    Breaks "and is greater than `after`, in order of keys". Costs a listing that goes on behind U+FF5E: it
    ends there, before all characters of the other planes.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list(prefix):
            if row.key.encode("utf-16-be") > after.encode("utf-16-be"):
                yield row


@bug(keeps_keys("p/a\x0bb", "p/a\u2028b", "p/a\x85b", "p/a\x1cb", "p/a b"))
class ListIsLines(SharedMemory):
    """A page is a text with a key on each line, and `str.splitlines` takes more characters for the end of
    one.

    Breaks "Yield every object". Costs keys with U+0085 or U+2028: a listing has two others for each.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [row async for row in super().list(prefix, after=after)]
        text = "\n".join(f"{row.key}\t{row.size_bytes}" for row in rows)
        for line in text.splitlines():
            key, _, size = line.partition("\t")
            yield Listed(key, int(size or 0))


async def _beside_a_described_one(open_: Open) -> None:
    store = open_()
    await store.put("p/k.meta", Body.of(b"mine"))
    await store.put("p/k", Body.of(b"x", metadata={"kind": "data"}))
    assert await store.get("p/k.meta") == b"mine"
    assert await listed(store) == ["p/k", "p/k.meta"]


@bug(_beside_a_described_one)
class SidecarIsAnObject(SharedMemory):
    """The metadata of an object is a file of its name and `.meta`, which listings leave out.

    Breaks "Keys are whole names". Costs the object of that name: it is overwritten, and not listed.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        if body.metadata:
            await super().put(f"{key}.meta", Body.of(repr(dict(body.metadata)).encode()))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list(prefix, after=after):
            if not row.key.endswith(".meta"):
                yield row


async def _a_thousand_creates(open_: Open) -> None:
    store = open_()
    for number in range(1500):
        await store.create(f"p/{number:020}.data", b"%d" % number)
    for number in range(1500):
        assert await store.get(f"p/{number:020}.data") == b"%d" % number, number


@bug(_a_thousand_creates)
class IdsOf16Bits(Client):
    """A key is found by an id of it, of 16 bits, and two keys with one id are one object.

    Breaks "Keys are whole names". Costs a folder of some hundred objects: a create is refused, because
    another key is there.
    """

    async def create(self, key: str, data: bytes) -> None:
        ids = self.service.__dict__.setdefault("ids", {})
        if ids.setdefault(sha256(check_key(key).encode()).digest()[:2], key) != key:
            raise AlreadyExists(key)
        await super().create(key, data)


async def _a_folder_is_absent(open_: Open) -> None:
    store = open_()
    await filled(store, ["a/b"])
    await raises(NotFound, store.get("a"))
    await store.delete(["a"])
    assert await listed(store) == ["a/b"]


@bug(_a_folder_is_absent)
class FolderIsDenied(SharedMemory):
    """A read of what is a folder raises an error of permission, as Windows has it, and it is passed on.

    Breaks "Reading an absent key raises `NotFound`". Costs a caller that asks whether a key is there: a
    person is told to grant something.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if any(each.startswith(f"{check_key(key)}/") for each in self.objects) and key not in self.objects:
            raise Denied(f"{self.url}: {key!r}: Permission denied")
        return await super().get(key, span)


# Descriptions


@bug(described({"names": "a,b,,c", "one": "x, y"}))
class CommasGetSpaces(SharedMemory):
    """A value with commas is taken for several headers of one name, which are joined by a comma and a space.

    Breaks "The store keeps them as they are". Costs a list of names, which are others now.
    """

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        found = await super().metadata_of(key)
        return {name: ", ".join(re.split(", ?", value)) for name, value in found.items()}


async def _typed_metadata(open_: Open) -> None:
    store = open_()
    metadata = {"first": "007", "flag": "true", "version": "1.10", "nothing": "null"}
    await store.put("k", Body.of(b"x", metadata=metadata))
    assert await store.metadata_of("k") == metadata


@bug(_typed_metadata)
class MetadataHasTypes(SharedMemory):
    """The column is JSON, and values that look like JSON become numbers and flags.

    Breaks "The store keeps them as they are". Costs a version `1.10`, which reads as `1.1`.
    """

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        typed: dict[str, Any] = {}
        for name, value in (await super().metadata_of(key)).items():
            try:
                typed[name] = json.loads(value)
            except ValueError:
                typed[name] = value
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in typed.items()}
