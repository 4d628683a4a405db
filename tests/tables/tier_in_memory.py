"""Tiers in memory whose streams are read as Arrow tables, beside the messages that `StreamReader` gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from offload_conformance import MemoryLedger

from offload import Blocking, ObjectStoreOffloader, Plugins, StreamPart, StreamWriter
from offload.opening.tables import ArrowTier
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore

Row = tuple[int, int, int, bytes]
"""The part, offset, timestamp and value of a message."""


class World:
    """A tier in memory. `store` counts and fails requests."""

    def __init__(self) -> None:
        self.store = FaultyStore(MemoryStore())
        self.blocking = Blocking.around(lambda: ObjectStoreOffloader(self.store), plugins=Plugins.find())
        self.blocking.run(self.blocking.offloader.open(create=True))
        self.tables = ArrowTier.around(self.blocking)

    def write(self, stream: str, ledgers: Sequence[MemoryLedger]) -> None:
        """Begin a stream with these ledgers."""

        async def written() -> None:
            first = ledgers[0].first_offset
            writer = await StreamWriter.claim(self.blocking.offloader, stream, first_offset=first)
            await writer.offload(ledgers)

        self.blocking.run(written())

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

    def fragments_requested(self) -> int:
        """Return the number of requests for bytes of fragments since the last call."""
        found = sum(call.operation == "get" and call.key.endswith(".fragment") for call in self.store.calls)
        self.store.calls.clear()
        return found


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
