"""Offloaders that each break one clause of their contract, as real ones do.

None of them is far-fetched: each is a shortcut that a real backend took, and the rest of the offloader works.
"""

from __future__ import annotations

import asyncio
import re
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, Final
from unittest.mock import MagicMock, patch
from uuid import UUID, uuid4

import numpy as np
import numpy.typing as npt
from contract.bugs import Bug, breaks

from offload.commit.guest import Abort, Delete, Trim
from offload.commit.writer import Append, Claim
from offload.contracts.change import Change, CommitVerdict
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import Body, ObjectStore, Span, Suffix
from offload.formats.chunk import ChunkHeader, scan
from offload.formats.chunk_check import check_source
from offload.formats.fragment_trailer import HEADER
from offload.formats.keys import StreamKeys
from offload.ground.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    Misuse,
    NotOffloaded,
    OffloadError,
    OutcomeUnknown,
    StreamDeleted,
    TryAgain,
)
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import AttemptKind, CommittedStream, Manifest, Running, StreamState
from offload.model.tree import Tree
from offload.native.fragment_reader import FragmentHandle, open_entries
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.read.handles import CutHandle
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator

OFFLOADER_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=OFFLOADER_BUGS)


class _Around(CutHandle):
    @classmethod
    def around(cls, handle: ReadHandle) -> _Around:
        return cls(handle, first_offset=handle.first_offset, next_offset=handle.next_offset)

    async def aclose(self) -> None:
        await self._whole.aclose()


class ByVerbs(ObjectStoreOffloader):
    """Reads streams by `tree` and `read_offloaded`, as an offloader without its own views."""

    view_of = LedgerOffloader.view_of  # type: ignore[assignment]


# Codings


class CodedHandles(ObjectStoreOffloader):
    """Opens fragments by `handle`, which a bug overrides."""

    async def _open_entry(self, committed: CommittedStream, entry: Entry) -> ReadHandle:
        return self.handle(await super()._open_entry(committed, entry), entry)

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        raise NotImplementedError


class _OfBlocks(_Around):
    async def read(self, rows: ChunkTable) -> bytes:
        table = await self.table()
        before = table[max(int(np.searchsorted(table["offset"], rows["offset"][0])) - 1, 0) :][:1]
        whole = await super().read(np.concatenate((before, rows)) if before != rows[:1] else rows)
        return whole[: int(rows["size_bytes"].sum())]


@bug("coded_reads_are_verbatim")
class ReadsFromTheBlocksStart(CodedHandles):
    """Returns the beginning of a decompressed block, whatever chunk of it was asked for.

    The position within the block is forgotten. Reads that begin with a block are right.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _OfBlocks.around(handle) if entry.codec else handle


@bug("codings_mix_in_a_stream")
class ReadsWithItsOwnCodec(CodedHandles):
    """Decompresses with the codec of its own options, and not with that of the fragment.

    It works as long as nobody changes the options.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        if vars(self).setdefault("codec", entry.codec) != entry.codec:
            raise Corrupt("block", handle.where, expected="a frame of this codec", found="another one")
        return handle


@bug("codings_mix_in_a_stream")
class CountsStoredSizes(ObjectStoreOffloader):
    """Counts what is stored as the size of the data.

    So a limit of retention means another history for each codec.
    """

    async def offload(self, *args: Any, **options: Any) -> Receipt:
        receipt = await super().offload(*args, **options)
        entries = [replace(entry, data_size_bytes=entry.stored_size_bytes) for entry in receipt.entries]
        return replace(receipt, entries=entries)


class _PlainPositions(_Around):
    async def read(self, rows: ChunkTable) -> bytes:
        try:
            return await super().read(rows)
        except Corrupt as exc:
            raise exc.within(exc.where, offset=int((await self.table())["size_bytes"].sum())) from exc


@bug("coded_damage_is_an_error")
class NamesPlainPositions(CodedHandles):
    """Names the position of damage as if nothing were compressed, which may be behind the object's end.

    Nobody finds the damaged bytes there.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _PlainPositions.around(handle) if entry.codec else handle


class _RawErrors(_Around):
    async def read(self, rows: ChunkTable) -> bytes:
        try:
            return await super().read(rows)
        except Corrupt as exc:
            raise RuntimeError("LZ4F_decompress failed with code: ERROR_frameType_unknown") from exc


@bug("coded_damage_is_an_error")
class RaisesTheErrorsOfTheLibrary(CodedHandles):
    """Raises the error of the library that decompresses.

    Readers expect `Corrupt`, and stop with a traceback instead.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _RawErrors.around(handle) if entry.codec else handle


class _Whole(_Around):
    async def read(self, rows: ChunkTable) -> bytes:
        table = await self.table()
        first = int(np.searchsorted(table["offset"], rows["offset"][0]))
        start = int(table["size_bytes"][:first].sum())
        whole = await super().read(table)
        return whole[start : start + int(rows["size_bytes"].sum())]


@bug("coded_reads_are_bounded")
class DecompressesWholeFragments(CodedHandles):
    """Fetches and decompresses the whole fragment for every read.

    A fragment is one frame of the codec, so its middle cannot be read alone.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _Whole.around(handle) if entry.codec else handle


# Attempts


class Deduplicating(StoreDecorator):
    @staticmethod
    def shared(key: str) -> str:
        return re.sub(r"\.[0-9a-f-]{36}\.fragment", f".{UUID(int=0)}.fragment", key)

    async def put(self, key: str, body: Body) -> None:
        await super().put(self.shared(key), body)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(self.shared(key), span)


@bug("attempts_are_disjoint")
class SharesObjects(ObjectStoreOffloader):
    """Stores equal bytes of different attempts once.

    Deduplication by content: a deletion by one attempt affects all.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(Deduplicating(store))


@bug("attempts_are_disjoint")
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


@bug("attempts_are_disjoint_between_streams")
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


@bug("prepared_before_uploaded")
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


class _Renamed(_Around):
    announced = 0

    @property
    def ledger_id(self) -> int:
        return self.announced


