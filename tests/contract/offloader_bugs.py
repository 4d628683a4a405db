"""Offloaders that each break one clause of their contract, the way real ones do.

Nothing here is a caricature: each is a shortcut that somebody took somewhere, and everything else about it
works.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID, uuid4

import numpy as np
import numpy.typing as npt
from contract.bugs import Bug, breaks

from offload.errors import AlreadyExists, Conflict, Corrupt, NotOffloaded
from offload.formats.chunk import ChunkTable
from offload.formats.keys import StreamKeys
from offload.formats.manifest import Entry, Manifest, Running, State
from offload.manifest.changes import Append, Change, Claim, Delete, Trim, Verdict
from offload.manifest.tree import Tree
from offload.offloader import Attempt, CutHandle, LedgerOffloader, Leftover, ReadHandle, Receipt
from offload.store.memory import MemoryStore
from offload.store.port import Body, ObjectStore, Span, Suffix
from offload.store.wrap import StoreDecorator
from offload.tier.fragments import FragmentHandle
from offload.tier.object_store_offloader import ObjectStoreOffloader

OFFLOADER_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=OFFLOADER_BUGS)


class _Around(CutHandle):
    @classmethod
    def around(cls, handle: ReadHandle) -> _Around:
        return cls(handle, first_offset=handle.first_offset, next_offset=handle.next_offset)

    async def aclose(self) -> None:
        await self._whole.aclose()


class ByVerbs(ObjectStoreOffloader):
    """Reads streams by `tree` and `read_offloaded`, as an offloader that has no views of its own."""

    view_of = LedgerOffloader.view_of  # type: ignore[assignment]


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
    """Stores equal bytes once, whoever's they are.

    Deduplication by content: the last one to delete deletes for all.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(Deduplicating(store))


@bug("attempts_are_disjoint")
class DeletesTheLedger(ObjectStoreOffloader):
    """Deletes every attempt at the same ledger.

    A delete by the beginning of the name, and the attempt stands at the name's end.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        keys = StreamKeys(attempt.stream)
        found = {
            key: keys.parse_fragment(key) for key in [row.key async for row in self.store.list(keys.data)]
        }
        offsets = {parsed[0] for parsed in found.values() if parsed and parsed[1] == attempt.uid}
        await super().delete_offloaded(attempt)
        await self.store.delete([key for key, parsed in found.items() if parsed and parsed[0] in offsets])


@bug("attempts_are_disjoint_between_streams")
class DeletesInAllStreams(ObjectStoreOffloader):
    """Deletes what other streams stored at the same offset.

    Data of all streams side by side, and a delete that forgets one column of the key.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        rows = [row.key async for row in self.store.list("")]
        names = {key.rpartition("/")[2].split(".")[0] for key in rows if str(attempt.uid) in key}
        await super().delete_offloaded(attempt)
        fragments = [key for key in rows if key.endswith(".fragment")]
        await self.store.delete([key for key in fragments if key.rpartition("/")[2].split(".")[0] in names])


@bug("prepared_before_uploaded")
class UploadsUnprepared(ObjectStoreOffloader):
    """Uploads an attempt that was never announced.

    The caller's word is taken for it; a sweep then deletes what a commit is about to name.
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
    """Stores chunks whose checksums do not hold.

    The source is trusted: what its index says must be right.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        def unchecked(raw: bytes, rows: ChunkTable, *, where: str) -> npt.NDArray[np.uint32]:
            return np.zeros(len(rows), np.uint32)

        with patch("offload.tier.fragment_writer.check_source", unchecked):
            return await super().offload(*args, **kwargs)


@bug("offloads_are_checked_for_length")
class TakesAShortReadForTheEnd(ObjectStoreOffloader):
    """Takes a source that ends too early for one that ends there.

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
    """Offers a fragment for adoption of which a part is missing.

    What was going to be uploaded is journaled, and after a crash the journal is taken for the upload.
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


@bug("fragments_are_whole_before_they_are_offered")
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
    """Offers for adoption what was aborted.

    Whatever lies behind the end of the stream is taken for what a crash left.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        keys = StreamKeys(manifest.stream)
        parsed = [keys.parse_fragment(row.key) async for row in self.store.list(keys.data)]
        running = tuple(
            Running(attempt=found[1], ledger_id=found[0], epoch=1, writer=uuid4())
            for found in parsed
            if found and not manifest.runs(found[1])
        )
        return await super().leftovers(replace(manifest, running=(*manifest.running, *running)))


@bug("leftovers_leave_no_hole")
class OffersWhatLiesBehindAHole(ObjectStoreOffloader):
    """Offers for adoption what does not continue the stream.

    Every complete fragment counts, as it does where a broker asks for its own back.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        keys = StreamKeys(manifest.stream)
        parsed = [keys.parse_fragment(row.key) async for row in self.store.list(keys.data)]
        return [
            leftover
            for found in parsed
            if found
            for leftover in await super(OffersWhatLiesBehindAHole, self).leftovers(
                replace(manifest, next_offset=found[0])
            )
        ]


