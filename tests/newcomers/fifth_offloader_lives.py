"""Fifth set, offloaders: deletion and rebirth, names, parts, and clients that come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar
from uuid import NAMESPACE_URL, UUID, uuid5

from newcomers.fifth_sound import opened, prepared
from newcomers.fourth_sound import Rows
from newcomers.ledgers import all_of, attempt_of, chunks_of, copied, entries_of, ledger, raises, uploaded
from newcomers.registry import Open, bug
from newcomers.sound import Tier
from offload import Job, StreamWriter, delete_stream
from offload.commit.guest import Abort
from offload.commit.writer import Prepare
from offload.contracts.change import Change
from offload.ground.errors import Conflict, Fenced, NotOffloaded, StreamDeleted
from offload.model.attempt import Attempt
from offload.model.manifest import Manifest, StreamState
from offload.model.part import StreamPart, part_like

# Rebirth


async def _reborn(open_: Open) -> tuple[Any, Any, Manifest]:
    """Return two clients, and the manifest of the life that both knew and that is over. The stream lives."""
    tier, other = await opened(open_), open_()
    await copied(tier, "s", ledger(0))
    old = await other.load_manifest("s")
    await delete_stream(tier, "s")
    await raises(StreamDeleted, other.load_manifest("s"))
    await copied(tier, "s", ledger(0, size=200))
    return tier, other, old


async def _listed_once(open_: Open) -> None:
    tier, other, _ = await _reborn(open_)
    assert await tier.streams() == await other.streams() == ["s"]


@bug(_listed_once)
class ListedForEachLife(Rows):
    """The table of streams has a row for each life of a stream, and the list a name for each row.

    Breaks "Return the streams that were ever begun here". Costs a command over all streams, which does its
    work twice, or fails the second time.
    """

    LIVES: ClassVar[dict[str, list[str]]] = {}

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        if base is not None and base.incarnation != manifest.incarnation:
            self.LIVES.setdefault(self.url, []).append(manifest.stream)
        return manifest

    async def streams(self) -> list[str]:
        return sorted([*await super().streams(), *self.LIVES.get(self.url, [])])


async def _living_again(open_: Open) -> None:
    _, other, _ = await _reborn(open_)
    manifest = await other.load_manifest("s")
    assert manifest.next_offset == 3
    assert (await other.view("s")).committed.data_size_bytes > 600


@bug(_living_again)
class DeletedForEver(Rows):
    """A client that has seen a stream's end does not ask for it again: deleted is deleted.

    Breaks "Return the newest committed manifest": "a new claim begins it again". Costs a reader that was
    there in between: it never finds the stream again.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.gone: dict[str, StreamDeleted] = {}

    async def load_manifest(self, stream: str) -> Manifest:
        if stream in self.gone:
            raise self.gone[stream]
        try:
            return await super().load_manifest(stream)
        except StreamDeleted as exc:
            self.gone[stream] = exc
            raise


async def _another_life_is_another(open_: Open) -> None:
    tier, other, old = await _reborn(open_)
    assert (await tier.load_manifest("s")).incarnation != old.incarnation
    await raises(StreamDeleted, other.newer_view(old))


@bug(_another_life_is_another)
class IncarnationOfTheName(Rows):
    """The incarnation is derived from the stream's name, so that it can be found without a request.

    Breaks "A new UUID if the stream was deleted and begun again". Costs a reader that goes on in the new life
    at the offset of the old one: it mixes the two.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        return replace(manifest, incarnation=uuid5(NAMESPACE_URL, manifest.stream))


async def _versions_of_all_lives(open_: Open) -> None:
    tier, _, old = await _reborn(open_)
    assert (await tier.load_manifest("s")).version > old.version
    job = await Job.begin(tier, "s")
    assert job.manifest.version > old.version


@bug(_versions_of_all_lives)
class EachLifeBeginsAtOne(Rows):
    """The version begins at 1 with each life of a stream.

    Breaks "A number that is higher for each later state". Costs a reader that compares versions: the new life
    is older than the old one.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        if base is not None and base.state is StreamState.DELETED and manifest.state is StreamState.LIVE:
            return replace(manifest, version=1)
        return manifest


