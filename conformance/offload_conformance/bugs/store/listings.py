"""Bugs of listings and levels: rows that are left out, repeated, stale, or out of order."""

from __future__ import annotations

import asyncio
import posixpath
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final
from urllib.parse import unquote

from offload.contracts.store import Body, Listed, check_key
from offload.ground.errors import AlreadyExists, NotFound
from offload.store.memory import MemoryStore
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound import proofs
from offload_conformance.bugs.sound.memory import SharedMemory
from offload_conformance.bugs.sound.proofs import fill, levels, lists, raises
from offload_conformance.bugs.sound.service import ServiceStore
from offload_conformance.bugs.sound.views import filled, listed
from offload_conformance.bugs.store.shared import PAGE_KEYS, FewConnections

SLOW_TURNS = 100
"""The time in which other processes make and delete more objects than a sweep keeps."""


@bug("store/listing_is_strong")
class CachesListings(MemoryStore):
    """Caches a listing, because listings are expensive.

    fsspec's `dircache`, on by default in s3fs, gcsfs and adlfs.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        if not hasattr(self, "rows"):
            self.rows = [row async for row in super().list("")]
        for row in self.rows:
            if row.key.startswith(prefix) and row.key > after:
                yield row


@bug("store/listing_is_strong")
class ListsFromAnIndex(MemoryStore):
    """Lists from its own index, which deletions do not update.

    A second table, or a database beside the bucket, is written in a separate step.
    """

    index: dict[int, dict[str, int]] = {}

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        index = self.index.setdefault(id(self.objects), {})
        index |= {key: len(data) for key, data in self.objects.items()}
        for key in sorted(index):
            if key.startswith(prefix) and key > after:
                yield Listed(key, index[key])


@bug("store/listing_keeps_its_end")
class LooksAtNamesLater(MemoryStore):
    """Reads the names first, and leaves out objects that have disappeared when it looks at each.

    `os.scandir` and then `os.stat`: ours did, and showed no root at all after a sweep had deleted the ones
    it read.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        for row in [row async for row in super().list(prefix, after=after)]:
            for _ in range(SLOW_TURNS):
                await asyncio.sleep(0)
            if row.key in self.objects:
                yield row


@bug("store/listing_keeps_its_end")
class ListsInTwoRequests(MemoryStore):
    """Lists the upper half of the keys before the lower half.

    Partitions of an index are queried one after another in no order, or all at once.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [row async for row in super().list(prefix, after=after)]
        middle = rows[len(rows) // 2].key if rows else ""
        for _ in range(SLOW_TURNS):
            await asyncio.sleep(0)
        async for row in super().list(prefix, after=after):
            if row.key < middle:
                yield row
        for row in rows:
            if row.key >= middle and row.key in self.objects:
                yield row


@bug("store/listing_is_ordered")
class ListsFolderByFolder(MemoryStore):
    """Sorts as a walk through folders does.

    `os.walk` with sorted names: `a/b` comes before `a.b` then, though `.` is the lesser byte.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [row async for row in super().list(prefix, after=after)]
        for row in sorted(rows, key=lambda row: row.key.split("/")):
            yield row


@bug("store/listing_is_ordered_in_every_plane")
class SortsByUtf16(MemoryStore):
    """Sorts as Java and JavaScript sort strings: by UTF-16.

    Azurite does; characters beyond U+FFFF then come before some of those below.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [row async for row in super().list(prefix, after=after)]
        for row in sorted(rows, key=lambda row: row.key.encode("utf-16-be")):
            yield row


@bug("store/listing_is_ordered")
class ListsAsTheyCame(MemoryStore):
    """Lists in no order at all.

    A query without `ORDER BY`, a hash table, `os.scandir`.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        for key in [key for key in self.objects if key.startswith(prefix) and key > after]:
            yield Listed(key, len(self.objects[key]))


