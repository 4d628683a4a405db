"""Mistakes of offloaders, of the fourth set: the suite missed them at first."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from uuid import uuid4

import numpy as np
from offload_sqlite_ledger.reading import DATA, SqliteHandle, SqliteView

from newcomers.late import Handle, chunks, writer
from newcomers.ledgers import all_of, raises, trimmed
from newcomers.offloader_late_reads import Viewing
from newcomers.registry import Open, bug
from newcomers.sound import Ledgers
from offload.commit.guest import Delete
from offload.contracts.catalogue import StreamView
from offload.contracts.ledger import ReadHandle
from offload.formats.chunk_writer import build_chunk
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch
from offload.ground.errors import Absent, Conflict, Corrupt, StreamDeleted
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries, Entry
from offload.model.excerpt import of_fragments
from offload.model.manifest import CommittedStream, Manifest
from offload.model.tree import EntryTree
from offload.native.fragment_reader import open_attempt


class Unchecked(SqliteHandle):
    async def unchecked(self, rows: ChunkTable) -> bytes:
        first, last = int(rows["offset"][0]), int(rows["offset"][-1])
        found = await self._database.rows(DATA, self._entry.attempt.bytes, first, last)
        if not found:
            raise Absent(self.where, self._stream)
        return b"".join(data for (data,) in found)


class NeverChecks(Unchecked):
    async def read(self, rows: ChunkTable) -> bytes:
        return await self.unchecked(rows)


class ChecksNoHints(Unchecked):
    async def read_on(self, rows: ChunkTable, then: ChunkTable) -> bytes:
        return await self.unchecked(rows)


async def damaged(tier: Ledgers) -> ReadHandle:
    """Return a handle on three chunks, of which the first is damaged."""
    w = await writer(tier)
    receipt = await w.add(chunks())
    with sqlite3.connect(tier._database.path) as db:
        [(raw,)] = db.execute("SELECT data FROM chunks WHERE offset = 0").fetchall()
        db.execute("UPDATE chunks SET data = ? WHERE offset = 0", (raw[:-1] + bytes([raw[-1] ^ 1]),))
    return await (await tier.view("s")).open(receipt.entries[0])


async def shows_nothing_is_compared(open_: Open) -> None:
    handle = await damaged(open_())
    await raises(Corrupt, all_of(handle))


@bug(shows_nothing_is_compared)
class NothingIsCompared(Viewing):
    """What a handle reads is not compared with the checksums in the table.

    Breaks "`read` returns only chunks whose checksums match": damage reaches the reader as data.
    """

    HANDLE = NeverChecks


async def shows_hints_are_not_checked(open_: Open) -> None:
    handle = await damaged(open_())
    table = await handle.table()
    await raises(Corrupt, handle.read_on(table[:1], table[1:]))


@bug(shows_hints_are_not_checked)
class HintsAreNotChecked(Viewing):
    """Only `read` compares checksums, and a reader that goes on calls `read_on`.

    Breaks "Return what `read` returns": damage reaches whoever reads a stream to its end.
    """

    HANDLE = ChecksNoHints


async def shows_metadata_is_a_time(open_: Open) -> None:
    w = await writer(open_())
    plain = await w.upload(chunks())
    found = await w.upload(chunks(), metadata={"last_timestamp_ms": "7"})
    assert found.entries[0].last_timestamp_ms == plain.entries[0].last_timestamp_ms


@bug(shows_metadata_is_a_time)
class MetadataIsAColumn(Ledgers):
    """The row of a fragment is made of its own facts and of the caller's metadata, in one dictionary.

    Breaks "any text, which is never read back and changes nothing else".
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        receipt = await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        columns = ("first_timestamp_ms", "last_timestamp_ms")
        taken = {name: int(text) for name, text in extra_metadata.items() if name in columns}
        return replace(receipt, entries=[replace(entry, **taken) for entry in receipt.entries])


class Short(SqliteHandle):
    async def table(self) -> ChunkTable:
        table = self._table.copy()
        table["records"] &= 0xFFFF
        return table


def crowded() -> bytes:
    """Return a chunk of 80,000 records in two batches."""
    batch = SubBatch.of([b""] * 40_000, Codec.GZIP)
    return build_chunk([batch, batch], offset=0, timestamp_ms=1, epoch=1)


