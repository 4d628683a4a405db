"""A managed ledger beside a RabbitMQ stream and beside a plain file, in one run.

    python benchmarks/managed.py [--messages 100000] [--rounds 3] [--folder DIR] [--json]

Messages have 1 KB. A producer keeps 10 batches of 100 under way. The jobs of a round run one after the other:

    append      a producer alone, until every message is acknowledged
    tail        the same producer, and a consumer that follows it, until the consumer has all messages
    catch-up    a consumer that begins at the first message of what `append` wrote

Each runs on a `ManagedLedger` over a `FolderLog`, on a stream of a real RabbitMQ with its client `rstream`,
and on a plain file. RabbitMQ does not sync a stream before it confirms. So it is compared with
`Durability.OS`, and with a `write` of each batch. The rows `synced` have `Durability.ALWAYS`, and `write` and
`fdatasync`. Before the rows of the tier, a folder, the local copies are deleted. `ManagedLedger.read` is a
`TieredReader`. At the end, `managed_ledgers.py` measures idle ledgers.

CPU seconds are those of this process, and those of the broker, per GiB of bodies. Ratios are the medians of
the rounds' rates over the rate of the plain file, or of the `StreamReader`. Needs `rstream` and
Debian's packages of RabbitMQ. A run of 100,000 messages takes less than 2 GiB of disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import machine
from rstream import (  # type: ignore[import-untyped, unused-ignore]  # no types, and not always here
    Consumer,
    ConsumerOffsetSpecification,
    OffsetType,
    Producer,
)
from servers.rabbitmq import RECIPE, Broker, rabbitmq
from stopwatch import Stopwatch

from offload import Durability, FolderLog, LedgerPolicy, ManagedLedger, StreamReader, open_tier

GIB: Final = 2**30
BATCH: Final = 100
IN_FLIGHT: Final = 10
MESSAGE: Final = os.urandom(1000)
LOGIN: Final[dict[str, Any]] = {"username": "guest", "password": "guest"}
POLICY: Final = LedgerPolicy(roll_seconds=None, offload_size_bytes=None, deletion_lag_seconds=0.0)
"""Nothing is offloaded while the jobs run: RabbitMQ and a file have no such work."""

BASES: Final = {
    "append": "append, plain file",
    "append, synced": "append, synced, plain file",
    "tail": "tail, plain file",
    "tail, synced": "tail, synced, plain file",
    "catch-up, local": "catch-up, local, plain file",
    "catch-up, tier": "catch-up, tier, StreamReader",
}
"""The row to which each group of rows is compared."""


class WrongCount(Exception):
    """A consumer did not get every message once, or a job did not begin as it must."""


@dataclass
class Bench:
    """The jobs of one run, and what they found: the figures of each round, by the name of the row."""

    scratch: Path
    broker: Broker
    messages: int
    rows: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    @property
    def broker_cpu_seconds(self) -> float:
        """Return the CPU time of the broker's process."""
        pid = (self.broker.streams.parents[2] / "pid").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def measure(self, name: str, work: Callable[[], Awaitable[int]]) -> None:
        """Run a job. It returns how many messages arrived."""
        broker, watch = self.broker_cpu_seconds, Stopwatch()
        count = await work()
        times, gib = watch.read(), self.messages * len(MESSAGE) / GIB
        if count != self.messages:
            raise WrongCount(f"{name}: {count} messages instead of {self.messages}")
        figures = {
            "messages_per_second": count / times["seconds"],
            "cpu_seconds_per_gib": times["cpu_seconds"] / gib,
        }
        if "RabbitMQ" in name:
            figures["broker_cpu_seconds_per_gib"] = (self.broker_cpu_seconds - broker) / gib
        self.rows.setdefault(name, []).append(figures)
        print(f"{name}: {figures}", file=sys.stderr, flush=True)

    async def round(self, number: int) -> None:
        """Run every job once."""
        for suffix, durability in (("", Durability.OS), (", synced", Durability.ALWAYS)):
            for what in ("append", "tail"):
                name, path = f"{what}{suffix}", self.scratch / f"{what}-{durability}-{number}"
                await self._file(name, path, is_synced=bool(suffix), is_read=what == "tail")
                await self._managed(name, path.with_suffix(".log"), durability, is_read=what == "tail")
                if not suffix:
                    await self._rabbitmq(name, f"{what}-{number}", is_read=what == "tail")

    async def _file(self, name: str, path: Path, *, is_synced: bool, is_read: bool) -> None:
        data, size_bytes = MESSAGE * BATCH, len(MESSAGE) * BATCH
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

        async def write() -> int:
            size = 0
            for _ in range(self.messages // BATCH):
                os.write(descriptor, data)
                if is_synced:
                    os.fdatasync(descriptor)
                size += len(os.pread(descriptor, size_bytes, size)) if is_read else size_bytes
            return size // len(MESSAGE)

        async def read() -> int:
            size = 0
            while data := os.pread(descriptor, 2**20, size):
                size += len(data)
            return size // len(MESSAGE)

        await self.measure(f"{name}, plain file", write)
        if name == "append":
            await self.measure("catch-up, local, plain file", read)
        os.close(descriptor)
        os.unlink(path)

    async def _managed(self, name: str, path: Path, durability: Durability, *, is_read: bool) -> None:
        async with open_tier(str(path.with_suffix(".tier"))) as tier:
            log = await FolderLog.open(path, durability=durability)
            ledger = await ManagedLedger.open(log, tier, policy=POLICY)

            async def produce() -> int:
                left = iter(range(self.messages // BATCH))

                async def produce_in_turn() -> None:
                    for _ in left:
                        await ledger.append([MESSAGE] * BATCH)

                await asyncio.gather(*(produce_in_turn() for _ in range(IN_FLIGHT)))
                return ledger.next_offset

            async def consume() -> int:
                count = 0
                async with aclosing(ledger.follow(0)) as batches:
                    async for batch in batches:
                        count += len(batch.bodies)
                        if count >= self.messages:
                            break
                return count

            async def both() -> int:
                count, _ = await asyncio.gather(consume(), produce())
                return count

            await self.measure(f"{name}, ManagedLedger", both if is_read else produce)
            if name == "append":
                await self.measure("catch-up, local, ManagedLedger", lambda: _count(ledger.read(0)))
                await self._catch_up(ledger, tier)
            await ledger.delete()

    async def _catch_up(self, ledger: ManagedLedger, tier: Any) -> None:
        """Read what is on the tier alone, by both readers."""
        await ledger.roll()
        await ledger.offload_prefix(ledger.next_offset)
        await ledger.step()
        if ledger.log.first_offset != ledger.next_offset:
            raise WrongCount(f"the local copies were not deleted: {ledger.error}")
        reader = await StreamReader.open(tier, ledger.name)
        await _count(reader.messages(0))  # so that neither is the first to read the files
        await self.measure("catch-up, tier, StreamReader", lambda: _count(reader.messages(0)))
        await self.measure("catch-up, tier, ManagedLedger", lambda: _count(ledger.read(0)))

    async def _rabbitmq(self, name: str, stream: str, *, is_read: bool) -> None:
        async with Producer("127.0.0.1", port=self.broker.stream_port, **LOGIN) as producer:
            await producer.create_stream(stream)
            # Connections are opened and closed outside of what is measured.
            consumer = Consumer("127.0.0.1", port=self.broker.stream_port, **LOGIN)
            await consumer.start()
            confirmed, changed = 0, asyncio.Event()

            def confirm(status: Any) -> None:
                nonlocal confirmed
                confirmed += 1
                changed.set()

            async def produce() -> int:
                for first in range(0, self.messages, BATCH):
                    while first - confirmed >= IN_FLIGHT * BATCH:
                        changed.clear()
                        await changed.wait()
                    await producer.send_batch(stream, [MESSAGE] * BATCH, on_publish_confirm=confirm)
                while confirmed < self.messages:
                    changed.clear()
                    await changed.wait()
                return confirmed

            async def both() -> int:
                count, _ = await asyncio.gather(self._consumed(consumer, stream), produce())
                return count

            await self.measure(f"{name}, RabbitMQ", both if is_read else produce)
            if name == "append":
                await self.measure("catch-up, local, RabbitMQ", lambda: self._consumed(consumer, stream))
            await consumer.close()
            await producer.delete_stream(stream)

    async def _consumed(self, consumer: Consumer, stream: str) -> int:
        """Return the number of messages that a consumer gets, when it has all."""
        count, done = 0, asyncio.Event()

        def take(body: bytes, context: object) -> None:
            nonlocal count
            count += 1
            if count >= self.messages:
                done.set()

        place = ConsumerOffsetSpecification(OffsetType.FIRST, None)
        await consumer.subscribe(stream, take, decoder=None, offset_specification=place)
        async with asyncio.timeout(120):
            await done.wait()
        return count


async def _count(batches: Any) -> int:
    async with aclosing(batches):
        return sum([len(batch.bodies) async for batch in batches])


def table(rows: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Return the medians of each row, and its ratio to the row that its group is compared with."""
    found = []
    for group, base in BASES.items():
        for name, figures in rows.items():
            if name.rpartition(", ")[0] != group:
                continue
            pairs = zip(figures, rows[base], strict=True)
            ratios = [ours["messages_per_second"] / raw["messages_per_second"] for ours, raw in pairs]
            medians = {key: statistics.median(each[key] for each in figures) for key in figures[0]}
            found.append({"job": name, **medians, "ratio": statistics.median(ratios)})
    return found


def idle(ledgers: int) -> dict[str, Any]:
    """Return what idle ledgers cost, in a process of their own."""
    command = [sys.executable, str(Path(__file__).with_name("managed_ledgers.py")), "--json"]
    options = ["--ledgers", str(ledgers), "--active", "0", "--seconds", "10"]
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def measured(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all rounds beside a broker, and return the table."""
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="managed.") as scratch:
        (folder := Path(scratch) / "broker").mkdir()
        with rabbitmq(folder) as broker:
            print(f"RabbitMQ {broker.version}", file=sys.stderr)
            bench = Bench(Path(scratch), broker, arguments.messages)
            for number in range(arguments.rounds):
                await bench.round(number)
            return table(bench.rows)


def main() -> None:
    """Parse arguments, run the rounds, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000, help="of each job, a multiple of 100")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=int, default=1000, help="number of idle ledgers")
    parser.add_argument("--folder", type=Path, default=None, help="folder for the files, on a disk")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.messages < BATCH or arguments.messages % BATCH:
        parser.error(f"--messages must be a multiple of {BATCH}")
    machine.require_disk()
    RECIPE.install()
    load = os.getloadavg()[0]
    rows = asyncio.run(measured(arguments))
    found = {"machine": machine.description() | {"load": [load, os.getloadavg()[0]]}, "rows": rows}
    found["idle"] = idle(arguments.idle)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    print(found["machine"])
    for row in rows:
        broker = row.get("broker_cpu_seconds_per_gib")
        print(
            f"| {row['job']} | {row['messages_per_second']:,.0f} | {row['cpu_seconds_per_gib']:.2f} "
            f"| {'' if broker is None else f'{broker:.2f}'} | {row['ratio']:.2f} |"
        )
    print(found["idle"])


if __name__ == "__main__":
    main()
