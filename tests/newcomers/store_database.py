"""Mistakes with a database in a file."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from newcomers import proofs
from newcomers.registry import Open, bug
from newcomers.sound import Sqlite
from offload.contracts.store import Body, Listed, Span, Suffix, check_key
from offload.ground.errors import AlreadyExists, NotFound
from offload.store.multipart import whole


@bug(proofs.lists(["a_b/1", "axb/1"], prefix="a_b/"))
class PrefixIsAPattern(Sqlite):
    """A listing asks with `LIKE prefix || '%'`, in which `_` matches any character, and letters ignore case.

    Breaks "Every object whose key begins with `prefix`": a stream shows the objects of another.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        query = (
            "SELECT key, length(data) FROM objects WHERE CAST(key AS TEXT) LIKE ? AND key > ? ORDER BY key"
        )
        pattern = prefix.replace("%", "[%]") + "%"
        with suppress(FileNotFoundError):
            for key, size in await self._read(
                lambda db: db.execute(query, (pattern, after.encode())).fetchall()
            ):
                yield Listed(key.decode(), size)


@bug(proofs.one_creates(lambda number: b"%d" % number, clients=4, rounds=100))
class CreateLooksAndThenInserts(Sqlite):
    """A create checks in one transaction whether the key is free, and writes in another.

    Breaks "Of any number of creates of one absent key, exactly one succeeds".
    """

    async def create(self, key: str, data: bytes) -> None:
        try:
            await self.get(key, Span(0, 0))
        except NotFound:
            await self.put(key, Body.of(data))
        else:
            raise AlreadyExists(key)


@bug(proofs.whole_while_replaced(3_000_000, 1_000_000, 2_500_000, rounds=15))
class ObjectsAreRowsOfChunks(Sqlite):
    """Large objects are read by pieces of 1 MB, each in a transaction of its own.

    Breaks "A reader finds an object entire or not at all, also while it is replaced".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if span is not None:
            return await super().get(key, span)
        pieces = [await super().get(key, Span(0, 1_000_000))]
        while len(pieces[-1]) == 1_000_000:
            pieces.append(await super().get(key, Span(len(pieces) * 1_000_000, 1_000_000)))
        return b"".join(pieces)


@bug(proofs.keeps(2, 5))
class TextLooksLikeText(Sqlite):
    """Bytes that are valid UTF-8 are stored as text, for which SQLite counts characters and stops at a zero.

    Breaks "Store an object whole": `length` and `substr` of text are not those of bytes.
    """

    async def put(self, key: str, body: Body) -> None:
        data = await whole(body)
        try:
            stored: bytes | str = data.decode()
        except UnicodeDecodeError:
            stored = data
        row = (check_key(key).encode(), stored)
        await self.write(lambda db: db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?)", row))

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data: bytes | str = await super().get(key, span)
        return data.encode() if isinstance(data, str) else data


async def _batch_of_many(open_: Open) -> None:
    store = open_()
    await proofs.fill(store, [f"k{number}" for number in range(20)])
    await store.delete([f"k{number}" for number in range(1_500)])
    assert await proofs.names(store) == []


@bug(_batch_of_many)
class DeleteHasOneVariableForEachKey(Sqlite):
    """Delete is one statement `key IN (?, ?, ...)`, and an older SQLite takes 999 variables.

    Breaks "Remove these objects, any number of them": a large sweep fails for ever.
    """

    def _connected(self) -> sqlite3.Connection:
        db = super()._connected()
        db.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
        return db

    async def delete(self, keys: Sequence[str]) -> None:
        raws = [check_key(key).encode() for key in keys]
        marks = ", ".join("?" * len(raws))
        await self.write(lambda db: db.execute(f"DELETE FROM objects WHERE key IN ({marks})", raws))


@bug(
    proofs.together(lambda store: [store.create("k", b"x"), store.get("j")], [None, b"j"], before={"j": b"j"})
)
class RawErrorOfTheDatabase(Sqlite):
    """A second call while a transaction runs on the connection raises SQLite's own error, untranslated.

    Breaks "methods may be called at the same time", and the list of errors that a method may raise.
    """

    busy = False

    async def _transact(self, begin: str, work: Any, *, broken: Any) -> Any:
        if self.busy:
            raise sqlite3.OperationalError("cannot start a transaction within a transaction")
        self.busy = True
        try:
            return await super()._transact(begin, work, broken=broken)
        finally:
            self.busy = False