@bug("ledgers_are_those_announced")
class StoresAnyLedger(ObjectStoreOffloader):
    """Stores any ledger under the number that the attempt announced.

    The number is taken from the attempt, and the handle is never asked for its own.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        renamed = _Renamed.around(handle)
        renamed.announced = attempt.ledger_id  # type: ignore[attr-defined]
        return await super().offload(renamed, attempt, manifest=manifest, extra_metadata=extra_metadata)


@bug("offloads_are_checked")
class ForgetsToCheck(ObjectStoreOffloader):
    """Stores chunks whose checksums do not match.

    The source's index is trusted without a check.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        def unchecked(raw: bytes, rows: ChunkTable, *, where: str) -> npt.NDArray[np.uint32]:
            return np.zeros(len(rows), np.uint32)

        with patch("offload.native.fragment_writer.check_source", unchecked):
            return await super().offload(*args, **kwargs)


@bug("offloads_are_checked_for_length")
class TakesAShortReadForTheEnd(ObjectStoreOffloader):
    """Treats a source that ends too early as complete.

    `while data := source.read()`: nobody compares with what the index says.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        try:
            return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        except Corrupt:
            return Receipt(attempt=attempt, entries=())


@bug("fragments_are_whole")
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


@bug("leftovers_are_whole")
class GuessesLeftovers(ObjectStoreOffloader):
    """Offers a fragment for adoption with one record fewer than it has.

    The range is computed from names and sizes, and the fragment itself is not read.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        return [
            replace(found, entry=replace(found.entry, records=found.entry.records - 1, messages=0))
            for found in await super().leftovers(manifest)
        ]


@bug("leftovers_are_of_running_attempts")
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


@bug("leftovers_leave_no_hole")
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


@bug("deletion_is_idempotent")
class InsistsOnPresence(ObjectStoreOffloader):
    """Fails to delete an attempt that is gone.

    A cleanup that was interrupted can then never be finished.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        if not [row async for row in self.data.list("") if str(attempt.uid) in row.key]:
            raise NotOffloaded(f"there is no attempt {attempt.uid}")
        await super().delete_offloaded(attempt)


@bug("deletion_spares_the_committed")
class DeletesTheCommitted(ObjectStoreOffloader):
    """Deletes an attempt that the manifest names.

    It removes the attempt without looking at a manifest.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        await self.data.delete([row.key async for row in self.data.list("") if str(attempt.uid) in row.key])


@bug("offloads_are_checked")
class ChecksOnlyTheData(ObjectStoreOffloader):
    """Checks the CRC of a chunk's data, and nothing of its header.

    The format's checksum is checked, but it does not cover the header.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        def agree(headers: Any, rows: ChunkTable) -> npt.NDArray[np.bool_]:
            return np.ones(len(rows), np.bool_)

        with patch("offload.formats._chunk_table._agree", agree):
            return await super().offload(*args, **kwargs)


@bug("offloads_are_checked")
class ChecksTheFirstOfEachRead(ObjectStoreOffloader):
    """Checks only the first chunk of each read.

    The check was written for one chunk, before reads became larger.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        def first(raw: bytes, rows: ChunkTable, *, where: str) -> npt.NDArray[np.uint32]:
            one = rows[:1]
            check_source(raw[: int(one["size_bytes"][0])], one, where=where)
            return np.zeros(len(rows), np.uint32)

        with patch("offload.native.fragment_writer.check_source", first):
            return await super().offload(*args, **kwargs)


@bug("offloads_are_checked")
class BlamesTheTier(ObjectStoreOffloader):
    """Blames the tier for damage in the source.

    An error is translated in a place where the file is no longer known.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        try:
            return await super().offload(*args, **kwargs)
        except Corrupt as damage:
            raise damage.within(self.url) from damage


@bug("offloads_are_checked_for_holes")
class TrustsTheTable(ObjectStoreOffloader):
    """Copies the chunks in the table of the source, even if they do not cover the whole range.

    An index lost a record, so the chunk exists and nobody reads it.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        with (
            patch("offload.native.offloader.covering_table", lambda handle: handle.table()),
            patch("offload.formats.fragment._check_table", lambda *args, **kwargs: None),
        ):
            return await super().offload(*args, **kwargs)


@bug("errors_of_the_source_are_passed_on")
class TakesTryAgainForTheEnd(ObjectStoreOffloader):
    """Treats a source that is temporarily unavailable as ended.

    A loop reads until there is no more data, and an error counts as no data.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        try:
            return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        except TryAgain:
            return Receipt(attempt=attempt, entries=())


class _Slots(ObjectStoreOffloader):
    """Has four slots for uploads. `kept_after` says after which errors a slot is not given back."""

    taken = 0
    kept_after: type[BaseException]

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        if self.taken == 4:
            raise TryAgain("all slots are taken")
        self.taken += 1
        try:
            receipt = await super().offload(*args, **kwargs)
        except BaseException as error:
            self.taken -= not isinstance(error, self.kept_after)
            raise
        self.taken -= 1
        return receipt


@bug("errors_of_the_source_are_passed_on")
class LosesSlotsToErrors(_Slots):
    """Loses an upload slot at each error of a source.

    A semaphore is released after the call, and not in a `finally`.
    """

    kept_after = OffloadError


@bug("cancelled_offloads_hinder_nobody")
class LosesSlotsToCancellation(_Slots):
    """Loses an upload slot with each offload that is cancelled.

    `except Exception` releases the slot, and a cancellation is not an `Exception`.
    """

    kept_after = asyncio.CancelledError


@bug("source_handles_stay_open")
class ClosesItsSource(ObjectStoreOffloader):
    """Closes the handle that it copied.

    `async with handle` closes it, but the caller owns the handle and may copy it once more.
    """

    async def offload(self, handle: ReadHandle, *args: Any, **kwargs: Any) -> Receipt:
        async with handle:
            return await super().offload(handle, *args, **kwargs)


@bug("extra_metadata_is_any_text")
class SendsMetadataAsHeaders(ObjectStoreOffloader):
    """Refuses metadata outside ASCII.

    It is sent as HTTP headers, as user metadata of objects is.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        if not all((name + text).isascii() for name, text in kwargs["extra_metadata"].items()):
            raise Misuse("a header must be ASCII")
        return await super().offload(*args, **kwargs)


