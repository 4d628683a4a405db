"""Bugs of views: entries that are not found, and views that move."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import numpy as np

from offload.contracts.catalogue import EntryView, StreamView
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import CommittedStream, Manifest
from offload.model.tree import Tree
from offload.native.offloader import ObjectStoreOffloader
from offload.native.view import ObjectView
from offload_conformance.bugs.offloader.shared import ByVerbs
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.ledgers import copied, ledger, trimmed
from offload_conformance.bugs.sound.memory import MemoryTier
from offload_conformance.bugs.sound.shared_offloaders import Viewed
from offload_conformance.bugs.sound.table import Table
from offload_conformance.bugs.sound.views import Glance, opened, prepared


class _LastOfAll(Tree):
    async def last_with_messages(self) -> Entry | None:
        return await self.find(self.manifest.next_offset - 1)


@bug("contract/views_find_what_is_committed")
class TakesTheLastForAMessage(ByVerbs):
    """Reports the newest fragment as the newest with messages.

    Tracking chunks are rare, and hold no messages.
    """

    def tree(self, manifest: Manifest) -> Tree:
        return _LastOfAll(manifest, self.load_group)


@bug("contract/views_do_not_move")
class NamesWhatIsGone(ObjectStoreOffloader):
    """Reports that a view has every name.

    It asks the store instead of the manifest; the objects still exist, so a trim looks like damage.
    """

    def view_of(self, committed: CommittedStream) -> Any:
        made = LedgerOffloader.view_of(self, committed)

        class View(type(made)):  # type: ignore[misc]  # whatever class the sound view has
            async def names(self, where: str) -> bool:
                return True

        return View(self, committed)


@bug("contract/newer_views_tell_every_change")
class NewerIsLonger(ObjectStoreOffloader):
    """Sees a newer view only if the stream's end has moved.

    A reader waits for more records, and the cheapest question is where they end.
    """

    async def newer_view(self, known: CommittedStream) -> Any:
        newer = await super().newer_view(known)
        return newer if newer and newer.committed.next_offset > known.next_offset else None


@bug("contract/newer_views_tell_every_change")
class NewerByTheName(ObjectStoreOffloader):
    """Takes a stream that was deleted and begun again for the one that is known.

    Only the version is compared, and that is higher in the next life.
    """

    async def newer_view(self, known: CommittedStream) -> Any:
        newest = await self.view(known.stream)
        return newest if newest.committed.version > known.version else None


async def _every_state_is_newer(open_: OpenClient) -> None:
    tier, reader = await opened(open_), open_()
    writer = await copied(tier, "s", ledger(0))
    for _ in range(12):
        known = await reader.load_manifest("s")
        await prepared(tier, "s", writer.manifest)
        newer = await reader.newer_view(known)
        assert newer is not None, known.version
        assert newer.committed.version > known.version


@bug("contract/newer_views_tell_every_change", _every_state_is_newer)
class VersionsAreText(Table):
    """Versions are compared as the text that the table has: 10 is older than 9.

    Breaks "Return the stream as it is committed now, or None if that is still `known`". Costs a reader that
    follows a stream: it stops at version 9.
    """

    async def newer_view(self, known: CommittedStream) -> StreamView | None:
        newest = await super().newer_view(known)
        if newest is None or str(newest.committed.version) <= str(known.version):
            return None
        return newest


async def _newer_at_once(open_: OpenClient) -> None:
    tier, reader = await opened(open_), open_()
    writer = await copied(tier, "s", ledger(0))
    known = await reader.load_manifest("s")
    assert await reader.newer_view(known) is None
    await prepared(tier, "s", writer.manifest)
    assert await reader.newer_view(known) is not None


@bug("contract/newer_views_tell_every_change", _newer_at_once)
class PollsOnceAMinute(Table):
    """Readers poll often, so a stream that had nothing newer is not asked again within a minute.

    Breaks "or None if that is still `known`". Costs a caller that asks after it was told of a commit: it is
    told that there is none.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.polled: dict[str, float] = {}

    async def newer_view(self, known: CommittedStream) -> StreamView | None:
        if time.monotonic() - self.polled.get(known.stream, -60) < 60:
            return None
        newest = await super().newer_view(known)
        if newest is None:
            self.polled[known.stream] = time.monotonic()
        return newest


async def _view_of_an_older_state(open_: OpenClient) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    old = await tier.load_manifest("s")
    await writer.offload([ledger(3)])
    await tier.view("s")
    view = tier.view_of(old)
    assert view.committed.next_offset == 3
    assert await view.find(4) is None


