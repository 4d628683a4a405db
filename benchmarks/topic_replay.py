"""Replay by topic: seconds and bytes of a filter, beside a scan and beside RocksDB.

    python benchmarks/topic_replay.py [--messages 2600000] [--server minio] [--folder DIR]

    replay     `offload_mqtt.Replay` of a sorted stream with its index. Each round opens the tier anew, so
               nothing but the pages of the operating system is cached
    scan       the same without index objects: all chunks are fetched, and the topic of each record decides
    rocksdict  RocksDB with the skip-stream layout of EMQX 5.8: a row for each message, and a row for each of
               its varying levels, under the hash of the level. A replay walks the rows of one literal level
               of the filter, gets their messages, and compares the topics. Needs the package rocksdict, and
               is on the folder alone

The messages are those of `topics.py`, in ledgers of 512 MiB. Seconds are wall clock, the least of three
rounds, and CPU is that of the same round. Each way hands over topic and body of each match.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from machine import processor
from offload_mqtt.decoder import MqttDecoder
from offload_mqtt.replay import Replay
from offload_mqtt.selector import RANGES
from offload_mqtt.topics import TopicFilter, match
from topics import SORTED, chunks, write

from offload import Plugins
from offload.copy.sync import sync
from offload.formats.entries import messages
from offload.formats.keys import StreamKeys
from offload.index.job import index
from offload.index.terms import Spec
from offload.native.layout_check import native
from offload.opening.session import Session

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # has the servers
from servers.catalogue import server

FILTERS: Final = ("site/+/line/3/#", "site/7/#", "site/7/line/3/machine/1/speed")
ROUNDS: Final = 3
Options = dict[str, Any]
Answer = tuple[int, int]
"""How many messages were found, and how many bytes were fetched for them."""


def main() -> None:
    """Parse arguments, measure, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=2_600_000)
    parser.add_argument("--server", default="minio")
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        write(folder / "telemetry", arguments.messages, 2**29)
        print(f"{processor()}, {arguments.messages:,} messages\n")
        print("| filter | on | how | messages | fetched MB | seconds | CPU |\n|---|---|---|---|---|---|---|")
        measured("folder", f"{folder}/telemetry", f"{folder}/tier", {})
        with server(arguments.server).running() as running:
            place = running.place()
            measured(arguments.server, f"{folder}/telemetry", f"{place.url}/tier", place.options)
        database = Rocks(folder / "rocks", arguments.messages)
        for text in FILTERS:
            row(text, "folder", "rocksdict", lambda text=text: database.replay(text))


def row(text: str, where: str, how: str, replay: Callable[[], Answer], rounds: int = ROUNDS) -> None:
    """Measure, and print a row."""
    best = (float("inf"), 0.0, (0, 0))
    for _ in range(rounds):
        began, used = time.perf_counter(), time.process_time()
        answer = replay()
        best = min(best, (time.perf_counter() - began, time.process_time() - used, answer))
    seconds, cpu, (found, fetched) = best
    size = f"{fetched / 1e6:.1f}"
    print(f"| `{text}` | {where} | {how} | {found:,} | {size} | {seconds:.3f} | {cpu:.3f} |", flush=True)


def measured(where: str, source: str, url: str, options: Options) -> None:
    """Sort onto a tier, and measure it with and without its index."""
    asyncio.run(sorted_onto(source, url, options))
    for text in FILTERS:
        row(text, where, "replay", lambda text=text: asyncio.run(ours(url, options, text)))
    asyncio.run(without_index(url, options))
    row(FILTERS[0], where, "scan", lambda: asyncio.run(ours(url, options, FILTERS[0])), rounds=2)


async def sorted_onto(source: str, url: str, options: Options) -> None:
    """Sort a stream of files onto a tier, and index it."""
    async with Session(plugins=Plugins.find()) as session:
        tier = session.tier(url, storage_options=options)
        async with aclosing(sync(session.source(f"topics+rabbitmq://{source}"), tier)) as reports:
            async for report in reports:
                assert report.error is None, report.error
        async with aclosing(
            index(native(tier, to="index"), SORTED, Spec.parse(RANGES), MqttDecoder())
        ) as done:
            async for _ in done:
                pass


