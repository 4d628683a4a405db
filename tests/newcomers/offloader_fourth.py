"""Mistakes of offloaders, of the fourth set: the suite missed them at first."""

from __future__ import annotations

import sqlite3

from offload_sqlite_ledger.reading import DATA, SqliteHandle

from newcomers.late import chunks, writer
from newcomers.ledgers import all_of, raises
from newcomers.offloader_late_reads import Viewing
from newcomers.registry import Open, bug
from offload.errors import Absent, Corrupt
from offload.model.chunk_table import ChunkTable


class Unchecked(SqliteHandle):
    async def read(self, rows: ChunkTable) -> bytes:
        first, last = int(rows["offset"][0]), int(rows["offset"][-1])
        found = await self._database.rows(DATA, self._entry.attempt.bytes, first, last)
        if not found:
            raise Absent(self.where, self._stream)
        return b"".join(data for (data,) in found)


async def shows_nothing_is_compared(open_: Open) -> None:
    w = await writer(tier := open_())
    receipt = await w.add(chunks())
    with sqlite3.connect(tier._database.path) as db:
        [(raw,)] = db.execute("SELECT data FROM chunks LIMIT 1").fetchall()
        db.execute("UPDATE chunks SET data = ? WHERE offset = 0", (raw[:-1] + bytes([raw[-1] ^ 1]),))
    handle = await open_().read_offloaded(receipt.attempt)
    await raises(Corrupt, all_of(handle))


@bug(shows_nothing_is_compared)
class NothingIsCompared(Viewing):
    """What a handle reads is not compared with the checksums in the table.

    Breaks "`read` returns only chunks whose checksums match": damage reaches the reader as data.
    """

    HANDLE = Unchecked
