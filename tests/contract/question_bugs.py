"""Offloaders that fail one question: of a kind of attempt, a state, a large number, or a second crash."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast
from unittest.mock import MagicMock
from uuid import UUID

from contract.bugs import Bug, breaks
from contract.offloader_bugs import CodedHandles, _Around

from offload.commit.guest import Abort
from offload.commit.rebuild import Fence
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Corrupt, OffloadError, TryAgain
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.chunk_table import WINDOW_SIZE_BYTES, ChunkTable
from offload.model.entry import Entries, Entry
from offload.model.manifest import AttemptKind, CommittedStream, Manifest
from offload.native.offloader import ObjectStoreOffloader

QUESTION_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=QUESTION_BUGS)


def kind_of(attempt: Attempt, manifest: Manifest) -> AttemptKind | None:
    """Return the kind of an attempt that runs."""
    return next((each.kind for each in manifest.running if each.attempt == attempt.uid), None)


@bug("attempts_of_every_kind_are_checked")
class SkipsDamageInCopies(ObjectStoreOffloader):
    """Leaves damaged chunks out of a copy, without an error.

    They were checked when they were first stored, so nobody expects damage.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        copying = super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        try:
            return await copying
        except Corrupt:
            if kind_of(attempt, manifest) is AttemptKind.COPY:
                return Receipt(attempt=attempt, entries=[])
            raise


@bug("attempts_of_every_kind_are_whole")
class CountsCopiesAsFresh(ObjectStoreOffloader):
    """Does not mark the fragments of a copy as copied.

    Copies go the way of fresh data, and nobody passes on what they are for.
    """

    async def offload(self, *args: Any, **options: Any) -> Receipt:
        receipt = await super().offload(*args, **options)
        return replace(receipt, entries=[replace(entry, copied=0) for entry in receipt.entries])


@bug("errors_of_the_source_keep_their_class")
class TakesErrorsForItsOwn(ObjectStoreOffloader):
    """Raises `TryAgain` for every error of the source.

    One `except` around the whole upload, for errors of the store.
    """

    async def offload(self, *args: Any, **options: Any) -> Receipt:
        try:
            return await super().offload(*args, **options)
        except Corrupt:
            raise
        except (OffloadError, OSError) as error:
            raise TryAgain(str(error)) from error


class _Growing(_Around):
    asked = 0

    def windows(self, rows: ChunkTable, *, size_bytes: int = WINDOW_SIZE_BYTES) -> Iterator[ChunkTable]:
        _Growing.asked += 1
        return super().windows(rows, size_bytes=size_bytes * _Growing.asked)


@bug("windows_are_the_same_at_every_call")
class WindowsGrowWithUse(CodedHandles):
    """Cuts the same rows into larger windows at each call.

    A reader that goes on is likely to want more.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _Growing.around(handle)


class _InSeconds(_Around):
    async def modified_ms(self) -> int | None:
        return 1_700_000_000


@bug("times_of_handles_are_in_milliseconds")
class ModifiedInSeconds(CodedHandles):
    """Returns the time of the last write in seconds.

    `st_mtime` is in seconds.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _InSeconds.around(handle)


@bug("attempts_are_disjoint_in_every_bit")
class NamesHalfTheUuid(ObjectStoreOffloader):
    """Overwrites the fragments of an attempt whose UUID begins like that of another one.

    Sixty-four bits are enough for random UUIDs, but those of one batch begin alike.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        receipt = await super().offload(handle, attempt, **options)
        same = [row.key async for row in self.data.list("") if f".{str(attempt.uid)[:18]}" in row.key]
        await self.data.delete([key for key in same if str(attempt.uid) not in key])
        return receipt


@bug("calls_may_come_while_others_wait")
class IsLockedWhileItWrites(ObjectStoreOffloader):
    """Cannot be read while an upload runs.

    `database is locked`: the upload holds a transaction open while it reads its source.
    """

    writes = 0

    async def offload(self, *args: Any, **options: Any) -> Receipt:
        self.writes += 1
        try:
            return await super().offload(*args, **options)
        finally:
            self.writes -= 1

    async def load_manifest(self, stream: str) -> Manifest:
        if self.writes:
            raise RuntimeError("database is locked")
        return await super().load_manifest(stream)


@bug("commits_apply_every_change")
class FencesTheNextVersion(ObjectStoreOffloader):
    """Gives the fence of a rebuild the next version, and not the one that it asks for.

    The version is a counter of the table.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Fence):
            change = replace(change, above=0, jump=1)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("commits_apply_every_change")
