"""Bugs of reads: bytes, ranges of offsets, and the manifest by which an attempt is read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final
from uuid import UUID

import numpy as np

from offload.commit.guest import Trim
from offload.commit.writer import Append
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import NotOffloaded, TryAgain
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload.read.handles import CutHandle
from offload_conformance.bugs.offloader.shared import Around
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
from offload_conformance.bugs.sound.table import FragmentRow, Table, TableHandle
from offload_conformance.bugs.sound.views import opened


class Tidied(Around):
    """A handle that changes some bytes."""

    async def read(self, rows: ChunkTable) -> bytes:
        return (await super().read(rows)).replace(b".", b" ")


@bug("contract/reads_are_verbatim")
class Tidies(ObjectStoreOffloader):
    """Returns bytes that differ slightly from the original ones.

    Records are decoded and encoded again on the way, trimmed, or recompressed.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return Tidied.around(await super().read_offloaded(*args, **kwargs))


@bug("contract/reads_are_verbatim_when_narrowed")
class NarrowsTooFar(ObjectStoreOffloader):
    """Leaves out the last offset of a narrowed read.

    An inclusive end taken for an exclusive one.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        narrowed = None if only is None else range(only.start, only.stop - 1)
        return await super().read_offloaded(attempt, manifest=manifest, only=narrowed)


@bug("contract/absence_is_an_error")
class ReturnsNone(ObjectStoreOffloader):
    """Returns None if nothing was committed.

    This avoids an exception here, but the caller's next line fails.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        try:
            return await super().read_offloaded(*args, **kwargs)
        except NotOffloaded:
            return None  # type: ignore[return-value]  # the bug


@bug("contract/trimmed_offsets_are_gone")
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


@bug("contract/snapshots_do_not_move")
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
        handle.offloader = self  # type: ignore[attr-defined]  # `around` returns its own class
        return handle


class Live(Around):
    """A handle that ends where the stream ends now."""

    offloader: LiveHandles

    @property
    def next_offset(self) -> int:
        return max(self._next_offset, self.offloader.newest_offset)


class Shortened(Around):
    """A handle that begins one offset later."""

    @property
    def first_offset(self) -> int:
        return super().first_offset + 1

    async def table(self) -> ChunkTable:
        return await self._whole.table()


@bug("contract/chunks_are_whole")
class BeginsWithinAChunk(ObjectStoreOffloader):
    """Returns handles that begin behind the first record of a chunk.

    A reader's offset is taken for the beginning of the handle's range.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return Shortened.around(await super().read_offloaded(*args, **kwargs))


class _Page(Around):
    async def table(self) -> ChunkTable:
        return (await super().table())[:1000]


@bug("contract/reads_are_verbatim")
class ReadsOnePage(ObjectStoreOffloader):
    """Reads back the first thousand chunks of an attempt.

    A query has a limit, and nobody requests the next page.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Page.around(await super().read_offloaded(*args, **kwargs))


class _Buffer(Around):
    async def read(self, rows: ChunkTable) -> bytes:
        return (await super().read(rows))[: 4 * 1024 * 1024]


@bug("contract/reads_are_verbatim")
class FillsOneBuffer(ObjectStoreOffloader):
    """Returns at most one buffer of a read.

    There is one `recv` instead of a loop, and tests have small chunks.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Buffer.around(await super().read_offloaded(*args, **kwargs))


class _Cursor(Around):
    rows: ChunkTable

    async def read(self, rows: ChunkTable) -> bytes:
        self.rows = rows
        await asyncio.sleep(0)
        return await super().read(self.rows)


@bug("contract/reads_may_run_at_once")
class ReadsByOneCursor(ObjectStoreOffloader):
    """Keeps the read position in the handle.

    `seek`, then `read`: another read comes between the two.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Cursor.around(await super().read_offloaded(*args, **kwargs))