async def _epochs_of_all_lives(open_: Open) -> None:
    tier = await opened(open_)
    writer = await StreamWriter.claim(tier, "s", source_epoch=9)
    await writer.offload([ledger(0)])
    await delete_stream(tier, "s")
    await raises(Fenced, StreamWriter.claim(open_(), "s", source_epoch=3))
    reborn = await StreamWriter.claim(open_(), "s", source_epoch=10)
    assert reborn.manifest.epoch > writer.manifest.epoch


@bug(_epochs_of_all_lives)
class TombstoneHasNoEpoch(Rows):
    """A tombstone has the columns that a reader needs, and the source's epoch is none of them.

    Breaks "The leader epoch that the tombstone keeps. A source with a lower one is fenced". Costs a stream
    that was deleted: a deposed leader begins it again.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        if manifest.state is StreamState.DELETED:
            return replace(manifest, source_epoch=0)
        return manifest


# Deletion


async def _deleted_with_its_stream(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    [entry] = await entries_of(tier, writer.manifest)
    await delete_stream(tier, "s")
    await tier.delete_offloaded(attempt_of("s", entry))
    await tier.delete_offloaded(attempt_of("s", entry))


@bug(_deleted_with_its_stream)
class DeletionNeedsAManifest(Rows):
    """A deletion loads the manifest to condemn the attempt, and a deleted stream has none.

    Breaks "Remove every object of `attempt`" and "Deleting an absent attempt succeeds". Costs whoever deletes
    a stream: its data stays, and is paid for.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        await self.load_manifest(attempt.stream)
        await super().delete_offloaded(attempt)