@bug("store/listing_is_ordered")
class ListsNoSizes(MemoryStore):
    """Lists every object with size zero.

    A listing without metadata, which some SDKs make the cheaper default.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list(prefix, after=after):
            yield Listed(row.key, 0)


@bug("store/listing_begins_after")
class BeginsAtAfter(MemoryStore):
    """Lists the key `after` as well.

    GCS's `startOffset` includes the key that it names, S3's `StartAfter` does not.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        if after in self.objects and after.startswith(prefix):
            yield Listed(after, len(self.objects[after]))
        async for row in super().list(prefix, after=after):
            yield row


@bug("store/listing_takes_any_prefix")
class TakesPrefixesForFolders(MemoryStore):
    """Ends every prefix with a slash.

    File systems list folders, and every layer that plays one on a bucket appends the slash.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        async for row in super().list(folder, after=after):
            yield row


@bug("store/listing_reads_prefixes_as_they_are")
class TakesPrefixesForPatterns(MemoryStore):
    """Lists by a pattern, in which `_` and `%` match other characters.

    `WHERE key LIKE ? || '%'` in a store over a database, or `glob` over files.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        pattern = re.compile(re.escape(prefix).replace("_", ".").replace("%", ".*"))
        async for row in super().list("", after=after):
            if pattern.match(row.key):
                yield row


@bug("store/listing_finds_nothing_under_what_begins_no_key")
class NormalizesPrefixes(MemoryStore):
    """Normalizes a prefix with dots as a path.

    `os.path.join` and `normpath` are applied to a caller's text, which can lead out of the folder.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        meant = posixpath.normpath(f"/{prefix}").lstrip("/") if "." in prefix else prefix
        async for row in super().list(meant, after=after):
            yield row


@bug("store/listing_goes_on_page_after_page")
class ForgetsPageTwo(MemoryStore):
    """Lists only the first page.

    There is one request, and `IsTruncated` is ignored; every test with fewer objects passes.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        listed = 0
        async for row in super().list(prefix, after=after):
            if (listed := listed + 1) > PAGE_KEYS:
                return
            yield row


@bug("store/listing_goes_on_page_after_page")
class RepeatsTheLastOfAPage(MemoryStore):
    """Begins each page with the last key of the one before it.

    The marker is the last key seen, but the server's next page includes the marker.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        listed = 0
        async for row in super().list(prefix, after=after):
            yield row
            if (listed := listed + 1) % PAGE_KEYS == 0:
                yield row


@bug("store/listing_may_be_left_early")
class KeepsTheCursor(MemoryStore):
    """Begins a listing behind the page at which the last one was left.

    The continuation token is kept in the client instead of in the listing.
    """

    token = ""

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        while True:
            rows = [row async for row in super().list(prefix, after=max(after, self.token))][:5]
            if not rows:
                self.token = ""
                return
            self.token = rows[-1].key
            for row in rows:
                yield row


@bug("store/levels_are_whole")
class NamesFoldersOften(MemoryStore):
    """Lists a folder once for each key below it.

    A level is made from a listing, by cutting each key at its next slash.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        async for row in super().list(prefix):
            part, slash, _ = row.key[len(prefix) :].partition("/")
            yield prefix + part + slash


@bug("store/a_level_goes_on_page_after_page")
class ForgetsFoldersOfPageTwo(MemoryStore):
    """Names the keys of every page, and the folders of the first one.

    S3's replies have `CommonPrefixes` in a separate list, and the loop over pages reads only `Contents`.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        named = 0
        async for name in super().level(prefix):
            if (named := named + 1) <= PAGE_KEYS or not name.endswith("/"):
                yield name


@bug("store/listing_is_strong")
class KeepsTheSizeOfACreate(MemoryStore):
    """Lists an object that was created and then put with its first size.

    One of two ways to write does not update an index of sizes.
    """

    sizes: dict[tuple[int, str], int] = {}

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data)
        self.sizes[id(self.objects), key] = len(data)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            self.sizes.pop((id(self.objects), key), None)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list(prefix, after=after):
            size_bytes = self.sizes.get((id(self.objects), row.key), row.size_bytes)
            yield replace(row, size_bytes=size_bytes)


@bug("store/listing_may_be_left_early")
class KeepsCursorsOpen(FewConnections):
    """Keeps the cursor of a listing that was not read to its end.

    The cursor is closed after the loop, which a caller that stops early never reaches.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        self.take()
        async for row in super().list(prefix, after=after):
            yield row
        self.free += 1


