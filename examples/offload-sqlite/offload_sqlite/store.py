"""Objects as rows of one SQLite table, keyed by the UTF-8 bytes of their keys.

Invariants: every change is a transaction, or part of one, and is on disk when the call returns
(`synchronous=EXTRA`, see the README). All calls of a store run in its one thread, which owns the connection.
A file that does not exist is an empty store; only a write creates it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar
from urllib.parse import unquote
from uuid import uuid4

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Upload, check_key
from offload.ground import errors
from offload.store.spans import clip
from offload_sqlite.plugin import CAPABILITIES, PUT_SIZE_BYTES_MAX

T = TypeVar("T")
Rows = list[tuple[bytes, int]]
BUSY_SECONDS: Final = 30.0
PAGE_ROWS: Final = 256
NUMBER_END: Final = 2**63
"""The first integer that SQLite cannot hold."""

UTF8: Final = ("utf-8", "surrogatepass")
SCHEMA: Final = "CREATE TABLE IF NOT EXISTS objects (key BLOB PRIMARY KEY, data BLOB NOT NULL)"
PARTS: Final = "CREATE TEMP TABLE parts (upload BLOB, number INT, data BLOB, PRIMARY KEY (upload, number))"


def open_url(url: str) -> SqliteStore:
    """Return the store behind `sqlite://path/to/file.db`. Raises `Misuse` if no path is named."""
    path = unquote(url.partition("://")[2])
    if not path or "\0" in path:
        raise errors.Misuse(f"{url!r} names no file")
    return SqliteStore(path)


class SqliteStore(ObjectStore):
    """The objects in one file. Any number of stores, in any number of processes, may use it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.abspath(path)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="offload-sqlite")
        self._db: sqlite3.Connection | None = None

    @property
    def url(self) -> str:
        """`sqlite://` and the absolute path."""
        return f"sqlite://{self._path}"

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities that the plugin declares."""
        return CAPABILITIES

    async def put(self, key: str, body: Body) -> None:
        """Gather the windows, then store them as one row."""
        raw, data = _raw(key), bytearray()
        check_metadata(body.metadata, CAPABILITIES)
        if not 0 <= body.size_bytes <= PUT_SIZE_BYTES_MAX:
            raise errors.Misuse(f"{key!r}: {body.size_bytes} bytes; a row has at most {PUT_SIZE_BYTES_MAX}")
        async for window in body.windows():
            data += window
            if len(data) > body.size_bytes:  # do not gather an endless body
                break
        if len(data) != body.size_bytes:
            raise errors.Misuse(f"the body of {key!r} is not of the {body.size_bytes} bytes announced")
        await self.write(lambda db: db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?)", (raw, data)))

    async def create(self, key: str, data: bytes) -> None:
        """Insert a row. The primary key refuses a second one; nothing is looked up before."""
        raw = _raw(key)
        try:
            await self.write(lambda db: db.execute("INSERT INTO objects VALUES (?, ?)", (raw, data)))
        except sqlite3.IntegrityError as error:
            raise errors.AlreadyExists(key) from error

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Read the range of the row."""
        raw = _raw(key)

        def read(db: sqlite3.Connection) -> bytes | None:
            for (size,) in db.execute("SELECT length(data) FROM objects WHERE key = ?", (raw,)).fetchall():
                start, end = clip(span, size)
                cut = "SELECT substr(data, ?, ?) FROM objects WHERE key = ?"
                [[data]] = db.execute(cut, (start + 1, end - start, raw)).fetchall()
                return data or b""  # substr returns NULL for a range of no bytes
            return None

        with suppress(FileNotFoundError):
            data = await self._read(read)
            if data is not None:
                return data
        raise errors.NotFound(key, store=self.url)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Yield the rows page by page, in the order of the primary key."""
        start, last = (text.encode(*UTF8) for text in (prefix, after))
        query = "SELECT key, length(data) FROM objects WHERE key >= ? AND key > ? ORDER BY key LIMIT ?"

        def next_page(db: sqlite3.Connection) -> Rows:
            return db.execute(query, (start, last, PAGE_ROWS)).fetchall()

        with suppress(FileNotFoundError):
            while page := await self._read(next_page):
                for last, size in page:
                    if not last.startswith(start):
                        return
                    yield Listed(last.decode(*UTF8), size)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete all rows in one transaction. An absent key is no error."""
        rows = [(_raw(key),) for key in keys]
        await self.write(lambda db: db.executemany("DELETE FROM objects WHERE key = ?", rows))

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Begin an upload. Only this connection sees its parts."""
        check_metadata(metadata, CAPABILITIES)
        return SqliteUpload(self, _raw(key), key)

    async def aclose(self) -> None:
        """Close the connection in its own thread, and end the thread."""
        db, self._db = self._db, None
        if db is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, db.close)
        self._thread.shutdown(wait=False)

    async def write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Run `work` in a transaction. Afterwards all of it is on disk, or none of it."""

        def without_cursor(db: sqlite3.Connection) -> None:
            work(db)  # not returned: another thread would finish the cursor's statement beside the next one

        await self._transact("BEGIN IMMEDIATE", without_cursor, broken=errors.OutcomeUnknown)

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `work` finds at one moment. Raises `FileNotFoundError` if nothing was ever written."""
        return await self._transact("BEGIN", work, broken=errors.TryAgain)

    async def _transact(
        self, begin: str, work: Callable[[sqlite3.Connection], T], *, broken: type[errors.OffloadError]
    ) -> T:
        """Run `work` in the thread. Only this method translates SQLite's errors into the framework's.

        `broken` is the error for any other failure: a write's outcome is unknown, a read may be repeated.
        """

        def in_thread() -> T:
            if begin == "BEGIN" and not os.path.exists(self._path):  # to connect would create the file
                raise FileNotFoundError(self._path)
            with self._connected() as db:  # commits, or rolls back after an error
                db.execute(begin)
                return work(db)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, in_thread)
        except sqlite3.IntegrityError:  # a subclass of `Error`: `create` needs it as it is
            raise
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            kind = next((kind for kind, codes in NEXT.items() if code in codes), broken)
            raise kind(f"{self.url}: {error}") from error

    def _connected(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = sqlite3.connect(
                self._path, BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._db.executescript("PRAGMA synchronous = EXTRA; " + PARTS)
        self._db.execute(SCHEMA)  # costs nothing if the table exists
        return self._db


NEXT: Final = {
    errors.TryAgain: (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM),
    errors.NoSpace: (sqlite3.SQLITE_FULL,),
    errors.Denied: (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN),
    errors.Misuse: (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_NOTADB),
}
"""The framework's error for each error code. Any other code becomes `broken` of `_transact`."""


