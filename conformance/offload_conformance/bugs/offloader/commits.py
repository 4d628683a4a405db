"""Bugs of commits: halves, repetitions, rivals, and the states of a stream."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import ClassVar
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

from offload import Job
from offload.commit.guest import Abort, Delete, Trim
from offload.commit.rebuild import Fence
from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.change import Change, CommitVerdict
from offload.contracts.store import Body, ObjectStore, Span, Suffix
from offload.formats.keys import StreamKeys
from offload.formats.root import encode_root
from offload.ground.errors import AlreadyExists, Conflict, Fenced, NotOffloaded, StreamDeleted
from offload.model.manifest import Manifest, StreamState
from offload.model.tree import Tree
from offload.native.offloader import ObjectStoreOffloader
from offload.store.wrap import StoreDecorator
from offload.upkeep.retention import delete_stream
from offload.write.writer import StreamWriter
from offload_conformance.bugs.offloader.shared import Reclaiming
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.ledgers import copied, entries_of, ledger, raises, trimmed, uploaded
from offload_conformance.bugs.sound.shared_offloaders import BASE, reborn
from offload_conformance.bugs.sound.table import Table
from offload_conformance.bugs.sound.views import ended, opened, prepared


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


async def _both_are_announced(open_: OpenClient) -> None:
    one = await opened(open_)
    await copied(one, "s", ledger(0))
    jobs = [await Job.begin(tier, "s") for tier in (one, open_())]
    found = await ended(*(job.prepare([number]) for number, job in enumerate(jobs)))
    manifest = await one.load_manifest("s")
    for _, [attempt] in found:
        assert manifest.runs(attempt.uid), found


@bug("contract/history_is_linear", _both_are_announced)
class ComparesTheEnd(Table):
    """A manifest replaces any that ends at the same offsets, whoever has committed it.

    Breaks "Of two commits on one parent exactly one succeeds". Costs one of two jobs its announcement: its
    upload is refused, or swept.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        for _ in range(3):
            await asyncio.sleep(0)
        return manifest

    async def set(self, manifest: Manifest) -> bool:
        if await super().set(manifest):
            return True
        there = await self.newest(manifest.stream)
        if there is None or there.next_offset != manifest.next_offset or there.writer != manifest.writer:
            return False
        return await super().set(
            replace(manifest, version=there.version + 1, parent_commit_id=there.commit_id)
        )


async def _fenced_again(open_: OpenClient) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    change, _ = await prepared(tier, "s", writer.manifest)
    await StreamWriter.claim(open_(), "s")
    await raises(Fenced, tier.commit_manifest("s", change, base=None, committer=writer.manifest.writer))


@bug("contract/commits_are_idempotent_for_every_change", _fenced_again)
class CommittedOnceIsCommitted(Table):
    """A client remembers the changes that it committed, and answers them again without looking.

    Breaks "After a claim is accepted, commits of every earlier writer raise `Fenced`". Costs a writer that
    repeats a commit after a pause: it believes that it holds the stream.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.done: list[tuple[str, Change]] = []

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if (stream, change) in self.done:
            return await self.load_manifest(stream)
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        self.done.append((stream, change))
        return manifest


async def _streams_commit_apart(open_: OpenClient) -> None:
    tier = await opened(open_)
    names = [f"s{number}" for number in range(12)]
    writers = await ended(*(copied(tier, name, ledger(0)) for name in names), seconds=20)
    assert all(isinstance(each, StreamWriter) for each in writers), writers
    again = await ended(*(each.offload([ledger(3)]) for each in writers), seconds=20)
    assert again == [None] * 12, again


@bug("contract/history_is_linear", _streams_commit_apart)
class OneVersionForAllStreams(Table):
    """Manifests of all streams are rows of one document with one version, and who loses a race is refused.

    Breaks "raises `Conflict` otherwise": the change fits. Costs a tier of many streams: their writers stop
    one another.
    """

    COMMITS: ClassVar[dict[str, int]] = {}

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        seen = self.COMMITS.get(self.url, 0)
        manifest = await super().changed(change, base, committer)
        await asyncio.sleep(0)
        if self.COMMITS.get(self.url, 0) != seen:
            raise Conflict(f"the document changed while stream {manifest.stream!r} was committed")
        self.COMMITS[self.url] = seen + 1
        return manifest


async def _another_life_is_another(open_: OpenClient) -> None:
    tier, other, old = await reborn(open_)
    assert (await tier.load_manifest("s")).incarnation != old.incarnation
    await raises(StreamDeleted, other.newer_view(old))


@bug("contract/deleted_streams_begin_anew", _another_life_is_another)
class IncarnationOfTheName(Table):
    """The incarnation is derived from the stream's name, so that it can be found without a request.

    Breaks "A new UUID if the stream was deleted and begun again". Costs a reader that goes on in the new life
    at the offset of the old one: it mixes the two.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        return replace(manifest, incarnation=uuid5(NAMESPACE_URL, manifest.stream))


