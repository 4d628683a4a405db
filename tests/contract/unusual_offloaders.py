"""Correct offloaders with unusual behaviour: each does what the contract allows and no other offloader does.

All but one keep their tier in an SQLite file, as an offloader without an object store would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final
from uuid import UUID

import numpy as np
from contract.backend_bugs import Ledgers
from offload_conformance.bugs.sound.memory import Memory, MemoryTier
from offload_sqlite_ledger.reading import SqliteHandle, SqliteView

from offload.contracts.attempts import check_copied, prepared_kind
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import Buffer
from offload.formats.chunk_check import check_source
from offload.ground.errors import Corrupt, Misuse
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable, cut
from offload.model.entry import Entry
from offload.model.manifest import AttemptKind, CommittedStream, Manifest
from offload.model.tree import EntryTree
from offload.native.fragment_writer import covering_table
from offload.native.offloader import ObjectStoreOffloader, TierOptions


class TwoChunks(Ledgers):
    """Its fragments have at most two chunks. It copies the last fragment first, and reads chunk by chunk."""

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        kind = prepared_kind(handle, attempt, manifest)
        if kind is AttemptKind.COPY:
            await check_copied(self.view_of(manifest), handle)
        if max(handle.next_offset, handle.ledger_id) >= 2**63:
            raise Misuse("numbers of 63 bits")
        table = await covering_table(handle)
        about = (attempt.uid.bytes, attempt.stream, attempt.ledger_id, "")
        await self._database.insert("INSERT INTO attempts VALUES (?, ?, ?, ?)", [about])
        fragments = [*cut(table, size_bytes=2**40, count_max=2)]
        copied = int(kind is AttemptKind.COPY)
        entries = [await self._insert(handle, rows, attempt, copied=copied) for rows in fragments[::-1]]
        return Receipt(attempt=attempt, entries=entries[::-1])


class SevenByVersion(Ledgers):
    """Its versions rise by seven, as those of a tier whose every table has a number of the one sequence."""

    async def _proposal(self, change: Change, newest: Manifest | None, committer: UUID) -> Manifest:
        proposal = await super()._proposal(change, newest, committer)
        return replace(proposal, version=proposal.version + 6)


class _OddHandle(ReadHandle):
    """Its positions are no bytes of anything, and it returns views of bytes."""

    def __init__(self, inner: SqliteHandle) -> None:
        self._inner, self._own = inner, inner._table
        self._shown = self._own.copy()
        self._shown["position"] = np.arange(len(self._shown)) * 2**40 + 7

    ledger_id = property(lambda self: self._inner.ledger_id)  # type: ignore[assignment]
    first_offset = property(lambda self: self._inner.first_offset)  # type: ignore[assignment]
    next_offset = property(lambda self: self._inner.next_offset)  # type: ignore[assignment]
    where = property(lambda self: "a fragment, «somewhere»")  # type: ignore[assignment]

    async def table(self) -> ChunkTable:
        return self._shown.copy()

    async def read(self, rows: ChunkTable) -> Buffer:
        data = await self._inner.read(self._own[np.isin(self._own["offset"], rows["offset"])])
        return memoryview(data).toreadonly()


class _OddView(SqliteView):
    async def open(self, entry: Entry) -> ReadHandle:
        opened = await super().open(entry)
        assert isinstance(opened, SqliteHandle)
        return _OddHandle(opened)


class OddHandles(Ledgers):
    """The positions in its tables are numbers that only its handles understand, and chunks come as views."""

    def view_of(self, committed: CommittedStream) -> SqliteView:
        return _OddView(EntryTree(committed, self.load_group), self._database)


class SmallSizes(Ledgers):
    """It stores less than it is given, and needs no checksum in an entry: it has one of each chunk."""

    async def _insert(self, handle: ReadHandle, table: ChunkTable, attempt: Attempt, *, copied: int) -> Entry:
        entry = await super()._insert(handle, table, attempt, copied=copied)
        return replace(entry, stored_size_bytes=entry.data_size_bytes // 3, checksum=0)


class SlowToBegin(Ledgers):
    """The first call of each client takes half a second: a token, TLS, a pool of connections."""

    BEGIN_SECONDS: ClassVar = 0.5

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._begun: asyncio.Task[None] | None = None
        rows = self._database.rows

        async def after_the_token(query: str, *key: object) -> list[Any]:
            self._begun = self._begun or asyncio.ensure_future(asyncio.sleep(self.BEGIN_SECONDS))
            await asyncio.shield(self._begun)
            return await rows(query, *key)

        self._database.rows = after_the_token  # type: ignore[method-assign]


class OneAtATime(Ledgers):
    """A client copies one ledger at a time: other calls of `offload` wait."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._turn = asyncio.Lock()

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        prepared_kind(handle, attempt, manifest)
        async with self._turn:
            return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)


class ReadsTwice(Ledgers):
    """It checks the whole ledger first, from its end to its beginning, and then reads it again to copy it."""

    async def _insert(self, handle: ReadHandle, table: ChunkTable, attempt: Attempt, *, copied: int) -> Entry:
        for row in range(len(table))[::-1]:
            rows = table[row : row + 1]
            try:
                check_source(await handle.read(rows), rows, where=handle.where)
            except Corrupt as damage:
                raise damage.within(handle.where, stream=attempt.stream) from damage
        return await super()._insert(handle, table, attempt, copied=copied)


class OneChunk(MemoryTier):
    """Each chunk is an object of its own."""

    def __init__(self, url: str) -> None:
        ObjectStoreOffloader.__init__(self, Memory(url), options=TierOptions(fragment_size_bytes=1))


ODD_OFFLOADERS: Final[dict[str, Callable[[str], LedgerOffloader]]] = {
    each.__name__: each
    for each in (
        TwoChunks,
        SevenByVersion,
        OddHandles,
        SmallSizes,
        SlowToBegin,
        OneAtATime,
        ReadsTwice,
        OneChunk,
    )
}
"""Each is opened by a URL that names a place of its own."""
