"""Bugs of the parts of streams: their order, their names, and a second beginning."""

from __future__ import annotations

import asyncio

from offload.ground.errors import Conflict, NotOffloaded
from offload.model.manifest import Manifest
from offload.model.part import StreamPart, part_like
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.registry import bug


@bug("contract/parts_are_listed_in_order")
class SortsPartsByName(ObjectStoreOffloader):
    """Lists part 10 before part 2.

    `ORDER BY name`.
    """

    async def parts(self, stream: str, *, after: int = 1) -> list[StreamPart]:
        return sorted(await super().parts(stream, after=after), key=lambda part: part.name)


@bug("contract/parts_are_listed_in_order")
class EndsAtAMissingPart(ObjectStoreOffloader):
    """Ends the list of parts at the first number that is left out.

    The parts are looked up by their numbers, until one is missing.
    """

    async def parts(self, stream: str, *, after: int = 1) -> list[StreamPart]:
        found = await super().parts(stream)
        whole = [part for number, part in enumerate(found, start=2) if part.number == number]
        return [part for part in whole if part.number > after]


@bug("contract/parts_are_listed_in_order")
class ListsThePartAsked(ObjectStoreOffloader):
    """Lists the parts from a number on, and not behind it.

    `WHERE number >= ?`.
    """

    async def parts(self, stream: str, *, after: int = 1) -> list[StreamPart]:
        return await super().parts(stream, after=after - 1)


@bug("contract/parts_are_listed_in_order")
class ForgetsTheChunkBehind(ObjectStoreOffloader):
    """Lists a part without the chunk behind which it begins.

    Parts are equal without it, so a test that compares them does not see the loss.
    """

    async def parts(self, stream: str, *, after: int = 1) -> list[StreamPart]:
        return [StreamPart(part.first, part.number) for part in await super().parts(stream, after=after)]


@bug("contract/parts_may_be_begun_again")
class BeginsAPartOnce(ObjectStoreOffloader):
    """Refuses to begin a part that is recorded, although the call may be repeated.

    A primary key, and nobody reads the row that is there.
    """

    async def begin_part(self, part: StreamPart, *, before: Manifest | None) -> None:
        if part in await self.parts(part.first):
            raise Conflict(f"part {part.number} of {part.first!r} was begun before")
        await super().begin_part(part, before=before)


@bug("contract/parts_are_of_one_stream")
class TakesNamesForParts(ObjectStoreOffloader):
    """Lists every stream whose name looks like that of a part.

    The names seem to say enough, so nothing is recorded.
    """

    async def parts(self, stream: str, *, after: int = 1) -> list[StreamPart]:
        known, recorded = await super().parts(stream, after=after), map(part_like, await self.streams())
        return sorted({*known, *(part for part in recorded if part.first == stream and part.number > after)})


@bug("contract/parts_outlive_deletions")
class HidesDeletedParts(ObjectStoreOffloader):
    """Lists only the parts that can be read.

    A join with the streams that are live. The number of a deleted part is then given away again.
    """

    async def parts(self, stream: str, *, after: int = 1) -> list[StreamPart]:
        found = list[StreamPart]()
        for part in await super().parts(stream, after=after):
            try:
                await self.load_manifest(part.name)
            except NotOffloaded as absent:
                if type(absent) is not NotOffloaded:
                    continue
            found.append(part)
        return found


@bug("contract/cancelled_beginnings_hinder_nobody")
class KeepsItsLock(ObjectStoreOffloader):
    """Keeps a lock for ever if the beginning of a part is cancelled, and refuses the next one.

    `acquire` and `release` without `finally`.
    """

    locked = False

    async def begin_part(self, part: StreamPart, *, before: Manifest | None) -> None:
        if self.locked:
            raise Conflict("another part is being begun")
        self.locked = True
        await asyncio.sleep(0)
        await super().begin_part(part, before=before)
        self.locked = False
