"""Bugs of leftovers: what is offered for adoption after a crash."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from offload.commit.writer import Claim, Prepare
from offload.formats.checksums import crc32
from offload.formats.chunk import ChunkHeader, scan
from offload.formats.fragment_trailer import HEADER
from offload.formats.keys import StreamKeys
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.manifest import AttemptKind, Manifest, Running
from offload.native.offloader import ObjectStoreOffloader
from offload.write.job import Job
from offload.write.writer import StreamWriter
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.ledgers import chunks_of, copied, ledger, trimmed, uploaded
from offload_conformance.bugs.sound.memory import MemoryTier
from offload_conformance.bugs.sound.table import Table


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


async def _claimed(tier: Any, base: Manifest) -> Manifest:
    """Return the manifest of a claim whose writer resolves nothing."""
    claim = Claim(stream=base.stream, writer=UUID(int=base.epoch + 7), first_offset=0)
    found: Manifest = await tier.commit_manifest(base.stream, claim, base=base, committer=claim.writer)
    return found


async def _other_rows_do_not_matter(open_: OpenClient) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    await uploaded(tier, writer, ledger(0))
    job = await Job.begin(tier, "s")
    manifest, [attempt] = await job.prepare([5])
    await tier.offload(ledger(0, 5, ledger_id=5), attempt, manifest=manifest, extra_metadata={})
    found = await tier.leftovers(await _claimed(tier, manifest))
    assert [each.entry.next_offset for each in found] == [3]


@bug("contract/leftovers_are_of_every_earlier_writer", _other_rows_do_not_matter)
class LastUploadDecides(Table):
    """Of several fragments at one offset, leftovers look at the one that was uploaded last.

    Breaks "The chain ends only if no such fragment continues it": a job's upload hides the one that fits.
    Costs what the crashed writer had uploaded.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        last = {
            (stream, at): row.entry.attempt
            for (stream, at, _), row in self.db.fragments.items()
            if stream == manifest.stream
        }
        found = list[Leftover]()
        for each in await super().leftovers(manifest):
            if last[manifest.stream, each.entry.first_offset] != each.entry.attempt:
                break
            found.append(each)
        return found


async def _left_behind(open_: OpenClient) -> tuple[Any, list[Leftover], Receipt, Receipt]:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), first=0)
    _, one = await uploaded(tier, writer, ledger(3, 8, size=40_000, ledger_id=2))
    _, two = await uploaded(tier, writer, ledger(11, ledger_id=3))
    claim = Claim(stream="s", writer=uuid4(), first_offset=0)
    manifest = await tier.commit_manifest("s", claim, base=writer.manifest, committer=claim.writer)
    return tier, await tier.leftovers(manifest), one, two


async def _all_left(open_: OpenClient) -> None:
    _, found, one, two = await _left_behind(open_)
    entries = [*one.entries, *two.entries]
    assert [each.entry for each in found] == entries
    chunks = chunks_of(3, 8, size=40_000) + chunks_of(11)
    for each in found:
        assert each.last_chunk_offset == each.entry.next_offset - 1
        assert each.last_chunk_checksum == crc32(chunks[each.last_chunk_offset - 3])


@bug("contract/leftovers_are_one_chain", _all_left)
class LeftoversEndWithTheFirstLedger(Table):
    """The chain of leftovers ends at the next attempt.

    Breaks "One chain from `next_offset` on, of attempts": uploaded ledgers are thrown away, and sent again.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        found = await super().leftovers(manifest)
        return [each for each in found if each.entry.attempt == found[0].entry.attempt]


async def _own_after_a_guest(open_: OpenClient) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), ledger(3, ledger_id=2), first=0)
    await uploaded(tier, writer, ledger(6, ledger_id=3))
    manifest = await trimmed(open_(), "s", 3)
    assert await tier.leftovers(manifest) == []


@bug("contract/leftovers_are_of_earlier_writers", _own_after_a_guest)
class LeftoversOfOthersThanTheCommitter(Table):
    """Attempts of others are those whose writer is not the last committer, who may be a guest.

    Breaks "of attempts that run in `manifest` for another writer": a writer adopts its own attempts under
    way.
    """

    def left(self, manifest: Manifest) -> dict[UUID, int]:
        return super().left(replace(manifest, writer=manifest.committer))


async def _leftovers_beyond(open_: OpenClient, first: int = 9_999_999_998) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s", first_offset=first)
    one = await uploaded(tier, writer, ledger(first))
    two = await uploaded(tier, writer, ledger(first + 3))
    next_ = await StreamWriter.claim(open_(), "s")
    assert next_.manifest.next_offset == first + 6, (one, two)


@bug("contract/leftovers_are_one_chain", _leftovers_beyond)
class OffsetsAreTextOfTenDigits(Table):
    """Offsets are keys of ten digits, so that longer ones are sorted before shorter ones.

    Breaks "One chain from `next_offset` on", once offsets pass 10^10: leftovers of a crash are not found.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        rows = self.db.uploaded(manifest.stream, manifest.next_offset)
        running, found, next_offset = self.left(manifest), list[Leftover](), manifest.next_offset
        for row in sorted(rows, key=lambda row: f"{row.entry.first_offset:010}"):
            fits = row.entry.first_offset == next_offset and row.incarnation == manifest.incarnation
            if fits and running.get(row.entry.attempt) == row.entry.ledger_id:
                found.append(self.leftover(row))
                next_offset = row.entry.next_offset
        return found


async def _leftovers_are_fresh(open_: OpenClient) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), first=0)
    claim = Claim(stream="s", writer=uuid4(), first_offset=0)
    manifest = await open_().commit_manifest("s", claim, base=writer.manifest, committer=claim.writer)
    assert await tier.leftovers(manifest) == []
    [attempt] = [uuid4()]
    prepare = Prepare(writer=claim.writer, attempts=[(attempt, 2)])
    manifest = await tier.commit_manifest("s", prepare, base=manifest, committer=claim.writer)
    await tier.offload(
        ledger(3, ledger_id=2),
        Attempt(stream="s", ledger_id=2, uid=attempt),
        manifest=manifest,
        extra_metadata={},
    )
    again = Claim(stream="s", writer=uuid4(), first_offset=0)
    manifest = await tier.commit_manifest("s", again, base=manifest, committer=again.writer)
    assert len(await tier.leftovers(manifest)) == 1


@bug("contract/leftovers_are_one_chain", _leftovers_are_fresh)
class LeftoversAreAskedForOnce(MemoryTier):
    """A client looks for leftovers of a stream once, when it opens the stream.

    Breaks "Complete fragments that continue `manifest`": the leftovers of a later writer are uploaded again.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.found: dict[str, list[Leftover]] = {}

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        if manifest.stream not in self.found:
            self.found[manifest.stream] = await super().leftovers(manifest)
        return self.found[manifest.stream]
