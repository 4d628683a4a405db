"""Bugs of attempts: objects that two of them share, and deletions that take too much or too little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from offload.commit.writer import Append
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.contracts.store import ObjectStore
from offload.formats.keys import StreamKeys
from offload.ground.errors import Conflict, NotOffloaded
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.entry import Entry
from offload.model.manifest import Manifest, Running
from offload.native.offloader import ObjectStoreOffloader
from offload.upkeep.retention import delete_stream
from offload.write.writer import StreamWriter
from offload_conformance.bugs.offloader.shared import Deduplicating, deleted_but
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.ledgers import (
    all_of,
    attempt_of,
    chunks_of,
    copied,
    entries_of,
    ledger,
    raises,
    trimmed,
    uploaded,
)
from offload_conformance.bugs.sound.memory import MemoryTier
from offload_conformance.bugs.sound.table import FragmentRow, Table
from offload_conformance.bugs.sound.wrappers import Relay, copying


@bug("contract/attempts_are_disjoint")
class SharesObjects(ObjectStoreOffloader):
    """Stores equal bytes of different attempts once.

    Deduplication by content: a deletion by one attempt affects all.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(Deduplicating(store))


@bug("contract/attempts_are_disjoint")
class DeletesTheLedger(ObjectStoreOffloader):
    """Deletes every attempt at the same ledger.

    It deletes by the beginning of the name, and the attempt is at the end of the name.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        keys = StreamKeys(attempt.stream)
        found = {
            key: keys.parse_fragment(key) for key in [row.key async for row in self.data.list(keys.data)]
        }
        offsets = {parsed[0] for parsed in found.values() if parsed and parsed[1] == attempt.uid}
        await super().delete_offloaded(attempt)
        await self.data.delete([key for key, parsed in found.items() if parsed and parsed[0] in offsets])


@bug("contract/attempts_are_disjoint_between_streams")
class DeletesInAllStreams(ObjectStoreOffloader):
    """Deletes what other streams stored at the same offset.

    The data of all streams is in one table, and the deletion omits one column of the key.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        rows = [row.key async for row in self.data.list("")]
        names = {key.rpartition("/")[2].split(".")[0] for key in rows if str(attempt.uid) in key}
        await super().delete_offloaded(attempt)
        fragments = [key for key in rows if key.endswith(".fragment")]
        await self.data.delete([key for key in fragments if key.rpartition("/")[2].split(".")[0] in names])


@bug("contract/prepared_before_uploaded")
class UploadsUnprepared(ObjectStoreOffloader):
    """Uploads an attempt that was never announced.

    The caller is trusted; a sweep then deletes objects that a commit is about to name.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        running = Running(attempt=attempt.uid, ledger_id=0, epoch=1, writer=manifest.writer)
        manifest = replace(manifest, running=(*manifest.running, running))
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)


@bug("contract/fragments_are_whole")
class OffersThePlan(ObjectStoreOffloader):
    """Offers a fragment with a missing part for adoption.

    Planned uploads are in a journal, and after a crash the journal is taken for the upload.
    """

    planned: dict[UUID, Entry] = {}

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        self.planned[attempt.uid] = Entry(
            first_offset=handle.first_offset,
            records=handle.next_offset - handle.first_offset,
            messages=handle.next_offset - handle.first_offset,
            first_timestamp_ms=0,
            last_timestamp_ms=0,
            data_size_bytes=1,
            stored_size_bytes=1000,
            ledger_id=attempt.ledger_id,
            attempt=attempt.uid,
            checksum=0,
        )
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        return [
            Leftover(entry=self.planned[left.attempt], last_chunk_offset=0, last_chunk_checksum=0)
            for left in manifest.running
            if left.writer != manifest.writer and left.attempt in self.planned
        ]


@bug("contract/deletion_is_idempotent")
class InsistsOnPresence(ObjectStoreOffloader):
    """Fails to delete an attempt that is gone.

    A cleanup that was interrupted can then never be finished.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        if not [row async for row in self.data.list("") if str(attempt.uid) in row.key]:
            raise NotOffloaded(f"there is no attempt {attempt.uid}")
        await super().delete_offloaded(attempt)


@bug("contract/deletion_spares_the_committed")
class DeletesTheCommitted(ObjectStoreOffloader):
    """Deletes an attempt that the manifest names.

    It removes the attempt without looking at a manifest.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        await self.data.delete([row.key async for row in self.data.list("") if str(attempt.uid) in row.key])


@bug("contract/attempts_are_of_their_stream")
class FindsAttemptsByUid(ObjectStoreOffloader):
    """Reads an attempt by its UUID, in any stream.

    A table is keyed by the UUID, and the requested stream is in no `WHERE`.
    """

    async def read_offloaded(self, attempt: Attempt, **kwargs: Any) -> ReadHandle:
        for stream in [attempt.stream, *await self.streams()]:
            try:
                return await super().read_offloaded(replace(attempt, stream=stream), **kwargs)
            except NotOffloaded:
                continue
        raise NotOffloaded(f"there is no attempt {attempt.uid}")


@bug("contract/attempts_are_of_their_stream")
class DeletesByUid(ObjectStoreOffloader):
    """Deletes an attempt by its UUID, in any stream.

    `DELETE FROM fragments WHERE attempt = ?`.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        await super().delete_offloaded(attempt)
        rows = [row.key async for row in self.data.list("") if str(attempt.uid) in row.key]
        await self.data.delete(rows)


