"""A full offloader on a database, as an author writes one: manifests and fragments are rows.

A fragment is a row that holds at most 64 KiB of chunks, or one larger chunk, and is inserted whole. A commit
compares the version of its base with the newest one, and then sets the manifest. Each method of `Database` is
one transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Final
from uuid import UUID, uuid4

import numpy as np
import numpy.typing as npt

from offload.commit.grouping import edited
from offload.commit.guest import Abort
from offload.commit.writer import Claim
from offload.contracts.change import Change, CommitVerdict
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.formats.checksums import crc32c
from offload.formats.chunk import check_stored
from offload.formats.chunk_check import check_source
from offload.formats.keys import escape
from offload.formats.root import decode_root, encode_root
from offload.ground.errors import (
    Absent,
    Conflict,
    Corrupt,
    Misuse,
    NotOffloaded,
    OutcomeUnknown,
    StreamDeleted,
    TryAgain,
)
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.chunk_table import ChunkTable, ChunkType, cut
from offload.model.entry import Entry
from offload.model.manifest import AttemptKind, Manifest, StreamState
from offload.native.fragment_writer import covering_table

FRAGMENT_SIZE_BYTES: Final = 64 * 1024
DATABASES: Final[dict[str, TableDatabase]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRow:
    """One fragment."""

    entry: Entry
    incarnation: UUID
    rows: ChunkTable
    """Positions count from the first chunk."""

    checksums: npt.NDArray[np.uint32]
    """CRC-32 of each stored chunk."""

    data: bytes
    metadata: Mapping[str, str]


class TableDatabase:
    """The state that the clients of one URL share."""

    def __init__(self) -> None:
        self.is_tier = False
        self.roots: dict[str, bytes] = {}
        self.fragments: dict[tuple[str, int, UUID], FragmentRow] = {}

    def newest(self, stream: str) -> Manifest | None:
        raw = self.roots.get(stream)
        return None if raw is None else decode_root(raw, where=f"manifest of {stream!r}")

    def replace(self, manifest: Manifest) -> bool:
        """Set the manifest, if the present one is its parent."""
        newest = self.newest(manifest.stream)
        if manifest.parent_commit_id != (newest.commit_id if newest else UUID(int=0)):
            return False
        self.roots[manifest.stream] = encode_root(manifest)
        return True

    def insert(self, stream: str, row: FragmentRow) -> None:
        self.fragments[stream, row.entry.first_offset, row.entry.attempt] = row

    def uploaded(self, stream: str, offset: int = 0) -> list[FragmentRow]:
        """Return the fragments that begin at or after `offset`, in order."""
        found = [
            (at, str(uid), row)
            for (name, at, uid), row in self.fragments.items()
            if name == stream and at >= offset
        ]
        return [row for _, _, row in sorted(found, key=lambda each: each[:2])]

    def remove(self, stream: str, first_offset: int, attempt: UUID) -> None:
        self.fragments.pop((stream, first_offset, attempt), None)


class Table(LedgerOffloader):
    """A sound offloader."""

    KIND: ClassVar = "offloader"

    def __init__(self, url: str) -> None:
        self._url = url
        self.db = DATABASES.setdefault(url, TableDatabase())

    @classmethod
    def keys_at(cls, url: str) -> None:
        """Return None: rows are no objects with keys."""

    @property
    def url(self) -> str:
        return self._url

    async def open(self, *, create: bool = False) -> None:
        await asyncio.sleep(0)
        self.db.is_tier = self.db.is_tier or create
        if not self.db.is_tier:
            raise NotOffloaded(f"{self._url} is no tier")

    def name(self, stream: str) -> str:
        """Return the stream as a key of the database. Raise `Misuse` for an invalid name."""
        escape(stream)
        return stream

    async def streams(self) -> list[str]:
        await self.open()
        return sorted(self.db.roots)

    async def newest(self, stream: str) -> Manifest | None:
        """Return the newest manifest in any state."""
        await asyncio.sleep(0)
        return self.db.newest(self.name(stream))

    async def load_manifest(self, stream: str) -> Manifest:
        await self.open()
        manifest = await self.newest(stream)
        if manifest is None or manifest.state is StreamState.REBUILDING:
            raise NotOffloaded(f"{self._url} has no stream {stream!r}")
        if manifest.state is StreamState.DELETED:
            raise StreamDeleted(f"stream {stream!r} was deleted", epoch=manifest.epoch)
        return manifest

    # Commits

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        await self.open(create=isinstance(change, Claim))
        for _ in range(100):
            newest = await self.newest(stream)
            if newest is not None and await self.is_in(change, newest):
                return newest
            manifest = await self.changed(change, newest, committer)
            if await self.set(manifest):
                return manifest
        raise TryAgain(f"others commit to {stream!r} all the time")

    async def is_in(self, change: Change, newest: Manifest) -> bool:
        """Return whether the manifest already holds the change."""
        verdict = await change.verdict(self.tree(newest))
        if verdict is CommitVerdict.UNKNOWN:
            raise OutcomeUnknown(f"stream {newest.stream!r}: nothing shows whether the change was in")
        return verdict is CommitVerdict.IN

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        """Return the manifest that follows `base`."""
        manifest = change.apply(base)
        if base is not None and change.edit is not None:
            entries, _ = await edited(self.tree(base), change.edit, version=base.version + 1, uuid=uuid4)
            manifest = replace(manifest, entries=entries)
        parent = base.commit_id if base is not None else UUID(int=0)
        manifest = replace(
            manifest,
            version=manifest.version + 1,
            committer=committer,
            commit_id=uuid4(),
            parent_commit_id=parent,
        )
        manifest.check(f"manifest of {manifest.stream!r}")
        return manifest

    async def set(self, manifest: Manifest) -> bool:
        await asyncio.sleep(0)
        done = self.db.replace(manifest)
        await asyncio.sleep(0)
        return done

    # Writing data

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        await self.open()
        copied = self.check_attempt(handle, attempt, manifest)
        if copied:
            await self.check_copy(handle, manifest)
        table = await covering_table(handle)
        runs = list(cut(table, size_bytes=FRAGMENT_SIZE_BYTES, count_max=2**20))
        entries = [
            await self.upload(handle, rows, attempt, manifest, extra_metadata, copied) for rows in runs
        ]
        return Receipt(attempt=attempt, entries=entries)

    def check_attempt(self, handle: ReadHandle, attempt: Attempt, manifest: Manifest) -> bool:
        """Return whether the attempt copies. Raise if it does not run, or not for this handle."""
        kinds = {(manifest.stream, each.ledger_id, each.attempt): each.kind for each in manifest.running}
        kind = kinds.get((attempt.stream, attempt.ledger_id, attempt.uid))
        if kind is None:
            raise Conflict(f"attempt {attempt.uid} of stream {attempt.stream!r} was not prepared")
        if handle.ledger_id != attempt.ledger_id:
            raise Misuse(f"ledger {handle.ledger_id} under an attempt that announced {attempt.ledger_id}")
        if kind is AttemptKind.JOB and handle.first_offset < manifest.next_offset:
            raise Conflict(f"stream {attempt.stream!r} ends at offset {manifest.next_offset} already")
        return kind is AttemptKind.COPY

    async def check_copy(self, handle: ReadHandle, manifest: Manifest) -> None:
        first = await self.tree(manifest).find(handle.first_offset)
        last = await self.tree(manifest).find(handle.next_offset - 1)
        if (
            first is None
            or last is None
            or (first.first_offset, last.next_offset) != (handle.first_offset, handle.next_offset)
        ):
            raise Conflict(f"stream {manifest.stream!r}: no fragments begin and end as this copy does")

    async def upload(
        self,
        handle: ReadHandle,
        rows: ChunkTable,
        attempt: Attempt,
        manifest: Manifest,
        metadata: Mapping[str, str],
        copied: bool,
    ) -> Entry:
        """Check one fragment, and insert it."""
        pieces, checksums = [], []
        for run in handle.windows(rows):
            raw = await handle.read(run)
            try:
                checksums.append(self.check(raw, run, handle.where))
            except Corrupt as exc:
                raise exc.within(exc.where, stream=attempt.stream) from exc
            pieces.append(raw)
        sums = np.concatenate(checksums)
        row = self.row(b"".join(pieces), rows, sums, attempt, manifest, metadata, copied)
        await self.insert(attempt.stream, row)
        return row.entry

    def check(self, raw: bytes, rows: ChunkTable, where: str) -> npt.NDArray[np.uint32]:
        return check_source(raw, rows, where=where)

    def row(
        self,
        raw: bytes,
        rows: ChunkTable,
        checksums: npt.NDArray[np.uint32],
        attempt: Attempt,
        manifest: Manifest,
        metadata: Mapping[str, str],
        copied: bool,
    ) -> FragmentRow:
        own = rows.copy()
        own["position"] = np.cumsum(rows["size_bytes"], dtype=np.uint64) - rows["size_bytes"]
        entry = Entry(
            first_offset=int(rows["offset"][0]),
            records=int(rows["records"].sum()),
            messages=int(rows["records"][rows["type"] == ChunkType.USER].sum()),
            first_timestamp_ms=int(rows["timestamp_ms"].min()),
            last_timestamp_ms=int(rows["timestamp_ms"].max()),
            data_size_bytes=len(raw),
            stored_size_bytes=len(raw),
            ledger_id=attempt.ledger_id,
            attempt=attempt.uid,
            checksum=crc32c(raw),
            copied=int(copied),
        )
        return FragmentRow(
            entry=entry,
            incarnation=manifest.incarnation,
            rows=own,
            checksums=checksums,
            data=raw,
            metadata=dict(metadata),
        )

    async def insert(self, stream: str, row: FragmentRow) -> None:
        await asyncio.sleep(0)
        self.db.insert(self.name(stream), row)

    # Reading data

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        await self.open()
        manifest = manifest or await self.load_manifest(attempt.stream)
        entries = await self.entries_of(attempt, manifest, only)
        if not entries:
            raise NotOffloaded(f"stream {attempt.stream!r} names nothing of attempt {attempt.uid}")
        self.check_no_hole(entries)
        return self.handle(
            [self.fetched(manifest.stream, entry) for entry in entries], where=str(attempt.uid)
        )

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> list[Entry]:
        only = range(2**64) if only is None else only
        found, at = list[Entry](), only.start
        while (entry := await self.tree(manifest).find(max(at, manifest.first_offset))) is not None:
            if entry.first_offset >= only.stop or not only:
                break
            if entry.attempt == attempt.uid:
                found.append(entry)
            at = entry.next_offset
        return found

    def check_no_hole(self, entries: Sequence[Entry]) -> None:
        for before, after in pairwise(entries):
            if before.next_offset != after.first_offset:
                raise NotOffloaded(
                    f"attempt {before.attempt} is named in part: read the stream by its offsets"
                )

    def fetched(self, stream: str, entry: Entry) -> FragmentRow:
        row = self.db.fragments.get((self.name(stream), entry.first_offset, entry.attempt))
        if row is None:
            where = f"attempt {entry.attempt} at offset {entry.first_offset} of stream {stream!r}"
            raise Absent(where, stream)
        return row

    def handle(self, parts: Sequence[FragmentRow], where: str) -> ReadHandle:
        return TableHandle(self, parts, where)

    # Leftovers of crashes

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        await self.open()
        running = self.left(manifest)
        found, next_offset = list[Leftover](), manifest.next_offset
        for row in self.db.uploaded(self.name(manifest.stream), next_offset):
            fits = row.entry.first_offset == next_offset and row.incarnation == manifest.incarnation
            if fits and running.get(row.entry.attempt) == row.entry.ledger_id:
                found.append(self.leftover(row))
                next_offset = row.entry.next_offset
        return found

    def left(self, manifest: Manifest) -> dict[UUID, int]:
        """Return the attempts that may be adopted, each with its ledger."""
        return {
            each.attempt: each.ledger_id
            for each in manifest.running
            if each.writer != manifest.writer and each.kind is AttemptKind.STREAM
        }

    def leftover(self, row: FragmentRow) -> Leftover:
        return Leftover(
            entry=row.entry,
            last_chunk_offset=int(row.rows["offset"][-1]),
            last_chunk_checksum=int(row.checksums[-1]),
        )

    async def delete_offloaded(self, attempt: Attempt) -> None:
        await self.open()
        newest = await self.newest(attempt.stream)
        if newest is not None and newest.runs(attempt.uid):
            change = Abort(attempts=frozenset({attempt.uid}))
            newest = await self.commit_manifest(attempt.stream, change, base=newest, committer=uuid4())
        rows = self.of_attempt(attempt)
        newest = await self.newest(attempt.stream)
        if newest is not None and newest.state is StreamState.REBUILDING:
            raise Conflict(f"stream {attempt.stream!r} is being rebuilt")
        if newest is not None and await self.names_any(newest, rows):
            raise Conflict(f"stream {attempt.stream!r} still names attempt {attempt.uid}; trim it first")
        for row in rows:
            self.db.remove(self.name(attempt.stream), row.entry.first_offset, row.entry.attempt)

    def of_attempt(self, attempt: Attempt) -> list[FragmentRow]:
        return [
            row for row in self.db.uploaded(self.name(attempt.stream)) if row.entry.attempt == attempt.uid
        ]

    async def names_any(self, manifest: Manifest, rows: Sequence[FragmentRow]) -> bool:
        tree = self.tree(manifest)
        for row in rows:
            if await tree.names(row.entry.first_offset, row.entry.attempt):
                return True
        return False


class TableHandle(ReadHandle):
    """Consecutive fragments. The `position` of a row counts over all of them."""

    def __init__(self, tier: Table, parts: Sequence[FragmentRow], where: str) -> None:
        self.tier, self.parts, self._where = tier, parts, where
        ends = np.cumsum([len(part.data) for part in parts])
        self.starts = [0, *ends.tolist()]

    @property
    def ledger_id(self) -> int:
        return self.parts[0].entry.ledger_id

    @property
    def first_offset(self) -> int:
        return self.parts[0].entry.first_offset

    @property
    def next_offset(self) -> int:
        return self.parts[-1].entry.next_offset

    @property
    def where(self) -> str:
        return self._where

    async def table(self) -> ChunkTable:
        tables = []
        for part, start in zip(self.parts, self.starts, strict=False):
            table = part.rows.copy()
            table["position"] += np.uint64(start)
            tables.append(table)
        return np.concatenate(tables)

    async def read(self, rows: ChunkTable) -> bytes:
        return b"".join([piece async for piece in self.pieces(rows)])

    async def pieces(self, rows: ChunkTable) -> AsyncIterator[bytes]:
        """Return the requested part of each fragment, checked."""
        start, stop = int(rows["position"][0]), int(rows["position"][-1]) + int(rows["size_bytes"][-1])
        for part, at in zip(self.parts, self.starts, strict=False):
            own = (rows["position"] >= at) & (rows["position"] < at + len(part.data))
            if own.any():
                await asyncio.sleep(0)
                yield self.checked(part, rows[own], max(start - at, 0), min(stop - at, len(part.data)), at)

    def checked(self, part: FragmentRow, rows: ChunkTable, start: int, stop: int, at: int) -> bytes:
        raw = part.data[start:stop]
        local = rows.copy()
        local["position"] -= np.uint64(at)
        first = int(np.searchsorted(part.rows["offset"], rows["offset"][0]))
        try:
            check_stored(
                raw,
                local,
                part.checksums[first : first + len(rows)],
                window_position=start,
                where=self._where,
            )
        except Corrupt as exc:
            raise exc.within(self._where) from exc
        return raw
