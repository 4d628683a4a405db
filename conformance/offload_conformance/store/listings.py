"""Listings: never stale, ordered by the bytes of keys, and complete over any number of pages."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from itertools import product
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from offload.contracts.store import Body, Listed, ObjectStore
from offload_conformance.asynchronous import Run
from offload_conformance.store.base import (
    LATE_LOOKS_MAX,
    LATE_PAUSE_SECONDS,
    StoreClauses,
    fill,
    keys,
    level,
    listed,
    make_sure_of_keys,
    naming,
    refuses,
    size_of,
    store_by,
    ways_of,
)
from offload_conformance.store.edges import KINDS

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
"""Keys that show a wrong order: `/` is a byte between `.` and `0`, and `B` is less than `a`."""


MARKERS: Final = ("a", "a-b", "a.", "a.b", "a/", "a/b", "a/b.c/", "a/b.c/d", "a/b/", "a0", "m", "é")
BEGINNINGS: Final = (
    "",
    "x",
    "x/",
    "x/root.",
    "x/root.1",
    "x/root.1/",
    "x/root.1/y",
    "x/r",
    "xx",
    "none/",
    "x/none",
)

MANY: Final = 1_100
"""More objects than a page of any known store holds."""

LISTING_KEYS: Final = 10_050
"""More than ten pages of 1,000 rows, and more rows than some databases return at once."""

PAGES: Final = (1, 100, 250, 256, 500, 512, 999, 1_000, 1_001, 2_000, 5_000, 10_000)
"""Numbers of rows on one page, or on several, of known stores.