@bug("contract/reads_go_by_the_manifest_given")
class ReadsByTheNewest(ObjectStoreOffloader):
    """Reads by the newest manifest, and ignores the given one.

    The parameter was added for other backends, and is not used.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        return await super().read_offloaded(attempt, only=only)


CURSORS: Final = 8


class _OneOfEight(Around):
    open_cursors: list[_OneOfEight]

    async def read(self, rows: ChunkTable) -> Any:
        if self not in self.open_cursors[-CURSORS:]:
            raise TryAgain(f"{self.where}: the cursor is closed")
        return await super().read(rows)


@bug("contract/reads_may_run_at_once")
class KeepsEightCursors(ObjectStoreOffloader):
    """Closes the oldest handle when a ninth one is opened.

    Each handle is a cursor of the server, which limits their number. Readers of many fragments lose some.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        cursors: list[_OneOfEight] = self.__dict__.setdefault("cursors", [])
        cursor = _OneOfEight.around(await super().read_offloaded(*args, **kwargs))
        assert isinstance(cursor, _OneOfEight)
        cursor.open_cursors = cursors
        cursors.append(cursor)
        return cursor


async def _in_two_commits(open_: OpenClient) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    attempt, receipt = await uploaded(tier, writer, ledger(3, 6, size=30_000))
    uid = writer.manifest.writer
    assert len(receipt.entries) > 1
    for entries, finished in ((receipt.entries[:1], ()), (receipt.entries[1:], (attempt.uid,))):
        change = Append(writer=uid, entries=entries, finished=frozenset(finished))
        manifest = await tier.commit_manifest("s", change, base=None, committer=uid)
    assert manifest.next_offset == 9


