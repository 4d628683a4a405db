"""Odd backends that keep every sentence of their contract. No clause may fail on them."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import Any, ClassVar, Final
from uuid import UUID

import numpy as np
from offload_conformance.bugs.sound.memory import SharedMemory
from offload_conformance.bugs.sound.service import ServiceStore, gathered
from offload_conformance.bugs.sound.table import FragmentRow, Table
from offload_conformance.bugs.sound.wrappers import Relay

from offload.commit.guest import Trim
from offload.contracts.capabilities import Capabilities
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.store import Body, Buffer, Listed, Span, Suffix, Unfinished, Upload, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import (
    BeingRebuilt,
    Conflict,
    Fenced,
    Misuse,
    NotFound,
    NotOffloaded,
    StreamDeleted,
)
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.chunk_table import WINDOW_SIZE_BYTES, ChunkTable, cut, windows_of
from offload.model.manifest import Manifest, StreamState
from offload.native.fragment_writer import covering_table

PARTS_MAX: Final = 10_000

# Stores


class ShortNames(SharedMemory):
    """A store whose names have at most 160 bytes and no colon, and that has neither uploads nor metadata.

    Odd: every declared capability is at its least, a create has exactly the least size, and a wrong name is
    `Misuse` in every method. Correct: all of that is declared.
    """

    KIND: ClassVar = "store"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            atomic_create=True,
            strong_listing=True,
            multipart=False,
            durable=False,
            one_process=True,
            create_size_bytes_max=2**20,
            key_size_bytes_max=160,
            keys_refused=":",
        )

    def checked(self, key: str) -> str:
        if len(check_key(key).encode()) > 160 or ":" in key:
            raise Misuse(f"{key[:40]!r} is no name here")
        return key

    async def put(self, key: str, body: Body) -> None:
        check_metadata(body.metadata, self.capabilities)
        await super().put(self.checked(key), body)

    async def create(self, key: str, data: bytes) -> None:
        if len(data) > 2**20:
            raise Misuse(f"{key!r} is too large to be created")
        await super().create(self.checked(key), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(self.checked(key), span)

    async def stored_crc32c(self, key: str) -> int | None:
        self.checked(key)
        return None

    async def metadata_of(self, key: str) -> None:  # type: ignore[override]
        self.checked(key)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([self.checked(key) for key in keys])

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        self.checked(key)
        raise Misuse("there are no uploads here")


class FoldersOfItsOwn(SharedMemory):
    """A store with folders, like a file system.

    Odd: a name that another one has as its folder is `Misuse`, and so is a name below an object; a folder
    stays when it is empty, and `level` goes on naming it. Correct: the contract allows each of them.
    """

    KIND: ClassVar = "store"

    def fitting(self, key: str) -> str:
        parts = check_key(key).split("/")
        above = ["/".join(parts[:end]) for end in range(1, len(parts))]
        if any(each in self.objects for each in above) or any(
            each.startswith(f"{key}/") for each in self.objects
        ):
            raise Misuse(f"{key!r} cannot be beside a folder or an object of its name")
        return key

    def made(self, key: str) -> None:
        parts = key.split("/")
        for end in range(1, len(parts)):
            self.kept["/".join(parts[:end]) + "/"] = True

    async def put(self, key: str, body: Body) -> None:
        await super().put(self.fitting(key), body)
        self.made(key)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(self.fitting(key), data)
        self.made(key)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return await super().start_upload(self.fitting(key), metadata=metadata)

    async def level(self, prefix: str) -> AsyncIterator[str]:
        found = {name async for name in super().level(prefix)}
        for folder in self.kept:
            if folder.startswith(prefix) and (part := folder[len(prefix) :].partition("/")[0]):
                found.add(f"{prefix}{part}/")
        for name in sorted(found):
            yield name


class Talkative(SharedMemory):
    """A store that says more than it must.

    Odd: each object has a constant of the backend in its metadata; reads are views, of new memory each; a
    checksum is kept of every second object only, by its name; every object is retained for a reason; an
    absent one has no metadata, no sum and no reason, by None; a listing shows what is put while it runs, page
    by page. Correct: the contract allows each of them.
    """

    KIND: ClassVar = "store"
    CONSTANT: Final = {"writtenby": "talkative 1.0"}

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:  # type: ignore[override]
        data = await super().get(key, span)
        return memoryview(bytearray(b"?" + data + b"?")).toreadonly()[1 : len(data) + 1]

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:  # type: ignore[override]
        try:
            return {**self.CONSTANT, **await super().metadata_of(key)}
        except NotFound:
            return None

    async def stored_crc32c(self, key: str) -> int | None:
        data = self.objects.get(check_key(key))
        return None if data is None or zlib.crc32(key.encode()) % 2 else crc32c(data)

    async def retained(self, key: str) -> str | None:
        return "the bucket keeps deleted versions for 30 days" if check_key(key) in self.objects else None

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        last = after
        while True:
            await asyncio.sleep(0)
            above = (key for key in self.objects if key.startswith(prefix) and key > last)
            rows = [Listed(key, len(self.objects[key])) for key in nsmallest(97, above)]
            for row in rows:
                yield row
            if not rows:
                return
            last = rows[-1].key


class Azurish(ServiceStore):
    """A store like Azure's: its uploads are fragile, and nobody can list them.

    Odd: a put, a create or another upload of a key drops the parts of an upload under way, whose `complete`
    raises `Misuse`; parts have a least size, which is declared; a number below 1 is refused only by
    `complete`; unfinished uploads are never listed, and aborting one does nothing. Correct: the contract
    allows each of them.
    """

    KIND: ClassVar = "store"
    LEAST: Final = 4096

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, part_size_bytes_min=self.LEAST, parts_max=PARTS_MAX)

    async def put(self, key: str, body: Body) -> None:
        check_key(key)
        check_metadata(body.metadata, self.capabilities)
        await self.written(key, await gathered(body, key))

    async def written(self, key: str, data: bytes) -> None:
        await self.ask(self.service.put, key, data)
        self.drop(key)

    def drop(self, key: str) -> None:
        for name in [name for name, each in self.service.uploads.items() if each.key == key]:
            del self.service.uploads[name]

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data)
        self.drop(key)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        check_metadata(metadata, self.capabilities)
        return Fragile(self, key, await self.ask(self.service.begin, check_key(key)))

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        return ()

    async def abort_upload(self, upload: Unfinished) -> None:
        return None


class Fragile(Upload):
    """An upload whose parts go if its key is written."""

    def __init__(self, store: Azurish, key: str, name: str) -> None:
        self.store, self.key, self.name = store, key, name
        self.parts: dict[int, bytes] = {}

    async def put_part(self, number: int, data: bytes) -> None:
        await asyncio.sleep(0)
        self.parts[number] = bytes(data)

    async def complete(self) -> None:
        numbers = sorted(self.parts)
        if not numbers or numbers != [*range(1, len(numbers) + 1)] or numbers[-1] > PARTS_MAX:
            raise Misuse(f"the upload of {self.key!r} lacks a part, or has one too many")
        sizes = [len(self.parts[number]) for number in numbers]
        if len({*sizes[:-1]}) > 1 or sizes[-1] > sizes[0] or (len(sizes) > 1 and sizes[0] < self.store.LEAST):
            raise Misuse(f"the parts of {self.key!r} have these sizes: {sizes}")
        if self.name not in self.store.service.uploads:
            raise Misuse(f"the parts of {self.key!r} are gone: the key was written meanwhile")
        await self.store.written(self.key, b"".join(self.parts[number] for number in numbers))

    async def abort(self) -> None:
        self.parts.clear()
        self.store.service.uploads.pop(self.name, None)


# Offloaders


class ChunkByChunk(Table):
    """An offloader whose every chunk is a fragment, as on a tape with a mark behind each.

    Odd: the positions of a handle begin at 2**40, and there is a hole behind each chunk; reads are views of
    other memory each time. Correct: only the handle interprets `position`, a handle may join several objects,
    and where fragments end is the backend's choice.
    """

    KIND: ClassVar = "offloader"

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        await self.open()
        copied = self.check_attempt(handle, attempt, manifest)
        if copied:
            await self.check_copy(handle, manifest)
        table = await covering_table(handle)
        runs = [table[row : row + 1] for row in range(len(table))]
        entries = [
            await self.upload(handle, rows, attempt, manifest, extra_metadata, copied) for rows in runs
        ]
        return Receipt(attempt=attempt, entries=entries)

    def handle(self, parts: Sequence[FragmentRow], where: str) -> ReadHandle:
        return Far(super().handle(parts, where))


class Far(Relay):
    """A handle whose positions begin at 2**40, with a hole of 1,000 bytes behind each chunk."""

    async def table(self) -> ChunkTable:
        table = (await super().table()).copy()
        table["position"] += np.uint64(2**40) + np.arange(len(table), dtype=np.uint64) * np.uint64(1000)
        return table

    async def read(self, rows: ChunkTable) -> Any:
        own = await self.handle.table()
        first = int(np.searchsorted(own["offset"], rows["offset"][0]))
        return memoryview(await self.handle.read(own[first : first + len(rows)]))

    def windows(self, rows: ChunkTable, *, size_bytes: int = WINDOW_SIZE_BYTES) -> Iterator[ChunkTable]:
        return windows_of(rows, size_bytes=size_bytes)


class NothingIsKept(Table):
    """An offloader that keeps as little as it may.

    Odd: what a trim drops is removed with it, so that older views find it absent; and a crash leaves nothing
    to adopt. Correct: a view does not promise that what it names is still there, and a backend that keeps no
    fragments of unfinished attempts returns an empty list.
    """

    KIND: ClassVar = "offloader"

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        if isinstance(change, Trim):
            for row in self.db.uploaded(self.name(stream)):
                is_over = row.entry.next_offset <= manifest.first_offset
                if is_over and not manifest.runs(row.entry.attempt):
                    self.db.remove(stream, row.entry.first_offset, row.entry.attempt)
        return manifest

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        await self.open()
        return []


class Packed(Table):
    """An offloader in a database with signed columns, which compresses what it keeps.

    Odd: offsets have 63 bits, so a ledger that goes further is `Misuse`; stored sizes are less than those of
    the data; fragments end after 10 KiB. Correct: the contract allows each of them.
    """

    KIND: ClassVar = "offloader"

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        await self.open()
        copied = self.check_attempt(handle, attempt, manifest)
        if handle.next_offset >= 2**63:
            raise Misuse(f"{self.url} keeps offsets below 2**63")
        if copied:
            await self.check_copy(handle, manifest)
        table = await covering_table(handle)
        size_bytes = len(table) and int(table["size_bytes"].sum()) if copied else 10 * 1024
        runs = list(cut(table, size_bytes=size_bytes, count_max=2**20))
        entries = [
            await self.upload(handle, rows, attempt, manifest, extra_metadata, copied) for rows in runs
        ]
        return Receipt(attempt=attempt, entries=entries)

    def row(self, raw: bytes, *rest: Any) -> FragmentRow:
        row = super().row(raw, *rest)
        return replace(row, entry=replace(row.entry, stored_size_bytes=len(zlib.compress(raw, 1))))


class LeaseLost(Fenced):
    """An error of a backend's own."""


