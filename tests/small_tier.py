"""A small tier in memory with one object of every kind. Tests damage each of its bytes in turn.

It has two streams: `tiny`, as RabbitMQ wrote it, and `marked`, whose chunks have bloom filters and tracking
trailers, with tracking chunks between them. `marked` was synced twice, so it has superseded roots and two
ledgers. Two writers crashed on it, each after the upload of a fragment. The second dropped the attempt of
the first, and its own is still running. Groups take two entries here, so the first two of the three
fragments of `marked` are in a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from osiris_data import DATA
from osiris_writer import append_chunks, write_stream

from offload import Messages, ObjectStoreOffloader, Plugins, StreamReader, StreamWriter, open_source
from offload import sync as sync_all
from offload.formats.anchor import TierAnchor
from offload.formats.chunk_writer import build_chunk, build_tracking_chunk
from offload.formats.keys import TIER_ANCHOR
from offload.formats.tracking import ConsumerOffset, ProducerSequence, encode_blocks
from offload.ground.errors import OffloadError
from offload.model.attempt import Leftover
from offload.model.chunk_table import ChunkType
from offload.read.handles import CutHandle
from offload.store.memory import MemoryStore

Objects = dict[str, bytes]
Delivered = list[tuple[int, int, bytes]]
"""The offset, timestamp and body of each message."""

MARKED_MESSAGES = 5 * 4


def marked_chunks(count: int, *, first_number: int = 0) -> list[bytes]:
    """Return pairs of a user chunk of 4 messages, with filter and trailer, and a tracking chunk behind it."""
    chunks = []
    for number in range(first_number, first_number + count):
        offset, timestamp_ms = number * 5, 1000 * number
        sequence = ProducerSequence(name=b"publisher", chunk_offset=offset, sequence=number)
        bodies = [b"message %d" % (offset + i) for i in range(4)]
        chunks += [
            build_chunk(
                bodies,
                offset=offset,
                timestamp_ms=timestamp_ms,
                epoch=1,
                filter_values=[b"invoices", None, b"orders", b"orders"],
                trailer=encode_blocks([sequence], chunk_type=ChunkType.USER),
            ),
            build_tracking_chunk(
                [ConsumerOffset(name=b"consumer", offset=offset)],
                chunk_type=ChunkType.TRACKING_DELTA,
                offset=offset + 4,
                timestamp_ms=timestamp_ms + 1,
                epoch=1,
            ),
        ]
    return chunks


def make(folder: Path) -> Objects:
    """Return the objects of the tier. `folder` holds the source while the tier is built."""
    return asyncio.run(_make(folder))


def read(
    objects: Mapping[str, bytes], stream: str, first_offset: int = 0
) -> tuple[Delivered, OffloadError | None]:
    """Return the messages that a reader gets from this offset on, and the error that ends it, if any."""
    return asyncio.run(_read(dict(objects), stream, first_offset))


async def _make(folder: Path) -> Objects:
    store = MemoryStore(objects={TIER_ANCHOR: TierAnchor(branching_factor=2).encode()})
    offloader = ObjectStoreOffloader(store)
    await _sync(DATA / "tiny", offloader)
    source = folder / "marked"
    write_stream(source, marked_chunks(2))
    await _sync(source, offloader)
    append_chunks(source, marked_chunks(1, first_number=2))
    write_stream(source, marked_chunks(2, first_number=3))
    await _sync(source, offloader)

    write_stream(source, marked_chunks(2, first_number=5))
    for _ in range(2):
        await _upload_and_crash(source, offloader)
    return store.objects


async def _sync(source: Path, offloader: ObjectStoreOffloader) -> None:
    async for report in sync_all(open_source(f"rabbitmq://{source}", plugins=Plugins.find()), offloader):
        assert report.error is None, report.error


async def _upload_and_crash(source: Path, offloader: ObjectStoreOffloader) -> None:
    """Run a writer that claims the stream, adopts nothing, uploads the new data, and crashes."""

    async def never(leftover: Leftover) -> bool:
        return False

    [stream] = await open_source(f"rabbitmq://{source}", plugins=Plugins.find()).streams()
    async with await stream.snapshot() as snapshot:
        base = await offloader.load_manifest("marked")
        writer = await StreamWriter.claim(offloader, "marked", base=base, agree=never)
        ledger = snapshot.ledgers[-1]
        [attempt] = await writer.prepare([ledger.ledger_id])
        new = CutHandle(ledger, first_offset=writer.manifest.next_offset, next_offset=ledger.next_offset)
        await offloader.offload(new, attempt, manifest=writer.manifest, extra_metadata={"by": "nobody"})


async def _read(objects: Objects, stream: str, first_offset: int) -> tuple[Delivered, OffloadError | None]:
    offloader = ObjectStoreOffloader(MemoryStore(objects=objects))
    delivered: Delivered = []
    try:
        reader = await StreamReader.open(offloader, stream)
        async for batch in reader.messages(first_offset):
            delivered += _rows(batch)
    except OffloadError as error:
        return delivered, error
    return delivered, None


def _rows(batch: Messages) -> Delivered:
    return [(batch.offset + k, batch.timestamp_ms, body) for k, body in enumerate(batch.bodies)]