@bug("extra_metadata_is_any_text")
class AddsToTheMetadata(ObjectStoreOffloader):
    """Adds to the mapping of metadata that its caller gave.

    It adds a default to the caller's mapping, so the next ledger has it too.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        if kwargs["extra_metadata"]:
            try:
                kwargs["extra_metadata"]["by"] = "an archive"
            except TypeError as error:
                raise RuntimeError("the mapping cannot be changed") from error
        return await super().offload(*args, **kwargs)


@bug("offloads_may_run_at_once")
class CopiesByOneCursor(ObjectStoreOffloader):
    """Keeps the current handle in the offloader itself.

    An attribute is used instead of a variable, so of two simultaneous ledgers one is stored twice.
    """

    current: ReadHandle

    async def offload(self, handle: ReadHandle, *args: Any, **kwargs: Any) -> Receipt:
        self.current = handle
        await asyncio.sleep(0)
        return await super().offload(self.current, *args, **kwargs)


@bug("receipts_tell_what_was_copied")
class CountsEveryRecord(ObjectStoreOffloader):
    """Counts the records of tracking chunks as messages.

    Every record takes an offset, so the offsets are counted.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        receipt = await super().offload(*args, **kwargs)
        return replace(receipt, entries=[replace(each, messages=each.records) for each in receipt.entries])


@bug("receipts_tell_what_was_copied")
class TakesTheLastTimeForTheGreatest(ObjectStoreOffloader):
    """Takes the timestamp of the last chunk for the greatest.

    Time usually rises, until somebody sets a clock.
    """

    async def offload(self, handle: ReadHandle, *args: Any, **kwargs: Any) -> Receipt:
        receipt = await super().offload(handle, *args, **kwargs)
        last_ms = int((await handle.table())["timestamp_ms"][-1])
        *entries, newest = receipt.entries
        return replace(receipt, entries=[*entries, replace(newest, last_timestamp_ms=last_ms)])


class Behind(StoreDecorator):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.buffered: dict[str, bytes] = {}

    async def put(self, key: str, body: Body) -> None:
        self.buffered[key] = b"".join([window async for window in body.windows()])

    async def create(self, key: str, data: bytes) -> None:
        for buffered, raw in self.buffered.items():
            await super().put(buffered, Body.of(raw))
        self.buffered.clear()
        await super().create(key, data)


@bug("receipts_are_of_durable_bytes")
class WritesBehind(ObjectStoreOffloader):
    """Sends copied data only with its next commit.

    A transaction stays open until then; if another process commits, the data is missing.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(Behind(store))


@bug("receipts_are_of_durable_bytes")
class TidiesUpAtItsClose(ObjectStoreOffloader):
    """Removes uncommitted copies when it is closed.

    An open transaction is rolled back with its connection, but another writer may commit or adopt the copies.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.open_attempts: set[UUID] = set()

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        receipt = await super().offload(*args, **kwargs)
        self.open_attempts.add(receipt.attempt.uid)
        return receipt

    async def aclose(self) -> None:
        rows = [row.key async for row in self.data.list("")]
        mine = [key for key in rows if any(str(uid) in key for uid in self.open_attempts)]
        await self.data.delete(mine)
        await super().aclose()


class KeepingFragments(Deduplicating):
    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([key for key in keys if not key.endswith(".fragment")])


@bug("attempts_are_stored_apart")
class StoresEqualBytesOnce(ObjectStoreOffloader):
    """Stores equal bytes of two attempts once, and never removes them.

    Deduplication whose garbage collector was never written.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(KeepingFragments(store))


@bug("refusals_store_nothing")
class NotesBeforeItAsks(ObjectStoreOffloader):
    """Stores a note of an attempt before it checks if the attempt was announced.

    The check comes late, and nobody removes the note of a refused attempt.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **kwargs: Any) -> Receipt:
        await self.data.put(StreamKeys(attempt.stream).data + f"note.{attempt.uid}", Body.of(b""))
        return await super().offload(handle, attempt, **kwargs)


@bug("deletion_leaves_nothing")
class LeavesTheBrokenOff(ObjectStoreOffloader):
    """Deletes the complete objects of an attempt, and not the unfinished ones.

    Temporary objects have names that the deletion does not know.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **kwargs: Any) -> Receipt:
        part = StreamKeys(attempt.stream).data + f"part.{attempt.uid}"
        await self.data.put(part, Body.of(b""))
        receipt = await super().offload(handle, attempt, **kwargs)
        await self.data.delete([part])
        return receipt


@bug("refused_deletions_remove_nothing")
class PrunesBeforeItAsks(ObjectStoreOffloader):
    """Removes old manifests with each deletion, also with one that it then refuses.

    It cleans up first, and checks the call afterwards.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        roots = [row.key async for row in self.data.list(StreamKeys(attempt.stream).roots)]
        await self.data.delete(roots[:-1])
        await super().delete_offloaded(attempt)


@bug("attempts_are_of_their_stream")
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


@bug("attempts_are_of_their_stream")
class DeletesByUid(ObjectStoreOffloader):
    """Deletes an attempt by its UUID, in any stream.

    `DELETE FROM fragments WHERE attempt = ?`.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        await super().delete_offloaded(attempt)
        rows = [row.key async for row in self.data.list("") if str(attempt.uid) in row.key]
        await self.data.delete(rows)


@bug("deletion_condemns")
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


@bug("deletion_spares_the_committed_that_runs")
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


@bug("deletion_takes_what_was_trimmed")
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


@bug("leftovers_are_one_chain")
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


@bug("leftovers_are_of_earlier_writers")
class OffersItsOwn(ObjectStoreOffloader):
    """Offers a writer its own uncommitted copies.

    Every complete running attempt counts, regardless of its owner.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        return await super().leftovers(replace(manifest, writer=uuid4()))


