"""Mistakes in reading, listing and keys, of the second set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from newcomers.proofs import names as keys
from newcomers.proofs import raises
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory, Sqlite
from offload.contracts.store import Body, Listed, Span, Suffix, Upload, check_key
from offload.ground.errors import NotFound
from offload.store.spans import clip


async def shows_last_nothing_is_all(open_: Open) -> None:
    store = open_()
    await store.put("a", Body.of(b"123"))
    assert await store.get("a", Suffix(0)) == b""


@bug(shows_last_nothing_is_all)
class LastNothingIsAll(SharedMemory):
    """`Suffix(0)` becomes `data[-0:]`, which is everything.

    Breaks "The last `length` bytes of an object".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Suffix) and span.length == 0:
            span = None
        return await super().get(key, span)


async def shows_text_where_possible(open_: Open) -> None:
    store = open_()
    await store.put("a", Body.of("äöü".encode()))
    assert await store.get("a", Span(2, 2)) == "ö".encode()


@bug(shows_text_where_possible)
class TextWherePossible(Sqlite):
    """Bytes that are valid UTF-8 are stored as TEXT, "to be readable in the shell": ranges then count
    characters.

    Breaks "Ranges are exact." Data with letters beyond ASCII only; `length` in listings is wrong as well.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return await super().get(key, span)
        start, end = clip(span, len(text))
        return text[start:end].encode()


async def shows_returns_memoryview(open_: Open) -> None:
    store = open_()
    await store.put("a", Body.of(b"1"))
    assert isinstance(await store.get("a"), bytes)


@bug(shows_returns_memoryview)
class ReturnsMemoryview(SharedMemory):
    """`get` returns the driver's `memoryview` (psycopg's bytea), which has no hash, no `decode` and no `+`.

    Breaks the type of `get`, `bytes`; users of the store fail later, elsewhere.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return memoryview(await super().get(key, span))


async def shows_remembered_size(open_: Open) -> None:
    one, two = open_(), open_()
    await one.put("a", Body.of(b"1"))
    await two.get("a", Span(0, 9))
    await one.put("a", Body.of(b"12"))
    assert await two.get("a", Span(0, 9)) == b"12"


@bug(shows_remembered_size)
class RememberedSize(SharedMemory):
    """A client remembers the size of each object to clip spans. After another client replaces the object, the
    old end still clips them.

    Breaks "clipped at the object's end". s3fs-fuse issue 1852.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._sizes = {}

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key)
        size = self._sizes.setdefault(key, len(data))
        if span is None:
            return data
        start, end = clip(span, min(size, len(data)))
        return data[start:end]

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self._sizes.pop(key, None)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            self._sizes.pop(key, None)


async def shows_negative_cache(open_: Open) -> None:
    one, two = open_(), open_()
    await raises(NotFound, one.get("a"))
    await two.put("a", Body.of(b"1"))
    assert await one.get("a") == b"1"


@bug(shows_negative_cache)
class NegativeCache(SharedMemory):
    """A client remembers that a key was absent until it writes it itself ("enable_noobj_cache").

    Breaks `get` "Raises `NotFound`" of what is not there only: an object that another client made is not
    found.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._absent = set()

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if key in self._absent:
            raise NotFound(key, store=self._url)
        try:
            return await super().get(key, span)
        except NotFound:
            self._absent.add(key)
            raise

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self._absent.discard(key)

    async def create(self, key: str, data: bytes) -> None:
        self._absent.discard(key)
        await super().create(key, data)


async def shows_request_in_attribute(open_: Open) -> None:
    store = open_()
    for key in ("a", "b"):
        await store.put(key, Body.of(key.encode()))
    assert await asyncio.gather(store.get("a"), store.get("b")) == [b"a", b"b"]


@bug(shows_request_in_attribute)
class RequestInAttribute(SharedMemory):
    """The request under way is kept in an attribute of the client: two `get`s at once return one object
    twice.

    Breaks "methods may be called at the same time".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self._request = check_key(key), span
        await asyncio.sleep(0)
        return await super().get(*self._request)


async def shows_pages_by_number(open_: Open) -> None:
    store = open_()
    names = [f"k{n:03}" for n in range(150)]
    for name in names:
        await store.put(name, Body.of(b""))
    seen = []
    async for row in store.list(""):
        seen.append(row.key)
        if len(seen) == 50:
            await open_().delete(names[:40])
    assert set(names[40:]) <= set(seen)


@bug(shows_pages_by_number)
class PagesByNumber(Sqlite):
    """Pages use LIMIT and OFFSET. A deletion in between shifts the rest, so the listing skips rows.

    Breaks "An object that exists during the whole call is shown."
    """

    PAGE = 100

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        at = 0
        while True:
            rows = [row async for row in super().list(prefix, after=after)][at : at + self.PAGE]
            for row in rows:
                yield row
            at += len(rows)
            if not rows:
                return


async def shows_underscore_is_wild(open_: Open) -> None:
    store = open_()
    await store.put("aXb/1", Body.of(b""))
    assert not await keys(store, "a_b/")


@bug(shows_underscore_is_wild)
class UnderscoreIsWild(SharedMemory):
    """`LIKE prefix || '%'` does not escape `_`: a prefix with an underscore also lists others' keys.

    Breaks "Every object whose key begins with `prefix`". `%` was thought of, `_` was not.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list("", after=after):
            pairs = zip(prefix, row.key, strict=False)
            if len(row.key) >= len(prefix) and all(p in ("_", k) for p, k in pairs):
                yield row


