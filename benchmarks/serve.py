"""`offload serve` beside a real RabbitMQ, and with many consumers of one stream in a bucket.

    python benchmarks/serve.py java [--messages 3000000] [--size 120] [--rounds 5]
    python benchmarks/serve.py consumers [--mib 2048] [--consumers 200] [--start 20] [--cache 128MiB]

`java` needs Debian's packages of RabbitMQ (`make servers`), Java 17 and Maven. RabbitMQ and the server have
the same stream, in chunks of some 190 KB, the server in a folder. The client for Java reads all of it from
the one and from the other, in turn, in one process. The first pair of times is left out: Java compiles then.

`consumers` needs MinIO. One consumer reads a stream from a server that has just started. Then as many as
asked read it from another server, each from the first message, started one after the other. It counts the
requests of each server, and the greatest memory. The consumers check the order of chunks, and throw the bytes
away.

Servers and clients share this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import machine

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from first_to_now import OFFLOAD, Killable, java, wait_until_it_listens
from osiris_writer import write_stream
from servers.processes import free_port
from servers.rabbitmq import rabbitmq
from servers.scratch import scratch_folder
from stream_client import CREDIT, DELIVER, FIRST, RawClient, frame, text
from stream_programs import program_in

from offload import build_chunk

STREAM: Final = "a"
CHUNK_SIZE_BYTES: Final = 190_000
MESSAGE_SIZE_BYTES: Final = 1000
CREATE: Final = 13
CREDIT_FIRST: Final = 10
"""What the client for Java gives at first."""

SECONDS: Final = re.compile(r"^[\d.]+ [\d.]+$", re.MULTILINE)

HEAD_SIZE_BYTES: Final = 9 + 48
"""The head of a frame of Deliver, version 1, and the header of its chunk."""

RECORDS: Final = struct.Struct(">I")
CHUNK_ID: Final = struct.Struct(">Q")
RECORDS_AT, CHUNK_ID_AT = 9 + 4, 9 + 24


def main() -> None:
    """Parse arguments, measure, print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["java", "consumers"])
    parser.add_argument("--messages", type=int, default=3_000_000)
    parser.add_argument("--size", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--consumers", type=int, default=200)
    parser.add_argument("--start", type=float, default=20.0)
    parser.add_argument("--cache", default="128MiB")
    given = parser.parse_args()
    with scratch_folder("serve") as scratch:
        measured = by_java(scratch, given) if given.what == "java" else many_consumers(scratch, given)
    print(json.dumps({"machine": machine.description(), **measured}, indent=2))


def chunks(messages: int, size_bytes: int) -> Iterator[bytes]:
    """Yield chunks of messages that begin with their number."""
    records = max(CHUNK_SIZE_BYTES // (size_bytes + 4), 1)
    filler = b"." * (size_bytes - 12)
    for first in range(0, messages, records):
        bodies = [b"%012d" % number + filler for number in range(first, min(first + records, messages))]
        yield build_chunk(bodies, offset=first, timestamp_ms=first, epoch=1)


def sync(source: Path, tier: str) -> None:
    """Copy all streams."""
    subprocess.run([OFFLOAD, "sync", f"rabbitmq://{source}", tier], check=True, stdout=subprocess.DEVNULL)


def by_java(scratch: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the messages a second that the client for Java gets from RabbitMQ and from the server."""
    (folder := scratch / "java").mkdir()
    (at_broker := scratch / "broker").mkdir()
    program, port = program_in("Java", folder), free_port()
    write_stream(scratch / "source" / STREAM, chunks(given.messages, given.size))
    sync(scratch / "source", str(scratch / "tier"))
    with rabbitmq(at_broker) as broker:
        declare(broker.stream_port)
    [files] = broker.streams.glob(f"__{STREAM}_*")
    restored = [OFFLOAD, "restore", str(scratch / "tier"), STREAM, "--files", str(files)]
    subprocess.run(restored, check=True, stdout=subprocess.DEVNULL)
    cores = os.cpu_count() or 1
    with rabbitmq(at_broker, schedulers=cores) as broker, serving(scratch, str(scratch / "tier"), port):
        urls = [f"rabbitmq-stream://guest:guest@127.0.0.1:{each}" for each in (broker.stream_port, port)]
        words = ("compare", urls[0], STREAM, urls[1], given.messages, given.rounds + 1)
        with java(program.folder, log := scratch / "java.log", *words) as running:
            assert running.wait() == 0, log.read_text()
    pairs = [[float(each) for each in line.split()] for line in SECONDS.findall(log.read_text())][1:]
    assert len(pairs) == given.rounds, log.read_text()
    of_broker, of_server = (
        given.messages / statistics.median(pair[which] for pair in pairs) for which in (0, 1)
    )
    return {
        "rabbitmq, messages a second": round(of_broker),
        "offload serve, messages a second": round(of_server),
        "ratio": round(of_server / of_broker, 2),
        "seconds": pairs,
    }


def declare(port: int) -> None:
    """Declare the stream."""
    with RawClient.opened(port) as client:
        client.ask(CREATE, text(STREAM) + bytes(4))


@contextmanager
def serving(scratch: Path, tier: str, port: int, *more: str) -> Iterator[Killable]:
    """Run the server until the end of the block."""
    listen = f"rabbitmq-stream://127.0.0.1:{port}"
    server = Killable([OFFLOAD, "serve", tier, "--listen", listen, *more], scratch / f"serve.{port}")
    try:
        wait_until_it_listens(port, server)
        yield server
    finally:
        server.close()


@dataclass
class Reader:
    """A consumer that throws away what it gets."""

    socket: socket.socket
    head: bytearray
    left: int = 0
    """What is still to come of a frame."""

    next_offset: int = 0
    is_right: bool = True

    def take(self, buffer: bytearray) -> None:
        """Take what has come. A chunk that does not follow the one before is noted."""
        if self.left:
            # The system throws the bytes away, and the buffer stays as it is.
            self.left -= self.socket.recv_into(buffer, min(self.left, len(buffer)), socket.MSG_TRUNC)
            return
        more = self.socket.recv(HEAD_SIZE_BYTES - len(self.head))
        if not more:
            raise EOFError("the server has closed the connection")
        self.head += more
        if len(self.head) < HEAD_SIZE_BYTES:
            return
        size_bytes, key = struct.unpack_from(">IH", self.head)
        assert key == DELIVER, f"a frame with key {key}"
        self.is_right = self.is_right and CHUNK_ID.unpack_from(self.head, CHUNK_ID_AT)[0] == self.next_offset
        self.next_offset += RECORDS.unpack_from(self.head, RECORDS_AT)[0]
        self.left = 4 + size_bytes - HEAD_SIZE_BYTES
        self.head.clear()
        self.socket.send(frame(CREDIT, struct.pack(">BH", 0, 1)))


def read_all(port: int, consumers: int, start_seconds: float, messages: int) -> float:
    """Start so many consumers, evenly over a time. Return the seconds until all have everything."""
    waiting, buffer, begun = selectors.DefaultSelector(), bytearray(2**20), time.monotonic()
    open_, started = 0, 0
    while started < consumers or open_:
        while started < consumers and time.monotonic() - begun >= started * start_seconds / consumers:
            client = RawClient.opened(port)
            client.socket.setblocking(True)
            assert client.subscribe(STREAM, FIRST, credit=CREDIT_FIRST) == 1
            assert not client.others
            waiting.register(client.socket, selectors.EVENT_READ, Reader(client.socket, bytearray()))
            started, open_ = started + 1, open_ + 1
        for key, _ in waiting.select(0.05):
            reader: Reader = key.data
            reader.take(buffer)
            if reader.next_offset == messages and not reader.left:
                assert reader.is_right, "chunks were missing, or came twice"
                waiting.unregister(reader.socket)
                reader.socket.close()
                open_ -= 1
    return time.monotonic() - begun


def many_consumers(scratch: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the requests and the memory for one consumer, and for many."""
    messages = given.mib * 2**20 // MESSAGE_SIZE_BYTES
    write_stream(scratch / "source" / STREAM, chunks(messages, MESSAGE_SIZE_BYTES))
    measured: dict[str, Any] = {"stream, MiB": given.mib, "cache": given.cache}
    with machine.minio() as tier:
        sync(scratch / "source", tier)
        shutil.rmtree(scratch / "source")
        for consumers in (1, given.consumers):
            port, metrics = free_port(), free_port()
            options = ("--cache", given.cache, "--metrics", f"127.0.0.1:{metrics}")
            with serving(scratch, tier, port, *options) as server:
                seconds = read_all(port, consumers, given.start, messages)
                measured[f"{consumers} consumers"] = {
                    "seconds": round(seconds, 1),
                    "MiB a second": round(consumers * given.mib / seconds),
                    "GET requests": total_of("requests", metrics),
                    "MiB fetched": total_of("bytes", metrics) // 2**20,
                    "memory, MiB": memory_mib(server.running.pid),
                }
                print(json.dumps(measured), file=sys.stderr, flush=True)
    return measured


def total_of(what: str, port: int) -> int:
    """Return how many requests for objects the server has sent, or how many bytes it has got by them."""
    pattern = rf'^offload_store_{what}_total\{{[^}}]*operation="get"[^}}]*\}} (\S+)$'
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        found = re.findall(pattern, reply.read().decode(), re.MULTILINE)
    return sum(int(float(each)) for each in found)


def memory_mib(pid: int) -> int:
    """Return the greatest memory of a process so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


if __name__ == "__main__":
    main()
