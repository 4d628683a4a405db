"""Fifth set, stores: what a service does to names, bytes and descriptions on their way."""

from __future__ import annotations

import gzip
import re
import time
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256

from newcomers.fifth_sound import filled, keeps_keys, listed
from newcomers.fourth_sound import Client, described
from newcomers.proofs import data_of, raises
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory
from offload.contracts.store import Body, Listed, Span, Suffix, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, Denied, NotFound

# Bytes


async def _compressed_stays(open_: Open) -> None:
    store = open_()
    data = gzip.compress(data_of(1000))
    await store.put("k", Body.of(data))
    assert await store.get("k") == data
    assert await store.get("k", Suffix(10)) == data[-10:]


@bug(_compressed_stays)
class GzipIsUndone(SharedMemory):
    """The client's HTTP library undoes the compression of whole replies that begin as gzip does.

    Breaks "Read an object". Costs an object that is a gzip file: another one is read back, of another size.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        if span is None and data[:2] == b"\x1f\x8b":
            with suppress(OSError, EOFError, zlib.error):
                return gzip.decompress(data)
        return data


async def _equal_bytes_are_apart(open_: Open) -> None:
    store = open_()
    for key in ("a", "b"):
        await store.put(key, Body.of(data_of(1000)))
    await store.delete(["a"])
    assert await store.get("b") == data_of(1000)


@bug(_equal_bytes_are_apart)
class DedupWithoutCounts(SharedMemory):
    """Equal bytes are stored once, and the deletion of one object removes them for the others.

    Breaks "Delete these objects", and no other. Costs a copy of an object, when the first one is swept.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.kept.setdefault("lost", set()).discard(crc32c(self.objects[key]))

    async def delete(self, keys: Sequence[str]) -> None:
        lost = [crc32c(self.objects[key]) for key in keys if key in self.objects]
        await super().delete(keys)
        self.kept.setdefault("lost", set()).update(lost)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data)
        self.kept.setdefault("lost", set()).discard(crc32c(data))

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        if len(self.objects[key]) >= 512 and crc32c(self.objects[key]) in self.kept.get("lost", ()):
            raise NotFound(key, store=self.url)
        return data


async def _descriptions_of_equal_bytes(open_: Open) -> None:
    store = open_()
    for key in ("a", "b"):
        await store.put(key, Body.of(data_of(1000), metadata={"name": key}))
    assert await store.metadata_of("a") == {"name": "a"}


@bug(_descriptions_of_equal_bytes)
class DedupOfDescriptions(SharedMemory):
    """Equal bytes are stored once, with the description of whoever stored them last.

    Breaks "An object has only the metadata that it was written with". Costs every copy its own description.
    """

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        data = await self.get(key)
        return await super().metadata_of([each for each in self.objects if self.objects[each] == data][-1])


async def _two_clients_in_turn(open_: Open) -> None:
    clients = [open_(), open_()]
    for turn in range(6):
        await clients[turn % 2].put("k", Body.of(f"{turn}".encode()))
        assert await clients[0].get("k") == f"{turn}".encode()


@bug(_two_clients_in_turn)
class SlowClockLoses(SharedMemory):
    """Writes have their client's time, and the latest wins. The second client's clock is a minute slow.

    Breaks "Store a whole object, and replace an existing one". Costs a writer on a machine whose clock is
    slow: its puts succeed, and change nothing for a minute.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.clients = self.kept.setdefault("clients", [])
        self.clients.append(0 if not self.clients else -60_000)
        self.skew_ms = self.clients[-1]

    async def put(self, key: str, body: Body) -> None:
        now_ms = time.time_ns() // 1_000_000 + self.skew_ms
        written = self.kept.setdefault("written", {})
        old = self.objects.get(key)
        await super().put(key, body)
        if old is not None and written.get(key, 0) > now_ms:
            self.objects[key] = old
        else:
            written[key] = now_ms


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


async def _folders_in_order(open_: Open) -> None:
    store = open_()
    await filled(store, ["p/a-b", "p/a/c", "p/a.txt", "p/b"])
    found = [name async for name in store.level("p/")]
    assert found == ["p/a-b", "p/a.txt", "p/a/", "p/b"], found


@bug(_folders_in_order)
class LevelWithoutSlashes(SharedMemory):
    """A level is sorted by names, to which the slashes of folders are added afterwards.

    Breaks "in order": `a-b` comes before `a/`. Costs a caller that merges two levels, or goes on behind a
    name.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        found = [name async for name in super().level(prefix)]
        for name in sorted(found, key=lambda each: each.rstrip("/").encode()):
            yield name


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