async def shows_records_in_16_bits(open_: Open) -> None:
    w = await writer(tier := open_())
    receipt = await w.add(crowded())
    handle = await (await tier.view("s")).open(receipt.entries[0])
    assert (await handle.table())["records"].tolist() == [80_000]


@bug(shows_records_in_16_bits)
class RecordsIn16Bits(Viewing):
    """The records of a chunk are counted in 16 bits, as the entries of a chunk are.

    Breaks "one row per chunk of the range": batches have more records than entries.
    """

    HANDLE = Short


class ClosesOnce(SqliteHandle):
    async def aclose(self) -> None:
        del self._table


async def shows_closed_once(open_: Open) -> None:
    w = await writer(tier := open_())
    receipt = await w.add(chunks())
    handle = await (await tier.view("s")).open(receipt.entries[0])
    await handle.aclose()
    await handle.aclose()


@bug(shows_closed_once)
class ClosedOnce(Viewing):
    """A handle that a view has opened forgets its table when it is closed, and fails to forget it again.

    Breaks "Release files and connections. Idempotent." A handle on an attempt has nothing to forget.
    """

    HANDLE = ClosesOnce

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        manifest = manifest or await self.load_manifest(attempt.stream)
        plain = SqliteView(EntryTree(manifest, self.load_group), self._database)
        return await open_attempt(plain, attempt, only)


async def shows_create_cleans_up(open_: Open) -> None:
    w = await writer(tier := open_())
    receipt = await w.upload(chunks())
    await open_().open(create=True)
    await w.commit(w.append(receipt))
    assert await all_of(await tier.read_offloaded(receipt.attempt)) == chunks()


@bug(shows_create_cleans_up)
class CreateCleansUp(Ledgers):
    """`open(create=True)` begins with an empty place: what no manifest names is dropped.

    Breaks "Check that the place is a tier. With `create`, make an empty place a tier": a second process
    starts while the first one uploads, and takes its fragments.
    """

    async def open(self, *, create: bool = False) -> None:
        await super().open(create=create)
        if not create:
            return
        named = set()
        for stream in await self.streams():
            newest = await self._newest(stream)
            assert newest is not None
            named |= {bytes(raw) for raw in newest.entries["attempt"]}
        for (uid,) in await self._database.rows("SELECT uid FROM attempts"):
            if uid not in named:
                await self._database.insert("DELETE FROM chunks WHERE attempt = ?", [(uid,)])