@bug("leftovers_are_of_earlier_writers")
class OffersWhatJobsCopied(ObjectStoreOffloader):
    """Offers the next writer the copies of a job.

    The kind of an attempt came later than the code that reads the list.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        running = tuple(replace(each, kind=AttemptKind.STREAM) for each in manifest.running)
        return await super().leftovers(replace(manifest, running=running))


@bug("leftovers_are_not_committed")
class OffersTheCommitted(ObjectStoreOffloader):
    """Offers all complete fragments of running attempts, committed or not.

    The attempt's fragments are not compared with the manifest, so some are appended twice.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        return await super().leftovers(replace(manifest, next_offset=manifest.first_offset))


@bug("leftovers_tell_their_last_chunk")
class TellsTheLastRecord(ObjectStoreOffloader):
    """Reports the offset of the last record as that of the last chunk.

    The two are equal if chunks have one record.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        found = await super().leftovers(manifest)
        return [replace(each, last_chunk_offset=each.entry.next_offset - 1) for each in found]


@bug("leftovers_tell_their_last_chunk")
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


# Reads


class Tidied(_Around):
    async def read(self, rows: ChunkTable) -> bytes:
        return (await super().read(rows)).replace(b".", b" ")


@bug("reads_are_verbatim")
class Tidies(ObjectStoreOffloader):
    """Returns bytes that differ slightly from the original ones.

    Records are decoded and encoded again on the way, trimmed, or recompressed.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return Tidied.around(await super().read_offloaded(*args, **kwargs))


@bug("reads_are_verbatim_when_narrowed")
class NarrowsTooFar(ObjectStoreOffloader):
    """Leaves out the last offset of a narrowed read.

    An inclusive end taken for an exclusive one.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        narrowed = None if only is None else range(only.start, only.stop - 1)
        return await super().read_offloaded(attempt, manifest=manifest, only=narrowed)


@bug("absence_is_an_error")
class ReturnsNone(ObjectStoreOffloader):
    """Returns None if nothing was committed.

    This avoids an exception here, but the caller's next line fails.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        try:
            return await super().read_offloaded(*args, **kwargs)
        except NotOffloaded:
            return None  # type: ignore[return-value]


@bug("damage_is_an_error")
class ChecksNothingItReads(ObjectStoreOffloader):
    """Returns stored bytes without checking their checksums.

    The store has its own checksums, but they do not cover changes by a proxy or a person.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Unchecked.around(await super().read_offloaded(*args, **kwargs))


class _Unchecked(_Around):
    async def read(self, rows: ChunkTable) -> bytes:
        with patch.object(FragmentHandle, "_check", lambda _, raw, **__: raw):
            return await super().read(rows)


@bug("streams_do_not_end_at_damage")
class EndsAtDamage(ByVerbs):
    """Ends a ledger at the first damaged byte.

    A broker recovers its own log in this way, because a crash leaves a torn end; here it loses data.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _UpToDamage.around(await super().read_offloaded(*args, **kwargs))


class _UpToDamage(_Around):
    async def table(self) -> ChunkTable:
        table = await super().table()
        for row in range(len(table)):
            try:
                await self._whole.read(table[row : row + 1])
            except Corrupt:
                return table[:row]
        return table

    async def read(self, rows: ChunkTable) -> bytes:
        try:
            return await super().read(rows)
        except Corrupt:
            sound = (await self.table())["offset"]
            rows = rows[np.isin(rows["offset"], sound)]
            return await super().read(rows) if len(rows) else b""


@bug("trimmed_offsets_are_gone")
class LeavesTrimsToTheBucket(ObjectStoreOffloader):
    """Does not commit a trim.

    Retention is left to the bucket's lifecycle rules, which delete objects that the manifest still names.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Trim):
            return await self.load_manifest(stream)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("copies_change_nothing_that_is_read")
class RemembersWhatItCommitted(ObjectStoreOffloader):
    """Reads an attempt by an older manifest of its own that named it.

    Objects never change, so their place is cached; but the stream may no longer name them.
    """

    remembered: Manifest | None = None

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        if isinstance(change, Append):
            self.remembered = manifest
        return manifest

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        try:
            return await super().read_offloaded(attempt, manifest=manifest, only=only)
        except NotOffloaded:
            if self.remembered is None:
                raise
            return await super().read_offloaded(attempt, manifest=self.remembered, only=only)


@bug("attempts_are_not_read_with_a_hole")
class JoinsWhatIsLeft(ObjectStoreOffloader):
    """Makes one handle of all remaining fragments of an attempt, even with a gap between them.

    This is right if no attempt was ever replaced in part.
    """

    def __init__(self, store: ObjectStore, **how: Any) -> None:
        super().__init__(store, **{**how, "options": TierOptions(fragment_size_bytes=250_000)})

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        try:
            return await super().read_offloaded(attempt, manifest=manifest, only=only)
        except NotOffloaded:
            named = manifest or await self.load_manifest(attempt.stream)
            found = [each async for run in self.tree(named).walk() for each in entries_of_rows(run)]
            own = [each for each in found if each.attempt == attempt.uid]
            if not own or only is not None:
                raise
            return await open_entries(self.view_of(named), own, where=str(attempt.uid))


@bug("copies_begin_and_end_as_fragments_do")
class CopiesAnything(ObjectStoreOffloader):
    """Accepts any data as a copy.

    Only the commit compares both, after everything is stored.
    """

    async def _epoch_to_copy(self, handle: ReadHandle, manifest: Manifest) -> int:
        return manifest.epoch


@bug("snapshots_do_not_move")
class LiveHandles(ObjectStoreOffloader):
    """Returns handles that grow with the stream.

    The end of the range is looked up at every call instead of once.
    """

    newest_offset = 0

    async def commit_manifest(self, *args: Any, **kwargs: Any) -> Manifest:
        manifest = await super().commit_manifest(*args, **kwargs)
        self.newest_offset = manifest.next_offset
        return manifest

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        handle = Live.around(await super().read_offloaded(*args, **kwargs))
        handle.offloader = self  # type: ignore[attr-defined]
        return handle


class Live(_Around):
    offloader: LiveHandles

    @property
    def next_offset(self) -> int:
        return max(self._next_offset, self.offloader.newest_offset)


class Shortened(_Around):
    @property
    def first_offset(self) -> int:
        return super().first_offset + 1

    async def table(self) -> ChunkTable:
        return await self._whole.table()


@bug("chunks_are_whole")
class BeginsWithinAChunk(ObjectStoreOffloader):
    """Returns handles that begin behind the first record of a chunk.

    A reader's offset is taken for the beginning of the handle's range.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return Shortened.around(await super().read_offloaded(*args, **kwargs))