class RowChanged(Conflict):
    """An error of a backend's own."""


class NoSuchRow(NotOffloaded):
    """An error of a backend's own."""


class Scrupulous(Table):
    """An offloader that has errors of its own, and hurries nobody.

    Odd: each error is a subclass of the one that the contract names, and tells no epoch; every call waits a
    few turns of the loop before and after it; `newer_view` is the default one, and `streams` a list that the
    caller may change. Correct: errors are classes by what the caller does next, and a subclass asks for the
    same.
    """

    KIND: ClassVar = "offloader"

    async def turns(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    async def load_manifest(self, stream: str) -> Manifest:
        await self.turns()
        manifest = await self.newest(stream)
        if manifest is not None and manifest.state is StreamState.REBUILDING:
            raise BeingRebuilt(f"stream {stream!r} is being rebuilt")
        if manifest is None:
            await self.open()
            raise NoSuchRow(f"{self.url} has no row for stream {stream!r}")
        if manifest.state is StreamState.DELETED:
            raise StreamDeleted(f"stream {stream!r} was deleted")
        return await super().load_manifest(stream)

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        await self.turns()
        try:
            return await super().commit_manifest(stream, change, base=base, committer=committer)
        except StreamDeleted as exc:
            raise StreamDeleted(str(exc)) from exc
        except Fenced as exc:
            raise LeaseLost(str(exc)) from exc
        except Conflict as exc:
            raise RowChanged(str(exc)) from exc
        finally:
            await self.turns()

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        await self.turns()
        try:
            return await super().offload(handle, attempt, **options)
        except Conflict as exc:
            raise RowChanged(str(exc)) from exc


ODD: Final = (
    ShortNames,
    FoldersOfItsOwn,
    Talkative,
    Azurish,
    ChunkByChunk,
    NothingIsKept,
    Packed,
    Scrupulous,
)
