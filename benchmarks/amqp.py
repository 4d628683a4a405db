"""CPU per message of the `amqp` decoder: one message after the other, and by columns, in one run.

    python benchmarks/amqp.py [--messages 100000] [--rounds 5] [--folder DIR]

Three streams, each of a kind that RabbitMQ writes:

    lone       one data section, as the stream clients write it
    typical    the broker's annotations, an id and a time, two application properties, a body of JSON
    quoted     the same with a quote in a property, which no template fits

Every job has all messages. It runs once in each round, in turn, and its least CPU counts. The machine's speed
is in the first line: a loop of Python, to compare runs with. Two thousand messages are enough for the way of
one after the other. `read` and `to_batches` are measured from a folder, with everything that they need.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from machine import processor
from offload_rabbitmq.decoder import AmqpDecoder

import offload
from offload import Blocking, MemoryHandle, StreamWriter
from offload.contracts.decoder import Decoder
from offload.formats.chunk_writer import build_chunk
from offload.model.record_columns import RecordBytes

SECTIONS = ["properties", "application_properties", "annotations"]
COLUMNS = {
    "body": ["body"],
    "key": ["key"],
    "all columns": ["body", "key", "headers", *SECTIONS],
    "JSON lines": ["value", *SECTIONS],
}
ONE_BY_ONE = 2_000
IN_PROCESS = """
import json, sys, time
from contextlib import suppress
from offload.cli.main import main
command = json.loads(sys.argv[1])
taken = []
for sys.argv in (2 * [[*command, "--limit", "0"]] + [command]):
    begun = time.process_time()
    with suppress(SystemExit):
        main()
    taken.append(time.process_time() - begun)
print(taken[2] - taken[1], file=sys.stderr)
"""
RECORDS_PER_CHUNK = 500
BATCH_ROWS = 2**17


def main() -> None:
    """Parse arguments, run the rounds, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="folder for the tiers")
    arguments = parser.parse_args()
    print(f"{processor()}; a loop of a million additions in Python: {_loop() * 1000:.0f} ms of CPU")
    for name, make in {"lone": lone, "typical": typical, "quoted": quoted}.items():
        messages = [make(number) for number in range(arguments.messages)]
        size = sum(map(len, messages)) / len(messages)
        print(f"\n{name}: {len(messages)} messages of {size:.0f} bytes\n")
        print("| job | CPU ns per message | messages/s and core |\n|---|---|---|")
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            _write(folder, messages)
            jobs = _decoding(messages) | _reading(folder, len(messages))
            for job, ns in _least(jobs, arguments.rounds).items():
                print(f"| {job} | {ns:,.0f} | {1e9 / ns:,.0f} |")
        sys.stdout.flush()


def lone(number: int) -> bytes:
    """Return a message with a body alone."""
    return b"\0Su" + _sized(0xA0, _body(number))


def typical(number: int, text: bytes = b"v") -> bytes:
    """Return a message as the broker stores one of an AMQP 0.9.1 client."""
    annotations = [
        _sized(0xA3, b"x-exchange"), _sized(0xA1, b""),
        _sized(0xA3, b"x-routing-key"), _sized(0xA1, b"orders"),
    ]  # fmt: skip
    properties = [_sized(0xA1, b"m%d" % number), *[b"\x40"] * 5, _sized(0xA3, b"application/json")]
    properties += [b"\x40", b"\x40", b"\x83" + struct.pack(">q", 1_700_000_000_000 + 1000 * number)]
    counter = b"\x54" + bytes((number,)) if number < 128 else b"\x71" + struct.pack(">i", number)
    application = [_sized(0xA1, b"n"), counter, _sized(0xA1, b"s"), _sized(0xA1, text + b"%d" % number)]
    return b"".join(
        (
            b"\0Sr" + _compound(0xC1, annotations),
            b"\0Ss" + _compound(0xC0, properties),
            b"\0St" + _compound(0xC1, application),
            lone(number),
        )
    )


