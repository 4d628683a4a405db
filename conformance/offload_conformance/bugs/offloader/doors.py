"""Bugs of handles, and of the ways to open one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

from offload.contracts.ledger import ReadHandle
from offload.model.chunk_table import WINDOW_SIZE_BYTES, ChunkTable
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import CommittedStream
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.offloader.shared import Around, CodedHandles
from offload_conformance.bugs.registry import bug


class _Sharing(Around):
    offloader: ClosesWithTheHandle

    async def read(self, rows: ChunkTable) -> bytes:
        if self.offloader.is_closed:
            raise RuntimeError("the connection is closed")
        return await super().read(rows)

    async def aclose(self) -> None:
        self.offloader.is_closed = True


@bug("contract/handles_are_closed_alone")
class ClosesWithTheHandle(ObjectStoreOffloader):
    """Closes its connection with any handle that is closed.

    The handle got the connection, and cleans up everything that it got.
    """

    is_closed = False

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        handle = _Sharing.around(await super().read_offloaded(*args, **kwargs))
        handle.offloader = self  # type: ignore[attr-defined]
        return handle


@bug("contract/reads_are_verbatim_at_every_door")
class OpensByRow(ObjectStoreOffloader):
    """Opens the fragment in the same row of the first view that it made.

    A list of open files is kept by index, and the rows of a view that is cut begin at 0 again.
    """

    def view_of(self, committed: CommittedStream) -> Any:
        view, known = super().view_of(committed), vars(self).setdefault("known", {})
        rows = known.setdefault(committed.version, entries_of_rows(committed.entries))
        own, opened = entries_of_rows(committed.entries), view.open

        async def by_row(entry: Entry) -> ReadHandle:
            return await opened(rows[own.index(entry)])

        shown = MagicMock(wraps=view)
        shown.open, shown.walk, shown.committed = by_row, view.walk, committed
        return shown


class _Growing(Around):
    asked = 0

    def windows(self, rows: ChunkTable, *, size_bytes: int = WINDOW_SIZE_BYTES) -> Iterator[ChunkTable]:
        _Growing.asked += 1
        return super().windows(rows, size_bytes=size_bytes * _Growing.asked)


@bug("contract/windows_are_the_same_at_every_call")
class WindowsGrowWithUse(CodedHandles):
    """Cuts the same rows into larger windows at each call.

    A reader that goes on is likely to want more.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _Growing.around(handle)


class _InSeconds(Around):
    async def modified_ms(self) -> int | None:
        return 1_700_000_000


@bug("contract/times_of_handles_are_in_milliseconds")
class ModifiedInSeconds(CodedHandles):
    """Returns the time of the last write in seconds.

    `st_mtime` is in seconds.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _InSeconds.around(handle)


class _Ahead(Around):
    hinted: bytes | None = None

    async def read_on(self, rows: ChunkTable, then: ChunkTable) -> bytes:
        found = bytes(await super().read(rows))
        self.hinted = bytes(await super().read(then[:1])) if len(then) else None
        return found

    async def read(self, rows: ChunkTable) -> bytes:
        hinted, self.hinted = self.hinted, None
        if hinted is not None and len(hinted) == int(rows["size_bytes"].sum()):
            return hinted
        return bytes(await super().read(rows))


@bug("contract/reads_may_come_in_any_order")
class ReadsWhatWasHinted(CodedHandles):
    """Returns the chunk that a reader said it would read next, for any chunk of that size.

    A reply that is kept for the next read, and compared by its length.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _Ahead.around(handle)
