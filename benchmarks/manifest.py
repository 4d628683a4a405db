"""The cost of a growing manifest: commits, lookups and memory, up to the 16 million fragments of a petabyte.

    python benchmarks/manifest.py [--fragments 16000000] [--folder DIR] [--json]

The entries are made up. The real code handles them, on a folder: each commit is built, created, listed and
confirmed as for a real stream. Commits have 1,024 entries, and one entry around each power of ten. Roots
below the newest sixteen are removed from time to time, as the sweep does. Requests and bytes are counted at
the store. Opening and lookups begin with nothing cached, as in a new process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

from machine import processor
from offload_posix.store import PosixStore

from offload.commit.log import RootLog
from offload.commit.writer import Append, Claim, Prepare
from offload.formats.keys import StreamKeys
from offload.formats.root import encode_root
from offload.ground.env import Env
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.store.metrics import MeteredStore

STREAM = "stream"
KEYS = StreamKeys(STREAM)
WRITER, ATTEMPT = UUID(int=1), UUID(int=2)
RECORDS, SIZE_BYTES, TAIL_SIZE_BYTES = 500_000, 64 * 2**20, 25_000
FRAGMENTS_PER_LEDGER = 8
BATCH, SINGLES = 1024, 32
LOOKUPS = 200


@dataclass(frozen=True)
class Row:
    """The measurements at a number of fragments."""

    fragments: int
    root_bytes: int
    batch_commit_ms: float
    batch_commit_bytes_max: int
    single_commit_ms: float
    single_commit_bytes_max: int
    requests_per_single_commit: float
    open_ms: float
    find_gets_max: int
    find_ms: float
    since_gets_max: int
    manifest_mib: float


def main() -> None:
    """Parse arguments, grow the stream, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fragments", type=int, default=16_000_000)
    parser.add_argument("--folder", type=Path, default=None, help="folder for the data: needs 2 GiB")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="offload-benchmark-") as folder:
        rows = asyncio.run(Growth(Path(folder)).run(arguments.fragments))
    _report(rows, as_json=arguments.json)