def quoted(number: int) -> bytes:
    """Return a typical message with a quote in a property."""
    return typical(number, text=b'"')


def _body(number: int) -> bytes:
    pad = bytes((97 + number % 26,)) * (40 + number * 7 % 64)
    return b'{"seq":%d,"key":"k%d","pad":"%s"}' % (number, number % 97, pad)


def _sized(code: int, raw: bytes) -> bytes:
    return bytes((code, len(raw))) + raw


def _compound(code: int, items: list[bytes]) -> bytes:
    body = b"".join(items)
    return bytes((code, len(body) + 1, len(items))) + body


def _write(folder: str, messages: list[bytes]) -> None:
    chunks = [
        build_chunk(
            messages[first : first + RECORDS_PER_CHUNK], offset=first, timestamp_ms=1_700_000_000_000, epoch=1
        )
        for first in range(0, len(messages), RECORDS_PER_CHUNK)
    ]
    with Blocking(f"{folder}/tier") as tier:
        tier.run(tier.offloader.open(create=True))

        async def write() -> None:
            writer = await StreamWriter.claim(tier.offloader, "orders")
            await writer.offload([MemoryHandle(chunks)])

        tier.run(write())


def _decoding(messages: list[bytes]) -> dict[str, tuple[Callable[[], object], int]]:
    """Return the jobs of the decoder alone, with their number of messages."""
    amqp = AmqpDecoder()
    records, some = RecordBytes.of(messages), RecordBytes.of(messages[-ONE_BY_ONE:])
    jobs: dict[str, tuple[Callable[[], object], int]] = {}
    for name, columns in COLUMNS.items():
        jobs[f"{name}, one by one"] = (lambda c=columns: Decoder.columns(amqp, some, c)), len(some)
        jobs[f"{name}, by columns"] = (lambda c=columns: amqp.columns(records, c)), len(records)
    return jobs


def _reading(folder: str, count: int) -> dict[str, tuple[Callable[[], object], int]]:
    """Return the jobs that read the tier, with their number of messages."""
    stream = offload.open(f"{folder}/tier")["orders"]

    def batches(columns: list[str], decode: str | None) -> None:
        for _ in stream.to_batches(columns=columns, decode=decode):
            pass

    jobs: dict[str, tuple[Callable[[], object], int]] = {
        "to_batches, raw": (lambda: batches(["offset", "timestamp", "value"], None), count),
        "to_batches, body": (lambda: batches(["offset", "timestamp", "body"], "amqp"), count),
        "to_batches, all columns": (lambda: batches([*COLUMNS["all columns"], "offset"], "amqp"), count),
    }
    for how in (["--format", "raw"], ["--decode", "amqp", "--format", "body"], ["--decode", "amqp"]):
        jobs[" ".join(["read", *how])] = (lambda how=how: _read(folder, how)), count
    return jobs


def _read(folder: str, options: list[str]) -> float:
    """Return the CPU of `offload read`, without that of a read of no message in the same process."""
    command = ["offload", "read", f"{folder}/tier", "orders", *options]
    done = subprocess.run(
        [sys.executable, "-c", IN_PROCESS, json.dumps(command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=True,
        text=True,
    )
    return float(done.stderr)


def _least(jobs: dict[str, tuple[Callable[[], object], int]], rounds: int) -> dict[str, float]:
    """Return the least CPU of each job, in nanoseconds for each message."""
    found = dict.fromkeys(jobs, float("inf"))
    for _ in range(rounds):
        for name, (work, count) in jobs.items():
            begun = time.process_time()
            taken = work()
            seconds = taken if isinstance(taken, float) else time.process_time() - begun
            found[name] = min(found[name], seconds / count * 1e9)
    return found


def _loop() -> float:
    best = float("inf")
    for _ in range(5):
        begun, total = time.process_time(), 0
        for number in range(10**6):
            total += number
        best = min(best, time.process_time() - begun)
    return best


if __name__ == "__main__":
    main()
