"""The contract of a choice: which chunks of a stream a reader wants, before it fetches them.

    question      asked with                       what the reader has paid until then
    `of_entries`  entries of the manifest          nothing for these fragments
    `of_rows`     an entry and its chunk table     one request for the fragment's table
    `of_chunks`   the chunks themselves            their bytes. Only a `ChunkChoice` is asked

So a filter that knows its offsets or times answers the first question. An index that knows chunks answers it
too, and then the second one for few fragments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from offload.contracts.store import Buffer
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries, Entry

__all__ = ["ChunkChoice", "RowChoice", "Wanted"]


class Wanted(IntEnum):
    """How much of a fragment is wanted."""

    NONE = 0
    """Nothing. The fragment is never opened."""
    SOME = 1
    """Its chunk table decides."""
    ALL = 2


class RowChoice(ABC):
    """A choice among the chunks of one part of a stream.

    **Answers do not move.** Equal questions get equal answers: a reader asks again after damage, and after a
    trim or a compaction, which may have cut the same chunks into other fragments.
    **Questions may wait**, for example for an index. They continue if the wait of the reader's consumer is
    cancelled, and end when the reader is closed. Questions about later fragments may come before the chunks
    of earlier ones are delivered.
    **An error ends the reading**, after all wanted chunks before the fragment or run that it is about.
    """

    __slots__ = ()

    @abstractmethod
    async def of_entries(self, entries: Entries) -> npt.NDArray[np.uint8]:
        """Return a `Wanted` for each of these fragments, a run of neighbours."""

    @abstractmethod
    async def of_rows(self, entry: Entry, rows: ChunkTable) -> npt.NDArray[np.bool_]:
        """Return True for each wanted chunk of `rows`: those of a fragment that lie in the reader's range.

        Asked only about a fragment of which `of_entries` wants `SOME`.
        """


class ChunkChoice(RowChoice):
    """A choice that needs the bytes of chunks, which no entry and no table shows.

    Damage in a chunk that was fetched is reported: its bytes do not show whether it is wanted.
    """

    __slots__ = ()

    @abstractmethod
    def of_chunks(self, rows: ChunkTable, data: Buffer) -> npt.NDArray[np.bool_]:
        """Return True for each wanted chunk of `data`: the checked chunks of `rows`, back to back.

        Asked once about each chunk that the first two questions want, in order, when its turn has come.
        """
