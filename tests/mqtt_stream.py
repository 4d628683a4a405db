"""A stream of RabbitMQ that is bound to `amq.topic`, as files, and what its sorted copy must have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from amqp_messages import DATA, compound, sized
from osiris_writer import TIMESTAMP_MS, append_chunks, write_stream

from offload import build_chunk
from offload.formats.chunk_writer import build_tracking_chunk
from offload.formats.tracking import ConsumerOffset
from offload.model.chunk_table import ChunkType

CHUNK_RECORDS = 50


def amqp_message(key: str | None, body: bytes) -> bytes:
    """Return a message as the broker stores it. Without a key, it has no annotations."""
    if key is None:
        return DATA + sized(0xA0, body)
    pairs = [sized(0xA3, b"x-exchange"), sized(0xA1, b"amq.topic"), sized(0xA3, b"x-routing-key")]
    return b"\0\x53\x72" + compound(0xC1, [*pairs, sized(0xA1, key.encode())]) + DATA + sized(0xA0, body)


@dataclass
class MqttStream:
    """The files of a stream in a folder. Each segment but the first begins with a tracking chunk."""

    folder: Path
    messages: dict[int, tuple[str | None, bytes]] = field(default_factory=dict)
    """The routing key and the record of each offset that is a message."""
    cuts: list[int] = field(default_factory=list)
    """The first offsets of segments."""
    next_offset: int = 0

    def segment(self, keys: Sequence[str | None]) -> None:
        """Write another segment with messages of these routing keys."""
        chunks = list[bytes]()
        if self.cuts:
            chunks.append(
                build_tracking_chunk(
                    [ConsumerOffset(name=b"consumer", offset=0)],
                    chunk_type=ChunkType.TRACKING_SNAPSHOT,
                    offset=self.next_offset,
                    timestamp_ms=TIMESTAMP_MS,
                    epoch=1,
                )
            )
        self.cuts.append(self.next_offset)
        self.next_offset += len(chunks)
        for at in range(0, len(keys), CHUNK_RECORDS):
            here = keys[at : at + CHUNK_RECORDS]
            bodies = [amqp_message(key, b"%d" % (self.next_offset + row)) for row, key in enumerate(here)]
            self.messages |= {
                self.next_offset + row: pair for row, pair in enumerate(zip(here, bodies, strict=True))
            }
            time_ms = TIMESTAMP_MS + self.next_offset
            chunks.append(build_chunk(bodies, offset=self.next_offset, timestamp_ms=time_ms, epoch=1))
            self.next_offset += len(here)
        write_stream(self.folder, chunks)

    def append(self, keys: Sequence[str | None]) -> None:
        """Append messages to the newest segment."""
        bodies = [amqp_message(key, b"%d" % (self.next_offset + row)) for row, key in enumerate(keys)]
        time_ms = TIMESTAMP_MS + self.next_offset
        append_chunks(
            self.folder, [build_chunk(bodies, offset=self.next_offset, timestamp_ms=time_ms, epoch=1)]
        )
        self.messages |= {
            self.next_offset + row: pair for row, pair in enumerate(zip(keys, bodies, strict=True))
        }
        self.next_offset += len(keys)
