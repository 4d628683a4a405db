"""Fifth set, stores: tables of SQL, their types, comparisons and transactions."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar

from newcomers.fifth_sound import Attic, ended, filled, keeps_keys, listed
from newcomers.proofs import data_of, raises
from newcomers.registry import Open, bug
from offload.contracts.store import Body, Listed, Span, Suffix, check_key
from offload.ground.errors import AlreadyExists, TryAgain

# Types and comparisons


@bug(keeps_keys("007", "1e3", "7", "7.0", "1000"))
class KeysAreNumbers(Attic):
    """The column was declared `STRING`, which SQLite takes for a number: `007` and `7` are one key.

    Breaks "Keys are whole names". Costs the segments of a log, whose names are digits with leading zeros.
    """

    KEY = "STRING"

    def encoded(self, key: str) -> str:
        return key

    def decoded(self, raw: Any) -> str:
        return str(raw)


@bug(keeps_keys("p/a", "p/a ", "p/b"))
class TrailingSpacesArePadding(Attic):
    """The collation pads, as `CHAR` and most of MySQL's collations do: a space at the end is no character.

    Breaks "Keys are whole names". Costs one of two streams whose names differ in a last space.
    """

    KEY = "TEXT COLLATE RTRIM"

    def encoded(self, key: str) -> str:
        return key

    def decoded(self, raw: Any) -> str:
        return str(raw)


async def _any_prefix(open_: Open) -> None:
    store = open_()
    keys = ["p/\ud7ff1", "p/\ud7ff2", "p/\ue0001", "p/\U0010ffff1"]
    await filled(store, keys)
    for prefix in ("p/\ud7ff", "p/\U0010ffff", "p/"):
        assert await listed(store, prefix) == [key for key in keys if key.startswith(prefix)], prefix


@bug(_any_prefix)
class NextCharacterIsTheBound(Attic):
    """A prefix is a range up to the next character of its last one, and some characters have none.

    Breaks "Yield every object whose key begins with `prefix`". Costs a listing below U+D7FF or U+10FFFF,
    which raises.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        (prefix[:-1] + chr(ord(prefix[-1]) + 1)).encode() if prefix else b""
        async for row in super().list(prefix, after=after):
            yield row


async def _empty_is_there(open_: Open) -> None:
    store = open_()
    await store.create("k", b"")
    await raises(AlreadyExists, open_().create("k", b"second"))
    assert await store.get("k") == b""


@bug(_empty_is_there)
class EmptyIsNull(Attic):
    """The database keeps an empty value as NULL, as Oracle does, and a key whose value is NULL is free.

    Breaks "Of any number of creates of one absent key, exactly one succeeds". Costs a lock that is an empty
    object: two hold it.
    """

    def insert(self, db: sqlite3.Connection, key: str, data: bytes) -> None:
        db.execute("DELETE FROM objects WHERE key = ? AND length(data) = 0", (self.encoded(key),))
        super().insert(db, key, data)


# Rows of pieces


async def _shorter_replaces(open_: Open) -> None:
    store = open_()
    for size in (700_000, 100_000, 300_000, 10):
        await store.put("k", Body.of(data_of(size, size)))
        assert await open_().get("k") == data_of(size, size)


