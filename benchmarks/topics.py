"""Sorting by topic: CPU and memory of a sort, the size of its index, and the bytes that filters fetch.

    python benchmarks/topics.py [--messages 10000000] [--segment-size-mib 512] [--folder DIR]

    sort       `offload sync topics+rabbitmq://`, and `offload sync rabbitmq://` of the same folder, each in a
               process of its own, to a folder. CPU is that of the process, memory its largest resident set
    index      bytes of index objects for each message. They are built by reading the sorted stream
    filters    bytes of chunks that can have a match, and bytes that were fetched: chunks between two wanted
               ones are fetched too if they are less than 1 MiB. In percent of all chunks. Every filter is
               read through to the end, and its messages are counted

The messages have 200 bytes with their routing keys. Of 100, 88 are of 120,000 topics
`site/S/line/L/machine/M/METRIC`, where one of 52 is of the metric `state`; 12 are of 4,000 topics of devices.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Final

import numpy as np
from machine import processor
from offload_mqtt.replay import Replay
from offload_mqtt.selector import RANGES, TopicSelector
from offload_mqtt.topics import TopicFilter

from offload import ObjectStoreOffloader, open_tier
from offload.formats.chunk_writer import build_chunk
from offload.formats.keys import StreamKeys
from offload.index.ranges import PartRanges, look_up_ranges
from offload.index.terms import Spec
from offload.local.segment_writer import SegmentWriter
from offload.model.chunk_table import CHUNK_TABLE, ChunkTable
from offload.model.entry import entries_of_rows

RECORD_SIZE_BYTES: Final = 200
CHUNK_RECORDS: Final = 256
METRICS: Final = ("temperature", "pressure", "speed", "power", "state")
FILTERS: Final = (
    "site/+/line/3/#",
    "site/+/line/+/machine/+/state",
    "site/7/#",
    "site/7/line/3/machine/1/speed",
)
SORTED: Final = "telemetry.topics"


def main() -> None:
    """Parse arguments, measure, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=10**7)
    parser.add_argument("--segment-size-mib", type=int, default=512)
    parser.add_argument("--folder", type=Path, default=None, help="folder for the source and the tier")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        write(folder / "telemetry", arguments.messages, arguments.segment_size_mib * 2**20)
        print(
            f"{processor()}\n\n| job | records | CPU seconds | per CPU second | MiB |\n|---|---|---|---|---|"
        )
        for what in ("topics+rabbitmq", "rabbitmq"):
            job(
                f"sync {what}://",
                "sync",
                f"{what}://{folder}/telemetry",
                f"{folder}/{what}",
                tier=f"{folder}/{what}",
            )
        tier = f"{folder}/topics+rabbitmq"
        job("index", "index", tier, SORTED, "--by", RANGES, tier=tier)
        asyncio.run(filters(tier))


def write(folder: Path, messages: int, segment_size_bytes: int) -> None:
    """Write the files of a stream, and one more segment, so that all messages are in sealed ones."""
    folder.mkdir(parents=True)
    writer = SegmentWriter(folder, segment_size_bytes=segment_size_bytes, epoch_max=None)
    for chunk, offset, records in chunks(messages):
        row = np.zeros(1, CHUNK_TABLE)
        row["offset"], row["records"], row["size_bytes"], row["timestamp_ms"] = (
            offset,
            records,
            len(chunk),
            offset,
        )
        writer.write(row, chunk)
    writer.seal()
    last = SegmentWriter(folder, segment_size_bytes=segment_size_bytes, epoch_max=None)
    row["offset"], row["records"], row["timestamp_ms"] = messages, 1, messages
    chunk = build_chunk([b"last"], offset=messages, timestamp_ms=messages, epoch=1)
    row["size_bytes"] = len(chunk)
    last.write(row, chunk)
    last.seal()