@bug("stored_bytes_are_counted")
class CountsNothing(ObjectStoreOffloader):
    """Says that it stored nothing.

    A number that only a report shows, so that nobody misses it.
    """

    @property
    def put_size_bytes(self) -> int:
        return 0


@bug("deletion_is_idempotent")
class InsistsOnPresence(ObjectStoreOffloader):
    """Fails to delete what is gone.

    A cleanup that was interrupted can then never be finished.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        if not [row async for row in self.store.list("") if str(attempt.uid) in row.key]:
            raise NotOffloaded(f"there is no attempt {attempt.uid}")
        await super().delete_offloaded(attempt)


@bug("deletion_spares_the_committed")
class DeletesTheCommitted(ObjectStoreOffloader):
    """Deletes an attempt that the manifest names.

    It removes what it is told to, and asks no manifest.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        await self.store.delete([row.key async for row in self.store.list("") if str(attempt.uid) in row.key])


# Reads


class Tidied(_Around):
    async def read(self, rows: ChunkTable) -> bytes:
        return (await super().read(rows)).replace(b".", b" ")


@bug("reads_are_verbatim")
class Tidies(ObjectStoreOffloader):
    """Hands out bytes that are nearly those that came in.

    Records decoded and encoded anew on the way, trimmed, or recompressed.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return Tidied.around(await super().read_offloaded(*args, **kwargs))


@bug("reads_are_verbatim_when_narrowed")
class NarrowsTooFar(ObjectStoreOffloader):
    """Leaves out the last of the offsets to which a read is narrowed.

    An inclusive end taken for an exclusive one.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        narrowed = None if only is None else range(only.start, only.stop - 1)
        return await super().read_offloaded(attempt, manifest=manifest, only=narrowed)


@bug("absence_is_an_error")
class ReturnsNone(ObjectStoreOffloader):
    """Returns None where nothing was committed.

    Meant to spare the caller an exception; the next line fails elsewhere.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        try:
            return await super().read_offloaded(*args, **kwargs)
        except NotOffloaded:
            return None  # type: ignore[return-value]


@bug("damage_is_an_error")
class ChecksNothingItReads(ObjectStoreOffloader):
    """Hands out stored bytes without a look at their checksums.

    The store has checksums of its own, it is said; they do not cover what a proxy or a person did.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Unchecked.around(await super().read_offloaded(*args, **kwargs))


class _Unchecked(_Around):
    async def read(self, rows: ChunkTable) -> bytes:
        with patch.object(FragmentHandle, "_check", lambda _, raw, **__: raw):
            return await super().read(rows)


@bug("streams_do_not_end_at_damage")
class EndsAtDamage(ByVerbs):
    """Ends a ledger where its bytes stop to hold.

    A broker recovers its own log so, for there a torn end is what a crash leaves; here it is lost data.
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

    Retention is left to the bucket's lifecycle rules: they delete what the manifest goes on to name.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Trim):
            return await self.load_manifest(stream)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("snapshots_do_not_move")
class LiveHandles(ObjectStoreOffloader):
    """Hands out handles that grow with the stream.

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
    """Hands out handles that begin behind the first record of a chunk.

    A reader's offset taken for the handle's range.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return Shortened.around(await super().read_offloaded(*args, **kwargs))


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
    """Commits the part of a change that fits, and then refuses it.

    Rows are checked as they are written, and what was written stays.
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
    """Stores a manifest over that of a rival.

    A put where a create was needed: the last one to write wins.
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
    """Takes its own change for committed where a rival's stands.

    `AlreadyExists` is read as a lost reply of one's own, and nobody reads back.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(Swallowing(store))


@bug("history_is_linear_where_changes_exclude_each_other")
class MovesBehindTheWinner(ObjectStoreOffloader):
    """Appends the loser's records behind the winner's, under other offsets.

    Plain appending to whatever is newest: every retry then stores the same records twice.
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

    async def verdict(self, tree: Tree) -> Verdict:
        return Verdict.OUT


@bug("commits_are_idempotent")
class CommitsAgain(ObjectStoreOffloader):
    """Puts a change on top of the newest manifest, even where it is in already.

    A retry without a look at what came of the first try.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if base is not None:
            change, base = Unseen(change), await self.load_manifest(stream)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("commits_are_idempotent_for_every_change")
