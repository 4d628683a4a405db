"""A small store of ledgers on disk, which hands them over to a tier and reads entries from both.

It stands for BookKeeper, and has its terms: a ledger has an id, entries 0, 1, 2 and so on, and is sealed at
its end. It has one process, one stream and one copy of each entry.

    0000000003.entries   for each entry: HEAD, and its bytes
    0000000003.sealed    the ledger takes no more entries
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from offload import (
    AtOffset,
    EntryLedger,
    EntryLedgerStream,
    EntryRun,
    LedgerOffloader,
    NotOffloaded,
    OffloadError,
    Source,
    SourceStream,
    StreamReader,
    TryAgain,
    open_tier,
    sync,
)
from offload.contracts.entries import EntrySizes
from offload.entries.offsets import first_offset_of_ledger

HEAD = struct.Struct(">IqI")  # size, time in ms, CRC-32 of both and of the entry
ENTRIES_IN_LEDGER = 20
STREAM = "orders"


@dataclass
class Ledger:
    """One ledger of the store: its file, and where its entries are."""

    path: Path
    is_sealed: bool
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)

    @property
    def ledger_id(self) -> int:
        return int(self.path.stem)

    @property
    def size_bytes(self) -> int:
        return self.ends[-1] if self.ends else 0

    def recover(self) -> None:
        """Find the entries, and cut off what a crash left behind the last whole one."""
        data = self.path.read_bytes()
        while len(data) >= self.size_bytes + HEAD.size:
            start = self.size_bytes + HEAD.size
            size, time_ms, checksum = HEAD.unpack_from(data, start - HEAD.size)
            if checksum != checksum_of(size, time_ms, data[start : start + size]):
                break
            self.add(size, time_ms)
        os.truncate(self.path, self.size_bytes)

    def add(self, size_bytes: int, time_ms: int) -> None:
        self.starts.append(self.size_bytes + HEAD.size)
        self.ends.append(self.starts[-1] + size_bytes)
        self.times_ms.append(time_ms)


class LedgerStore:
    """The ledgers of one stream in a folder. The last one is open."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ledgers = [
            Ledger(path, path.with_suffix(".sealed").exists()) for path in sorted(folder.glob("*.entries"))
        ]
        for ledger in self.ledgers:
            ledger.recover()
        if not self.ledgers or self.ledgers[-1].is_sealed:
            self._begin()

    def append(self, entry: bytes, time_ms: int) -> tuple[int, int]:
        """Append one entry. Return its ledger and its id when it is on disk."""
        ledger = self.ledgers[-1]
        with ledger.path.open("r+b") as file:
            file.seek(ledger.size_bytes)
            file.write(HEAD.pack(len(entry), time_ms, checksum_of(len(entry), time_ms, entry)) + entry)
            file.flush()
            os.fdatasync(file.fileno())
        ledger.add(len(entry), time_ms)
        return ledger.ledger_id, len(ledger.ends) - 1

    def roll(self) -> None:
        """Seal the open ledger, and begin the next one."""
        self._create(self.ledgers[-1].path.with_suffix(".sealed"))
        self.ledgers[-1].is_sealed = True
        self._begin()

    def delete(self, ledger: Ledger) -> None:
        """Delete the oldest ledger."""
        ledger.path.unlink()
        ledger.path.with_suffix(".sealed").unlink()
        self.ledgers.remove(ledger)

    def _begin(self) -> None:
        ledger_id = self.ledgers[-1].ledger_id + 1 if self.ledgers else 0
        path = self.folder / f"{ledger_id:010}.entries"
        self._create(path)
        self.ledgers.append(Ledger(path, is_sealed=False))

    def _create(self, path: Path) -> None:
        path.touch()
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


