"""Fencing: only the writer that claimed a stream last may change it."""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import uuid4

import pytest

from offload.commit.writer import Prepare, Resolve
from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import Fenced
from offload.model.manifest import Manifest
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import ledger_of
from offload_conformance.offloader.base import OffloaderClauses, append_of, committed, stored
from offload_conformance.opened import Open

FIRST_CLAIMS: Final = 8
"""The number of streams that several writers start at once. One race in threads may show nothing."""


class FencingClauses(OffloaderClauses):
    """The clauses on claims: a claim fences every earlier writer."""

    def test_claims_fence(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """After a claim is accepted, commits of every earlier writer raise `Fenced`."""
        run(committed(writer, ledger_of(10)))
        [attempt] = run(writer.prepare([10]))
        receipt = run(stored(writer, ledger_of(10, first_offset=10), attempt))

        successor = run(StreamWriter.claim(other, "orders"))

        old, base = writer.writer, writer.manifest
        assert successor.manifest.epoch > base.epoch
        before = run(other.load_manifest("orders"))
        for change in (
            append_of(writer, receipt),
            Prepare(writer=old, attempts=[(uuid4(), 20)]),
            Resolve(writer=old, adopted=()),
        ):
            for known in (base, before):
                with pytest.raises(Fenced):
                    run(writer.offloader.commit_manifest("orders", change, base=known, committer=old))
        after = run(other.load_manifest("orders"))
        assert (after.commit_id, after.writer) == (before.commit_id, successor.writer)

    def test_claims_fence_at_once(self, run: Run, opened: Open, writer: StreamWriter) -> None:
        """If several writers claim an old or new stream at the same time, exactly one is not fenced."""

        async def prepared(claimed: StreamWriter) -> bool:
            try:
                await claimed.prepare([0])
            except Fenced:
                return False
            return True

        async def claimed_at_once(stream: str, base: Manifest | None) -> list[bool]:
            claims = (StreamWriter.claim(rival, stream, base=base) for rival in rivals)
            claimed = await asyncio.gather(*claims, return_exceptions=True)
            writers = [each for each in claimed if isinstance(each, StreamWriter)]
            assert all(isinstance(each, StreamWriter | Fenced) for each in claimed)
            epochs = [each.manifest.epoch for each in writers]
            assert len({*epochs}) == len(epochs), f"{stream}: expected different epochs; found {epochs}"
            return [await prepared(each) for each in writers]

        rivals = [opened() for _ in range(4)]
        assert run(claimed_at_once("orders", writer.manifest)).count(True) == 1
        for number in self.some(range(FIRST_CLAIMS), 3):
            assert run(claimed_at_once(f"new.{number}", None)).count(True) == 1

    def test_claims_fence_by_the_brokers_own_epoch(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """A broker with an older leader epoch than that of the last claim cannot claim a stream."""
        run(StreamWriter.claim(offloader, "orders", source_epoch=5))

        with pytest.raises(Fenced):
            run(StreamWriter.claim(other, "orders", source_epoch=4))

        assert run(offloader.load_manifest("orders")).source_epoch == 5
