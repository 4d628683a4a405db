"""A raw consumer of RabbitMQ's stream protocol, in a process of its own, that counts messages.

    python benchmarks/served_consumer.py PORT STREAM MESSAGES CREDIT

It subscribes when it reads a line from stdin, and prints the seconds until it had all messages. It gives one
credit for each chunk, in one frame for all chunks of a read.
"""

from __future__ import annotations

import struct
import sys
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from stream_client import DELIVER, FIRST, RawClient, frame, text

BUFFER_SIZE_BYTES: Final = 4 * 2**20
HEAD: Final = struct.Struct(">IHHBxxxxI")
"""The size, key, version and subscription of a frame, and the number of records of its chunk."""


def main(port: str, stream: str, messages: str, credit: str) -> None:
    """Consume."""
    client = RawClient.opened(int(port))
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    content = b"\0" + text(stream) + FIRST + struct.pack(">H", int(credit))
    client.ask(7, content)
    consume(client, int(messages))
    print(time.perf_counter() - began, flush=True)


def consume(client: RawClient, messages: int) -> None:
    """Take frames until all messages have come."""
    sock, buffer = client.socket, bytearray(BUFFER_SIZE_BYTES)
    sock.settimeout(60)
    view, head, begin, end, count = memoryview(buffer), HEAD.unpack_from, 0, 0, 0
    for raw in client.others:  # what came before the response
        count += int.from_bytes(raw[9:13], "big") if raw[1] == DELIVER else 0
    if client.others:
        sock.sendall(frame(9, struct.pack(">BH", 0, len(client.others))))
    while count < messages:
        got = sock.recv_into(view[end:])
        if not got:
            raise EOFError(f"the connection ended behind {count} messages")
        end, chunks = end + got, 0
        while end - begin >= HEAD.size:
            size, key, _, _, records = head(buffer, begin)
            if end - begin < 4 + size:
                break
            begin += 4 + size
            if key == DELIVER:
                count, chunks = count + records, chunks + 1
        if chunks:
            sock.sendall(frame(9, struct.pack(">BH", 0, chunks)))
        if end > BUFFER_SIZE_BYTES // 2:
            buffer[: end - begin] = buffer[begin:end]
            begin, end = 0, end - begin


if __name__ == "__main__":
    main(*sys.argv[1:])