class Growth:
    """One stream that grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MeteredStore(PosixStore(root=folder))
        self.log = RootLog(store=self.store, stream=STREAM, env=Env())
        self.times: list[float] = []
        self.bytes: list[int] = []

    async def run(self, fragments: int) -> list[Row]:
        """Grow to so many fragments. Measure at every power of ten from a thousand, and at the end."""
        claim = Claim(stream=STREAM, writer=WRITER, first_offset=0)
        manifest = await self._commit(claim, None)
        manifest = await self._commit(Prepare(writer=WRITER, attempts=[(ATTEMPT, 0)]), manifest)
        before_mib = _memory_mib()
        rows: list[Row] = []
        for stop in _stops(fragments):
            while manifest.fragments < stop:
                count = min(BATCH, stop - manifest.fragments)
                manifest = await self._append(manifest, count)
                if manifest.version % 128 == 0:
                    await self._drop_old_roots(manifest.version)
            rows.append(await self._measured(manifest, before_mib))
            print(f"{manifest.fragments} fragments, version {manifest.version}", flush=True)
            manifest = await self.log.load_newest() or manifest
        return rows

    async def _append(self, manifest: Manifest, count: int) -> Manifest:
        entries = list(_entries(manifest.fragments, count))
        return await self._commit(Append(writer=WRITER, entries=entries), manifest)

    async def _commit(self, change: Append | Claim | Prepare, base: Manifest | None) -> Manifest:
        bytes_before, begin = self.store.metrics.bytes_put, time.perf_counter()
        manifest = await self.log.commit(change, base=base, committer=WRITER)
        self.times.append(time.perf_counter() - begin)
        self.bytes.append(self.store.metrics.bytes_put - bytes_before)
        return manifest

    async def _drop_old_roots(self, version: int) -> None:
        roots = [row.key async for row in self.store.list(KEYS.roots)]
        await self.store.delete([key for key in roots if key < KEYS.root(version - 16)])

    async def _measured(self, manifest: Manifest, before_mib: float) -> Row:
        batch_ms = 1000 * statistics.median(self.times[-64:])
        batch_bytes = max(self.bytes)
        self.times, self.bytes = [], []
        requests = self.store.metrics.requests.total()
        for _ in range(SINGLES):
            manifest = await self._append(manifest, 1)
        requests = self.store.metrics.requests.total() - requests
        single_ms, single_bytes = 1000 * statistics.median(self.times), max(self.bytes)
        memory_mib = _memory_mib() - before_mib
        self.times, self.bytes = [], []
        begin = time.perf_counter()
        fresh = RootLog(store=self.store, stream=STREAM, env=Env())
        opened = await fresh.load_newest()
        open_ms = 1000 * (time.perf_counter() - begin)
        assert opened is not None
        assert opened.fragments == manifest.fragments
        find_gets, find_ms, since_gets = await self._lookups(opened)
        return Row(
            fragments=manifest.fragments,
            root_bytes=len(encode_root(opened)),
            batch_commit_ms=round(batch_ms, 2),
            batch_commit_bytes_max=batch_bytes,
            single_commit_ms=round(single_ms, 2),
            single_commit_bytes_max=single_bytes,
            requests_per_single_commit=requests / SINGLES,
            open_ms=round(open_ms, 2),
            find_gets_max=find_gets,
            find_ms=round(find_ms, 2),
            since_gets_max=since_gets,
            manifest_mib=round(memory_mib, 1),
        )

    async def _lookups(self, manifest: Manifest) -> tuple[int, float, int]:
        chance = random.Random(manifest.fragments)
        find_most, since_most, times = 0, 0, []
        for _ in range(LOOKUPS):
            number = chance.randrange(manifest.fragments)
            log = RootLog(store=self.store, stream=STREAM, env=Env())  # with a cache of its own
            gets, begin = self.store.metrics.requests["get"], time.perf_counter()
            found = await log.tree(manifest).find(number * RECORDS + chance.randrange(RECORDS))
            times.append(time.perf_counter() - begin)
            find_most = max(find_most, self.store.metrics.requests["get"] - gets)
            assert found is not None
            assert found.first_offset == number * RECORDS
            log = RootLog(store=self.store, stream=STREAM, env=Env())
            gets = self.store.metrics.requests["get"]
            late = await log.tree(manifest).first_since(found.last_timestamp_ms)
            since_most = max(since_most, self.store.metrics.requests["get"] - gets)
            assert late == found
        return find_most, 1000 * statistics.median(times), since_most


def _stops(fragments: int) -> Iterator[int]:
    power = 1000
    while power < fragments:
        yield power
        power *= 10
    yield fragments


def _entries(start: int, count: int) -> Iterator[Entry]:
    for number in range(start, start + count):
        yield Entry(
            first_offset=number * RECORDS,
            records=RECORDS,
            messages=RECORDS,
            first_timestamp_ms=number * 1000,
            last_timestamp_ms=number * 1000 + 999,
            data_size_bytes=SIZE_BYTES,
            stored_size_bytes=SIZE_BYTES + TAIL_SIZE_BYTES,
            ledger_id=number // FRAGMENTS_PER_LEDGER,
            attempt=ATTEMPT,
            checksum=number % 2**32,
            tail_size_bytes=TAIL_SIZE_BYTES,
        )


def _memory_mib() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def _report(rows: list[Row], *, as_json: bool) -> None:
    machine = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "processor": processor(),
    }
    if as_json:
        print(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=2))
        return
    print("\n".join(f"{name}: {value}" for name, value in machine.items()))
    heads = list(asdict(rows[0]))
    for head in heads:
        print(head.ljust(28) + "".join(str(getattr(row, head)).rjust(14) for row in rows))


if __name__ == "__main__":
    main()
