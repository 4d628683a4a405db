"""Mistakes in commits: fences, repetitions, concurrency."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from uuid import UUID, uuid4

from newcomers.ledgers import (
    copied,
    entries_of,
    ledger,
    raises,
    trimmed,
    uploaded,
)
from newcomers.registry import Open, bug
from newcomers.table import Table
from offload.commit.guest import Abort, Trim
from offload.commit.job import Announce, Contribute
from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.change import Change
from offload.formats.root import encode_root
from offload.ground.errors import Conflict, Fenced, Misuse, OutcomeUnknown, StreamDeleted
from offload.model.attempt import Attempt
from offload.model.manifest import Manifest, StreamState
from offload.upkeep.retention import delete_stream
from offload.write.writer import StreamWriter


async def _older_base(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    base = writer.manifest
    await writer.prepare([7])
    change = Prepare(writer=writer.writer, attempts=[(uuid4(), 8)])
    manifest = await tier.commit_manifest("s", change, base=base, committer=writer.writer)
    assert len(manifest.running) == 2


@bug(_older_base)
class OldBasesAreConflicts(Table):
    """A commit whose base is not the newest manifest raises `Conflict`, even if it would fit.

    Breaks "the other is applied to the newer manifest if it still fits": two jobs at once both fail and fail
    again.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        newest = await self.newest(stream)
        if (
            base is not None
            and newest is not None
            and base.version != newest.version
            and not await self.is_in(change, newest)
        ):
            await self.changed(change, newest, committer)
            raise Conflict(f"stream {stream!r}: version {base.version} is not the newest")
        return await super().commit_manifest(stream, change, base=base, committer=committer)


