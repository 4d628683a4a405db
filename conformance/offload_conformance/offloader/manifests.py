"""Manifests: a commit applies its change and nothing else, and every client sees the result at once.

The model is the change itself: `Change.apply` defines the next manifest. An offloader that keeps manifests
in tables of its own must produce the same one, field by field.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID, uuid4

import pytest

from offload.commit.guest import Abort, Delete, Trim, TrimmedTotals
from offload.commit.job import Announce, Contribute
from offload.commit.writer import Append, Claim, Prepare, Resolve
from offload.contracts.change import Change
from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import (
    Conflict,
    Fenced,
    Misuse,
    NotOffloaded,
    OffloadError,
    OutcomeUnknown,
    StreamDeleted,
)
from offload.model.attempt import Attempt
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import AttemptKind, Manifest
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import drawn_ledger, ledger_of
from offload_conformance.offloader.base import (
    OffloaderClauses,
    append_of,
    chunks_of,
    committed,
    deleted,
    named,
    stored,
    trim_of,
    trim_to,
)
from offload_conformance.offloader.views import walked
from offload_conformance.opened import Open
from offload_conformance.raising import class_of
from offload_conformance.same import assert_same

ATTEMPTS: Final = 150
"""More attempts than a page has rows, or than one SQL statement takes."""


class ManifestClauses(OffloaderClauses):
    """The clauses on manifests: their fields after a commit, and who sees them."""

    def test_commits_apply_their_change(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """A commit returns the newest manifest with its change in it, and every client loads the same one."""
        me, successor, job = uuid4(), uuid4(), uuid4()
        uids = [uuid4() for _ in range(5)]
        source_epoch = random.randint(1, 2**40)
        history: list[Manifest] = []

        async def commit(change: Change, committer: UUID) -> Manifest:
            newest = history[-1] if history else None
            client, reader = random.sample([offloader, other], 2)
            since_claim = [each for each in history if newest and each.epoch == newest.epoch]
            base = random.choice([None, *since_claim])  # a writer knows its claim
            made = await client.commit_manifest("orders", change, base=base, committer=committer)
            expected = change.apply(newest)
            assert made.commit_id not in [each.commit_id for each in history]
            assert made.version > (newest.version if newest else 0), "expected a higher version"
            expected = replace(
                expected,
                version=made.version,
                commit_id=made.commit_id,
                parent_commit_id=newest.commit_id if newest else UUID(int=0),
                committer=committer,
            )
            await self.agree(client, made, expected)
            await self.agree(reader, await reader.load_manifest("orders"), expected)
            view = await reader.view("orders")
            assert_same(view.committed, expected, but={"entries"})
            assert await walked(view) == entries_of_rows(expected.entries)
            history.append(expected)
            return expected

        async def copied(uid: UUID, ledger_id: int, chunks: int) -> Sequence[Entry]:
            ledger = drawn_ledger(chunks, first_offset=history[-1].next_offset, ledger_id=ledger_id)
            attempt = Attempt(stream="orders", ledger_id=ledger_id, uid=uid)
            receipt = await offloader.offload(ledger, attempt, manifest=history[-1], extra_metadata={})
            return receipt.entries

        async def scenario() -> None:
            first = random.randint(0, 99)
            claim = Claim(stream="orders", writer=me, first_offset=first, source_epoch=source_epoch)
            born = await commit(claim, me)
            numbers = random.sample(range(1, 999), 5)
            await commit(Prepare(writer=me, attempts=[*zip(uids[:4], numbers, strict=False)]), me)
            one = await copied(uids[0], numbers[0], 3)
            await commit(Append(writer=me, entries=one, finished=frozenset({uids[0]})), me)
            two = await copied(uids[1], numbers[1], 7)
            await commit(Append(writer=me, entries=two, finished=frozenset({uids[1], uids[2]})), me)
            announced = [(uids[4], numbers[4])]
            await commit(Announce(job=job, incarnation=born.incarnation, attempts=announced), job)
            counted = history[-1]
            await commit(trim_to(counted, one), guest := uuid4())
            await commit(Claim(stream="orders", writer=successor, first_offset=0), successor)
            await commit(Resolve(writer=successor, adopted=()), successor)
            of_job = await copied(uids[4], numbers[4], 2)
            finished = frozenset({uids[4]})
            change = Contribute(job=job, incarnation=born.incarnation, entries=of_job, finished=finished)
            await commit(change, job)
            await commit(Prepare(writer=successor, attempts=[(uid := uuid4(), 5)]), successor)
            await commit(Abort(attempts=frozenset({uid})), guest)

        run(scenario())

    async def agree(self, client: LedgerOffloader, found: Manifest, expected: Manifest) -> None:
        """Assert that a manifest equals the expected one in each field, and names the same fragments."""
        assert_same(found, expected, but={"entries"})
        assert await named(client, found) == entries_of_rows(expected.entries)

    def test_manifests_are_fresh(self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader) -> None:
        """Every client sees another client's commit at its next call: nothing is kept from an earlier one."""

        async def seen(stream: str) -> tuple[object, ...]:
            try:
                manifest = await other.load_manifest(stream)
            except NotOffloaded as absent:
                return (class_of(absent), await other.streams())
            return (manifest.commit_id, await other.streams())

        async def scenario() -> None:
            with pytest.raises(NotOffloaded):
                await other.open()
            await offloader.open(create=True)
            await other.open()
            assert await seen("orders") == (NotOffloaded, [])
            for _ in range(2):
                writer = await StreamWriter.claim(offloader, "orders")
                assert await seen("orders") == (writer.manifest.commit_id, ["orders"])
                [attempt, later] = await writer.prepare([0, 1])
                assert await seen("orders") == (writer.manifest.commit_id, ["orders"])
                for number, each in enumerate((attempt, later)):
                    with pytest.raises(NotOffloaded):
                        await other.read_offloaded(each)
                    ledger = drawn_ledger(4, first_offset=writer.manifest.next_offset, ledger_id=number)
                    await writer.append([await stored(writer, ledger, each)])
                    assert await chunks_of(other, each) == [*ledger.chunks]
                await deleted(writer)
                assert await seen("orders") == (StreamDeleted, ["orders"])
                with pytest.raises(NotOffloaded):
                    await other.read_offloaded(attempt)

        run(scenario())

    def test_bases_may_be_old(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """`base` may be old or None: the change is applied to the newest manifest."""
        kept = drawn_ledger(3)
        attempt = run(committed(writer, kept))
        bases = [None, writer.manifest, run(other.load_manifest("orders"))]
        uids = [uuid4() for _ in range(5)]

        for n, uid in enumerate(uids):
            change = Prepare(writer=writer.writer, attempts=[(uid, n)])
            client, base = (offloader, other)[n % 2], random.choice(bases)
            bases.append(run(client.commit_manifest("orders", change, base=base, committer=writer.writer)))
        claim = Claim(stream="orders", writer=uuid4(), first_offset=77)
        claimed = run(offloader.commit_manifest("orders", claim, base=None, committer=claim.writer))

        assert [running.attempt for running in claimed.running] == uids
        assert (claimed.first_offset, claimed.next_offset) == (0, kept.next_offset)
        assert run(chunks_of(other, attempt)) == [*kept.chunks]

    def test_repeated_commits_return_the_newest(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Committing a change again changes nothing, and returns the newest manifest."""
        [attempt] = run(writer.prepare([0]))
        receipt = run(stored(writer, ledger_of(10), attempt))
        change, base = append_of(writer, receipt), writer.manifest
        accepted = run(offloader.commit_manifest("orders", change, base=base, committer=writer.writer))
        writer.manifest = accepted
        run(committed(writer, ledger_of(10, first_offset=10)))
        newest = run(other.load_manifest("orders"))

        for client in (offloader, other):
            for known in (None, base, accepted, newest):
                again = run(client.commit_manifest("orders", change, base=known, committer=writer.writer))
                assert (again.commit_id, again.next_offset) == (newest.commit_id, 20)

        assert run(other.load_manifest("orders")).commit_id == newest.commit_id

    def test_trimmed_commits_are_unknown(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Repeating a commit whose fragments have been trimmed since raises `OutcomeUnknown`."""
        [attempt] = run(writer.prepare([0]))
        receipt = run(stored(writer, ledger_of(10), attempt))
        change, base = append_of(writer, receipt), writer.manifest
        run(writer.append([receipt]))
        run(committed(writer, ledger_of(10, first_offset=10)))
        trim, newest = trim_of(writer, receipt), writer.manifest
        trimmed = run(offloader.commit_manifest("orders", trim, base=newest, committer=uuid4()))

        for client, known in ((offloader, base), (other, trimmed), (other, None)):
            with pytest.raises(OutcomeUnknown):
                run(client.commit_manifest("orders", change, base=known, committer=writer.writer))

        assert run(other.load_manifest("orders")).commit_id == trimmed.commit_id

    def test_refusals_tell_their_cause(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A change that cannot be applied is `Conflict`, or `Misuse` if no rival can have caused that."""
        run(committed(writer, ledger_of(10)))
        gone, lives = run(writer.prepare([10, 10]))
        dropped = run(stored(writer, ledger_of(10, first_offset=10), gone)).entries
        running = run(stored(writer, ledger_of(10, first_offset=10), lives)).entries
        run(writer.abort([gone]))
        me, newest = writer.writer, writer.manifest
        job = Announce(job=uuid4(), incarnation=newest.incarnation, attempts=())
        counted = TrimmedTotals(messages=1, data_size_bytes=1, stored_size_bytes=1, fragments=9, ledgers=1)
        miscounted = Trim(
            incarnation=newest.incarnation, since=3, first_offset=10, dropped=counted, counted=b"no entries"
        )

        def appended(entries: Sequence[Entry], moved: int) -> Append:
            at = [replace(entry, first_offset=entry.first_offset + moved) for entry in entries]
            return Append(writer=me, entries=at, finished=frozenset())

        gap, overlap = random.randint(1, 2**33), random.randint(1, 10)
        refused: list[tuple[str, Change, type[OffloadError]]] = [
            ("a gap", appended(running, gap), Misuse),
            ("an overlap", appended(running, -overlap), Conflict),
            ("a hole", appended([*running, replace(running[-1], first_offset=99)], 0), Misuse),
            ("a dropped attempt", appended(dropped, 0), Conflict),
            ("no attempt", appended([replace(each, attempt=uuid4()) for each in running], 0), Conflict),
            ("a running attempt", replace(job, attempts=[(uuid4(), 0), (lives.uid, 0)]), Conflict),
            ("another writer", Prepare(writer=uuid4(), attempts=[(uuid4(), 0)]), Fenced),
            ("another's adoption", Resolve(writer=me, adopted=running), Conflict),
            ("a wrong count", miscounted, Conflict),
            ("a stream in use", Delete(incarnation=newest.incarnation, unused_by=frozenset([me])), Conflict),
        ]
        for what, change, error in refused:
            for client, base in ((offloader, newest), (other, newest), (other, None)):
                with pytest.raises(error) as caught:
                    run(client.commit_manifest("orders", change, base=base, committer=me))
                assert (what, class_of(caught.value)) == (what, error)
        for change in (Prepare(writer=me, attempts=[(uuid4(), 0)]), appended(running, 0)):
            with pytest.raises(Misuse):
                run(other.commit_manifest("never claimed", change, base=None, committer=me))

        assert run(other.load_manifest("orders")).commit_id == newest.commit_id
        for client in (offloader, other):
            change = Prepare(writer=me, attempts=[(uuid4(), 0)])
            run(client.commit_manifest("orders", change, base=None, committer=me))

    def test_cancelled_commits_hinder_nobody(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A commit that is cancelled at any moment takes effect or not, and the next commit works."""

        async def scenario() -> None:
            for steps in random.sample(range(30), 10):
                uid = uuid4()
                change = Prepare(writer=writer.writer, attempts=[(uid, 0)])
                committing = asyncio.ensure_future(
                    offloader.commit_manifest("orders", change, base=None, committer=writer.writer)
                )
                for _ in range(steps):
                    await asyncio.sleep(0)
                committing.cancel()
                await asyncio.wait([committing])
                again = await offloader.commit_manifest("orders", change, base=None, committer=writer.writer)
                assert [each.attempt for each in again.running].count(uid) == 1
                assert (await other.load_manifest("orders")).commit_id == again.commit_id

        run(scenario())

    def test_changes_are_of_their_incarnation(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A change made for a deleted stream does nothing to a later stream of the same name."""
        first = writer.manifest
        [attempt] = run(writer.prepare([0]))
        receipt = run(stored(writer, ledger_of(10), attempt))
        run(writer.append([receipt]))
        old, late, trim = writer.writer, append_of(writer, receipt), trim_of(writer, receipt)
        delete = run(deleted(writer))
        job = Announce(job=uuid4(), incarnation=first.incarnation, attempts=[(uuid4(), 0)])
        for change in (late, trim, job, Prepare(writer=old, attempts=[(uuid4(), 0)])):
            with pytest.raises(StreamDeleted):
                run(other.commit_manifest("orders", change, base=writer.manifest, committer=old))
        reborn = run(StreamWriter.claim(other, "orders"))
        run(committed(reborn, kept := drawn_ledger(5)))
        newest = reborn.manifest

        for change, error in ((late, Fenced), (trim, Conflict), (job, StreamDeleted)):
            for base in (writer.manifest, newest, None):
                with pytest.raises(error):
                    run(offloader.commit_manifest("orders", change, base=base, committer=old))
        again = run(offloader.commit_manifest("orders", delete, base=writer.manifest, committer=uuid4()))

        assert again.commit_id == run(other.load_manifest("orders")).commit_id == newest.commit_id
        assert newest.messages == kept.next_offset

    def test_epochs_never_fall(self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader) -> None:
        """Epoch and version rise with every claim and deletion, and the broker's own epoch never falls."""
        source_epoch = random.randint(2, 2**40)
        epochs, versions = [0], [0]
        for life in range(3):
            for client in (offloader, other):
                writer = run(StreamWriter.claim(client, "orders", source_epoch=source_epoch + life))
                epochs.append(writer.manifest.epoch)
                versions.append(writer.manifest.version)
            run(deleted(writer))
            with pytest.raises(StreamDeleted) as caught:
                run(other.load_manifest("orders"))
            assert caught.value.epoch is None or caught.value.epoch >= epochs[-1]
            with pytest.raises(Fenced):
                run(StreamWriter.claim(other, "orders", source_epoch=source_epoch + life - 1))

        assert epochs == sorted(set(epochs)), "expected a higher epoch for each claim"
        assert versions == sorted(set(versions)), "expected a higher version for each commit"
        assert run(StreamWriter.claim(other, "orders")).manifest.source_epoch == source_epoch + 2

    def test_jobs_outlive_claims(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A job's attempts run on when another writer claims the stream, and the job can append them."""
        job, uids = uuid4(), [uuid4(), uuid4()]
        incarnation = writer.manifest.incarnation
        announce = Announce(job=job, incarnation=incarnation, attempts=[(uid, 7) for uid in uids])
        announced = run(offloader.commit_manifest("orders", announce, base=None, committer=job))
        assert {(each.attempt, each.writer, each.kind) for each in announced.running} == {
            (uid, job, AttemptKind.JOB) for uid in uids
        }

        claimed = run(StreamWriter.claim(other, "orders"))

        assert claimed.manifest.running == announced.running
        ledger = drawn_ledger(5, ledger_id=7)
        attempt = Attempt(stream="orders", ledger_id=7, uid=uids[0])
        receipt = run(offloader.offload(ledger, attempt, manifest=announced, extra_metadata={}))
        assert {entry.copied for entry in receipt.entries} == {0}, "a job's append is not a copy"
        with pytest.raises(Conflict):
            run(claimed.append([receipt]))
        change = Contribute(
            job=job, incarnation=incarnation, entries=receipt.entries, finished=frozenset(uids)
        )
        done = run(offloader.commit_manifest("orders", change, base=announced, committer=job))
        assert (done.writer, done.committer, done.running) == (claimed.writer, job, ())
        assert run(chunks_of(other, attempt)) == [*ledger.chunks]

    def test_manifests_hold_many_attempts(self, run: Run, opened: Open, writer: StreamWriter) -> None:
        """A manifest can hold 150 running attempts, and name 40 fragments."""
        other = opened()
        attempts = run(writer.prepare([*range(ATTEMPTS)]))
        ledgers = [drawn_ledger(1, ledger_id=0, size_bytes_max=50)]
        while len(ledgers) < 40:
            at, number = ledgers[-1].next_offset, len(ledgers)
            ledgers.append(drawn_ledger(1, first_offset=at, ledger_id=number, size_bytes_max=50))
        assert [each.attempt for each in run(other.load_manifest("orders")).running] == [
            attempt.uid for attempt in attempts
        ]
        receipts = [
            run(stored(writer, ledger, attempt)) for ledger, attempt in zip(ledgers, attempts, strict=False)
        ]

        run(writer.append(receipts))

        manifest = run(other.load_manifest("orders"))
        assert (manifest.ledgers, len(manifest.running)) == (40, ATTEMPTS - 40)
        assert run(named(other, manifest)) == [entry for receipt in receipts for entry in receipt.entries]
        for n in random.sample(range(40), 5):
            offset = random.randrange(ledgers[n].first_offset, ledgers[n].next_offset)
            found = run(other.tree(manifest).find(offset))
            assert found is not None
            assert found.attempt == attempts[n].uid
            assert run(chunks_of(other, attempts[n])) == [*ledgers[n].chunks]
        run(writer.abort(attempts[40:]))
        assert run(other.load_manifest("orders")).running == ()