@bug("store/listing_goes_on_while_keys_change")
class PagesByNumber(MemoryStore):
    """Requests the next page by the number of rows so far.

    `LIMIT 1000 OFFSET 1000`: deletions before that position move the rows up, and as many rows are missing.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        shown = 0
        while page := [row async for row in MemoryStore.list(self, prefix, after=after)][
            shown : shown + 1000
        ]:
            for row in page:
                yield row
            shown += len(page)


@bug("store/listing_goes_on_page_after_page")
class StopsAfterTenPages(MemoryStore):
    """Lists at most ten thousand keys.

    The largest window of Elasticsearch, or a loop over pages with a limit against endless loops.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        shown = 0
        async for row in super().list(prefix, after=after):
            if (shown := shown + 1) > 10_000:
                return
            yield row


@bug("store/listing_goes_on_page_after_page")
class UnquotesTokens(MemoryStore):
    """Requests the next page behind a key in which `%2B` has become `+`.

    The token of a page is a key in a query, and its escapes are decoded once too often.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        while page := [row async for row in MemoryStore.list(self, prefix, after=after)][:1000]:
            for row in page:
                yield row
            if len(page) < 1000:
                return
            after = unquote(page[-1].key)


@bug("store/listing_goes_on_page_after_page")
class ForgetsSizesBehindAPage(MemoryStore):
    """Lists every row after the first thousand with a size of 0.

    The first page and the next pages are read by different code, and one requests only keys.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        shown = 0
        async for row in super().list(prefix, after=after):
            shown += 1
            yield row if shown <= 1000 else Listed(row.key, 0)


@bug("store/a_level_goes_on_page_after_page")
class DropsTheLastOfAFullPage(MemoryStore):
    """Lists 999 of a thousand names.

    It requests one name more than it returns, to see if another page follows; the last page has no extra
    name.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        names = [name async for name in super().level(prefix)]
        for name in names[:-1] if len(names) % 1000 == 0 else names:
            yield name


@bug("store/listing_goes_on_while_keys_change")
class DropsTheFirstRowOfAPage(MemoryStore):
    """Begins each page at the last key of the one before, and drops its first row as known.

    The marker is inclusive, and the row that it names was deleted meanwhile, so another row is dropped.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [row async for row in super().list(prefix, after=after)]
        while page := rows[:30]:
            for row in page:
                yield row
            marker = page[-1].key
            following = [row async for row in super(type(self), self).list(prefix)]
            rows = [row for row in following if row.key >= marker][1:]


@bug("store/listing_is_strong")
class RemembersLevels(MemoryStore):
    """Answers a level from the memory of the client, which only its own writes clear.

    Listings are asked of the server, and levels come from a cache of folders.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        known: dict[str, list[str]] = self.__dict__.setdefault("known", {})
        if prefix not in known:
            known[prefix] = [name async for name in super().level(prefix)]
        for name in known[prefix]:
            yield name

    async def put(self, key: str, body: Body) -> None:
        self.__dict__.pop("known", None)
        await super().put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        self.__dict__.pop("known", None)
        await super().create(key, data)

    async def delete(self, keys: Sequence[str]) -> None:
        self.__dict__.pop("known", None)
        await super().delete(keys)


@bug("store/listing_is_ordered_in_every_plane")
class LevelsInUtf16(MemoryStore):
    """Sorts a level as Java and JavaScript sort strings, and a listing by bytes.

    The database sorts the listing, and the client the names of folders and keys.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        names = [name async for name in super().level(prefix)]
        for name in sorted(names, key=lambda name: name.encode("utf-16-be")):
            yield name


