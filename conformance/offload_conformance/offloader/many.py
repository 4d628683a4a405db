"""Many of each: fragments, attempts, commits and leftovers, beyond the pages and groups of an offloader.

`many_fragments` is their number. A tier that this project makes of a store is asked for few, because its own
tests have many.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing
from time import monotonic
from typing import Final
from uuid import UUID, uuid4

from offload.commit.writer import Claim, Prepare
from offload.contracts.offloader import LedgerOffloader
from offload.model.attempt import Attempt
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import Manifest
from offload.write.job import Job
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import MemoryLedger, ledger_of
from offload_conformance.offloader.base import OffloaderClauses, named, stored, trim_to
from offload_conformance.offloader.views import walked

LEDGER: Final = 7
AT_ONCE: Final = 20
"""The number of attempts that are committed together."""

PATIENCE_SECONDS: Final = 20
"""After so long, a stream need not become longer than `LEFT`."""

LEFT: Final = 270
"""The most leftovers: more than 256, and more than two pages of 100."""


class ManyClauses(OffloaderClauses):
    """The clauses on large numbers."""

    def test_streams_may_have_many_fragments(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A stream of many fragments and commits is found, walked, copied and trimmed like a short one.

        So it is for a client that has seen every earlier state. 1,024 fragments and more may be in groups. If
        each of them takes long, there are fewer.
        """

        async def scenario() -> None:
            began, count = monotonic(), self.many_fragments
            expected: list[Entry] = []
            while len(expected) < count:
                expected += await appended(writer, len(expected))
                await agree(other, writer.manifest, expected, tries=2)
                if monotonic() - began > PATIENCE_SECONDS:
                    count = min(count, LEFT)
            for first in (0, *random.sample(range(2, count - 4, 2), 3)):
                old = [each for each in expected if each.first_offset in range(first, first + 2)]
                new = await replaced(random.choice((offloader, other)), old)
                at = expected.index(old[0])
                expected[at : at + len(old)] = new
                for client in (offloader, other):
                    newest = await client.load_manifest("orders")
                    await agree(client, newest, expected, tries=8, near=first)
            await self.are_trimmed(offloader, other, expected)

        run(scenario())

    async def are_trimmed(
        self, offloader: LedgerOffloader, other: LedgerOffloader, expected: list[Entry]
    ) -> None:
        """Trim some fragments, and nearly all, and assert that the others are found."""
        for count in (3, len(expected) // 2, len(expected) // 2 - 5):
            base = await other.load_manifest("orders")
            trim = trim_to(base, expected[:count], ledgers=0)
            trimmed = await offloader.commit_manifest("orders", trim, base=base, committer=uuid4())
            expected = expected[count:]
            for client in (offloader, other):
                await agree(client, trimmed, expected, tries=8)

    def test_leftovers_may_be_many(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A chain of many leftovers is offered to its end, and its next writer adopts all of it."""
        count = min(self.many_fragments, LEFT)

        async def scenario() -> None:
            uids = [uuid4() for _ in range(count)]
            change = Prepare(writer=writer.writer, attempts=[(uid, LEDGER) for uid in uids])
            manifest = await offloader.commit_manifest(
                "orders", change, base=writer.manifest, committer=writer.writer
            )
            assert [each.attempt for each in manifest.running] == uids
            expected: list[Entry] = []
            for n in random.sample(range(count), count):
                expected += await copied_under(offloader, uids[n], one_record(n), manifest)
            expected.sort(key=lambda each: each.first_offset)
            claim = Claim(stream="orders", writer=uuid4(), first_offset=0)
            claimed = await other.commit_manifest("orders", claim, base=None, committer=claim.writer)
            for client in (offloader, other):
                found = [leftover.entry for leftover in await client.leftovers(claimed)]
                assert len(found) in (0, count)
                assert found in ([], expected)
            successor = await StreamWriter.claim(other, "orders")
            assert successor.manifest.next_offset == (count if found else 0)
            assert successor.manifest.running == ()
            await agree(offloader, successor.manifest, expected if found else [], tries=8)

        run(scenario())


async def appended(writer: StreamWriter, first: int) -> list[Entry]:
    """Append some fragments of one record each, and return their entries."""
    attempts = await writer.prepare([LEDGER] * AT_ONCE)
    copies = (stored(writer, one_record(first + n), attempt) for n, attempt in enumerate(attempts))
    receipts = await asyncio.gather(*copies)
    await writer.append(receipts)
    return [entry for receipt in receipts for entry in receipt.entries]


async def copied_under(
    offloader: LedgerOffloader, uid: UUID, ledger: MemoryLedger, manifest: Manifest
) -> Sequence[Entry]:
    """Store a ledger under this attempt, and return its entries."""
    attempt = Attempt(stream="orders", ledger_id=LEDGER, uid=uid)
    return (await offloader.offload(ledger, attempt, manifest=manifest, extra_metadata={})).entries


async def replaced(offloader: LedgerOffloader, old: Sequence[Entry]) -> list[Entry]:
    """Replace these fragments, of which each has one record, by a copy. Return its entries."""
    job = await Job.begin(offloader, "orders", uid=uuid4())
    manifest, [attempt] = await job.prepare_copies([old])
    chunks = [one_record(each.first_offset).chunks[0] for each in old]
    receipt = await offloader.offload(
        MemoryLedger(chunks, ledger_id=LEDGER), attempt, manifest=manifest, extra_metadata={}
    )
    await job.replace(old, [receipt])
    return [*receipt.entries]


async def agree(
    client: LedgerOffloader, manifest: Manifest, expected: list[Entry], *, tries: int, near: int = 0
) -> None:
    """Assert that a manifest names these fragments, and that each is found by its offset and its time."""
    assert await named(client, manifest) == expected
    view = client.view_of(manifest)
    some = [*expected[:2], *expected[-2:], *random.sample(expected, min(tries, len(expected)))]
    for entry in (*some, *(each for each in expected if abs(each.first_offset - near) < 3)):
        for offset in (entry.first_offset, entry.next_offset - 1):
            assert await view.find(offset) == entry
        assert await view.first_since(entry.last_timestamp_ms) == entry
    if expected:
        from_here = random.choice(some)
        at = expected.index(from_here)
        assert await walked(view, from_here.first_offset) == expected[at:]
        async with aclosing(view.walk(from_here.first_offset)) as runs:
            async for run in runs:  # a walk that is left early
                assert entries_of_rows(run)[0] == from_here
                break
        assert await view.last_timestamp_ms() == expected[-1].last_timestamp_ms


def one_record(offset: int) -> MemoryLedger:
    """Return a ledger of one record in one chunk."""
    return MemoryLedger(ledger_of(1, first_offset=offset).chunks, ledger_id=LEDGER)