async def without_index(url: str, options: Options) -> None:
    """Delete the index objects."""
    async with Session(plugins=Plugins.find()) as session:
        tier = native(session.tier(url, storage_options=options), to="index")
        await tier.open()
        await tier.store.delete([each.key async for each in tier.store.list(StreamKeys(SORTED).indexes)])


async def ours(url: str, options: Options, text: str) -> Answer:
    """Replay by a filter in a new session."""
    async with Session(plugins=Plugins.find()) as session:
        tier = session.tier(url, storage_options=options)
        replay, found, size = Replay(tier, SORTED), 0, 0
        async with aclosing(replay.runs(await replay.iterator([text]))) as runs:
            async for run in runs:
                if len(run):
                    found += len(run)
                    columns = run.columns
                    size += sum(map(len, columns.topics)) + sum(map(len, columns.rests.to_list()))
        assert size or not found
        return found, tier.metrics.bytes_got


class Rocks:
    """The same messages in RocksDB. A key is a structure, the number of a level, its hash, and a time."""

    def __init__(self, folder: Path, count: int) -> None:
        import rocksdict

        self.rocksdict = rocksdict
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        self.database = rocksdict.Rdict(str(folder), options)
        batch, time_us = rocksdict.WriteBatch(raw_mode=True), 0
        for chunk, _, _ in chunks(count):
            for body in messages(chunk, where="made", position=0):
                time_us += 1
                topic = topic_in(body)
                static, varying = structure_of(topic)
                stream_key = time_us.to_bytes(8, "big")
                batch.put(static + b"\0\0" + stream_key, len(topic).to_bytes(2, "big") + topic + body)
                for number, level in varying:
                    batch.put(prefix(static, number, level) + stream_key, b"")
            if batch.len() > 10_000:
                self.database.write(batch)
                batch = rocksdict.WriteBatch(raw_mode=True)
        self.database.write(batch)
        self.database.flush()
        self.database.compact_range(None, None)

    def replay(self, text: str) -> Answer:
        """Return the messages that a filter matches, by the rows of its last literal level that varies."""
        by, found, size = TopicFilter.parse(text), 0, 0
        levels = [*enumerate(by.levels)]
        number, level = [(at, each) for at, each in levels if each not in (b"+", b"#") and at in (1, 3, 5)][
            -1
        ]
        for metric in (b"temperature", b"pressure", b"speed", b"power", b"state"):
            static = static_of(b"site", metric)
            for keys in self._keys(static, number, level):
                for value in self.database[keys]:
                    topic = value[2 : 2 + int.from_bytes(value[:2], "big")]
                    if match(topic, by):
                        found += 1
                        size += len(value)
        return found, size

    def _keys(self, static: bytes, number: int, level: bytes) -> Iterator[list[bytes]]:
        first, keys = prefix(static, number, level), list[bytes]()
        for key in self.database.keys(from_key=first):
            if not key.startswith(first):
                break
            keys.append(static + b"\0\0" + key[-8:])
            if len(keys) == 1000:
                yield keys
                keys = []
        if keys:
            yield keys


def topic_in(body: bytes) -> bytes:
    """Return the topic of a message of `topics.message_head`."""
    at = body.index(b"x-routing-key") + 14
    return body[at + 1 : at + 1 + body[at]].replace(b".", b"/")


def static_of(first: bytes, last: bytes) -> bytes:
    """Return the identity of a structure."""
    return hashlib.sha256(first + b"/" + last).digest()[:8]


def structure_of(topic: bytes) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Return the structure of a topic, and its varying levels: the first and the last level are literal."""
    levels = topic.split(b"/")
    varying = [(at, levels[at]) for at in range(1, len(levels) - 1, 2)]
    return static_of(levels[0], levels[-1]), varying


def prefix(static: bytes, number: int, level: bytes) -> bytes:
    """Return the beginning of the rows of one level."""
    return static + number.to_bytes(2, "big") + hashlib.md5(level, usedforsecurity=False).digest()[:8]


if __name__ == "__main__":
    main()