class _Page(_Around):
    async def table(self) -> ChunkTable:
        return (await super().table())[:1000]


@bug("reads_are_verbatim")
class ReadsOnePage(ObjectStoreOffloader):
    """Reads back the first thousand chunks of an attempt.

    A query has a limit, and nobody requests the next page.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Page.around(await super().read_offloaded(*args, **kwargs))


class _Buffer(_Around):
    async def read(self, rows: ChunkTable) -> bytes:
        return (await super().read(rows))[: 4 * 1024 * 1024]


@bug("reads_are_verbatim")
class ReadsOneBuffer(ObjectStoreOffloader):
    """Returns at most one buffer of a read.

    There is one `recv` instead of a loop, and tests have small chunks.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Buffer.around(await super().read_offloaded(*args, **kwargs))


class _LastOfAll(Tree):
    async def last_with_messages(self) -> Entry | None:
        return await self.find(self.manifest.next_offset - 1)


@bug("views_find_what_is_committed")
class TakesTheLastForAMessage(ByVerbs):
    """Reports the newest fragment as the newest with messages.

    Tracking chunks are rare, and hold no messages.
    """

    def tree(self, manifest: Manifest) -> Tree:
        return _LastOfAll(manifest, self.load_group)


@bug("views_do_not_move")
class NamesWhatIsGone(ObjectStoreOffloader):
    """Reports that a view has every name.

    It asks the store instead of the manifest; the objects still exist, so a trim looks like damage.
    """

    def view_of(self, committed: CommittedStream) -> Any:
        made = LedgerOffloader.view_of(self, committed)

        class View(type(made)):  # type: ignore[misc]
            async def names(self, where: str) -> bool:
                return True

        return View(self, committed)


class _Cursor(_Around):
    rows: ChunkTable

    async def read(self, rows: ChunkTable) -> bytes:
        self.rows = rows
        await asyncio.sleep(0)
        return await super().read(self.rows)


@bug("reads_may_run_at_once")
class ReadsByOneCursor(ObjectStoreOffloader):
    """Keeps the read position in the handle.

    `seek`, then `read`: another read comes between the two.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Cursor.around(await super().read_offloaded(*args, **kwargs))


class _Sharing(_Around):
    offloader: ClosesWithTheHandle

    async def read(self, rows: ChunkTable) -> bytes:
        if self.offloader.is_closed:
            raise RuntimeError("the connection is closed")
        return await super().read(rows)

    async def aclose(self) -> None:
        self.offloader.is_closed = True


@bug("handles_are_closed_alone")
class ClosesWithTheHandle(ObjectStoreOffloader):
    """Closes its connection with any handle that is closed.

    The handle got the connection, and cleans up everything that it got.
    """

    is_closed = False

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        handle = _Sharing.around(await super().read_offloaded(*args, **kwargs))
        handle.offloader = self  # type: ignore[attr-defined]
        return handle


@bug("reads_go_by_the_manifest_given")
class ReadsByTheNewest(ObjectStoreOffloader):
    """Reads by the newest manifest, and ignores the given one.

    The parameter was added for other backends, and is not used.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        return await super().read_offloaded(attempt, only=only)


class _Nameless(_Around):
    async def read(self, rows: ChunkTable) -> bytes:
        try:
            return await super().read(rows)
        except Corrupt as damage:
            raise damage.within("") from damage


@bug("damage_is_an_error")
class NamesNoPlace(ObjectStoreOffloader):
    """Reports damage without its place.

    An operator with ten thousand objects learns only that one of them is damaged.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Nameless.around(await super().read_offloaded(*args, **kwargs))


class _Alters(ObjectStoreOffloader):
    """Loads manifests that differ slightly from the committed ones."""

    def altered(self, manifest: Manifest) -> Manifest:
        raise NotImplementedError

    async def load_manifest(self, stream: str) -> Manifest:
        return self.altered(await super().load_manifest(stream))


@bug("numbers_are_exact")
class KeepsDoubles(_Alters):
    """Stores offsets as floating-point numbers.

    A document store has only doubles as numbers: beyond 2^53 every second integer is missing.
    """

    def altered(self, manifest: Manifest) -> Manifest:
        return replace(manifest, next_offset=int(float(manifest.next_offset)))


@bug("numbers_are_exact")
class NarrowsByDoubles(ObjectStoreOffloader):
    """Narrows a read by offsets that were converted to floating-point numbers.

    A JSON library decodes every number as a double.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        narrowed = None if only is None else range(int(float(only.start)), int(float(only.stop)))
        return await super().read_offloaded(attempt, manifest=manifest, only=narrowed)


@bug("numbers_are_exact")
class KeepsLedgersIn32Bits(_Alters):
    """Stores the ids of ledgers in columns of 32 bits.

    `INTEGER` is that in most databases; RabbitMQ's first ledgers fit.
    """

    def altered(self, manifest: Manifest) -> Manifest:
        running = tuple(replace(each, ledger_id=each.ledger_id % 2**32) for each in manifest.running)
        return replace(manifest, running=running, last_ledger_id=manifest.last_ledger_id % 2**32)


class _Short(_Around):
    @property
    def ledger_id(self) -> int:
        return super().ledger_id % 2**31


@bug("handles_tell_exact_numbers")
class TellsShortLedgers(ObjectStoreOffloader):
    """Reports only the last 31 bits of a ledger's id.

    A signed int, and a mask that keeps it positive.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Short.around(await super().read_offloaded(*args, **kwargs))


# Commits


@bug("commits_are_atomic")
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


@bug("commits_are_atomic_when_refused")
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
    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, Body.of(data))


@bug("history_is_linear")
class Overwrites(ObjectStoreOffloader):
    """Overwrites the manifest of a rival.

    It uses a put instead of a create, so the last writer wins.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(ReplacingCreate(store))


