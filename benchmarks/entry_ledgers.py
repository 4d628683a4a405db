"""Times a sync from `EntryLedger`s beside one from chunks in memory (`MemoryHandle`).

Both have the same entries in memory, and copy them to a new folder. The ledgers must be cut and encoded, with
and without `sizes`. Figures are medians of several rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np

from offload import EntryLedger, EntryLedgerStream, EntryRun, MemoryHandle, Snapshot, open_tier
from offload.contracts.entries import EntrySizes
from offload.copy.copier import StreamCopier
from offload.copy.next_part import PartOnTier

LEDGERS = 4


class Packed(EntryLedger):
    """A ledger whose entries lie in one buffer. Sizes vary by half of their mean."""

    is_sealed, ledger_id = True, 0

    def __init__(self, ledger_id: int, size_bytes: int, mean_bytes: int, *, has_sizes: bool) -> None:
        drawn = np.random.default_rng(ledger_id)
        self.ledger_id, self.has_sizes = ledger_id, has_sizes
        self.lengths = drawn.integers(mean_bytes // 2, mean_bytes * 3 // 2 + 1, size_bytes // mean_bytes)
        self.ends = np.cumsum(self.lengths, dtype=np.uint64)
        self.data = memoryview(drawn.bytes(int(self.ends[-1])))

    @property
    def last_entry(self) -> int:
        """The id of the last entry."""
        return len(self.ends) - 1

    @property
    def length(self) -> int:
        """The size of all entries."""
        return len(self.data)

    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        """Return a slice of the buffer."""
        start = int(self.ends[first - 1]) if first else 0
        stop = int(np.searchsorted(self.ends, np.uint64(start + size_bytes))) + 1
        ends = self.ends[first : min(stop, last + 1)]
        data = self.data[start : int(ends[-1])]
        return EntryRun.packed(data, ends - np.uint64(start), first=first, timestamps_ms=1)

    async def sizes(self, first: int, last: int) -> EntrySizes | None:
        """Return the sizes, if this store has them."""
        if not self.has_sizes:
            return None
        sizes = self.lengths[first : last + 1].astype(np.uint64)
        return EntrySizes(first=first, sizes=sizes, timestamps_ms=1)


async def copied(snapshot: Callable[[], Awaitable[Snapshot]], folder: Path) -> tuple[float, float]:
    """Copy a snapshot to a new tier. Return the seconds, and those of the processor."""
    began, used = time.perf_counter(), time.process_time()
    async with open_tier(str(folder)) as tier, await snapshot() as taken:
        copier = StreamCopier(part=PartOnTier.first(tier, "orders"))
        await copier.compare(taken, known_to_be_new=True)
        await copier.copy(taken, taken.next_offset)
    return time.perf_counter() - began, time.process_time() - used


async def measured(mean_bytes: int, size_bytes: int, rounds: int, folder: Path) -> None:
    """Print one row."""

    def stream(*, has_sizes: bool) -> EntryLedgerStream:
        async def ledgers() -> Sequence[EntryLedger]:
            return kept[has_sizes]

        return EntryLedgerStream("orders", ledgers)

    kept = {
        has_sizes: [Packed(n, size_bytes // LEDGERS, mean_bytes, has_sizes=has_sizes) for n in range(LEDGERS)]
        for has_sizes in (False, True)
    }
    taken = await stream(has_sizes=True).snapshot()
    handles = [MemoryHandle([bytes(await each.read(await each.table()))]) for each in taken.ledgers]

    async def from_memory() -> Snapshot:
        return Snapshot(ledgers=handles, first_offset=0, next_offset=taken.next_offset)

    jobs: dict[str, Callable[[], Awaitable[Snapshot]]] = {
        "MemoryHandle": from_memory,
        "EntryLedger": lambda: stream(has_sizes=False).snapshot(),
        "EntryLedger with sizes": lambda: stream(has_sizes=True).snapshot(),
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            passed = await copied(job, folder / "tier")
            shutil.rmtree(folder / "tier")
            if turn:  # the first round warms everything up
                seconds[name].append(passed)
    data = sum(each.length for each in kept[True])
    for name, each in seconds.items():
        rate, per_cpu = (data / 2**20 / statistics.median(column) for column in zip(*each, strict=True))
        print(
            f"{mean_bytes:,} bytes, {name}: {rate:,.0f} MiB/s, {per_cpu:,.0f} MiB per CPU second", flush=True
        )


def main() -> None:
    """Read the arguments, and print a row for each size of entries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mean-bytes", type=int, nargs="*", default=[100, 1_000, 100_000])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for mean_bytes in given.mean_bytes:
            asyncio.run(measured(mean_bytes, given.size_mib * 2**20, given.rounds, Path(folder)))


if __name__ == "__main__":
    main()