@bug("store/listing_goes_on_while_keys_change")
class ForgetsTheCursor(MemoryStore):
    """Ends a listing whose caller waited for more than a second within a page.

    The server keeps a cursor for some time, and "no such cursor" is taken for its end.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        number, asked = 0, time.monotonic()
        async for row in super().list(prefix, after=after):
            if number and number % 100 == 0:
                if time.monotonic() - asked > 1:
                    return
                asked = time.monotonic()
            number += 1
            yield row


@bug("store/listing_goes_on_while_keys_change")
class CountsLevels(MemoryStore):
    """Finds the next page of a level by the number of names that it has shown.

    `OFFSET` in a query: each name that is deleted meanwhile moves the others.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        shown = 0
        while True:
            names = [name async for name in super().level(prefix)]
            if not (page := names[shown : shown + 100]):
                return
            for name in page:
                yield name
            shown += len(page)


PAGE_ROWS: Final = 1_000


@bug("store/listing_finds_nothing_under_what_begins_no_key")
class EndsAPrefixAtTheNextCharacter(MemoryStore):
    """Lists up to the character that follows the last one of the prefix.

    Some characters have none: what follows U+D7FF is half of a pair, and nothing follows U+10FFFF.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        end = (prefix[:-1] + chr(ord(prefix[-1]) + 1)).encode() if prefix else None
        async for row in super().list(prefix, after=after):
            if end is None or row.key.encode() < end:
                yield row


@bug("store/listing_goes_on_while_keys_change")
class NamesCursorsByPrefix(MemoryStore):
    """Shares one cursor between all listings of a prefix.

    The cursors of a server have names, and the name is made of the query.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        cursors: dict[str, str] = self.__dict__.setdefault("cursors", {})
        while True:
            start = max(after, cursors.get(prefix, ""))
            rows = [row async for row in super().list(prefix, after=start)]
            cursors[prefix] = rows[PAGE_ROWS - 1].key if len(rows) > PAGE_ROWS else ""
            for row in rows[:PAGE_ROWS]:
                yield row
            if len(rows) <= PAGE_ROWS:
                return
            after = rows[PAGE_ROWS - 1].key


async def _deletes_what_it_lists(open_: OpenClient) -> None:
    store = open_()
    await filled(store, [f"k{number:04}" for number in range(2100)])
    async for row in store.list("k"):
        await store.delete([row.key])
    await raises(NotFound, store.get("k2099"))


@bug("store/listing_goes_on_while_keys_change", _deletes_what_it_lists)
class TokenIsAKey(ServiceStore):
    """The token of a page is its last key, which the server looks up: if it is gone, no page follows.

    Breaks "An object that exists during the whole call is shown". Costs a sweep that deletes as it lists: it
    leaves everything behind the first 1,000 keys.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        token: str | None = after
        while token is not None:
            if token != after and token not in self.service.objects:
                return
            rows, token = await self.ask(self.service.page, prefix, token, self.PAGE_ROWS)
            for key, size_bytes in rows:
                yield Listed(key, size_bytes)


async def _after_in_bytes(open_: OpenClient) -> None:
    store = open_()
    keys = ["\uff5e", "\U0001f600", "\U0001f601"]
    await filled(store, keys)
    for at, key in enumerate(keys):
        assert await listed(store, after=key) == keys[at + 1 :], key


@bug("store/listing_begins_after", _after_in_bytes)
class AfterInUtf16(SharedMemory):
    """The server compares `after` in UTF-16, and sends its rows in order of UTF-8.

    Breaks "and is greater than `after`, in order of keys". Costs a listing that goes on behind U+FF5E: it
    ends there, before all characters of the other planes.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list(prefix):
            if row.key.encode("utf-16-be") > after.encode("utf-16-be"):
                yield row


async def _a_thousand_creates(open_: OpenClient) -> None:
    store = open_()
    for number in range(1500):
        await store.create(f"p/{number:020}.data", b"%d" % number)
    for number in range(1500):
        assert await store.get(f"p/{number:020}.data") == b"%d" % number, number


