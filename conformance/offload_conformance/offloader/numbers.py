"""Numbers of any size: offsets, ledger ids and epochs that exceed 32 bits, or the precision of a double."""

from __future__ import annotations

import random
from typing import Final
from uuid import uuid4

import pytest

from offload.contracts.offloader import LedgerOffloader
from offload.formats.chunk_writer import build_chunk
from offload.ground.errors import Misuse, NotOffloaded
from offload.model.attempt import Attempt, Receipt
from offload.model.position import AtEdge, AtOffset
from offload.read.reader import StreamReader
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import EPOCH, MemoryLedger, drawn_ledger, ledger_of, refuse_reads
from offload_conformance.offloader.base import (
    OffloaderClauses,
    chunks_in,
    chunks_of,
    committed,
    deleted,
    named,
    span,
    stored,
    trim_of,
    trim_to,
)
from offload_conformance.offloader.edges import KINDS
from offload_conformance.offloader.views import walked
from offload_conformance.raising import raises
from offload_conformance.same import POSITION, assert_same

EDGES: Final = {"2^31": 2**31, "2^32": 2**32, "2^53": 2**53}
"""One more than the largest value of a signed int, of an unsigned int, and of a JavaScript number."""

SIGNED: Final = 2**63
"""The first number that a signed column of 64 bits cannot hold. A backend may refuse offsets from here on."""


