"""A store as RocketMQ's broker writes it, with small files, and damage to its files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from offload_rocketmq.record import BLANK_HEAD, BLANK_MAGIC, BODY_CRC_MASK, RECORD_HEAD
from offload_rocketmq.units import UNIT, tag_code

from offload.formats.checksums import crc32


def encoded(
    topic: str,
    queue: int,
    offset: int,
    position: int,
    body: bytes,
    *,
    properties: bytes = b"",
    store_ms: int = 1_700_000_000_000,
    sys_flag: int = 0,
) -> bytes:
    """Return a record of version 1, or of version 2 if the topic is long. Both hosts are in IPv4."""
    name = topic.encode()
    magic, width = (0xDAA320AB, 2) if len(name) > 127 else (0xDAA320A7, 1)
    size = 88 + len(body) + width + len(name) + 2 + len(properties)
    head = RECORD_HEAD.pack(
        size_bytes=size,
        magic=magic,
        body_crc=crc32(body) & BODY_CRC_MASK,
        queue_id=queue,
        flag=0,
        queue_offset=offset,
        physical_offset=position,
        sys_flag=sys_flag,
        born_ms=store_ms - 5,
    )
    host = bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F])
    return b"".join(
        (
            head,
            host,
            store_ms.to_bytes(8, "big"),
            host,
            bytes(12),
            len(body).to_bytes(4, "big") + body,
            len(name).to_bytes(width, "big") + name,
            len(properties).to_bytes(2, "big") + properties,
        )
    )


@dataclass
class BrokerStore:
    """The store in a folder. Each message is `span_ms` later than the one before."""

    folder: Path
    log_size: int = 4096
    queue_units: int = 8
    span_ms: int = 2000
    records: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    """All records of each queue, also those whose files were deleted."""
    positions: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    end: int = 0
    count: int = 0

    def append(
        self, topic: str, queue: int, body: bytes, *, properties: bytes = b"", sys_flag: int = 0
    ) -> int:
        """Write a message and its unit. Return its position in the log."""
        key = topic, queue
        written = self.records.setdefault(key, [])

        def record(position: int) -> bytes:
            return encoded(
                topic,
                queue,
                len(written),
                position,
                body,
                properties=properties,
                sys_flag=sys_flag,
                store_ms=1_700_000_000_000 + self.count * self.span_ms,
            )

        left = self.log_size - self.end % self.log_size
        if len(record(0)) + 8 > left:
            self._write(self.log_file(self.end), self.end % self.log_size, _blank(left), self.log_size)
            self.end += left
        position, raw = self.end, record(self.end)
        self._write(self.log_file(position), position % self.log_size, raw, self.log_size)
        unit = UNIT.pack(position=position, size_bytes=len(raw), tag_code=tag_code(""))
        self.put_unit(topic, queue, len(written), unit)
        self.end, self.count = position + len(raw), self.count + 1
        written.append(raw)
        self.positions.setdefault(key, []).append(position)
        return position

    def put_unit(self, topic: str, queue: int, offset: int, unit: bytes) -> None:
        """Write a unit in the place of another one, or behind all."""
        size = self.queue_units * UNIT.size_bytes
        self._write(self.queue_file(topic, queue, offset), offset * UNIT.size_bytes % size, unit, size)

    def delete_log(self, *, before: int) -> None:
        """Delete the files of the log before a position, and the files of queues that name nothing else."""
        for file in sorted((self.folder / "commitlog").iterdir()):
            if int(file.name) + self.log_size <= before:
                file.unlink()
        first = min(int(file.name) for file in (self.folder / "commitlog").iterdir())
        for (topic, queue), positions in self.positions.items():
            for at in range(0, len(positions) - self.queue_units, self.queue_units):
                if positions[at + self.queue_units - 1] < first:
                    self.queue_file(topic, queue, at).unlink(missing_ok=True)

    def log_file(self, position: int) -> Path:
        """Return the file of the log that has this position."""
        return self.folder / "commitlog" / f"{position // self.log_size * self.log_size:020}"

    def queue_file(self, topic: str, queue: int, offset: int) -> Path:
        """Return the file of the queue that has the unit of this offset."""
        start = offset // self.queue_units * self.queue_units * UNIT.size_bytes
        return self.folder / "consumequeue" / topic / str(queue) / f"{start:020}"

    def flip(self, position: int) -> None:
        """Change a byte of the log."""
        file = self.log_file(position)
        raw = bytearray(file.read_bytes())
        raw[position % self.log_size] ^= 0xFF
        file.write_bytes(raw)

    @staticmethod
    def _write(file: Path, at: int, raw: bytes, size: int) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("r+b" if file.exists() else "w+b") as opened:
            os.truncate(opened.fileno(), size)
            opened.seek(at)
            opened.write(raw)


def _blank(size: int) -> bytes:
    return BLANK_HEAD.pack(size_bytes=size, magic=BLANK_MAGIC)
