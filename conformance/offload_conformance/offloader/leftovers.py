"""What a crash left: whole fragments of the right attempts, in one chain, or nothing at all.

An offloader that keeps nothing of an unfinished attempt offers nothing, and passes each of these.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from uuid import uuid4
from zlib import crc32

from offload.commit.job import Announce
from offload.commit.writer import Append, Claim
from offload.contracts.offloader import LedgerOffloader
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.entry import Entry
from offload.streams.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import MemoryLedger, drawn_ledger, ledger_of
from offload_conformance.offloader.base import OffloaderClauses, committed, left_by_a_crash, stored
from offload_conformance.opened import Open


class LeftoverClauses(OffloaderClauses):
    """Leftovers continue the manifest exactly, and are of attempts that nobody answers for any more."""

    def test_leftovers_are_of_running_attempts(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """What an attempt stored before it was aborted is adopted by nobody."""
        aborted, _ = run(writer.prepare([0, 0]))
        run(stored(writer, ledger_of(10), aborted))
        run(writer.abort([aborted]))

        assert run(left_by_a_crash(other, "orders")) == []

    def test_leftovers_leave_no_hole(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """Of what a crash left, only what continues the stream exactly is adopted."""
        first, _, third = run(writer.prepare([0, 10, 20]))
        ledger = ledger_of(10)
        run(stored(writer, ledger, first))
        run(stored(writer, ledger_of(10, first_offset=20), third))

        assert run(left_by_a_crash(other, "orders")) in ([], [*ledger.chunks])

    def test_leftovers_are_whole(self, run: Run, opened: Open, writer: StreamWriter) -> None:
        """What a crash left complete is adopted by the next writer with every chunk, or not at all."""
        ledger = drawn_ledger(random.randint(1, 30))
        [attempt] = run(writer.prepare([ledger.ledger_id]))
        run(stored(writer, ledger, attempt))

        assert run(left_by_a_crash(opened(), "orders")) in ([], [*ledger.chunks])

    def test_leftovers_are_one_chain(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """Leftovers begin where the manifest ends and touch each other, though attempts overlap."""
        begins = run(committed_ledger(writer))
        rivals = [(begins, 10), (begins, 4), (begins, 7), (begins + 4, 6), (begins + 10, 3), (begins + 14, 5)]
        rivals += [(0, begins), (begins - 1, 11)]
        random.shuffle(rivals)
        attempts = run(writer.prepare([first for first, _ in rivals]))
        receipts = [
            run(stored(writer, ledger_of(records, first_offset=first), attempt))
            for (first, records), attempt in zip(rivals, attempts, strict=True)
        ]

        found = run(offered(other))

        entries = [leftover.entry for leftover in found]
        assert [entry.first_offset for entry in entries[:1]] in ([], [begins])
        assert all(one.next_offset == two.first_offset for one, two in pairwise(entries))
        assert [entry for entry in entries if entry not in entries_of(receipts)] == []

    def test_leftovers_are_of_earlier_writers(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A writer is not offered what it copied itself, and neither is anyone what a job copies."""
        job, uid = uuid4(), uuid4()
        [own] = run(writer.prepare([0]))
        run(stored(writer, ledger_of(10), own))
        assert run(other.leftovers(writer.manifest)) == []
        announce = Announce(job=job, incarnation=writer.manifest.incarnation, attempts=[(uid, 0)])
        run(writer.abort([own]))
        base = writer.manifest
        writer.manifest = run(writer.offloader.commit_manifest("orders", announce, base=base, committer=job))
        of_job = Attempt(stream="orders", ledger_id=0, uid=uid)
        run(stored(writer, ledger_of(10), of_job))

        assert run(offered(other)) == []
        assert run(left_by_a_crash(other, "orders")) == []
        assert run(other.load_manifest("orders")).runs(uid), "a claim leaves the attempts of jobs alone"

    def test_leftovers_are_not_committed(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """What is committed of an attempt that ran on is offered to nobody once more."""
        [attempt] = run(writer.prepare([0]))
        receipt = run(stored(writer, drawn_ledger(random.randint(1, 20)), attempt))
        change = Append(writer=writer.writer, entries=receipt.entries, finished=frozenset())
        base = writer.manifest
        run(writer.offloader.commit_manifest("orders", change, base=base, committer=writer.writer))

        assert run(offered(other)) == []

    def test_leftovers_tell_their_last_chunk(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A leftover tells the offset of its last chunk, and the CRC-32 of that whole chunk as stored."""
        ledgers = [drawn_ledger(random.randint(1, 20))]
        ledgers.append(drawn_ledger(5, first_offset=ledgers[0].next_offset))
        attempts = run(writer.prepare([each.ledger_id for each in ledgers]))
        for ledger, attempt in zip(ledgers, attempts, strict=True):
            run(stored(writer, ledger, attempt))

        found = run(offered(other))

        chunks = {offset: chunk for ledger in ledgers for offset, chunk in run(chunks_by_offset(ledger))}
        for leftover in found:
            within = range(leftover.entry.first_offset, leftover.entry.next_offset)
            last = max(offset for offset in chunks if offset in within)
            assert leftover.last_chunk_offset == last
            assert leftover.last_chunk_checksum == crc32(chunks[last])


async def committed_ledger(writer: StreamWriter) -> int:
    """Commit a ledger of a few records, and return where the stream ends then."""
    await committed(writer, ledger_of(random.randint(2, 5)))
    return writer.manifest.next_offset


async def offered(offloader: LedgerOffloader) -> list[Leftover]:
    """What the next writer of `orders` is offered: after its claim, before it settles anything."""
    claim = Claim(stream="orders", writer=uuid4(), first_offset=0)
    manifest = await offloader.commit_manifest("orders", claim, base=None, committer=claim.writer)
    return await offloader.leftovers(manifest)


def entries_of(receipts: Sequence[Receipt]) -> list[Entry]:
    """All entries of these receipts."""
    return [entry for receipt in receipts for entry in receipt.entries]


async def chunks_by_offset(ledger: MemoryLedger) -> list[tuple[int, bytes]]:
    """The chunks of a ledger, each with the offset at which it begins."""
    offsets = (await ledger.table())["offset"].tolist()
    return [*zip(offsets, ledger.chunks, strict=True)]
