"""Bugs of commits: halves, repetitions, rivals, and the states of a stream."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from offload.commit.guest import Delete
from offload.commit.writer import Append, Claim
from offload.contracts.change import Change, CommitVerdict
from offload.contracts.store import Body, ObjectStore, Span, Suffix
from offload.formats.keys import StreamKeys
from offload.ground.errors import AlreadyExists, Conflict
from offload.model.manifest import Manifest, StreamState
from offload.model.tree import Tree
from offload.native.offloader import ObjectStoreOffloader
from offload.store.wrap import StoreDecorator
from offload_conformance.bugs.offloader.shared import Reclaiming
from offload_conformance.bugs.registry import bug


@bug("contract/commits_are_atomic")
class CommitsByHalves(ObjectStoreOffloader):
    """Appends fragment by fragment.

    A statement for each row, without a transaction around them.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Append):
            for entry in change.entries[:-1]:
                single = replace(change, entries=[entry], finished=frozenset())
                base = await super().commit_manifest(stream, single, base=base, committer=committer)
            change = replace(change, entries=change.entries[-1:])
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("contract/commits_are_atomic_when_refused")
class CommitsWhatFits(ObjectStoreOffloader):
    """Commits a part of a change, and then refuses the change.

    Rows are checked as they are written, and the written ones stay.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        try:
            return await super().commit_manifest(stream, change, base=base, committer=committer)
        except Conflict:
            if isinstance(change, Append) and len(change.entries) > 1:
                part = replace(change, entries=change.entries[:1], finished=frozenset())
                await super().commit_manifest(stream, part, base=base, committer=committer)
            raise


class ReplacingCreate(StoreDecorator):
    """A store whose create replaces what is there."""

    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, Body.of(data))


@bug("contract/history_is_linear")
class Overwrites(ObjectStoreOffloader):
    """Overwrites the manifest of a rival.

    It uses a put instead of a create, so the last writer wins.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(ReplacingCreate(store))


class Swallowing(StoreDecorator):
    """A store that takes a refused create for done."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.believed: dict[str, bytes] = {}

    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except AlreadyExists:
            self.believed[key] = data

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return self.believed[key] if key in self.believed else await super().get(key, span)


@bug("contract/history_is_linear")
class TrustsTheReply(ObjectStoreOffloader):
    """Takes its own change for committed if a rival's is.

    `AlreadyExists` is read as a lost reply of one's own, and nobody reads back.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(Swallowing(store))


@bug("contract/history_is_linear_where_changes_exclude_each_other")
class MovesBehindTheWinner(ObjectStoreOffloader):
    """Appends the loser's records behind the winner's, under other offsets.

    It appends to the newest manifest in any case, so every retry stores the same records twice.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        try:
            return await super().commit_manifest(stream, change, base=base, committer=committer)
        except Conflict:
            newest = await self.load_manifest(stream)
            if not isinstance(change, Append) or not all(newest.runs(e.attempt) for e in change.entries):
                raise
            moved = newest.next_offset - change.entries[0].first_offset
            entries = [replace(entry, first_offset=entry.first_offset + moved) for entry in change.entries]
            behind = replace(change, entries=entries)
            return await super().commit_manifest(stream, behind, base=newest, committer=committer)


class Unseen(Change):
    """A change that no manifest shows."""

    def __init__(self, change: Change) -> None:
        self.change = change

    def apply(self, base: Manifest | None) -> Manifest:
        return self.change.apply(base)

    async def verdict(self, tree: Tree) -> CommitVerdict:
        return CommitVerdict.OUT


@bug("contract/commits_are_idempotent")
class CommitsAgain(ObjectStoreOffloader):
    """Commits a change on the newest manifest, even if it is already in.

    It retries without checking the result of the first try.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if base is not None:
            change, base = Unseen(change), await self.load_manifest(stream)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("contract/commits_are_idempotent_for_every_change")
class DeletesOnce(ObjectStoreOffloader):
    """Fails if a deleted stream is deleted once more.

    After a lost reply, the second try of the deletion finds nothing and raises an error.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Delete):
            await self.load_manifest(stream)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


class _Anew(Claim):
    def apply(self, base: Manifest | None) -> Manifest:
        changed = super().apply(base)
        if base is None or base.state is not StreamState.LIVE:
            return changed
        return self._born(version=base.version, epoch=changed.epoch, parent=base.commit_id)


@bug("contract/next_offset_never_falls")
class ClaimsAnew(Reclaiming):
    """Lets a claim begin the stream from nothing.

    `INSERT OR REPLACE` of the stream's row: the new writer loses all offloaded data.
    """

    kind = _Anew


@bug("contract/deleted_streams_are_told")
class DeletesTheTombstone(ObjectStoreOffloader):
    """Removes everything of a deleted stream, including its tombstone.

    A delete by prefix: a writer that slept meanwhile brings the old history back.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        if isinstance(change, Delete):
            below = StreamKeys(stream).anchor.rpartition("/")[0]
            await self.data.delete([row.key async for row in self.data.list(f"{below}/")])
        return manifest


class _Undeleting(Claim):
    def apply(self, base: Manifest | None) -> Manifest:
        return super().apply(None if base is None else replace(base, state=StreamState.LIVE))


@bug("contract/deleted_streams_begin_anew")
class Undeletes(Reclaiming):
    """Lets a claim of a deleted stream continue the old one.

    The claim removes the mark of deletion from the row, and everything else stays.
    """

    kind = _Undeleting


@bug("contract/rebuilding_streams_are_not_there_yet")
class ServesWhatIsRebuilt(ObjectStoreOffloader):
    """Serves a stream as empty while it is rebuilt.

    The newest manifest is read without its state, so the stream looks empty, as if it had been trimmed.
    """

    async def load_manifest(self, stream: str) -> Manifest:
        await self.open()
        manifest = await self.log(stream).load_newest()
        if manifest is None or manifest.state is not StreamState.REBUILDING:
            return await super().load_manifest(stream)
        return manifest
