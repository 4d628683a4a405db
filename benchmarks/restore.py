"""`offload restore` into a real RabbitMQ: both ways, killed and repeated, beside a bare publisher.

    python benchmarks/restore.py [--messages 2000000] [--size 200] [--kills 3] [--folder FOLDER]

Needs `rstream` (pip install rstream) and Debian's packages of RabbitMQ, which it fetches once.

1. A publisher that does nothing else fills a stream: the broker's own rate with this client.
2. `offload sync` copies it to a folder.
3. `offload restore` publishes it to a new stream, for the figures, and once more with --map.
4. `offload restore` publishes it to another new stream, to which a consumer is attached. It is killed KILLS
   times at random moments, and repeated.
5. The broker stops. `offload restore --files` writes the files of a third stream, killed and repeated. The
   broker starts again. `offload sync` continues the archive from these files.
6. A stream whose last epoch is above the broker's is restored as it is, and with lower epochs. The archive
   goes on behind the files with lower epochs, in a new part.
7. An archive goes on in a new part behind a published restore, to which others publish.

An ordinary consumer (`rstream`) reads every restored stream, and each message is compared with the one that
was published. Broker, restore and consumer share this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from offload_rabbitmq.stream_answers import leader_of
from offload_rabbitmq.stream_connection import StreamConnection
from offload_rabbitmq.stream_frames import Frame, Key
from offload_rabbitmq.stream_place import parse_place
from offload_rabbitmq.stream_target import PUBLISHER, publish_frame
from osiris_writer import write_stream
from rstream import (  # type: ignore[import-untyped, unused-ignore]  # no types, and not always here
    Consumer,
    ConsumerOffsetSpecification,
    OffsetType,
)
from servers.rabbitmq import NODE, RECIPE, Broker, rabbitmq

from offload.formats.chunk_writer import build_chunk
from offload.ground.env import Env
from offload.ground.errors import TryAgain

OFFLOAD = str(Path(sys.executable).with_name("offload"))
SEGMENT_SIZE_BYTES = 100_000_000
ARGUMENTS = {"stream-max-segment-size-bytes": str(SEGMENT_SIZE_BYTES)}
BATCH = 1_000
IN_FLIGHT = 50


class Failed(Exception):
    """A claim of this benchmark does not hold."""


def body_of(number: int, size_bytes: int) -> bytes:
    """Return message `number`: an AMQP 1.0 message with one data section, as stream clients publish it."""
    data = b"%012d" % number + b"." * (size_bytes - 12)
    return b"\x00Su\xb0" + len(data).to_bytes(4, "big") + data


def url_of(broker: Broker, stream: str) -> str:
    """Return the URL of a stream of the broker."""
    return f"rabbitmq-stream://127.0.0.1:{broker.stream_port}/{stream}"


async def connected(broker: Broker, stream: str) -> StreamConnection:
    """Return a connection."""
    endpoint = parse_place(url_of(broker, stream)).endpoint
    return await StreamConnection.connect(
        endpoint, Env(), name="benchmark", connect_seconds=30, answer_seconds=30
    )


async def declared(broker: Broker, stream: str) -> StreamConnection:
    """Declare a stream, and return a connection."""
    connection = await connected(broker, stream)
    await connection.ask(Key.CREATE, stream=stream, arguments=ARGUMENTS, doing="declare")
    return connection


async def publish(broker: Broker, stream: str, numbers: range, size_bytes: int, *, new: bool = True) -> None:
    """Publish messages, and do nothing else: frames are made before the clock starts, in parts."""
    connection = await declared(broker, stream) if new else await connected(broker, stream)
    confirmed, changed = 0, asyncio.Event()

    def note(confirm: Frame) -> None:
        nonlocal confirmed
        confirmed += len(confirm["ids"])
        changed.set()

    connection.receivers[Key.PUBLISH_CONFIRM] = note
    publisher = {"publisher": PUBLISHER, "reference": "", "stream": stream}
    await connection.ask(Key.DECLARE_PUBLISHER, **publisher, doing="publish")
    sent = 0
    for first in range(numbers.start, numbers.stop, BATCH):
        bodies = [body_of(number, size_bytes) for number in range(first, min(first + BATCH, numbers.stop))]
        while sent - confirmed > IN_FLIGHT * BATCH:
            changed.clear()
            await changed.wait()
        await connection.send(publish_frame(first + 1, bodies))
        sent += len(bodies)
    while confirmed < sent:
        changed.clear()
        await changed.wait()
    await connection.aclose()


async def consume(broker: Broker, stream: str, count: int, size_bytes: int) -> tuple[int, int]:
    """Read `count` messages as an ordinary consumer does, compare each, and return two offsets.

    They are those of the first message and of the last.
    """
    consumer = Consumer("127.0.0.1", port=broker.stream_port, username="guest", password="guest")
    seen, done, offsets = 0, asyncio.Event(), list[int]()
    wrong: list[str] = []

    def check(message: bytes, context: object) -> None:
        nonlocal seen
        if seen < count and not wrong and bytes(message) != body_of(seen, size_bytes):
            wrong.append(f"{stream}: message {seen} is {bytes(message)[:40]!r}")
        offset = context.offset  # type: ignore[attr-defined]
        if offsets and offset <= offsets[-1]:
            wrong.append(f"{stream}: offset {offset} after {offsets[-1]}")
        offsets[1:] = [offset]
        offsets[0:0] = [offset] if not offsets else []
        seen += 1
        if seen >= count or wrong:
            done.set()

    await consumer.start()
    await consumer.subscribe(
        stream, check, decoder=None, offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None)
    )
    await asyncio.wait_for(done.wait(), 600)
    await asyncio.sleep(1)  # one message too many would come now
    await consumer.close()
    if wrong or seen != count:
        raise Failed(wrong[0] if wrong else f"{stream}: {seen} messages instead of {count}")
    return offsets[0], offsets[-1]


@contextmanager
def measured(what: str, count: int, broker_pid: int | None = None) -> Iterator[None]:
    """Print the time, the rate, and the CPU time of this process, its children and the broker."""
    begun, before, broker = time.monotonic(), cpu_seconds(), broker_seconds(broker_pid)
    yield
    took = time.monotonic() - begun
    line = f"{what}: {took:.1f} s, {count / took:,.0f} messages/s, {cpu_seconds() - before:.1f} CPU s"
    if broker_pid is not None:
        line += f" and {broker_seconds(broker_pid) - broker:.1f} CPU s of the broker"
    print(line, flush=True)


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def broker_seconds(pid: int | None) -> float:
    """Return the CPU time of the broker's process."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def offload(*words: object) -> str:
    """Run a command, which must succeed, and return its output."""
    ran = subprocess.run([OFFLOAD, *map(str, words)], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Failed(f"offload {words}: {ran.stderr}")
    return ran.stdout


def killed(kills: int, shares: Callable[[], float], *words: object) -> None:
    """Run a command that is killed at random shares of its work, and then to its end."""
    for _ in range(kills):
        wanted = shares() + random.uniform(0.1, 0.9) * (1 - shares()) / 2
        process = subprocess.Popen(
            [OFFLOAD, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        while process.poll() is None and shares() < wanted:
            time.sleep(0.01)
        if process.poll() is not None:
            _, errors = process.communicate()
            raise Failed(f"it ended before it was killed: {errors.decode()}")
        process.kill()
        process.communicate()
        print(f"killed when {shares():.0%} was in the target", flush=True)
    print(json.loads(offload(*words, "--json")), flush=True)


def written_share(folder: Path, source: Path) -> float:
    """Return how much of the source's segments is in a folder, staged or in place."""
    sizes = [sum(path.stat().st_size for path in each.rglob("*.segment")) for each in (folder, source)]
    return min(sizes[0] / sizes[1], 1.0)


def folder_of(broker: Broker, stream: str) -> Path:
    """Return the folder of a stream."""
    (found,) = broker.streams.glob(f"__{stream}_*")
    return found


async def by_publishing(broker: Broker, tier: Path, count: int, size_bytes: int, kills: int) -> None:
    """Fill a stream, archive it, and publish the archive twice."""
    pid = int((broker.streams.parents[2] / "pid").read_text())
    with measured("a bare publisher", count, pid):
        await publish(broker, "source", range(count), size_bytes)
    with measured("offload sync", count):
        offload("sync", f"rabbitmq://{folder_of(broker, 'source')}", tier)
    name = folder_of(broker, "source").name
    options = [word for pair in ARGUMENTS.items() for word in ("--target-option", "=".join(pair))]
    with measured("offload restore, not interrupted", count, pid):
        offload("restore", tier, name, url_of(broker, "whole"), *options)
    with measured("offload restore --map of a complete target (reads it twice)", count, pid):
        offload("restore", tier, name, url_of(broker, "whole"), *options, "--map", tier.parent / "map")
    lines = (tier.parent / "map").read_text().splitlines()
    print(f"map: {len(lines)} rows, the last {lines[-1]}")
    with measured(f"offload restore, killed {kills} times, with a consumer attached", count, pid):
        await (await declared(broker, "copy")).aclose()
        share = partial(written_share, folder_of(broker, "copy"), folder_of(broker, "source"))
        attached = asyncio.create_task(consume(broker, "copy", count, size_bytes))
        await asyncio.to_thread(killed, kills, share, "restore", tier, name, url_of(broker, "copy"), *options)
        print(f"copy: offsets {await attached}, every message equal for the attached consumer")
    for stream in ("whole", "copy"):
        with measured(f"a consumer of {stream!r}", count):
            print(
                f"{stream}: offsets {await consume(broker, stream, count, size_bytes)}, every message equal"
            )
    for stream in ("files", "timed", "high", "low"):
        await (await declared(broker, stream)).aclose()


async def going_on(broker: Broker, tier: Path, count: int, size_bytes: int) -> None:
    """Restore an archive, publish new messages, and archive them behind the old ones."""
    source = folder_of(broker, "source")
    offload("sync", f"rabbitmq://{source}", tier)
    await (await declared(broker, "on")).aclose()
    (links := tier.parent / f"{tier.name}-links").mkdir()
    (links / source.name).symlink_to(folder_of(broker, "on"))
    options = [word for pair in ARGUMENTS.items() for word in ("--target-option", "=".join(pair))]
    words = ("restore", tier, source.name, url_of(broker, "on"), *options, "--new-part", "--json")
    for first in range(count, count + 3000, 1000):
        found = json.loads(await asyncio.to_thread(offload, *words))
        print(f"restored {found['messages']:,} messages; {found['new_part']}", flush=True)
        await publish(broker, "on", range(first, first + 1000), size_bytes, new=False)
        print(offload("sync", f"rabbitmq://{links}", tier), end="", flush=True)
    await asyncio.to_thread(check_read, tier, source.name, count + 3000, size_bytes)


def check_read(tier: Path, stream: str, count: int, size_bytes: int) -> None:
    """Raise `Failed` unless a reader of the archive gets every message once and in order."""
    command = [OFFLOAD, "read", str(tier), stream, "--format", "raw"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        for number in range(count):
            size = int.from_bytes(reading.stdout.read(4), "big")
            if reading.stdout.read(size) != body_of(number, size_bytes):
                raise Failed(f"the archive that went on has another message at place {number}")
        if reading.stdout.read():
            raise Failed("the archive that went on has more messages than were published")
    print(f"on: a reader of the archive got {count:,} messages, each once and in order", flush=True)


def by_files(folder: Path, tier: Path, count: int, kills: int) -> None:
    """Write the files of a stream of the stopped broker."""
    streams = folder / "mnesia" / NODE / "stream"
    (source,), (files,) = streams.glob("__source_*"), streams.glob("__files_*")
    words = ("restore", tier, source.name, "--files", files)
    options = ("--target-option", f"segment-size-bytes={SEGMENT_SIZE_BYTES}")
    (timed,) = streams.glob("__timed_*")
    with measured("offload restore --files, not interrupted", count):
        offload("restore", tier, source.name, "--files", timed, *options)
    with measured(f"offload restore --files, killed {kills} times", count):
        killed(kills, partial(written_share, files, source), *words, *options)
    same = [path.read_bytes() == (files / path.name).read_bytes() for path in source.glob("*.*")]
    print(f"--files: {sum(same)} of {len(same)} files are byte for byte those of the source")
    chunks = [
        build_chunk([body_of(k, 100)], offset=k, timestamp_ms=1_700_000_000_000, epoch=7) for k in range(10)
    ]
    write_stream(folder / "epochs", chunks)
    offload("sync", f"rabbitmq://{folder / 'epochs'}", tier)
    for stream, lowered in (("high", ()), ("low", ("--target-option", "epoch-max=2", "--new-part"))):
        (target,) = streams.glob(f"__{stream}_*")
        offload("restore", tier, "epochs", "--files", target, *lowered)


async def served(broker: Broker, stream: str, seconds: float = 60) -> bool:
    """Wait until a stream has a leader. Return False if it has none in time."""
    connection = await connected(broker, stream)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = await connection.ask(Key.METADATA, streams=[stream], doing="look")
        with suppress(TryAgain):
            leader_of(answer, stream, connection.where)
            await connection.aclose()
            return True
        await asyncio.sleep(0.5)
    await connection.aclose()
    return False


async def after_files(broker: Broker, folder: Path, tier: Path, count: int, size_bytes: int) -> None:
    """Read what was restored by files, publish more, and continue the archive."""
    for stream in ("files", "low", "high"):
        if not await served(broker, stream):
            raise Failed(f"the broker does not serve {stream!r}")
    with measured("a consumer of 'files'", count):
        print(f"files: offsets {await consume(broker, 'files', count, size_bytes)}, every message equal")
    print(f"low: offsets {await consume(broker, 'low', 10, 100)}, every message equal")
    await publish(broker, "low", range(10, 20), 100, new=False)
    (lower := tier.parent / "lower").mkdir()
    (lower / "epochs").symlink_to(folder_of(broker, "low"))
    print(offload("sync", f"rabbitmq://{lower}", tier), end="")
    if len(offload("read", tier, "epochs").splitlines()) != 20:
        raise Failed("the archive of 'epochs' does not go on behind the files with lower epochs")
    log = (folder / "rabbitmq.out").read_text()
    print(f"high: offsets {await consume(broker, 'high', 10, 100)}, every message equal")
    steps = log.count("exit: {invalid_epoch")
    print(f"the broker raised the epoch of 'high' from 2 to 7, with {steps} errors in its log")
    await publish(broker, "files", range(count, count + 1000), size_bytes, new=False)
    source, files = folder_of(broker, "source").name, folder_of(broker, "files")
    (links := tier.parent / "links").mkdir()
    (links / source).symlink_to(files)  # a stream is named after a link to its folder
    offload("sync", f"rabbitmq://{links}", tier)
    rows = [json.loads(line) for line in offload("ls", tier, "--json").splitlines()]
    (row,) = [row for row in rows if row["stream"] == source]
    if row["messages"] != count + 1000:
        raise Failed(f"the continued archive has {row['messages']} messages")
    print(f"the archive was continued from the restored files: {row['messages']:,} messages")


def main() -> None:
    """Run all steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    RECIPE.install()
    with tempfile.TemporaryDirectory(prefix="restore.", dir=asked.folder) as scratch:
        folder, tier = Path(scratch) / "broker", Path(scratch) / "tier"
        folder.mkdir()
        with rabbitmq(folder) as broker:
            print(f"RabbitMQ {broker.version}, {os.cpu_count()} processors", flush=True)
            asyncio.run(by_publishing(broker, tier, asked.messages, asked.size, asked.kills))
            asyncio.run(going_on(broker, Path(scratch) / "on", asked.messages, asked.size))
        by_files(folder, tier, asked.messages, asked.kills)
        with rabbitmq(folder) as broker:
            asyncio.run(after_files(broker, folder, tier, asked.messages, asked.size))


if __name__ == "__main__":
    main()