class Dawdling(Handle):
    """A ledger whose reads wait, and are counted."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        self.began, self.goes_on, self.done = asyncio.Event(), asyncio.Event(), 0

    async def read(self, rows: ChunkTable) -> bytes:
        self.began.set()
        await self.goes_on.wait()
        self.done += 1
        return bytes(await super().read(rows))


async def shows_still_copying(open_: Open) -> None:
    w = await writer(tier := open_())
    attempt, source = await w.prepare(), Dawdling(chunks())
    copying = asyncio.ensure_future(tier.offload(source, attempt, manifest=w.manifest, extra_metadata={}))
    await source.began.wait()
    copying.cancel()
    with suppress(asyncio.CancelledError):
        await copying
    await tier.delete_offloaded(attempt)
    source.goes_on.set()
    await asyncio.sleep(0.1)
    assert source.done == 0


@bug(shows_still_copying)
class StillCopying(Ledgers):
    """The fragments are copied by tasks that nobody cancels with the call.

    Breaks "The caller closes `handle`": they read on, and store fragments of an attempt that was deleted.
    """

    async def _insert(self, handle: ReadHandle, table: ChunkTable, attempt: Attempt, *, copied: int) -> Entry:
        return await asyncio.shield(
            asyncio.ensure_future(super()._insert(handle, table, attempt, copied=copied))
        )


async def shows_newer_is_longer(open_: Open) -> None:
    w = await writer(tier := open_())
    for n in range(2):
        await w.add(chunks(1, 2 * n), n)
    known = (await tier.view("s")).committed
    await trimmed(tier, "s", 2)
    newer = await tier.newer_view(known)
    assert newer is not None
    assert newer.committed.first_offset == 2


@bug(shows_newer_is_longer)
class NewerIsLonger(Ledgers):
    """A newer view is one that ends further.

    Breaks "the stream as it is committed now": after a trim or a copy, a reader keeps a view of what is gone.
    """

    async def newer_view(self, known: CommittedStream) -> StreamView | None:
        newer = await super().newer_view(known)
        return newer if newer is not None and newer.committed.next_offset > known.next_offset else None


async def shows_another_life(open_: Open) -> None:
    w = await writer(tier := open_())
    await w.add(chunks(1))
    known = (await tier.view("s")).committed
    await tier.commit_manifest("s", Delete(incarnation=known.incarnation), base=w.manifest, committer=uuid4())
    again = await writer(tier)
    await again.add(chunks(1))
    await raises(StreamDeleted, tier.newer_view(known))


@bug(shows_another_life)
class AnotherLife(Ledgers):
    """A newer view is one with a higher version.

    Breaks "`StreamDeleted` if the stream was begun again since": a reader goes on among other records.
    """

    async def newer_view(self, known: CommittedStream) -> StreamView | None:
        newest = await self.view(known.stream)
        return newest if newest.committed.version > known.version else None


async def shows_cut_is_damaged(open_: Open) -> None:
    w = await writer(tier := open_())
    receipts = [await w.add(chunks(1, 2 * n)) for n in range(3)]
    view = await tier.view("s")
    cut = tier.view_of(of_fragments(view.committed, view.committed.entries[1:2]))
    assert await all_of(await cut.open(receipts[1].entries[0])) == chunks(1, 2)


class Counting(SqliteView):
    async def open(self, entry: Entry) -> ReadHandle:
        newest = await self.tier.load_manifest(self.committed.stream)  # type: ignore[attr-defined]
        if (newest.version, newest.fragments) == (self.committed.version, self.committed.fragments):
            return await super().open(entry)
        if newest.version == self.committed.version:
            raise Corrupt("fragments", self.where, expected=newest.fragments, found=self.committed.fragments)
        return await super().open(entry)


@bug(shows_cut_is_damaged)
class CutIsDamaged(Viewing):
    """A view opens a fragment only if it has as many as its version has.

    Breaks "whole or cut to some of its fragments": a task of Spark reports damage of a sound stream.
    """

    VIEW = Counting


async def shows_prepared_for_another(open_: Open) -> None:
    w = await writer(tier := open_())
    attempt, _ = await w.prepare(1), await w.prepare(2)
    other = replace(attempt, ledger_id=2)
    await raises(Conflict, tier.offload(Handle(chunks(), 2), other, manifest=w.manifest, extra_metadata={}))


@bug(shows_prepared_for_another)
class PreparedForAnother(Ledgers):
    """An attempt counts as prepared if its UUID runs and its ledger is one of those announced.

    Breaks "`offload` refuses an attempt that does not run in its manifest": a ledger is stored as another.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        if attempt.ledger_id in {each.ledger_id for each in manifest.running}:
            running = [
                replace(each, ledger_id=attempt.ledger_id) if each.attempt == attempt.uid else each
                for each in manifest.running
            ]
            manifest = replace(manifest, running=tuple(running))
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)


class Bounded(SqliteView):
    async def first_since(self, timestamp_ms: int) -> Entry | None:
        return await super().first_since(int(np.int64(timestamp_ms)))


async def shows_times_have_a_column(open_: Open) -> None:
    w = await writer(tier := open_())
    await w.add(chunks())
    assert await (await tier.view("s")).first_since(2**63) is None


@bug(shows_times_have_a_column)
class TimesHaveAColumn(Viewing):
    """A time passes through a column of 64 bits, which takes no later one.

    Breaks "Return the first fragment with a chunk of that time or later": none has, and that is no error.
    """

    VIEW = Bounded


class FromItsOffset(SqliteView):
    async def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        if offset and await self.find(offset) is None:
            return
        async with aclosing(super().walk(offset)) as runs:
            async for run in runs:
                yield run


async def shows_walks_from_what_it_holds(open_: Open) -> None:
    w = await writer(tier := open_(), first=5)
    await w.add(chunks(1, 5))
    found: list[Entries] = []
    async with aclosing((await tier.view("s")).walk(2)) as runs:
        found += [run async for run in runs]
    assert len(found) == 1


@bug(shows_walks_from_what_it_holds)
class WalksFromWhatItHolds(Viewing):
    """A walk from an offset that was trimmed has nothing.

    Breaks "from the one that holds `offset` on": a reader behind retention sees an empty stream.
    """

    VIEW = FromItsOffset
