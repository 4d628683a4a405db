"""Mistakes in listings that come page by page, and in levels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from newcomers import proofs
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore
from offload.contracts.store import Listed


@bug(proofs.lists(proofs.THOUSANDS, gone=proofs.THOUSANDS[10:12]))
class ShortPageEndsListing(ServiceStore):
    """A page with fewer rows than requested counts as the last, though pages leave out rows of deleted keys.

    Breaks "An object that exists during the whole call is shown": a tier loses its newest roots after a
    sweep.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        while True:
            rows, _ = await self.ask(self.service.page, prefix, after, self.PAGE_ROWS)
            for key, size_bytes in rows:
                yield Listed(key, size_bytes)
                after = key
            if len(rows) < self.PAGE_ROWS:
                return


@bug(proofs.lists(proofs.THOUSANDS, gone=proofs.THOUSANDS[:1500]))
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


@bug(proofs.lists([f"a+{number:04}" for number in range(1500)]))
class PlusInTokenIsSpace(ServiceStore):
    """The token of the next page is sent as a form field and not escaped, so that its `+` arrives as a blank.

    Breaks "Keys ascend by their UTF-8 bytes": keys come twice, and a listing of many such keys never ends.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        token: str | None = after
        for _ in range(20):
            if token is None:
                return
            rows, token = await self.ask(
                self.service.page, prefix, token.replace("+", " ") if token != after else token, 1000
            )
            for key, size_bytes in rows:
                yield Listed(key, size_bytes)


@bug(proofs.lists(["b/1", "b/2"], prefix="b/", after="c"))
class AfterOfAnotherFolderIsForgotten(ServiceStore):
    """`after` is sent relative to the prefix, and dropped if it does not begin with it.

    Breaks "greater than `after`": a listing that begins behind a folder shows all of the folder again.
    """

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        return super().list(prefix, after=after if after.startswith(prefix) else "")


@bug(proofs.levels([f"many/{number:04}" for number in range(2500)] + ["z"]))
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


@bug(proofs.levels(["a/1", "a0", "a1"]))
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


@bug(proofs.levels(["a", "a/1", "b"]))
class LevelHasOneNameForKeyAndFolder(ServiceStore):
    """A level collects names without their slash, so a key hides the folder of the same name.

    Breaks "names each key and each folder": what is below the folder seems not to exist.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        found: dict[str, str] = {}
        async for row in self.list(prefix):
            part, slash, _ = row.key[len(prefix) :].partition("/")
            found.setdefault(prefix + part, slash)
        for name in sorted(name + slash for name, slash in found.items()):
            yield name


@bug(proofs.levels(["a.b", "a/1", "a0"]))
class LevelSortsFoldersWithoutSlash(ServiceStore):
    """A level sorts names before it adds the slash to folders.

    Breaks "Levels are whole: once, in order": a merge of two levels drops names.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        found: set[tuple[str, str]] = set()
        async for row in self.list(prefix):
            part, slash, _ = row.key[len(prefix) :].partition("/")
            found.add((prefix + part, slash))
        for name, slash in sorted(found):
            yield name + slash


async def _two_listings(open_: Open) -> None:
    store = open_()
    await proofs.fill(store, proofs.THOUSANDS)
    one, two = await asyncio.gather(proofs.names(store), proofs.names(store, after="t/01200"))
    assert one == proofs.THOUSANDS
    assert two == proofs.THOUSANDS[1201:]


@bug(_two_listings)
class ListingsShareACursor(ServiceStore):
    """The client keeps the position of a listing in itself, so two concurrent listings move one cursor.

    Breaks "methods may be called at the same time": each of two listings misses pages.
    """

    cursor: str | None = None

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        self.cursor = after
        while self.cursor is not None:
            rows, self.cursor = await self.ask(
                lambda: self.service.page(prefix, self.cursor or "", self.PAGE_ROWS)
            )
            for key, size_bytes in rows:
                yield Listed(key, size_bytes)


async def _deleted_while_paging(open_: Open) -> None:
    store, other = open_(), open_()
    await proofs.fill(store, proofs.THOUSANDS)
    found = []
    async with aclosing(store.list("")) as rows:
        async for row in rows:
            found.append(row.key)
            if len(found) == 10:
                await other.delete(proofs.THOUSANDS[:5])
    assert found[-1500:] == proofs.THOUSANDS[1000:]


@bug(_deleted_while_paging)
class PagesAreCountedByRows(ServiceStore):
    """A page begins after a number of rows (`OFFSET`), so keys move up if others are deleted meanwhile.

    Breaks "An object that exists during the whole call is shown": a sweep that deletes as it lists skips
    objects.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        start = 0
        while True:
            await asyncio.sleep(0)
            objects = self.service.objects
            keys = sorted(key for key in objects if key.startswith(prefix) and key > after)[
                start : start + 1000
            ]
            for key in keys:
                yield Listed(key, len(objects.get(key, b"")))
            if not keys:
                return
            start += len(keys)


@bug(proofs.lists(["k", *proofs.THOUSANDS[:999]]))
class FullPageIsTheLast(ServiceStore):
    """The client asks for 1,000 rows. It assumes that a page of exactly 1,000 was cut, and drops its last
    row.

    Breaks "An object that exists during the whole call is shown", at exactly 1,000 keys.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        token: str | None = after
        while token is not None:
            rows, following = await self.ask(self.service.page, prefix, token, self.PAGE_ROWS)
            if len(rows) == self.PAGE_ROWS:
                following = rows[-2][0] if following else None
                rows = rows[:-1]
            token = following
            for key, size_bytes in rows:
                yield Listed(key, size_bytes)
