"""Listings: never stale, in the order of keys' bytes, whole over any number of pages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, cast

import pytest

from offload.store.port import Body, Listed, ObjectStore
from offload_conformance.asynchronous import Run
from offload_conformance.store.base import (
    LATE_LOOKS_MAX,
    LATE_PAUSE_SECONDS,
    StoreClauses,
    keys,
    level,
    listed,
    refuses,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

UNORDERED: Final = (
    "a0",
    "a/b",
    "a.b",
    "a-b",
    "a/b0",
    "B",
    "é",
    "z",
    "日本",
    "\U0001f4be",
    "a/é/x",
    "a/b.c/d",
)
"""Keys on which wrong orders differ: `/` is a byte between `.` and `0`, and `B` is less than `a`."""


MANY: Final = 1_100
"""More objects than a page of any store that we know."""

STEPS: Final = 60
"""How many keys are created, each greater than the one before, while listings run."""

LISTERS: Final = 3


class ListingClauses(StoreClauses):
    """Of the port's clauses: listing is strong, listing is ordered."""

    def test_listing_is_strong(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """Each write and delete shows in the very next listing, also another client's."""
        if not store.capabilities.strong_listing:
            self.holds_no_tier(run, store)
            return

        assert run(listed(other)) == []
        run(store.put("a", Body.of(b"1")))
        assert run(listed(other)) == [Listed("a", 1)]
        run(store.put("a", Body.of(b"333")))
        run(store.create("b", b"22"))
        assert run(listed(other)) == [Listed("a", 3), Listed("b", 2)]
        run(store.delete(["a"]))
        assert run(listed(other)) == [Listed("b", 2)]

    def test_listing_is_ordered(self, run: Run, store: ObjectStore) -> None:
        """Keys are listed by the bytes of whole keys, with their objects' sizes."""
        for size, key in enumerate(UNORDERED):
            run(store.put(key, Body.of(b"x" * size)))

        rows = run(listed(store, awaiting=expected(UNORDERED)))

        assert [row.key for row in rows] == sorted(UNORDERED, key=str.encode)
        assert {row.key: row.size_bytes for row in rows} == {key: n for n, key in enumerate(UNORDERED)}

    def test_listing_is_ordered_in_every_plane(self, run: Run, store: ObjectStore) -> None:
        """Characters beyond U+FFFF come behind all others, as in UTF-8 and not as in UTF-16."""
        ordered = [key for key in ("\ud7ff", "\uffee", "\U0001f4be") if not refuses(store, key)]
        for key in reversed(ordered):
            run(store.put(key, Body.of(b"")))

        assert run(self.listed_like(store, ordered)) == ordered

    @pytest.mark.parametrize(
        "after",
        ["", "a", "a-b", "a.", "a.b", "a/", "a/b", "a/b.c/", "a/b.c/d", "a/b/", "a0", "m", "é", "\U0010ffff"],
    )
    def test_listing_begins_after(self, run: Run, store: ObjectStore, after: str) -> None:
        """A listing leaves `after` out itself; it need not exist, and may lie anywhere."""
        for key in UNORDERED:
            run(store.put(key, Body.of(b"")))

        assert run(self.listed_like(store, UNORDERED, "", after)) == expected(UNORDERED, after=after)
        assert run(self.listed_like(store, UNORDERED, "a", after)) == expected(UNORDERED, "a", after)
        assert run(self.listed_like(store, UNORDERED, "a/b", after)) == expected(UNORDERED, "a/b", after)

    @pytest.mark.parametrize(
        "prefix",
        ["", "x", "x/", "x/root.", "x/root.1", "x/root.1/", "x/root.1/y", "x/r", "xx", "none/", "x/none"],
    )
    def test_listing_takes_any_prefix(self, run: Run, store: ObjectStore, prefix: str) -> None:
        """A prefix is a run of characters; it ends where it likes, within a part too."""
        there = ("x/root.1", "x/root.2", "x/root.2y", "x/rooted", "x/root/z", "xx", "y/root.1")
        for key in there:
            run(store.put(key, Body.of(b"")))

        assert run(self.listed_like(store, there, prefix)) == expected(there, prefix)

    @pytest.mark.parametrize("prefix", ["/", "//", "../", "x/../", ".", "x/.", "a\0"])
    def test_listing_finds_nothing_under_what_begins_no_key(
        self, run: Run, store: ObjectStore, prefix: str
    ) -> None:
        """A prefix that begins no key lists nothing, and is no way out of the store."""
        run(store.put("x/key", Body.of(b"")))

        assert run(listed(store, prefix)) == []

    def test_listing_goes_on_page_after_page(self, run: Run, store: ObjectStore) -> None:
        """More objects than any store has on a page are listed once each and in order."""
        there = [f"many/{n:05}" for n in range(MANY)]

        async def fill() -> None:
            for start in range(0, MANY, 100):
                await asyncio.gather(*(store.create(key, b"") for key in there[start : start + 100]))

        run(fill())

        assert run(self.listed_like(store, there)) == there
        assert run(self.listed_like(store, there, "many/01", "many/01097")) == there[1098:]

    def test_listing_keeps_its_end(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """A listing shows what exists during the whole call, and no folder's end is missed.

        Another client creates greater and greater keys, and deletes the lowest of them once `newest_kept`
        others exist. A listing that reads names first, and looks at each object later, shows none of them
        if it is slow: those that it read are deleted, and their successors are not among what it read.
        """
        if not store.capabilities.strong_listing:
            self.holds_no_tier(run, store)
            return
        lasting = ["x/a", "x/b/c", "x/root"]
        shown: list[tuple[str, list[str]]] = []
        newest = 0

        async def succeed() -> None:
            nonlocal newest
            for number in range(1, STEPS):
                await other.create(f"x/root.{number:04}", b"")
                newest = number
                if number >= self.newest_kept:
                    await other.delete([f"x/root.{number - self.newest_kept:04}"])

        async def follow(succession: asyncio.Task[None]) -> None:
            while not succession.done():
                began_with = f"x/root.{newest:04}"
                shown.append((began_with, keys(await listed(store, "x/"))))

        async def scenario() -> None:
            for key in (*lasting, "x/root.0000"):
                await store.put(key, Body.of(b""))
            async with asyncio.TaskGroup() as tasks:
                succession = tasks.create_task(succeed())
                for _ in range(LISTERS):
                    tasks.create_task(follow(succession))

        run(scenario())

        for began_with, found in shown:
            assert found[: len(lasting)] == lasting
            assert found[-1] >= began_with

    def test_levels_are_whole(self, run: Run, store: ObjectStore) -> None:
        """A level names each key and folder directly below once, in order, and no folder of nothing."""
        for key in ("a-b/x", "a/1", "a/2/x", "a/2/y/z", "a/20", "a0", "é/ü/x", "b", "gone/x"):
            run(store.put(key, Body.of(b"")))
        run(store.delete(["gone/x"]))

        assert run(self.level_like(store, "", "a-b/", "a/", "a0", "b", "é/"))
        assert run(self.level_like(store, "a/", "a/1", "a/2/", "a/20"))
        assert run(self.level_like(store, "é/", "é/ü/"))
        assert run(self.level_like(store, "none/"))
        assert run(self.level_like(store, "b/"))

    def test_a_level_goes_on_page_after_page(self, run: Run, store: ObjectStore) -> None:
        """More folders than any store names at once, among keys, are named once each and in order."""
        there = [f"{n:04}{'/x' if n % 10 else ''}" for n in range(MANY)]

        async def fill() -> None:
            for start in range(0, MANY, 100):
                await asyncio.gather(*(store.create(key, b"") for key in there[start : start + 100]))

        run(fill())

        assert run(self.level_like(store, "", *(key.removesuffix("x") for key in there)))

    async def level_like(self, store: ObjectStore, prefix: str, *wanted: str) -> bool:
        """Whether these are the names of a level; of a store that may be late, in one of many looks."""
        for _ in range(1 if store.capabilities.strong_listing else LATE_LOOKS_MAX):
            if await level(store, prefix) == [*wanted]:
                return True
            await asyncio.sleep(0 if store.capabilities.strong_listing else LATE_PAUSE_SECONDS)
        return False

    def test_listing_reads_prefixes_as_they_are(self, run: Run, store: ObjectStore) -> None:
        """No character of a prefix is a wildcard, and none is special."""
        there = ("a%b", "a%bc", "a*b", "a+b", "a[b]", "a_b", "axb", "axxb")
        for key in there:
            run(store.put(key, Body.of(b"")))

        for prefix in ("a%", "a%b", "a*", "a+", "a[", "a[b", "a_", "a_b"):
            assert run(self.listed_like(store, there, prefix)) == expected(there, prefix)

    def test_listing_may_be_left_early(self, run: Run, store: ObjectStore) -> None:
        """A caller that stops after some rows, and begins again behind the last of them, misses nothing."""
        there = tuple(f"{n:02}" for n in range(10))
        for key in there:
            run(store.put(key, Body.of(b"")))
        run(self.listed_like(store, there))

        async def rows_by_threes() -> list[str]:
            found: list[str] = []
            while True:
                rows = cast("AsyncGenerator[Listed, None]", store.list("", after=found[-1] if found else ""))
                before = len(found)
                async with aclosing(rows):
                    async for row in rows:
                        found.append(row.key)
                        if len(found) == before + 3:
                            break
                if len(found) == before:
                    return found

        assert run(rows_by_threes()) == [*there]

    async def listed_like(
        self, store: ObjectStore, there: Sequence[str], prefix: str = "", after: str = ""
    ) -> list[str]:
        """The keys of a listing, where `there` is all that was put."""
        wanted = expected(there, prefix, after)
        return keys(await listed(store, prefix, after=after, awaiting=wanted))


def expected(there: Sequence[str], prefix: str = "", after: str = "") -> list[str]:
    """The keys that a listing should give, by the definition."""
    wanted = (key.encode() for key in there if key.startswith(prefix))
    return [key.decode() for key in sorted(wanted) if key > after.encode()]
