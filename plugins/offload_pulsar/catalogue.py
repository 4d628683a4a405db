"""Pulsar's bucket as a tier that can only be read: `offload ls`, `inspect`, `read`, `verify`, and Spark.

A stream is a managed ledger, as in `source`, and a fragment is a block of a ledger. Chunks are made of its
entries when they are asked for, so reading needs no copy. The index says which entries a block has, and
nothing says how large or how old they are: a view's entries are not measured (`StreamView.is_measured`).

**Offsets are relative.** The first entry of the oldest ledger that is there has offset 0. If Pulsar deletes
its oldest ledger, all offsets move, so the stream is another incarnation from then on. A copy by
`offload sync` keeps its offsets.

**Times** are looked up in the order of blocks: the time of the first entry of a block is taken to be later
than those of the blocks before. Within a block they may go back.

Invariants: nothing is changed; an entry is found whole, or damage names its object and byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid5

import numpy as np

from offload.contracts.catalogue import Catalogue, EntryView, StreamView
from offload.contracts.ledger import ReadHandle
from offload.contracts.opening import OpeningContext
from offload.contracts.store import Buffer
from offload.entries.chunks import EntryHandle
from offload.entries.offsets import ListedLedger, NumberedLedger
from offload.ground.errors import Absent, Corrupt, NotOffloaded, StreamDeleted
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries, Entry, entries_of_rows, rows_of_entries
from offload.model.manifest import CommittedStream
from offload.model.tree import EntryTree, no_groups
from offload_pulsar.bucket_ledger import BucketLedger
from offload_pulsar.names import PulsarKey
from offload_pulsar.source import PREFIX, PulsarSource

__all__ = ["PulsarCatalogue"]


INCARNATIONS: Final = UUID("6f2d3c0e-52a1-4a0b-9d0c-0f8a3ad1f6b7")
"""The space of names of incarnations, which are made of a stream and its oldest ledger."""

RELATIVE: Final = (
    "offsets count from the oldest ledger that is there, so they move; those of a copy by `offload sync` stay"
)

TIME_MS_BOUND: Final = 2**63 - 1

OFFSETS_BOUND: Final = 2**63
"""An index may state any number of entries."""


def open_catalogue(url: str, *, context: OpeningContext) -> PulsarCatalogue:
    """Return the tier at a URL. Sends no request. Raises `Misuse` for a wrong URL."""
    store = context.open_store(url.removeprefix(PREFIX), context.store_options)
    return PulsarCatalogue(PulsarSource(store, url, env=context.env))


class PulsarCatalogue(Catalogue):
    """The managed ledgers of a bucket."""

    def __init__(self, source: PulsarSource) -> None:
        self._source = source

    @property
    def url(self) -> str:
        """The URL, with `pulsar+`."""
        return self._source.url

    @property
    def notes(self) -> Sequence[str]:
        """That offsets are relative, and what the last look at the bucket left out."""
        return (RELATIVE, *self._source.notes)

    async def open(self) -> None:
        """Raise `NotOffloaded` if the bucket has no ledger of Pulsar."""
        await self._source.streams()

    async def streams(self) -> list[str]:
        """Return the managed ledgers. Raises `NotOffloaded` if there is none."""
        return [stream.name for stream in await self._source.streams()]

    async def view(self, stream: str) -> PulsarView:
        """Return the ledgers that are there now. Each index is read once, by this process.

        Raises `Corrupt` if a ledger cannot be opened, or if two attempts on it state different entries. A
        view without it would be that of a shorter stream, which looks whole.
        """
        numbered, end = list[NumberedLedger](), 0
        for ledger in await self._source.ledgers_of(stream):
            if isinstance(ledger, Corrupt):
                raise ledger.within(ledger.where, stream=stream)
            assert isinstance(ledger, BucketLedger), "a bucket has no others"
            _check_attempts(ledger, stream)
            if end + ledger.last_entry + 1 >= OFFSETS_BOUND:
                limit = f"offsets below 2^63 from {end} on"
                what, found = f"number of entries of ledger {ledger.ledger_id}", ledger.last_entry + 1
                raise Corrupt(what, ledger.where, expected=limit, found=found, stream=stream)
            numbered.append(NumberedLedger(ListedLedger.of(ledger, stream), end))
            end += ledger.last_entry + 1
        if not numbered:
            raise NotOffloaded(f"{self.url} has no stream {stream!r}; `offload ls` shows which it has")
        entries = [entry for each in numbered for entry in _blocks_of(each)]
        committed = CommittedStream(
            stream=stream,
            version=numbered[-1].ledger_id + 1,
            incarnation=uuid5(INCARNATIONS, f"{stream} {numbered[0].ledger_id}"),
            first_offset=0,
            next_offset=end,
            messages=end,
            data_size_bytes=sum(each.data_size_bytes for each in entries),
            stored_size_bytes=sum(each.stored_size_bytes for each in entries),
            fragments=len(entries),
            ledgers=len(numbered),
            entries=rows_of_entries(entries),
        )
        return self.view_of(committed)

    async def newer_view(self, known: CommittedStream) -> StreamView | None:
        """See `Catalogue.newer_view`. Raises `StreamDeleted`, too, if a ledger came behind a newer one.

        Pulsar tries a failed offload again later. The offsets of the newer ledgers move then.
        """
        newest = await super().newer_view(known)
        if newest is not None and len(known.entries):
            last = await newest.find(known.next_offset - 1)
            found = None if last is None else (last.ledger_id, last.next_offset)
            if found != (int(known.entries["ledger_id"][-1]), known.next_offset):
                raise StreamDeleted(f"the offsets of stream {known.stream!r} moved while it was read")
        return newest

    def view_of(self, committed: CommittedStream) -> PulsarView:
        """Return a view of these entries. See `Catalogue.view_of`."""
        return PulsarView(EntryTree(committed, no_groups), self._source)

    async def aclose(self) -> None:
        """Close the store."""
        await self._source.aclose()


def _check_attempts(ledger: BucketLedger, stream: str) -> None:
    """Raise `Corrupt` if the indexes of two attempts state different entries. Only a copy reads them all."""
    first, *others = ledger.attempts
    for other in others:
        if (other.last_entry, other.length) != (first.last_entry, first.length):
            raise Corrupt(
                f"index of ledger {ledger.ledger_id}, which was offloaded twice",
                other.where,
                expected=f"{first.last_entry + 1} entries of {first.length} bytes, as in {first.where}",
                found=f"{other.last_entry + 1} entries of {other.length} bytes",
                stream=stream,
            )


def _blocks_of(numbered: NumberedLedger) -> list[Entry]:
    """Return an entry for each block of a ledger. Blocks have no checksum: it is the number of the block."""
    ledger = numbered.ledger
    assert isinstance(ledger, BucketLedger), "a bucket has no others"
    blocks, key = ledger.blocks, PulsarKey.parse(ledger.where)
    assert key is not None, "it was opened by its key"
    stops = [*(block.first_entry for block in blocks[1:]), numbered.count]
    return [
        Entry(
            first_offset=numbered.begin + block.first_entry,
            records=stop - block.first_entry,
            messages=stop - block.first_entry,
            first_timestamp_ms=-TIME_MS_BOUND,
            last_timestamp_ms=TIME_MS_BOUND,
            data_size_bytes=block.size_bytes,
            stored_size_bytes=block.size_bytes,
            ledger_id=numbered.ledger_id,
            attempt=key.uid,
            checksum=number,
        )
        for number, (block, stop) in enumerate(zip(blocks, stops, strict=True))
        if stop > block.first_entry
    ]


class PulsarView(EntryView):
    """One managed ledger, as its ledgers were at one moment. It needs no listing."""

    __slots__ = ("_source",)

    def __init__(self, tree: EntryTree, source: PulsarSource) -> None:
        super().__init__(tree)
        self._source = source

    @property
    def where(self) -> str:
        """The bucket: no single object commits a stream."""
        return self._source.url

    @property
    def is_measured(self) -> bool:
        """False: the index has no times, and not the sizes of entries."""
        return False

    def name_of(self, row: Entries) -> str:
        """Return the attempt, the ledger and the offset at which the block begins."""
        (entry,) = entries_of_rows(row)
        return f"{entry.attempt}-ledger-{entry.ledger_id} from offset {entry.first_offset}"

    async def open(self, entry: Entry) -> ReadHandle:
        """Open a block by the index of its ledger. Its table is read with all of its bytes."""
        name, stream = self.name_of(rows_of_entries([entry])), self.committed.stream
        try:
            opened = await self._source.opened(entry.ledger_id, entry.attempt)
        except NotOffloaded as gone:
            self._source.forget()
            raise Absent(name, stream) from gone
        except Corrupt as damage:
            raise _named(damage, name, stream, self._source) from damage
        ledger = BucketLedger([opened], stream, on_damage=self._source.note_damage)
        blocks = ledger.blocks
        if entry.checksum >= len(blocks):
            raise Corrupt("number of blocks", name, expected=f"above {entry.checksum}", found=len(blocks))
        first = blocks[entry.checksum].first_entry
        numbered = NumberedLedger(ListedLedger.of(ledger, stream), entry.first_offset - first)
        return _BlockHandle(
            numbered=numbered,
            first_entry=first,
            stop=first + entry.records,
            known={},
            name=name,
            source=self._source,
        )

    async def first_since(self, timestamp_ms: int) -> Entry | None:
        """See `StreamView.first_since`. Reads the beginning of some blocks, and one block whole."""
        blocks = entries_of_rows(self.committed.entries)
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high) // 2
            if await self._first_ms(blocks[middle]) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        if low and await self._last_ms(blocks[low - 1]) >= timestamp_ms:
            return blocks[low - 1]
        return blocks[low] if low < len(blocks) else None

    async def last_timestamp_ms(self) -> int | None:
        """See `StreamView.last_timestamp_ms`. Reads the last block whole."""
        blocks = entries_of_rows(self.committed.entries[-1:])
        return await self._last_ms(blocks[0]) if blocks else None

    async def _first_ms(self, entry: Entry) -> int:
        """Return the time of the first entry of a block."""
        async with await self.open(entry) as handle:
            assert isinstance(handle, _BlockHandle), "`open` returns no other"
            return await handle.first_ms()

    async def _last_ms(self, entry: Entry) -> int:
        """Return the greatest time of a block."""
        async with await self.open(entry) as handle:
            return int((await handle.table())["timestamp_ms"].max())


@dataclass(slots=True, kw_only=True)
class _BlockHandle(EntryHandle):
    """The entries of one block as chunks. A data object that is gone is `Absent`."""

    name: str
    source: PulsarSource

    @property
    def where(self) -> str:
        return self.name

    async def table(self) -> ChunkTable:
        try:
            return await EntryHandle.table(self)
        except Corrupt as damage:
            raise _named(damage, self.name, self.numbered.listed.stream, self.source) from damage

    async def read(self, rows: ChunkTable) -> Buffer:
        try:
            return await EntryHandle.read(self, rows)
        except Corrupt as damage:
            raise _named(damage, self.name, self.numbered.listed.stream, self.source) from damage

    async def first_ms(self) -> int:
        """Return the time of the first entry, as a reader of one entry finds it."""
        run = await self.numbered.ledger.entries(self.first_entry, self.first_entry, size_bytes=1)
        return int(np.broadcast_to(np.asarray(run.timestamps_ms), 1)[0])


def _named(damage: Corrupt, name: str, stream: str, source: PulsarSource) -> Corrupt:
    if (damage.what, damage.found) == ("data object", "absent"):
        # The listing that named it is too old to tell a deletion from a loss.
        source.forget()
        return Absent(name, stream)
    return damage.within(damage.where, stream=stream)
