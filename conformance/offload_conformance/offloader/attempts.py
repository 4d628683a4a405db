"""Attempts: announced first, disjoint, whole, each of one stream, and deleted without harm to others.

What a deletion leaves in the store is tested by `in_store`, because not every offloader shows it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID, uuid4

import pytest

from offload.commit.writer import Append, Prepare
from offload.contracts.catalogue import StreamView
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import Absent, Conflict, Corrupt, NotOffloaded, OffloadError
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import MemoryLedger, drawn_ledger, ledger_of, refuse_reads
from offload_conformance.offloader.base import (
    OffloaderClauses,
    append_of,
    chunks_of,
    committed,
    left_by_a_crash,
    stored,
    trim_of,
    trim_to,
)
from offload_conformance.offloader.edges import neighbours
from offload_conformance.opened import KIB
from offload_conformance.raising import raises

NEIGHBOURS: Final = 5
"""So many attempts beside one are enough for a tier that this project makes of a store."""


class AttemptClauses(OffloaderClauses):
    """The clauses on attempts: disjoint, prepared before they are uploaded, whole, and deleted with care."""

    def test_attempts_are_disjoint(self, run: Run, offloader: LedgerOffloader, writer: StreamWriter) -> None:
        """Attempts at the same ledger share nothing: deleting some of them leaves the others whole.

        So does the deletion of an attempt that is absent, or deleted already.
        """
        ledger = drawn_ledger(random.randint(1, 20))
        attempts = run(writer.prepare([0] * 4))
        kept, *dropped = random.sample(attempts, 4)
        receipts = {attempt: run(stored(writer, ledger, attempt)) for attempt in attempts}

        for each in (dropped[0], dropped[0], replace(kept, uid=UUID(int=kept.uid.int ^ 1))):
            run(offloader.delete_offloaded(each))
        run(writer.append([receipts[kept]]))
        for attempt in dropped[1:]:
            run(offloader.delete_offloaded(attempt))

        assert run(chunks_of(offloader, kept)) == [*ledger.chunks]

    @pytest.mark.parametrize("stored_as", ["first", "last"])
    def test_attempts_are_disjoint_in_every_bit(
        self,
        run: Run,
        offloader: LedgerOffloader,
        other: LedgerOffloader,
        writer: StreamWriter,
        stored_as: str,
    ) -> None:
        """Attempts whose UUIDs differ in one bit, or in the order of their bytes, share nothing."""
        itself, *others = neighbours(uuid4()).items()
        uids = dict([itself, *self.some(others, NEIGHBOURS)])
        change = Prepare(writer=writer.writer, attempts=[(uid, 7) for uid in uids.values()])
        attempts = {name: Attempt(stream="orders", ledger_id=7, uid=uid) for name, uid in uids.items()}

        async def scenario() -> None:
            manifest = await other.commit_manifest(
                "orders", change, base=writer.manifest, committer=writer.writer
            )
            assert [each.attempt for each in manifest.running] == [*uids.values()]
            ledgers = {name: drawn_ledger(2, ledger_id=7) for name in uids}
            kept, *dropped = uids
            random.shuffle(dropped)
            names = [kept, *dropped] if stored_as == "first" else [*dropped, kept]
            receipts = {
                name: await offloader.offload(
                    ledgers[name], attempts[name], manifest=manifest, extra_metadata={}
                )
                for name in names
            }
            for name in dropped[1:]:
                await other.delete_offloaded(attempts[name])
            finished = frozenset({uids[kept]})
            append = Append(writer=writer.writer, entries=receipts[kept].entries, finished=finished)
            done = await offloader.commit_manifest("orders", append, base=manifest, committer=writer.writer)
            assert [each.attempt for each in done.running] == [uids[dropped[0]]]
            await other.delete_offloaded(attempts[dropped[0]])
            for client in (offloader, other):
                assert await chunks_of(client, attempts[kept]) == [*ledgers[kept].chunks], kept
                for name in dropped:
                    with raises(NotOffloaded, f"an attempt with {name}"):
                        await client.read_offloaded(attempts[name])

        run(scenario())

    def test_attempts_are_disjoint_between_streams(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """Deleting a crashed attempt of one stream does no harm to any other stream."""
        ledger = ledger_of(10)
        orders = run(StreamWriter.claim(offloader, "orders"))
        bills = run(StreamWriter.claim(offloader, "bills"))
        [crashed], [kept] = run(orders.prepare([0])), run(bills.prepare([0]))
        run(stored(orders, ledger, crashed))
        run(bills.append([run(stored(bills, ledger, kept))]))

        run(offloader.delete_offloaded(crashed))

        assert run(chunks_of(other, kept)) == [*ledger.chunks]

    def test_attempts_are_of_their_stream(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """An attempt of one stream cannot be read, copied, committed or deleted as an attempt of another."""
        bills = run(StreamWriter.claim(offloader, "bills"))
        ledger = ledger_of(5)
        first = run(committed(writer, ledger))
        [second] = run(writer.prepare([5]))
        receipt = run(stored(writer, ledger_of(5, first_offset=5), second))
        moved = [replace(entry, first_offset=entry.first_offset - 5) for entry in receipt.entries]
        of_bills = [replace(attempt, stream="bills") for attempt in (first, second)]

        for attempt in of_bills:
            with pytest.raises(NotOffloaded):
                run(other.read_offloaded(attempt))
            run(other.delete_offloaded(attempt))
        with pytest.raises(Conflict):
            run(stored(bills, ledger_of(5, first_offset=5), of_bills[1]))
        with pytest.raises(Conflict):
            run(stored(bills, ledger_of(5, first_offset=5), second))
        foreign = Append(writer=bills.writer, entries=moved, finished=frozenset())
        with pytest.raises(Conflict):
            run(other.commit_manifest("bills", foreign, base=bills.manifest, committer=bills.writer))

        run(writer.append([receipt]))
        assert run(chunks_of(other, first)) == [*ledger.chunks]
        assert len(run(chunks_of(other, second))) == 5

    def test_prepared_before_uploaded(
        self, run: Run, offloader: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """`offload` refuses an attempt that is not running with `Conflict`, before it reads the ledger.

        An attempt runs for the ledger and in the stream for which it was announced, and for no other. The
        manifest that is given decides.
        """
        older = writer.manifest
        aborted, one, two = run(writer.prepare([0, 1, 2**32 + 2]))
        run(writer.abort([aborted]))
        bills = run(StreamWriter.claim(offloader, "bills"))
        [of_bills] = run(bills.prepare([1]))
        done = run(committed(writer, ledger_of(10)))
        beside = [UUID(int=one.uid.int ^ 1 << bit) for bit in (0, 64, 127)]

        refused = [
            *(("orders", 0, uid) for uid in (uuid4(), aborted.uid, done.uid)),
            *(("orders", 1, uid) for uid in (two.uid, of_bills.uid, UUID(int=0), *beside)),
            *(("orders", ledger_id, one.uid) for ledger_id in (0, 2, 2**32 + 1, 2**32 + 2)),
            *(("orders", ledger_id, two.uid) for ledger_id in (2, 2**32 + 1)),
            *(("bills", 1, uid) for uid in (one.uid, two.uid)),
        ]
        for stream, ledger_id, uid in refused:
            attempt, source = Attempt(stream=stream, ledger_id=ledger_id, uid=uid), ledger_of(10)
            ledger = MemoryLedger(source.chunks, ledger_id=ledger_id)
            ledger.before_read = refuse_reads
            for manifest in (writer.manifest, bills.manifest):
                with raises(Conflict, f"attempt {uid} of ledger {ledger_id} in {stream!r}"):
                    run(offloader.offload(ledger, attempt, manifest=manifest, extra_metadata={}))
        ledger = MemoryLedger(ledger_of(10).chunks, ledger_id=1)
        ledger.before_read = refuse_reads
        with raises(Conflict, "an attempt that does not run in the older manifest that is given"):
            run(offloader.offload(ledger, one, manifest=older, extra_metadata={}))

    def test_fragments_are_whole(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """A reader in the middle of an offload sees whole chunks, or nothing."""
        ledger = ledger_of(6, body_size_bytes=700 * KIB)
        [attempt] = run(writer.prepare([0]))

        async def scenario() -> list[bytes]:
            held = asyncio.Event()

            async def hold(rows: ChunkTable) -> None:
                if ledger.next_offset - 1 in rows["offset"]:
                    held.set()
                    await asyncio.sleep(60)

            ledger.before_read = hold
            offloading = asyncio.create_task(stored(writer, ledger, attempt))
            await asyncio.wait_for(held.wait(), timeout=60)
            with pytest.raises(NotOffloaded):
                await other.read_offloaded(attempt)
            found = await left_by_a_crash(other, "orders")
            offloading.cancel()
            await asyncio.gather(offloading, return_exceptions=True)
            return found

        found = run(scenario())

        assert found == [*ledger.chunks[: len(found)]]
        assert len(found) < len(ledger.chunks)

    def test_deletion_is_idempotent(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Deleting an attempt succeeds if it is absent, already deleted, half stored, or of no stream."""
        [stored_once, broken_off, prepared] = run(writer.prepare([0, 0, 0]))
        run(stored(writer, ledger_of(10), stored_once))
        with pytest.raises(Corrupt):
            run(stored(writer, ledger_of(10).torn(6), broken_off))

        async def at_once(attempt: Attempt) -> None:
            await asyncio.gather(*(client.delete_offloaded(attempt) for client in (offloader, other)))

        run(at_once(stored_once))
        for client in (offloader, other, other):
            for attempt in (stored_once, broken_off, prepared):
                run(client.delete_offloaded(attempt))
            for stream in ("orders", "bills"):
                run(client.delete_offloaded(Attempt(stream=stream, ledger_id=0, uid=uuid4())))

        manifest = run(other.load_manifest("orders"))
        assert not any(manifest.runs(attempt.uid) for attempt in (stored_once, broken_off, prepared))

    def test_deletion_condemns(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """A deleted attempt can never be committed, adopted or offloaded again, whoever deleted it."""
        [deleted, spared] = run(writer.prepare([0, 0]))
        receipts = [run(stored(writer, ledger_of(10), attempt)) for attempt in (deleted, spared)]

        run(other.delete_offloaded(deleted))

        newest = run(other.load_manifest("orders"))
        assert (newest.runs(deleted.uid), newest.runs(spared.uid)) == (False, True)
        assert newest.version > writer.manifest.version, "expected that a commit drops the attempt"
        for base in (writer.manifest, newest, None):
            change = append_of(writer, receipts[0])
            with pytest.raises(Conflict):
                run(writer.offloader.commit_manifest("orders", change, base=base, committer=writer.writer))
        with pytest.raises(Conflict):
            run(
                writer.offloader.offload(ledger_of(10), deleted, manifest=newest, extra_metadata={}),
            )
        run(writer.append([receipts[1]]))
        assert len(run(chunks_of(other, spared))) == 10

    @pytest.mark.parametrize("part", ["all", "beginning", "end"])
    def test_deletion_spares_the_committed(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter, part: str
    ) -> None:
        """Deleting an attempt that the manifest names raises `Conflict` and removes nothing.

        This also holds if the manifest names only the beginning of the attempt, if that was trimmed since,
        and for attempts that are not the newest.
        """
        ledger = ledger_of(12, body_size_bytes=100 * KIB)
        [attempt] = run(writer.prepare([ledger.ledger_id]))
        receipt = run(stored(writer, ledger, attempt))
        entries = receipt.entries
        if part != "all" and len(entries) == 1:
            return  # the offloader stores it in one piece, so no part of it can be named
        cut = random.randint(1, max(1, len(entries) - 1))
        begins, ends = 0, len(ledger.chunks)
        if part == "beginning":
            ends = entries[cut - 1].next_offset
            receipt = replace(receipt, entries=entries[:cut])
        run(writer.append([receipt]))
        if part == "end":
            begins = entries[cut].first_offset
            trim, base = trim_to(writer.manifest, entries[:cut], ledgers=0), writer.manifest
            run(offloader.commit_manifest("orders", trim, base=base, committer=uuid4()))

        for client in (offloader, other):
            with raises(Conflict, "the deletion of a committed attempt"):
                run(client.delete_offloaded(attempt))
        behind = drawn_ledger(3, first_offset=run(other.load_manifest("orders")).next_offset)
        newer = run(committed(writer, behind))
        for each in (attempt, newer, attempt):
            with raises(Conflict, "the deletion of one of two committed attempts"):
                run(other.delete_offloaded(each))
        assert run(chunks_of(other, newer)) == [*behind.chunks]
        assert run(chunks_of(other, attempt)) == [*ledger.chunks[begins:ends]]

    def test_deletion_spares_the_committed_that_runs(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Deleting an attempt that is partly committed and still runs raises `Conflict`, removing nothing."""
        ledger = ledger_of(12, body_size_bytes=100 * KIB)
        [attempt] = run(writer.prepare([0]))
        entries = run(stored(writer, ledger, attempt)).entries[:1]
        change = Append(writer=writer.writer, entries=entries, finished=frozenset())
        base = writer.manifest
        manifest = run(writer.offloader.commit_manifest("orders", change, base=base, committer=writer.writer))
        assert manifest.runs(attempt.uid)

        with pytest.raises(Conflict):
            run(other.delete_offloaded(attempt))

        assert run(chunks_of(other, attempt)) == [*ledger.chunks[: entries[0].next_offset]]

    def test_deletion_takes_what_was_trimmed(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A trimmed attempt can be deleted, and the one after it stays whole.

        A view from before the trim reads the deleted fragments whole, or raises `Absent` that names them.
        """
        [attempt] = run(writer.prepare([0]))
        receipt = run(stored(writer, ledger_of(10), attempt))
        run(writer.append([receipt]))
        kept = drawn_ledger(5, first_offset=10)
        beyond = run(committed(writer, kept))
        older = run(offloader.view("orders"))
        held = [run(older.open(entry)) for entry in receipt.entries]
        trim, base = trim_of(writer, receipt), writer.manifest
        run(offloader.commit_manifest("orders", trim, base=base, committer=uuid4()))

        run(other.delete_offloaded(attempt))
        run(other.delete_offloaded(attempt))

        with pytest.raises(Conflict):
            run(other.delete_offloaded(beyond))
        assert run(chunks_of(other, beyond)) == [*kept.chunks]
        newer = run(other.view("orders"))
        for entry, handle in zip(receipt.entries, held, strict=True):
            chunks = ledger_of(10).chunks[entry.first_offset : entry.next_offset]
            for opening in (partial(older.open, entry), partial(already, handle)):
                run(self.read_or_absent(opening, b"".join(chunks), older, newer))

    async def read_or_absent(
        self, opening: Callable[[], Awaitable[ReadHandle]], data: bytes, older: StreamView, newer: StreamView
    ) -> None:
        """Assert that a deleted fragment is read whole, or that `Absent` names it as the older view does."""
        try:
            async with await opening() as handle:
                found = await handle.read(await handle.table())
        except Absent as absent:
            gone = absent.where
        except OffloadError as error:
            said = f"{type(error).__name__}: {error}"
            pytest.fail(f"a deleted fragment in an older view: expected Absent or its bytes; found {said}")
        else:
            assert found == data, "the bytes of a deleted fragment in an older view"
            return
        named = [await view.names(gone) for view in (older, newer)]
        assert named == [True, False], f"expected that only the older view names {gone!r}"


async def already(handle: ReadHandle) -> ReadHandle:
    """Return a handle that was opened before the deletion."""
    return handle
