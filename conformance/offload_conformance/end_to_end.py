"""The layer `end_to_end`: a stream is read back as it was offloaded, by offset and by time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import NotOffloaded
from offload.model.position import AtEdge, AtOffset, AtTime
from offload.read.reader import StreamReader
from offload.write.writer import StreamWriter
from offload_conformance import ledgers
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import Sample, offsets_to_try
from offload_conformance.opened import OpenedOffloaders


class EndToEndConformance(OpenedOffloaders):
    """The clauses on whole streams of many shapes, through any offloader."""

    layer = "end_to_end"

    @pytest.fixture(params=["simple", "sub_batches", "with_tracking", "clock_goes_back", "huge", "tiny"])
    def sample(self, request: pytest.FixtureRequest) -> Sample:
        """Return a stream of each shape."""
        if request.param == "huge":
            return ledgers.huge_chunk(self.huge_chunk_size_bytes)
        if request.param == "tiny":
            return ledgers.tiny_chunks(self.tiny_chunks)
        shape: Callable[[], Sample] = getattr(ledgers, request.param)
        return shape()

    def test_streams_come_out_as_they_went_in(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, sample: Sample
    ) -> None:
        """Ledgers of any shape are read back exactly, from any offset at which a reader may begin."""
        run(writer.offload(sample.ledgers(3)))

        async def scenario() -> None:
            reader = await StreamReader.open(other, "orders")
            assert reader.manifest.next_offset == sample.next_offset
            assert reader.manifest.messages == len(sample.messages)
            assert await messages_from(reader, await reader.offset_of(AtEdge.FIRST)) == sample.messages
            for offset in offsets_to_try(sample):
                assert await reader.offset_of(AtOffset(offset)) == offset
                assert await messages_from(reader, offset, at_most=3) == sample.messages_from(offset)[:3]
            with pytest.raises(NotOffloaded):
                await reader.offset_of(AtOffset(sample.next_offset + 1))

        run(scenario())

    def test_streams_are_found_by_time(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, sample: Sample
    ) -> None:
        """A time leads to the first chunk with that time or a later one, even if clocks went back."""
        run(writer.offload(sample.ledgers(3)))
        times = sorted({at for _, at in sample.times})
        some = times[:: max(1, len(times) // 12)] + times[-1:]

        async def scenario() -> None:
            reader = await StreamReader.open(other, "orders")
            for timestamp_ms in (0, *(at + around for at in some for around in (-1, 0, 1))):
                found = await reader.offset_of(AtTime(timestamp_ms))
                assert found == sample.offset_since(timestamp_ms)
                assert await messages_from(reader, found, at_most=3) == sample.messages_from(found)[:3]

        run(scenario())


async def messages_from(
    reader: StreamReader, offset: int, *, at_most: int | None = None
) -> list[tuple[int, int, bytes]]:
    """Return offset, timestamp and body of every message that a reader gets from `offset` on."""
    found: list[tuple[int, int, bytes]] = []
    batches = reader.messages(offset)
    async for batch in batches:
        found += [(batch.offset + n, batch.timestamp_ms, body) for n, body in enumerate(batch.bodies)]
        if at_most is not None and len(found) >= at_most:
            break
    await batches.aclose()
    return found[:at_most]
