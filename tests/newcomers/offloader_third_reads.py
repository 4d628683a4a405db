"""Mistakes in views, handles and deletions, of the third set: the suite missed them at first."""

from __future__ import annotations

from uuid import uuid4

import numpy as np
from offload_sqlite_ledger import offloader as example
from offload_sqlite_ledger.reading import DATA, SqliteHandle, SqliteView

from newcomers.late import chunks, removed, writer
from newcomers.ledgers import all_of, copied, ledger, raises, trimmed
from newcomers.offloader_late_reads import Viewing
from newcomers.registry import Open, bug
from newcomers.sound import FolderTier, Ledgers
from offload.commit.job import Announce, Replace
from offload.contracts.ledger import ReadHandle
from offload.formats.chunk import check_stored
from offload.ground.errors import Absent, Conflict, NotOffloaded
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable, row_from
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import AttemptKind, CommittedStream, Manifest
from offload.model.tree import EntryTree
from offload.native.fragment_reader import _only_entries, open_entries
from offload.native.view import ObjectView


class Bisecting(SqliteView):
    async def first_since(self, timestamp_ms: int) -> Entry | None:
        rows = [row async for run in self.walk() for row in entries_of_rows(run)]
        low, high = 0, len(rows)
        while low < high:
            middle = (low + high) // 2
            if rows[middle].last_timestamp_ms < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return rows[low] if low < len(rows) else None


async def shows_times_are_bisected(open_: Open) -> None:
    times = (500, 100, 110, 120)
    await copied(open_(), "s", *(ledger(n, 1, ledger_id=n + 1, time_ms=t) for n, t in enumerate(times)))
    found = await (await open_().view("s")).first_since(300)
    assert found is not None
    assert found.first_offset == 0


@bug(shows_times_are_bisected)
class TimesAreBisected(Viewing):
    """`first_since` bisects, as if times never went back.

    Breaks "The first fragment, in the order of offsets, with a chunk of that time or later."
    """

    VIEW = Bisecting


class GreatestIfAny(SqliteView):
    async def last_timestamp_ms(self) -> int | None:
        return max(self.committed.entries["last_timestamp_ms"].tolist(), default=0) or None


async def shows_zero_is_no_time(open_: Open) -> None:
    await copied(open_(), "s", ledger(0, 1, time_ms=0))
    assert await (await open_().view("s")).last_timestamp_ms() == 0


@bug(shows_zero_is_no_time)
class ZeroIsNoTime(Viewing):
    """`or None`: the time 0 is false in Python, as if there were no chunk.

    Breaks "The greatest timestamp of any chunk, or None if the stream is empty."
    """

    VIEW = GreatestIfAny


class GreatestSinceTheEpoch(SqliteView):
    async def last_timestamp_ms(self) -> int | None:
        times = self.committed.entries["last_timestamp_ms"].tolist()
        return max([-1, *times]) if times else None


async def shows_nothing_before_the_epoch(open_: Open) -> None:
    await copied(open_(), "s", ledger(0, 1, time_ms=-5000))
    assert await (await open_().view("s")).last_timestamp_ms() == -5000


@bug(shows_nothing_before_the_epoch)
class NothingBeforeTheEpoch(Viewing):
    """The search for the greatest time begins with -1, "less than any".

    Breaks "The greatest timestamp of any chunk": timestamps have a sign.
    """

    VIEW = GreatestSinceTheEpoch


class Following(SqliteView):
    async def last_timestamp_ms(self) -> int | None:
        newest = await self.tier.load_manifest(self.committed.stream)
        return await EntryTree(newest, self.tier.load_group).last_timestamp_ms()


async def shows_follows_the_times(open_: Open) -> None:
    written = await copied(open_(), "s", ledger(0, 1, time_ms=1000))
    view = await open_().view("s")
    await written.offload([ledger(1, 1, time_ms=9000)])
    assert await view.last_timestamp_ms() == 1000


@bug(shows_follows_the_times)
class FollowsTheTimes(Viewing):
    """A view reads the last time from the newest manifest, and everything else from its own.

    Breaks "What a view says never changes": it raises once the stream is deleted.
    """

    VIEW = Following


class ByAttempt(ObjectView):
    async def names(self, where: str) -> bool:
        fragment = self._keys.parse_fragment(where)
        attempts = self.committed.entries["attempt"]
        return fragment is None or bool((attempts == np.void(fragment[1].bytes)).any())


async def shows_names_the_attempt(open_: Open) -> None:
    await copied(open_(), "s", ledger(0, size=40_000))
    old = await open_().view("s")
    await trimmed(open_(), "s", 2)
    assert not await (await open_().view("s")).names(old.name_of(old.committed.entries[:1]))


@bug(shows_names_the_attempt)
class NamesTheAttempt(FolderTier):
    """A view accepts a name as its own if it has another fragment of the same attempt.

    Breaks "Whether an entry of the view has this name": if an attempt was trimmed in part, its missing
    fragments count as damage.
    """

    def view_of(self, committed: CommittedStream) -> ObjectView:
        view = super().view_of(committed)
        return ByAttempt(view.tree, view._open)


class GoneByAttempt(SqliteView):
    async def open(self, entry: Entry) -> ReadHandle:
        try:
            return await super().open(entry)
        except Absent as exc:
            raise Absent(f"attempt {entry.attempt}", self.committed.stream) from exc


