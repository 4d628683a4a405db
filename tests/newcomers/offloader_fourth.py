"""Mistakes of offloaders, of the fourth set: the suite missed them at first."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import aclosing

from offload_sqlite_ledger.reading import DATA, SqliteHandle, SqliteView

from newcomers.late import chunks, writer
from newcomers.ledgers import all_of, raises
from newcomers.offloader_late_reads import Viewing
from newcomers.registry import Open, bug
from newcomers.sound import Ledgers
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Absent, Corrupt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries, Entry
from offload.model.excerpt import of_fragments


class Unchecked(SqliteHandle):
    async def unchecked(self, rows: ChunkTable) -> bytes:
        first, last = int(rows["offset"][0]), int(rows["offset"][-1])
        found = await self._database.rows(DATA, self._entry.attempt.bytes, first, last)
        if not found:
            raise Absent(self.where, self._stream)
        return b"".join(data for (data,) in found)


class ChecksNoHints(Unchecked):
    async def read_on(self, rows: ChunkTable, then: ChunkTable) -> bytes:
        return await self.unchecked(rows)


async def damaged(tier: Ledgers) -> ReadHandle:
    """Return a handle on three chunks, of which the first is damaged."""
    w = await writer(tier)
    receipt = await w.add(chunks())
    with sqlite3.connect(tier._database.path) as db:
        [(raw,)] = db.execute("SELECT data FROM chunks WHERE offset = 0").fetchall()
        db.execute("UPDATE chunks SET data = ? WHERE offset = 0", (raw[:-1] + bytes([raw[-1] ^ 1]),))
    return await (await tier.view("s")).open(receipt.entries[0])


async def shows_hints_are_not_checked(open_: Open) -> None:
    handle = await damaged(open_())
    table = await handle.table()
    await raises(Corrupt, handle.read_on(table[:1], table[1:]))


@bug(shows_hints_are_not_checked)
class HintsAreNotChecked(Viewing):
    """Only `read` compares checksums, and a reader that goes on calls `read_on`.

    Breaks "Return what `read` returns": damage reaches whoever reads a stream to its end.
    """

    HANDLE = ChecksNoHints


async def shows_cut_is_damaged(open_: Open) -> None:
    w = await writer(tier := open_())
    receipts = [await w.add(chunks(1, 2 * n)) for n in range(3)]
    view = await tier.view("s")
    cut = tier.view_of(of_fragments(view.committed, view.committed.entries[1:2]))
    assert await all_of(await cut.open(receipts[1].entries[0])) == chunks(1, 2)


class Counting(SqliteView):
    async def open(self, entry: Entry) -> ReadHandle:
        newest = await self.tier.load_manifest(self.committed.stream)  # type: ignore[attr-defined]
        if (newest.version, newest.fragments) == (self.committed.version, self.committed.fragments):
            return await super().open(entry)
        if newest.version == self.committed.version:
            raise Corrupt("fragments", self.where, expected=newest.fragments, found=self.committed.fragments)
        return await super().open(entry)


@bug(shows_cut_is_damaged)
class CutIsDamaged(Viewing):
    """A view opens a fragment only if it has as many as its version has.

    Breaks "whole or cut to some of its fragments": a task of Spark reports damage of a sound stream.
    """

    VIEW = Counting


class FromItsOffset(SqliteView):
    async def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        if offset and await self.find(offset) is None:
            return
        async with aclosing(super().walk(offset)) as runs:
            async for run in runs:
                yield run


async def shows_walks_from_what_it_holds(open_: Open) -> None:
    w = await writer(tier := open_(), first=5)
    await w.add(chunks(1, 5))
    found: list[Entries] = []
    async with aclosing((await tier.view("s")).walk(2)) as runs:
        found += [run async for run in runs]
    assert len(found) == 1


@bug(shows_walks_from_what_it_holds)
class WalksFromWhatItHolds(Viewing):
    """A walk from an offset that was trimmed has nothing.

    Breaks "from the one that holds `offset` on": a reader behind retention sees an empty stream.
    """

    VIEW = FromItsOffset
