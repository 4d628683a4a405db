"""Mistakes in views, handles and deletions, of the third set: the suite missed them at first."""

from __future__ import annotations

import numpy as np
from offload_sqlite_ledger.reading import DATA, SqliteHandle, SqliteView

from newcomers.late import chunks, removed, writer
from newcomers.ledgers import all_of, copied, ledger, raises, trimmed
from newcomers.offloader_late_reads import Viewing
from newcomers.registry import Open, bug
from newcomers.sound import Ledgers, Tier
from offload.contracts.ledger import ReadHandle
from offload.formats.chunk import check_stored
from offload.ground.errors import Absent, NotOffloaded
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable, row_from
from offload.model.entry import Entry
from offload.model.manifest import CommittedStream, Manifest
from offload.model.tree import EntryTree
from offload.native.view import ObjectView


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
class NamesTheAttempt(Tier):
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
