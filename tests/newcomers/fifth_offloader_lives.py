"""Fifth set, offloaders: deletion and rebirth, names, parts, and clients that come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar
from uuid import NAMESPACE_URL, UUID, uuid5

from newcomers.fifth_sound import opened
from newcomers.fourth_sound import Rows
from newcomers.ledgers import copied, ledger, raises
from newcomers.registry import Open, bug
from offload import Job, StreamWriter, delete_stream
from offload.contracts.change import Change
from offload.ground.errors import Fenced, NotOffloaded, StreamDeleted
from offload.model.manifest import Manifest, StreamState

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


# Names


# Parts, on a tier that records them


# Clients


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
