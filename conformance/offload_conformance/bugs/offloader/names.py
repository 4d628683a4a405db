"""Bugs of the names of streams: how they are listed, and streams that mix."""

from __future__ import annotations

import unicodedata
from uuid import UUID

from offload.commit.guest import Delete
from offload.contracts.change import Change
from offload.formats.keys import StreamKeys, escape
from offload.ground.errors import StreamDeleted
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload.upkeep.retention import delete_stream
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.ledgers import copied, ledger
from offload_conformance.bugs.sound.table import Table


@bug("contract/streams_are_listed_by_name")
class FoldsNames(ObjectStoreOffloader):
    """Lists streams in lower case.

    Names are changed to fit a folder, and the original is lost.
    """

    async def streams(self) -> list[str]:
        return sorted(name.lower() for name in await super().streams())


@bug("contract/streams_are_listed_by_name")
class KeepsOneManifest(ObjectStoreOffloader):
    """Returns the manifest that it loaded last, for any stream.

    The cache has one slot and no key.
    """

    loaded: Manifest | None = None

    async def load_manifest(self, stream: str) -> Manifest:
        self.loaded = self.loaded or await super().load_manifest(stream)
        return self.loaded


@bug("contract/streams_are_listed_by_name")
class NormalizesNames(ObjectStoreOffloader):
    """Lists names in another Unicode form than the original.

    A file system, or a database's collation, that normalizes.
    """

    async def streams(self) -> list[str]:
        return sorted(unicodedata.normalize("NFC", name) for name in await super().streams())


@bug("contract/streams_are_listed_by_name")
class CutsLongNames(ObjectStoreOffloader):
    """Lists the first 255 characters of each name.

    `VARCHAR(255)` in a database that cuts longer values.
    """

    async def streams(self) -> list[str]:
        return [name[:255] for name in await super().streams()]


@bug("contract/streams_are_listed_by_name")
class OrdersByUtf16(ObjectStoreOffloader):
    """Lists streams in the order of their names in UTF-16.

    Java and JavaScript compare text in this way; the order differs beyond the first 65,536 characters.
    """

    async def streams(self) -> list[str]:
        return sorted(await super().streams(), key=lambda name: name.encode("utf-16-be"))


@bug("contract/streams_do_not_mix")
class DeletesByPrefix(ObjectStoreOffloader):
    """Deletes the data of all streams whose names begin with the name of the deleted one.

    `LIKE 'orders%'`, or a prefix without the slash at its end.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        if isinstance(change, Delete):
            rows = [row.key async for row in self.data.list(StreamKeys(stream).prefix[:-1])]
            await self.data.delete([key for key in rows if key.endswith(".fragment")])
        return manifest


@bug("contract/streams_are_all_listed")
class ListsOnePage(ObjectStoreOffloader):
    """Lists the first hundred streams.

    One page of a listing is taken for the whole.
    """

    async def streams(self) -> list[str]:
        return (await super().streams())[:100]


@bug("contract/streams_are_all_listed")
class ForgetsTheDeleted(ObjectStoreOffloader):
    """Leaves deleted streams out of the list.

    A tombstone is not listed, so no sweep finds the remaining objects.
    """

    async def streams(self) -> list[str]:
        found = []
        for name in await super().streams():
            try:
                await self.load_manifest(name)
            except StreamDeleted:
                continue
            found.append(name)
        return found


@bug("contract/streams_are_all_listed")
class HandsOutItsOwnList(ObjectStoreOffloader):
    """Returns its own list of streams, and goes on with what the caller has made of it.

    A cache hands out its own entry instead of a copy.
    """

    fetched: tuple[str, ...] = ()

    async def streams(self) -> list[str]:
        fresh = await super().streams()
        if self.fetched != tuple(fresh):
            self.fetched, self.handed_out = tuple(fresh), fresh
        return self.handed_out


async def _streams_are_all(open_: OpenClient) -> None:
    tier = open_()
    names = ["a-b", "a.b", "a b", "ä", "z", "Z", "a/b"]
    for name in names:
        await copied(tier, name, ledger(0))
    await delete_stream(tier, "z")
    assert await open_().streams() == sorted(names)


@bug("contract/streams_are_listed_by_name", _streams_are_all)
class StreamsInOrderOfTheirEscapes(Table):
    """Streams are sorted by their names in keys, where `.` is `%2E`.

    Breaks "in order of names": a merge with another list of streams goes wrong.
    """

    async def streams(self) -> list[str]:
        return sorted(await super().streams(), key=escape)
