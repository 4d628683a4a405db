"""The tables of a tier, and the one thread that may use the connection to them.

    table       a row is                                lifetime
    tier        the mark that the file is a tier        for ever
    manifests   the newest manifest of a stream         for ever: it records that a stream was deleted
    attempts    an attempt, with metadata for people    until the attempt is deleted
    chunks      one chunk of an attempt, verbatim       that of its attempt

A manifest is stored as the bytes of `Manifest.encode`.

Invariants: every `write` is one transaction, and is on disk when it returns. No cursor leaves the thread, or
SQLite would finish its statement beside the next one.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from offload.ground import errors

T = TypeVar("T")
BUSY_SECONDS: Final = 30.0
CHUNKS: Final = """
CREATE TABLE chunks (attempt BLOB, offset INT, records INT, type INT, timestamp_ms INT, size_bytes INT,
    checksum INT, data BLOB NOT NULL, PRIMARY KEY (attempt, offset))"""
SCHEMA: Final = (
    "CREATE TABLE tier (format INT NOT NULL)",
    "INSERT INTO tier VALUES (1)",
    "CREATE TABLE manifests (stream TEXT PRIMARY KEY, version INT NOT NULL, raw BLOB NOT NULL)",
    "CREATE TABLE attempts (uid BLOB PRIMARY KEY, stream TEXT NOT NULL, ledger INT, metadata TEXT NOT NULL)",
    CHUNKS,
)
NEXT: Final = {
    errors.TryAgain: (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM),
    errors.NoSpace: (sqlite3.SQLITE_FULL,),
    errors.Denied: (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN),
    errors.Misuse: (sqlite3.SQLITE_TOOBIG,),
    errors.NotOffloaded: (sqlite3.SQLITE_NOTADB,),
}
"""The framework's error for each error code. Any other code becomes `broken` of `_transact`."""


class Database:
    """The connection to one file. Any number of connections, in any number of processes, may use the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Final = os.path.abspath(path)
        self.url: Final = f"sqlite-ledger://{self.path}"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="offload-sqlite-ledger")
        self._db: sqlite3.Connection | None = None
        self._is_closed = False

    async def make(self) -> None:
        """Make a tier of an empty or absent file. A file with tables stays as it is."""

        def create(db: sqlite3.Connection) -> None:
            if not db.execute("SELECT 1 FROM sqlite_master").fetchall():
                for statement in SCHEMA:
                    db.execute(statement)

        await self._transact("BEGIN IMMEDIATE", create, errors.OutcomeUnknown, create=True)

    async def rows(self, query: str, *key: object) -> list[Any]:
        """Return the rows that a query finds."""
        return await self._transact("BEGIN", lambda db: db.execute(query, key).fetchall(), errors.TryAgain)

    async def insert(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Insert rows: all of them or none."""

        def insert(db: sqlite3.Connection) -> None:
            db.executemany(statement, rows)

        await self.write(insert)

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a transaction. Nobody else writes meanwhile. All of it is kept, or none of it."""
        return await self._transact("BEGIN IMMEDIATE", work, errors.OutcomeUnknown)

    async def aclose(self) -> None:
        """Close the connection in its own thread, and end the thread. Idempotent."""
        self._is_closed = True
        db, self._db = self._db, None
        if db is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, db.close)
        self._thread.shutdown(wait=False)

    async def _transact(
        self,
        begin: str,
        work: Callable[[sqlite3.Connection], T],
        broken: type[errors.OffloadError],
        *,
        create: bool = False,
    ) -> T:
        """Run `work` in the thread. Only this method translates SQLite's errors into the framework's.

        `broken` is the error for any other failure: a write's outcome is unknown, a read may be repeated.
        """

        def in_thread() -> T:
            with self._connected(create=create) as db:  # commits, or rolls back after an error
                db.execute(begin)
                # Asked each time, so that a file that is no tier raises `NotOffloaded` and no SQL error.
                if not create and not db.execute(IS_A_TIER).fetchall():
                    raise self._no_tier()
                return work(db)

        if self._is_closed:
            raise errors.Misuse(f"{self.url} was closed; open it again")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, in_thread)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            kind = next((kind for kind, codes in NEXT.items() if code in codes), broken)
            raise kind(f"{self.url}: {error}") from error

    def _connected(self, *, create: bool) -> sqlite3.Connection:
        if self._db is None:
            if create:
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
            elif not os.path.exists(self.path):
                raise self._no_tier()
            self._db = sqlite3.connect(self.path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA synchronous = EXTRA")
        return self._db

    def _no_tier(self) -> errors.NotOffloaded:
        return errors.NotOffloaded(f"{self.url} is no tier; `offload sync` makes one")


IS_A_TIER: Final = "SELECT 1 FROM sqlite_master WHERE name = 'tier'"
