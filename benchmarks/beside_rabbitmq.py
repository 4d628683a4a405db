"""`offload run` beside a real RabbitMQ: the lag, the CPU time, the memory, and what is read back.

    python benchmarks/beside_rabbitmq.py [--rate 20000] [--seconds 300] [--lag 5] [--idle 500] [--ask]

Needs `rstream` and Debian's packages of RabbitMQ, which it fetches once. A broker with
small segments and a short retention gets messages of 1 KB: RATE a second on one stream and ten a second on
another. `offload run` copies them to a folder. Every half second the newest root is read, and the age of the
first message that it does not hold is a sample of the lag. At the end every message is read back from the
tier, also those that the broker has deleted.

With --ask, `offload run` asks the broker what is committed.

With --idle, as many streams of one message are made instead. It counts the requests that `offload run` sends
to the store while nothing happens.

The broker, the publisher and `offload run` share this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from asyncio.subprocess import Process

from rstream import Producer
from servers.rabbitmq import RECIPE, Broker, rabbitmq

from offload import NotOffloaded, StreamReader, open_tier

OFFLOAD = str(Path(sys.executable).with_name("offload"))
SIZE_BYTES = 1000
PUBLISHERS_MAX = 100
"""The most publishers of one connection. The protocol has 256."""
LOCAL = {
    "stream-max-segment-size-bytes": 16_000_000,
    "max-length-bytes": 200_000_000,
    "max-age": "60s",
}
"""The arguments of a stream: the segments and the data that the broker keeps."""


@dataclass
class Published:
    """The messages that were published to one stream: message number n was sent at `times[n]`."""

    stream: str
    times: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)


async def publish(broker: Broker, published: Published, rate: float, seconds: float) -> None:
    """Publish messages that begin with their number."""
    async with Producer("127.0.0.1", port=broker.stream_port, username="guest", password="guest") as producer:
        await producer.create_stream(published.stream, arguments=LOCAL)
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < seconds:
            due = min(int(passed * rate) - len(published.times), 500)
            if due <= 0:
                await asyncio.sleep(min(0.02, 1 / rate))
                continue
            first = len(published.times)
            batch = [b"%012d" % (first + i) + b"." * (SIZE_BYTES - 12) for i in range(due)]
            await producer.send_batch(published.stream, batch)
            published.times += [time.monotonic()] * due


@asynccontextmanager
async def sidecar(
    broker: Broker, tier: Path, lag: float, log: Path, *, asks: bool = False
) -> AsyncIterator[Process]:
    """Run `offload run` until the end of the block, and wait until it has ended."""
    (config := tier.with_name("run.toml")).write_text(
        f'source = "rabbitmq://{broker.streams}"\ntier = "{tier}"\n'
        + (f'broker = "rabbitmq-stream://127.0.0.1:{broker.stream_port}"\n' if asks else "")
        + f'[streams."*"]\nmax_lag = "{lag:g}s"\n'
    )
    arguments = ("--debug", "run", str(config))
    with log.open("wb") as output:
        running = await asyncio.create_subprocess_exec(OFFLOAD, *arguments, stderr=output, stdout=output)
    try:
        yield running
    finally:
        running.terminate()
        print(f"offload run ended with code {await running.wait()}")


async def watch(tier: Path, all_published: list[Published], done: asyncio.Event) -> None:
    """Sample the lag of each stream until `done`."""
    async with open_tier(str(tier)) as offloader:
        while not done.is_set():
            await asyncio.sleep(0.5)
            for published in all_published:
                try:
                    manifest = await offloader.load_manifest(named(tier, published.stream))
                except NotOffloaded:
                    continue
                now, held = time.monotonic(), manifest.next_offset
                waits = len(published.times) > held
                published.lags.append(now - published.times[held] if waits else 0.0)


def named(tier: Path, stream: str) -> str:
    """Return the name on the tier: that of the broker's folder, which begins with the stream's name."""
    for path in tier.glob(f"__{stream}_*"):
        return path.name
    raise NotOffloaded(stream)


async def read_back(tier: Path, published: Published) -> str:
    """Read every message from the tier, and return what was found."""
    expected = 0
    async with open_tier(str(tier)) as offloader:
        reader = await StreamReader.open(offloader, named(tier, published.stream))
        async for batch in reader.messages(0):
            for body in batch.bodies:
                if int(body[:12]) != expected:
                    return f"WRONG: message {int(body[:12])} instead of {expected}"
                expected += 1
    missing = len(published.times) - expected
    return f"{expected:,} messages in order" + (f", {missing} MISSING" if missing else ", none missing")


def usage(process: Process) -> tuple[float, int]:
    """Return the CPU seconds of a process, and the most memory that it has used, in bytes."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert peak is not None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(peak[1]) * 1024


