"""`SqliteLedgers`: the whole contract of an offloader in one SQLite file, without an object store.

The database provides what the framework's own layout has to build: a commit is a transaction that replaces
the manifest that it has read. A fragment is a set of rows, and no manifest names it before all of them are
there.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import unquote
from uuid import UUID, uuid4

import numpy as np

from offload import Attempt, Entry, LedgerOffloader, Leftover, Manifest, OpeningContext, ReadHandle, Receipt
from offload.commit.grouping import edited
from offload.commit.guest import Abort
from offload.commit.writer import Claim
from offload.contracts.attempts import check_copied, prepared_kind
from offload.contracts.change import Change, CommitVerdict
from offload.contracts.events import Event, FragmentUploaded, ManifestCommitted
from offload.formats.checksums import crc32c
from offload.formats.chunk_check import check_source
from offload.formats.root import decode_root, encode_root
from offload.ground.errors import (
    Conflict,
    Corrupt,
    Misuse,
    NotOffloaded,
    OutcomeUnknown,
    StreamDeleted,
    TryAgain,
)
from offload.model.chunk_table import ChunkTable, ChunkType, cut, windows_of
from offload.model.manifest import AttemptKind, CommittedStream, StreamState
from offload.model.tree import EntryTree, Tree
from offload.native.fragment_reader import open_attempt
from offload.native.fragment_writer import covering_table
from offload_sqlite_ledger.database import Database
from offload_sqlite_ledger.reading import SqliteView

NUMBER_MAX: Final = 2**63 - 1
"""SQLite's integers are signed."""

COMMITS_MAX: Final = 100
"""How often a commit begins again because another one came in between."""

NEWEST: Final = "SELECT raw FROM manifests WHERE stream = ?"
CHUNK: Final = "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
DELETE: Final = (
    "DELETE FROM chunks WHERE attempt IN (SELECT uid FROM attempts WHERE uid = ? AND stream = ?)",
    "DELETE FROM attempts WHERE uid = ? AND stream = ?",
)


def open_url(url: str, *, context: OpeningContext | None = None) -> SqliteLedgers:
    """Return the offloader behind `sqlite-ledger://path/to/file.db`. Raises `Misuse` if no path is named.

    It uses the parts of `context` that `plugin` declares: the size of fragments, and the listener for events.
    """
    path = unquote(url.partition("://")[2])
    if not path or "\0" in path:
        raise Misuse(f"{url!r} names no file")
    if context is None:
        return SqliteLedgers(path)
    return SqliteLedgers(path, fragment_size_bytes=context.fragment_size_bytes, emit=context.emit)


