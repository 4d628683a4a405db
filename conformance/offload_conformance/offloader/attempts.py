"""Attempts: announced first, checked on the way, disjoint, whole, and removed without harm."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from offload.errors import Conflict, Corrupt, Misuse, NotOffloaded
from offload.formats.chunk import ChunkTable
from offload.offloader import Attempt, LedgerOffloader
from offload.tier.stream_writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import MemoryLedger, ledger_of
from offload_conformance.offloader.base import OffloaderClauses, chunks_of, committed, left_by_a_crash, stored
from offload_conformance.opened import KIB, Open


class AttemptClauses(OffloaderClauses):
    """Attempts are disjoint, prepared before uploaded, checked, whole, and deleted with care."""

    def test_attempts_are_disjoint(self, run: Run, offloader: LedgerOffloader, writer: StreamWriter) -> None:
        """No two attempts share an object: removing one leaves another at the same ledger whole."""
        ledger = ledger_of(10)
        kept, dropped = run(writer.prepare([0, 0]))
        before = self.keys_in_store()
        receipt = run(stored(writer, ledger, kept))
        of_kept = self.keys_in_store() - before
        run(stored(writer, ledger, dropped))
        of_dropped = self.keys_in_store() - before - of_kept

        run(offloader.delete_offloaded(dropped))

        assert of_kept, "an attempt that was stored shows in the store"
        assert of_dropped, "another attempt at the same ledger is stored once more"
        assert self.keys_in_store() & (of_kept | of_dropped) == of_kept
        run(writer.append([receipt]))
        assert run(chunks_of(offloader, kept)) == [*ledger.chunks]

    def test_attempts_are_disjoint_between_streams(self, run: Run, offloader: LedgerOffloader) -> None:
        """What a crashed attempt of one stream left can be removed without harm to another stream."""
        ledger = ledger_of(10)
        orders = run(StreamWriter.claim(offloader, "orders"))
        bills = run(StreamWriter.claim(offloader, "bills"))
        [crashed], [kept] = run(orders.prepare([0])), run(bills.prepare([0]))
        run(stored(orders, ledger, crashed))
        run(bills.append([run(stored(bills, ledger, kept))]))

        run(offloader.delete_offloaded(crashed))

        assert run(chunks_of(offloader, kept)) == [*ledger.chunks]

    def test_prepared_before_uploaded(
        self, run: Run, offloader: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """An attempt that its manifest does not run is refused with `Conflict`, before a byte is stored."""
        aborted, prepared = run(writer.prepare([0, 0]))
        run(writer.abort([aborted]))
        run(StreamWriter.claim(offloader, "bills"))
        before = self.keys_in_store()

        for stream, ledger_id, uid in (
            ("orders", 0, uuid4()),
            ("orders", 0, aborted.uid),
            ("orders", 7, prepared.uid),
            ("bills", 0, prepared.uid),
        ):
            attempt = Attempt(stream=stream, ledger_id=ledger_id, uid=uid)
            with pytest.raises(Conflict):
                run(stored(writer, ledger_of(10), attempt))

        assert self.keys_in_store() == before

    @pytest.mark.parametrize("byte", [0, 8, 35, -1], ids=["magic", "timestamp", "crc", "data"])
    def test_offloads_are_checked(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter, byte: int
    ) -> None:
        """A chunk whose bytes do not hold is never stored: `Corrupt` names it."""
        sound = ledger_of(10)

        self.refused(run, writer, sound.damaged(6, byte=byte), sound.span_of(6))

        assert run(left_by_a_crash(other, "orders")) in [[*sound.chunks[:n]] for n in range(7)]

    def test_offloads_are_checked_for_length(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Where the source ends too early, nothing from there on is stored, and `Corrupt` says where."""
        sound = ledger_of(10)

        self.refused(run, writer, sound.torn(6), (sound.span_of(6)[0], sound.span_of(9)[1]))

        assert run(left_by_a_crash(other, "orders")) in [[*sound.chunks[:n]] for n in range(7)]

    def refused(self, run: Run, writer: StreamWriter, ledger: MemoryLedger, span: tuple[int, int]) -> None:
        """Assert that offloading `ledger` ends with damage in this span of its bytes, by name and place."""
        [attempt] = run(writer.prepare([0]))
        with pytest.raises(Corrupt) as caught:
            run(stored(writer, ledger, attempt))
        assert caught.value.where == ledger.where
        assert caught.value.stream == "orders"
        assert span[0] <= caught.value.position < span[1]

    def test_fragments_are_whole(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """Whoever looks in the middle of an offload finds whole chunks, or nothing."""
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

    def test_fragments_are_whole_before_they_are_offered(
        self, run: Run, opened: Open, writer: StreamWriter
    ) -> None:
        """What a crash left complete is adopted by the next writer with every chunk, or not at all."""
        ledger = ledger_of(10)
        [attempt] = run(writer.prepare([0]))
        run(stored(writer, ledger, attempt))

        adopted = run(left_by_a_crash(opened(), "orders"))

        assert adopted in ([], [*ledger.chunks])

    def test_deletion_is_idempotent(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Deleting an absent attempt succeeds: never there, gone, half there, of no stream."""
        [stored_once, broken_off, prepared] = run(writer.prepare([0, 0, 0]))
        announced = self.keys_in_store()
        run(stored(writer, ledger_of(10), stored_once))
        with pytest.raises(Corrupt):
            run(stored(writer, ledger_of(10).torn(6), broken_off))
        of_attempts = self.keys_in_store() - announced

        for client in (offloader, other, other):
            for attempt in (stored_once, broken_off, prepared):
                run(client.delete_offloaded(attempt))
            for stream in ("orders", "bills"):
                run(client.delete_offloaded(Attempt(stream=stream, ledger_id=0, uid=uuid4())))

        assert of_attempts
        assert not self.keys_in_store() & of_attempts
        manifest = run(other.load_manifest("orders"))
        assert not any(manifest.runs(attempt.uid) for attempt in (stored_once, broken_off, prepared))

    def test_deletion_spares_the_committed(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Deleting an attempt that the manifest names raises `Conflict` and removes nothing."""
        ledger = ledger_of(10)
        attempt = run(committed(writer, ledger))
        before = self.keys_in_store()

        for client in (offloader, other):
            with pytest.raises(Conflict):
                run(client.delete_offloaded(attempt))

        assert self.keys_in_store() == before
        assert run(chunks_of(other, attempt)) == [*ledger.chunks]

    def test_ledgers_are_those_announced(
        self, run: Run, offloader: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A handle of another ledger than the attempt announced is `Misuse`, and nothing of it is stored."""
        [attempt] = run(writer.prepare([7]))
        before = self.keys_in_store()

        with pytest.raises(Misuse):
            run(stored(writer, ledger_of(10), attempt))

        assert self.keys_in_store() == before

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

    def test_stored_bytes_are_counted(
        self, run: Run, offloader: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """`put_size_bytes` counts what an instance stored: no less than the chunks' own bytes."""
        ledger = ledger_of(10, body_size_bytes=KIB)
        before = offloader.put_size_bytes

        run(committed(writer, ledger))

        assert offloader.put_size_bytes - before >= sum(map(len, ledger.chunks))
