"""Offloaders and stores that each break one clause of their contract, the way real ones do.

Nothing here is a caricature: each is a shortcut that somebody took somewhere, and everything else
about it works.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.errors import AlreadyExists, NotFound, NotOffloaded
from offload.formats.chunk import ChunkTable
from offload.formats.manifest import Entry, Manifest, Running
from offload.manifest.changes import Append, Change, Claim
from offload.offloader import Attempt, CutHandle, LedgerOffloader, Leftover, ReadHandle, Receipt
from offload.store.memory import MemoryStore
from offload.store.port import Body, Listed, ObjectStore, Span, Suffix, Upload
from offload.store.wrap import StoreDecorator
from offload.tier.object_store_offloader import ObjectStoreOffloader

# Offloaders


class SharesObjects(ObjectStoreOffloader):
    """Saves space: equal bytes are stored once, whoever's they are."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(Deduplicating(store))


class Deduplicating(StoreDecorator):
    @staticmethod
    def shared(key: str) -> str:
        return re.sub(r"\.[0-9a-f-]{36}\.fragment", f".{UUID(int=0)}.fragment", key)

    async def put(self, key: str, body: Body) -> None:
        await super().put(self.shared(key), body)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(self.shared(key), span)


class UploadsUnprepared(ObjectStoreOffloader):
    """Takes the caller's word that the attempt was announced."""

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        running = Running(attempt=attempt.uid, ledger_id=0, epoch=1, writer=manifest.writer)
        manifest = replace(manifest, running=(*manifest.running, running))
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)


class ForgetsToCheck(ObjectStoreOffloader):
    """Trusts the source: what its index says must be right."""

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        def unchecked(raw: bytes, rows: ChunkTable, *, where: str) -> npt.NDArray[np.uint32]:
            return np.zeros(len(rows), np.uint32)

        with patch("offload.tier.fragment_writer.check_source", unchecked):
            return await super().offload(*args, **kwargs)


class OffersThePlan(ObjectStoreOffloader):
    """Journals what it is going to upload, and takes the journal for the upload after a crash."""

    planned: dict[UUID, Entry] = {}

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        self.planned[attempt.uid] = Entry(
            first_offset=handle.first_offset,
            records=handle.next_offset - handle.first_offset,
            messages=handle.next_offset - handle.first_offset,
            first_timestamp_ms=0,
            last_timestamp_ms=0,
            data_size_bytes=1,
            stored_size_bytes=1000,
            ledger_id=attempt.ledger_id,
            attempt=attempt.uid,
            checksum=0,
        )
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        return [
            Leftover(entry=self.planned[left.attempt], last_chunk_offset=0, last_chunk_checksum=0)
            for left in manifest.running
            if left.writer != manifest.writer and left.attempt in self.planned
        ]


class Tidies(ObjectStoreOffloader):
    """Hands out bytes that are nearly those that came in."""

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return Tidied.around(await super().read_offloaded(*args, **kwargs))


class _Around(CutHandle):
    @classmethod
    def around(cls, handle: ReadHandle) -> _Around:
        return cls(handle, first_offset=handle.first_offset, next_offset=handle.next_offset)


class Tidied(_Around):
    async def read(self, rows: ChunkTable) -> bytes:
        return (await super().read(rows)).replace(b".", b" ")


class ReturnsNone(ObjectStoreOffloader):
    """Spares its callers the exception."""

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        try:
            return await super().read_offloaded(*args, **kwargs)
        except NotOffloaded:
            return None  # type: ignore[return-value]


class InsistsOnPresence(ObjectStoreOffloader):
    """Reports that there was nothing to delete."""

    async def delete_offloaded(self, attempt: Attempt) -> None:
        if not [row async for row in self.store.list("") if str(attempt.uid) in row.key]:
            raise NotOffloaded(f"there is no attempt {attempt.uid}")
        await super().delete_offloaded(attempt)


class DeletesTheCommitted(ObjectStoreOffloader):
    """Removes what it is told to, and asks no manifest."""

    async def delete_offloaded(self, attempt: Attempt) -> None:
        await self.store.delete([row.key async for row in self.store.list("") if str(attempt.uid) in row.key])


class CommitsByHalves(ObjectStoreOffloader):
    """Appends fragment by fragment, which is as good as at once, nearly always."""

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Append):
            for entry in change.entries[:-1]:
                single = replace(change, entries=[entry], finished=frozenset())
                base = await super().commit_manifest(stream, single, base=base, committer=committer)
            change = replace(change, entries=change.entries[-1:])
        return await super().commit_manifest(stream, change, base=base, committer=committer)


class Overwrites(ObjectStoreOffloader):
    """Stores a manifest without asking whether another got there first."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(ReplacingCreate(store))


class ReplacingCreate(StoreDecorator):
    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, Body.of(data))


class NeverFences(ObjectStoreOffloader):
    """Lets every writer write: they will not do so at the same time."""

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if base is not None and hasattr(change, "writer") and not isinstance(change, Claim):
            base = await self.load_manifest(stream)
            change = replace(change, writer=base.writer)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


class Unseen(Change):
    """A change that no manifest shows."""

    def __init__(self, change: Change) -> None:
        self.change = change

    def apply(self, base: Manifest | None) -> Manifest:
        return self.change.apply(base)

    def is_in(self, manifest: Manifest) -> bool:
        return False


class CommitsAgain(ObjectStoreOffloader):
    """Puts every change on top of the newest manifest, be it in already."""

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if base is not None:
            change, base = Unseen(change), await self.load_manifest(stream)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


class TrustsTheReply(ObjectStoreOffloader):
    """Takes `AlreadyExists` for the end of it: somebody else was faster, and that is that."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(Swallowing(store))