async def shows_gone_by_another_name(open_: Open) -> None:
    view, entry, _ = await removed(open_())
    gone = await raises(Absent, view.open(entry))
    assert await view.names(gone.where)


@bug(shows_gone_by_another_name)
class GoneByAnotherName(Viewing):
    """`Absent` has the name of the attempt, and `name_of` that of the fragment.

    Breaks "as `Absent` has it": the caller cannot tell if the data was trimmed or lost.
    """

    VIEW = GoneByAttempt


class NothingFound(SqliteHandle):
    async def read(self, rows: ChunkTable) -> bytes:
        first, last = int(rows["offset"][0]), int(rows["offset"][-1])
        found = await self._database.rows(DATA, self._entry.attempt.bytes, first, last)
        raw, row = b"".join(data for (data,) in found), row_from(self._table, first)
        start, checksums = int(rows["position"][0]), self._checksums[row : row + len(rows)]
        check_stored(raw, rows, checksums, window_position=start, where=self.where)
        return raw


async def shows_gone_handle_is_damaged(open_: Open) -> None:
    _, _, handle = await removed(open_())
    await raises(Absent, all_of(handle))


@bug(shows_gone_handle_is_damaged)
class GoneHandleIsDamaged(Viewing):
    """A handle that reads no rows still checks them: too few bytes are damage.

    Breaks "If it was trimmed and removed, `open`, or the handle that it returned, raises `Absent`": a
    reader during retention reports damage.
    """

    HANDLE = NothingFound


async def shows_counts_what_is_wanted(open_: Open) -> None:
    w = await writer(open_())
    receipt = await w.add(chunks())
    handle = await w.tier.read_offloaded(receipt.attempt, only=range(2**64))
    assert await all_of(handle) == chunks()


@bug(shows_counts_what_is_wanted)
class CountsWhatIsWanted(Ledgers):
    """`len(only)`, which Python refuses for a range of 2^63 offsets or more.

    Breaks "narrows it to the fragments that hold some of these offsets": they go up to 2^64.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        if only is not None and len(only) == 0:
            raise NotOffloaded(f"nothing is wanted of attempt {attempt.uid}")
        return await super().read_offloaded(attempt, manifest=manifest, only=only)


async def shows_handle_with_hole(open_: Open) -> None:
    w = await writer(open_())
    receipt = await w.add(chunks(3, size=40_000))
    old, uid, job = receipt.entries[1], uuid4(), uuid4()
    only = range(old.first_offset, old.next_offset)
    source = await w.tier.read_offloaded(receipt.attempt, only=only)
    incarnation = w.manifest.incarnation
    await w.commit(Announce(job=job, incarnation=incarnation, attempts=[(uid, 1)], kind=AttemptKind.COPY))
    copy = Attempt(stream="s", ledger_id=1, uid=uid)
    new = await w.tier.offload(source, copy, manifest=w.manifest, extra_metadata={})
    await w.commit(Replace(job=job, incarnation=incarnation, old=[old], new=new.entries))
    await raises(NotOffloaded, w.tier.read_offloaded(receipt.attempt))


@bug(shows_handle_with_hole)
class HandleWithHole(FolderTier):
    """All fragments of a named attempt make one handle, even if copies replaced some in its middle.

    Breaks "or if copies have replaced fragments in its midst: a handle has no hole."
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        view = self.view_of(manifest or await self.load_manifest(attempt.stream))
        entries = await _only_entries(view, attempt.uid, only)
        if not entries:
            raise NotOffloaded(f"nothing of attempt {attempt.uid} is named")
        return await open_entries(view, entries, where=str(attempt.uid))


async def shows_opens_once_for_all(open_: Open) -> None:
    reader = open_()
    await raises(NotOffloaded, reader.open())
    await open_().open(create=True)
    await reader.open()


@bug(shows_opens_once_for_all)
class OpensOnceForAll(Ledgers):
    """A client checks once if there is a tier, and caches a negative answer too.

    Breaks "Make sure that the place is a tier": a reader that began first never sees it.
    """

    _answer: bool | None = None

    async def open(self, *, create: bool = False) -> None:
        if self._answer is None or create:
            try:
                await super().open(create=create)
                self._answer = True
            except NotOffloaded:
                self._answer = False
        if not self._answer:
            raise NotOffloaded(f"{self.url} is no tier")


async def shows_asks_the_newest_entry(open_: Open) -> None:
    w = await writer(open_())
    receipt = await w.add(chunks(2))
    await w.add(chunks(2, 4), 2)
    await raises(Conflict, w.tier.delete_offloaded(receipt.attempt))


@bug(shows_asks_the_newest_entry)
class AsksTheNewestEntry(Ledgers):
    """Only the newest entry decides if the manifest names the attempt: older ones are deleted.

    Breaks "Deleting an attempt that the manifest names raises `Conflict` and removes nothing."
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        newest = await self._newest(attempt.stream)
        is_over = newest is not None and not newest.runs(attempt.uid)
        last = newest.entries["attempt"][-1:].tobytes() if is_over else b""
        if last in (b"", attempt.uid.bytes):
            await super().delete_offloaded(attempt)
        else:
            for statement in example.DELETE:
                await self._database.insert(statement, [(attempt.uid.bytes, attempt.stream)])
