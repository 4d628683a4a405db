"""A sound store in SQL, a view in front of another, and helpers of the fifth set's proofs."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar
from uuid import uuid4

from newcomers.registry import Open, Proof
from offload.commit.writer import Prepare
from offload.contracts.capabilities import Capabilities
from offload.contracts.catalogue import StreamView
from offload.contracts.ledger import ReadHandle
from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, Misuse, NotFound, OutcomeUnknown, TryAgain
from offload.model.entry import Entries, Entry
from offload.model.manifest import CommittedStream, Manifest
from offload.store.spans import clip

T = TypeVar("T")
CAPABILITIES: Final = Capabilities(
    atomic_create=True,
    strong_listing=True,
    multipart=True,
    durable=False,
    metadata_size_bytes_max=2048,
)


class Attic(ObjectStore):
    """A sound store in the SQLite file that the URL names. It keeps metadata, sums and uploads.

    All requests of a client run in one thread, each in a transaction. An author subclasses it for a server of
    SQL that compares, pages or counts otherwise.
    """

    KIND: ClassVar = "store"
    KEY: ClassVar = "BLOB"
    """The type of a key's column, with its collation."""
    PAGE_ROWS: ClassVar = 500
    PAGE: ClassVar = "SELECT key, length(data) FROM objects WHERE key >= ? AND key > ? ORDER BY key LIMIT ?"
    PARTS: ClassVar = "SELECT number, data FROM parts WHERE upload = ? ORDER BY number"

    def __init__(self, url: str) -> None:
        self._url, self._path = url, url.partition("://")[2]
        self._thread: ThreadPoolExecutor | None = None
        self._db: sqlite3.Connection | None = None

    @property
    def url(self) -> str:
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def encoded(self, key: str) -> Any:
        """Return the key as its column has it."""
        return key.encode()

    def decoded(self, raw: Any) -> str:
        """Undo `encoded`."""
        return bytes(raw).decode()

    def belongs(self, raw: Any, prefix: str) -> bool:
        """Return whether a key of the column begins with the prefix."""
        return self.decoded(raw).startswith(prefix)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a transaction."""

        def in_thread() -> T:
            db = self.connection()
            with db:
                db.execute("BEGIN IMMEDIATE")
                return work(db)

        self._thread = self._thread or ThreadPoolExecutor(1)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, in_thread)
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as exc:
            busy = exc.sqlite_errorcode == sqlite3.SQLITE_BUSY
            raise (TryAgain if busy else OutcomeUnknown)(f"{self._url}: {exc}") from exc

    def connection(self) -> sqlite3.Connection:
        """Return the client's connection. The first call makes the tables."""
        if self._db is None:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self._path, 30, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA synchronous = OFF")
            for table in (
                f"objects (key {self.KEY} PRIMARY KEY, data BLOB, metadata TEXT, crc INTEGER)",
                "uploads (id TEXT PRIMARY KEY, key TEXT, metadata TEXT, started_ms INTEGER)",
                "parts (upload TEXT, number INTEGER, data BLOB, PRIMARY KEY (upload, number))",
            ):
                self._db.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        return self._db

    async def put(self, key: str, body: Body) -> None:
        check_key(key)
        metadata = check_metadata(body.metadata, CAPABILITIES)
        data = bytearray()
        async for window in body.windows():
            data += window
        if len(data) != body.size_bytes:
            raise Misuse(f"the body of {key!r} has {len(data)} bytes and announced {body.size_bytes}")
        await self.run(lambda db: self.replace(db, key, bytes(data), metadata))

    def replace(self, db: sqlite3.Connection, key: str, data: bytes, metadata: Mapping[str, str]) -> None:
        """Set the row of an object."""
        row = (self.encoded(key), data, json.dumps(dict(metadata)), crc32c(data))
        db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", row)

    async def create(self, key: str, data: bytes) -> None:
        check_key(key)
        try:
            await self.run(lambda db: self.insert(db, key, bytes(data)))
        except sqlite3.IntegrityError as exc:
            raise AlreadyExists(key) from exc

    def insert(self, db: sqlite3.Connection, key: str, data: bytes) -> None:
        """Insert the row of an object, which must be new."""
        db.execute("INSERT INTO objects VALUES (?, ?, '{}', ?)", (self.encoded(key), data, crc32c(data)))

    async def row(self, columns: str, key: str) -> tuple[Any, ...]:
        """Return columns of an object."""
        check_key(key)
        query = f"SELECT {columns} FROM objects WHERE key = ?"
        found = await self.run(lambda db: db.execute(query, (self.encoded(key),)).fetchone())
        if found is None:
            raise NotFound(key, store=self._url)
        return found  # type: ignore[no-any-return]

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        [data] = await self.row("data", key)
        start, end = clip(span, len(data))
        return bytes(data[start:end])

    async def stored_crc32c(self, key: str) -> int | None:
        [crc] = await self.row("crc", key)
        return crc  # type: ignore[no-any-return]

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        [metadata] = await self.row("metadata", key)
        return json.loads(metadata)  # type: ignore[no-any-return]

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        first, last = self.encoded(prefix), self.encoded(after)
        while rows := await self.page(first, last):
            for last, size in rows:
                if not self.belongs(last, prefix):
                    return
                yield Listed(self.decoded(last), size)

    async def page(self, first: Any, last: Any) -> Sequence[tuple[Any, int]]:
        """Return the rows from `first` on and behind `last`."""
        bounds = (first, last, self.PAGE_ROWS)
        return await self.run(lambda db: db.execute(self.PAGE, bounds).fetchall())

    async def delete(self, keys: Sequence[str]) -> None:
        rows = [(self.encoded(check_key(key)),) for key in keys]
        await self.run(lambda db: self.remove(db, rows))

    def remove(self, db: sqlite3.Connection, rows: Sequence[tuple[Any]]) -> None:
        """Delete the rows of objects."""
        db.executemany("DELETE FROM objects WHERE key = ?", rows)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        described = check_metadata(metadata, CAPABILITIES)
        row = (self.new_id(), check_key(key), json.dumps(described), time.time_ns() // 1_000_000)
        await self.run(lambda db: db.execute("INSERT INTO uploads VALUES (?, ?, ?, ?)", row))
        return AtticUpload(self, key, row[0])

    def new_id(self) -> str:
        """Return an id that no upload has."""
        return uuid4().hex

    def finish(self, db: sqlite3.Connection, name: str) -> None:
        """Make an object of the parts of an upload."""
        upload = db.execute("SELECT key, metadata FROM uploads WHERE id = ?", (name,)).fetchone()
        parts = db.execute(self.PARTS, (name,)).fetchall()
        numbers = [number for number, _ in parts]
        if upload is None or sorted(numbers) != [*range(1, len(parts) + 1)] or not parts:
            raise Misuse(f"upload {name} is gone, or lacks a part: it has {numbers}")
        self.replace(db, upload[0], b"".join(data for _, data in parts), json.loads(upload[1]))
        self.forget(db, name)

    def forget(self, db: sqlite3.Connection, name: str) -> None:
        """Remove an upload and its parts."""
        db.execute("DELETE FROM parts WHERE upload = ?", (name,))
        db.execute("DELETE FROM uploads WHERE id = ?", (name,))

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        rows = await self.run(lambda db: db.execute("SELECT key, id, started_ms FROM uploads").fetchall())
        return [Unfinished(*row) for row in sorted(rows) if row[0].startswith(prefix)]

    async def abort_upload(self, upload: Unfinished) -> None:
        await self.run(lambda db: self.forget(db, upload.upload_id))

    async def aclose(self) -> None:
        db, thread, self._db, self._thread = self._db, self._thread, None, None
        if thread is not None:
            if db is not None:
                await asyncio.get_running_loop().run_in_executor(thread, db.close)
            thread.shutdown(wait=False)


class AtticUpload(Upload):
    """An upload whose parts are rows."""

    def __init__(self, store: Attic, key: str, name: str) -> None:
        self.store, self.key, self.name = store, key, name

    async def put_part(self, number: int, data: bytes) -> None:
        if not 1 <= number < 2**63:
            raise Misuse(f"part {number} of {self.key!r}: numbers begin at 1, and have 63 bits")
        row = (self.name, number, bytes(data))
        # An upload that was aborted keeps no part.
        insert = (
            "INSERT OR REPLACE INTO parts SELECT ?, ?, ? WHERE EXISTS (SELECT 1 FROM uploads WHERE id = ?)"
        )
        await self.store.run(lambda db: db.execute(insert, (*row, self.name)))

    async def complete(self) -> None:
        await self.store.run(lambda db: self.store.finish(db, self.name))

    async def abort(self) -> None:
        await self.store.run(lambda db: self.store.forget(db, self.name))


# Proofs


async def filled(store: Any, keys: Iterable[str]) -> None:
    """Create an object of its own name under each key."""
    for key in keys:
        await store.create(key, key.encode("utf-8", "surrogatepass"))


async def listed(store: Any, prefix: str = "", after: str = "") -> list[str]:
    """Return the keys that a listing shows."""
    return [row.key async for row in store.list(prefix, after=after)]


def keeps_keys(*keys: str) -> Proof:
    """Prove that objects of these keys are apart, are listed by their names, and go alone."""

    async def proof(open_: Open) -> None:
        store = open_()
        await filled(store, keys)
        for key in keys:
            assert bytes(await store.get(key)) == key.encode(), key
        assert await listed(open_()) == sorted(keys, key=str.encode)
        for gone, key in enumerate(keys):
            await store.delete([key])
            assert await listed(store) == sorted(keys[gone + 1 :], key=str.encode), key

    return proof


async def ended(*calls: Any, seconds: float = 10) -> list[Any]:
    """Return what the calls returned or raised, within a time."""
    async with asyncio.timeout(seconds):
        return await asyncio.gather(*calls, return_exceptions=True)


async def stopped(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task


class Glance(StreamView):
    """A view without a mistake, in front of another."""

    def __init__(self, view: StreamView) -> None:
        self.seen = view

    @property
    def committed(self) -> CommittedStream:
        return self.seen.committed

    @property
    def where(self) -> str:
        return self.seen.where

    def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        return self.seen.walk(offset)

    async def find(self, offset: int) -> Entry | None:
        return await self.seen.find(offset)

    async def first_since(self, timestamp_ms: int) -> Entry | None:
        return await self.seen.first_since(timestamp_ms)

    async def last_with_messages(self) -> Entry | None:
        return await self.seen.last_with_messages()

    async def last_timestamp_ms(self) -> int | None:
        return await self.seen.last_timestamp_ms()

    def name_of(self, row: Entries) -> str:
        return self.seen.name_of(row)

    async def names(self, where: str) -> bool:
        return await self.seen.names(where)

    async def open(self, entry: Entry) -> ReadHandle:
        return await self.seen.open(entry)


async def opened(open_: Open) -> Any:
    """Return a client of a place that is a tier."""
    tier = open_()
    await tier.open(create=True)
    return tier


async def prepared(
    tier: Any, stream: str, manifest: Manifest, ledger_id: int = 99
) -> tuple[Prepare, Manifest]:
    """Announce an attempt of the manifest's writer, and return the change and what it returned."""
    change = Prepare(writer=manifest.writer, attempts=[(uuid4(), 99)])
    return change, await tier.commit_manifest(stream, change, base=None, committer=manifest.writer)