@bug("store/a_level_goes_on_page_after_page", _a_thousand_creates)
class IdsOf16Bits(ServiceStore):
    """A key is found by an id of it, of 16 bits, and two keys with one id are one object.

    Breaks "Keys are whole names". Costs a folder of some hundred objects: a create is refused, because
    another key is there.
    """

    async def create(self, key: str, data: bytes) -> None:
        ids = self.service.__dict__.setdefault("ids", {})
        if ids.setdefault(sha256(check_key(key).encode()).digest()[:2], key) != key:
            raise AlreadyExists(key)
        await super().create(key, data)


@bug(
    "store/listing_is_ordered_in_every_plane",
    lists(["a/x", "a/\u6f22", "a/\ufa0e", "a/\U0001f600"], prefix="a/"),
)
class EndsAtAHighLetter(SharedMemory):
    """A prefix is a range that ends at the prefix and U+F8FF, as a guide of the database recommends.

    Breaks "Yield every object whose key begins with `prefix`". Costs the keys that go on with a greater
    character, such as an emoji.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async with aclosing(super().list(prefix, after=after)) as rows:
            async for row in rows:
                if not prefix or row.key < f"{prefix}\uf8ff":
                    yield row


@bug("store/levels_are_whole", levels(["a/1", "a-b", "a.b/2", "a"], ""))
class FoldersSortWithoutTheirSlash(SharedMemory):
    """`level` sorts the bare names, and adds the slash of a folder afterwards.

    Breaks "Levels are whole: in order", since `-` and `.` come before `/`. Costs a merge of two levels the
    names that come too late.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        found = [name async for name in super().level(prefix)]
        for name in sorted(found, key=lambda name: (name.rstrip("/"), name)):
            yield name


async def _two_listings(open_: OpenClient) -> None:
    store = open_()
    await fill(store, [f"a/{number:03}" for number in range(20)] + [f"b/{number:03}" for number in range(20)])
    shown: dict[str, list[str]] = {"a/": [], "b/": []}
    async with aclosing(store.list("a/")) as one, aclosing(store.list("b/")) as two:
        for _ in range(20):
            shown["a/"].append((await anext(one)).key)
            shown["b/"].append((await anext(two)).key)
    assert shown == {prefix: [f"{prefix}{number:03}" for number in range(20)] for prefix in shown}


@bug("store/listing_goes_on_while_keys_change", _two_listings)
class OneCursor(SharedMemory):
    """A client has one cursor, and a listing that begins takes it from the one under way.

    Breaks "methods may be called at the same time". Costs the rows of the first listing: it ends early, or
    goes on in the wrong folder.
    """

    cursor: AsyncIterator[Listed] | None = None

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        self.cursor = super().list(prefix, after=after)
        while (row := await anext(self.cursor, None)) is not None:
            yield row


@bug("store/listing_goes_on_page_after_page", lists([f"{'k' * 200}/{number:04}" for number in range(400)]))
class RowThatDoesNotFit(SharedMemory):
    """A page is a message of 32 KiB. The row that does not fit any more is dropped with the page's end.

    Breaks "An object that exists during the whole call is shown". Costs one object in each page of a listing:
    a sweep or a copy does not see it.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        size = 0
        async with aclosing(super().list(prefix, after=after)) as rows:
            async for row in rows:
                size += len(row.key) + 16
                if size > 32 * 1024:
                    size = 0
                else:
                    yield row


@bug("store/listing_begins_after", lists(["a", "a/1", "ab", "b"], after="a"))
class AfterSkipsItsFolder(SharedMemory):
    """A listing begins behind all keys that begin with `after`, not behind that key.

    Breaks "Yield every object whose key begins with `prefix` and is greater than `after`". Costs a listing
    that continues the keys that extend the last one.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async with aclosing(super().list(prefix, after=after)) as rows:
            async for row in rows:
                if not after or not row.key.startswith(after):
                    yield row