async def _older_fragments_stay(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    attempt, receipt = await uploaded(tier, writer, ledger(3))
    stray = Attempt(stream="s", ledger_id=attempt.ledger_id, uid=UUID(int=attempt.uid.int ^ 1))
    await tier.delete_offloaded(stray)
    await writer.append([receipt])
    assert await all_of(await tier.read_offloaded(attempt)) == b"".join(chunks_of(3))


@bug(_older_fragments_stay)
class DeletionOfTheAbsentCleans(Rows):
    """An attempt that is not there is looked for by its ledger, in case that its id was written wrongly.

    Breaks "Deleting an absent attempt succeeds", and removes nothing. Costs an attempt at the same ledger
    that runs: its upload is committed, and gone.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        if not self.of_attempt(attempt):
            stream = self.name(attempt.stream)
            newest = await self.newest(attempt.stream)
            for row in self.db.uploaded(stream, 0 if newest is None else newest.next_offset):
                if row.entry.ledger_id == attempt.ledger_id:
                    self.db.remove(stream, row.entry.first_offset, row.entry.attempt)
        await super().delete_offloaded(attempt)


# Names


def _streams_apart(*names: str) -> Any:
    async def proof(open_: Open) -> None:
        tier = await opened(open_)
        for at, name in enumerate(names):
            await copied(tier, name, ledger(0, size=100 + at))
        assert await tier.streams() == sorted(names)
        for at, name in enumerate(names):
            [entry] = await entries_of(tier, await tier.load_manifest(name))
            handle = await tier.read_offloaded(attempt_of(name, entry))
            assert await all_of(handle) == b"".join(chunks_of(0, size=100 + at)), name

    return proof


@bug(_streams_apart("x" * 70, "x" * 71))
class NamesOf63Bytes(Rows):
    """Each stream has a table of its name, and the server cuts names of tables to 63 bytes without a word.

    Breaks "Return the newest committed manifest" of this stream. Costs two streams with long names that begin
    alike: they are one.
    """

    def name(self, stream: str) -> str:
        return super().name(stream)[:63]


# Parts, on a tier that records them


async def _with_parts(open_: Open, count: int) -> Any:
    tier = await opened(open_)
    await copied(tier, "s", ledger(0))
    before = await tier.load_manifest("s")
    for number in range(2, count + 1):
        await tier.begin_part(StreamPart("s", number), before=before)
    return tier


async def _only_recorded_parts(open_: Open) -> None:
    tier = await _with_parts(open_, 2)
    await copied(tier, "s-part-3", ledger(0))
    assert await tier.parts("s") == [StreamPart("s", 2)]


@bug(_only_recorded_parts)
class PartsAreThoseNamedSo(Tier):
    """The parts of a stream are the streams whose names look like that.

    Breaks "Only parts whose record names `stream` count". Costs a stream that is named like a part of
    another: a reader of the other one gets its data too.
    """

    async def parts(self, stream: str, *, after: int = 1) -> list[StreamPart]:
        found = [part_like(name) for name in await self.streams()]
        return sorted(part for part in found if part.first == stream and part.number > after)


async def _begun_twice(open_: Open) -> None:
    tier = await _with_parts(open_, 2)
    await tier.begin_part(StreamPart("s", 2), before=await tier.load_manifest("s"))
    other = open_()
    await other.begin_part(StreamPart("s", 2), before=await tier.load_manifest("s"))
    assert await other.parts("s") == [StreamPart("s", 2)]


@bug(_begun_twice)
class PartBeginsOnce(Tier):
    """A part that is there already is refused, like another stream of its name.

    Breaks "The call may be repeated". Costs a source whose first call was cut off: it never begins its part.
    """

    async def begin_part(self, part: StreamPart, *, before: Manifest | None) -> None:
        if part in await self.parts(part.first):
            raise Conflict(f"stream {part.name!r} exists")
        await super().begin_part(part, before=before)


# Clients


async def _goes_on_elsewhere(open_: Open) -> None:
    tier, other = await opened(open_), open_()
    writer = await copied(tier, "s", ledger(0))
    change, _ = await prepared(other, "s", writer.manifest)
    await other.aclose()
    assert (await tier.load_manifest("s")).runs(change.attempts[0][0])


@bug(_goes_on_elsewhere)
class ClosingDropsItsAttempts(Rows):
    """A client that is closed drops the attempts that it announced, so that nothing is left behind.

    Breaks "Release the catalogue's resources". Costs a job whose driver announces, and whose workers upload
    after the driver's client was closed.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.announced: dict[str, set[UUID]] = {}

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        if isinstance(change, Prepare):
            self.announced.setdefault(stream, set()).update(uid for uid, _ in change.attempts)
        return manifest

    async def aclose(self) -> None:
        for stream, uids in self.announced.items():
            abort = Abort(attempts=frozenset(uids))
            await super().commit_manifest(stream, abort, base=None, committer=UUID(int=0))
        self.announced.clear()
        await super().aclose()


async def _never_begun(open_: Open) -> None:
    tier = await opened(open_)
    await copied(tier, "s", ledger(0))
    await raises(NotOffloaded, tier.load_manifest("never"))
    await raises(NotOffloaded, tier.view("never"))
    assert await tier.streams() == ["s"]


@bug(_never_begun)
class LookingMakesAStream(Rows):
    """A look-up inserts the row of a stream that is not there, to lock it.

    Breaks "Return the streams that were ever begun here". Costs a typing mistake: the stream is listed from
    then on.
    """

    LOOKED: ClassVar[dict[str, set[str]]] = {}

    async def load_manifest(self, stream: str) -> Manifest:
        try:
            return await super().load_manifest(stream)
        except NotOffloaded:
            self.LOOKED.setdefault(self.url, set()).add(stream)
            raise

    async def streams(self) -> list[str]:
        return sorted({*await super().streams(), *self.LOOKED.get(self.url, ())})
