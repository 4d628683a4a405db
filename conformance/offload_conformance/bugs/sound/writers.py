"""Helpers of proofs: bodies of windows, ledgers of chunks, and a writer's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from offload.commit.guest import Delete, Trim, TrimmedTotals, entries_before
from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.catalogue import StreamView
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.formats.chunk_writer import build_chunk, build_tracking_chunk
from offload.log.memory_handle import MemoryHandle
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkType
from offload.model.entry import Entry
from offload.model.manifest import Manifest


def chunks(
    count: int = 3, first: int = 0, *, size: int = 8, tracking: Sequence[int] = (), records: int = 2
) -> bytes:
    """Return chunks of two messages each, except for tracking chunks."""
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


class Handle(MemoryHandle):
    """A ledger of these bytes."""

    def __init__(self, raw: bytes, ledger_id: int = 1) -> None:
        super().__init__([raw], ledger_id=ledger_id, where="a ledger")


class StepWriter:
    """The steps of a stream's writer, one by one."""

    manifest: Manifest | None = None

    def __init__(self, tier: Any, stream: str, first: int) -> None:
        self.tier, self.stream, self.uid, self.first = tier, stream, uuid4(), first

    async def commit(self, change: Change) -> Manifest:
        """Commit a change on the manifest that the writer holds."""
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
        """Upload a ledger without a commit."""
        attempt = await self.prepare(ledger_id)
        handle = Handle(raw, ledger_id)
        receipt: Receipt = await self.tier.offload(
            handle, attempt, manifest=self.manifest, extra_metadata=metadata or {}
        )
        return receipt

    def append(self, receipt: Receipt) -> Append:
        return Append(writer=self.uid, entries=receipt.entries, finished=frozenset({receipt.attempt.uid}))

    async def add(self, raw: bytes, ledger_id: int = 1) -> Receipt:
        """Upload and commit a ledger."""
        receipt = await self.upload(raw, ledger_id)
        await self.commit(self.append(receipt))
        return receipt

    async def trim(self, receipt: Receipt) -> None:
        """Trim the records of this receipt, which is the first of the stream."""
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


async def writer(tier: Any, stream: str = "s", first: int = 0) -> StepWriter:
    """Return a writer that has claimed the stream."""
    made = StepWriter(tier, stream, first)
    await made.claim()
    return made


async def removed(tier: LedgerOffloader) -> tuple[StreamView, Entry, ReadHandle]:
    """Return an older view, its first entry, and an older handle on it. The entry was since trimmed and
    deleted.
    """
    w = await writer(tier)
    receipt = await w.add(chunks(2))
    await w.add(chunks(2, 4), 2)
    view, entry = await tier.view("s"), receipt.entries[0]
    handle = await view.open(entry)
    await w.trim(receipt)
    await tier.delete_offloaded(receipt.attempt)
    return view, entry, handle