@bug("contract/views_find_what_is_committed", _view_of_an_older_state)
class OneViewOfAStream(Table):
    """A catalogue keeps one view of each stream, and `view_of` returns it, if it is of the same life or
    newer.

    Breaks "Return a view of the state of an earlier view of this tier". Costs a reader whose plan was made on
    an older state: it reads what is not in the plan.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.views: dict[tuple[str, UUID], StreamView] = {}

    def view_of(self, committed: CommittedStream) -> StreamView:
        name = committed.stream, committed.incarnation
        view = self.views.get(name)
        if view is None or view.committed.version < committed.version:
            view = self.views[name] = super().view_of(committed)
        return view


def _at_times(*times_ms: int) -> list[ReadHandle]:
    return [ledger(3 * at, time_ms=time_ms) for at, time_ms in enumerate(times_ms)]


async def _found_by_time(open_: OpenClient) -> None:
    tier = await opened(open_)
    await copied(tier, "s", *_at_times(5000, 1000, 2000, 9000))
    view = await tier.view("s")
    for time_ms, offset in ((0, 0), (3000, 0), (5002, 0), (5003, 9), (9002, 9)):
        found = await view.first_since(time_ms)
        assert found is not None, time_ms
        assert found.first_offset == offset, (time_ms, found.first_offset)
    assert await view.first_since(9003) is None


@bug("contract/views_find_what_is_committed", _found_by_time)
class FirstSinceBisects(Table):
    """Times are searched as if they ascended.

    Breaks "Return the first fragment, in the order of offsets, with a chunk of that time or later". Costs a
    reader by time on a stream whose leader's clock went back: it begins too late.
    """

    def view_of(self, committed: CommittedStream) -> StreamView:
        class Bisecting(Glance):
            async def first_since(self, timestamp_ms: int) -> Entry | None:
                entries = self.committed.entries
                row = int(np.searchsorted(entries["last_timestamp_ms"].astype(float), timestamp_ms))
                return entries_of_rows(entries[row : row + 1])[0] if row < len(entries) else None

        return Bisecting(super().view_of(committed))


async def _greatest_time(open_: OpenClient) -> None:
    tier = await opened(open_)
    for number, times in enumerate(((5000, 1000), (-9000, -5000), (-5,))):
        await copied(tier, f"s{number}", *_at_times(*times))
        found = await (await tier.view(f"s{number}")).last_timestamp_ms()
        assert found == max(times) + 2, found


@bug("contract/views_find_what_is_committed", _greatest_time)
class TimeOfTheLastFragment(Table):
    """The last time of a stream is that of its last fragment.

    Breaks "Return the greatest timestamp of any chunk". Costs a report of the lag after a clock went back.
    """

    def view_of(self, committed: CommittedStream) -> StreamView:
        class Last(Glance):
            async def last_timestamp_ms(self) -> int | None:
                entries = self.committed.entries
                return int(entries["last_timestamp_ms"][-1]) if len(entries) else None

        return Last(super().view_of(committed))


async def _first_of_all_times(open_: OpenClient) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0), ledger(3))
    view = await tier.view("s")
    for time_ms in (0, -1):
        entry = await view.first_since(time_ms)
        assert entry is not None, time_ms
        assert entry.first_offset == 0


class NowView(EntryView):
    """A view for which no time is now."""

    async def first_since(self, timestamp_ms: int) -> Entry | None:
        return await super().first_since(timestamp_ms) if timestamp_ms else None


@bug("contract/views_find_what_is_committed", _first_of_all_times)
class TimeZeroIsNoTime(Viewed):
    """The time 0 is taken for "no time was given", and nothing is found.

    Breaks "Return the first fragment, in the order of offsets, with a chunk of that time or later". Costs a
    reader that wants all from the beginning of time on: it reads nothing.
    """

    VIEW = NowView


class ByAttempt(ObjectView):
    """A view that compares the attempt of a name alone."""

    async def names(self, where: str) -> bool:
        fragment = self._keys.parse_fragment(where)
        attempts = self.committed.entries["attempt"]
        return fragment is None or bool((attempts == np.void(fragment[1].bytes)).any())


async def shows_names_the_attempt(open_: OpenClient) -> None:
    await copied(open_(), "s", ledger(0, size=40_000))
    old = await open_().view("s")
    await trimmed(open_(), "s", 2)
    assert not await (await open_().view("s")).names(old.name_of(old.committed.entries[:1]))


@bug("contract/views_do_not_move", shows_names_the_attempt)
class NamesTheAttempt(MemoryTier):
    """A view accepts a name as its own if it has another fragment of the same attempt.

    Breaks "Whether an entry of the view has this name": if an attempt was trimmed in part, its missing
    fragments count as damage.
    """

    def view_of(self, committed: CommittedStream) -> ObjectView:
        view = super().view_of(committed)
        return ByAttempt(view.tree, view._open)