class DeletesOnce(ObjectStoreOffloader):
    """Fails where a stream that was deleted is deleted once more.

    The second try of a delete whose reply was lost finds nothing, and says so as an error.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Delete):
            await self.load_manifest(stream)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


class _Reclaims(ObjectStoreOffloader):
    """Commits claims of another kind."""

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
        if base is None or base.state is not State.LIVE:
            return changed
        return self._born(version=base.version, epoch=changed.epoch, parent=base.commit_id)


@bug("next_offset_never_falls")
class ClaimsAnew(_Reclaims):
    """Lets a claim begin the stream from nothing.

    `INSERT OR REPLACE` of the stream's row: whoever takes over forgets what is offloaded.
    """

    kind = _Anew


@bug("deleted_streams_are_told")
class DeletesTheTombstone(ObjectStoreOffloader):
    """Removes the whole of a stream that is deleted, its tombstone too.

    A delete by prefix: a writer that slept meanwhile brings the old history back.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        if isinstance(change, Delete):
            below = StreamKeys(stream).anchor.rpartition("/")[0]
            await self.store.delete([row.key async for row in self.store.list(f"{below}/")])
        return manifest


class _Undeleting(Claim):
    def apply(self, base: Manifest | None) -> Manifest:
        return super().apply(None if base is None else replace(base, state=State.LIVE))


@bug("deleted_streams_begin_anew")
class Undeletes(_Reclaims):
    """Lets a claim of a deleted stream go on with the old one.

    The mark of deletion is taken off the row, and everything else in it stays.
    """

    kind = _Undeleting


@bug("rebuilding_streams_are_not_there_yet")
class ServesWhatIsRebuilt(ObjectStoreOffloader):
    """Serves a stream as empty while it is rebuilt.

    The newest manifest is read, and its state is not looked at: an empty stream seems to have been trimmed.
    """

    async def load_manifest(self, stream: str) -> Manifest:
        await self.open()
        manifest = await self.log(stream).load_newest()
        if manifest is None or manifest.state is not State.REBUILDING:
            return await super().load_manifest(stream)
        return manifest


# Fencing


@bug("claims_fence")
class NeverFences(ObjectStoreOffloader):
    """Lets every writer write.

    It is relied on that there is one leader, and a stalled one is still there.
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
    """Lets a claim keep the epoch of the one before.

    The broker's own epoch is taken: a process that restarts on the same machine has the same.
    """

    kind = _SameEpoch


class _AnyClaim(Claim):
    async def verdict(self, tree: Tree) -> Verdict:
        return Verdict.IN


@bug("claims_fence_at_once")
class TakesAnyClaimForItsOwn(_Reclaims):
    """Takes a stream for claimed because somebody claimed it.

    The lock is there, and nobody looks whose it is.
    """

    kind = _AnyClaim


class _AnyEpoch(Claim):
    def apply(self, base: Manifest | None) -> Manifest:
        return super().apply(None if base is None else replace(base, source_epoch=0))


@bug("claims_fence_by_the_brokers_own_epoch")
class IgnoresTheBrokersEpoch(_Reclaims):
    """Lets a deposed leader claim.

    The last one to come wins, and a leader that was cut off comes last.
    """

    kind = _AnyEpoch


# Streams


@bug("streams_come_out_as_they_went_in")
class ForgetsTheLastChunk(ByVerbs):
    """Leaves the last chunk of each ledger out.

    A loop over pairs of offsets: the last has no successor.
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
    """Leads a time to the fragment behind the right one.

    A binary search for the first fragment that begins then, instead of the first that has not ended.
    """

    def tree(self, manifest: Manifest) -> Tree:
        return _OneOff(manifest, self.load_group)


@bug("streams_are_listed_by_name")
class FoldsNames(ObjectStoreOffloader):
    """Lists streams in lower case.

    Names are made fit for a folder, and the way back is not kept.
    """

    async def streams(self) -> list[str]:
        return sorted(name.lower() for name in await super().streams())


@bug("streams_are_listed_by_name")
class KeepsOneManifest(ObjectStoreOffloader):
    """Hands out the manifest that it loaded last, whichever stream is asked for.

    A cache with room for one, and no key.
    """

    loaded: Manifest | None = None

    async def load_manifest(self, stream: str) -> Manifest:
        self.loaded = self.loaded or await super().load_manifest(stream)
        return self.loaded


# Manners


@bug("opening_is_idempotent")
class SignsEachOpening(ObjectStoreOffloader):
    """Stores something at each opening.

    A lock file, or an owner's mark: reading leaves traces, and they are never removed.
    """

    async def open(self, *, create: bool = False) -> None:
        await super().open(create=create)
        if create:
            await self.store.put(f"tier.opened.{uuid4()}", Body.of(b""))


@bug("closing_is_idempotent")
class FailsToCloseAgain(ObjectStoreOffloader):
    """Fails when it is closed for the second time.

    A pool that is torn down, and a clean-up that runs twice.
    """

    closed = False

    async def aclose(self) -> None:
        if self.closed:
            raise RuntimeError("the pool is closed")
        self.closed = True
        await super().aclose()


@bug("closing_leaves_others_alone")
class ClosesForAll(ObjectStoreOffloader):
    """Closes what other offloaders of the place use too.

    A pool of connections that is the module's.
    """

    closed: set[int] = set()

    @property
    def _pool(self) -> int:
        store = self.store
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

    A signed URL, or a connection string, that was kept as it was given.
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