class Pieces(Attic):
    """Objects as rows of 256 KiB: the base of two bugs, itself without one."""

    PIECE: ClassVar = 256 * 1024

    def connection(self) -> sqlite3.Connection:
        db = super().connection()
        columns = "key BLOB, number INTEGER, data BLOB, PRIMARY KEY (key, number)"
        db.execute(f"CREATE TABLE IF NOT EXISTS pieces ({columns})")
        return db

    def replace(self, db: sqlite3.Connection, key: str, data: bytes, metadata: Mapping[str, str]) -> None:
        super().replace(db, key, data, metadata)
        self.clear(db, key)
        cuts = range(0, len(data), self.PIECE)
        rows = [(key.encode(), number, data[at : at + self.PIECE]) for number, at in enumerate(cuts)]
        db.executemany("INSERT OR REPLACE INTO pieces VALUES (?, ?, ?)", rows)

    def clear(self, db: sqlite3.Connection, key: str) -> None:
        db.execute("DELETE FROM pieces WHERE key = ?", (key.encode(),))

    def insert(self, db: sqlite3.Connection, key: str, data: bytes) -> None:
        super().insert(db, key, data)
        self.replace(db, key, data, {})

    async def pieces(self, key: str) -> list[bytes]:
        query = "SELECT data FROM pieces WHERE key = ? ORDER BY number"
        await self.row("key", key)
        return [data for (data,) in await self.run(lambda db: db.execute(query, (key.encode(),)).fetchall())]


@bug(_shorter_replaces)
class TailOfTheLonger(Pieces):
    """A put replaces the rows that it has, and leaves those behind them from a longer object.

    Breaks "A reader finds a complete object or none". Costs every object that is replaced by a shorter one.
    """

    def clear(self, db: sqlite3.Connection, key: str) -> None:
        pass

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = b"".join(await self.pieces(key))
        return data if span is None else await super().get(key, span)


# Transactions


async def _after_a_refusal(open_: Open) -> None:
    store = open_()
    await store.create("k", b"1")
    await raises(AlreadyExists, store.create("k", b"2"))
    await store.put("next", Body.of(b"x"))
    assert await open_().get("next") == b"x"


@bug(_after_a_refusal)
class RefusedTransactionGoesOn(Attic):
    """A refused create leaves its transaction open, and what comes next is rolled back with it.

    Breaks "When `put`, `create` or `complete` returns, a power cut does not undo it", and every client sees
    it. Costs the object that is put after a create was refused: the next claim of a stream.
    """

    aborted = False

    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except AlreadyExists:
            self.aborted = True
            raise

    def replace(self, db: sqlite3.Connection, key: str, data: bytes, metadata: Mapping[str, str]) -> None:
        if self.aborted:
            self.aborted = False
            return
        super().replace(db, key, data, metadata)


async def _counts_its_own(open_: Open) -> None:
    store = open_()
    await store.create("taken", b"1")
    for number in range(20):
        refused, stored = await ended(store.create("taken", b"2"), store.create(f"free{number}", b"2"))
        assert isinstance(refused, AlreadyExists), refused
        assert stored is None, stored


@bug(_counts_its_own)
class CountsTheLastChange(Attic):
    """Whether a create stored its row is asked of the connection afterwards, which counts the last statement.

    Breaks "Of any number of creates of one absent key, exactly one succeeds". Costs a claim that was refused
    while another create of the same client succeeded: both go on.
    """

    changes = 0

    async def create(self, key: str, data: bytes) -> None:
        check_key(key)
        try:
            await self.run(lambda db: self.insert(db, key, bytes(data)))
            self.changes = 1
        except sqlite3.IntegrityError:
            self.changes = 0
        await self.run(lambda db: db.execute("SELECT 1").fetchone())
        if not self.changes:
            raise AlreadyExists(key)


async def _twice_in_a_call(open_: Open) -> None:
    store = open_()
    await filled(store, ["a", "b"])
    await store.delete(["a", "b", "a"])
    assert await listed(store) == []


@bug(_twice_in_a_call)
class DeletionCountsRows(Attic):
    """A deletion that removed fewer rows than it has keys, but some, is taken for a race and rolled back.

    Breaks "Deleting an absent object succeeds". Costs a sweep that names a key twice, or one that another
    sweep has deleted: it never ends.
    """

    def remove(self, db: sqlite3.Connection, rows: Sequence[tuple[Any]]) -> None:
        removed = db.executemany("DELETE FROM objects WHERE key = ?", rows).rowcount
        if 0 < removed < len(rows):
            raise TryAgain(f"{self.url}: {removed} of {len(rows)} rows were deleted by this request")


