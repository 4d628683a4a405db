"""Bugs of listings and levels: rows that are left out, repeated, stale, or out of order."""

from __future__ import annotations

import asyncio
import posixpath
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from offload.contracts.store import Body, Listed
from offload.store.memory import MemoryStore
from offload_conformance.bugs.registry import bug
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
