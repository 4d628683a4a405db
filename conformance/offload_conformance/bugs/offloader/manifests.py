"""Bugs of manifests: stale ones, fields that are lost, and refusals for the wrong cause."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

from offload.commit.guest import Abort, Delete
from offload.commit.writer import Append, Claim
from offload.contracts.change import Change
from offload.contracts.store import ObjectStore
from offload.ground.errors import Conflict, Misuse, NotOffloaded, OutcomeUnknown, TryAgain
from offload.model.manifest import Manifest, StreamState
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.offloader.shared import Altering, Reclaiming
from offload_conformance.bugs.registry import bug


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