async def _versions_of_all_lives(open_: OpenClient) -> None:
    tier, _, old = await reborn(open_)
    assert (await tier.load_manifest("s")).version > old.version
    job = await Job.begin(tier, "s")
    assert job.manifest.version > old.version


@bug("contract/deleted_streams_begin_anew", _versions_of_all_lives)
class EachLifeBeginsAtOne(Table):
    """The version begins at 1 with each life of a stream.

    Breaks "A number that is higher for each later state". Costs a reader that compares versions: the new life
    is older than the old one.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        if base is not None and base.state is StreamState.DELETED and manifest.state is StreamState.LIVE:
            return replace(manifest, version=1)
        return manifest


async def fenced(tier: Table, manifest: Manifest) -> Manifest:
    """Begin a rebuild in the place of this manifest."""
    fence = Fence(
        stream=manifest.stream,
        writer=uuid4(),
        incarnation=manifest.incarnation,
        epoch=manifest.epoch + 1,
        above=manifest.version,
        instead_of=manifest.commit_id,
    )
    return await tier.commit_manifest(manifest.stream, fence, base=manifest, committer=fence.writer)


async def _two_preparations(open_: OpenClient) -> None:
    writer = await StreamWriter.claim(open_(), "s")
    one = await writer.prepare([1])
    two = await writer.prepare([2])
    assert all(writer.manifest.runs(each.uid) for each in one + two)


@bug("contract/commits_are_idempotent_for_every_change", _two_preparations)
class SameKindIsARetry(Table):
    """A second change of one kind by the committer of the newest manifest is taken for a retry of the first.

    Breaks "Apply `change` to the newest manifest and return the manifest that contains it". Costs every
    second of two like changes: attempts that were announced do not run.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.last: dict[str, tuple[UUID, type[Change]]] = {}

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        newest = await self.newest(stream)
        if (
            newest is not None
            and self.last.get(stream) == (newest.committer, type(change))
            and (newest.committer == committer)
        ):
            return newest
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        self.last[stream] = committer, type(change)
        return manifest


async def _rebuilt_is_not_deleted(open_: OpenClient) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0))
    await fenced(tier, writer.manifest)
    error = await raises(NotOffloaded, tier.load_manifest("s"))
    assert not isinstance(error, StreamDeleted), error


@bug("contract/rebuilding_streams_are_not_there_yet", _rebuilt_is_not_deleted)
class RebuildIsADeletion(Table):
    """Every state but "live" is reported as a deletion.

    Breaks "Raises `NotOffloaded` if there is none: nothing was ever committed, or the stream is being
    rebuilt". Costs a source that cleans up after a deletion: its stream was only being rebuilt.
    """

    async def load_manifest(self, stream: str) -> Manifest:
        manifest = await self.newest(stream)
        if manifest is not None and manifest.state is StreamState.REBUILDING:
            raise StreamDeleted(f"stream {stream!r} is not live", epoch=manifest.epoch)
        return await super().load_manifest(stream)


async def _again_on_the_newest(open_: OpenClient) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    attempt, receipt = await uploaded(tier, writer, ledger(0))
    change = Append(writer=writer.writer, entries=receipt.entries, finished=frozenset({attempt.uid}))
    newest = await tier.commit_manifest("s", change, base=writer.manifest, committer=writer.writer)
    again = await tier.commit_manifest("s", change, base=newest, committer=writer.writer)
    assert (again.version, again.next_offset) == (newest.version, 3)


@bug("contract/commits_are_idempotent", _again_on_the_newest)
class FreshBaseNeedsNoVerdict(Table):
    """If the caller's base is the newest manifest, nobody asks whether it contains the change already.

    Breaks "If a change was committed before, committing it again returns the newest manifest". Costs a writer
    that loads the manifest before it repeats a commit in doubt: it gets `Conflict` for its own data.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        BASE.set(base)
        return await super().commit_manifest(stream, change, base=base, committer=committer)

    async def is_in(self, change: Change, newest: Manifest) -> bool:
        found, base = await super().is_in(change, newest), BASE.get()
        return found and (base is None or base.version != newest.version)


async def _repeated(open_: OpenClient) -> None:
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


@bug("contract/commits_are_idempotent", _repeated)
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


async def _deleted_under_a_writer(open_: OpenClient) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    await delete_stream(open_(), "s")
    await raises(StreamDeleted, writer.prepare([7]))
    await raises(StreamDeleted, tier.load_manifest("s"))


@bug("contract/deleted_streams_are_told", _deleted_under_a_writer)
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


async def _guest_does_not_take(open_: OpenClient) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), ledger(3, ledger_id=2), first=0)
    await trimmed(open_(), "s", 3)
    await writer.prepare([7])


@bug("contract/commits_are_idempotent_for_every_change", _guest_does_not_take)
class GuestsTakeTheStream(Table):
    """Every committer becomes the writer, even a guest that trims.

    Breaks "`Fenced` if another writer holds the stream": none does, and yet a trim stops the writer.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        return replace(manifest, writer=committer) if isinstance(change, Trim | Abort) else manifest


async def _read_while_committed(open_: OpenClient) -> None:
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


@bug("contract/commits_are_atomic", _read_while_committed)
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
