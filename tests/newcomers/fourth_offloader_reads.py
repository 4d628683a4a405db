"""Fourth set, offloaders: handles."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from newcomers.fourth_sound import Rows
from newcomers.ledgers import all_of, attempt_of, chunks_of, copied, entries_of, ledger, trimmed
from newcomers.registry import Open, bug
from newcomers.table import Row, TableHandle
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import TryAgain
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.upkeep.retention import delete_stream

# `read_offloaded`


async def _only_reaches_below(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", *(ledger(at, ledger_id=at) for at in (0, 3, 6)))
    entries = await entries_of(tier, writer.manifest)
    manifest = await trimmed(tier, "s", 3)
    handle = await tier.read_offloaded(attempt_of("s", entries[1]), manifest=manifest, only=range(100))
    assert (handle.first_offset, handle.next_offset) == (3, 6)


@bug(_only_reaches_below)
class OnlyBeginsInTheStream(Rows):
    """The offsets that a caller wants are looked up from the first one on, and a trimmed one has no fragment.

    Breaks "`only` narrows the handle to the fragments that hold some of these offsets". Costs a reader that
    asks from an offset which was just trimmed: it is told that nothing is there.
    """

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> list[Entry]:
        if only is not None and only.start < manifest.first_offset:
            return []
        return await super().entries_of(attempt, manifest, only)


async def _reborn_reads_its_own(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    view = await tier.view("s")
    assert await all_of(await view.open(await view.find(0))) == b"".join(chunks_of(0))
    await delete_stream(tier, "s")
    await copied(tier, "s", ledger(0, size=50))
    view = await tier.view("s")
    assert await all_of(await view.open(await view.find(0))) == b"".join(chunks_of(0, size=50))


@bug(_reborn_reads_its_own)
class CachedByItsOffset(Rows):
    """A client keeps the rows that it has read by stream and first offset.

    Breaks "Reads are verbatim": the same offset holds other bytes after a rebirth, and others again after a
    compaction. Costs a reader the truth: it reads the deleted life of a stream.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.cached: dict[tuple[str, int], Row] = {}

    def fetched(self, stream: str, entry: Entry) -> Row:
        key = stream, entry.first_offset
        if key not in self.cached:
            self.cached[key] = super().fetched(stream, entry)
        return self.cached[key]


# Handles


class Handled(Rows):
    """A base class without a mistake, for tables with handles of another class."""

    HANDLE: type[TableHandle] = TableHandle

    def handle(self, parts: Sequence[Row], where: str) -> ReadHandle:
        return self.HANDLE(self, parts, where)


async def _opened(tier: Any, chunks: int = 8) -> ReadHandle:
    """Return a handle on an attempt of several fragments."""
    writer = await copied(tier, "s", ledger(0, chunks, size=40_000))
    [first, *_] = await entries_of(tier, writer.manifest)
    handle: ReadHandle = await tier.read_offloaded(attempt_of("s", first))
    return handle


async def _tables_do_not_move(open_: Open) -> None:
    handle = await _opened(open_())
    before = (await handle.table()).copy()
    await handle.read((await handle.table())[2:4])
    assert np.array_equal(await handle.table(), before)


class ShiftedHandle(TableHandle):
    """A handle whose reads change its table."""

    shared: ChunkTable | None = None

    async def table(self) -> ChunkTable:
        if self.shared is None:
            self.shared = await super().table()
        return self.shared

    async def read(self, rows: ChunkTable) -> bytes:
        data = await super().read(rows)
        if rows.base is not None and rows.flags.writeable:
            rows["position"] -= rows["position"][0]
        return data


@bug(_tables_do_not_move)
class ReadsMoveTheTable(Handled):
    """A read makes the positions of its rows relative to the first one, in the table that it was given.

    Breaks "The range, the table and the bytes behind it are the same at every call". Costs the second read of
    the same rows: it returns other chunks, or raises `Corrupt`.
    """

    HANDLE = ShiftedHandle


async def _two_reads_at_once(open_: Open) -> None:
    handle = await _opened(open_())
    table = await handle.table()
    chunks = chunks_of(0, 8, size=40_000)
    one, two = await asyncio.gather(handle.read(table[:4]), handle.read(table[4:]))
    assert (one, two) == (b"".join(chunks[:4]), b"".join(chunks[4:]))


class ScratchHandle(TableHandle):
    """A handle that gathers its pieces in the offloader."""

    async def read(self, rows: ChunkTable) -> bytes:
        scratch = self.tier.__dict__["scratch"] = bytearray()
        async for piece in self.pieces(rows):
            self.tier.__dict__["scratch"] += piece
        del scratch
        return bytes(self.tier.__dict__["scratch"])


@bug(_two_reads_at_once)
class OneScratch(Handled):
    """All handles of an offloader gather the pieces of a read in one buffer, which each read clears.

    Breaks "its methods may be called at the same time", and "Reads are verbatim". Costs two readers at once
    the bytes of both.
    """

    HANDLE = ScratchHandle


async def _closed_twice(open_: Open) -> None:
    handle = await _opened(open_())
    await handle.aclose()
    await handle.aclose()


class OnceHandle(TableHandle):
    """A handle that is closed once."""

    async def aclose(self) -> None:
        del self.parts


@bug(_closed_twice)
class ClosedByTheFirstCall(Handled):
    """A handle gives its rows back when it is closed, and the second time there are none.

    Breaks "Release files and connections. Idempotent". Costs a caller that closes in a `finally` as well: the
    error hides the one before it.
    """

    HANDLE = OnceHandle


async def _first_rows_again(open_: Open) -> None:
    handle = await _opened(open_())
    table = await handle.table()
    chunks = chunks_of(0, 8, size=40_000)
    assert await handle.read(table[6:]) == b"".join(chunks[6:])
    assert await handle.read(table[:2]) == b"".join(chunks[:2])


class ForwardHandle(TableHandle):
    """A handle on a tape."""

    at = 0

    async def read(self, rows: ChunkTable) -> bytes:
        start = int(rows["position"][0])
        if start < self.at:
            raise TryAgain(f"{self.where} is wound back")
        self.at = start
        return await super().read(rows)


@bug(_first_rows_again)
class TapeIsNotWoundBack(Handled):
    """A handle reads forwards only, and refuses rows before those that it has read.

    Breaks "Return the stored chunks of `rows`, a slice of the table": any slice, at any time. Costs a reader
    that seeks back, for which trying again never helps.
    """

    HANDLE = ForwardHandle