class SqliteUpload(Upload):
    """An upload whose parts wait in a temporary table, which disappears with the connection."""

    def __init__(self, store: SqliteStore, raw: bytes, key: str) -> None:
        self._store, self._raw, self._key = store, raw, key
        self._upload: bytes | None = uuid4().bytes

    async def put_part(self, number: int, data: bytes) -> None:
        if not 0 < number < NUMBER_END:
            raise errors.Misuse(f"part {number} of {self._key!r}: no such number")
        row = (self._running(), number, data)
        await self._store.write(lambda db: db.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?)", row))

    async def complete(self) -> None:
        upload = self._running()

        def join(db: sqlite3.Connection) -> None:
            query = "SELECT number, data FROM parts WHERE upload = ? ORDER BY number"
            numbers, parts = zip(*db.execute(query, (upload,)).fetchall() or [(0, b"")], strict=True)
            if numbers != (*range(1, len(numbers) + 1),) or {*map(len, parts[:-1])} - {len(parts[0])}:
                raise errors.Misuse(f"the upload of {self._key!r} lacks a part, or its parts differ in size")
            db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?)", (self._raw, b"".join(parts)))

        await self._store.write(join)
        await self.abort()

    async def abort(self) -> None:
        upload, self._upload = self._upload, None
        await self._store.write(lambda db: db.execute("DELETE FROM parts WHERE upload = ?", (upload,)))

    def _running(self) -> bytes:
        if self._upload is None:
            raise errors.Misuse(f"the upload of {self._key!r} is over")
        return self._upload


def _raw(key: str) -> bytes:
    """Return a key as the table stores it. Raises `Misuse` if it is not a valid key."""
    return check_key(key).encode(*UTF8)