class StoredLedger(EntryLedger):
    """A ledger as the framework sees it. Entries that come later are not part of it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._count, self._sealed = ledger, len(ledger.ends), ledger.is_sealed
        self._starts = np.array(ledger.starts, np.uint64)
        self._ends = np.array(ledger.ends, np.uint64)
        self._times_ms = np.array(ledger.times_ms, np.int64)

    @property
    def ledger_id(self) -> int:
        return self._ledger.ledger_id

    @property
    def last_entry(self) -> int:
        return self._count - 1

    @property
    def length(self) -> int:
        return int((self._ends - self._starts).sum())

    @property
    def is_sealed(self) -> bool:
        return self._sealed

    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        """Return a piece of the file as it is: the heads lie between the entries."""
        begin = int(self._starts[first])
        # Only the entries count for `size_bytes`, and not the heads between them.
        sums = np.cumsum(self._ends[first : last + 1] - self._starts[first : last + 1])
        stop = first + min(int(np.searchsorted(sums, np.uint64(size_bytes))) + 1, last + 1 - first)
        data = await asyncio.to_thread(self._read, begin, int(self._ends[stop - 1]))
        origin = np.uint64(begin)
        return EntryRun(
            first=first,
            data=data,
            starts=self._starts[first:stop] - origin,
            ends=self._ends[first:stop] - origin,
            timestamps_ms=self._times_ms[first:stop],
        )

    async def sizes(self, first: int, last: int) -> EntrySizes:
        rows = slice(first, last + 1)
        return EntrySizes(
            first=first, sizes=self._ends[rows] - self._starts[rows], timestamps_ms=self._times_ms[rows]
        )

    def _read(self, start: int, stop: int) -> bytes:
        try:
            with self._ledger.path.open("rb") as file:
                return os.pread(file.fileno(), stop - start, start)
        except FileNotFoundError as error:
            raise TryAgain(f"{self._ledger.path} was deleted") from error


class StoreSource(Source):
    """The store as a source of one stream."""

    notes = ()

    def __init__(self, store: LedgerStore, tier: LedgerOffloader) -> None:
        self._folder = store.folder

        async def ledgers() -> Sequence[EntryLedger]:
            return [StoredLedger(ledger) for ledger in store.ledgers]

        self._stream = EntryLedgerStream(STREAM, ledgers, tier=tier)

    @property
    def url(self) -> str:
        return f"ledgers://{self._folder}"

    async def streams(self) -> Sequence[SourceStream]:
        return [self._stream]


async def offload(store: LedgerStore, source: StoreSource, tier: LedgerOffloader) -> None:
    """Copy what the tier lacks, and delete the sealed ledgers that it has whole."""
    async for report in sync(source, tier):
        if report.error is not None:
            raise report.error
    view = await tier.view(STREAM)
    while store.ledgers[0].is_sealed:
        ledger = store.ledgers[0]
        if (
            await first_offset_of_ledger(view, ledger.ledger_id) + len(ledger.ends)
            > view.committed.next_offset
        ):
            return
        store.delete(ledger)


async def read_entry(store: LedgerStore, tier: LedgerOffloader, ledger_id: int, entry_id: int) -> bytes:
    """Return one entry, from the disk or from the tier. Raises `NotOffloaded` if neither has it."""
    none = NotOffloaded(f"no entry {ledger_id}:{entry_id}")
    if entry_id < 0:
        raise none
    for ledger in store.ledgers:
        if ledger.ledger_id == ledger_id:
            if entry_id >= len(ledger.ends):
                raise none
            run = await StoredLedger(ledger).entries(entry_id, entry_id, size_bytes=1)
            return bytes(run.data)
    try:
        view = await tier.view(STREAM)
        offset = entry_id + await first_offset_of_ledger(view, ledger_id)
    except NotOffloaded as error:
        raise none from error
    # Behind the ledger, the same sum is the offset of an entry of a later one.
    found = await view.find(offset)
    if found is None or found.ledger_id != ledger_id:
        raise none
    reader = await StreamReader.open(tier, STREAM)
    async for batch in reader.messages(await reader.offset_of(AtOffset(offset))):
        return batch.bodies[offset - batch.offset]
    raise none


def checksum_of(size_bytes: int, time_ms: int, entry: bytes) -> int:
    return zlib.crc32(entry, zlib.crc32(HEAD.pack(size_bytes, time_ms, 0)))


async def main(command: str, folder: str, tier_url: str, *entry: str) -> None:
    store = LedgerStore(Path(folder))
    async with open_tier(tier_url) as tier:
        if command == "read":
            print((await read_entry(store, tier, *map(int, entry))).decode())
            return
        source = StoreSource(store, tier)
        while line := (await asyncio.to_thread(sys.stdin.buffer.readline)).rstrip(b"\n"):
            ledger_id, entry_id = store.append(line, time.time_ns() // 1_000_000)
            print(f"{ledger_id}:{entry_id} {line.decode()}", flush=True)
            if entry_id + 1 >= ENTRIES_IN_LEDGER:
                store.roll()
                await offload(store, source, tier)


if __name__ == "__main__":
    if (sys.argv[1:2], len(sys.argv)) not in ((["write"], 4), (["read"], 6)):
        sys.exit(f"usage: {sys.argv[0]} write FOLDER TIER | read FOLDER TIER LEDGER ENTRY")
    try:
        asyncio.run(main(*sys.argv[1:]))
    except OffloadError as error:
        sys.exit(str(error))
