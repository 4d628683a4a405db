"""A log as a source of streams, so that followers, syncs and readers of two sides serve it unchanged.

Invariants: what the log does not acknowledge is in no snapshot; a log whose ledgers contradict what it said
of them is `Corrupt`, and nothing of such a ledger is copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from contextlib import suppress
from typing import Final

from offload.contracts.ledger import ReadHandle
from offload.contracts.log import LedgerLog, LocalLedger
from offload.contracts.source import Snapshot, SourceStream
from offload.ground.errors import Corrupt, NotOffloaded, OffloadError, TryAgain
from offload.managed.rules import check_ledgers
from offload.model.chunk_table import ChunkTable
from offload.model.manifest import Manifest

__all__ = ["LogStream"]


BEHIND_LOOK_SECONDS: Final = 0.1
"""The time between two looks at a log that has not acknowledged all of its records."""


class LogStream(SourceStream):
    """The stream of a log. Call `wake` after each append and deletion."""

    __slots__ = ("_changed", "_end", "_log")

    def __init__(self, log: LedgerLog) -> None:
        self._log: Final = log
        self._end: OffloadError | None = None
        self._changed: asyncio.Event | None = None

    @property
    def name(self) -> str:
        """The name of the log."""
        return self._log.name

    async def mark(self) -> Hashable:
        """Return the range of the log."""
        self._refuse_if_over()
        return self._log.first_offset, self._log.committed_offset

    async def changed(self, mark: Hashable) -> bool:
        """See `SourceStream.changed`."""
        while await self.mark() == mark:
            if self._changed is None:
                self._changed = asyncio.Event()
            # A log may acknowledge records after the append has returned, and tells nobody.
            is_behind = self._log.committed_offset < self._log.next_offset
            with suppress(TimeoutError):
                async with asyncio.timeout(BEHIND_LOOK_SECONDS if is_behind else None):
                    await self._changed.wait()
        return True

    def wake(self) -> None:
        """Wake those who wait for a change."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None  # whoever waits next waits for the next change

    def end(self, error: OffloadError) -> None:
        """Raise this error for whoever reads the log, or waits for a change, from now on."""
        self._end = error
        self.wake()

    def _refuse_if_over(self) -> None:
        if self._end is not None:
            raise self._end.with_traceback(None)

    async def snapshot(self, since: Manifest | None = None) -> Snapshot:
        """Return the ledgers up to what the log acknowledges. Raises `Corrupt` if they are no run."""
        self._refuse_if_over()
        ledgers = self._log.ledgers
        check_ledgers(ledgers, where=self._log.where, stream=self.name)
        end = self._log.committed_offset
        handles: list[ReadHandle] = []
        try:
            for ledger in (each for each in ledgers if each.first_offset < min(each.next_offset, end)):
                handles.append(await self._opened(ledger, end))  # noqa: PERF401 - an error closes those before it
        except BaseException:
            for handle in handles:
                await handle.aclose()
            raise
        first = ledgers[0].first_offset
        return Snapshot(
            ledgers=handles,
            first_offset=first,
            next_offset=handles[-1].next_offset if handles else first,
            epoch=self._log.epoch,
            committed_offset=end,
        )

    async def _opened(self, ledger: LocalLedger, end: int) -> ReadHandle:
        """Return a handle of this ledger. Raises `Corrupt` if it has another range than the log said."""
        try:
            handle = await self._log.open_ledger(ledger.ledger_id)
        except NotOffloaded as gone:
            raise TryAgain(f"{self._log.where}: ledger {ledger.ledger_id} was deleted meanwhile") from gone
        found = handle.first_offset, handle.next_offset
        is_settled = ledger.is_sealed and ledger.next_offset <= end
        is_right = found[0] == ledger.first_offset and (
            found[1] == ledger.next_offset if is_settled else found[1] >= min(ledger.next_offset, end)
        )
        if not is_right:
            await handle.aclose()
            raise Corrupt(
                "range of a ledger",
                handle.where,
                expected=f"[{ledger.first_offset}, {ledger.next_offset})",
                found=f"[{found[0]}, {found[1]})",
                stream=self.name,
            )
        return _Stated(handle, ledger, stream=self.name) if is_settled else handle


class _Stated(ReadHandle):
    """A sealed ledger, whose table must have the size that the log stated."""

    __slots__ = ("_handle", "_ledger", "_stream")

    def __init__(self, handle: ReadHandle, ledger: LocalLedger, *, stream: str) -> None:
        self._handle, self._ledger, self._stream = handle, ledger, stream

    @property
    def ledger_id(self) -> int:
        return self._handle.ledger_id

    @property
    def first_offset(self) -> int:
        return self._handle.first_offset

    @property
    def next_offset(self) -> int:
        return self._handle.next_offset

    @property
    def where(self) -> str:
        return self._handle.where

    async def table(self) -> ChunkTable:
        table = await self._handle.table()
        size_bytes = int(table["size_bytes"].sum())
        if size_bytes != self._ledger.size_bytes:
            raise Corrupt(
                "size of a ledger",
                self.where,
                expected=f"{self._ledger.size_bytes} bytes, as the log says",
                found=f"{size_bytes} bytes of chunks",
                stream=self._stream,
            )
        return table

    async def read(self, rows: ChunkTable) -> bytes | memoryview:
        return await self._handle.read(rows)

    async def aclose(self) -> None:
        await self._handle.aclose()