class Swallowing(StoreDecorator):
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


@bug("history_is_linear")
class TrustsTheReply(ObjectStoreOffloader):
    """Takes its own change for committed if a rival's is.

    `AlreadyExists` is read as a lost reply of one's own, and nobody reads back.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(Swallowing(store))


@bug("history_is_linear_where_changes_exclude_each_other")
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


@bug("commits_are_idempotent")
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


@bug("commits_are_idempotent_for_every_change")
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


class _Reclaims(ObjectStoreOffloader):
    """Commits changed claims."""

    kind: type[Claim]

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Claim):
            change = self.kind(**{each.name: getattr(change, each.name) for each in fields(change)})
        return await super().commit_manifest(stream, change, base=base, committer=committer)


class _Anew(Claim):
    def apply(self, base: Manifest | None) -> Manifest:
        changed = super().apply(base)
        if base is None or base.state is not StreamState.LIVE:
            return changed
        return self._born(version=base.version, epoch=changed.epoch, parent=base.commit_id)


@bug("next_offset_never_falls")
class ClaimsAnew(_Reclaims):
    """Lets a claim begin the stream from nothing.

    `INSERT OR REPLACE` of the stream's row: the new writer loses all offloaded data.
    """

    kind = _Anew


@bug("deleted_streams_are_told")
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


@bug("deleted_streams_begin_anew")
class Undeletes(_Reclaims):
    """Lets a claim of a deleted stream continue the old one.

    The claim removes the mark of deletion from the row, and everything else stays.
    """

    kind = _Undeleting


@bug("rebuilding_streams_are_not_there_yet")
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


@bug("commits_apply_their_change")
class ForgetsTheBrokersEpoch(_Alters):
    """Loses the broker's own epoch when a manifest is stored.

    A column that was added to the type, and not to the table.
    """

    def altered(self, manifest: Manifest) -> Manifest:
        return replace(manifest, source_epoch=0)


@bug("commits_apply_their_change")
class SignsForTheWriter(ObjectStoreOffloader):
    """Records the stream's writer as the author of every commit.

    A guest's trim then looks like the writer's own.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if base is not None:
            committer = base.writer
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("manifests_are_fresh")
class CachesManifests(ObjectStoreOffloader):
    """Returns the manifest that it loaded or committed last, although others have committed since.

    Only its own commits renew the cache.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.cached: dict[str, Manifest] = {}

    async def load_manifest(self, stream: str) -> Manifest:
        if stream not in self.cached:
            self.cached[stream] = await super().load_manifest(stream)
        return self.cached[stream]

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        self.cached.pop(stream, None)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("manifests_are_fresh")
class RemembersAbsence(ObjectStoreOffloader):
    """Caches that a stream was absent.

    The cache renews only found entries, so an absence stays for ever.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.absent: set[str] = set()

    async def load_manifest(self, stream: str) -> Manifest:
        if stream in self.absent:
            raise NotOffloaded(f"there is no stream {stream!r}")
        try:
            return await super().load_manifest(stream)
        except NotOffloaded:
            self.absent.add(stream)
            raise


@bug("manifests_are_fresh")
class CachesTheStreams(ObjectStoreOffloader):
    """Always lists the streams of its first listing.

    A listing is expensive, and streams are few.
    """

    listed: list[str] | None = None

    async def streams(self) -> list[str]:
        if self.listed is None:
            self.listed = await super().streams()
        return self.listed


@bug("bases_may_be_old")
class InsistsOnTheNewestBase(ObjectStoreOffloader):
    """Refuses a change whose `base` is not the newest manifest.

    Optimistic locking by version, which leaves the second try to the caller.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if base is not None:
            newest = await self.log(stream).load_newest()
            if newest is not None and newest.version != base.version:
                raise Conflict(f"version {base.version} is not {newest.version}")
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("repeated_commits_return_the_newest")
class ReturnsWhatItReturned(ObjectStoreOffloader):
    """Answers a repeated change with the manifest of the first time.

    The answer is stored under an idempotency key.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.answers: list[tuple[Change, Manifest]] = []

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        for sent, answer in self.answers:
            if sent is change:
                return answer
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        self.answers.append((change, manifest))
        return manifest


@bug("trimmed_commits_are_unknown")
class TakesTheTrimmedForCommitted(ObjectStoreOffloader):
    """Reports that a commit is in because its offsets are below the stream's first offset.

    Nobody can know this any more, because another writer's fragments may have been there.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        try:
            return await super().commit_manifest(stream, change, base=base, committer=committer)
        except OutcomeUnknown:
            return await self.load_manifest(stream)


@bug("refusals_tell_their_cause")
class TakesAGapForARival(ObjectStoreOffloader):
    """Refuses a gap as a `Conflict`.

    One error covers every change that does not fit, so a caller repeats for ever what cannot succeed.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        try:
            return await super().commit_manifest(stream, change, base=base, committer=committer)
        except Misuse as error:
            raise Conflict(str(error)) from error


@bug("refusals_tell_their_cause")
class ClosesGaps(ObjectStoreOffloader):
    """Moves records that are appended beyond the end to the end.

    It uses its own serial number instead of the given offset.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Append) and change.entries and base is not None:
            newest = await self.load_manifest(stream)
            gap = change.entries[0].first_offset - newest.next_offset
            if gap > 0:
                entries = [replace(each, first_offset=each.first_offset - gap) for each in change.entries]
                change = replace(change, entries=entries)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("refusals_tell_their_cause")
class DeletesWhatIsInUse(ObjectStoreOffloader):
    """Deletes a stream that is in use, although only an unused one may be deleted.

    The condition is checked before the transaction, if the caller remembers it.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Delete):
            change = replace(change, unused_by=frozenset())
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("cancelled_commits_hinder_nobody")
class StaysBusyAfterCancellation(ObjectStoreOffloader):
    """Refuses every commit after one that was cancelled.

    `except Exception` releases the lock, and a cancellation is not an `Exception`.
    """

    is_busy = False

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if self.is_busy:
            raise TryAgain("another commit is on its way")
        self.is_busy = True
        try:
            await asyncio.sleep(0)
            manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        except Exception:
            self.is_busy = False
            raise
        self.is_busy = False
        return manifest