async def _reborn_is_bare(open_: Open) -> None:
    store = open_()
    await store.put("k", Body.of(b"x", metadata={"kind": "old"}))
    await store.delete(["k"])
    await store.create("k", b"y")
    assert await store.metadata_of("k") == {}


@bug(_reborn_is_bare)
class RebornWithOldMetadata(Attic):
    """A deleted row is marked only, and a create takes the mark away: the metadata is still in the row.

    Breaks "An object has only the metadata that it was written with". Costs a reader that trusts it.
    """

    def connection(self) -> sqlite3.Connection:
        db = super().connection()
        db.execute("CREATE TABLE IF NOT EXISTS marked (key BLOB PRIMARY KEY, metadata TEXT)")
        return db

    def remove(self, db: sqlite3.Connection, rows: Sequence[tuple[Any]]) -> None:
        mark = "INSERT OR REPLACE INTO marked SELECT key, metadata FROM objects WHERE key = ?"
        db.executemany(mark, rows)
        super().remove(db, rows)

    def insert(self, db: sqlite3.Connection, key: str, data: bytes) -> None:
        super().insert(db, key, data)
        old = db.execute("SELECT metadata FROM marked WHERE key = ?", (key.encode(),)).fetchone()
        if old is not None:
            db.execute("UPDATE objects SET metadata = ? WHERE key = ?", (old[0], key.encode()))


async def _writes_beside_a_level(open_: Open) -> None:
    store, other = open_(), open_()
    await filled(store, ["a/1", "b/1", "c/1"])
    found = store.level("")
    assert await anext(found) == "a/"
    async with asyncio.timeout(10):
        await store.put("d", Body.of(b"x"))
        await other.put("e", Body.of(b"x"))
    assert [each async for each in found][:2] == ["b/", "c/"]


@bug(_writes_beside_a_level)
class LevelHoldsTheLock(Attic):
    """A level is one transaction that ends with its last name: until then every request of the client waits.

    Breaks "methods may be called at the same time". Costs a command that deletes what a level names: it
    hangs.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.lock = asyncio.Lock()

    async def put(self, key: str, body: Body) -> None:
        async with self.lock:
            await super().put(key, body)

    async def delete(self, keys: Sequence[str]) -> None:
        async with self.lock:
            await super().delete(keys)

    async def level(self, prefix: str) -> AsyncIterator[str]:
        async with self.lock:
            async for name in super().level(prefix):
                yield name


async def _two_listings(open_: Open) -> None:
    store = open_()
    await filled(store, [f"k{number:04}" for number in range(1200)])
    one, two = await ended(listed(store, "k"), listed(store, "k"), seconds=20)
    assert (len(one), one) == (1200, two), (len(one), len(two))


@bug(_two_listings)
class CursorByItsPrefix(Attic):
    """Cursors of the server have names, and that of a listing is its prefix: two listings share one.

    Breaks "methods may be called at the same time". Costs two readers of one folder: each gets some pages.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.cursors: dict[Any, Any] = {}

    async def page(self, first: Any, last: Any) -> Sequence[tuple[Any, int]]:
        def fetch(db: sqlite3.Connection) -> list[tuple[Any, int]]:
            at = max(self.cursors.get(first, b""), last)
            rows = db.execute(self.PAGE, (first, at, self.PAGE_ROWS)).fetchall()
            self.cursors[first] = rows[-1][0] if rows else b""
            return rows

        return await self.run(fetch)


async def _typed_metadata(open_: Open) -> None:
    store = open_()
    metadata = {"first": "007", "flag": "true", "version": "1.10", "nothing": "null"}
    await store.put("k", Body.of(b"x", metadata=metadata))
    assert await store.metadata_of("k") == metadata


@bug(_typed_metadata)
class MetadataHasTypes(Attic):
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