class ReadsLargeVersionsAsFloats(ObjectStoreOffloader):
    """Rounds epochs above 2^53.

    JSON, in the hands of a program that reads its numbers as doubles.
    """

    async def load_manifest(self, stream: str) -> Manifest:
        manifest = await super().load_manifest(stream)
        return replace(manifest, epoch=int(float(manifest.epoch)))


@bug("answers_are_those_of_the_entries")
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


@bug("reads_are_of_the_present_life")
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


@bug("every_reader_tells_what_is_not_there")
class NothingNewOfTheAbsent(ObjectStoreOffloader):
    """Says that a stream that never was, or is being rebuilt, has nothing new.

    `except NotOffloaded: return None` in the reader's loop.
    """

    async def newer_view(self, known: CommittedStream) -> Any:
        try:
            return await super().newer_view(known)
        except OffloadError:
            return None


@bug("leftovers_are_of_every_earlier_writer")
class LeftoversOfOneEpoch(ObjectStoreOffloader):
    """Offers only what the writer just before left.

    The epoch is compared with the present one less one, and a second crash hides the first.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        late = {each.attempt for each in manifest.running if each.epoch == manifest.epoch - 1}
        return [each for each in await super().leftovers(manifest) if each.entry.attempt in late]


@bug("leftovers_may_be_many")
class LeftoversByThePage(ObjectStoreOffloader):
    """Offers at most 25 leftovers.

    `LIMIT` in the query, as in the list on a screen.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        return (await super().leftovers(manifest))[:25]


@bug("streams_may_have_many_fragments")
class WalksOnePage(ObjectStoreOffloader):
    """Walks only the first 30 fragments of a stream.

    The query returns a page, and nobody asks for the next one.
    """

    def tree(self, manifest: Manifest) -> Any:
        tree = super().tree(manifest)

        async def walk(offset: int = 0) -> Any:
            left = 30
            async for run in type(tree).walk(tree, offset):
                shown: Entries = run[:left]
                left -= len(shown)
                if len(shown):
                    yield shown

        paged = MagicMock(wraps=tree)
        paged.walk = walk
        return paged


@bug("changes_of_several_authors_are_all_in")
class DropsALateAbort(ObjectStoreOffloader):
    """Takes an abort for done if another change was committed meanwhile.

    `UPDATE ... WHERE version = ?`, and nobody looks at the number of rows.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Abort) and base is not None:
            for _ in range(50):
                await asyncio.sleep(0)
            newest = await self.load_manifest(stream)
            if newest.version > base.version:
                return newest
        return await super().commit_manifest(stream, change, base=base, committer=committer)


class _Ahead(_Around):
    hinted: bytes | None = None

    async def read_on(self, rows: ChunkTable, then: ChunkTable) -> bytes:
        found = bytes(await super().read(rows))
        self.hinted = bytes(await super().read(then[:1])) if len(then) else None
        return found

    async def read(self, rows: ChunkTable) -> bytes:
        hinted, self.hinted = self.hinted, None
        if hinted is not None and len(hinted) == int(rows["size_bytes"].sum()):
            return hinted
        return bytes(await super().read(rows))


@bug("reads_may_come_in_any_order")
class ReadsWhatWasHinted(CodedHandles):
    """Returns the chunk that a reader said it would read next, for any chunk of that size.

    A reply that is kept for the next read, and compared by its length.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _Ahead.around(handle)


@bug("returned_offloads_read_no_more")
class ComparesLater(ObjectStoreOffloader):
    """Reads the ledger once more after `offload` has returned, to compare it.

    A background task, so that the caller need not wait.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        receipt = await super().offload(handle, attempt, **options)
        self.comparing = asyncio.ensure_future(handle.read(await handle.table()))
        return receipt


@bug("fragments_are_those_of_their_entries")
class ReadsWhateverIsThere(ObjectStoreOffloader):
    """Returns another whole fragment in the place of the one that was committed.

    A fragment is checked against its own checksums, and not against the entry that names it.
    """

    stored: Final[list[ReadHandle]] = []

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        self.stored.append(handle)
        return await super().offload(handle, attempt, **options)

    async def read_offloaded(self, *args: Any, **options: Any) -> ReadHandle:
        try:
            return await super().read_offloaded(*args, **options)
        except Corrupt:
            return self.stored[-1]