@bug("changes_are_of_their_incarnation")
class DeletesByName(ObjectStoreOffloader):
    """Deletes a stream by its name, even if another incarnation was meant.

    A deletion is repeated after a lost reply, and deletes the stream that was begun since.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Delete):
            newest = await self.log(stream).load_newest()
            if newest is not None:
                change = replace(change, incarnation=newest.incarnation)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("manifests_hold_many_attempts")
class LoadsOnePageOfAttempts(_Alters):
    """Loads only the first hundred running attempts.

    The query has a limit that was meant for a screen.
    """

    def altered(self, manifest: Manifest) -> Manifest:
        return replace(manifest, running=manifest.running[:100])


# Fencing


@bug("claims_fence")
class NeverFences(ObjectStoreOffloader):
    """Lets every writer write.

    It relies on a single leader, but a stalled one may still exist.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if base is not None and hasattr(change, "writer") and not isinstance(change, Claim):
            base = await self.load_manifest(stream)
            change = replace(change, writer=base.writer)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


class _SameEpoch(Claim):
    def apply(self, base: Manifest | None) -> Manifest:
        changed = super().apply(base)
        return changed if base is None else replace(changed, epoch=base.epoch)


@bug("claims_fence")
class KeepsTheEpoch(_Reclaims):
    """Lets a claim keep the epoch of the previous claim.

    It uses the broker's epoch, which does not change if a process restarts on the same machine.
    """

    kind = _SameEpoch


class _AnyClaim(Claim):
    async def verdict(self, tree: Tree) -> CommitVerdict:
        return CommitVerdict.IN


@bug("claims_fence_at_once")
class TakesAnyClaimForItsOwn(_Reclaims):
    """Treats a stream as its own because somebody claimed it.

    The lock exists, and nobody checks who holds it.
    """

    kind = _AnyClaim


class _AnyEpoch(Claim):
    def apply(self, base: Manifest | None) -> Manifest:
        return super().apply(None if base is None else replace(base, source_epoch=0))


@bug("claims_fence_by_the_brokers_own_epoch")
class IgnoresTheBrokersEpoch(_Reclaims):
    """Lets a deposed leader claim.

    The last claim wins, and a leader that was cut off comes last.
    """

    kind = _AnyEpoch


class _FirstEpoch(Claim):
    def apply(self, base: Manifest | None) -> Manifest:
        changed = super().apply(base)
        return changed if base is None or base.state is StreamState.LIVE else replace(changed, epoch=1)


@bug("epochs_never_fall")
class CountsEpochsByLife(_Reclaims):
    """Restarts the epochs of a stream when the stream is begun again.

    The row is deleted together with its counter, so a writer that slept may outrank the new one.
    """

    kind = _FirstEpoch


@bug("jobs_outlive_claims")
class DropsJobsWithTheWriter(ObjectStoreOffloader):
    """Drops every attempt with a claim, including those of jobs.

    Every attempt that was running is taken for the remains of a crash.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        if isinstance(change, Claim) and manifest.running:
            abort = Abort(attempts=frozenset(each.attempt for each in manifest.running))
            return await super().commit_manifest(stream, abort, base=manifest, committer=committer)
        return manifest


# Streams


@bug("streams_come_out_as_they_went_in")
class ForgetsTheLastChunk(ByVerbs):
    """Leaves out the last chunk of each ledger.

    A loop runs over pairs of offsets, and the last one has no successor.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Headless.around(await super().read_offloaded(*args, **kwargs))


class _Headless(_Around):
    async def table(self) -> ChunkTable:
        return (await super().table())[:-1]


class _OneOff(Tree):
    async def first_since(self, timestamp_ms: int) -> Entry | None:
        found = await super().first_since(timestamp_ms)
        return found and await self.find(found.next_offset)


@bug("streams_are_found_by_time")
class IsOneFragmentOff(ByVerbs):
    """Finds the fragment behind the right one for a time.

    A binary search for the first fragment that begins then, instead of the first that has not ended.
    """

    def tree(self, manifest: Manifest) -> Tree:
        return _OneOff(manifest, self.load_group)


@bug("streams_are_listed_by_name")
class FoldsNames(ObjectStoreOffloader):
    """Lists streams in lower case.

    Names are changed to fit a folder, and the original is lost.
    """

    async def streams(self) -> list[str]:
        return sorted(name.lower() for name in await super().streams())


@bug("streams_are_listed_by_name")
class KeepsOneManifest(ObjectStoreOffloader):
    """Returns the manifest that it loaded last, for any stream.

    The cache has one slot and no key.
    """

    loaded: Manifest | None = None

    async def load_manifest(self, stream: str) -> Manifest:
        self.loaded = self.loaded or await super().load_manifest(stream)
        return self.loaded


@bug("streams_are_listed_by_name")
class NormalizesNames(ObjectStoreOffloader):
    """Lists names in another Unicode form than the original.

    A file system, or a database's collation, that normalizes.
    """

    async def streams(self) -> list[str]:
        return sorted(unicodedata.normalize("NFC", name) for name in await super().streams())


@bug("streams_are_listed_by_name")
class CutsLongNames(ObjectStoreOffloader):
    """Lists the first 255 characters of each name.

    `VARCHAR(255)` in a database that cuts longer values.
    """

    async def streams(self) -> list[str]:
        return [name[:255] for name in await super().streams()]


@bug("streams_are_listed_by_name")
class OrdersByUtf16(ObjectStoreOffloader):
    """Lists streams in the order of their names in UTF-16.

    Java and JavaScript compare text in this way; the order differs beyond the first 65,536 characters.
    """

    async def streams(self) -> list[str]:
        return sorted(await super().streams(), key=lambda name: name.encode("utf-16-be"))


@bug("streams_do_not_mix")
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


@bug("streams_are_all_listed")
class ListsOnePage(ObjectStoreOffloader):
    """Lists the first hundred streams.

    One page of a listing is taken for the whole.
    """

    async def streams(self) -> list[str]:
        return (await super().streams())[:100]