class Swallowing(StoreDecorator):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.believed: dict[str, bytes] = {}

    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except AlreadyExists:
            self.believed[key] = data

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return self.believed[key] if key in self.believed else await super().get(key, span)


class LiveHandles(ObjectStoreOffloader):
    """Hands out handles that keep up with the stream."""

    newest_offset = 0

    async def commit_manifest(self, *args: Any, **kwargs: Any) -> Manifest:
        manifest = await super().commit_manifest(*args, **kwargs)
        self.newest_offset = manifest.next_offset
        return manifest

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        handle = Live.around(await super().read_offloaded(*args, **kwargs))
        handle.offloader = self  # type: ignore[attr-defined]
        return handle


class Live(_Around):
    offloader: LiveHandles

    @property
    def next_offset(self) -> int:
        return max(self._next_offset, self.offloader.newest_offset)


class BeginsWithinAChunk(ObjectStoreOffloader):
    """Hands out handles that leave the first record out."""

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return Shortened.around(await super().read_offloaded(*args, **kwargs))


class Shortened(_Around):
    @property
    def first_offset(self) -> int:
        return super().first_offset + 1

    async def table(self) -> ChunkTable:
        return await self._whole.table()


OFFLOADERS: dict[str, list[type[LedgerOffloader]]] = {
    "test_attempts_are_disjoint": [SharesObjects],
    "test_prepared_before_uploaded": [UploadsUnprepared],
    "test_offloads_are_checked": [ForgetsToCheck],
    "test_fragments_are_whole": [OffersThePlan],
    "test_reads_are_verbatim": [Tidies],
    "test_absence_is_an_error": [ReturnsNone],
    "test_deletion_is_idempotent": [InsistsOnPresence],
    "test_deletion_spares_the_committed": [DeletesTheCommitted],
    "test_commits_are_atomic": [CommitsByHalves],
    "test_history_is_linear": [Overwrites, TrustsTheReply],
    "test_claims_fence": [NeverFences],
    "test_commits_are_idempotent": [CommitsAgain],
    "test_snapshots_do_not_move": [LiveHandles],
    "test_chunks_are_whole": [BeginsWithinAChunk],
}
"""By the clause that they break."""


# Stores


class ShowsPutsUnderWay(MemoryStore):
    """Opens the object and writes window by window into it."""

    async def put(self, key: str, body: Body) -> None:
        data = b""
        async for window in body.windows():
            data += window
            self.objects[key] = data
            await asyncio.sleep(0)
        self.objects[key] = data


class ShortWindows(ShowsPutsUnderWay):
    """Stores one window for each write, and the last one over the others."""

    async def put(self, key: str, body: Body) -> None:
        async for window in body.windows():
            self.objects[key] = window


class WritesBehind(MemoryStore):
    """Answers at once, and keeps new objects to itself until somebody reads them."""

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.late = {key: self.objects.pop(key)}

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self.objects.update(getattr(self, "late", {}))
        return await super().get(key, span)


class ChecksThenWrites(MemoryStore):
    """Looks whether the key is taken, and writes in a second step."""

    async def create(self, key: str, data: bytes) -> None:
        if key in self.objects:
            raise AlreadyExists(key)
        await asyncio.sleep(0)
        self.objects[key] = data


class CachesListings(MemoryStore):
    """Remembers a listing, because they are dear."""

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        if not hasattr(self, "rows"):
            self.rows = [row async for row in super().list("")]
        for row in self.rows:
            if row.key.startswith(prefix) and row.key > after:
                yield row


class ListsFolderByFolder(MemoryStore):
    """Sorts as a walk through folders does."""

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [row async for row in super().list(prefix, after=after)]
        for row in sorted(rows, key=lambda row: row.key.split("/")):
            yield row


class NamesFoldersOften(MemoryStore):
    """Names a folder once for each key below it."""

    async def level(self, prefix: str) -> AsyncIterator[str]:
        async for row in super().list(prefix):
            part, slash, _ = row.key[len(prefix) :].partition("/")
            yield prefix + part + slash


class PadsRanges(MemoryStore):
    """Always returns as many bytes as were asked for."""

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        return data.ljust(min(span.length, 1000), b"\0") if span else data


class ReturnsEmpty(MemoryStore):
    """Reads what is absent as no bytes at all."""

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        try:
            return await super().get(key, span)
        except NotFound:
            return b""


class MissesTheDeleted(MemoryStore):
    """Reports that there was nothing to delete."""

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key not in self.objects:
                raise NotFound(key)
        await super().delete(keys)


class SumsTheSizes(MemoryStore):
    """Keeps a checksum, but not of the bytes."""

    async def stored_crc32c(self, key: str) -> int | None:
        return len(await self.get(key))


class TakesAnyKey(MemoryStore):
    """Leaves it to the caller what a key is, at least where parts are concerned."""

    async def start_upload(self, key: str) -> Upload:
        return await super().start_upload("key")


STORES: dict[str, list[type[MemoryStore]]] = {
    "test_puts_are_whole": [ShortWindows],
    "test_puts_are_invisible_until_they_return": [ShowsPutsUnderWay],
    "test_puts_are_durable": [WritesBehind],
    "test_create_is_atomic": [ChecksThenWrites],
    "test_listing_is_strong": [CachesListings],
    "test_listing_is_ordered": [ListsFolderByFolder],
    "test_levels_are_whole": [NamesFoldersOften],
    "test_ranges_are_exact": [PadsRanges],
    "test_absence_is_an_error": [ReturnsEmpty],
    "test_deletion_is_idempotent": [MissesTheDeleted],
    "test_stored_checksums_are_true": [SumsTheSizes],
    "test_keys_are_checked": [TakesAnyKey],
}
"""By the claim that they break."""
