"""A consumer reads a stream from its first message to the newest one, while everything beside it is killed.

    PYTHONPATH=tests python -m first_to_now [--rate 20000] [--seconds 300] [--kills 10] [--lag 60]

A client for Java publishes numbered messages to a real RabbitMQ, which keeps little more than `offload run`
is behind, and deletes the rest. When the first messages are deleted, another client for Java reads from
`first` by `offload serve`, which has the tier, the disk and the broker. Meanwhile the sidecar and the server
are killed with SIGKILL and started again. Halfway the consumer ends, the server is killed once more, and a
new consumer goes on by the stored offset.

In the end each message must have come, in its order. After a kill the client subscribes again behind the
offset that it stored. The messages since then come again, and are counted.

The clients, the broker and our processes share this machine. If Java is not installed, nothing runs.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Final

from servers.processes import end_of, free_port, process
from servers.rabbitmq import Broker, rabbitmq
from servers.scratch import scratch_folder
from stream_client import RawClient, pairs, text
from stream_programs import program_in

LOAD: Final = Path(__file__).parent / "stream_load" / "Load.java"
OFFLOAD: Final = str(Path(sys.executable).with_name("offload"))
CREATE: Final = 13
STREAM: Final = "orders"
OVERHEAD_SIZE_BYTES: Final = 4
ALL_SEGMENTS: Final = f"__{STREAM}_*/*.segment"
SEGMENTS: Final = 10
"""The segments that the broker keeps."""

DELETED_SECONDS: Final = 600.0
CATCH_UP_SECONDS: Final = 120.0
OFFSETS_SECONDS: Final = 1.0
"""The server writes the stored offsets to its file within this time."""

REPEATED_SECONDS: Final = 5.0
"""The messages of so long may come again after a kill: those behind the offset in the server's file."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is published, and how far behind the tier is."""

    rate: int = 20_000
    seconds: float = 300.0
    kills: int = 10
    lag_seconds: float = 60.0
    size_bytes: int = 100

    @property
    def kept_seconds(self) -> float:
        """Return for how long the broker keeps a message."""
        return 1.5 * self.lag_seconds + 15


@dataclass
class Found:
    """What came."""

    published: int = 0
    consumed: int = 0
    next_number: int = 0
    missing: int = 0
    repeated: int = 0
    deleted: int = 0
    """The first offset that the broker still has when the first consumer begins."""

    kills: int = 0

    def add(self, numbers: list[int]) -> None:
        """Add what a consumer says in the end."""
        consumed, self.next_number, missing, repeated = numbers
        self.consumed += consumed
        self.missing += missing
        self.repeated += repeated

    def is_right(self, load: Load) -> bool:
        """Return whether each message came, and the broker alone would not have had all."""
        once = self.consumed - self.repeated == self.published == self.next_number
        repeated_max = self.kills * REPEATED_SECONDS * load.rate
        return once and not self.missing and self.deleted > 0 and self.repeated <= repeated_max


class Killable:
    """A process that is started again when it was killed."""

    def __init__(self, argv: list[str], log: Path) -> None:
        self._argv, self._log, self._starts = argv, log, 0
        self._stack = ExitStack()
        self.start()

    def start(self) -> None:
        """Start the process."""
        self._starts += 1
        log = self._log.with_suffix(f".{self._starts}.log")
        self.running: Popen[bytes] = self._stack.enter_context(process(*self._argv, log=log))

    def kill(self) -> None:
        """Kill it, and start it again."""
        self.running.kill()
        self.running.wait()
        self.start()

    def close(self) -> None:
        """End the process."""
        self._stack.close()


@contextmanager
def java(folder: Path, log: Path, *words: object) -> Iterator[Popen[bytes]]:
    """Run a command of the load."""
    argv = ["java", "-Xmx512m", "-cp", f"{folder / 'jars'}/*", str(LOAD), *map(str, words)]
    with process(*argv, log=log) as running:
        yield running


