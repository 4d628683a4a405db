"""Commits: atomic, in one line of history, idempotent, and never undoing others."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest

from offload.commit.guest import Abort, Delete
from offload.commit.job import Announce, Contribute, Replace
from offload.commit.rebuild import Fence, Rebuilt
from offload.commit.writer import Append, Claim, Prepare, Resolve
from offload.contracts.change import Change, CommitVerdict
from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import Conflict, NotOffloaded, StreamDeleted
from offload.model.attempt import Attempt
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.write.job import Job
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import MemoryLedger, ledger_of
from offload_conformance.offloader.base import (
    OffloaderClauses,
    append_of,
    chunks_of,
    committed,
    deleted,
    named,
    stored,
    trim_to,
)
from offload_conformance.raising import raises
from offload_conformance.same import assert_same


class CommitClauses(OffloaderClauses):
    """The clauses on commits: they are atomic and idempotent, and history is linear."""

    def test_commits_are_atomic(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """A manifest loaded beside a commit of three ledgers has all three of them, or none."""
        [a, b, c] = (ledger_of(10, first_offset=start) for start in (0, 10, 20))
        attempts = run(writer.prepare([0, 10, 20]))
        parent = writer.manifest
        seen: set[tuple[int, int]] = set()

        async def scenario() -> None:
            receipts = [
                await stored(writer, ledger, attempt)
                for ledger, attempt in zip((a, b, c), attempts, strict=True)
            ]
            appending = asyncio.create_task(writer.append(receipts))
            while not appending.done():
                manifest = await other.load_manifest("orders")
                seen.add((manifest.next_offset, len(manifest.running)))
            await appending

        run(scenario())

        assert seen <= {(0, 3), (30, 0)}
        manifest = run(other.load_manifest("orders"))
        assert (manifest.next_offset, len(manifest.running)) == (30, 0)
        assert manifest.parent_commit_id == parent.commit_id, "expected that one change makes one commit"

    def test_commits_are_atomic_when_refused(
        self, run: Run, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """A refused change has no effect at all, even if its first half would have been possible.

        A refused deletion, of a stream that is in use, removes nothing.
        """
        good, dropped = run(writer.prepare([0, 10]))
        receipts = [
            run(stored(writer, ledger_of(10), good)),
            run(stored(writer, ledger_of(10, first_offset=10), dropped)),
        ]
        run(writer.abort([dropped]))
        before = run(other.load_manifest("orders"))

        with pytest.raises(Conflict):
            run(writer.append(receipts))

        after = run(other.load_manifest("orders"))
        assert (after.version, after.commit_id) == (before.version, before.commit_id)
        assert after.next_offset == 0
        run(writer.append(receipts[:1]))
        deletion = Delete(incarnation=after.incarnation, unused_by=frozenset({writer.writer}))
        with raises(Conflict, "a deletion, if unused, of a stream with messages"):
            run(other.commit_manifest("orders", deletion, base=writer.manifest, committer=uuid4()))
        assert run(chunks_of(other, good)) == [*ledger_of(10).chunks]

    def test_history_is_linear(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """If several commits have one parent, exactly one follows it directly, and the others follow on top.

        A call may return a manifest newer than the one that its own commit made. Commits of another stream at
        the same time have no effect on this history.
        """
        parent = writer.manifest
        bills = run(StreamWriter.claim(offloader, "bills"))
        changes = [Prepare(writer=writer.writer, attempts=[(uuid4(), 0)]) for _ in range(6)]

        async def scenario() -> list[Manifest]:
            commits = [
                (offloader, other)[n % 2].commit_manifest(
                    "orders", change, base=parent, committer=writer.writer
                )
                for n, change in enumerate(changes)
            ]
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(of_bills())
                return await asyncio.gather(*commits)

        async def of_bills() -> None:
            for n in range(len(changes)):
                before = bills.manifest
                await bills.prepare([n])
                assert bills.manifest.stream == "bills"
                assert bills.manifest.parent_commit_id == before.commit_id

        accepted = run(scenario())

        newest = run(other.load_manifest("orders"))
        for change, manifest in zip(changes, accepted, strict=True):
            assert run(change.verdict(other.tree(manifest))) is CommitVerdict.IN
            assert run(change.verdict(other.tree(newest))) is CommitVerdict.IN
        known: dict[int, Manifest] = {parent.version: parent}
        for manifest in (*accepted, newest):
            assert known.setdefault(manifest.version, manifest).commit_id == manifest.commit_id
        line = [manifest for _, manifest in sorted(known.items())]
        assert (line[0], line[-1].version) == (parent, newest.version)
        # Each change is one commit. A commit in between is unknown if its call returned a newer manifest.
        unknown = len(changes) - len(line[1:])
        breaks = [two for one, two in pairwise(line) if two.parent_commit_id != one.commit_id]
        assert len(breaks) <= unknown, f"expected {len(changes)} commits, each on the one before it"
        parents = [manifest.parent_commit_id for manifest in line[1:]]
        assert len({*parents}) == len(parents), "two commits on one parent"

    @pytest.mark.parametrize("records", [5, 10, 20])
    def test_history_is_linear_where_changes_exclude_each_other(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter, records: int
    ) -> None:
        """If two appends continue a stream at the same offset, the second is refused with `Conflict`."""
        wins, loses = run(writer.prepare([0, 0]))
        parent = writer.manifest
        first, second = (
            append_of(writer, run(stored(writer, ledger_of(count), attempt)))
            for count, attempt in ((10, wins), (records, loses))
        )
        won = run(offloader.commit_manifest("orders", first, base=parent, committer=writer.writer))

        with pytest.raises(Conflict):
            run(other.commit_manifest("orders", second, base=parent, committer=writer.writer))

        newest = run(other.load_manifest("orders"))
        assert (newest.commit_id, newest.next_offset) == (won.commit_id, 10)
        assert run(other.tree(newest).names(0, wins.uid))
        assert not run(other.tree(newest).names(0, loses.uid))

    def test_commits_are_idempotent(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Committing a change that is already committed returns the newest manifest.

        This holds whichever manifest its caller knows: none, or one in which the change was not possible yet.
        """
        older = writer.manifest
        [attempt] = run(writer.prepare([0]))
        receipt = run(stored(writer, ledger_of(10), attempt))
        base = writer.manifest
        change = append_of(writer, receipt)
        accepted = run(offloader.commit_manifest("orders", change, base=older, committer=writer.writer))

        for client in (offloader, other):
            for known in (older, base, accepted, None):
                again = run(client.commit_manifest("orders", change, base=known, committer=writer.writer))
                assert again.commit_id == accepted.commit_id

        assert run(other.load_manifest("orders")).commit_id == accepted.commit_id

    def test_commits_are_idempotent_for_every_change(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """Every kind of change takes effect once, however often any client sends it: the newest is returned.

        So it is for a writer, for its successor, for guests and jobs, for copies, and for a rebuild.
        """
        me, successor, guest, job = [uuid4() for _ in range(4)]
        uids = [uuid4() for _ in range(5)]
        ledgers = [MemoryLedger(ledger_of(3, first_offset=3 * n).chunks, ledger_id=7) for n in range(3)]

        async def twice(change: Change, base: Manifest | None, committer: UUID) -> Manifest:
            first = await offloader.commit_manifest("orders", change, base=base, committer=committer)
            for client, known in itertools.product((offloader, other), (base, first, None)):
                again = await client.commit_manifest("orders", change, base=known, committer=committer)
                assert_same(again, first)
            return first

        async def entries(n: int, uid: UUID, manifest: Manifest) -> Sequence[Entry]:
            attempt = Attempt(stream="orders", ledger_id=7, uid=uid)
            receipt = await offloader.offload(ledgers[n], attempt, manifest=manifest, extra_metadata={})
            return receipt.entries

        async def appended(n: int, base: Manifest) -> Manifest:
            change = Append(writer=me, entries=await entries(n, uids[n], base), finished=frozenset({uids[n]}))
            return await twice(change, base, me)

        async def contributed(base: Manifest) -> Manifest:
            of_job: dict[str, Any] = {"job": job, "incarnation": base.incarnation}
            base = await twice(Announce(attempts=[(uids[4], 7)], **of_job), base, job)
            last = await entries(2, uids[4], base)
            change = Contribute(entries=last, finished=frozenset({uids[4]}), **of_job)
            return await twice(change, base, job)

        async def replaced(base: Manifest) -> Manifest:
            copier = await Job.begin(other, "orders", uid=uuid4())
            old = [entry for entry in await named(other, base) if entry.first_offset < 3]
            announced, [attempt] = await copier.prepare_copies([old])
            new = await entries(0, attempt.uid, announced)
            change = Replace(job=copier.uid, incarnation=base.incarnation, old=old, new=new)
            return await twice(change, announced, copier.uid)

        async def rebuilt(base: Manifest) -> Manifest:
            found = await named(other, base)
            fence = Fence(
                stream="orders",
                writer=guest,
                incarnation=base.incarnation,
                epoch=base.epoch + 1,
                above=base.version,
                instead_of=base.commit_id,
            )
            base = await twice(fence, base, guest)
            change = Rebuilt(writer=guest, incarnation=base.incarnation, entries=found)
            return await twice(change, base, guest)

        async def scenario() -> None:
            base = await twice(Claim(stream="orders", writer=me, first_offset=0), None, me)
            base = await twice(Prepare(writer=me, attempts=[(uid, 7) for uid in uids[:4]]), base, me)
            base = await twice(Abort(attempts=frozenset({uids[2]})), base, guest)
            base = await appended(0, base)
            base = await appended(1, base)
            base = await twice(Claim(stream="orders", writer=successor, first_offset=0), base, successor)
            base = await twice(Resolve(writer=successor, adopted=()), base, successor)
            base = await replaced(await contributed(base))
            base = await rebuilt(base)
            dropped = [entry for entry in await named(other, base) if entry.first_offset < 3]
            base = await twice(trim_to(base, dropped, ledgers=0), base, guest)
            assert (base.first_offset, base.next_offset, base.messages) == (3, 9, 6)
            await twice_deleted(base)

        async def twice_deleted(base: Manifest) -> None:
            change = Delete(incarnation=base.incarnation)
            first = await offloader.commit_manifest("orders", change, base=base, committer=guest)
            for client, known in itertools.product((offloader, other), (base, first, None)):
                again = await client.commit_manifest("orders", change, base=known, committer=uuid4())
                assert_same(again, first)

        run(scenario())

    def test_next_offset_never_falls(
        self, run: Run, offloader: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """Every commit raises the version, and none lowers the stream's next offset."""
        kept = run(committed(writer, ledger_of(10)))
        [attempt] = run(writer.prepare([10]))
        before = writer.manifest
        changes: list[Change] = [
            Abort(attempts=frozenset({attempt.uid})),
            Prepare(writer=writer.writer, attempts=[(uuid4(), 10)]),
            Claim(stream="orders", writer=(successor := uuid4()), first_offset=0),
            Resolve(writer=successor, adopted=()),
        ]

        for change in changes:
            after = run(offloader.commit_manifest("orders", change, base=before, committer=successor))
            assert after.version > before.version
            assert (after.first_offset, after.next_offset, after.fragments) == (0, 10, before.fragments)
            assert after.incarnation == before.incarnation
            before = after

        assert len(run(chunks_of(offloader, kept))) == 10

    def test_deleted_streams_are_told(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """`load_manifest` of a deleted stream raises `StreamDeleted`, and so do its last writer's commits."""
        run(committed(writer, ledger_of(10)))
        run(deleted(writer))

        with pytest.raises(StreamDeleted):
            run(other.load_manifest("orders"))
        with pytest.raises(StreamDeleted):
            run(writer.prepare([10]))

        assert run(other.streams()) == ["orders"]

    def test_deleted_streams_begin_anew(self, run: Run, other: LedgerOffloader, writer: StreamWriter) -> None:
        """A claim of a deleted stream starts a new incarnation, which contains nothing of the old one."""
        attempt = run(committed(writer, ledger_of(10)))
        run(deleted(writer))

        reborn = run(StreamWriter.claim(other, "orders", first_offset=5))

        found = run(other.load_manifest("orders"))
        assert found.incarnation == reborn.manifest.incarnation != writer.manifest.incarnation
        assert (found.first_offset, found.next_offset, found.fragments) == (5, 5, 0)
        assert found.version > writer.manifest.version
        with pytest.raises(NotOffloaded):
            run(other.read_offloaded(attempt))

    def test_rebuilding_streams_are_not_there_yet(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """While a stream is rebuilt, loading it raises `NotOffloaded` and claiming it raises `Conflict`."""
        fence = Fence(stream="orders", writer=uuid4(), incarnation=uuid4(), epoch=9, above=3)
        run(offloader.open(create=True))
        run(offloader.commit_manifest("orders", fence, base=None, committer=fence.writer))

        with pytest.raises(NotOffloaded) as caught:
            run(other.load_manifest("orders"))
        assert not isinstance(caught.value, StreamDeleted)
        with pytest.raises(Conflict):
            run(StreamWriter.claim(other, "orders"))
