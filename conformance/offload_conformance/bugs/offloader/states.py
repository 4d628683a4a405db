"""Bugs of the states and lives of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, ClassVar, cast
from unittest.mock import MagicMock
from uuid import UUID

import numpy as np

from offload.contracts.catalogue import EntryView, StreamView
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import NotOffloaded, OffloadError, StreamDeleted
from offload.model.entry import Entries, Entry
from offload.model.manifest import CommittedStream, Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.ledgers import all_of, copied, ledger, raises
from offload_conformance.bugs.sound.shared_offloaders import Viewed, reborn
from offload_conformance.bugs.sound.table import Table
from offload_conformance.bugs.sound.views import opened


@bug("contract/answers_are_those_of_the_entries")
class EmptyEndsAtZero(ObjectStoreOffloader):
    """Returns 0 for the latest time of an empty stream.

    `COALESCE(MAX(timestamp), 0)`.
    """

    def view_of(self, committed: CommittedStream) -> Any:
        view = super().view_of(committed)

        async def latest() -> int:
            return await type(view).last_timestamp_ms(view) or 0

        shown = MagicMock(wraps=view)
        shown.committed, shown.walk, shown.last_timestamp_ms = committed, view.walk, latest
        return shown


@bug("contract/reads_are_of_the_present_life")
class KeepsHandlesOfAStream(ObjectStoreOffloader):
    """Reads a stream that was begun again from handles that it opened in its earlier life.

    A cache of open files, by stream and offset.
    """

    async def _open_entry(self, committed: CommittedStream, entry: Entry) -> ReadHandle:
        kept = vars(self).setdefault("kept", {})
        where = committed.stream, entry.first_offset
        if where not in kept:
            kept[where] = await super()._open_entry(committed, entry)
        return cast("ReadHandle", kept[where])


@bug("contract/every_reader_tells_what_is_not_there")
class NothingNewOfTheAbsent(ObjectStoreOffloader):
    """Says that a stream that never was, or is being rebuilt, has nothing new.

    `except NotOffloaded: return None` in the reader's loop.
    """

    async def newer_view(self, known: CommittedStream) -> Any:
        try:
            return await super().newer_view(known)
        except OffloadError:
            return None


async def _listed_once(open_: OpenClient) -> None:
    tier, other, _ = await reborn(open_)
    assert await tier.streams() == await other.streams() == ["s"]


@bug("contract/every_reader_tells_what_is_not_there", _listed_once)
class ListedForEachLife(Table):
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


async def _living_again(open_: OpenClient) -> None:
    _, other, _ = await reborn(open_)
    manifest = await other.load_manifest("s")
    assert manifest.next_offset == 3
    assert (await other.view("s")).committed.data_size_bytes > 600


@bug("contract/every_reader_tells_what_is_not_there", _living_again)
class DeletedForEver(Table):
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


async def _never_begun(open_: OpenClient) -> None:
    tier = await opened(open_)
    await copied(tier, "s", ledger(0))
    await raises(NotOffloaded, tier.load_manifest("never"))
    await raises(NotOffloaded, tier.view("never"))
    assert await tier.streams() == ["s"]


@bug("contract/every_reader_tells_what_is_not_there", _never_begun)
class LookingMakesAStream(Table):
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


async def _unknown_streams_are_not_offloaded(open_: OpenClient) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    view = await tier.view("s")
    entry = await view.find(0)
    assert entry is not None
    handle = await view.open(entry)
    assert await all_of(handle)
    for call in (tier.view, tier.load_manifest):
        await raises(OffloadError, call("unknown"))


@bug("contract/every_reader_tells_what_is_not_there", _unknown_streams_are_not_offloaded)
class UnknownIsAKeyError(Table):
    """The view of a stream that is not in the dictionary raises what the dictionary raises.

    Breaks "Raises `NotOffloaded` if nothing was ever committed". Costs a caller that handles `OffloadError`:
    the command ends with a traceback.
    """

    async def view(self, stream: str) -> StreamView:
        await self.open()
        if self.name(stream) not in self.db.roots:
            raise KeyError(stream)
        return await super().view(stream)


async def _walk_from_the_middle(open_: OpenClient) -> None:
    tier = open_()
    await copied(tier, "s", *(ledger(at) for at in (0, 3, 6)))
    found = []
    async with aclosing((await tier.view("s")).walk(4)) as runs:
        async for run in runs:
            found += run["first_offset"].tolist()
    assert found == [3, 6]


class NextView(EntryView):
    """A view that walks from the next fragment."""

    async def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        async with aclosing(super().walk(offset)) as runs:
            async for run in runs:
                rows = run[run["first_offset"] >= np.uint64(max(offset, 0))]
                if len(rows):
                    yield rows


@bug("contract/answers_are_those_of_the_entries", _walk_from_the_middle)
class WalkFromTheNext(Viewed):
    """A walk asks for the fragments that begin at or behind an offset.

    Breaks "Yield the entries of the fragments from the one that holds `offset` on, in runs". Costs a reader
    the rest of the fragment in which it begins.
    """

    VIEW = NextView
