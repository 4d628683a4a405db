"""Write the tier in `format-1`, with a program that still writes fragments of version 1. See README.md."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

from osiris_data import DATA, body_of
from osiris_writer import append_chunks, write_stream

from offload import ObjectStoreOffloader, Plugins, StreamWriter, TierOptions, open_source, sync
from offload.formats.anchor import TierAnchor
from offload.formats.chunk_writer import build_chunk, build_tracking_chunk
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch
from offload.formats.keys import TIER_ANCHOR
from offload.formats.tracking import ConsumerOffset, ProducerSequence, encode_blocks
from offload.ground.env import Env
from offload.model.attempt import Leftover
from offload.model.chunk_table import ChunkType
from offload.read.handles import CutHandle
from offload.store.memory import MemoryStore
from offload.upkeep.compact.stream import compact
from offload.upkeep.retention import Retention, delete_stream, trim
from offload.upkeep.sweep.tier import sweep

UNITS: Final = 8
"""Groups of four chunks: marked messages, tracking, sub-batches, plain messages. 16 offsets each."""


def chunks_of(unit: int) -> list[bytes]:
    """Return the four chunks of a unit."""
    offset, at = 16 * unit, 1_700_000_000_000 + 60_000 * unit
    bodies = [body_of(offset + i) for i in range(16)]
    sequence = ProducerSequence(name=b"publisher", chunk_offset=offset, sequence=unit)
    tracked = ChunkType.TRACKING_DELTA if unit % 2 else ChunkType.TRACKING_SNAPSHOT
    codecs = (Codec.NONE, Codec.GZIP) if unit % 2 else (Codec.ZSTD, Codec.LZ4)
    batches = [SubBatch.of(bodies[6 + 3 * i : 9 + 3 * i], codec) for i, codec in enumerate(codecs)]
    return [
        build_chunk(
            bodies[:4],
            offset=offset,
            timestamp_ms=at,
            epoch=1 + unit // 4,
            filter_values=[b"invoices", None, b"orders", b"orders"],
            trailer=encode_blocks([sequence], chunk_type=ChunkType.USER),
        ),
        build_tracking_chunk(
            [ConsumerOffset(name=b"consumer", offset=offset)],
            chunk_type=tracked,
            offset=offset + 4,
            timestamp_ms=at + 1,
            epoch=1 + unit // 4,
        ),
        build_chunk([bodies[5], *batches], offset=offset + 5, timestamp_ms=at + 2, epoch=1 + unit // 4),
        build_chunk(bodies[12:], offset=offset + 12, timestamp_ms=at + 3, epoch=1 + unit // 4),
    ]


def env_of(seed: int) -> Env:
    """Return an environment that repeats itself: two runs of this script write the same bytes."""
    random, ticks = Random(seed), count()
    return replace(
        Env(),
        uuid=lambda: UUID(int=random.getrandbits(128), version=4),
        random=random.random,
        monotonic=lambda: 0.0,
        now_ms=lambda: 1_700_001_000_000 + next(ticks),
    )


class Old:
    """A tier in memory, and the folder of its source."""

    def __init__(self, source: Path) -> None:
        self.source, self.env = source, env_of(seed=1)
        self.store = MemoryStore(objects={TIER_ANCHOR: TierAnchor(branching_factor=2).encode()})

    def opened(self, *, fragment_size_bytes: int) -> ObjectStoreOffloader:
        return ObjectStoreOffloader(
            self.store,
            env=self.env,
            options=TierOptions(fragment_size_bytes=fragment_size_bytes, uploads_max=1),
        )

    async def sync(self, source: Path, *, fragment_size_bytes: int) -> None:
        offloader = self.opened(fragment_size_bytes=fragment_size_bytes)
        found = open_source(f"rabbitmq://{source}", plugins=Plugins.find())
        await no_errors(sync(found, offloader, env=self.env))

    async def write_orders(self) -> None:
        """Four ledgers: two were synced step by step, one was uploaded and not committed, one is newer."""
        folder = self.source / "orders"
        write_stream(folder, [*chunks_of(0), *chunks_of(1)])
        await self.sync(folder, fragment_size_bytes=500)
        write_stream(folder, chunks_of(2))
        await self.sync(folder, fragment_size_bytes=500)
        append_chunks(folder, [*chunks_of(3), *chunks_of(4)])
        await self.sync(folder, fragment_size_bytes=500)
        offloader = self.opened(fragment_size_bytes=500)
        await trim(offloader, "orders", Retention(before_offset=28), env=self.env)
        write_stream(folder, chunks_of(5))
        await self.upload_and_crash(folder)
        write_stream(folder, [*chunks_of(6), *chunks_of(7)])

    async def upload_and_crash(self, folder: Path) -> None:
        """Upload the newest ledger as a writer that crashes before it commits."""

        async def never(leftover: Leftover) -> bool:
            return False

        [stream] = await open_source(f"rabbitmq://{folder}", plugins=Plugins.find()).streams()
        async with await stream.snapshot() as snapshot:
            offloader = self.opened(fragment_size_bytes=500)
            writer = await StreamWriter.claim(offloader, "orders", agree=never, env=self.env)
            ledger, end = snapshot.ledgers[-1], writer.manifest.next_offset
            [attempt] = await writer.prepare([ledger.ledger_id])
            new = CutHandle(ledger, first_offset=end, next_offset=ledger.next_offset)
            await offloader.offload(new, attempt, manifest=writer.manifest, extra_metadata={"by": "a crash"})

    async def write_tiny(self) -> None:
        """A fragment for each chunk. Then some of them are merged."""
        await self.sync(DATA / "tiny", fragment_size_bytes=1)
        await no_errors(
            compact(self.opened(fragment_size_bytes=900), streams=["tiny"], fragment_size_bytes=900)
        )

    async def write_gone(self) -> None:
        """A stream that was deleted. Its data is there until a sweep."""
        folder = self.source / "gone"
        write_stream(folder, chunks_of(0))
        await self.sync(folder, fragment_size_bytes=500)
        await delete_stream(self.opened(fragment_size_bytes=500), "gone", env=self.env)

    async def write(self) -> None:
        await self.write_orders()
        await self.write_tiny()
        await self.write_gone()
        # Two sweeps that see what is unused, and delete nothing yet.
        for stream in ("tiny", "gone"):
            await sweep(self.opened(fragment_size_bytes=500), stream=stream, env=self.env)


async def no_errors(reports: AsyncIterator[Any]) -> None:
    async for report in reports:
        assert report.error is None, report.error


def main(folder: Path) -> None:
    old = Old(folder / "source")
    asyncio.run(old.write())
    for key, data in old.store.objects.items():
        path = folder / "tier" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