async def _others_offsets(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    attempt, receipt = await uploaded(tier, writer, ledger(3, ledger_id=1))
    rival, rivals = await uploaded(tier, writer, ledger(3, ledger_id=2))
    await writer.append([rivals])
    await raises(Conflict, writer.append([receipt]))
    assert rival != attempt


@bug(_others_offsets)
class PassedOffsetsAreACommit(Table):
    """An append counts as committed if the stream ends at or beyond it, regardless of who appended the data.

    Breaks "raises `Conflict` otherwise": the writer frees a source whose records were never committed.
    """

    async def is_in(self, change: Change, newest: Manifest) -> bool:
        if (
            isinstance(change, Append)
            and change.entries
            and newest.writer == change.writer
            and newest.state is StreamState.LIVE
        ):
            return change.entries[-1].next_offset <= newest.next_offset
        return await super().is_in(change, newest)


async def _repeated(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    _, receipt = await uploaded(tier, writer, ledger(3))
    change = Append(writer=writer.writer, entries=receipt.entries, finished=frozenset({receipt.attempt.uid}))
    await tier.commit_manifest("s", change, base=writer.manifest, committer=writer.writer)
    newer = await tier.commit_manifest(
        "s", Prepare(writer=writer.writer, attempts=[(uuid4(), 9)]), base=None, committer=writer.writer
    )
    for client in (tier, open_()):
        again = await client.commit_manifest("s", change, base=writer.manifest, committer=writer.writer)
        assert again.version == newer.version


@bug(_repeated)
class RepeatedCommitsGetTheirOwnManifest(Table):
    """The client remembers the result of each change, and returns that when the change comes again.

    Breaks "Committing a change that is in already returns the newest manifest": the caller goes on from an
    old one.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.results: list[tuple[Change, Manifest]] = []

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        for known, manifest in self.results:
            if known == change:
                return manifest
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        self.results.append((change, manifest))
        return manifest


@bug(_repeated)
class OnlyTheSameClientMayRepeat(Table):
    """The client remembers its own changes; to another client the same change is new, and does not fit.

    Breaks "Commits are idempotent": a process that restarts after a lost reply gets a conflict.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.mine: list[Change] = []

    async def is_in(self, change: Change, newest: Manifest) -> bool:
        return change in self.mine and await super().is_in(change, newest)

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        self.mine.append(change)
        return manifest


async def _fenced_repeats(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    change = Prepare(writer=writer.writer, attempts=[(uuid4(), 9)])
    await tier.commit_manifest("s", change, base=writer.manifest, committer=writer.writer)
    await StreamWriter.claim(open_(), "s")
    await raises(Fenced, tier.commit_manifest("s", change, base=writer.manifest, committer=writer.writer))


@bug(_fenced_repeats)
class FencedWritersMayRepeat(Table):
    """A change that this client committed before is answered from memory with the newest manifest. The writer
    is not checked.

    Breaks "After a claim is accepted, commits of every earlier writer raise `Fenced`": the old writer goes
    on.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.mine: list[Change] = []

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if change in self.mine:
            return await self.load_manifest(stream)
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        self.mine.append(change)
        return manifest


async def _repeated_after_a_trim(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), first=0)
    _, receipt = await uploaded(tier, writer, ledger(3, ledger_id=2))
    change = Append(writer=writer.writer, entries=receipt.entries, finished=frozenset({receipt.attempt.uid}))
    base = writer.manifest
    writer.manifest = await tier.commit_manifest("s", change, base=base, committer=writer.writer)
    await writer.offload([ledger(6, ledger_id=3)])
    await trimmed(tier, "s", 6)
    with suppress(OutcomeUnknown):
        await tier.commit_manifest("s", change, base=base, committer=writer.writer)


@bug(_repeated_after_a_trim)
class WhatIsTrimmedWasNeverIn(Table):
    """A change that the manifest no longer shows counts as one that was not committed.

    Breaks "raises `OutcomeUnknown` if what it named was trimmed": `Conflict` means that it never will be in.
    """

    async def is_in(self, change: Change, newest: Manifest) -> bool:
        try:
            return await super().is_in(change, newest)
        except OutcomeUnknown:
            return False


async def _deleted_under_a_writer(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    await delete_stream(open_(), "s")
    await raises(StreamDeleted, writer.prepare([7]))
    await raises(StreamDeleted, tier.load_manifest("s"))


@bug(_deleted_under_a_writer)
class TombstonesAreConflicts(Table):
    """A commit on a deleted stream raises `Conflict`, like a change that does not fit.

    Breaks "`StreamDeleted` if it was deleted": the writer loads and tries again, for ever.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        try:
            return await super().commit_manifest(stream, change, base=base, committer=committer)
        except StreamDeleted as exc:
            raise Conflict(str(exc)) from exc


async def _gap(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    _, receipt = await uploaded(tier, writer, ledger(9))
    await raises(Misuse, writer.append([receipt]))


@bug(_gap)
class GapsAreConflicts(Table):
    """Fragments that do not continue the stream raise `Conflict`, both before and beyond its end.

    Breaks "Fragments that begin beyond the end of the stream are the caller's gap: `Misuse`": a broken caller
    retries.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        try:
            return await super().changed(change, base, committer)
        except Misuse as exc:
            raise (Conflict(str(exc)) if base is not None else exc) from exc


async def _guest_does_not_take(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), ledger(3, ledger_id=2), first=0)
    await trimmed(open_(), "s", 3)
    await writer.prepare([7])


@bug(_guest_does_not_take)
class GuestsTakeTheStream(Table):
    """Every committer becomes the writer, even a guest that trims.

    Breaks "`Fenced` if another writer holds the stream": none does, and yet a trim stops the writer.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        return replace(manifest, writer=committer) if isinstance(change, Trim | Abort) else manifest


async def _two_at_once(open_: Open) -> None:
    one, two = open_(), open_()
    writer = await copied(one, "s", ledger(0), first=0)
    changes = [Prepare(writer=writer.writer, attempts=[(uuid4(), number)]) for number in range(10)]
    calls = [
        (one, two)[number % 2].commit_manifest("s", change, base=writer.manifest, committer=writer.writer)
        for number, change in enumerate(changes)
    ]
    await asyncio.gather(*calls)
    assert len((await one.load_manifest("s")).running) == 10


@bug(_two_at_once)
class LocksAreTheClientsOwn(Table):
    """A lock in the client orders its commits, and the database is written without a condition.

    Breaks "Of two commits on one parent exactly one succeeds": a second process loses the first one's commit.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.lock = asyncio.Lock()

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        async with self.lock:
            return await super().commit_manifest(stream, change, base=base, committer=committer)

    async def set(self, manifest: Manifest) -> bool:
        await asyncio.sleep(0)
        self.db.roots[manifest.stream] = encode_root(manifest)
        return True


async def _read_while_committed(open_: Open) -> None:
    one, two = open_(), open_()
    writer = await copied(one, "s", ledger(0), first=0)

    async def write() -> None:
        for number in range(1, 8):
            await writer.offload([ledger(number * 3)])

    writing = asyncio.create_task(write())
    while not writing.done():
        await entries_of(two, await two.load_manifest("s"))
        await asyncio.sleep(0)
    await writing


@bug(_read_while_committed)
class CommitsAreTwoUpdates(Table):
    """The totals and the entries of a manifest are two tables, updated one after the other.

    Breaks "A change is in the manifest entire or not at all": a reader in between finds wrong totals.
    """

    async def set(self, manifest: Manifest) -> bool:
        before = self.db.newest(manifest.stream)
        if (
            before is not None
            and before.commit_id == manifest.parent_commit_id
            and len(before.entries) != len(manifest.entries)
        ):
            raw = encode_root(before)
            self.db.roots[manifest.stream] = encode_root(replace(manifest, entries=before.entries))
            await asyncio.sleep(0.002)
            self.db.roots[manifest.stream] = raw
            return self.db.replace(manifest)
        return await super().set(manifest)


async def _jobs_survive_claims(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    job, attempt = uuid4(), uuid4()
    announce = Announce(job=job, incarnation=writer.manifest.incarnation, attempts=[(attempt, 3)])
    manifest = await tier.commit_manifest("s", announce, base=writer.manifest, committer=job)
    receipt = await tier.offload(
        ledger(3), Attempt(stream="s", ledger_id=3, uid=attempt), manifest=manifest, extra_metadata={}
    )
    await StreamWriter.claim(open_(), "s")
    contribute = Contribute(
        job=job, incarnation=manifest.incarnation, entries=receipt.entries, finished=frozenset({attempt})
    )
    assert (await tier.commit_manifest("s", contribute, base=manifest, committer=job)).next_offset == 6


@bug(_jobs_survive_claims)
class ClaimsEndJobs(Table):
    """A claim empties the list of running attempts, as "the new writer begins from a clean table".

    Breaks "Commits are atomic: a change", and no more, is in the manifest: a back-fill of hours is refused.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        return replace(manifest, running=()) if isinstance(change, Claim) else manifest