def quantile(values: list[float], share: float) -> float:
    """Return a quantile of samples."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


async def offload(*arguments: str | Path) -> bytes:
    """Run a command, and return its output."""
    running = await asyncio.create_subprocess_exec(OFFLOAD, *arguments, stdout=asyncio.subprocess.PIPE)
    output, _ = await running.communicate()
    assert running.returncode == 0, arguments
    return output


async def fragments(tier: Path) -> int:
    """Return the number of fragments that the tier's roots name."""
    return sum(json.loads(line)["fragments"] for line in (await offload("ls", tier, "--json")).splitlines())


async def busy(broker: Broker, folder: Path, rate: float, seconds: float, lag: float, *, asks: bool) -> None:
    """Publish to two streams beside a sidecar, and print what came of it."""
    tier, fast, slow = folder / "tier", Published("fast"), Published("slow")
    done = asyncio.Event()
    async with sidecar(broker, tier, lag, folder / "run.log", asks=asks) as running:
        watching = asyncio.create_task(watch(tier, [fast, slow], done))
        begun = time.monotonic()
        await asyncio.gather(publish(broker, fast, rate, seconds), publish(broker, slow, 10, seconds))
        took = time.monotonic() - begun
        cpu, memory = usage(running)
        await asyncio.sleep(2 * lag)
        done.set()
        await watching
    for each in (fast, slow):
        segments = broker.streams.glob(f"__{each.stream}_*/*.segment")
        print(
            f"{each.stream}: {len(each.times) / took:,.1f} messages/s for {took:.0f} s; "
            f"lag p50 {quantile(each.lags, 0.5):.2f} s, p99 {quantile(each.lags, 0.99):.2f} s, "
            f"most {max(each.lags):.2f} s; {await read_back(tier, each)}; "
            f"the broker has those from {min(int(path.stem) for path in segments):,} on"
        )
    gib = (len(fast.times) + len(slow.times)) * SIZE_BYTES / 2**30
    print(f"offload run: {cpu:.1f} CPU s ({cpu / took:.1%} of a core, {cpu / gib:.2f} CPU s/GiB)")
    print(f"memory: {memory / 2**20:.0f} MiB")
    before = await fragments(tier)
    await offload("compact", tier)
    print(f"fragments: {before}, and {await fragments(tier)} after `offload compact`")


async def idle(broker: Broker, folder: Path, count: int, seconds: float, lag: float) -> None:
    """Make idle streams, and print the requests that a sidecar sends for them."""
    tier, log = folder / "tier", folder / "run.log"
    for first in range(0, count, PUBLISHERS_MAX):
        login = {"port": broker.stream_port, "username": "guest", "password": "guest"}
        async with Producer("127.0.0.1", **login) as producer:
            for number in range(first, min(first + PUBLISHERS_MAX, count)):
                await producer.create_stream(f"idle{number}")
                await producer.send_wait(f"idle{number}", b"one message")
    async with sidecar(broker, tier, lag, log) as running:
        while len(list(tier.glob("*/data/*.fragment"))) < count:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(1)
        await asyncio.sleep(2 * lag)
        before, cpu_before = requests(log), usage(running)[0]
        await asyncio.sleep(seconds)
        sent, cpu = requests(log) - before, usage(running)[0] - cpu_before
    share = f"{cpu:.1f} CPU s ({cpu / seconds:.1%} of a core)"
    print(f"{count} idle streams for {seconds:.0f} s: {sent} requests to the store, {share}")


def requests(log: Path) -> int:
    """Return the number of requests to the store that a log shows."""
    return log.read_text().count(" offload.store.logged: ")


async def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=20_000)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--lag", type=float, default=5)
    parser.add_argument("--idle", type=int, default=0)
    parser.add_argument("--ask", action="store_true")
    asked = parser.parse_args()
    await asyncio.to_thread(RECIPE.install)
    with tempfile.TemporaryDirectory(prefix="beside-rabbitmq.") as scratch:
        (broker_folder := Path(scratch) / "broker").mkdir()
        with rabbitmq(broker_folder) as broker:
            print(f"RabbitMQ {broker.version}, {os.cpu_count()} processors")
            if asked.idle:
                await idle(broker, Path(scratch), asked.idle, asked.seconds, asked.lag)
            else:
                await busy(broker, Path(scratch), asked.rate, asked.seconds, asked.lag, asks=asked.ask)


if __name__ == "__main__":
    asyncio.run(main())
