"""Ledgers, writers and attempts for the proofs of mistakes in offloaders."""

from __future__ import annotations

from typing import Any

from offload import MemoryHandle
from offload.contracts.ledger import ReadHandle
from offload.formats.chunk_writer import build_chunk, build_tracking_chunk
from offload.formats.tracking import ConsumerOffset
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable, ChunkType
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.upkeep.retention import Retention, trim
from offload.write.writer import StreamWriter


def chunks_of(
    first: int, count: int = 3, *, size: int = 100, time_ms: int = 1_700_000_000_123
) -> list[bytes]:
    """Return chunks of one message each."""
    return [
        build_chunk(
            [bytes([number % 251]) * size], offset=first + number, timestamp_ms=time_ms + number, epoch=1
        )
        for number in range(count)
    ]


def ledger(
    first: int,
    count: int = 3,
    *,
    size: int = 100,
    ledger_id: int | None = None,
    time_ms: int = 1_700_000_000_123,
) -> MemoryHandle:
    """Return a ledger of such chunks."""
    return MemoryHandle(chunks_of(first, count, size=size, time_ms=time_ms), ledger_id=ledger_id)


async def all_of(handle: ReadHandle) -> bytes:
    """Return all bytes that a handle reads."""
    return await handle.read(await handle.table())


async def copied(tier: Any, stream: str, *ledgers: ReadHandle, first: int | None = None) -> StreamWriter:
    """Return a writer that claimed the stream and committed these ledgers."""
    writer = await StreamWriter.claim(
        tier, stream, first_offset=ledgers[0].first_offset if first is None else first
    )
    for each in ledgers:
        await writer.offload([each])
    return writer


async def uploaded(
    tier: Any, writer: StreamWriter, each: ReadHandle, **metadata: str
) -> tuple[Attempt, Receipt]:
    """Return an attempt that is uploaded and not committed."""
    [attempt] = await writer.prepare([each.ledger_id])
    return attempt, await tier.offload(each, attempt, manifest=writer.manifest, extra_metadata=metadata)


async def entries_of(tier: Any, manifest: Manifest) -> list[Entry]:
    """Return the fragments of a manifest."""
    found, at = [], manifest.first_offset
    while (entry := await tier.tree(manifest).find(at)) is not None:
        found.append(entry)
        at = entry.next_offset
    return found


def attempt_of(stream: str, entry: Entry) -> Attempt:
    """Return the attempt of a fragment."""
    return Attempt(stream=stream, ledger_id=entry.ledger_id, uid=entry.attempt)


async def raises(expected: type[BaseException], call: Any) -> BaseException:
    """Await the call, assert that it raises this class of error, and return the error."""
    try:
        found = await call
    except expected as exc:
        return exc
    raise AssertionError(f"expected {expected.__name__}, found {found!r}")


async def trimmed(tier: Any, stream: str, offset: int) -> Manifest:
    """Trim as retention does."""
    return (await trim(tier, stream, Retention(before_offset=offset))).manifest


def tracking(first: int, *, damaged: bool = False) -> MemoryHandle:
    """Return a ledger of one tracking chunk without messages."""
    blocks = [ConsumerOffset(name=b"consumer", offset=1)]
    chunk = build_tracking_chunk(
        blocks, chunk_type=ChunkType.TRACKING_DELTA, offset=first, timestamp_ms=1_700_000_000_000, epoch=1
    )
    bad = chunk[:-1] + bytes([chunk[-1] ^ 1])

    class Tracking(MemoryHandle):
        async def read(self, rows: ChunkTable) -> bytes:
            return bad if damaged else await super().read(rows)

    return Tracking([chunk])