A listing may wrongly end where a page ends.
"""

GAP: Final = 2_100
"""At most this many keys in a row are deleted: whole pages, in a store that remembers deleted keys."""

PAGED: Final = ("a+b %2B&c=d#é?;", "a+b %2B&c=d", "a+b", "many")
"""Folders, of which the first that the store can hold is used. The last key of a page travels in a URL."""

QUICK_SECONDS: Final = 1.0
"""If the first `MANY` keys are created in less time, the test creates ten times as many."""

LEFT: Final = 20
"""The number of listings that are left early: more than most clients have connections, cursors or slots."""

IN_PLACES: Final = (("folders/", "/x"), ("keys/", ""))
"""A folder of folders and a folder of keys, as the texts before and behind a letter."""

SLOW_SECONDS: Final = 2.5
SLOW_AT: Final = 5
"""A listing and a level wait so long behind this row: longer than some servers keep a cursor."""

CHANGES_AT: Final = (1, 64, 100, 256, 400, 500, 990, 999, 1000)
"""The numbers of rows of a listing after which keys are changed: within a page, and near its end."""

LAST_ROWS: Final = frozenset(
    {
        *(*range(1, 33), *range(40, 260, 10), 63, 64, 65, 127, 128, 129, 255, 256, 257),
        *(300, 400, 500, 512, 600, 700, 750, 800, 900, 999, 1_000, 1_024),
    }
)
"""The numbers of rows after which the last row is deleted, because it may be the marker of the next page."""

STEPS: Final = 60
"""The number of keys created while listings run, each greater than the one before."""

LISTERS: Final = 3


class ListingClauses(StoreClauses):
    """The clauses on listings: they are strong and ordered."""

    listing_keys: int = 0
    """The length of the longest listing. 0 means `LISTING_KEYS`, or `MANY` if so many creates take long."""

    def test_listing_is_strong(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """The next listing after a write or delete shows it, also if another client wrote.

        Each row has the size of the current object, whether `put`, `create` or an upload stored it. The same
        holds for listings below a prefix, for levels, and if nothing was there when a client looked before.
        """
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
        self.is_seen_by_all(run, (store, other))
        ways = [way for pair in product(ways_of(store), repeat=2) for way in pair]
        for size_bytes, way in enumerate(ways, start=1):
            run(store_by(way, store, "b", b"x" * size_bytes))
            for client in (store, other):
                found = run(listed(client))
                assert found == [Listed("b", size_bytes)], f"{way} after {ways[: size_bytes - 1][-1:]}"

    def is_seen_by_all(self, run: Run, clients: Sequence[ObjectStore]) -> None:
        """Fail unless each client sees below a prefix at once what the other one wrote or deleted there."""

        def make_sure(there: Sequence[str]) -> None:
            for client in clients:
                make_sure_of_keys(keys(run(listed(client, "seen/"))), there, "a listing after a change")
                make_sure_of_keys(run(level(client, "seen/")), there, "a level after a change")
                make_sure_of_keys(run(level(client, "")), ["b", *["seen/"] * bool(there)], "a level above it")

        make_sure([])
        for writer, number in product(clients, range(2)):
            key = f"seen/{number}"
            run(writer.put(key, Body.of(b"")))
            make_sure([key])
            run(writer.delete([key]))
            if not number:  # a store with folders of its own may still name this one
                run(writer.put("seen/2", Body.of(b"")))
                make_sure(["seen/2"])
                run(writer.delete(["seen/2"]))

    def test_listing_is_ordered(self, run: Run, store: ObjectStore) -> None:
        """Keys are listed in the order of their bytes, with the sizes of their objects."""
        for size, key in enumerate(UNORDERED):
            run(store.put(key, Body.of(b"x" * size)))

        rows = run(listed(store, awaiting=expected(UNORDERED)))

        assert [row.key for row in rows] == sorted(UNORDERED, key=str.encode)
        assert {row.key: row.size_bytes for row in rows} == {key: n for n, key in enumerate(UNORDERED)}

    def test_listing_is_ordered_in_every_plane(self, run: Run, store: ObjectStore) -> None:
        """Characters above U+FFFF sort after all others, as in UTF-8 and not as in UTF-16.

        They do so in listings, behind any marker, and in levels of keys and of folders.
        """
        letters = [key for key in ("a", "\ud7ff", "\uffee", "\U0001f4be") if not refuses(store, key)]
        ordered = [f"{place}{letter}{end}" for place, end in IN_PLACES for letter in letters]
        for key in reversed(ordered):
            run(store.put(key, Body.of(b"")))

        for prefix in ("", "keys/", "folders/"):
            for after in ("", *ordered):
                found = run(self.listed_like(store, ordered, prefix, after))
                make_sure_of_keys(found, expected(ordered, prefix, after), f"{prefix!r} after {after!r}")
        self.is_level(run, store, "folders/", [f"folders/{letter}/" for letter in letters])
        self.is_level(run, store, "keys/", [f"keys/{letter}" for letter in letters])

    def test_listing_begins_after(self, run: Run, store: ObjectStore) -> None:
        """A listing starts behind `after`, which is left out, need not exist and may lie anywhere."""
        for key in UNORDERED:
            run(store.put(key, Body.of(b"")))

        for prefix, after in product(("", "a", "a/b"), (*MARKERS, *KINDS["after: str"].taken)):
            with naming(f"a listing of {prefix!r} after {after!r}"):
                found = run(self.listed_like(store, UNORDERED, prefix, after))
            make_sure_of_keys(found, expected(UNORDERED, prefix, after), f"{prefix!r} after {after!r}")

    def test_listing_takes_any_prefix(self, run: Run, store: ObjectStore) -> None:
        """A prefix is any run of characters and may end anywhere, also within a part of a key."""
        there = ("x/root.1", "x/root.2", "x/root.2y", "x/rooted", "x/root/z", "xx", "y/root.1")
        for key in there:
            run(store.put(key, Body.of(b"")))

        for prefix in BEGINNINGS:
            found = run(self.listed_like(store, there, prefix))
            make_sure_of_keys(found, expected(there, prefix), f"the listing of {prefix!r}")

    def test_listing_finds_nothing_under_what_begins_no_key(self, run: Run, store: ObjectStore) -> None:
        """A prefix with which no key begins lists nothing, and gives no access outside the store."""
        run(store.put("x/key", Body.of(b"")))

        for prefix in KINDS["prefix: str"].taken:
            if prefix:
                with naming(f"a listing of {prefix!r}"):
                    make_sure_of_keys(keys(run(listed(store, prefix))), [], f"the listing of {prefix!r}")

    def test_listing_goes_on_page_after_page(
        self, run: Run, store: ObjectStore, note: Callable[[str], None]
    ) -> None:
        """A listing longer than any page, or than ten pages, has each object once and in order.

        Listings end at the end of pages and elsewhere. After deletions a short page need not be the last one.
        """
        place = folder_of_many(store)
        there = [f"{place}/{n:05}" for n in range(self.listing_keys or LISTING_KEYS)]
        began = time.monotonic()
        run(fill(store, there[:MANY]))
        if not self.listing_keys and time.monotonic() - began > QUICK_SECONDS:
            there = there[:MANY]
        if len(there) < LISTING_KEYS:
            note(f"{len(there):,} keys; more with `--listing-keys {LISTING_KEYS}`")
        run(fill(store, [*there[MANY:], "A", "z"]))
        size = max(1, min(GAP, len(there) - 50))
        first = random.randrange(max(1, len(there) - 50 - size + 1))
        gap = there[first : first + size]
        again = gap[max(size - 5, 0)]  # far behind the others, so that empty pages come before it
        there = ["A", *there, "z"]

        pages = [("", there[-1 - rows]) for rows in PAGES if rows < len(there)]
        self.is_listed(
            run, store, there, [*pages, (f"{place}/0", there[len(there) // 10]), (f"{place}/00", "")]
        )
        self.is_level(run, store, "", ["A", f"{place}/", "z"])
        run(store.delete(gap))
        run(fill(store, [again]))
        left = [key for key in there if key == again or key not in {*gap}]
        spans = [("", gap[0]), (f"{place}/0", ""), (f"{place}/0", gap[-1])]
        self.is_listed(run, store, left, spans, f", after {len(gap)} keys in a row were deleted")
        self.is_level(run, store, "", ["A", f"{place}/", "z"])

    def is_listed(
        self,
        run: Run,
        store: ObjectStore,
        there: Sequence[str],
        spans: Sequence[tuple[str, str]],
        where: str = "",
    ) -> None:
        """Fail unless the store lists exactly these keys, in all and for each prefix and `after`."""
        for prefix, after in [("", ""), *spans]:
            wanted = expected(there, prefix, after)
            rows = run(listed(store, prefix, after=after, awaiting=wanted))
            what = f"the listing of {prefix!r} after {after!r}{where}"
            make_sure_of_keys(keys(rows), wanted, what)
            wrong = [row for row in rows if row.size_bytes != size_of(row.key)]
            if wrong:
                pytest.fail(f"{what}: expected a size of {size_of(wrong[0].key)}; found {wrong[0]}")

    def test_listing_goes_on_while_keys_change(
        self, run: Run, store: ObjectStore, other: ObjectStore
    ) -> None:
        """A key that exists during a whole listing is listed once and in order, while other keys change.

        During the listing, keys before, at and after the current row are deleted, created and replaced, by
        this client and by another. Each row that may be the last of a page is deleted as soon as it is shown.
        A store that finds its next page by a number of rows, or that drops the first row of a page as known,
        would lose one. A client that keeps its only connection for the listing would wait for ever. A caller
        may take its time, and list the same folder meanwhile. The same holds for levels.
        """
        there = [f"many/{n:05}" for n in range(MANY)]
        run(fill(store, there))
        if not store.capabilities.strong_listing:
            run(self.listed_like(store, there))
        deleted, made = set[str](), set[str]()

        async def change(client: ObjectStore, reached: int) -> None:
            before = [*there[max(reached - 60, 0) : reached - 1 : 9], there[reached - 1]]
            behind = there[reached + 3 : reached + 40 : 9]
            created = [f"{key}.{reached}" for key in (*before, *behind)]
            deleted.update(before, behind)
            made.update(created)
            await client.delete([*before, *behind])
            await fill(client, created)
            for key in (there[max(reached - 5, 0)], there[min(reached + 50, MANY - 1)]):
                if key not in deleted:
                    await client.put(key, Body.of(b"replaced"))
                    assert await client.get(key) == b"replaced"

        async def slowly(names: AsyncIterator[Listed | str]) -> list[str]:
            rows = []
            async for row in names:
                rows.append(row if isinstance(row, str) else row.key)
                if len(rows) == SLOW_AT:
                    await asyncio.sleep(SLOW_SECONDS)
            return rows

        async def meanwhile() -> list[str]:
            await asyncio.sleep(SLOW_SECONDS / 2)
            return keys(await listed(store, "many/"))

        async def found() -> list[str]:
            rows = []
            async for row in store.list("many/"):
                rows.append(row.key)
                if len(rows) in LAST_ROWS:
                    deleted.add(row.key)
                    await other.delete([row.key])
                if len(rows) in CHANGES_AT:
                    await change(store if len(rows) % 2 else other, len(rows))
            return rows

        slow = run(gathered(slowly(store.list("many/")), slowly(other.level("many/")), meanwhile()))
        for names in slow:
            make_sure_of_keys(names, there, "the names that a slow caller was shown")
        rows = run(found())

        lasting = [key for key in there if key not in deleted]
        assert [key for key in lasting if key not in {*rows}] == []
        assert rows == sorted({*rows}, key=str.encode), "a key is listed twice or out of order"
        assert {*rows} <= {*there} | made
        self.is_level_while_keys_go(run, store, other, sorted({*lasting} | made - deleted, key=str.encode))

    def is_level_while_keys_go(
        self, run: Run, store: ObjectStore, other: ObjectStore, there: Sequence[str]
    ) -> None:
        """Fail unless a level names each key that stays, while each row that it shows may be deleted."""
        before = [name for name in run(level(store, "many/")) if name in {*there}]
        gone = set[str]()

        async def found() -> list[str]:
            names = []
            async for name in store.level("many/"):
                names.append(name)
                if len(names) in LAST_ROWS:
                    gone.add(name)
                    await (store, other)[len(names) % 2].delete([name])
            return names

        names = run(found())

        assert names == sorted({*names}, key=str.encode), "a level names a key twice or out of order"
        assert [key for key in before if key not in gone and key not in {*names}] == []

    def test_listing_keeps_its_end(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """A listing shows every key that exists during the whole call, also at the end of a folder.

        Another client creates greater and greater keys, and deletes the lowest of them once `newest_kept`
        others exist. Some slow listings read all names first and look at each object later. They show none of
        these keys: the names that they read are deleted by then, and the newer ones are not among them.
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
                for _ in range(random.randrange(3)):  # random, or each listing might meet the same moment
                    await asyncio.sleep(0)
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
        """A level names each key and folder directly below it once and in order, and no key that is deleted.

        A folder without keys may be named, because a store may have folders of its own.
        """
        for key in ("a-b/x", "a/1", "a/2/x", "a/2/y/z", "a/20", "a0", "é/ü/x", "b", "gone/x", "dropped"):
            run(store.put(key, Body.of(b"")))
        run(store.delete(["gone/x", "dropped"]))

        self.is_level(run, store, "", ["a-b/", "a/", "a0", "b", "é/"], empty="gone/")
        self.is_level(run, store, "gone/", [])
        self.is_level(run, store, "a/", ["a/1", "a/2/", "a/20"])
        self.is_level(run, store, "é/", ["é/ü/"])
        self.is_level(run, store, "none/", [])
        self.is_level(run, store, "b/", [])

    def test_a_level_goes_on_page_after_page(self, run: Run, store: ObjectStore) -> None:
        """A level longer than any page, of folders and keys, has each of them once and in order.

        The same holds for exactly 1,000 of them, which are left when the others are deleted.
        """
        place = folder_of_many(store)
        there = [f"{place}/{n:04}{'/x' if n % 10 else ''}" for n in range(MANY)]
        run(fill(store, there))
        dropped = {*random.sample(there, MANY - 1_000)}

        self.is_level(run, store, f"{place}/", [key.removesuffix("x") for key in there])
        run(store.delete([*dropped]))
        left = [key.removesuffix("x") for key in there if key not in dropped]
        found = run(level(store, f"{place}/"))
        empty = {key.removesuffix("x") for key in dropped if key.endswith("x")} & {*found}
        self.is_level(run, store, f"{place}/", sorted({*left, *empty}))

    def is_level(
        self, run: Run, store: ObjectStore, prefix: str, wanted: Sequence[str], *, empty: str = ""
    ) -> None:
        """Fail unless a level has these names, and perhaps that of a folder that is `empty` now.

        If the store may be late, it is listed several times.
        """

        async def look() -> list[str]:
            for _ in range(1 if store.capabilities.strong_listing else LATE_LOOKS_MAX):
                found = await level(store, prefix)
                if empty in found and found == sorted({*wanted, empty}, key=str.encode):
                    found.remove(empty)
                if found == wanted:
                    break
                await asyncio.sleep(0 if store.capabilities.strong_listing else LATE_PAUSE_SECONDS)
            return found

        make_sure_of_keys(run(look()), wanted, f"the level {prefix!r}")

    def test_listing_reads_prefixes_as_they_are(self, run: Run, store: ObjectStore) -> None:
        """No character of a prefix is special or a wildcard."""
        there = ("a%b", "a%bc", "a*b", "a+b", "a[b]", "a_b", "axb", "axxb")
        for key in there:
            run(store.put(key, Body.of(b"")))

        for prefix in ("a%", "a%b", "a*", "a+", "a[", "a[b", "a_", "a_b"):
            assert run(self.listed_like(store, there, prefix)) == expected(there, prefix)

    def test_listing_may_be_left_early(self, run: Run, store: ObjectStore) -> None:
        """A caller that stops after some rows and lists again from the last of them misses nothing.

        It may do so many times, and its next calls are answered.
        """
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

        async def left_and_asked() -> None:
            for number in range(LEFT):
                rows = cast("AsyncGenerator[Listed, None]", store.list(""))
                names = cast("AsyncGenerator[str, None]", store.level(""))
                async with aclosing(rows), aclosing(names):
                    assert ((await anext(rows)).key, await anext(names)) == (there[0], there[0])
                await store.put(there[number % 10], Body.of(b"again"))
                assert await store.get(there[number % 10]) == b"again"

        assert run(rows_by_threes()) == [*there]
        run(left_and_asked())
        assert run(rows_by_threes()) == [*there]

    async def listed_like(
        self, store: ObjectStore, there: Sequence[str], prefix: str = "", after: str = ""
    ) -> list[str]:
        """Return the keys of a listing, for a test that stored the keys `there` and no others."""
        wanted = expected(there, prefix, after)
        return keys(await listed(store, prefix, after=after, awaiting=wanted))


async def gathered(*calls: Coroutine[Any, Any, list[str]]) -> list[list[str]]:
    """Await some calls at the same time."""
    return await asyncio.gather(*calls)


def folder_of_many(store: ObjectStore) -> str:
    """Return a folder for many keys: the first of `PAGED` that the store can hold."""
    return next(place for place in PAGED if not refuses(store, f"{place}/0"))


def expected(there: Sequence[str], prefix: str = "", after: str = "") -> list[str]:
    """Return the keys that a listing should show, by its definition."""
    wanted = (key.encode() for key in there if key.startswith(prefix))
    return [key.decode() for key in sorted(wanted) if key > after.encode()]
