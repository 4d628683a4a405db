"""Mistakes in streams, views, handles and leftovers, of the second set."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

import numpy as np
from offload_sqlite_ledger.reading import SqliteHandle, SqliteView

from newcomers.late import chunks, removed, writer
from newcomers.ledgers import all_of, raises
from newcomers.registry import Open, bug
from newcomers.sound import FolderTier, Ledgers
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Absent, Corrupt
from offload.model.attempt import Attempt, Leftover
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries, Entry, entries_of_rows
from offload.model.manifest import AttemptKind, CommittedStream, Manifest
from offload.model.tree import EntryTree
from offload.native.adoption import find_complete


class Viewing(Ledgers):
    """An offloader whose views are of class `VIEW`, and its handles of class `HANDLE`."""

    VIEW = SqliteView
    HANDLE = SqliteHandle

    def view_of(self, committed: CommittedStream) -> SqliteView:
        outer = self

        class View(self.VIEW):
            async def open(self, entry: Entry) -> ReadHandle:
                handle = await super().open(entry)
                handle.__class__ = outer.HANDLE
                return handle

        view = View(EntryTree(committed, self.load_group), self._database)
        view.tier = self
        return view


async def shows_streams_of_the_living(open_: Open) -> None:
    w = await writer(open_())
    await w.delete()
    assert await open_().streams() == ["s"]


@bug(shows_streams_of_the_living)
class StreamsOfTheLiving(Ledgers):
    """`streams` leaves out deleted streams.

    Breaks "The streams that were ever begun here".
    """

    async def streams(self) -> list[str]:
        names = await super().streams()
        return [n for n in names if (await self._newest(n)).state == 0]


async def shows_streams_no_case(open_: Open) -> None:
    for name in ("b", "C"):
        await writer(open_(), name)
    assert await open_().streams() == ["C", "b"]


@bug(shows_streams_no_case)
class StreamsNoCase(Ledgers):
    """`ORDER BY name COLLATE NOCASE`.

    Breaks "in order of names": a merge of two lists misses some.
    """

    async def streams(self) -> list[str]:
        return sorted(await super().streams(), key=str.lower)


class Clamped(SqliteView):
    async def find(self, offset: int) -> Entry | None:
        if not self.committed.fragments:
            return None
        return await super().find(
            max(self.committed.first_offset, min(offset, self.committed.next_offset - 1))
        )


async def shows_finds_the_nearest(open_: Open) -> None:
    w = await writer(open_())
    await w.add(chunks(2))
    assert await (await open_().view("s")).find(4) is None


@bug(shows_finds_the_nearest)
class FindsTheNearest(Viewing):
    """`find` clamps the offset: beyond the end it is the last fragment, before the beginning the first.

    Breaks "The fragment that holds `offset`, or None if none does."
    """

    VIEW = Clamped


class FromNext(SqliteView):
    async def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        async for run in super().walk(offset):
            rows = run[run["first_offset"] >= np.uint64(max(offset, 0))]
            if len(rows):
                yield rows


async def shows_walk_skips_holder(open_: Open) -> None:
    w = await writer(open_())
    await w.add(chunks(3))
    rows = [row async for run in (await open_().view("s")).walk(3) for row in run]
    assert len(rows) == 1


@bug(shows_walk_skips_holder)
class WalkSkipsHolder(Viewing):
    """`walk(offset)` is `WHERE first_offset >= ?`: it leaves out the fragment that contains `offset` but
    begins earlier.

    Breaks "from the one that holds `offset` on".
    """

    VIEW = FromNext


class Paged(SqliteHandle):
    async def read(self, rows: ChunkTable) -> bytes:
        raw = await super().read(rows)
        return raw[: int(rows["size_bytes"][:256].sum())]


async def shows_first_page_of_rows(open_: Open) -> None:
    w = await writer(open_())
    raw = chunks(300)
    receipt = await w.add(raw)
    assert await all_of(await w.tier.read_offloaded(receipt.attempt)) == raw


@bug(shows_first_page_of_rows)
class FirstPageOfRows(Viewing):
    """`read` assumes that the first page of rows that the driver returns, 256, is everything.

    Breaks "Reads are verbatim".

    A read of more than 256 chunks loses the rest.
    """

    HANDLE = Paged


async def shows_only_from_beginnings(open_: Open) -> None:
    w = await writer(open_())
    receipt = await w.add(chunks(6, size=20_000))
    handle = await w.tier.read_offloaded(receipt.attempt, only=range(1, 12))
    assert handle.first_offset <= 1


@bug(shows_only_from_beginnings)
class OnlyFromBeginnings(FolderTier):
    """`only` keeps the fragments that begin within it, and loses the one that begins before it.

    Breaks "narrows it to the fragments that hold some of these offsets".
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        if only is not None and only.step == 1:
            manifest = manifest or await self.load_manifest(attempt.stream)
            entry = await self.tree(manifest).find(only.start)
            if entry is not None and entry.first_offset < only.start and entry.next_offset < only.stop:
                only = range(entry.next_offset, only.stop)
        return await super().read_offloaded(attempt, manifest=manifest, only=only)


