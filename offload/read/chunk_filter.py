"""The filter of chunks that RabbitMQ's publishers set with `x-stream-filter-value`, for readers of a tier.

A chunk has a bloom filter of the values of its messages, in its own bytes: neither the manifest nor the index
of a fragment has it. So chunks are fetched and checked, and those that cannot have a wanted message are then
left out, before a message is decoded.

Invariant: no wanted message is left out. A chunk that is delivered may have other messages too, because it
has messages of several values, or because its filter matches by chance: RabbitMQ's clients compare the value
of each message, and so must the consumer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.contracts.row_choice import ChunkChoice, Wanted
from offload.contracts.store import Buffer
from offload.formats import bloom
from offload.formats.chunk import CHUNK_HEADER, headers_at
from offload.ground.errors import Misuse
from offload.model.chunk_table import ChunkTable, ChunkType
from offload.model.entry import Entries, Entry
from offload.read.batches import Window
from offload.read.windows import windows_of_mask

__all__ = ["ChunkFilter"]


class ChunkFilter(ChunkChoice):
    """The chunks that may have a message with one of these filter values. It counts them.

    With `match_unfiltered`, also those that may have a message without a value, as in RabbitMQ's clients.
    """

    def __init__(self, values: Iterable[str], *, match_unfiltered: bool = False) -> None:
        """Raises `Misuse` if there is no value, or an empty one: an empty value is none in RabbitMQ.

        Also for a value that no bytes can be: one with half of a surrogate pair.
        """
        try:
            wanted: list[bytes | None] = [value.encode("utf-8", "surrogateescape") for value in values]
        except UnicodeEncodeError as error:
            raise Misuse(f"{error.object!r} is no filter value: it has half of a surrogate pair") from error
        if not wanted or not all(wanted):
            raise Misuse(
                "a filter has one value or more, and none is empty: for messages without one there is "
                "match_unfiltered"
            )
        self._values: Final = [*wanted, None] if match_unfiltered else wanted
        self.read = self.skipped = 0
        """How many chunks with messages were delivered and left out."""

    async def of_entries(self, entries: Entries) -> npt.NDArray[np.uint8]:
        """Want all of the fragments that have messages: their entries do not show more."""
        return np.where(entries["messages"] > 0, Wanted.ALL, Wanted.NONE).astype(np.uint8)

    async def of_rows(self, entry: Entry, rows: ChunkTable) -> npt.NDArray[np.bool_]:
        """Want all chunks: a table does not show more."""
        return np.ones(len(rows), np.bool_)

    def of_chunks(self, rows: ChunkTable, data: Buffer) -> npt.NDArray[np.bool_]:
        """Want the chunks whose own filter matches one of the values."""
        starts = rows["position"] - rows["position"][0]
        view, size = memoryview(data), CHUNK_HEADER.size_bytes
        filter_sizes = headers_at(view, starts)["filter_size_bytes"].tolist()
        found = [
            self._matches(bytes(view[start + size : start + size + filter_size]))
            for start, filter_size in zip(starts.tolist(), filter_sizes, strict=True)
        ]
        has_messages = rows["type"] == ChunkType.USER
        wanted: npt.NDArray[np.bool_] = np.array(found, np.bool_) & has_messages
        self.read += int(wanted.sum())
        self.skipped += int(has_messages.sum() - wanted.sum())
        return wanted

    def windows_in(self, window: Window) -> list[Window]:
        """Return the wanted chunks of a window, as windows of the same bytes, for who reads without this."""
        return windows_of_mask(window, self.of_chunks(window.rows, window.data))

    def __str__(self) -> str:
        """Return the counts as a text for people."""
        chunks = "1 chunk" if self.read == 1 else f"{self.read} chunks"
        return f"{chunks} read, {self.skipped} skipped by the filter"

    def _matches(self, filter_bytes: bytes) -> bool:
        return any(bloom.matches(filter_bytes, value) for value in self._values)
