"""For the proofs of the second set: bodies of windows, ledgers of chunks, and a stream's writer by steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

from offload.commit.guest import Delete, Trim, TrimmedTotals, entries_before
from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Body
from offload.formats.chunk import scan
from offload.formats.chunk_writer import build_chunk, build_tracking_chunk
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable, ChunkType
from offload.model.manifest import Manifest


def windows(*parts: bytes) -> Body:
    """A body of these windows, each of which takes a turn of the loop."""

    async def each() -> AsyncIterator[bytes]:
        for part in parts:
            await asyncio.sleep(0)
            yield part

    return Body(size_bytes=sum(map(len, parts)), windows=each)


def chunks(
    count: int = 3, first: int = 0, *, size: int = 8, tracking: Sequence[int] = (), records: int = 2
) -> bytes:
    """Chunks of two messages each, but for those that are tracking."""
    raw, offset = [], first
    for number in range(count):
        about = {"offset": offset, "timestamp_ms": 1000 + number, "epoch": 1}
        if number in tracking:
            raw.append(build_tracking_chunk([], chunk_type=ChunkType.TRACKING_DELTA, **about))
            offset += 1
        else:
            raw.append(build_chunk([bytes([number % 256]) * size] * records, **about))
            offset += records
    return b"".join(raw)


class Handle(ReadHandle):
    """A ledger of these bytes."""

    def __init__(self, raw: bytes, ledger_id: int = 1) -> None:
        self.raw, self._ledger_id = raw, ledger_id
        self._table = scan(raw, where="a ledger")

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    @property
    def first_offset(self) -> int:
        return int(self._table["offset"][0])

    @property
    def next_offset(self) -> int:
        return int(self._table["offset"][-1] + self._table["records"][-1])

    @property
    def where(self) -> str:
        return "a ledger"

    async def table(self) -> ChunkTable:
        return self._table.copy()

    async def read(self, rows: ChunkTable) -> bytes:
        start = int(rows["position"][0])
        return self.raw[start : start + int(rows["size_bytes"].sum())]

    async def aclose(self) -> None:
        pass


class Writer:
    """The steps of a stream's writer, one by one."""

    manifest: Manifest | None = None

    def __init__(self, tier: Any, stream: str, first: int) -> None:
        self.tier, self.stream, self.uid, self.first = tier, stream, uuid4(), first

    async def commit(self, change: Change) -> Manifest:
        """On the manifest that the writer holds."""
        base = self.manifest
        self.manifest = await self.tier.commit_manifest(self.stream, change, base=base, committer=self.uid)
        return self.manifest

    async def claim(self) -> None:
        await self.tier.open(create=True)
        await self.commit(Claim(stream=self.stream, writer=self.uid, first_offset=self.first))

    async def prepare(self, ledger_id: int = 1) -> Attempt:
        uid = uuid4()
        await self.commit(Prepare(writer=self.uid, attempts=[(uid, ledger_id)]))
        return Attempt(stream=self.stream, ledger_id=ledger_id, uid=uid)

    async def upload(
        self, raw: bytes, ledger_id: int = 1, metadata: Mapping[str, str] | None = None
    ) -> Receipt:
        """Without a commit."""
        attempt = await self.prepare(ledger_id)
        handle = Handle(raw, ledger_id)
        receipt: Receipt = await self.tier.offload(
            handle, attempt, manifest=self.manifest, extra_metadata=metadata or {}
        )
        return receipt

    def append(self, receipt: Receipt) -> Append:
        return Append(writer=self.uid, entries=receipt.entries, finished=frozenset({receipt.attempt.uid}))

    async def add(self, raw: bytes, ledger_id: int = 1) -> Receipt:
        """Upload and commit."""
        receipt = await self.upload(raw, ledger_id)
        await self.commit(self.append(receipt))
        return receipt

    async def trim(self, receipt: Receipt) -> None:
        """Trim what this receipt, the first of the stream, made durable."""
        self.manifest = newest = await self.tier.load_manifest(self.stream)
        [entry] = receipt.entries
        dropped = TrimmedTotals(
            messages=entry.messages,
            data_size_bytes=entry.data_size_bytes,
            stored_size_bytes=entry.stored_size_bytes,
            fragments=1,
            ledgers=1,
        )
        change = Trim(
            incarnation=newest.incarnation,
            since=newest.first_offset,
            first_offset=entry.next_offset,
            dropped=dropped,
            counted=entries_before(newest, entry.next_offset),
        )
        await self.commit(change)

    async def delete(self) -> None:
        await self.commit(Delete(incarnation=self.manifest.incarnation))


async def writer(tier: Any, stream: str = "s", first: int = 0) -> Writer:
    """A writer that has claimed the stream."""
    made = Writer(tier, stream, first)
    await made.claim()
    return made
