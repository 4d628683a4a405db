"""`offload serve` beside a real RabbitMQ with the same streams: raw consumers, CPU, and cold first messages.

    python benchmarks/served_streams.py [--rounds 5] [--messages 3000000] [--small 60000] [--only A B minio]

Stream A has chunks of 1,500 messages of 120 bytes, stream B has chunks of one message. A tier in a folder has
both, and `offload restore --files` puts them into Debian's RabbitMQ, which it fetches once. A raw consumer is
a process of `served_consumer.py`, which parses frames and counts, and gives one credit for each chunk. It has
all messages, or the benchmark fails. Broker and server take turns in each round, and both share the machine
with the consumers.

    A, A x 8, B        messages a second, by one consumer and by eight at once, at credit 10 and 1,000
    A from MinIO       MiB a second through the server, and of `offload read --format raw`; cold each time
    first message      requests and milliseconds, on MinIO, of a process that has opened the tier and knows
                       nothing of the stream: by `StreamReader`, and from Subscribe to the first frame

CPU seconds are those of the process that serves, for all messages. Ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from machine import minio
from servers.rabbitmq import RECIPE, rabbitmq
from stream_client import FIRST, RawClient, text
from stream_server import served

from offload import MemoryHandle, Session, StreamReader, StreamWriter, build_chunk, open_tier
from offload.model.position import AtEdge

OFFLOAD: Final = str(Path(sys.executable).with_name("offload"))
CONSUMER: Final = str(Path(__file__).with_name("served_consumer.py"))
BODY: Final = bytes(120)
CHUNK: Final = 1500
CREATE: Final = 13
ROWS: Final = [("A", 10, 1), ("A", 10, 8), ("B", 10, 1), ("B", 1000, 1)]
"""The stream, the credit and the number of consumers of each row beside the broker."""


async def write(url: str, stream: str, messages: int, each: int) -> None:
    """Write a stream of so many messages, in chunks of `each`."""
    async with open_tier(url) as tier:
        writer = await StreamWriter.claim(tier, stream)
        per_ledger = 150 * CHUNK if each > 1 else 10_000
        for begin in range(0, messages, per_ledger):
            offsets = range(begin, min(begin + per_ledger, messages), each)
            chunks = [
                build_chunk(
                    [BODY] * min(each, messages - offset), offset=offset, timestamp_ms=offset, epoch=1
                )
                for offset in offsets
            ]
            await writer.offload([MemoryHandle(chunks)])


@contextmanager
def serving(tier: str, *options: str) -> Iterator[tuple[int, int]]:
    """Run `offload serve`, and yield its port and its process id."""
    command = [OFFLOAD, "serve", tier, "--listen", "rabbitmq-stream://127.0.0.1:0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = next(line for line in process.stderr if " serves " in line)
            yield int(re.findall(r":(\d+)", line)[-1]), process.pid
        finally:
            process.terminate()
            process.stderr.read()


@dataclass(frozen=True)
class Run:
    """What consumers got of a server."""

    messages_per_second: float
    cpu_seconds: float


def consumed(port: int, pid: int, stream: str, messages: int, *, credit: int, consumers: int) -> Run:
    """Let consumers read a stream at once. `pid` is the server's."""
    command = [sys.executable, CONSUMER, str(port), stream, str(messages), str(credit)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(consumers)
    ]
    for each in started:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    before = cpu_seconds_of(pid)
    for each in started:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    seconds = []
    for each in started:
        assert each.stdout is not None
        seconds.append(float(each.stdout.readline()))
    cpu_seconds = cpu_seconds_of(pid) - before
    for each in started:
        each.communicate()
    return Run(messages * consumers / max(seconds), cpu_seconds)


def cpu_seconds_of(pid: int) -> float:
    """Return the user and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pid_of_broker() -> int:
    """Return the process of the broker of this benchmark: it is below a shell."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            if "(beam.smp)" in stat.read_text() and is_ours(int(stat.parent.name)):
                return int(stat.parent.name)
    raise LookupError("no broker runs")


def is_ours(pid: int) -> bool:
    """Return True if this process has started a process, or one that did."""
    while pid > 1 and pid != os.getpid():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid > 1


def show(row: str, **figures: float) -> None:
    """Print a row."""
    print(json.dumps({"row": row, **{name: round(each, 2) for name, each in figures.items()}}), flush=True)


