"""Reads: verbatim, of committed data alone, through handles that do not move."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

import pytest

from offload.commit.writer import Append
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.formats.chunk import scan
from offload.ground.errors import NotOffloaded
from offload.model.attempt import Attempt
from offload.model.manifest import Manifest
from offload.write.writer import StreamWriter
from offload_conformance import ledgers
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import MemoryLedger, drawn_ledger, ledger_of
from offload_conformance.offloader.base import OffloaderClauses, chunks_of, committed, stored, trim_of
from offload_conformance.opened import KIB
from offload_conformance.same import POSITION, assert_same

SHAPES: Final = {
    "few": (1, 12, 64 * KIB, 40),
    "many": (1050, 1300, 99, 40),
    "large": (24, 30, 1200 * KIB, 5),
}
"""Shapes of ledgers: the least and greatest number of chunks, the size of a message, the number of reads.

The largest exceeds any buffer, and the longest has more chunks than a page has rows.
"""

HANDLES: Final = 128
"""So many handles of each of two attempts are open at once: more than most clients have cursors."""


class OffloaderReadClauses(OffloaderClauses):
    """The clauses on reads: verbatim, absence is an error, snapshots do not move, chunks are whole."""

    @pytest.mark.parametrize("shape", SHAPES)
    def test_reads_are_verbatim(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, shape: str
    ) -> None:
        """Every chunk, and every run of chunks, reads back as exactly the bytes that were offloaded."""
        least, most, size_bytes_max, tries = SHAPES[shape]
        ledger = drawn_ledger(random.randint(least, most), size_bytes_max=size_bytes_max)
        attempt = run(committed(writer, ledger))
        count = len(ledger.chunks)
        runs = [(0, count), (0, 1), (count - 1, count)]
        for _ in range(tries):
            first = random.randrange(count)
            runs.append((first, random.randint(first + 1, count)))

        async def scenario() -> None:
            async with await other.read_offloaded(attempt) as handle:
                table = await handle.table()
                assert len(table) == count
                for first, stop in runs:
                    assert await handle.read(table[first:stop]) == b"".join(ledger.chunks[first:stop])
                    hinted = await handle.read_on(table[first:stop], table[stop:])
                    assert hinted == b"".join(ledger.chunks[first:stop]), "a hint changes nothing"

        run(scenario())

    def test_reads_may_run_at_once(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """Concurrent reads of one handle or of several do not mix, and cancelling one disturbs no other.

        Many handles may be open, and each of them can be read.
        """
        ledgers_ = [drawn_ledger(20), drawn_ledger(20, ledger_id=1)]
        attempts = run(writer.prepare([0, 1]))
        receipt = run(stored(writer, ledgers_[0], attempts[0]))
        run(writer.append([receipt]))
        bills = run(StreamWriter.claim(other, "bills"))
        attempts[1] = run(committed(bills, ledgers_[1]))

        async def read(handle: ReadHandle, chunks: Sequence[bytes], first: int, stop: int) -> None:
            table = await handle.table()
            assert await handle.read(table[first:stop]) == b"".join(chunks[first:stop])

        async def scenario() -> None:
            handles = [
                (await other.read_offloaded(attempt), ledger.chunks)
                for attempt, ledger in zip(attempts, ledgers_, strict=True)
                for _ in range(min(self.many_fragments // 8, HANDLES))
            ]
            for handle, chunks in handles[:2]:
                await read(handle, chunks, 0, 20)
            for turn in range(6):
                # Among many handles, hardly any other read has the handle of the one that is cancelled.
                among = handles[:2] if turn % 2 else handles
                reads = [
                    asyncio.ensure_future(read(*random.choice(among), first, first + random.randint(1, 8)))
                    for first in random.sample(range(12), 10)
                ]
                await asyncio.sleep(0)
                reads[0].cancel()
                ended = await asyncio.gather(*reads, return_exceptions=True)
                assert [each for each in ended[1:] if each is not None] == []
            for handle, _ in handles:
                await handle.aclose()

        run(scenario())

    def test_reads_go_by_the_manifest_given(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A handle covers what the given `manifest` names, even if a newer one names more or less."""
        [attempt, later] = run(writer.prepare([0, 1]))
        ledger = ledger_of(40, body_size_bytes=30 * KIB)
        receipt = run(stored(writer, ledger, attempt))
        behind = MemoryLedger(ledger_of(5, first_offset=40).chunks, ledger_id=1)
        of_later = run(stored(writer, behind, later))
        change = Append(writer=writer.writer, entries=receipt.entries[:1], finished=frozenset())
        before = writer.manifest
        begun = run(offloader.commit_manifest("orders", change, base=before, committer=writer.writer))
        writer.manifest = begun
        run(writer.append([replace(receipt, entries=receipt.entries[1:]), of_later]))

        async def span(attempt: Attempt, manifest: Manifest | None) -> tuple[int, int]:
            async with await other.read_offloaded(attempt, manifest=manifest) as handle:
                await handle.read(await handle.table())
                return handle.first_offset, handle.next_offset

        for manifest, absent in ((before, attempt), (before, later), (begun, later)):
            self.absent(run, other.read_offloaded(absent, manifest=manifest))
        assert run(span(attempt, begun)) == (0, receipt.entries[0].next_offset)
        for newest in (writer.manifest, None):
            assert run(span(attempt, newest)) == (0, 40)
            assert run(span(later, newest)) == (40, 45)

    def test_reads_are_verbatim_when_narrowed(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """`only` narrows a handle to the fragments that hold some of these offsets, with all their chunks."""
        ledger = drawn_ledger(random.randint(10, 30))
        end = ledger.next_offset
        attempt = run(committed(writer, ledger))
        middle = random.randrange(end)
        begins = run(ledger.table())["offset"].tolist()

        for only in (
            range(1),
            range(middle, middle + 1),
            range(end - 1, end),
            range(middle, 2**40),
            range(2**64),
        ):
            first = bisect_right(begins, only.start) - 1
            last = bisect_right(begins, min(only.stop, end) - 1) - 1
            read = run(chunks_of(other, attempt, only=only))
            assert set(ledger.chunks[first : last + 1]) <= set(read) <= set(ledger.chunks)
        beyond = (range(end, end + 10), range(end + 3, end + 4), range(2**40, 2**41), range(2**63, 2**64))
        for nothing in (*beyond, range(0), range(middle, middle), range(end, end), range(end - 1, 0)):
            self.absent(run, other.read_offloaded(attempt, only=nothing))

        run(
            self.narrowed_to_fragments(
                other, writer, ledger_of(12, first_offset=end, body_size_bytes=100 * KIB)
            )
        )

    async def narrowed_to_fragments(
        self, other: LedgerOffloader, writer: StreamWriter, ledger: MemoryLedger
    ) -> None:
        """Assert that `only` returns the fragments with some of these offsets, and no other."""
        [attempt] = await writer.prepare([ledger.ledger_id])
        receipt = await stored(writer, ledger, attempt)
        await writer.append([receipt])
        parts = [range(entry.first_offset, entry.next_offset) for entry in receipt.entries]
        one = random.choice(parts)
        for only in (
            one,
            range(one.start, one.start + 1),
            range(one.stop - 1, one.stop),
            range(one.stop - 1, one.stop + 1),
            range(one.stop),
            range(one.stop - 1, ledger.next_offset + 1),
        ):
            held = [part for part in parts if part.start < only.stop and part.stop > only.start]
            async with await other.read_offloaded(attempt, only=only) as handle:
                assert (handle.first_offset, handle.next_offset) == (held[0].start, held[-1].stop)

    def test_absence_is_an_error(self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader) -> None:
        """Reading a tier, stream or attempt that was never committed raises `NotOffloaded`."""
        nothing = Attempt(stream="orders", ledger_id=0, uid=uuid4())
        for absent in (other.open, other.streams):
            self.absent(run, absent())
        self.absent(run, other.load_manifest("orders"))
        self.absent(run, other.read_offloaded(nothing))

        writer = run(StreamWriter.claim(offloader, "orders"))

        assert run(other.streams()) == ["orders"]
        self.absent(run, other.load_manifest("bills"))
        self.absent(run, other.read_offloaded(nothing))
        [prepared, uncommitted, aborted] = run(writer.prepare([0, 0, 0]))
        run(stored(writer, ledger_of(10), uncommitted))
        run(stored(writer, ledger_of(10), aborted))
        run(writer.abort([aborted]))
        for attempt in (prepared, uncommitted, aborted):
            self.absent(run, other.read_offloaded(attempt))

    def absent(self, run: Run, reading: Coroutine[Any, Any, object]) -> None:
        """Assert that `reading` raises `NotOffloaded`."""
        with pytest.raises(NotOffloaded):
            run(reading)

    def test_snapshots_do_not_move(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """A handle's range, table and bytes stay the same at every call, however the stream changes."""
        attempt = run(committed(writer, ledger_of(10)))

        async def seen(handle: ReadHandle) -> tuple[object, ...]:
            table = await handle.table()
            span = (handle.ledger_id, handle.first_offset, handle.next_offset, handle.where)
            return (*span, table.tobytes(), await handle.read(table))

        async def scenario() -> None:
            async with await other.read_offloaded(attempt) as handle:
                before = await seen(handle)
                assert (handle.ledger_id, handle.first_offset, handle.next_offset) == (0, 0, 10)
                assert handle.where, "expected the name of a file or object, for messages"
                await committed(writer, ledger_of(10, first_offset=10))
                [garbage] = await writer.prepare([20])
                await stored(writer, ledger_of(10, first_offset=20), garbage)
                await other.delete_offloaded(garbage)
                await StreamWriter.claim(other, "orders")
                assert await seen(handle) == before
                await handle.aclose()

        run(scenario())

    @pytest.mark.parametrize("shape", [lambda: ledgers.sub_batches().chunks, ledgers.crowded])
    def test_chunks_are_whole(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, shape: Callable[[], list[bytes]]
    ) -> None:
        """A handle's range begins and ends at chunks: rows follow each other, and each reads as one chunk.

        A chunk may have more than 2^24 records, in compressed batches.
        """
        ledger = MemoryLedger(shape())
        attempt = run(committed(writer, ledger))

        async def scenario() -> None:
            async with await other.read_offloaded(attempt) as handle:
                table = await handle.table()
                begins = [*table["offset"].tolist(), handle.next_offset]
                ends = [handle.first_offset, *(table["offset"] + table["records"]).tolist()]
                assert begins == ends
                for row, chunk in enumerate(ledger.chunks):
                    rows = table[row : row + 1]
                    assert await handle.read(rows) == chunk
                    assert_same(rows, scan(chunk, where="chunk"), but=POSITION)

        run(scenario())

    def test_trimmed_offsets_are_gone(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """After a trim the stream begins behind it, and reading trimmed attempts raises `NotOffloaded`."""
        kept = ledger_of(10, first_offset=10)
        [attempt] = run(writer.prepare([0]))
        receipt = run(stored(writer, ledger_of(10), attempt))
        run(writer.append([receipt]))
        beyond = run(committed(writer, kept))

        trim, base = trim_of(writer, receipt), writer.manifest
        run(offloader.commit_manifest("orders", trim, base=base, committer=uuid4()))

        manifest = run(other.load_manifest("orders"))
        assert (manifest.first_offset, manifest.next_offset) == (10, 20)
        self.absent(run, other.read_offloaded(attempt))
        assert run(chunks_of(other, beyond)) == [*kept.chunks]
