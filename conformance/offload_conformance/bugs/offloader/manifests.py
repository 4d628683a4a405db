"""Bugs of manifests: stale ones, fields that are lost, and refusals for the wrong cause."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from uuid import UUID, uuid4

from offload import delete_stream
from offload.commit.guest import Abort, Delete, Trim
from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.change import Change
from offload.contracts.store import ObjectStore
from offload.ground.errors import Conflict, Fenced, Misuse, NotOffloaded, OutcomeUnknown, TryAgain
from offload.model.manifest import Manifest, StreamState
from offload.native.offloader import ObjectStoreOffloader
from offload.write.job import Job
from offload.write.writer import StreamWriter
from offload_conformance.bugs.offloader.shared import Altering, Reclaiming
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.ledgers import copied, ledger, raises, trimmed, uploaded
from offload_conformance.bugs.sound.table import Table
from offload_conformance.bugs.sound.views import opened, prepared


@bug("contract/commits_apply_their_change")
class ForgetsTheBrokersEpoch(Altering):
    """Loses the broker's own epoch when a manifest is stored.

    A column that was added to the type, and not to the table.
    """

    def altered(self, manifest: Manifest) -> Manifest:
        return replace(manifest, source_epoch=0)


@bug("contract/commits_apply_their_change")
class SignsForTheWriter(ObjectStoreOffloader):
    """Records the stream's writer as the author of every commit.

    A guest's trim then looks like the writer's own.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if base is not None:
            committer = base.writer
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("contract/manifests_are_fresh")
class CachesManifests(ObjectStoreOffloader):
    """Returns the manifest that it loaded or committed last, although others have committed since.

    Only its own commits renew the cache.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.cached: dict[str, Manifest] = {}

    async def load_manifest(self, stream: str) -> Manifest:
        if stream not in self.cached:
            self.cached[stream] = await super().load_manifest(stream)
        return self.cached[stream]

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        self.cached.pop(stream, None)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("contract/manifests_are_fresh")
class RemembersAbsence(ObjectStoreOffloader):
    """Caches that a stream was absent.

    The cache renews only found entries, so an absence stays for ever.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.absent: set[str] = set()

    async def load_manifest(self, stream: str) -> Manifest:
        if stream in self.absent:
            raise NotOffloaded(f"there is no stream {stream!r}")
        try:
            return await super().load_manifest(stream)
        except NotOffloaded:
            self.absent.add(stream)
            raise


@bug("contract/manifests_are_fresh")
class CachesTheStreams(ObjectStoreOffloader):
    """Always lists the streams of its first listing.

    A listing is expensive, and streams are few.
    """

    listed: list[str] | None = None

    async def streams(self) -> list[str]:
        if self.listed is None:
            self.listed = await super().streams()
        return self.listed


@bug("contract/bases_may_be_old")
class InsistsOnTheNewestBase(ObjectStoreOffloader):
    """Refuses a change whose `base` is not the newest manifest.

    Optimistic locking by version, which leaves the second try to the caller.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if base is not None:
            newest = await self.log(stream).load_newest()
            if newest is not None and newest.version != base.version:
                raise Conflict(f"version {base.version} is not {newest.version}")
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("contract/repeated_commits_return_the_newest")
class ReturnsWhatItReturned(ObjectStoreOffloader):
    """Answers a repeated change with the manifest of the first time.

    The answer is stored under an idempotency key.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.answers: list[tuple[Change, Manifest]] = []

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        for sent, answer in self.answers:
            if sent is change:
                return answer
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        self.answers.append((change, manifest))
        return manifest


@bug("contract/trimmed_commits_are_unknown")
class TakesTheTrimmedForCommitted(ObjectStoreOffloader):
    """Reports that a commit is in because its offsets are below the stream's first offset.

    Nobody can know this any more, because another writer's fragments may have been there.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        try:
            return await super().commit_manifest(stream, change, base=base, committer=committer)
        except OutcomeUnknown:
            return await self.load_manifest(stream)


@bug("contract/refusals_tell_their_cause")
class TakesAGapForARival(ObjectStoreOffloader):
    """Refuses a gap as a `Conflict`.

    One error covers every change that does not fit, so a caller repeats for ever what cannot succeed.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        try:
            return await super().commit_manifest(stream, change, base=base, committer=committer)
        except Misuse as error:
            raise Conflict(str(error)) from error