class GoneIsDamage(SqliteView):
    async def open(self, entry: Entry) -> ReadHandle:
        try:
            return await super().open(entry)
        except Absent as exc:
            raise Corrupt("chunks", exc.where, expected="some", found="none") from exc


async def shows_gone_is_corrupt(open_: Open) -> None:
    view, entry, _ = await removed(open_())
    await raises(Absent, view.open(entry))


@bug(shows_gone_is_corrupt)
class GoneIsCorrupt(Viewing):
    """A fragment whose rows were deleted is reported as damage.

    Breaks "Raises `Absent` if the fragment is gone": a reader of an older view, of which fragments were
    trimmed and removed, reports damage instead of opening a new view.
    """

    VIEW = GoneIsDamage


class Floats(SqliteView):
    async def find(self, offset: int) -> Entry | None:
        rows = [row async for run in self.walk() for row in entries_of_rows(run)]
        for row in rows:
            if float(row.first_offset) <= float(offset) < float(row.next_offset):
                return row
        return None


async def shows_views_compare_floats(open_: Open) -> None:
    first = 2**60 + 1
    w = await writer(open_(), first=first)
    await w.add(chunks(2, first))
    await w.add(chunks(2, first + 4), 2)
    view = await open_().view("s")
    assert [(await view.find(first + n)).first_offset for n in (0, 4, 7)] == [first, first + 4, first + 4]


@bug(shows_views_compare_floats)
class ViewsCompareFloats(Viewing):
    """Offsets are compared as doubles (JSON, Lua, JavaScript): from 2**53 on, it finds a neighbour.

    Breaks "The fragment that holds `offset`".
    """

    VIEW = Floats


async def shows_cut_view_is_whole(open_: Open) -> None:
    w = await writer(open_())
    await w.add(chunks(2))
    await w.add(chunks(2, 4), 2)
    whole = (await open_().view("s")).committed
    cut = replace(whole, entries=whole.entries[:1], next_offset=4, fragments=1)
    rows = [row async for run in open_().view_of(cut).walk() for row in run]
    assert len(rows) == 1


@bug(shows_cut_view_is_whole)
class CutViewIsWhole(Ledgers):
    """`view_of` keeps only the stream's name and version of its argument, and looks the entries up again.

    Breaks "A view of what an earlier view of this tier said, whole or cut to some of its fragments": each of
    several processes reads the whole stream.
    """

    def view_of(self, committed: CommittedStream) -> SqliteView:
        view = super().view_of(committed)
        tier = self

        class Whole(type(view)):
            async def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
                newest = await tier._newest(committed.stream)
                same = newest is not None and newest.version == committed.version
                tree = EntryTree(newest if same else committed, tier.load_group)
                async for run in tree.walk(offset):
                    yield run

        return Whole(EntryTree(committed, self.load_group), self._database)


async def shows_streams_unquoted(open_: Open) -> None:
    await writer(open_(), "a+b")
    assert await open_().streams() == ["a+b"]


@bug(shows_streams_unquoted)
class StreamsUnquoted(Ledgers):
    """Names are kept URL-quoted by `quote`, and unquoted by `unquote_plus`: a `+` in a name is a space in
    `streams`.

    Breaks "The streams that were ever begun here": `offload ls` names a stream that does not exist.
    """

    async def streams(self) -> list[str]:
        return sorted(name.replace("+", " ") for name in await super().streams())


async def shows_own_leftovers_offered(open_: Open) -> None:
    w = await writer(open_())
    await w.upload(chunks())
    assert await w.tier.leftovers(w.manifest) == []


@bug(shows_own_leftovers_offered)
class OwnLeftoversOffered(FolderTier):
    """The writer's own running attempts are offered as leftovers.

    Breaks "for another writer": data still being uploaded is adopted and its attempt settled.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        await self.open()
        left = {r.attempt: r.ledger_id for r in manifest.running if r.kind is AttemptKind.STREAM}
        return await find_complete(self.store, manifest, left) if left else []