@bug("contract/reads_go_by_the_manifest_given", _in_two_commits)
class FirstCommitEndsTheAttempt(Table):
    """An attempt ends with the first commit that names a fragment of it.

    Breaks "Running: an attempt that is announced, and neither committed [completely] nor dropped yet". Costs
    a ledger that is committed in pieces: the second piece is refused.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        named = {entry.attempt for entry in change.entries} if isinstance(change, Append) else set()
        return replace(
            manifest, running=tuple(each for each in manifest.running if each.attempt not in named)
        )


async def _only_of_any_range(open_: OpenClient) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0, 6, size=30_000))
    entries = await entries_of(tier, writer.manifest)
    assert len(entries) > 1
    for only in (range(-5, 1), range(2**70), range(-(2**70), 2**70)):
        handle = await tier.read_offloaded(attempt_of("s", entries[0]), only=only)
        assert handle.first_offset == 0, only


@bug("contract/reads_are_verbatim_when_narrowed", _only_of_any_range)
class BoundsOf64Bits(Table):
    """The bounds of `only` are parameters of 64 bits, and others cannot be bound.

    Breaks "`only` narrows the handle to the fragments that hold some of these offsets". Costs a caller that
    asks for all before an offset, or all behind one.
    """

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> Any:
        if only is not None:
            np.array([only.start, only.stop], dtype=np.uint64)
        return await super().entries_of(attempt, manifest, only)


async def _rest_of_an_attempt(open_: OpenClient) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0, 9, size=30_000))
    entries = await entries_of(tier, writer.manifest)
    await trimmed(tier, "s", entries[1].first_offset)
    handle = await tier.read_offloaded(attempt_of("s", entries[0]))
    assert handle.first_offset == entries[1].first_offset


@bug("contract/reads_go_by_the_manifest_given", _rest_of_an_attempt)
class AnyLossIsAHole(Table):
    """An attempt is read only if all of its fragments are named: one that was trimmed is taken for a hole.

    Breaks "Return a handle on the fragments of `attempt` that `manifest` names". Costs a reader after a trim,
    which stops at the ledger that was cut.
    """

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> Any:
        found = await super().entries_of(attempt, manifest, only)
        if only is None and len(found) < len(self.of_attempt(attempt)):
            raise NotOffloaded(f"attempt {attempt.uid} has lost fragments")
        return found


class Handled(Table):
    """A base class without a mistake, for tables with handles of another class."""

    HANDLE: type[TableHandle] = TableHandle

    def handle(self, parts: Sequence[FragmentRow], where: str) -> ReadHandle:
        return self.HANDLE(self, parts, where)


async def _opened(tier: Any, chunks: int = 8) -> ReadHandle:
    """Return a handle on an attempt of several fragments."""
    writer = await copied(tier, "s", ledger(0, chunks, size=40_000))
    [first, *_] = await entries_of(tier, writer.manifest)
    handle: ReadHandle = await tier.read_offloaded(attempt_of("s", first))
    return handle


async def _tables_do_not_move(open_: OpenClient) -> None:
    handle = await _opened(open_())
    before = (await handle.table()).copy()
    await handle.read((await handle.table())[2:4])
    assert np.array_equal(await handle.table(), before)


class ShiftedHandle(TableHandle):
    """A handle whose reads change its table."""

    shared: ChunkTable | None = None

    async def table(self) -> ChunkTable:
        if self.shared is None:
            self.shared = await super().table()
        return self.shared

    async def read(self, rows: ChunkTable) -> bytes:
        data = await super().read(rows)
        if rows.base is not None and rows.flags.writeable:
            rows["position"] -= rows["position"][0]
        return data


@bug("contract/reads_are_verbatim", _tables_do_not_move)
class ReadsMoveTheTable(Handled):
    """A read makes the positions of its rows relative to the first one, in the table that it was given.

    Breaks "The range, the table and the bytes behind it are the same at every call". Costs the second read of
    the same rows: it returns other chunks, or raises `Corrupt`.
    """

    HANDLE = ShiftedHandle


async def _two_reads_at_once(open_: OpenClient) -> None:
    handle = await _opened(open_())
    table = await handle.table()
    chunks = chunks_of(0, 8, size=40_000)
    one, two = await asyncio.gather(handle.read(table[:4]), handle.read(table[4:]))
    assert (one, two) == (b"".join(chunks[:4]), b"".join(chunks[4:]))


class ScratchHandle(TableHandle):
    """A handle that gathers its pieces in the offloader."""

    async def read(self, rows: ChunkTable) -> bytes:
        scratch = self.tier.__dict__["scratch"] = bytearray()
        async for piece in self.pieces(rows):
            self.tier.__dict__["scratch"] += piece
        del scratch
        return bytes(self.tier.__dict__["scratch"])


@bug("contract/reads_may_run_at_once", _two_reads_at_once)
class OneScratch(Handled):
    """All handles of an offloader gather the pieces of a read in one buffer, which each read clears.

    Breaks "its methods may be called at the same time", and "Reads are verbatim". Costs two readers at once
    the bytes of both.
    """

    HANDLE = ScratchHandle


async def _closed_twice(open_: OpenClient) -> None:
    handle = await _opened(open_())
    await handle.aclose()
    await handle.aclose()


class OnceHandle(TableHandle):
    """A handle that is closed once."""

    async def aclose(self) -> None:
        del self.parts


@bug("contract/snapshots_do_not_move", _closed_twice)
class ClosedByTheFirstCall(Handled):
    """A handle gives its rows back when it is closed, and the second time there are none.

    Breaks "Release files and connections. Idempotent". Costs a caller that closes in a `finally` as well: the
    error hides the one before it.
    """

    HANDLE = OnceHandle


async def _first_rows_again(open_: OpenClient) -> None:
    handle = await _opened(open_())
    table = await handle.table()
    chunks = chunks_of(0, 8, size=40_000)
    assert await handle.read(table[6:]) == b"".join(chunks[6:])
    assert await handle.read(table[:2]) == b"".join(chunks[:2])


class ForwardHandle(TableHandle):
    """A handle on a tape."""

    at = 0

    async def read(self, rows: ChunkTable) -> bytes:
        start = int(rows["position"][0])
        if start < self.at:
            raise TryAgain(f"{self.where} is wound back")
        self.at = start
        return await super().read(rows)


@bug("contract/reads_are_verbatim", _first_rows_again)
class TapeIsNotWoundBack(Handled):
    """A handle reads forwards only, and refuses rows before those that it has read.

    Breaks "Return the stored chunks of `rows`, a slice of the table": any slice, at any time. Costs a reader
    that seeks back, for which trying again never helps.
    """

    HANDLE = ForwardHandle


async def _uncommitted(open_: OpenClient) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    attempt, _ = await uploaded(tier, writer, ledger(3))
    await raises(NotOffloaded, tier.read_offloaded(attempt))


@bug("contract/absence_is_an_error", _uncommitted)
class UncommittedFragmentsAreRead(Table):
    """Fragments are found by their attempt in the table of fragments. The manifest is not consulted.

    Breaks "Reading what was never committed raises `NotOffloaded`": a reader sees data that is deleted later.
    """

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> list[Entry]:
        rows = self.of_attempt(attempt)
        only = range(2**64) if only is None else only
        return [
            row.entry
            for row in rows
            if row.entry.first_offset < only.stop and row.entry.next_offset > only.start
        ]


class _Handles(Table):
    """Opens handles of `HANDLE`."""

    HANDLE: ClassVar[type[TableHandle]] = TableHandle

    def handle(self, parts: Sequence[FragmentRow], where: str) -> ReadHandle:
        return self.HANDLE(self, parts, where)


async def _cancelled_read(open_: OpenClient) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    [entry] = await entries_of(tier, await tier.load_manifest("s"))
    async with asyncio.timeout(5), await tier.read_offloaded(attempt_of("s", entry)) as handle:
        table = await handle.table()
        task = asyncio.create_task(handle.read(table))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert await handle.read(table) == b"".join(chunks_of(0))


class _Locking(TableHandle):
    lock: asyncio.Lock | None = None

    async def read(self, rows: ChunkTable) -> bytes:
        self.lock = self.lock or asyncio.Lock()
        await self.lock.acquire()
        try:
            data = await super().read(rows)
        except Exception:
            self.lock.release()
            raise
        self.lock.release()
        return data


@bug("contract/reads_may_run_at_once", _cancelled_read)
class CancelledReadsKeepTheLock(_Handles):
    """Reads of a handle take turns, and a cancelled read never gives its turn back.

    Breaks "connections return to the pool, and the next call works": a reader that seeks hangs for ever.
    """

    HANDLE = _Locking


async def _only_narrows(open_: OpenClient) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0, 8, size=40_000))
    parts = await entries_of(tier, await tier.load_manifest("s"))
    assert len(parts) > 2
    attempt = attempt_of("s", parts[0])
    for offsets, expected in (
        (range(1), parts[:1]),
        (range(parts[0].next_offset), parts[:1]),
        (range(parts[0].next_offset, parts[1].next_offset), parts[1:2]),
        (range(parts[1].first_offset + 1, parts[1].first_offset + 2), parts[1:2]),
        (range(1, parts[1].first_offset + 1), parts[:2]),
        (range(2**64), parts),
    ):
        handle = await tier.read_offloaded(attempt, only=offsets)
        assert (handle.first_offset, handle.next_offset) == (
            expected[0].first_offset,
            expected[-1].next_offset,
        ), offsets


@bug("contract/reads_are_verbatim_when_narrowed", _only_narrows)
class OnlyEndsOneFurther(Table):
    """`only` is asked of the database with `BETWEEN`, which includes the end.

    Breaks "narrows it to the fragments that hold some of these offsets": one fragment too many is fetched.
    """

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> list[Entry]:
        return await super().entries_of(
            attempt, manifest, None if only is None else range(only.start, only.stop + 1)
        )


@bug("contract/reads_are_verbatim_when_narrowed", _only_narrows)
class OnlyBeginsBehindTheFirst(Table):
    """`only` selects fragments that begin within it, and loses the one that holds its first offset.

    Breaks "narrows it to the fragments that hold some of these offsets": the wanted record is not there.
    """

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> list[Entry]:
        found = await super().entries_of(attempt, manifest, None)
        return found if only is None else [each for each in found if each.first_offset in only]


async def _large_chunks(open_: OpenClient) -> None:
    tier = open_()
    for size in (100, 65_000, 65_535, 65_536, 100_000, 1_100_000):
        stream = f"s{size}"
        await copied(tier, stream, ledger(0, 2, size=size))
        [*entries] = await entries_of(tier, await tier.load_manifest(stream))
        async with await tier.read_offloaded(attempt_of(stream, entries[0])) as handle:
            assert await all_of(handle) == b"".join(chunks_of(0, 2, size=size))


@bug("contract/reads_are_verbatim", _large_chunks)
class ChunksAreCutAt64KiB(Table):
    """The column is a `BLOB` of 65,535 bytes, and the database truncates longer chunks without an error.

    Breaks "What is read back is, chunk for chunk, the bytes that were offloaded", for large chunks.
    """

    async def insert(self, stream: str, row: FragmentRow) -> None:
        await super().insert(stream, replace(row, data=row.data[:65_535] if len(row.rows) == 1 else row.data))


@bug("contract/reads_are_verbatim", _large_chunks)
class ChunksOfAMegabyteAreTooLarge(Table):
    """The service takes items of 1 MB, and a larger chunk raises the service's own error.

    Breaks "Copy every chunk of `handle`": a stream with one large message can never be offloaded.
    """

    async def insert(self, stream: str, row: FragmentRow) -> None:
        if int(row.rows["size_bytes"].max()) > 1_000_000:
            raise ValueError("ItemSizeLimitExceeded")
        await super().insert(stream, row)


async def _no_tier(open_: OpenClient) -> None:
    await raises(NotOffloaded, open_().streams())
    await raises(NotOffloaded, open_().open())
    await raises(NotOffloaded, open_().load_manifest("s"))
    await raises(NotOffloaded, open_().open())


@bug("contract/absence_is_an_error", _no_tier)
class NoTierHasNoStreams(Table):
    """`streams` of a place that is no tier is an empty list.

    Breaks "`NotOffloaded`. So does this method where the place is no tier": a mistyped URL lists as an empty
    tier.
    """

    async def streams(self) -> list[str]:
        return sorted(self.db.roots)


async def _reads_of_any_length(open_: OpenClient) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0, 8))
    [entry] = await entries_of(tier, await tier.load_manifest("s"))
    async with await tier.read_offloaded(attempt_of("s", entry)) as handle:
        table, chunks = await handle.table(), chunks_of(0, 8)
        for start, stop in ((0, 1), (0, 8), (2, 3), (2, 5), (0, 2)):
            assert await handle.read(table[start:stop]) == b"".join(chunks[start:stop])


class _KnowsStarts(CutHandle):
    def __init__(self, whole: ReadHandle) -> None:
        super().__init__(whole, first_offset=whole.first_offset, next_offset=whole.next_offset)
        self.known: dict[int, bytes] = {}

    async def read(self, rows: ChunkTable) -> bytes:
        start = int(rows["position"][0])
        if start not in self.known:
            self.known[start] = await super().read(rows)
        return self.known[start]


@bug("contract/reads_are_verbatim", _reads_of_any_length)
class ReadsAreCachedByStart(MemoryTier):
    """A handle caches reads by their start, regardless of the length.

    Breaks "The stored chunks of `rows`, back to back": the second read gets what the first one asked for.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        return _KnowsStarts(await super().read_offloaded(attempt, manifest=manifest, only=only))


async def _nothing_of_no_offsets(open_: OpenClient) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    [entry] = await entries_of(tier, await tier.load_manifest("s"))
    for only in (range(0), range(3, 9)):
        await raises(NotOffloaded, tier.read_offloaded(attempt_of("s", entry), only=only))


@bug("contract/reads_are_verbatim_when_narrowed", _nothing_of_no_offsets)
class NoOffsetsAreAllOffsets(MemoryTier):
    """`only or None`: a range without offsets is false in Python, and narrows nothing.

    Breaks "narrows it to the fragments that hold some of these offsets": gigabytes are fetched for nothing.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        return await super().read_offloaded(attempt, manifest=manifest, only=only or None)