def chunks(messages: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield chunks, with their offsets and numbers of records."""
    random, heads = np.random.default_rng(41), dict[int, bytes]()
    pad = os.urandom(2**20).hex().encode()
    for offset in range(0, messages, CHUNK_RECORDS):
        count = min(CHUNK_RECORDS, messages - offset)
        bodies = list[bytes]()
        numbers = random.integers(0, 300 * 20 * 4 * 4, count).tolist()
        kinds, places = (
            random.integers(0, 100 * 52, count).tolist(),
            random.integers(0, 2**20, count).tolist(),
        )
        for number, kind, place in zip(numbers, kinds, places, strict=True):
            code = number * 8 + (5 if kind % 100 >= 88 else 4 if kind // 100 == 0 else number % 4)
            head = heads.get(code)
            if head is None:
                head = heads[code] = message_head(code)
            bodies.append(head + pad[place : place + RECORD_SIZE_BYTES - len(head)])
        yield build_chunk(bodies, offset=offset, timestamp_ms=offset, epoch=1), offset, count


def message_head(code: int) -> bytes:
    """Return an AMQP message up to its body, which fills it up to 200 bytes."""
    number, kind = code // 8, code % 8
    if kind == 5:
        topic = f"device.{number % 2000:012x}.{('battery', 'temperature')[number // 2000 % 2]}"
    else:
        site, line, machine = number // 4 % 300, number // 1200 % 20, number // 24000 % 4
        topic = f"site.{site}.line.{line}.machine.{machine}.{METRICS[kind]}"
    pairs = (
        b"\xa3\x0ax-exchange\xa1\x09amq.topic\xa3\x0dx-routing-key\xa1" + bytes([len(topic)]) + topic.encode()
    )
    annotations = b"\0\x53\x72\xc1" + bytes([len(pairs) + 1, 4]) + pairs
    size = RECORD_SIZE_BYTES - len(annotations) - 5
    return annotations + b"\0\x53\x75\xa0" + bytes([size])


def job(what: str, *command: str, tier: str) -> None:
    """Run a command, and print a row about it."""
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", "from offload.cli.main import main; main()", *command],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, used = os.wait4(child, 0)
    assert status == 0, command
    records = asyncio.run(records_of(tier))
    seconds = used.ru_utime + used.ru_stime
    print(
        f"| {what} | {records:,} | {seconds:.1f} | {records / seconds:,.0f} | {used.ru_maxrss / 1024:.0f} |",
        flush=True,
    )


async def records_of(url: str) -> int:
    """Return the records of the one stream of a tier."""
    async with open_tier(url) as tier:
        (name,) = await tier.streams()
        return (await tier.load_manifest(name)).next_offset


async def filters(url: str) -> None:
    """Read by each filter, and print what that fetched."""
    async with open_tier(url) as tier:
        await tier.open()
        indexes = [row.size_bytes async for row in tier.store.list(StreamKeys(SORTED).indexes)]
        async with aclosing(look_up_ranges(tier, SORTED, by=Spec.parse(RANGES))) as parts:
            (part,) = [each async for each in parts]
        rows, records = await table_of(tier), part.reader.manifest.next_offset
        total = int(rows["size_bytes"].sum())
        print(f"\nindex: {sum(indexes) / records:.4f} bytes a message, in {len(indexes)} objects")
        print(
            "\n| filter | messages | chunks that can match | fetched | CPU seconds |\n|---|---|---|---|---|"
        )
        for text in ("#", *FILTERS):
            wanted = chunks_of(part, rows, text)
            before, began = tier.metrics.bytes_got, time.process_time()
            replay, found = Replay(tier, SORTED), 0
            async with aclosing(replay.runs(await replay.iterator([text]))) as runs:
                async for run in runs:
                    found += len(run)
            fetched = tier.metrics.bytes_got - before
            shares = [
                100 * each / whole for each, whole in ((found, records), (wanted, total), (fetched, total))
            ]
            print("| `{}` | {:.2f} % | {:.2f} % | {:.1f} % |".format(text, *shares), end="")
            print(f" {time.process_time() - began:.2f} |", flush=True)


async def table_of(tier: ObjectStoreOffloader) -> ChunkTable:
    """Return the rows of all chunks of the sorted stream."""
    view, tables = await tier.view(SORTED), list[ChunkTable]()
    async with aclosing(view.walk()) as runs:
        async for entries in runs:
            for entry in entries_of_rows(entries):
                async with await view.open(entry) as handle:
                    tables.append(await handle.table())
    return np.concatenate(tables)


def chunks_of(part: PartRanges, rows: ChunkTable, text: str) -> int:
    """Return the size of the chunks that can have a match."""
    selector, size_bytes = TopicSelector([TopicFilter.parse(text)]), 0
    for ledger in part.ledgers:
        first = int(np.searchsorted(rows["offset"], ledger.first_offset))
        at = [first + row for row in selector.candidates(ledger.about, ledger.keys)]
        size_bytes += int(rows["size_bytes"][at].sum())
    return size_bytes


if __name__ == "__main__":
    main()
