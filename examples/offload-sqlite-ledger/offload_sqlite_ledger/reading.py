"""Views of streams, and handles on fragments: a fragment is the rows of an attempt between two offsets."""

from __future__ import annotations

import numpy as np

from offload import Absent, Corrupt, Entry, EntryView, ReadHandle
from offload.formats.chunk import check_stored
from offload.model.chunk_table import CHUNK_TABLE, ChunkTable, row_from
from offload.model.entry import Entries, entries_of_rows
from offload.model.tree import EntryTree
from offload_sqlite_ledger.database import Database

TABLE = (
    "SELECT offset, records, type, timestamp_ms, size_bytes, checksum FROM chunks"
    " WHERE attempt = ? AND offset >= ? AND offset < ? ORDER BY offset"
)
DATA = "SELECT data FROM chunks WHERE attempt = ? AND offset >= ? AND offset <= ? ORDER BY offset"


class SqliteView(EntryView):
    """A stream as one of its manifests describes it."""

    def __init__(self, tree: EntryTree, database: Database) -> None:
        super().__init__(tree)
        self._database = database

    @property
    def where(self) -> str:
        return f"manifests/{self.committed.stream}/{self.committed.version}"

    def name_of(self, row: Entries) -> str:
        return name_of(entries_of_rows(row)[0])

    async def open(self, entry: Entry) -> ReadHandle:
        uid, stream = entry.attempt.bytes, self.committed.stream
        rows = await self._database.rows(TABLE, uid, entry.first_offset, entry.next_offset)
        if not rows:
            raise Absent(name_of(entry), stream)
        handle = SqliteHandle(self._database, entry, rows, stream)
        found = await handle.table()
        begins = [*found["offset"].tolist(), entry.next_offset]
        ends = [entry.first_offset, *(found["offset"] + found["records"]).tolist()]
        if begins != ends:
            raise Corrupt("rows of chunks", handle.where, expected=ends, found=begins, stream=stream)
        return handle


def name_of(entry: Entry) -> str:
    """Return the name of a fragment: its attempt and its first offset."""
    return f"chunks/{entry.attempt}/{entry.first_offset}"


class SqliteHandle(ReadHandle):
    """The rows of one fragment. The `position` of a row is that of its chunk if all chunks lie end to end."""

    def __init__(self, database: Database, entry: Entry, rows: list[tuple[int, ...]], stream: str) -> None:
        self._database, self._entry, self._stream = database, entry, stream
        columns = zip(*rows, strict=True)
        self._table = np.zeros(len(rows), CHUNK_TABLE)
        for name in ("offset", "records", "type", "timestamp_ms", "size_bytes"):
            self._table[name] = next(columns)
        self._table["position"] = np.cumsum(self._table["size_bytes"]) - self._table["size_bytes"]
        self._checksums = np.array(next(columns), np.uint32)

    @property
    def ledger_id(self) -> int:
        return self._entry.ledger_id

    @property
    def first_offset(self) -> int:
        return self._entry.first_offset

    @property
    def next_offset(self) -> int:
        return self._entry.next_offset

    @property
    def where(self) -> str:
        return name_of(self._entry)

    async def table(self) -> ChunkTable:
        return self._table

    async def read(self, rows: ChunkTable) -> bytes:
        first, last = int(rows["offset"][0]), int(rows["offset"][-1])
        found = await self._database.rows(DATA, self._entry.attempt.bytes, first, last)
        if not found:
            raise Absent(self.where, self._stream)
        raw, row = b"".join(data for (data,) in found), row_from(self._table, first)
        start, checksums = int(rows["position"][0]), self._checksums[row : row + len(rows)]
        try:
            check_stored(raw, rows, checksums, window_position=start, where=self.where)
        except Corrupt as damage:
            raise damage.within(self.where, stream=self._stream) from damage
        return raw