@bug("streams_are_all_listed")
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


# Manners


@bug("opening_stores_nothing_twice")
class SignsEachOpening(ObjectStoreOffloader):
    """Stores something at each opening.

    Reading leaves a lock file or an owner's mark, which is never removed.
    """

    async def open(self, *, create: bool = False) -> None:
        await super().open(create=create)
        if create:
            await self.data.put(f"tier.opened.{uuid4()}", Body.of(b""))


@bug("closing_is_idempotent")
class FailsToCloseAgain(ObjectStoreOffloader):
    """Fails when it is closed for the second time.

    A cleanup runs twice on a pool that is already closed.
    """

    closed = False

    async def aclose(self) -> None:
        if self.closed:
            raise RuntimeError("the pool is closed")
        self.closed = True
        await super().aclose()


@bug("closing_leaves_others_alone")
class ClosesForAll(ObjectStoreOffloader):
    """Closes resources that other offloaders of the place use too.

    The pool of connections belongs to the module.
    """

    closed: set[int] = set()

    @property
    def _pool(self) -> int:
        store = self.data
        while isinstance(store, StoreDecorator):
            store = store.inner
        assert isinstance(store, MemoryStore)
        return id(store.objects)

    async def aclose(self) -> None:
        self.closed.add(self._pool)
        await super().aclose()

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        if self._pool in self.closed:
            raise RuntimeError("the pool is closed")
        return await super().read_offloaded(*args, **kwargs)


@bug("the_url_carries_no_credentials")
class TellsTheToken(ObjectStoreOffloader):
    """Shows an access token in its url.

    A signed URL or a connection string is kept unchanged.
    """

    @property
    def url(self) -> str:
        return f"{super().url}?sig=c2VjcmV0"


@bug("calls_do_not_hold_up_the_loop")
class SleepsOnTheLoop(ObjectStoreOffloader):
    """Waits for its database on the event loop's own thread.

    A driver that blocks, called from an `async def`.
    """

    async def load_manifest(self, stream: str) -> Manifest:
        time.sleep(0.3)  # noqa: ASYNC251 - this is the bug
        return await super().load_manifest(stream)


@bug("opening_is_idempotent")
class ResetsWhatItOpens(ObjectStoreOffloader):
    """Empties the tier whenever somebody opens it with `create`.

    `CREATE OR REPLACE TABLE`.
    """

    was_opened = False

    async def open(self, *, create: bool = False) -> None:
        await super().open(create=create)
        if create and not self.was_opened:
            roots = [row.key async for row in self.data.list("") if "/root." in row.key]
            await self.data.delete(roots)
        self.was_opened = True


@bug("opening_makes_nothing_unasked")
class MakesAnyPlaceATier(ObjectStoreOffloader):
    """Makes any opened place a tier.

    A wrong URL makes an empty tier by accident.
    """

    async def open(self, *, create: bool = False) -> None:
        await super().open(create=True)


@bug("openings_may_come_at_once")
class LosesTheRaceToOpen(ObjectStoreOffloader):
    """Fails to open a tier that another process makes at the same time.

    It finds nothing, creates, and then treats the existing tier as an error.
    """

    async def open(self, *, create: bool = False) -> None:
        try:
            await super().open()
        except NotOffloaded:
            if not create:
                raise
            await super().open(create=True)
            try:
                await self.data.create("tier.table", b"")
            except AlreadyExists as error:
                raise Conflict("the table exists") from error


# Doors and edges


@bug("reads_are_verbatim_at_every_door")
class OpensByRow(ObjectStoreOffloader):
    """Opens the fragment in the same row of the first view that it made.

    A list of open files is kept by index, and the rows of a view that is cut begin at 0 again.
    """

    def view_of(self, committed: CommittedStream) -> Any:
        view, known = super().view_of(committed), vars(self).setdefault("known", {})
        rows = known.setdefault(committed.version, entries_of_rows(committed.entries))
        own, opened = entries_of_rows(committed.entries), view.open

        async def by_row(entry: Entry) -> ReadHandle:
            return await opened(rows[own.index(entry)])

        shown = MagicMock(wraps=view)
        shown.open, shown.walk, shown.committed = by_row, view.walk, committed
        return shown


@bug("newer_views_tell_every_change")
class NewerIsLonger(ObjectStoreOffloader):
    """Sees a newer view only if the stream's end has moved.

    A reader waits for more records, and the cheapest question is where they end.
    """

    async def newer_view(self, known: CommittedStream) -> Any:
        newer = await super().newer_view(known)
        return newer if newer and newer.committed.next_offset > known.next_offset else None


@bug("newer_views_tell_every_change")
class NewerByTheName(ObjectStoreOffloader):
    """Takes a stream that was deleted and begun again for the one that is known.

    Only the version is compared, and that is higher in the next life.
    """

    async def newer_view(self, known: CommittedStream) -> Any:
        newest = await self.view(known.stream)
        return newest if newest.committed.version > known.version else None


@bug("ended_offloads_read_no_more")
class GoesOnInTheBackground(ObjectStoreOffloader):
    """Goes on with an offload whose caller was cancelled.

    `asyncio.shield` was meant to protect a single request.
    """

    async def offload(self, *args: Any, **options: Any) -> Receipt:
        return await asyncio.shield(asyncio.ensure_future(super().offload(*args, **options)))


@bug("numbers_that_nothing_has_find_nothing")
class WrapsOffsets(ObjectStoreOffloader):
    """Takes the offsets of a read modulo 2^64.

    They pass through an unsigned integer of C on their way to an index.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        wrapped = None if only is None else range(only.start % 2**64, only.stop % 2**64)
        return await super().read_offloaded(attempt, manifest=manifest, only=wrapped)


@bug("ledger_ids_are_exact")
class KeepsLedgersSigned(_Alters):
    """Stores the id of the last ledger as a signed number of 64 bits.

    `BIGINT` is the largest integer of most databases.
    """

    def altered(self, manifest: Manifest) -> Manifest:
        return replace(manifest, last_ledger_id=min(manifest.last_ledger_id, 2**63 - 1))
