"""Records in PostgreSQL: rows of one table, in the order of the bytes of their keys.

Each call is one statement in a transaction of its own. So a listing's page shows one moment, the moment at
which its statement began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import asyncpg

from offload import Record, RecordLimits, RecordService, RecordStore
from offload.ground import errors
from offload_metadata.place import place_of, timeout_of
from offload_metadata.plugin import POSTGRES

CONNECTIONS: Final = 8
TABLE: Final = """
CREATE TABLE IF NOT EXISTS offload_records (
    name text COLLATE "C", key bytea, value bytea NOT NULL, PRIMARY KEY (name, key)
)
"""
LOOK: Final = """
SELECT current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS commit,
    to_regclass('offload_records') AS table
"""
CREATE: Final = "INSERT INTO offload_records VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING 1"
PUT: Final = """
INSERT INTO offload_records VALUES ($1, $2, $3)
ON CONFLICT (name, key) DO UPDATE SET value = excluded.value
"""
GET: Final = "SELECT value FROM offload_records WHERE name = $1 AND key = $2"
LIST: Final = """
SELECT key, length(value) FROM offload_records
WHERE name = $1 AND key >= $2 AND key < $3 ORDER BY key LIMIT $4
"""
DELETE: Final = "DELETE FROM offload_records WHERE name = $1 AND key = ANY($2)"

MADE_BY_ANOTHER: Final = (
    asyncpg.UniqueViolationError,
    asyncpg.DuplicateTableError,
    asyncpg.DuplicateObjectError,
)
"""The errors of TABLE if another process makes the table at the same time, in spite of `IF NOT EXISTS`.

The server looks for the table first, and then for the type of its rows. If the other process commits between
the two, the server finds the type alone, and raises the third error. In each case the table exists now.
"""


def open_url(url: str, *, options: Mapping[str, str]) -> RecordStore:
    """Return the store behind `postgresql://HOST:PORT/DATABASE/NAME`. Commas separate several hosts."""
    return RecordStore(PostgresRecords(url, options))


class PostgresRecords(RecordService):
    """The records of one name. The options, or libpq's variables and password file, have the credentials."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        place = place_of(url, "postgresql://HOST:PORT/DATABASE/NAME")
        self._url, self._name = url, place.name
        self._server = f"postgresql://{place.hosts}/{place.path}"
        self._who = {name: options[name] for name in ("user", "password") if name in options}
        self._seconds = timeout_of(options)
        self._pool: asyncpg.Pool | None = None
        self._opening = asyncio.Lock()

    @property
    def url(self) -> str:
        return self._url

    @property
    def limits(self) -> RecordLimits:
        return POSTGRES

    async def create(self, key: bytes, value: bytes) -> bool:
        return bool(await self._run(CREATE, key, value))

    async def put(self, key: bytes, value: bytes) -> None:
        await self._run(PUT, key, value)

    async def get(self, key: bytes) -> bytes | None:
        rows = await self._run(GET, key, broken=errors.TryAgain)
        return bytes(rows[0][0]) if rows else None

    async def list(self, first: bytes, end: bytes, *, limit: int) -> Sequence[Record]:
        return [Record(*row) for row in await self._run(LIST, first, end, limit, broken=errors.TryAgain)]

    async def delete(self, keys: Sequence[bytes]) -> None:
        await self._run(DELETE, keys)

    async def aclose(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()  # no call is under way, and a server that hangs would not let `close` end

    async def _run(
        self, statement: str, *arguments: Any, broken: type[errors.OffloadError] = errors.OutcomeUnknown
    ) -> Sequence[Any]:
        """Run one statement. `broken` is the error if it was sent and its outcome is not known."""
        sent = False
        try:
            pool = await self._connected()
            async with pool.acquire(timeout=self._seconds) as connection:
                sent = True
                try:
                    rows: Sequence[Any] = await connection.fetch(statement, self._name, *arguments)
                    return rows
                except BaseException:
                    # The pool would wait for the end of the statement, as long again as the timeout.
                    connection.terminate()
                    raise
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as exc:
            raise self._translated(exc, broken if sent else errors.TryAgain) from exc
        except (OSError, TimeoutError) as exc:
            raise (broken if sent else errors.TryAgain)(f"{self._url}: no answer: {exc!r}") from exc

    async def _connected(self) -> asyncpg.Pool:
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._server,
                    **self._who,
                    min_size=0,
                    max_size=CONNECTIONS,
                    timeout=self._seconds,
                    command_timeout=self._seconds,
                    target_session_attrs="read-write",  # never a standby, whose rows may be old
                    init=self._look,
                    reset=_nothing,
                )
            return self._pool

    async def _look(self, connection: asyncpg.Connection) -> None:
        """Make sure that a new connection keeps what it commits, and that there is the table."""
        found = await connection.fetchrow(LOOK)
        if "off" in (found["fsync"], found["commit"]):
            raise errors.StoreDenied(
                f"{self._url}: with fsync or synchronous_commit off, a commit may be lost: set both to on"
            )
        if found["table"] is None:
            with suppress(*MADE_BY_ANOTHER):
                await connection.execute(TABLE)

    def _translated(self, exc: Exception, broken: type[errors.OffloadError]) -> errors.OffloadError:
        state = getattr(exc, "sqlstate", None) or ""
        return next((kind for start, kind in NEXT.items() if state.startswith(start)), broken)(
            f"{self._url}: {exc}"
        )


NEXT: Final[dict[str, type[errors.OffloadError]]] = {
    "25006": errors.TryAgain,  # it has become a standby
    "28": errors.StoreDenied,  # not this user, or not this password
    "3D": errors.StoreDenied,  # no such database
    "3F": errors.StoreDenied,  # no schema for the table
    "40003": errors.OutcomeUnknown,
    "40": errors.TryAgain,  # rolled back: a deadlock, a serialization failure
    "42": errors.StoreDenied,  # no right to the table, or another table of its name
    "53100": errors.NoSpace,
    "53": errors.TryAgain,  # no memory, or no more connections
    "54": errors.Misuse,  # a limit of the server
    "55P03": errors.TryAgain,  # a lock was not free in time
    "57P03": errors.TryAgain,  # it starts or stops
}
"""The framework's error for the beginnings of SQLSTATEs. The server has rolled the statement back then."""


async def _nothing(connection: asyncpg.Connection) -> None:
    """Reset nothing: a statement leaves no state, and a reset would be another request."""
