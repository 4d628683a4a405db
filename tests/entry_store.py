"""A store of ledgers with entries, in memory, and lies that a store may tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from offload import LedgerOffloader, Source, SourceStream, StreamReader, StreamReport, TryAgain, sync
from offload.contracts.entries import EntryLedger, EntryRun, EntrySizes
from offload.entries.ledger import EntryLedgerStream


@dataclass
class Ledger:
    """The entries of one ledger, and their times. They are changed in place."""

    ledger_id: int
    entries: list[bytes] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    is_sealed: bool = False
    is_gone: bool = False
    first_entry: int = 0

    def add(self, *entries: bytes, timestamp_ms: int = 1000) -> Ledger:
        """Append entries."""
        self.entries += entries
        self.timestamps_ms += [timestamp_ms + rank for rank in range(len(entries))]
        return self

    def seal(self) -> Ledger:
        """End the ledger."""
        self.is_sealed = True
        return self


class Listed(EntryLedger):
    """A ledger as it was listed. `lies` replace its facts, or what it returns."""

    def __init__(self, ledger: Ledger, *, has_sizes: bool = False, **lies: Any) -> None:
        self.ledger, self.lies, self.has_sizes = ledger, lies, has_sizes
        self.count = len(ledger.entries)
        self.was_sealed, self.began = ledger.is_sealed, ledger.first_entry
        self.reads = list[tuple[int, int]]()
        self.closed = 0

    def fact(self, name: str, truth: Any) -> Any:
        """Return a lie, if there is one."""
        return self.lies.get(name, truth)

    @property
    def ledger_id(self) -> int:
        return int(self.fact("ledger_id", self.ledger.ledger_id))

    @property
    def last_entry(self) -> int:
        return int(self.fact("last_entry", self.count - 1))

    @property
    def length(self) -> int | None:
        length: int | None = self.fact("length", sum(map(len, self.ledger.entries[: self.count])))
        return length

    @property
    def is_sealed(self) -> bool:
        return bool(self.fact("is_sealed", self.was_sealed))

    @property
    def first_offset(self) -> int | None:
        offset: int | None = self.fact("first_offset", None)
        return offset

    @property
    def first_entry(self) -> int:
        return int(self.fact("first_entry", self.began))

    @property
    def leader_epoch(self) -> int | None:
        epoch: int | None = self.fact("leader_epoch", None)
        return epoch

    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        if self.ledger.is_gone:
            raise TryAgain(f"ledger {self.ledger_id} is gone")
        assert first >= self.first_entry, "no deleted entry is asked for"
        self.reads.append((first, last))
        stop, size = first, 0
        while stop <= min(last, self.count - 1) and size < size_bytes:
            size += len(self.ledger.entries[stop])
            stop += 1
        times = np.array(self.ledger.timestamps_ms[first:stop], np.int64)
        run = EntryRun.of(self.ledger.entries[first:stop], first=first, timestamps_ms=times)
        return self.lies["run"](run) if "run" in self.lies else run

    async def sizes(self, first: int, last: int) -> EntrySizes | None:
        if not self.has_sizes:
            return None
        sizes = np.array([len(entry) for entry in self.ledger.entries[first : last + 1]], np.uint64)
        times = np.array(self.ledger.timestamps_ms[first : last + 1], np.int64)
        found = EntrySizes(first=first, sizes=sizes, timestamps_ms=times)
        return self.lies["sizes"](found) if "sizes" in self.lies else found

    async def aclose(self) -> None:
        self.closed += 1


@dataclass
class EntryStore(Source):
    """One stream of ledgers, as a source. `lies` are told of the ledgers with these ids."""

    ledgers: list[Ledger] = field(default_factory=list)
    lies: dict[int, dict[str, Any]] = field(default_factory=dict)
    has_sizes: bool = False
    first_offset: int = 0
    tier: LedgerOffloader | None = None
    how: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `EntryLedgerStream`."""
    listed: list[Listed] = field(default_factory=list)
    url = "memory://entries"
    notes = ()

    def __post_init__(self) -> None:
        self.stream_of_this_process = self._fresh()

    def begin(self, ledger_id: int, *entries: bytes) -> Ledger:
        """Seal the last ledger, and begin another one."""
        if self.ledgers:
            self.ledgers[-1].seal()
        self.ledgers.append(Ledger(ledger_id).add(*entries))
        return self.ledgers[-1]

    def restart(self) -> None:
        """Forget what the process remembers."""
        self.stream_of_this_process = self._fresh()

    async def list_ledgers(self) -> Sequence[Listed]:
        """Return the ledgers as they are now."""
        self.listed = [
            Listed(each, has_sizes=self.has_sizes, **self.lies.get(each.ledger_id, {}))
            for each in self.ledgers
        ]
        return self.listed

    async def streams(self) -> Sequence[SourceStream]:
        return [self.stream_of_this_process]

    def _fresh(self) -> EntryLedgerStream:
        return EntryLedgerStream(
            "orders", self.list_ledgers, first_offset=self.first_offset, tier=self.tier, **self.how
        )


def with_run(**changes: Any) -> dict[str, Any]:
    """Return a lie: runs with these fields changed."""
    return {"run": lambda run: replace(run, **{name: change(run) for name, change in changes.items()})}


async def synced(store: EntryStore, tier: LedgerOffloader) -> StreamReport:
    """Sync once, and return the report."""
    (report,) = [report async for report in sync(store, tier)]
    return report


async def bodies(tier: LedgerOffloader, offset: int | None = None) -> list[bytes]:
    """Return every record of the tier."""
    reader = await StreamReader.open(tier, "orders")
    start = reader.manifest.first_offset if offset is None else offset
    return [body async for batch in reader.messages(start) for body in batch.bodies]
