"""Copies: fragments that replace others without any change for readers.

The clauses take the steps of a compaction, through the contract alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from uuid import uuid4

import pytest

from offload.contracts.catalogue import StreamView
from offload.contracts.offloader import LedgerOffloader
from offload.formats.chunk_writer import build_chunk
from offload.ground.errors import Absent, Conflict, NotOffloaded
from offload.model.entry import Entry
from offload.write.job import Job
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import BIRTH_MS, EPOCH, MemoryLedger, ledger_of, refuse_reads
from offload_conformance.offloader.base import (
    OffloaderClauses,
    chunks_in,
    chunks_of,
    committed,
    copied,
    named,
    stored,
)
from offload_conformance.offloader.views import names_in
from offload_conformance.opened import KIB
from offload_conformance.raising import raises

LEDGER: Final = 7

PARTS: Final = 6
"""The number of attempts at one ledger that are committed one after the other."""

KEPT: Final = ("first_offset", "next_offset", "messages", "data_size_bytes", "ledgers", "last_ledger_id")
"""Fields of a manifest that copies do not change."""


class CopyClauses(OffloaderClauses):
    """The clauses on copies: they replace the copied fragments and nothing else."""

    def test_copies_change_nothing_that_is_read(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """After copies replaced fragments, the stream reads as before, also in an older view.

        Its totals stay the same, except the number of fragments. Replaced attempts can be deleted and no
        longer read.
        """
        parts = [ledger_of(2, first_offset=2 * n).chunks for n in range(PARTS)]
        chunks = [chunk for part in parts for chunk in part]
        attempts = [run(committed(writer, MemoryLedger(part, ledger_id=LEDGER))) for part in parts]
        begin, end = sorted(random.sample(range(PARTS), 2))

        async def scenario() -> None:
            older = await other.view("orders")
            entries, names = await named(other, writer.manifest), await names_in(older)
            old = [entry for entry in entries if 2 * begin <= entry.first_offset < 2 * end]
            ledger = MemoryLedger(chunks[2 * begin : 2 * end], ledger_id=LEDGER)
            copy = await copied(offloader, old, ledger)

            for client in (offloader, other):
                newest = await client.load_manifest("orders")
                found, view = await named(client, newest), await client.view("orders")
                assert newest.fragments == len(found)
                for name in KEPT:
                    assert (name, getattr(newest, name)) == (name, getattr(older.committed, name))
                assert await read(view, found) == chunks
                stand = [name for entry, name in zip(entries, names, strict=True) if entry not in old]
                assert [name for name in names if await view.names(name)] == stand
                for entry in old:
                    there = await view.find(entry.first_offset)
                    assert there in found, f"found {there} at {entry.first_offset}"
                assert await chunks_of(client, copy) == [*ledger.chunks]
                with raises(Conflict, "the deletion of a copy that the stream names"):
                    await client.delete_offloaded(copy)
                for attempt in attempts[begin:end]:
                    with raises(NotOffloaded, "a read of a replaced attempt"):
                        await client.read_offloaded(attempt)
            with suppress(Absent):  # an older view may have lost the replaced fragments
                assert await read(older, entries) == chunks, "an older view"
            for attempt in attempts[begin:end]:
                await other.delete_offloaded(attempt)
            assert await read(await other.view("orders"), found) == chunks

        run(scenario())

    def test_attempts_are_not_read_with_a_hole(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Reading an attempt whose middle was replaced raises `NotOffloaded`; its other parts can be read."""
        ledger = ledger_of(12, body_size_bytes=100 * KIB)
        [attempt] = run(writer.prepare([ledger.ledger_id]))
        receipt = run(stored(writer, ledger, attempt))
        run(writer.append([receipt]))
        entries = receipt.entries
        if len(entries) < 3:
            return  # stored in one or two fragments, it has no middle

        async def scenario() -> None:
            begin, end = entries[1].first_offset, entries[-1].first_offset
            midst = MemoryLedger(ledger.chunks[begin:end], ledger_id=ledger.ledger_id)
            await copied(offloader, entries[1:-1], midst)
            for client in (offloader, other):
                with raises(NotOffloaded, "a read of an attempt whose middle was replaced"):
                    await client.read_offloaded(attempt)
                with raises(Conflict, "the deletion of a partly committed attempt"):
                    await client.delete_offloaded(attempt)
                for only in (range(begin), range(end, 12)):
                    assert await chunks_of(client, attempt, only=only) == [
                        *ledger.chunks[only.start : only.stop]
                    ]

        run(scenario())

    @pytest.mark.parametrize(("begin", "end"), [(1, 6), (0, 5), (0, 12), (12, 18)])
    def test_copies_begin_and_end_as_fragments_do(
        self, run: Run, offloader: LedgerOffloader, writer: StreamWriter, begin: int, end: int
    ) -> None:
        """A copy that does not begin and end at fragments is refused with `Conflict`, before it is read."""
        # Each is one chunk, so each is one fragment, whatever an offloader's fragments are.
        for first in (0, 3, 6):
            chunk = build_chunk([b"of three"] * 3, offset=first, timestamp_ms=BIRTH_MS, epoch=EPOCH)
            run(committed(writer, MemoryLedger([chunk], ledger_id=LEDGER)))
        chunks = ledger_of(18).chunks

        async def scenario() -> None:
            job = await Job.begin(offloader, "orders", uid=uuid4())
            found = await named(offloader, job.manifest)
            manifest, [attempt] = await job.prepare_copies([found[:1]])
            ledger = MemoryLedger(chunks[begin:end], ledger_id=LEDGER)
            ledger.before_read = refuse_reads
            with raises(Conflict, f"a copy of [{begin}, {end}) over fragments of 3 records"):
                await offloader.offload(ledger, attempt, manifest=manifest, extra_metadata={})

        run(scenario())


async def read(view: StreamView, entries: Sequence[Entry]) -> list[bytes]:
    """Read every chunk of these fragments, opened by the view."""
    return [chunk for entry in entries for chunk in await chunks_in(await view.open(entry))]