@bug("contract/deletion_condemns")
class DeletesBytesAlone(ObjectStoreOffloader):
    """Deletes the bytes of an attempt, and leaves it running.

    The commit that drops the attempt was forgotten, so a later commit names deleted data.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        manifest = await self.log(attempt.stream).load_newest()
        if manifest is None or not manifest.runs(attempt.uid):
            await super().delete_offloaded(attempt)
        else:
            rows = [row.key async for row in self.data.list("") if str(attempt.uid) in row.key]
            await self.data.delete(rows)


@bug("contract/deletion_spares_the_committed_that_runs")
class AsksOnlyWhatRuns(ObjectStoreOffloader):
    """Deletes every running attempt, and checks only other attempts against the manifest.

    It overlooks that an attempt can be both running and committed.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        manifest = await self.log(attempt.stream).load_newest()
        if manifest is not None and manifest.runs(attempt.uid):
            rows = [row.key async for row in self.data.list("") if str(attempt.uid) in row.key]
            await self.data.delete(rows)
        await super().delete_offloaded(attempt)


@bug("contract/deletion_takes_what_was_trimmed")
class SparesWhatWasEverNamed(ObjectStoreOffloader):
    """Never deletes data that was once committed.

    A trim does not reset a flag in the attempt's row, so retention frees no byte.
    """

    named: set[UUID] = set()

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        if isinstance(change, Append):
            self.named.update(entry.attempt for entry in change.entries)
        return manifest

    async def delete_offloaded(self, attempt: Attempt) -> None:
        if attempt.uid in self.named:
            raise Conflict(f"attempt {attempt.uid} is committed")
        await super().delete_offloaded(attempt)


@bug("contract/attempts_are_disjoint_in_every_bit")
class NamesHalfTheUuid(ObjectStoreOffloader):
    """Overwrites the fragments of an attempt whose UUID begins like that of another one.

    Sixty-four bits are enough for random UUIDs, but those of one batch begin alike.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        receipt = await super().offload(handle, attempt, **options)
        same = [row.key async for row in self.data.list("") if f".{str(attempt.uid)[:18]}" in row.key]
        await self.data.delete([key for key in same if str(attempt.uid) not in key])
        return receipt


@bug("contract/attempts_are_disjoint")
class LooksForTheAbsentByItsLedger(ObjectStoreOffloader):
    """Deletes other attempts at a ledger if the one to delete is absent.

    The id may have been written wrongly, and somebody wants the ledger to be gone.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        if not [row async for row in self.data.list("") if str(attempt.uid) in row.key]:
            await deleted_but(self, attempt, await self.load_manifest(attempt.stream))
        await super().delete_offloaded(attempt)


async def _attempts_of_a_deleted_stream(open_: OpenClient) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    attempt, _ = await uploaded(tier, writer, ledger(0))
    await delete_stream(tier, "s")
    await tier.delete_offloaded(attempt)


