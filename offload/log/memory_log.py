"""A log in memory: the whole contract of `LedgerLog` except durability. For tests and for trying things.

Logs over one `MemoryDisk` are one process after another: what was appended is there when the next one opens
the same stream. Every append makes one chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from offload.contracts.ledger import ReadHandle
from offload.contracts.log import LedgerLog, LocalLedger
from offload.formats.chunk_writer import build_chunk
from offload.ground.errors import Misuse, NotOffloaded
from offload.log.memory_handle import MemoryHandle

__all__ = ["MemoryDisk", "MemoryLog"]


@dataclass(slots=True)
class _Ledger:
    """A ledger, and its chunks."""

    facts: LocalLedger
    chunks: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class MemoryDisk:
    """The ledgers and notes of one stream, which outlive the process."""

    ledgers: list[_Ledger] = field(default_factory=list)
    notes: dict[str, bytes] = field(default_factory=dict)
    epoch: int = 0


class MemoryLog(LedgerLog):
    """A log of the ledgers on `disk`. Opening one raises the epoch, as a new leader does."""

    def __init__(self, name: str, *, disk: MemoryDisk | None = None) -> None:
        self._name, self._disk = name, disk or MemoryDisk()
        self._is_closed = False
        if not self._disk.ledgers:
            self._disk.ledgers.append(_fresh(0))
        self._disk.epoch += 1
        self._epoch = self._disk.epoch

    @property
    def name(self) -> str:
        """The name that was given."""
        return self._name

    @property
    def where(self) -> str:
        """`memory` and the name."""
        return f"memory of {self._name!r}"

    @property
    def ledgers(self) -> Sequence[LocalLedger]:
        """See `LedgerLog.ledgers`."""
        return [ledger.facts for ledger in self._disk.ledgers]

    @property
    def committed_offset(self) -> int:
        """The end: an append is there when it returns."""
        return self._disk.ledgers[-1].facts.next_offset

    @property
    def epoch(self) -> int:
        """The number of times that the disk was opened."""
        return self._epoch

    async def append(self, records: Sequence[bytes], *, timestamp_ms: int) -> int:
        """See `LedgerLog.append`."""
        self._refuse_if_over()
        if not records:
            raise Misuse("an append has at least one record")
        ledger = self._disk.ledgers[-1]
        offset = ledger.facts.next_offset
        chunk = build_chunk(records, offset=offset, timestamp_ms=timestamp_ms, epoch=self._epoch)
        ledger.chunks.append(chunk)
        ledger.facts = replace(
            ledger.facts,
            next_offset=offset + len(records),
            size_bytes=ledger.facts.size_bytes + len(chunk),
        )
        return offset

    async def roll(self, *, now_ms: int) -> LocalLedger | None:
        """See `LedgerLog.roll`."""
        self._refuse_if_over()
        ledger = self._disk.ledgers[-1]
        if not ledger.facts.records:
            return None
        ledger.facts = replace(ledger.facts, closed_ms=now_ms)
        self._disk.ledgers.append(_fresh(ledger.facts.next_offset))
        return ledger.facts

    async def open_ledger(self, ledger_id: int) -> ReadHandle:
        """See `LedgerLog.open_ledger`."""
        self._refuse_if_over()
        for ledger in self._disk.ledgers:
            if ledger.facts.ledger_id == ledger_id and ledger.chunks:
                return MemoryHandle(
                    ledger.chunks, ledger_id=ledger_id, where=f"{self.where}, ledger {ledger_id}"
                )
        raise NotOffloaded(f"{self.where} has no records of ledger {ledger_id}")

    async def delete(self, ledger_id: int) -> None:
        """See `LedgerLog.delete`."""
        self._refuse_if_over()
        check_deletion(self.ledgers, ledger_id, where=self.where)
        if self._disk.ledgers[0].facts.ledger_id == ledger_id:
            del self._disk.ledgers[0]

    async def begin(self, offset: int, *, epoch: int = 0) -> None:
        """See `LedgerLog.begin`."""
        self._refuse_if_over()
        check_begin(self.ledgers, offset, where=self.where)
        self._disk.ledgers[:] = [_fresh(offset)]
        self._epoch = self._disk.epoch = max(self._epoch, epoch)

    async def load_note(self, name: str) -> bytes | None:
        """See `LedgerLog.load_note`."""
        self._refuse_if_over()
        return self._disk.notes.get(name)

    async def save_note(self, name: str, data: bytes) -> None:
        """See `LedgerLog.save_note`."""
        self._refuse_if_over()
        self._disk.notes[name] = data

    async def destroy(self) -> None:
        """See `LedgerLog.destroy`."""
        self._is_closed = True
        self._disk.ledgers[:], self._disk.epoch = [], 0
        self._disk.notes.clear()

    async def aclose(self) -> None:
        """See `LedgerLog.aclose`."""
        self._is_closed = True

    def _refuse_if_over(self) -> None:
        # An epoch that was raised means that another process opened the disk. A real log has a lock.
        if self._is_closed or self._epoch != self._disk.epoch:
            raise Misuse(f"{self.where} was closed, or opened again since")


def check_deletion(ledgers: Sequence[LocalLedger], ledger_id: int, *, where: str) -> None:
    """Raise `Misuse` if this ledger is open, or not the oldest. One that is gone may be deleted again."""
    rank = next((n for n, each in enumerate(ledgers) if each.ledger_id == ledger_id), None)
    if rank is None:
        return
    if not ledgers[rank].is_sealed:
        raise Misuse(f"{where}: ledger {ledger_id} is open: roll the log before you delete it")
    if rank:
        raise Misuse(f"{where}: ledger {ledger_id} is not the oldest: {ledgers[0].ledger_id} is")


def check_begin(ledgers: Sequence[LocalLedger], offset: int, *, where: str) -> None:
    """Raise `Misuse` if the log has records, or ends behind this offset."""
    if len(ledgers) > 1 or ledgers[0].records or offset < ledgers[0].next_offset:
        has = f"offsets [{ledgers[0].first_offset}, {ledgers[-1].next_offset})"
        raise Misuse(f"{where} has {has}: it cannot begin at offset {offset}")


def _fresh(offset: int) -> _Ledger:
    return _Ledger(LocalLedger(ledger_id=offset, first_offset=offset, next_offset=offset, size_bytes=0))
