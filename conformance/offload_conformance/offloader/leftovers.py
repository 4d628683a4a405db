"""Leftovers of a crash: whole fragments of the right attempts, in one chain, or nothing.

An offloader that keeps nothing of an unfinished attempt offers nothing, and passes all of these.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Final
from uuid import UUID, uuid4
from zlib import crc32

from offload.commit.guest import Abort
from offload.commit.job import Announce
from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.change import Change
from offload.contracts.offloader import LedgerOffloader
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import MemoryLedger, drawn_ledger, ledger_of
from offload_conformance.offloader.base import OffloaderClauses, committed, left_by_a_crash, named, stored
from offload_conformance.opened import KIB, Open

EDGES: Final = (10**10, 2**31, 2**32, 2**53)
"""Offsets at which a number may outgrow a column. The clause draws another power of ten."""


class LeftoverClauses(OffloaderClauses):
    """The clauses on leftovers: they continue the manifest exactly, and no running writer owns them."""

    def test_leftovers_are_of_running_attempts(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """The fragments of an aborted attempt are never adopted."""
        aborted, _ = run(writer.prepare([0, 0]))
        run(stored(writer, ledger_of(10), aborted))
        run(writer.abort([aborted]))

        assert run(left_by_a_crash(other, "orders")) == []

    def test_leftovers_leave_no_hole(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """The next writer adopts only fragments that continue the stream exactly, without a hole."""
        first, _, third = run(writer.prepare([0, 10, 20]))
        ledger = ledger_of(10)
        run(stored(writer, ledger, first))
        run(stored(writer, ledger_of(10, first_offset=20), third))

        assert run(left_by_a_crash(other, "orders")) in ([], [*ledger.chunks])

    def test_leftovers_are_whole(self, run: Run, opened: Open, writer: StreamWriter) -> None:
        """The next writer adopts every chunk of a complete attempt that a crash left, or none of them."""
        ledger = drawn_ledger(random.randint(1, 30), size_bytes_max=64 * KIB)
        [attempt] = run(writer.prepare([ledger.ledger_id]))
        run(stored(writer, ledger, attempt))

        assert run(left_by_a_crash(opened(), "orders")) in ([], [*ledger.chunks])

    def test_leftovers_are_one_chain(
        self, run: Run, opened: Open, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """Leftovers form one chain from the manifest's end to the first hole, although attempts overlap.

        An offloader that keeps any offers them to every client, also to one that asked when there were none.
        """
        begins = 10 ** random.randint(1, 18) - 4
        records = random.randint(2, 5)
        writer = run(StreamWriter.claim(offloader, "orders", first_offset=begins - records))
        run(committed(writer, ledger_of(records, first_offset=begins - records)))
        assert run(other.leftovers(writer.manifest)) == []
        rivals = [(begins, 10), (begins, 4), (begins, 7), (begins + 4, 6), (begins + 7, 3)]
        rivals += [(begins + 10, 3), (begins + 14, 5), (begins - records, records), (begins - 1, 11)]
        random.shuffle(rivals)
        attempts = run(writer.prepare([first for first, _ in rivals]))
        receipts = [
            run(stored(writer, ledger_of(records, first_offset=first), attempt))
            for (first, records), attempt in zip(rivals, attempts, strict=True)
        ]

        claimed = run(taken(other, "orders"))
        answers = [run(client.leftovers(claimed)) for client in (other, offloader, opened())]

        left = entries_of(receipts)
        for entries in [[leftover.entry for leftover in answer] for answer in answers]:
            assert [entry.first_offset for entry in entries[:1]] in ([], [begins])
            assert all(one.next_offset == two.first_offset for one, two in pairwise(entries))
            assert [entry for entry in entries if entry not in left] == []
            goes_on = [entry for entry in left if entries and entry.first_offset == entries[-1].next_offset]
            assert goes_on == [], "expected that the chain continues as far as fragments continue it"
        offered_to = [bool(answer) for answer in answers]
        assert offered_to == [offered_to[0]] * 3, "expected that every client is offered the same"
        for edge in EDGES:
            found, expected = run(self.chain_over(offloader, other, edge))
            assert found == (expected if answers[0] else [])

    async def chain_over(
        self, offloader: LedgerOffloader, other: LedgerOffloader, edge: int
    ) -> tuple[list[Entry], list[Entry]]:
        """Return the offered and the stored entries of a stream in which two attempts meet at this offset."""
        stream, begins = f"orders to {edge}", edge - random.randint(1, 9)
        writer = await StreamWriter.claim(offloader, stream, first_offset=begins)
        ledgers = [ledger_of(edge - begins, first_offset=begins), ledger_of(2, first_offset=edge)]
        receipts = [
            await stored(writer, ledger, attempt)
            for ledger, attempt in zip(ledgers, await writer.prepare([begins, edge]), strict=True)
        ]

        found = await other.leftovers(await taken(other, stream))

        return [leftover.entry for leftover in found], entries_of(receipts)

    def test_leftovers_are_of_every_earlier_writer(
        self, run: Run, opened: Open, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """Leftovers of several crashes, one after the other, are one chain: of every earlier writer.

        A writer that crashed before it settled anything hides none of them. Neither does a job's upload at
        the same offset. A hole that only a job's fragments would fill ends the chain.
        """
        job, crashes = uuid4(), random.randint(3, 5)
        clients, chain = (offloader, other, opened()), list[Entry]()

        async def scenario() -> None:
            await crashed(offloader, "one", 0)
            keeps_any = bool(await other.leftovers(await taken(other, "one")))
            for n in range(crashes):
                if n == crashes - 1:
                    await crashed(other, "orders", 2 * n, job=job)
                    continue
                # A job's upload at the same offset, sooner or later than the writer's, does not hide it.
                if n % 2:
                    await crashed(other, "orders", 2 * n, job=uuid4())
                receipt = await crashed((offloader, other)[n % 2], "orders", 2 * n)
                chain.extend(receipt.entries)
                if not n % 2:
                    await crashed(offloader, "orders", 2 * n, job=uuid4())
            await crashed(other, "orders", 2 * crashes)
            for _ in range(3):
                claimed = await taken(offloader, "orders")
                for client in clients:
                    found = [leftover.entry for leftover in await client.leftovers(claimed)]
                    assert found == (chain if keeps_any else []), "expected all before those of the job"
            successor = await StreamWriter.claim(other, "orders")
            named_now = await named(other, successor.manifest)
            assert named_now == (chain if keeps_any else [])

        run(scenario())

    def test_leftovers_are_of_earlier_writers(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A writer is never offered its own attempts, and nobody is offered the attempts of a job."""
        job, uid = uuid4(), uuid4()
        [own, another] = run(writer.prepare([0, 1]))
        run(stored(writer, ledger_of(10), own))
        assert run(other.leftovers(writer.manifest)) == []
        announce = Announce(job=job, incarnation=writer.manifest.incarnation, attempts=[(uid, 0)])
        abort = Abort(attempts=frozenset({another.uid}))
        for change, guest in ((announce, job), (abort, uuid4())):
            base = writer.manifest
            writer.manifest = run(other.commit_manifest("orders", change, base=base, committer=guest))
            assert run(other.leftovers(writer.manifest)) == [], (
                "a commit of a guest: expected no leftovers, because the writer still runs"
            )
        run(writer.abort([own]))
        of_job = Attempt(stream="orders", ledger_id=0, uid=uid)
        run(stored(writer, ledger_of(10), of_job))

        assert run(offered(other)) == []
        assert run(left_by_a_crash(other, "orders")) == []
        assert run(other.load_manifest("orders")).runs(uid), "a claim must keep attempts of jobs"

    def test_leftovers_are_not_committed(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Committed fragments of an attempt that is still running are not offered again."""
        [attempt] = run(writer.prepare([0]))
        receipt = run(stored(writer, drawn_ledger(random.randint(1, 20)), attempt))
        change = Append(writer=writer.writer, entries=receipt.entries, finished=frozenset())
        base = writer.manifest
        run(writer.offloader.commit_manifest("orders", change, base=base, committer=writer.writer))

        assert run(offered(other)) == []

    def test_leftovers_tell_their_last_chunk(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A leftover has the offset of its last chunk, and the CRC-32 of that whole chunk as stored."""
        ledgers = [drawn_ledger(random.randint(10, 20), size_bytes_max=64 * KIB)]
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


async def taken(offloader: LedgerOffloader, stream: str) -> Manifest:
    """Return the manifest of a stream after its next writer's claim, before that writer resolves anything."""
    claim = Claim(stream=stream, writer=uuid4(), first_offset=0)
    return await offloader.commit_manifest(stream, claim, base=None, committer=claim.writer)


async def crashed(
    offloader: LedgerOffloader, stream: str, first_offset: int, *, job: UUID | None = None
) -> Receipt:
    """Take a stream, store two records from this offset on, as a writer or for a job, and commit nothing."""
    manifest = await taken(offloader, stream)
    uid, ledger = uuid4(), ledger_of(2, first_offset=first_offset)
    change: Change = Prepare(writer=manifest.writer, attempts=[(uid, ledger.ledger_id)])
    if job is not None:
        of_job = [(uid, ledger.ledger_id)]
        change = Announce(job=job, incarnation=manifest.incarnation, attempts=of_job)
    manifest = await offloader.commit_manifest(stream, change, base=manifest, committer=manifest.writer)
    attempt = Attempt(stream=stream, ledger_id=ledger.ledger_id, uid=uid)
    return await offloader.offload(ledger, attempt, manifest=manifest, extra_metadata={})


async def offered(offloader: LedgerOffloader) -> list[Leftover]:
    """Return the leftovers that the next writer of `orders` is offered."""
    return await offloader.leftovers(await taken(offloader, "orders"))


def entries_of(receipts: Sequence[Receipt]) -> list[Entry]:
    """Return all entries of these receipts."""
    return [entry for receipt in receipts for entry in receipt.entries]


async def chunks_by_offset(ledger: MemoryLedger) -> list[tuple[int, bytes]]:
    """Return the chunks of a ledger, each with the offset at which it begins."""
    offsets = (await ledger.table())["offset"].tolist()
    return [*zip(offsets, ledger.chunks, strict=True)]