@bug("contract/deletion_is_idempotent", _attempts_of_a_deleted_stream)
class DeletionNeedsALiveStream(Table):
    """A deletion loads the manifest as a reader does, and ends with its error if the stream was deleted.

    Breaks "Deleting an absent attempt succeeds", and "Remove every object of `attempt`". Costs the space of a
    deleted stream: its attempts can never be removed.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        await self.load_manifest(attempt.stream)
        await super().delete_offloaded(attempt)


async def _replaced_can_go(open_: OpenClient) -> None:
    tier = open_()
    writer = await copied(tier, "s", *(ledger(at, ledger_id=1) for at in (0, 3, 6)))
    old = (await entries_of(tier, writer.manifest))[:2]
    job, _, receipt = await copying(tier, "s", old)
    await job.replace(old, [receipt])
    await tier.delete_offloaded(attempt_of("s", old[0]))
    assert await all_of(await tier.read_offloaded(receipt.attempt)) == b"".join(chunks_of(0) + chunks_of(3))


@bug("contract/attempts_are_disjoint", _replaced_can_go)
class NamedByItsOffsets(Table):
    """An attempt is in use if its offsets are in the stream.

    Breaks "Raises `Conflict` if the manifest names the attempt", and only then. Costs the space of what a
    compaction replaced: it can never be removed.
    """

    async def names_any(self, manifest: Manifest, rows: Sequence[FragmentRow]) -> bool:
        live = range(manifest.first_offset, manifest.next_offset)
        return any(row.entry.first_offset in live for row in rows)


async def _announced_with_its_ledger(open_: OpenClient) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    [attempt] = await writer.prepare([7])
    other = replace(attempt, ledger_id=8)
    handle = ledger(0, ledger_id=8)
    await raises(Conflict, tier.offload(handle, other, manifest=writer.manifest, extra_metadata={}))


@bug("contract/prepared_before_uploaded", _announced_with_its_ledger)
class AnnouncedByItsUuid(Table):
    """An attempt runs if its UUID does, whatever ledger was announced with it.

    Breaks "`offload` refuses an attempt that does not run in its manifest, with `Conflict`". Costs the order
    of a stream: the next writer adopts fragments under a ledger that they are not of.
    """

    def check_attempt(self, handle: ReadHandle, attempt: Attempt, manifest: Manifest) -> bool:
        ledgers = {each.attempt: each.ledger_id for each in manifest.running}
        if attempt.stream == manifest.stream and handle.ledger_id == attempt.ledger_id:
            attempt = replace(attempt, ledger_id=ledgers.get(attempt.uid, attempt.ledger_id))
            handle = Renamed(handle, attempt.ledger_id)
        return super().check_attempt(handle, attempt, manifest)


class Renamed(Relay):
    """A handle under another ledger."""

    def __init__(self, handle: ReadHandle, ledger_id: int) -> None:
        super().__init__(handle)
        self.number = ledger_id

    @property
    def ledger_id(self) -> int:
        return self.number


async def _named_in_part(open_: OpenClient) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0, 8, size=40_000))
    parts = await entries_of(tier, await tier.load_manifest("s"))
    attempt = attempt_of("s", parts[0])
    await trimmed(tier, "s", parts[0].next_offset)
    await raises(Conflict, tier.delete_offloaded(attempt))
    async with await tier.read_offloaded(attempt) as handle:
        assert handle.first_offset == parts[1].first_offset
        await all_of(handle)


@bug("contract/deletion_spares_the_committed", _named_in_part)
class FirstFragmentSpeaksForAll(Table):
    """Only the first fragment of an attempt decides if the manifest names it, and a trim may have dropped
    that one.

    Breaks "Deleting an attempt that the manifest names raises `Conflict` and removes nothing": data is lost.
    """

    async def names_any(self, manifest: Manifest, rows: Sequence[FragmentRow]) -> bool:
        return await super().names_any(manifest, rows[:1])


async def _refused_before_bytes(open_: OpenClient) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    source, absent = ledger(3), Attempt(stream="s", ledger_id=3, uid=uuid4())
    await raises(Conflict, tier.offload(source, absent, manifest=writer.manifest, extra_metadata={}))
    assert [row for row in tier.db.uploaded("s") if row.entry.attempt == absent.uid] == []


@bug("contract/prepared_before_uploaded", _refused_before_bytes)
class RefusesAfterTheUpload(Table):
    """The attempt is checked when its rows are registered, after they were sent.

    Breaks "`offload` refuses an attempt that its manifest does not run before the first byte is stored".
    """

    def check_attempt(self, handle: ReadHandle, attempt: Attempt, manifest: Manifest) -> bool:
        return False if not manifest.runs(attempt.uid) else super().check_attempt(handle, attempt, manifest)

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        receipt = await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        super().check_attempt(handle, attempt, manifest)
        return receipt


async def _another_streams_attempt(open_: OpenClient) -> None:
    tier = open_()
    one, _ = await copied(tier, "one", ledger(0)), await copied(tier, "two", ledger(0))
    [attempt] = await one.prepare([3])
    other = Attempt(stream="two", ledger_id=3, uid=attempt.uid)
    await raises(Conflict, tier.offload(ledger(3), other, manifest=one.manifest, extra_metadata={}))


@bug("contract/prepared_before_uploaded", _another_streams_attempt)
class AttemptsOfAnyStream(Table):
    """A running attempt is identified by its UUID alone, in any stream.

    Breaks "refuses an attempt that its manifest does not run": bytes of one stream are stored as another's.
    """

    def check_attempt(self, handle: ReadHandle, attempt: Attempt, manifest: Manifest) -> bool:
        return super().check_attempt(handle, replace(attempt, stream=manifest.stream), manifest)


async def _committed_is_a_conflict(open_: OpenClient) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    [entry] = await entries_of(tier, await tier.load_manifest("s"))
    await raises(Conflict, tier.delete_offloaded(attempt_of("s", entry)))


@bug("contract/deletion_spares_the_committed", _committed_is_a_conflict)
class DeletingTheCommittedIsSilent(MemoryTier):
    """A deletion of a committed attempt removes nothing and says nothing: `except Conflict: pass`.

    Breaks "Deleting an attempt that the manifest names raises `Conflict`": the caller counts its bytes as
    freed.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        with suppress(Conflict):
            await super().delete_offloaded(attempt)
