"""Choices of chunks for tests: wanted offsets, answered early or late, and with or without a wait."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from offload.contracts.row_choice import RowChoice, Wanted
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries, Entry


class Offsets(RowChoice):
    """The chunks that begin at these offsets. A record is a chunk.

    If it is `hasty`, it answers as much as it can from the entries alone. Each question waits for `turns` of
    the loop.
    """

    def __init__(self, wanted: Collection[int], *, hasty: bool = True, turns: int = 0) -> None:
        self.wanted, self.hasty, self.turns = {*wanted}, hasty, turns
        self.asked: list[range] = []
        """The offsets of the rows that it was asked about."""

    async def of_entries(self, entries: Entries) -> npt.NDArray[np.uint8]:
        await self._wait()
        return np.array([self._share(entry) for entry in entries], np.uint8)

    async def of_rows(self, entry: Entry, rows: ChunkTable) -> npt.NDArray[np.bool_]:
        await self._wait()
        offsets = rows["offset"].tolist()
        assert all(entry.first_offset <= offset < entry.next_offset for offset in offsets)
        self.asked.append(range(offsets[0], offsets[-1] + 1))
        return np.array([offset in self.wanted for offset in offsets], np.bool_)

    def _share(self, entry: np.void) -> Wanted:
        held = {*range(int(entry["first_offset"]), int(entry["first_offset"] + entry["records"]))}
        if not self.hasty or 0 < len(held & self.wanted) < len(held):
            return Wanted.SOME
        return Wanted.ALL if held & self.wanted else Wanted.NONE

    async def _wait(self) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)