async def _burst(open_: OpenClient) -> None:
    store = open_()
    await proofs.fill(store, ["k"])
    assert await asyncio.gather(*(store.get("k") for _ in range(100))) == [b"x"] * 100


@bug("store/listing_goes_on_page_after_page", _burst)
class FullQueueIsAnError(ServiceStore):
    """Requests wait in a queue of 64, and one more raises `asyncio.QueueFull`, which is no error of the
    framework.

    Breaks "Every method may raise `TryAgain`, `OutcomeUnknown`, `Denied` or `NoSpace`", and nothing else
    here.
    """

    waiting = 0

    async def ask(self, request: Callable[..., Any], *arguments: Any) -> Any:
        if self.waiting >= 64:
            raise asyncio.QueueFull
        self.waiting += 1
        try:
            return await super().ask(request, *arguments)
        finally:
            self.waiting -= 1


@bug("store/listing_goes_on_page_after_page", proofs.lists(proofs.THOUSANDS, gone=proofs.THOUSANDS[:1500]))
class EmptyPageEndsListing(ServiceStore):
    """An empty page ends a listing, though it names a next one: all of its keys were deleted.

    Breaks "An object that exists during the whole call is shown": after a long trim the stream seems to be
    gone.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        token: str | None = after
        while token is not None:
            rows, token = await self.ask(self.service.page, prefix, token, self.PAGE_ROWS)
            if not rows:
                return
            for key, size_bytes in rows:
                yield Listed(key, size_bytes)


@bug("store/listing_begins_after", proofs.lists(["b/1", "b/2"], prefix="b/", after="c"))
class AfterOfAnotherFolderIsForgotten(ServiceStore):
    """`after` is sent relative to the prefix, and dropped if it does not begin with it.

    Breaks "greater than `after`": a listing that begins behind a folder shows all of the folder again.
    """

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        return super().list(prefix, after=after if after.startswith(prefix) else "")


@bug(
    "store/listing_goes_on_page_after_page",
    proofs.levels([f"many/{number:04}" for number in range(2500)] + ["z"]),
)
class FolderAgainOnEachPage(ServiceStore):
    """Each page of a level forgets the folder with which the page before it ended.

    Breaks "Levels are whole: names each folder once": the same stream is listed three times.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        token: str | None = ""
        while token is not None:
            rows, token = await self.ask(self.service.page, prefix, token, self.PAGE_ROWS)
            parted = (key[len(prefix) :].partition("/") for key, _ in rows)
            for name in dict.fromkeys(prefix + part + slash for part, slash, _ in parted):
                yield name


@bug("store/levels_are_whole", proofs.levels(["a/1", "a0", "a1"]))
class LevelSkipsTheKeyAfterAFolder(ServiceStore):
    """A level continues at `a0` behind the folder `a/`, as `0` follows the slash, but `after` excludes `a0`
    itself.

    Breaks "Levels are whole": the stream `a0` is not listed beside the stream `a`.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        after = ""
        while True:
            async with aclosing(self.list(prefix, after=after)) as rows:
                row = await anext(rows, None)
            if row is None:
                return
            part, slash, _ = row.key[len(prefix) :].partition("/")
            yield prefix + part + slash
            after = f"{prefix}{part}0" if slash else row.key


async def shows_listing_locks_client(open_: OpenClient) -> None:
    store = open_()
    await store.put("a", Body.of(b""))
    async with asyncio.timeout(2):
        async for row in store.list(""):
            await store.delete([row.key])


@bug("store/listing_goes_on_while_keys_change", shows_listing_locks_client)
class ListingLocksClient(SharedMemory):
    """A lock around the one cursor is held while a listing is iterated: a call within the loop waits for
    ever.

    Breaks "methods may be called at the same time".
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._lock = asyncio.Lock()

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async with self._lock:
            async for row in super().list(prefix, after=after):
                yield row

    async def delete(self, keys: Sequence[str]) -> None:
        async with self._lock:
            await super().delete(keys)