def first_to_now(load: Load, scratch: Path) -> Found:
    """Run it. Skips the test that calls it if Java or Maven is missing."""
    program = program_in("Java", _made(scratch / "java"))
    found = Found()
    with rabbitmq(_made(scratch / "broker")) as broker, ExitStack() as stack:
        declare(broker, load)
        url = f"rabbitmq-stream://guest:guest@127.0.0.1:{broker.stream_port}"
        publishing = ("publish", url, STREAM, load.rate, load.size_bytes)
        publisher = stack.enter_context(java(program.folder, scratch / "publish.log", *publishing))
        asked = f"rabbitmq-stream://127.0.0.1:{broker.stream_port}"
        config, port = scratch / "run.toml", free_port()
        config.write_text(
            f'source = "rabbitmq://{broker.streams}"\ntier = "{scratch / "tier"}"\nbroker = "{asked}"\n'
            f'[streams."*"]\nmax_lag = "{load.lag_seconds:g}s"\n'
        )
        sidecar = Killable([OFFLOAD, "run", str(config)], scratch / "run")
        stack.callback(sidecar.close)
        found.deleted = wait_until_the_first_are_deleted(broker)
        listen = f"rabbitmq-stream://127.0.0.1:{port}?offsets={scratch / 'offsets'}"
        beside = ["--source", f"rabbitmq://{broker.streams}", "--broker", asked]
        server = Killable(
            [OFFLOAD, "serve", str(scratch / "tier"), "--listen", listen, *beside], scratch / "serve"
        )
        stack.callback(server.close)
        wait_until_it_listens(port, server)

        following = ("follow", f"rabbitmq-stream://guest:guest@127.0.0.1:{port}", STREAM, "reader")
        for half in range(2):
            log = scratch / f"follow.{half}.log"
            with java(program.folder, log, *following, found.next_number) as consumer:
                wait_until_it_has(log, found.next_number + 1, consumer)
                for _ in range(load.kills // 2):
                    time.sleep(load.seconds / load.kills * random.uniform(0.7, 1.3))
                    sidecar.kill()
                    server.kill()
                    found.kills += 1
                if half:
                    publisher.terminate()
                    publisher.wait(CATCH_UP_SECONDS)
                    [[found.published]] = numbers_of(scratch / "publish.log")
                    wait_until_it_has(log, found.published, consumer)
                else:  # what the dead server had sent is gone after a second
                    wait_until_it_listens(port, server)
                    wait_until_it_has(log, numbers_of(log)[-1][1] + load.rate, consumer)
            found.add(numbers_of(log)[-1])
            time.sleep(OFFSETS_SECONDS)
            server.kill()
            wait_until_it_listens(port, server)
    return found


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def declare(broker: Broker, load: Load) -> None:
    kept = int(load.kept_seconds * load.rate * (load.size_bytes + OVERHEAD_SIZE_BYTES))
    limits = {"max-length-bytes": str(kept), "stream-max-segment-size-bytes": str(kept // SEGMENTS)}
    with RawClient.opened(broker.stream_port) as client:
        assert client.ask(CREATE, text(STREAM) + pairs(limits))[:2] == struct.pack(">H", 1)


def wait_until_the_first_are_deleted(broker: Broker) -> int:
    """Return the first offset that the broker still has."""
    deadline = time.monotonic() + DELETED_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.5)
        if first := min((int(each.stem) for each in broker.streams.glob(ALL_SEGMENTS)), default=0):
            return first
    raise AssertionError("the broker deletes nothing")


def wait_until_it_listens(port: int, server: Killable) -> None:
    while server.running.poll() is None:
        with suppress(OSError):
            RawClient(port).socket.close()
            return
        time.sleep(0.1)
    raise AssertionError("the server did not start")


def numbers_of(log: Path) -> list[list[int]]:
    """Return the lines of numbers, without what the client logs."""
    found = [line.split() for line in log.read_text(errors="replace").splitlines()]
    return [[int(each) for each in words] for words in found if all(map(str.isdigit, words))]


def wait_until_it_has(log: Path, number: int, consumer: Popen[bytes]) -> None:
    """Wait until the consumer has had the message before this number, or for so long that it never will."""
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while time.monotonic() < deadline:
        assert consumer.poll() is None, end_of(log)
        if (numbers := numbers_of(log)) and numbers[-1][1] >= number:
            return
        time.sleep(0.5)


def main() -> None:
    """Parse arguments, run, print what came."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--lag", type=float, default=60.0)
    given = parser.parse_args()
    load = Load(rate=given.rate, seconds=given.seconds, kills=given.kills, lag_seconds=given.lag)
    with scratch_folder("first-to-now") as scratch:
        found = first_to_now(load, scratch)
        print(found)
        if not found.is_right(load):
            for log in sorted(scratch.glob("*.log")):
                print(f"{log.name}: {log.read_text()}")
            sys.exit(1)


if __name__ == "__main__":
    main()
