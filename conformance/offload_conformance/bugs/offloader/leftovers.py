"""Bugs of leftovers: what is offered for adoption after a crash."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from offload.formats.chunk import ChunkHeader, scan
from offload.formats.fragment_trailer import HEADER
from offload.formats.keys import StreamKeys
from offload.model.attempt import Leftover
from offload.model.manifest import AttemptKind, Manifest, Running
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.registry import bug


@bug("contract/leftovers_are_whole")
class GuessesLeftovers(ObjectStoreOffloader):
    """Offers a fragment for adoption with one record fewer than it has.

    The range is computed from names and sizes, and the fragment itself is not read.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        return [
            replace(found, entry=replace(found.entry, records=found.entry.records - 1, messages=0))
            for found in await super().leftovers(manifest)
        ]


@bug("contract/leftovers_are_of_running_attempts")
class OffersTheAborted(ObjectStoreOffloader):
    """Offers aborted fragments for adoption.

    All data behind the end of the stream is taken for the remains of a crash.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        keys = StreamKeys(manifest.stream)
        parsed = [keys.parse_fragment(row.key) async for row in self.data.list(keys.data)]
        running = tuple(
            Running(attempt=found[1], ledger_id=found[0], epoch=1, writer=uuid4())
            for found in parsed
            if found and not manifest.runs(found[1])
        )
        return await super().leftovers(replace(manifest, running=(*manifest.running, *running)))


@bug("contract/leftovers_leave_no_hole")
class OffersWhatLiesBehindAHole(ObjectStoreOffloader):
    """Offers fragments for adoption that do not continue the stream.

    Every complete fragment counts, as it does if a broker asks for its own data.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        keys = StreamKeys(manifest.stream)
        parsed = [keys.parse_fragment(row.key) async for row in self.data.list(keys.data)]
        return [
            leftover
            for found in parsed
            if found
            for leftover in await super(OffersWhatLiesBehindAHole, self).leftovers(
                replace(manifest, next_offset=found[0])
            )
        ]


@bug("contract/leftovers_are_one_chain")
class OffersRivals(ObjectStoreOffloader):
    """Offers the leftovers of each attempt, even if they have the same offsets.

    Each attempt is looked at by itself, and continues the manifest by itself.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        return [
            leftover
            for running in manifest.running
            for leftover in await super(OffersRivals, self).leftovers(replace(manifest, running=(running,)))
        ]


@bug("contract/leftovers_are_of_earlier_writers")
class OffersItsOwn(ObjectStoreOffloader):
    """Offers a writer its own uncommitted copies.

    Every complete running attempt counts, regardless of its owner.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        return await super().leftovers(replace(manifest, writer=uuid4()))


@bug("contract/leftovers_are_of_earlier_writers")
class OffersWhatJobsCopied(ObjectStoreOffloader):
    """Offers the next writer the copies of a job.

    The kind of an attempt came later than the code that reads the list.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        running = tuple(replace(each, kind=AttemptKind.STREAM) for each in manifest.running)
        return await super().leftovers(replace(manifest, running=running))


@bug("contract/leftovers_are_not_committed")
class OffersTheCommitted(ObjectStoreOffloader):
    """Offers all complete fragments of running attempts, committed or not.

    The attempt's fragments are not compared with the manifest, so some are appended twice.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        return await super().leftovers(replace(manifest, next_offset=manifest.first_offset))


@bug("contract/leftovers_tell_their_last_chunk")
class TellsTheLastRecord(ObjectStoreOffloader):
    """Reports the offset of the last record as that of the last chunk.

    The two are equal if chunks have one record.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        found = await super().leftovers(manifest)
        return [replace(each, last_chunk_offset=each.entry.next_offset - 1) for each in found]


@bug("contract/leftovers_tell_their_last_chunk")
class TellsTheChecksumOfTheData(ObjectStoreOffloader):
    """Reports the CRC in the last chunk's header, which covers only its data.

    A checksum is available, so none is computed, but the source's checksum never agrees with it.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        found = []
        for each in await super().leftovers(manifest):
            key = StreamKeys(manifest.stream).fragment(each.entry.first_offset, each.entry.attempt)
            data = (await self.data.get(key))[HEADER.size_bytes :][: each.entry.data_size_bytes]
            position = int(scan(data, where=key)["position"][-1])
            checksum = ChunkHeader.decode(data[position:], where=key).crc
            found.append(replace(each, last_chunk_checksum=checksum))
        return found


@bug("contract/leftovers_are_of_every_earlier_writer")
class LeftoversOfOneEpoch(ObjectStoreOffloader):
    """Offers only what the writer just before left.

    The epoch is compared with the present one less one, and a second crash hides the first.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        late = {each.attempt for each in manifest.running if each.epoch == manifest.epoch - 1}
        return [each for each in await super().leftovers(manifest) if each.entry.attempt in late]
