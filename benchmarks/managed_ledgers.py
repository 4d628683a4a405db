"""Many managed ledgers in one process, most of them idle: what each costs.

    python benchmarks/managed_ledgers.py [--ledgers 10000] [--active 100] [--seconds 60] [--folders] [--json]

One process with one `ManagedLedgers` opens all ledgers over a tier in memory. Each has a sealed ledger,
which is on the tier, and its local copy. It measures, when everything is at rest:

    memory      the growth of the process's resident memory, for each ledger, logs included
    idle        requests to the store, and CPU, in so many seconds without any call
    beside      the same while `--active` ledgers append and seal once a second

With `--folders`, the logs are folders on this disk. Otherwise they are in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import machine

from offload import FolderLog, LedgerPolicy, ManagedLedgers, ObjectStoreOffloader
from offload.contracts.log import LedgerLog
from offload.log.memory_log import MemoryLog
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore

PAGE_SIZE_BYTES = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Parse arguments, open the ledgers, print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--active", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--folders", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = machine.description() | asyncio.run(_measured(arguments, Path(folder)))
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    print("\n".join(f"{name}: {value}" for name, value in found.items()))


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_SIZE_BYTES


def cpu_seconds() -> float:
    """Return the CPU time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def _measured(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    store = FaultyStore(MemoryStore())
    policy = LedgerPolicy(roll_seconds=None)

    async def log_of(number: int) -> LedgerLog:
        name = f"stream-{number:06}"
        return await FolderLog.open(folder / name) if arguments.folders else MemoryLog(name)

    async with ManagedLedgers(ObjectStoreOffloader(store), policy=policy) as ledgers:
        before, began = resident_bytes(), time.monotonic()
        opened = []
        for number in range(arguments.ledgers):
            ledger = await ledgers.open(await log_of(number))
            await ledger.append([b"x" * 100])
            await ledger.roll()
            opened.append(ledger)
        while any(_end_on_tier(ledger) == 0 for ledger in opened):  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.5)
        filled_seconds = time.monotonic() - began
        stored = store.inner
        assert isinstance(stored, MemoryStore)
        objects_size_bytes = sum(map(len, stored.objects.values()))
        store.calls.clear()
        grown = resident_bytes() - before - objects_size_bytes
        found: dict[str, Any] = {
            "ledgers": arguments.ledgers,
            "logs": "folders" if arguments.folders else "memory",
            "seconds to open, append, seal and offload all": round(filled_seconds, 1),
            "memory, MiB, without the objects": round(grown / 2**20, 1),
            "memory for each ledger, KiB": round(grown / arguments.ledgers / 1024, 1),
        }
        found |= await _watched("idle", store, arguments.seconds)
        work = [asyncio.create_task(_active(ledger)) for ledger in opened[: arguments.active]]
        found |= await _watched(f"with {arguments.active} active", store, arguments.seconds)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    return found


def _end_on_tier(ledger: Any) -> int:
    manifest = ledger._copy.manifest
    return 0 if manifest is None else int(manifest.next_offset)


async def _active(ledger: Any) -> None:
    while True:
        await ledger.append([b"y" * 1000])
        await ledger.roll()
        await asyncio.sleep(1)


async def _watched(name: str, store: FaultyStore, seconds: float) -> dict[str, Any]:
    store.calls.clear()
    before = cpu_seconds()
    await asyncio.sleep(seconds)
    return {
        f"{name}: requests in {seconds:.0f} s": len(store.calls),
        f"{name}: CPU, % of one core": round(100 * (cpu_seconds() - before) / seconds, 2),
    }


if __name__ == "__main__":
    main()
