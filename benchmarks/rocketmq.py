"""Times a sync of RocketMQ's queues, which share one log, beside a sync of RabbitMQ's segments.

    python benchmarks/rocketmq.py [--messages 12000] [--queues 16] [--rounds 4] [--folder DIR]

Both sources have the same number of streams with the same records: bodies of 1 KiB, a message of each queue
in turn. RocketMQ's log has files of 128 MiB, and RabbitMQ's chunks 100 records. Both are copied to a new
folder, in turn. Rates are bytes of records by CPU second and by second, medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import numpy as np
from osiris_writer import write_stream
from rocketmq_store import BrokerStore
from stopwatch import Stopwatch

from offload import build_chunk, open_source, open_tier, sync

BODY_SIZE_BYTES: Final = 1024
LOG_SIZE_BYTES: Final = 128 * 2**20
UNITS: Final = 300_000
AT_ONCE: Final = 100


def chunks(records: list[bytes]) -> Iterator[bytes]:
    """Yield the records as chunks of RabbitMQ."""
    for at in range(0, len(records), AT_ONCE):
        yield build_chunk(records[at : at + AT_ONCE], offset=at, timestamp_ms=1_700_000_000_000 + at, epoch=1)


def make(folder: Path, messages: int, queues: int) -> int:
    """Write both sources, and return the bytes of all records of one."""
    store = BrokerStore(folder / "rocketmq", log_size=LOG_SIZE_BYTES, queue_units=UNITS, span_ms=1)
    noise = np.random.default_rng(1).bytes(BODY_SIZE_BYTES + messages)
    for at in range(messages):
        for queue in range(queues):
            store.append("Orders", queue, noise[at : at + BODY_SIZE_BYTES])
    for (_, queue), records in store.records.items():
        write_stream(folder / "rabbitmq" / f"queue-{queue}", chunks(records))
    return sum(len(record) for records in store.records.values() for record in records)


async def copied(url: str, tier: Path) -> dict[str, float]:
    """Copy a source to a new tier."""
    source = open_source(url)
    watch = Stopwatch()
    async with open_tier(str(tier)) as opened:
        async for report in sync(source, opened):
            assert report.error is None, report.error
    return watch.read()


def main() -> None:
    """Make the sources, copy them in turn, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=12_000, help="of each queue")
    parser.add_argument("--queues", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="for a temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        mib = make(folder, given.messages, given.queues) / 2**20
        rates: dict[str, list[tuple[float, float]]] = {"rabbitmq": [], "rocketmq": []}
        for _ in range(given.rounds):
            for scheme, found in rates.items():
                took = asyncio.run(copied(f"{scheme}://{folder / scheme}", folder / "tier"))
                found.append((mib / took["cpu_seconds"], mib / took["seconds"]))
                shutil.rmtree(folder / "tier")
        print(
            f"{given.queues} streams, {mib:.0f} MiB\n\n| source | MiB per CPU second | MiB/s |\n|---|---|---|"
        )
        for scheme, found in rates.items():
            by_cpu, by_clock = (statistics.median(each) for each in zip(*found, strict=True))
            print(f"| {scheme} | {by_cpu:.0f} | {by_clock:.0f} |")


if __name__ == "__main__":
    main()
