"""Tiers in memory whose streams are read as Arrow tables, beside the messages that `StreamReader` gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from kit.world import BlockingWorld
from offload_conformance import MemoryLedger

from offload import StreamPart
from offload.opening.tables import ArrowTier

Row = tuple[int, int, int, bytes]
"""The part, offset, timestamp and value of a message."""


@dataclass
class World(BlockingWorld):
    """A tier in memory, and its streams as tables."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.blocking.run(self.blocking.offloader.open(create=True))
        self.tables = ArrowTier.around(self.blocking)

    def begin_part(self, number: int, ledgers: Sequence[MemoryLedger], *, of: str = "orders") -> None:
        """Begin a part of a stream with these ledgers."""
        before = self.blocking.load_manifest(StreamPart(of, number - 1).name)
        part = StreamPart(of, number)
        self.blocking.run(self.blocking.offloader.begin_part(part, before=before))
        self.write(part.name, ledgers)

    def expected(self, stream: str = "orders") -> list[Row]:
        """Return the messages of a stream, as `StreamReader` gives them."""
        return [
            (batch.part, offset, batch.timestamp_ms, body)
            for batch in self.blocking.read(stream)
            for offset, body in enumerate(batch.bodies, batch.offset)
        ]


def rows_of(found: pa.Table | pa.RecordBatch) -> list[Row]:
    """Return the rows of a table with the columns of `ArrowStream.schema`."""
    times = found.column("timestamp").cast(pa.int64()).to_pylist()
    part, offset, value = (found.column(name).to_pylist() for name in ("part", "offset", "value"))
    return list(zip(part, offset, times, value, strict=True))


@contextmanager
def world() -> Iterator[World]:
    made = World()
    with made.tables:
        yield made
