"""Mistakes in streams, views, handles and leftovers, of the second set."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from offload_sqlite_ledger.reading import SqliteHandle, SqliteView

from newcomers.late import chunks, removed, writer
from newcomers.ledgers import raises
from newcomers.registry import Open, bug
from newcomers.sound import Ledgers
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Absent, Corrupt
from offload.model.entry import Entries, Entry
from offload.model.manifest import CommittedStream
from offload.model.tree import EntryTree


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