class SqliteLedgers(LedgerOffloader):
    """The ledgers and manifests in one file. Any number of offloaders and processes may use the file."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fragment_size_bytes: int | None = None,
        emit: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """Make an offloader. Without a size, a whole ledger is one fragment."""
        self._database = Database(path)
        self._fragment_size_bytes = fragment_size_bytes
        self._emit = emit

    @property
    def url(self) -> str:
        return self._database.url

    async def open(self, *, create: bool = False) -> None:
        if create:
            await self._database.make()
        await self._database.rows("SELECT format FROM tier")

    async def aclose(self) -> None:
        await self._database.aclose()

    # Catalogue

    async def streams(self) -> list[str]:
        return sorted(name for (name,) in await self._database.rows("SELECT stream FROM manifests"))

    def view_of(self, committed: CommittedStream) -> SqliteView:
        return SqliteView(EntryTree(committed, self.load_group), self._database)

    # Committer

    async def load_manifest(self, stream: str) -> Manifest:
        manifest = await self._newest(stream)
        if manifest is None:
            raise NotOffloaded(f"{self.url} has no stream {stream!r}; `offload ls` shows which it has")
        if manifest.state is StreamState.DELETED:
            raise StreamDeleted(f"stream {stream!r} of {self.url} was deleted", epoch=manifest.epoch)
        if manifest.state is StreamState.REBUILDING:
            raise NotOffloaded(f"stream {stream!r} is being rebuilt; wait until the rebuild is done")
        return manifest

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        """Replace the newest manifest. It is read again for each trial, so `base` is not needed."""
        await self.open(create=isinstance(change, Claim))
        for _ in range(COMMITS_MAX):
            newest = await self._newest(stream)
            if newest is not None:
                # A repeated call may find its own change committed. To apply it once more would be wrong.
                verdict = await change.verdict(Tree(newest, self.load_group))
                if verdict is CommitVerdict.IN:
                    return newest
                if verdict is CommitVerdict.UNKNOWN:
                    raise OutcomeUnknown(f"stream {stream!r}: nothing shows whether the change was in")
            proposal = await self._proposal(change, newest, committer)
            if await self._database.write(_swap(stream, newest, proposal)):
                self._emit(ManifestCommitted(manifest=proposal, change=type(change).__name__.lower()))
                return proposal
        raise TryAgain(f"stream {stream!r}: other writers commit faster than this one; run again")

    # Ledgers

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        """Insert the rows in several transactions. No manifest names an attempt that breaks off."""
        kind = prepared_kind(handle, attempt, manifest)
        if kind is AttemptKind.COPY:
            await check_copied(self.view_of(manifest), handle)
        if max(handle.next_offset, handle.ledger_id) > NUMBER_MAX:
            raise Misuse(f"{self.url} keeps offsets and ledger ids up to {NUMBER_MAX}")
        table = await covering_table(handle)
        about = (attempt.uid.bytes, attempt.stream, attempt.ledger_id, json.dumps(dict(extra_metadata)))
        await self._database.insert("INSERT INTO attempts VALUES (?, ?, ?, ?)", [about])
        copied = int(kind is AttemptKind.COPY)
        size_bytes = self._fragment_size_bytes
        fragments = cut(table, size_bytes=size_bytes, count_max=len(table)) if size_bytes else [table]
        entries = [await self._insert(handle, rows, attempt, copied=copied) for rows in fragments]
        return Receipt(attempt=attempt, entries=entries)

    async def _insert(self, handle: ReadHandle, table: ChunkTable, attempt: Attempt, *, copied: int) -> Entry:
        """Check the chunks of one fragment, and insert them."""
        checksum = 0
        for rows in windows_of(table):
            raw = await handle.read(rows)
            try:
                checksums = check_source(raw, rows, where=handle.where)
            except Corrupt as damage:
                raise damage.within(handle.where, stream=attempt.stream) from damage
            await self._database.insert(CHUNK, _chunks(attempt, rows, checksums.tolist(), raw))
            checksum = crc32c(raw, checksum)
        entry = _entry(table, attempt, checksum, copied=copied)
        self._emit(FragmentUploaded(stream=attempt.stream, entry=entry))
        return entry

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        view = self.view_of(manifest or await self.load_manifest(attempt.stream))
        return await open_attempt(view, attempt, only)

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        """Return nothing: ledgers of an unfinished attempt are copied again."""
        return []

    async def delete_offloaded(self, attempt: Attempt) -> None:
        # First the attempt is dropped, so that nothing can append it; then its rows go.
        newest = await self._newest(attempt.stream)
        if newest is not None and newest.runs(attempt.uid):
            change = Abort(attempts=frozenset({attempt.uid}))
            await self.commit_manifest(attempt.stream, change, base=newest, committer=uuid4())

        def delete(db: sqlite3.Connection) -> None:
            # Read again in the transaction that deletes: no commit can come in between.
            newest = _decoded(db.execute(NEWEST, (attempt.stream,)).fetchall(), attempt.stream)
            if newest is not None and newest.state is StreamState.REBUILDING:
                raise Conflict(f"stream {attempt.stream!r} is being rebuilt; wait until that is done")
            if newest is not None and (newest.runs(attempt.uid) or _names(newest, attempt.uid)):
                raise Conflict(f"stream {attempt.stream!r} still names attempt {attempt.uid}; trim it first")
            for statement in DELETE:  # only rows of this very stream: the caller may have mixed up two
                db.execute(statement, (attempt.uid.bytes, attempt.stream))

        await self._database.write(delete)

    async def _newest(self, stream: str) -> Manifest | None:
        return _decoded(await self._database.rows(NEWEST, stream), stream)

    async def _proposal(self, change: Change, newest: Manifest | None, committer: UUID) -> Manifest:
        """Return the manifest that would follow. Raises if the change does not fit."""
        changed = change.apply(newest)
        version = changed.version + 1
        if newest is not None and change.edit is not None:
            tree = Tree(newest, self.load_group)
            entries, _ = await edited(tree, change.edit, version=version, uuid=uuid4)
            changed = replace(changed, entries=entries)
        proposal = replace(
            changed,
            version=version,
            committer=committer,
            commit_id=uuid4(),
            parent_commit_id=changed.commit_id,
        )
        proposal.check(f"manifests/{proposal.stream}/{version}")
        return proposal


def _swap(stream: str, newest: Manifest | None, proposal: Manifest) -> Callable[[sqlite3.Connection], bool]:
    """Return a transaction that replaces `newest` by the proposal. It returns False if another came first."""
    raw = encode_root(proposal)

    def swap(db: sqlite3.Connection) -> bool:
        if newest is None:
            row = (stream, proposal.version, raw)
            return db.execute("INSERT OR IGNORE INTO manifests VALUES (?, ?, ?)", row).rowcount == 1
        replaced = "UPDATE manifests SET version = ?, raw = ? WHERE stream = ? AND version = ?"
        return db.execute(replaced, (proposal.version, raw, stream, newest.version)).rowcount == 1

    return swap


def _decoded(rows: list[tuple[bytes]], stream: str) -> Manifest | None:
    return decode_root(rows[0][0], where=f"manifests/{stream}") if rows else None


def _names(manifest: Manifest, attempt: UUID) -> bool:
    return bool((manifest.entries["attempt"] == np.void(attempt.bytes)).any())


def _chunks(
    attempt: Attempt, rows: ChunkTable, checksums: list[int], raw: bytes
) -> list[tuple[bytes | int, ...]]:
    """Return the rows of chunks that lie back to back in `raw`."""
    start = int(rows["position"][0])
    columns = (rows[name].tolist() for name in ("offset", "records", "type", "timestamp_ms", "size_bytes"))
    return [
        (attempt.uid.bytes, *row, checksum, raw[position - start : position - start + row[-1]])
        for row, checksum, position in zip(
            zip(*columns, strict=True), checksums, rows["position"].tolist(), strict=True
        )
    ]


def _entry(table: ChunkTable, attempt: Attempt, checksum: int, *, copied: int) -> Entry:
    """Return the manifest's entry for a fragment of these chunks."""
    first, last = int(table["offset"][0]), table[-1:]
    size_bytes = int(table["size_bytes"].sum())
    return Entry(
        first_offset=first,
        records=int(last["offset"][0]) + int(last["records"][0]) - first,
        messages=int(table["records"][table["type"] == ChunkType.USER].sum()),
        first_timestamp_ms=int(table["timestamp_ms"].min()),
        last_timestamp_ms=int(table["timestamp_ms"].max()),
        data_size_bytes=size_bytes,
        stored_size_bytes=size_bytes,
        ledger_id=attempt.ledger_id,
        attempt=attempt.uid,
        checksum=checksum,
        copied=copied,
    )
