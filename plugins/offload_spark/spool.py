"""The chunks that one task of a write has to upload, in a local file until they are read.

Spark decides how many rows a task gets, so they are not held in memory. If the system allows it, the file has
no name from the start, and disappears with the process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from tempfile import TemporaryFile
from typing import Final

import numpy as np

from offload.contracts.ledger import ReadHandle
from offload.formats.chunk import scan
from offload.ground.errors import Corrupt
from offload.model.chunk_table import ChunkTable

WHERE: Final = "rows of a task"


class Spool(ReadHandle):
    """A ledger that is written first and read later. Before the read it gets a chunk and its ledger id."""

    __slots__ = ("_file", "_ledger_id", "_size_bytes", "_tables")

    def __init__(self) -> None:
        self._file = TemporaryFile(prefix="offload-spark-")  # noqa: SIM115 - closed by `close`
        self._size_bytes = self._ledger_id = 0
        self._tables: list[ChunkTable] = []

    def add(self, chunks: Iterable[bytes]) -> None:
        """Append these chunks."""
        data = b"".join(chunks)
        if data:
            self._tables.append(scan(data, first_position=self._size_bytes, where=WHERE))
            self._file.write(data)
            self._size_bytes += len(data)

    @property
    def is_empty(self) -> bool:
        """True if no chunk was added."""
        return not self._tables

    @property
    def ledger_id(self) -> int:
        """The id of the ledger that this is a part of."""
        return self._ledger_id

    @ledger_id.setter
    def ledger_id(self, ledger_id: int) -> None:
        self._ledger_id = ledger_id

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return int(self._tables[0]["offset"][0])

    @property
    def next_offset(self) -> int:
        """First offset after the last record."""
        last = self._tables[-1][-1]
        return int(last["offset"]) + int(last["records"])

    @property
    def where(self) -> str:
        """The name of the rows in messages."""
        return WHERE

    async def table(self) -> ChunkTable:
        """Return the table of all chunks, as `ReadHandle.table` says."""
        self._file.flush()
        if len(self._tables) > 1:
            self._tables = [np.concatenate(self._tables)]
        return self._tables[0]

    async def read(self, rows: ChunkTable) -> bytes:
        """Return the bytes of these chunks, as `ReadHandle.read` says."""
        size_bytes, position = int(rows["size_bytes"].sum()), int(rows["position"][0])
        data = await asyncio.to_thread(os.pread, self._file.fileno(), size_bytes, position)
        if len(data) != size_bytes:
            raise Corrupt("file size", WHERE, position=position, expected=size_bytes, found=len(data))
        return data

    def close(self) -> None:
        """Close the file, which deletes it."""
        self._file.close()
