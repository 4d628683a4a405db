"""The plugin's bucket as a source for `offload sync` and `run`: `rabbitmq+s3://BUCKET`.

A ledger is a fragment. Its chunks are copied as they are, so offsets, times and leader epochs stay, and the
copy equals a copy of the broker's own files, chunk for chunk.

The plugin resets a stream's manifest in two ways. If its first offset jumps ahead, the tier has a gap, as
after any retention. If a higher epoch begins lower again, the old history was cut: the last chunk on the tier
decides, and a copy that the source does not continue ends with `Diverged`.

Invariants: nothing in the bucket is changed; memory keeps the tables of a few fragments, however many the
stream has. The copy checks the chunks, as it does for every source.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from offload.contracts.opening import OpeningContext
from offload.contracts.source import Snapshot, Source, SourceStream
from offload.contracts.store import Buffer, ObjectStore
from offload.formats.chunk import ChunkHeader
from offload.ground.errors import Absent, Corrupt, NotOffloaded, TryAgain, UnsupportedFormat
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry, EntryKind, entries_of_rows
from offload.model.manifest import Manifest
from offload_rabbitmq_s3.catalogue import PREFIX, RabbitmqS3Catalogue
from offload_rabbitmq_s3.fragment import RabbitmqFragment, span_of_chunks
from offload_rabbitmq_s3.keys import RabbitmqKey
from offload_rabbitmq_s3.objects import uid_of
from offload_rabbitmq_s3.roots import given_roots, roots_of

__all__ = ["RabbitmqS3Source"]

TABLES_KEPT: Final = 8
"""So many tables of a stream are in memory: a copy reads a few fragments at a time."""


def open_url(url: str, *, options: Mapping[str, Any], context: OpeningContext) -> RabbitmqS3Source:
    """Return the source at a URL. Sends no request. Raises `Misuse` for a wrong option or URL."""
    store = context.open_store(url[len(PREFIX) :], context.store_options)
    return RabbitmqS3Source(RabbitmqS3Catalogue(store, url, roots=given_roots(options)))


class RabbitmqS3Source(Source):
    """The streams of a bucket."""

    __slots__ = ("_left_out", "_tier")

    def __init__(self, tier: RabbitmqS3Catalogue) -> None:
        self._tier = tier
        self._left_out: Sequence[str] = ()

    @property
    def url(self) -> str:
        """The URL, with `rabbitmq+`."""
        return self._tier.url

    @property
    def notes(self) -> Sequence[str]:
        """Which streams the last call of `streams` left out, and which roots were not read."""
        return (*self._left_out, *self._tier.notes)

    async def streams(self) -> Sequence[RabbitmqS3Stream]:
        """Return the streams that have a root. One list for each folder."""
        found, left_out = [], []
        for name in await self._tier.streams():
            try:
                await roots_of(self._tier.store, name)
            except NotOffloaded:
                left_out.append(f"skipped: stream {name!r} has no root yet")
                continue
            except UnsupportedFormat:  # its own copy says so, and stops no other one
                pass
            found.append(RabbitmqS3Stream(self._tier, name))
        self._left_out = left_out
        if not found:
            raise NotOffloaded(f"{self.url} has no stream with a root")
        return found

    async def aclose(self) -> None:
        """Close the store."""
        await self._tier.aclose()


class RabbitmqS3Stream(SourceStream):
    """One stream of a bucket."""

    __slots__ = ("_name", "_tier")

    def __init__(self, tier: RabbitmqS3Catalogue, name: str) -> None:
        self._tier, self._name = tier, name

    @property
    def name(self) -> str:
        """The name of its folder, on the brokers too."""
        return self._name

    async def mark(self) -> Hashable:
        """Return the keys of the roots: a broker puts a new one whenever it commits. One list."""
        return tuple(await roots_of(self._tier.store, self._name))

    async def snapshot(self, since: Manifest | None = None) -> Snapshot:
        """Return the fragments that the newest root names. All groups are read, and one chunk.

        The broker had committed every chunk before it was uploaded. If a group is damaged, the snapshot ends
        before it. Raises `TryAgain` if an object was deleted meanwhile.
        """
        view = await self._tier.view(self._name)
        committed, entries, damage = view.committed, list[Entry](), None
        try:
            async with aclosing(view.walk()) as runs:
                async for run in runs:
                    entries += entries_of_rows(run)
        except Absent as gone:
            raise await self._gone(gone, committed.version) from gone
        except Corrupt as found:
            damage = found
        tables: OrderedDict[str, ChunkTable] = OrderedDict()
        ledgers = [SourceFragment(self._tier.store, self._name, entry, tables) for entry in entries]
        end = entries[-1].next_offset if entries else committed.first_offset
        return Snapshot(
            ledgers=ledgers,
            first_offset=committed.first_offset,
            next_offset=end,
            epoch=await _epoch_of(ledgers[-1]) if ledgers else 0,
            damage=damage,
            committed_offset=end,
        )

    async def _gone(self, gone: Absent, version: int) -> Corrupt | TryAgain:
        """Return the damage, if the newest root still names the object, and `TryAgain` otherwise."""
        newest = await self._tier.view(self._name)
        if newest.committed.version == version:
            return gone
        return TryAgain(f"{gone.where} was deleted while stream {self._name!r} was read")


class SourceFragment(RabbitmqFragment):
    """A fragment as a ledger of a source: its chunks come unchecked, so that those before damage are copied.

    Its table is kept in `tables`, which the ledgers of a snapshot share.
    """

    __slots__ = ("_tables",)

    def __init__(
        self, store: ObjectStore, stream: str, entry: Entry, tables: OrderedDict[str, ChunkTable]
    ) -> None:
        key = RabbitmqKey(stream, EntryKind.FRAGMENT, entry.first_offset, uid_of(entry.attempt))
        super().__init__(store, str(key), stream, entry)
        self._tables = tables

    async def table(self) -> ChunkTable:
        """See `RabbitmqFragment.table`. Raises `TryAgain` if the fragment is gone."""
        if (table := self._tables.get(self.where)) is None:
            try:
                table = await super().table()
            except Absent as gone:
                raise self._deleted() from gone
            self._table = None
            while len(self._tables) >= TABLES_KEPT:
                self._tables.popitem(last=False)
        self._tables[self.where] = table
        self._tables.move_to_end(self.where)
        return table

    async def read_on(self, rows: ChunkTable, then: ChunkTable) -> Buffer:
        """Return these chunks. They are read again, and returned unchecked, if one of them is damaged."""
        try:
            return await super().read_on(rows, then)
        except Absent as gone:
            raise self._deleted() from gone
        except Corrupt:
            return await self._store.get(self.where, span_of_chunks(rows))

    def _deleted(self) -> TryAgain:
        return TryAgain(f"{self.where} was deleted: the broker's retention, or another leader, was faster")


async def _epoch_of(ledger: SourceFragment) -> int:
    """Return the leader epoch of the last chunk. 0 if it is damaged: the copy will find that."""
    try:
        table = await ledger.table()
        raw = await ledger.read(table[-1:])
        return ChunkHeader.decode(bytes(raw[:48]), where=ledger.where).epoch
    except Corrupt:
        return 0
