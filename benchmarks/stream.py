"""A RabbitMQ stream of any size for benchmarks, with the shape of one that a real broker wrote.

Chunks have 244 to 500 messages. Each message is one AMQP 1.0 data section around a JSON text of 70 to 140
bytes. Segments have 500,000,000 bytes, the broker's default. The texts repeat after 200,000 messages, which
makes the stream quick to write; offsets, timestamps and checksums do not repeat.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # has the writer of osiris folders

from osiris_data import body_of
from osiris_writer import write_stream

from offload.formats.chunk_writer import seal_chunk
from offload.formats.entries import encode_entries

MESSAGES = 200_000
FIRST_TIMESTAMP_MS = 1_795_238_999_599


def record_of(body: bytes) -> bytes:
    """Return a record in the form of the usual stream clients: one AMQP 1.0 data section."""
    return b"\x00\x53\x75\xa0" + bytes([len(body)]) + body


def write(folder: Path, size_bytes: int) -> int:
    """Write a stream of about `size_bytes` into `folder`; return its number of messages."""
    return write_stream(folder, _chunks(size_bytes))


def _chunks(size_bytes: int) -> Iterator[bytes]:
    sections = list(_sections())
    written = offset = number = 0
    while written < size_bytes:
        count, data = sections[number % len(sections)]
        timestamp_ms = FIRST_TIMESTAMP_MS + 12 * number
        chunk = seal_chunk(
            data, entries=count, records=count, offset=offset, timestamp_ms=timestamp_ms, epoch=1
        )
        yield chunk
        written, offset, number = written + len(chunk), offset + count, number + 1


def _sections() -> Iterator[tuple[int, bytes]]:
    """Yield the data of chunks of 256, 244 and 500 messages in turn, as bursts of 2,000 produced them."""
    first = 0
    while first < MESSAGES:
        for count in (256, 244, 500, 500, 500):
            yield count, encode_entries([record_of(body_of(i)) for i in range(first, first + count)])
            first += count