def beside_the_broker(arguments: argparse.Namespace, scratch: Path) -> None:
    """Measure the rows of a folder beside the broker."""
    tier, streams = str(scratch / "tier"), {"A": arguments.messages, "B": arguments.small}
    asyncio.run(write(tier, "A", arguments.messages, CHUNK))
    asyncio.run(write(tier, "B", arguments.small, 1))
    RECIPE.install()
    with rabbitmq(scratch) as broker, RawClient.opened(broker.stream_port) as client:
        for stream in streams:
            assert client.ask(CREATE, text(stream) + bytes(4))[:2] == b"\0\1"
    for stream in streams:
        [folder] = broker.streams.glob(f"__{stream}_*")
        subprocess.run([OFFLOAD, "restore", tier, stream, "--files", folder], check=True, capture_output=True)
    cores = os.cpu_count() or 1
    with rabbitmq(scratch, schedulers=cores) as broker, serving(tier) as (port, pid):
        broker_pid = pid_of_broker()
        for stream, credit, consumers in ROWS:
            if stream not in arguments.only:
                continue
            of_broker, of_server = list[Run](), list[Run]()
            for _ in range(arguments.rounds):
                said = {"credit": credit, "consumers": consumers}
                of_broker.append(consumed(broker.stream_port, broker_pid, stream, streams[stream], **said))
                of_server.append(consumed(port, pid, stream, streams[stream], **said))
            pairs = list(zip(of_server, of_broker, strict=True))
            show(
                f"{stream}, credit {credit:,}, consumers: {consumers}",
                broker=median(run.messages_per_second for run in of_broker),
                server=median(run.messages_per_second for run in of_server),
                ratio=median(a.messages_per_second / b.messages_per_second for a, b in pairs),
                broker_cpu_seconds=median(run.cpu_seconds for run in of_broker),
                server_cpu_seconds=median(run.cpu_seconds for run in of_server),
                cpu_ratio=median(a.cpu_seconds / max(b.cpu_seconds, 0.01) for a, b in pairs),
            )


def from_minio(arguments: argparse.Namespace, tier: str) -> None:
    """Measure stream A in a bucket, through a new server and by `offload read` in turn."""
    asyncio.run(write(tier, "A", arguments.messages, CHUNK))
    mib = arguments.messages * (len(BODY) + 4) / 2**20
    by_server, by_read, ratios = list[float](), list[float](), list[float]()
    read = [OFFLOAD, "read", tier, "A", "--format", "raw"]
    for _ in range(arguments.rounds):
        began = time.perf_counter()
        subprocess.run(read, stdout=subprocess.DEVNULL, check=True)
        ended = time.perf_counter()
        subprocess.run([*read, "--limit", "1"], stdout=subprocess.DEVNULL, check=True)
        by_read.append(mib / (ended - began - (time.perf_counter() - ended)))  # without its start
        with serving(tier) as (port, pid):
            run = consumed(port, pid, "A", arguments.messages, credit=10, consumers=1)
        by_server.append(run.messages_per_second * mib / arguments.messages)
        ratios.append(by_server[-1] / by_read[-1])
    show("A from MinIO, MiB/s", read=median(by_read), server=median(by_server), ratio=median(ratios))


def first_messages(arguments: argparse.Namespace, tier: str) -> None:
    """Measure the first message from nothing: requests of the store, and milliseconds."""
    found: dict[str, list[tuple[int, float]]] = {"reader": [], "server": []}
    for _ in range(3 * arguments.rounds):
        found["reader"].append(asyncio.run(_read_first(tier)))
        with served(tier) as running, RawClient.opened(running.port) as client:
            began, before = time.perf_counter(), _requests(running.session)
            client.subscribe("A", FIRST, credit=1)
            client.delivered(1)
            ms = (time.perf_counter() - began) * 1000
            found["server"].append((_requests(running.session) - before, ms))
    for who, all_of in found.items():
        requests, ms = max(count for count, _ in all_of), median(ms for _, ms in all_of)
        show(f"first message, by the {who}", requests=requests, milliseconds=ms)


async def _read_first(tier: str) -> tuple[int, float]:
    async with Session() as session:
        catalogue = session.catalogue(tier)
        await catalogue.open()  # as the server does before it takes its port
        began, before = time.perf_counter(), _requests(session)
        reader: StreamReader = await session.reader(catalogue, "A")
        chunks = reader.chunks(await reader.place_of(AtEdge.FIRST))
        await anext(chunks)
        await chunks.aclose()
        done = (_requests(session) - before, (time.perf_counter() - began) * 1000)
        await catalogue.aclose()
        return done


def _requests(session: Session) -> int:
    return sum(session.metrics.requests.values())


def main() -> None:
    """Parse arguments, and print a row of JSON for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=3_000_000)
    parser.add_argument("--small", type=int, default=60_000)
    parser.add_argument("--only", choices=["A", "B", "minio"], nargs="+", default=["A", "B", "minio"])
    arguments = parser.parse_args()
    if {"A", "B"} & {*arguments.only}:
        with tempfile.TemporaryDirectory() as scratch:
            beside_the_broker(arguments, Path(scratch))
    if "minio" in arguments.only:
        with minio() as tier:
            from_minio(arguments, tier)
            first_messages(arguments, tier)


if __name__ == "__main__":
    main()
