"""The decisions of a transfer before and after its tasks, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_conformance import ledger_of
from offload_spark.jobs.transfer_tasks import tasks_of

from offload import ObjectStoreOffloader, StreamWriter
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Absent, Corrupt
from offload.model.attempt import Leftover
from offload.model.entry import Entry
from offload.store.memory import MemoryStore
from offload.upkeep.copy.transfer import (
    AnnouncedRange,
    Fetch,
    Reach,
    TransferRange,
    chained,
    end_of,
    read_back,
    upload,
)
from offload.write.job import Job

ONE, OTHER = UUID(int=1), UUID(int=2)
OWN = {ONE: 0, OTHER: 0}


def left(first_offset: int, next_offset: int, attempt: UUID = ONE, *, ledger_id: int = 0) -> Leftover:
    entry = Entry(
        first_offset=first_offset,
        records=next_offset - first_offset,
        messages=0,
        first_timestamp_ms=0,
        last_timestamp_ms=0,
        data_size_bytes=1,
        stored_size_bytes=1,
        ledger_id=ledger_id,
        attempt=attempt,
        checksum=0,
    )
    return Leftover(entry=entry, last_chunk_offset=first_offset, last_chunk_checksum=0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], []),
        ([left(15, 20), left(10, 15)], [(10, 15), (15, 20)]),  # whatever order tasks end in
        ([left(10, 15), left(16, 20)], [(10, 15)]),  # a hole ends it
        ([left(11, 15)], []),
        ([left(0, 10), left(10, 15)], [(10, 15)]),  # committed already
        ([left(10, 15), left(10, 15, OTHER), left(15, 20, OTHER)], [(10, 15), (15, 20)]),  # each offset once
        ([left(10, 15), left(15, 20, OTHER), left(20, 25)], [(10, 15), (15, 20), (20, 25)]),  # a hole filled
        ([left(10, 15, ledger_id=7)], []),  # not of the ledger that was announced
    ],
)
def test_only_fragments_without_a_hole_are_taken_over(
    found: Sequence[Leftover], expected: list[tuple[int, int]]
) -> None:
    receipts = chained("orders", 10, found, OWN)

    entries = sorted((entry for each in receipts for entry in each.entries), key=lambda e: e.first_offset)
    assert [(entry.first_offset, entry.next_offset) for entry in entries] == expected
    assert end_of(receipts, 10) == max([10, *(stop for _, stop in expected)])
    for receipt in receipts:
        assert {entry.attempt for entry in receipt.entries} == {receipt.attempt.uid}


class InMemory(Reach):
    """An origin with one ledger."""

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Fetch, None]:
        async def fetch(wanted: TransferRange) -> ReadHandle:
            return ledger_of(10)

        yield fetch


def test_a_damaged_or_missing_fragment_fails_when_it_is_read_back() -> None:
    async def main() -> None:
        objects: dict[str, bytes] = {}
        offloader = ObjectStoreOffloader(MemoryStore(objects=objects))
        await StreamWriter.claim(offloader, "orders")
        job = await Job.begin(offloader, "orders")
        _, (attempt,) = await job.prepare([0])
        wanted = TransferRange(stream="orders", ledger_id=0, first_offset=2, next_offset=7)
        piece = AnnouncedRange(
            wanted=wanted, incarnation=job.manifest.incarnation, job=job.uid, attempt=attempt.uid
        )

        receipts = await upload(offloader, InMemory(), [piece], is_first=True)

        assert [(each.first_offset, each.next_offset) for each in receipts[0].entries] == [(2, 7)]
        await read_back(offloader, receipts)
        (key,) = [key for key in objects if key.endswith(".fragment")]
        sound = objects[key]
        for at in (0, 100, len(sound) - 1):
            objects[key] = sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :]
            with pytest.raises(Corrupt):
                await read_back(offloader, receipts)
        del objects[key]
        with pytest.raises(Absent):
            await read_back(offloader, receipts)

    asyncio.run(main())


@given(sizes=st.lists(st.integers(0, 400 * 2**20)), slots=st.integers(1, 64))
def test_small_pieces_share_a_task_and_each_is_in_one(sizes: list[int], slots: int) -> None:
    pieces = [
        AnnouncedRange(
            wanted=TransferRange(
                stream="orders", ledger_id=i, first_offset=i, next_offset=i + 1, size_bytes=size
            ),
            incarnation=UUID(int=2),
            job=UUID(int=1),
            attempt=UUID(int=i),
        )
        for i, size in enumerate(sizes)
    ]

    tasks = [*tasks_of(pieces, slots)]

    assert [piece for task in tasks for piece in task] == pieces
    for task in tasks:
        assert len(task) == 1 or sum(piece.size_bytes for piece in task) <= 256 * 2**20
        assert len(task) == 1 or all(piece.size_bytes for piece in task)