@bug("contract/refusals_tell_their_cause")
class ClosesGaps(ObjectStoreOffloader):
    """Moves records that are appended beyond the end to the end.

    It uses its own serial number instead of the given offset.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Append) and change.entries and base is not None:
            newest = await self.load_manifest(stream)
            gap = change.entries[0].first_offset - newest.next_offset
            if gap > 0:
                entries = [replace(each, first_offset=each.first_offset - gap) for each in change.entries]
                change = replace(change, entries=entries)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("contract/refusals_tell_their_cause")
class DeletesWhatIsInUse(ObjectStoreOffloader):
    """Deletes a stream that is in use, although only an unused one may be deleted.

    The condition is checked before the transaction, if the caller remembers it.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Delete):
            change = replace(change, unused_by=frozenset())
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("contract/cancelled_commits_hinder_nobody")
class StaysBusyAfterCancellation(ObjectStoreOffloader):
    """Refuses every commit after one that was cancelled.

    `except Exception` releases the lock, and a cancellation is not an `Exception`.
    """

    is_busy = False

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if self.is_busy:
            raise TryAgain("another commit is on its way")
        self.is_busy = True
        try:
            await asyncio.sleep(0)
            manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        except Exception:
            self.is_busy = False
            raise
        self.is_busy = False
        return manifest


@bug("contract/changes_are_of_their_incarnation")
class DeletesByName(ObjectStoreOffloader):
    """Deletes a stream by its name, even if another incarnation was meant.

    A deletion is repeated after a lost reply, and deletes the stream that was begun since.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Delete):
            newest = await self.log(stream).load_newest()
            if newest is not None:
                change = replace(change, incarnation=newest.incarnation)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("contract/manifests_hold_many_attempts")
class LoadsOnePageOfAttempts(Altering):
    """Loads only the first hundred running attempts.

    The query has a limit that was meant for a screen.
    """

    def altered(self, manifest: Manifest) -> Manifest:
        return replace(manifest, running=manifest.running[:100])


class _FirstEpoch(Claim):
    def apply(self, base: Manifest | None) -> Manifest:
        changed = super().apply(base)
        return changed if base is None or base.state is StreamState.LIVE else replace(changed, epoch=1)


@bug("contract/epochs_never_fall")
class CountsEpochsByLife(Reclaiming):
    """Restarts the epochs of a stream when the stream is begun again.

    The row is deleted together with its counter, so a writer that slept may outrank the new one.
    """

    kind = _FirstEpoch


@bug("contract/jobs_outlive_claims")
class DropsJobsWithTheWriter(ObjectStoreOffloader):
    """Drops every attempt with a claim, including those of jobs.

    Every attempt that was running is taken for the remains of a crash.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        if isinstance(change, Claim) and manifest.running:
            abort = Abort(attempts=frozenset(each.attempt for each in manifest.running))
            return await super().commit_manifest(stream, abort, base=manifest, committer=committer)
        return manifest


async def _goes_on_after_a_refusal(open_: OpenClient) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    stranger = Prepare(writer=uuid4(), attempts=[(uuid4(), 5)])
    await raises(Fenced, tier.commit_manifest("s", stranger, base=None, committer=uuid4()))
    async with asyncio.timeout(10):
        await prepared(tier, "s", writer.manifest)


@bug("contract/cancelled_commits_hinder_nobody", _goes_on_after_a_refusal)
class RefusedCommitKeepsItsLock(Table):
    """Commits of a stream take turns in a client, and one that is refused does not end its turn.

    Breaks "its methods may be called at the same time". Costs a process whose first writer was fenced: its
    next one waits for ever.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.turns: dict[str, asyncio.Lock] = {}

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        turn = self.turns.setdefault(stream, asyncio.Lock())
        await turn.acquire()
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        turn.release()
        return manifest


async def _runs_after_a_trim(open_: OpenClient) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0), ledger(3))
    change, _ = await prepared(tier, "s", writer.manifest)
    manifest = await trimmed(tier, "s", 3)
    assert manifest.first_offset == 3
    [(uid, _)] = change.attempts
    assert (await tier.load_manifest("s")).runs(uid)


@bug("contract/commits_apply_their_change", _runs_after_a_trim)
class TrimDropsAttempts(Table):
    """A trim writes the row anew, from the columns that it knows: the attempts that run are not among them.

    Breaks "A change is in the manifest completely or not at all", and nothing else is. Costs a writer beside
    retention: its uploads are refused.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        return replace(manifest, running=()) if isinstance(change, Trim) else manifest


async def _try_again_means_not_done(open_: OpenClient) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    for _ in range(20):
        change = Prepare(writer=writer.manifest.writer, attempts=[(uuid4(), 9)])
        try:
            await tier.commit_manifest("s", change, base=None, committer=writer.manifest.writer)
        except TryAgain:
            assert not (await tier.load_manifest("s")).runs(change.attempts[0][0])


@bug("contract/cancelled_commits_hinder_nobody", _try_again_means_not_done)
class LostReplyIsTryAgain(Table):
    """The server closes a connection now and then after it has committed, and that is taken for a refusal.

    Breaks "`TryAgain` too promises that the newest manifest does not contain the change". Costs a caller that
    gives up then: it deletes what is committed.
    """

    commits = 0

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        self.commits += 1
        if self.commits % 12 == 0:
            raise TryAgain(f"{self.url}: the server closed the connection")
        return manifest