class NumberClauses(OffloaderClauses):
    """The clauses on numbers: offsets and ledger ids are neither floats nor integers of 32 bits."""

    @pytest.mark.parametrize("edge", [*EDGES.values(), SIGNED], ids=[*EDGES, "2^63"])
    def test_numbers_are_exact(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, edge: int
    ) -> None:
        """Offsets, ledger ids and epochs near 2^31, 2^32, 2^53 and 2^63 are kept, found and read exactly.

        Offsets of 2^63 and more may be refused with `Misuse`, before the ledger is read.
        """
        begin = edge - random.randint(1, 9)
        one = until_rounded_down(begin, ledger_id=edge - 1)
        two = until_rounded_down(one.next_offset, ledger_id=edge + 1)
        end, source_epoch = two.next_offset, edge + random.randrange(1, 10, 2)  # odd: no double has it
        claim = StreamWriter.claim(offloader, "orders", first_offset=begin, source_epoch=source_epoch)
        writer = run(claim)
        attempts = run(writer.prepare([one.ledger_id, two.ledger_id]))
        running = run(other.load_manifest("orders")).running
        assert [each.ledger_id for each in running] == [edge - 1, edge + 1]
        of_two = run(self.stored_or_refused(writer, two, attempts[1]))
        if of_two is None:
            run(self.crossing_is_refused_or_read(offloader, edge))
            return
        of_one = run(stored(writer, one, attempts[0]))
        run(writer.append([of_one, of_two]))

        manifest = run(other.load_manifest("orders"))
        assert (manifest.first_offset, manifest.next_offset) == (begin, end)
        assert (manifest.last_ledger_id, manifest.source_epoch) == (edge + 1, source_epoch)
        for ledger, attempt in zip((one, two), attempts, strict=True):
            assert run(chunks_of(other, attempt)) == [*ledger.chunks]
            for offset in (ledger.first_offset, random.randrange(ledger.first_offset, ledger.next_offset)):
                entry = run(other.tree(manifest).find(offset))
                assert entry is not None
                assert (entry.attempt, entry.ledger_id) == (attempt.uid, ledger.ledger_id)
                assert run(chunks_of(other, attempt, only=range(offset, offset + 1)))
            with pytest.raises(NotOffloaded):
                run(other.read_offloaded(attempt, only=range(ledger.next_offset, ledger.next_offset + 1)))
        run(self.found(other, begin, end))
        run(self.viewed(other, one, two))

        trim, base = trim_of(writer, of_one), writer.manifest
        trimmed = run(offloader.commit_manifest("orders", trim, base=base, committer=uuid4()))
        assert (trimmed.first_offset, trimmed.next_offset) == (two.first_offset, end)
        run(deleted(writer))
        reborn = run(StreamWriter.claim(other, "orders", first_offset=end))
        assert run(offloader.load_manifest("orders")).first_offset == end
        assert reborn.manifest.source_epoch == source_epoch

    async def stored_or_refused(
        self, writer: StreamWriter, ledger: MemoryLedger, attempt: Attempt
    ) -> Receipt | None:
        """Offload a ledger without committing it.

        Return None if the backend refuses offsets of 2^63 and more.
        """
        try:
            return await stored(writer, ledger, attempt)
        except Misuse:
            if ledger.next_offset < SIGNED:
                raise
        ledger.before_read = refuse_reads
        with pytest.raises(Misuse):
            await stored(writer, ledger, attempt)
        return None

    async def crossing_is_refused_or_read(self, offloader: LedgerOffloader, edge: int) -> None:
        """Assert that a ledger that crosses an edge is refused, or kept."""
        writer = await StreamWriter.claim(offloader, "crossing", first_offset=edge - 2)
        ledger = MemoryLedger(ledger_of(4, first_offset=edge - 2).chunks, ledger_id=1)
        [attempt] = await writer.prepare([ledger.ledger_id])
        if (receipt := await self.stored_or_refused(writer, ledger, attempt)) is not None:
            await writer.append([receipt])
            assert await chunks_of(offloader, attempt) == [*ledger.chunks]

    async def viewed(self, other: LedgerOffloader, *parts: MemoryLedger) -> None:
        """Assert that a view finds the first and last offset of each fragment, and no offset outside."""
        view = await other.view("orders")
        for part in parts:
            for offset in (part.first_offset, part.next_offset - 1):
                found = span(await view.find(offset))
                holds = found is not None and offset in range(*found)
                assert holds, f"expected a fragment that holds offset {offset}; found {found}"
        for offset in (parts[0].first_offset - 1, parts[-1].next_offset):
            found = span(await view.find(offset))
            assert found is None, f"expected no fragment for offset {offset}; found {found}"

    async def found(self, other: LedgerOffloader, begin: int, end: int) -> None:
        """Assert that a reader finds the offsets exactly."""
        reader = await StreamReader.open(other, "orders")
        assert await reader.offset_of(AtEdge.FIRST) == begin
        assert await reader.offset_of(AtEdge.NEXT) == end
        for offset in (begin, random.randrange(begin, end), end):
            assert await reader.offset_of(AtOffset(offset)) == offset
        with pytest.raises(NotOffloaded):
            await reader.offset_of(AtOffset(end + 1))

    def test_numbers_that_nothing_has_find_nothing(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """A query may give any offset or time: what is there is found, and nothing else, without an error.

        This holds for numbers below zero and of more than 64 bits, wherever one is given.
        """
        writer = run(StreamWriter.claim(offloader, "orders", first_offset=1))
        times = (-(2**63), -1, 2**32, 0, 2**63 - 1)
        chunks = [
            build_chunk([b"at %d" % at], offset=1 + n, timestamp_ms=at, epoch=EPOCH)
            for n, at in enumerate(times)
        ]
        parts = [MemoryLedger([chunk], ledger_id=3) for chunk in chunks]
        attempts = [run(committed(writer, part)) for part in parts]
        dropped = run(named(other, writer.manifest))[:1]
        trim = trim_to(writer.manifest, dropped, ledgers=0)
        run(offloader.commit_manifest("orders", trim, base=writer.manifest, committer=uuid4()))

        async def scenario() -> None:
            view = await other.view("orders")
            entries = await walked(view)
            assert [span(entry) for entry in entries] == [(n, n + 1) for n in range(2, 6)]
            for offset in KINDS["offset: int"].taken:
                holds = next((each for each in entries if each.first_offset == offset), None)
                assert (offset, await view.find(offset)) == (offset, holds)
                assert (offset, await walked(view, offset)) == (
                    offset,
                    [each for each in entries if each.next_offset > offset],
                )
            for at in KINDS["timestamp_ms: int"].taken:
                since = next((each for each in entries if each.last_timestamp_ms >= at), None)
                assert (at, await view.first_since(at)) == (at, since)
            manifest = await other.load_manifest("orders")
            for only in KINDS["only: range | None"].taken:
                for attempt, part in ((attempts[1], parts[1]), (attempts[-1], parts[-1])):
                    reading = other.read_offloaded(attempt, manifest=manifest, only=only)
                    if part.first_offset in only:
                        assert await chunks_in(await reading) == [*part.chunks], only
                    else:
                        with raises(NotOffloaded, f"a read of {only}"):
                            await reading
            for uid in KINDS["Attempt.uid: UUID"].refused[NotOffloaded]:
                nothing = Attempt(stream="orders", ledger_id=3, uid=uid)
                with raises(NotOffloaded, f"a read of attempt {uid}"):
                    await other.read_offloaded(nothing)
                await other.delete_offloaded(nothing)

        run(scenario())

    def test_ledger_ids_are_exact(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """A ledger may have any id of 64 bits, from 0 on. From 2^63 on, it may be refused with `Misuse`."""
        ids = sorted(KINDS["Attempt.ledger_id: int"].taken)
        attempts, end = run(writer.prepare(ids)), 0
        taken: list[tuple[Attempt, MemoryLedger, Receipt]] = []
        for attempt in attempts:
            source = MemoryLedger(ledger_of(2, first_offset=end).chunks, ledger_id=attempt.ledger_id)
            try:
                taken.append((attempt, source, run(stored(writer, source, attempt))))
            except Misuse:
                assert attempt.ledger_id >= SIGNED, f"ledger {attempt.ledger_id} was refused"
                continue
            end = source.next_offset
        run(writer.append([receipt for *_, receipt in taken]))

        manifest = run(other.load_manifest("orders"))
        assert manifest.last_ledger_id == taken[-1][0].ledger_id
        found = run(named(other, manifest))
        for attempt, source, _ in taken:
            of_ledger = [each.attempt for each in found if each.ledger_id == attempt.ledger_id]
            assert {*of_ledger} == {attempt.uid}, f"the fragments of ledger {attempt.ledger_id}"
            assert run(chunks_of(other, attempt)) == [*source.chunks]

    @pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES)
    def test_handles_tell_exact_numbers(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, edge: int
    ) -> None:
        """A handle returns the exact ledger id, offsets and times of the ledger, however large they are."""
        ledger_id = edge + random.randint(0, 9)
        source = drawn_ledger(12, first_offset=edge - 3, ledger_id=ledger_id)
        bills = run(StreamWriter.claim(writer.offloader, "bills", first_offset=edge - 3))
        [attempt] = run(bills.prepare([ledger_id]))
        run(bills.append([run(stored(bills, source, attempt))]))

        async def scenario() -> None:
            async with await other.read_offloaded(attempt) as handle:
                span = (handle.ledger_id, handle.first_offset, handle.next_offset)
                assert span == (ledger_id, edge - 3, source.next_offset)
                assert_same(await handle.table(), await source.table(), but=POSITION)

        run(scenario())


def until_rounded_down(first_offset: int, *, ledger_id: int) -> MemoryLedger:
    """Return a ledger whose next offset, just above 2^53, a double would round down to its last offset."""
    while True:
        ledger = drawn_ledger(12, first_offset=first_offset, ledger_id=ledger_id)
        if ledger.next_offset % 4 == 1:
            return ledger
