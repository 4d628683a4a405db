"""Fourth set, stores: listings and levels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from newcomers.proofs import fill, levels, lists
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory
from offload.contracts.store import Listed


@bug(lists(["a/x", "a/\u6f22", "a/\ufa0e", "a/\U0001f600"], prefix="a/"))
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


@bug(levels(["a/1", "a-b", "a.b/2", "a"], ""))
class FoldersSortWithoutTheirSlash(SharedMemory):
    """`level` sorts the bare names, and adds the slash of a folder afterwards.

    Breaks "Levels are whole: in order", since `-` and `.` come before `/`. Costs a merge of two levels the
    names that come too late.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        found = [name async for name in super().level(prefix)]
        for name in sorted(found, key=lambda name: (name.rstrip("/"), name)):
            yield name


async def _two_listings(open_: Open) -> None:
    store = open_()
    await fill(store, [f"a/{number:03}" for number in range(20)] + [f"b/{number:03}" for number in range(20)])
    shown: dict[str, list[str]] = {"a/": [], "b/": []}
    async with aclosing(store.list("a/")) as one, aclosing(store.list("b/")) as two:
        for _ in range(20):
            shown["a/"].append((await anext(one)).key)
            shown["b/"].append((await anext(two)).key)
    assert shown == {prefix: [f"{prefix}{number:03}" for number in range(20)] for prefix in shown}


@bug(_two_listings)
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


@bug(lists([f"{'k' * 200}/{number:04}" for number in range(400)]))
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


@bug(lists(["a", "a/1", "ab", "b"], after="a"))
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
