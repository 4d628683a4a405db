"""The objects that are really stored, seen by other means than the offloader's.

The black box runs these clauses on tiers on a store. It cannot see what an offloader without a store keeps:
there, the author's own tests run them.
"""

from __future__ import annotations

from uuid import uuid4

import pytest

from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import Conflict, Corrupt, Misuse
from offload.model.attempt import Attempt
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import ledger_of
from offload_conformance.offloader.base import OffloaderClauses, chunks_of, committed, stored
from offload_conformance.offloader.sources import METADATA


class InStoreClauses(OffloaderClauses):
    """The clauses on what attempts, refusals, deletions and openings leave in the store."""

    def test_attempts_are_stored_apart(
        self, run: Run, offloader: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Two attempts at one ledger are stored separately, and a deletion removes exactly one of them."""
        ledger = ledger_of(10)
        kept, dropped = run(writer.prepare([0, 0]))
        before = self.keys_in_store()
        run(stored(writer, ledger, kept))
        of_kept = self.keys_in_store() - before
        run(stored(writer, ledger, dropped))
        of_dropped = self.keys_in_store() - before - of_kept

        run(offloader.delete_offloaded(dropped))

        assert of_kept, "expected that an attempt adds to what is stored"
        assert of_dropped, "expected that another attempt at the same ledger adds to what is stored"
        assert self.keys_in_store() & (of_kept | of_dropped) == of_kept

    def test_refusals_store_nothing(self, run: Run, writer: StreamWriter) -> None:
        """If `offload` refuses an attempt, it has stored nothing."""
        [prepared] = run(writer.prepare([7]))
        unprepared = Attempt(stream="orders", ledger_id=0, uid=uuid4())
        before = self.keys_in_store()

        with pytest.raises(Conflict):
            run(stored(writer, ledger_of(10), unprepared))
        with pytest.raises(Misuse):
            run(stored(writer, ledger_of(10), prepared))

        assert self.keys_in_store() == before

    def test_deletion_leaves_nothing(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Deleting an attempt removes everything of it, also of one that was interrupted."""
        [stored_once, broken_off] = run(writer.prepare([0, 0]))
        announced, base = self.keys_in_store(), writer.manifest
        ledger = ledger_of(10)
        run(offloader.offload(ledger, stored_once, manifest=base, extra_metadata=METADATA))
        with pytest.raises(Corrupt):
            run(stored(writer, ledger_of(10).torn(6), broken_off))
        of_attempts = self.keys_in_store() - announced

        run(offloader.delete_offloaded(stored_once))
        run(other.delete_offloaded(broken_off))

        assert of_attempts
        assert not self.keys_in_store() & of_attempts

    def test_refused_deletions_remove_nothing(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """If a deletion is refused because the attempt is committed, everything is still stored."""
        attempt = run(committed(writer, ledger_of(10)))
        before = self.keys_in_store()

        for client in (offloader, other):
            with pytest.raises(Conflict):
                run(client.delete_offloaded(attempt))

        assert self.keys_in_store() == before

    def test_opening_stores_nothing_twice(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """Opening an existing tier stores nothing, with `create` or without."""
        run(offloader.open(create=True))
        ledger = ledger_of(3)
        attempt = run(committed(run(StreamWriter.claim(offloader, "orders")), ledger))
        before = self.keys_in_store()

        for create in (True, False, True):
            run(other.open(create=create))
            run(offloader.open(create=create))

        assert self.keys_in_store() == before
        assert run(chunks_of(other, attempt)) == [*ledger.chunks]