async def shows_empty_page_ends(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("a")
    for n in range(100):
        await upload.put_part(n + 1, b"1")
    await store.put("b", Body.of(b""))
    assert await keys(store) == ["b"]


@bug(shows_empty_page_ends)
class EmptyPageEnds(SharedMemory):
    """Parts of uploads are stored beside the objects as `<key>/.part.N`. Each page leaves them out, and an
    empty page ends the listing.

    Breaks "Every object". An upload of 100 parts hides what follows.
    """

    async def start_upload(self, key: str) -> Upload:
        upload = await super().start_upload(key)
        self.kept[upload._id] = upload
        return upload

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [(row.key, row) async for row in super().list(prefix, after=after)]
        for upload in self._unfinished.values():
            hidden = [(f"{upload.key}/.part.{n:05}", None) for n in upload._parts]
            rows += [row for row in hidden if row[0].startswith(prefix) and row[0] > after]
        rows.sort(key=lambda row: row[0])
        for start in range(0, len(rows), 50):
            page = [row for _, row in rows[start : start + 50] if row is not None]
            if not page:
                return
            for row in page:
                yield row


async def shows_shard_after_shard(open_: Open) -> None:
    for turns in range(14):
        store, other, prefix = open_(), open_(), f"{turns:02}/"
        await store.create(prefix + "r2", b"")  # of either shard, for any prefix
        listing = asyncio.ensure_future(keys(store, prefix))
        for old, new in (("r2", "r3"), ("r3", "r4")):
            for _ in range(turns):
                await asyncio.sleep(0)
            await other.create(prefix + new, b"")
            await other.delete([prefix + old])
        assert await listing


@bug(shows_shard_after_shard)
class ShardAfterShard(SharedMemory):
    """Keys are spread over two shards, and a listing reads one shard after the other.

    Breaks "the last one shown is at least as great as the greatest one of the moment at which the call
    began": a greater key is created in the shard that was read, a lesser one deleted in the other.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = []
        for shard in (0, 1):
            for _ in range(5):  # a request takes a while
                await asyncio.sleep(0)
            rows += [
                Listed(key, len(data))
                for key, data in self.objects.items()
                if sum(key.encode()) % 2 == shard and key.startswith(prefix) and key > after
            ]
        for row in sorted(rows, key=lambda row: row.key):
            yield row


async def shows_listed_in_utf16(open_: Open) -> None:
    store = open_()
    for key in ("a\uff21", "a\U0001f600"):
        await store.put(key, Body.of(b""))
    assert await keys(store) == ["a\uff21", "a\U0001f600"]


@bug(shows_listed_in_utf16)
class ListedInUtf16(SharedMemory):
    """Keys are sorted as UTF-16, as in Java, JavaScript and Azure's older emulator: the order differs from
    U+E000 on.

    Breaks "Keys ascend by their UTF-8 bytes."
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [row async for row in super().list(prefix, after=after)]
        for row in sorted(rows, key=lambda row: row.key.encode("utf-16-be")):
            yield row


async def shows_plus_is_space(open_: Open) -> None:
    store = open_()
    await store.put("a+b", Body.of(b""))
    assert await keys(store) == ["a+b"]


@bug(shows_plus_is_space)
class PlusIsSpace(SharedMemory):
    """Listings arrive URL-encoded, and are decoded like a form: a `+` in a key becomes a space.

    Breaks `Listed.key`; what is listed cannot be read or deleted. As boto with `EncodingType=url`.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list(prefix, after=after):
            yield Listed(row.key.replace("+", " "), row.size_bytes)


class Mapped(SharedMemory):
    """A store whose object names are made from the keys."""

    def name(self, key: str) -> str:
        return key

    async def put(self, key: str, body: Body) -> None:
        await super().put(self.name(check_key(key)), body)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(self.name(check_key(key)), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(self.name(check_key(key)), span)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([self.name(check_key(key)) for key in keys])

    async def start_upload(self, key: str) -> Upload:
        return await super().start_upload(self.name(check_key(key)))


async def shows_trailing_dot_dropped(open_: Open) -> None:
    store = open_()
    await store.put("a", Body.of(b"1"))
    await store.put("a.", Body.of(b"2"))
    assert await store.get("a") == b"1"


@bug(shows_trailing_dot_dropped)
class TrailingDotDropped(Mapped):
    """A dot or space at the end of a name is dropped, as Windows, SMB and Azure do: `a.` and `a` are one
    object.

    Breaks "Keys are whole names".
    """

    def name(self, key: str) -> str:
        return "/".join(part.rstrip(". ") or part for part in key.split("/"))