async def _versions_rise(open_: OpenClient) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    before = await tier.load_manifest("s")
    change, manifest = await prepared(tier, "s", writer.manifest)
    abort = Abort(attempts=frozenset({change.attempts[0][0]}))
    after = await tier.commit_manifest("s", abort, base=None, committer=writer.manifest.writer)
    assert before.version < manifest.version < after.version, (before.version, after.version)
    assert await open_().newer_view(manifest) is not None


@bug("contract/commits_apply_their_change", _versions_rise)
class VersionOfTheContent(Table):
    """The version is raised only if fragments were added, replaced or trimmed: other changes are no news.

    Breaks "A number that is higher for each later state". Costs a reader that asks whether its manifest is
    the newest: a writer that it takes for idle has begun.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        if base is None or isinstance(change, Claim) or len(base.entries) != len(manifest.entries):
            return manifest
        return replace(manifest, version=base.version)


async def _epochs_of_all_lives(open_: OpenClient) -> None:
    tier = await opened(open_)
    writer = await StreamWriter.claim(tier, "s", source_epoch=9)
    await writer.offload([ledger(0)])
    await delete_stream(tier, "s")
    await raises(Fenced, StreamWriter.claim(open_(), "s", source_epoch=3))
    reborn = await StreamWriter.claim(open_(), "s", source_epoch=10)
    assert reborn.manifest.epoch > writer.manifest.epoch


@bug("contract/epochs_never_fall", _epochs_of_all_lives)
class TombstoneHasNoEpoch(Table):
    """A tombstone has the columns that a reader needs, and the source's epoch is none of them.

    Breaks "The leader epoch that the tombstone keeps. A source with a lower one is fenced". Costs a stream
    that was deleted: a deposed leader begins it again.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        if manifest.state is StreamState.DELETED:
            return replace(manifest, source_epoch=0)
        return manifest


async def _one_ledger_in_two_commits(open_: OpenClient) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=7), ledger(3, ledger_id=7))
    assert (await tier.load_manifest("s")).ledgers == 1
    assert writer.manifest.last_ledger_id == 7


@bug("contract/commits_apply_their_change", _one_ledger_in_two_commits)
class LastLedgerIsForgotten(Table):
    """The table of manifests has no column for the last ledger.

    Breaks "Return the newest committed manifest". Costs the count of ledgers: one that is copied in several
    steps counts each time.
    """

    async def newest(self, stream: str) -> Manifest | None:
        manifest = await super().newest(stream)
        return manifest and replace(manifest, last_ledger_id=0)


async def _attempts_keep_their_epoch(open_: OpenClient) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    job = await Job.begin(tier, "s")
    await job.prepare([3])
    await StreamWriter.claim(tier, "s")
    [running] = (await tier.load_manifest("s")).running
    assert running.epoch == 1


@bug("contract/commits_apply_their_change", _attempts_keep_their_epoch)
class AttemptsHaveNoEpoch(Table):
    """The table of running attempts has no epoch; that of the stream is shown instead.

    Breaks "Return the newest committed manifest". Costs a rebuild its order: what an attempt uploads says a
    later epoch than the one under which it was announced.
    """

    async def newest(self, stream: str) -> Manifest | None:
        manifest = await super().newest(stream)
        if manifest is None:
            return None
        running = tuple(replace(each, epoch=manifest.epoch) for each in manifest.running)
        return replace(manifest, running=running)


async def _source_epochs_are_long(open_: OpenClient) -> None:
    tier = open_()
    await StreamWriter.claim(tier, "s", source_epoch=2**40 + 5)
    assert (await tier.load_manifest("s")).source_epoch == 2**40 + 5
    await raises(Fenced, StreamWriter.claim(tier, "s", source_epoch=2**40 + 4))


@bug("contract/commits_apply_their_change", _source_epochs_are_long)
class SourceEpochIsAnInt(Table):
    """The leader epoch of the source is a column of 31 bits, as in Kafka, and larger ones are cut.

    Breaks "Return the newest committed manifest", and with it the fence of a deposed leader. Costs the
    history of a source whose epochs are times: an older leader takes the stream.
    """

    async def newest(self, stream: str) -> Manifest | None:
        manifest = await super().newest(stream)
        return manifest and replace(manifest, source_epoch=manifest.source_epoch % 2**31)


async def _repeated_after_a_trim(open_: OpenClient) -> None:
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


@bug("contract/trimmed_commits_are_unknown", _repeated_after_a_trim)
class WhatIsTrimmedWasNeverIn(Table):
    """A change that the manifest no longer shows counts as one that was not committed.

    Breaks "raises `OutcomeUnknown` if what it named was trimmed": `Conflict` means that it never will be in.
    """

    async def is_in(self, change: Change, newest: Manifest) -> bool:
        try:
            return await super().is_in(change, newest)
        except OutcomeUnknown:
            return False
