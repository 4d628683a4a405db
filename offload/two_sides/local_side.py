"""The disk of a reader that also has a tier: one snapshot at a time, compared before anything of it is read.

A snapshot is taken when the source's mark has changed, and closed when it was read to its end, or when the
tier is read instead. Between two windows at most two files of the source are open: that of the ledger which
is being read, and that of the ledger with the tier's last chunk. A reader that waits for new data holds none.

Invariants: what is delivered was checked as a tier checks what it stores, and is vouched for (`arrivals`); a
snapshot is read only if it has the last chunk that was delivered, as far as it reaches back to it, and the
last chunk of the tier.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from offload.contracts.chunks import StoredChunk
from offload.contracts.ledger import ReadHandle
from offload.contracts.source import Snapshot, SourceStream
from offload.copy.history import check_chunk
from offload.copy.hold_back import Arrivals, vouched_end
from offload.formats.chunk import CHUNK_HEADER, ChunkHeader
from offload.formats.chunk_check import check_source
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Diverged, Divergence, NotOffloaded, OffloadError, TryAgain
from offload.model.chunk_table import ChunkTable, row_from, row_holding
from offload.model.position import Position
from offload.read.batches import Window, chunks_in
from offload.read.snapshots import attach
from offload.two_sides.choice import NOTHING, Extent, Failure
from offload.two_sides.tier_side import FilesGone, TierSide, reading_source

TRIES: Final = 3
"""How often a read begins again with a new snapshot before the source counts as gone for now."""

ADVICE: Final = "to read the tier alone, leave the source out"


@dataclass(frozen=True, slots=True)
class Delivered:
    """The last chunk that a reader has delivered: its header, or all of it if the source compares records."""

    chunk: bytes
    is_local: bool
    """True if it came from the source, and nothing shows that the tier has it."""

    @property
    def header(self) -> ChunkHeader:
        """The header of the chunk."""
        return ChunkHeader.decode(self.chunk, where="the last chunk that was read")


@dataclass(slots=True)
class Believed:
    """How far a source is believed. All reads of one reader share it."""

    source: SourceStream
    hold_back_seconds: float
    env: Env
    shown: int = 0
    """The end of what may be believed."""
    pending_seconds: float | None = None
    """The time from the last look until more of what it found may be believed. None if nothing waits."""
    _arrivals: Arrivals = field(default_factory=Arrivals)

    async def end(self, snapshot: Snapshot) -> int:
        """Return the offset up to which this new snapshot may be believed."""
        now, end = self.env.monotonic(), snapshot.next_offset
        self._arrivals.notice(end, since_seconds=now, seen_seconds=now)
        self.shown = min(self.shown, end)
        vouched = await vouched_end(
            self.source,
            snapshot,
            self._arrivals,
            seen_seconds=now,
            hold_back_seconds=self.hold_back_seconds,
        )
        self.shown = max(self.shown, vouched)
        self._arrivals.forget(self.shown)
        oldest, old = self._arrivals.oldest, now - self.hold_back_seconds
        is_new = oldest is not None and oldest.seen_seconds > old
        self.pending_seconds = oldest.seen_seconds - old if oldest is not None and is_new else None
        return self.shown


@dataclass(slots=True, kw_only=True)
class LocalSide:
    """A stream of a source. Used by one read, and closed with it."""

    source: SourceStream
    tier: TierSide
    believed: Believed
    extent: Extent = NOTHING
    """The range that may be read, as the last look found it."""
    next_offset: int = 0
    """The end of the source at the last look, which may be more than what may be read."""
    error: OffloadError | None = None
    """The reason why the last look found nothing, if the source may have something."""
    damage: Corrupt | None = None
    """The damage at which the source ends."""

    _snapshot: Snapshot | None = None
    _mark: Hashable | None = None
    _compared: object = None
    """The state of the tier that the snapshot was compared with."""
    _failure: Failure | None = None
    _doubted: int | None = None
    """The offset at which a chunk seemed damaged. It is read again from a new snapshot."""
    _tries: int = 0

    @property
    def is_open(self) -> bool:
        """True if there is a snapshot to read from."""
        return self._snapshot is not None

    @property
    def compares_records(self) -> bool:
        """True if chunks of the source may be cut elsewhere the next time."""
        return self._snapshot is not None and self._snapshot.holds is not None

    def held_back_from(self, offset: int) -> int | None:
        """Return the first offset from `offset` on that the source has, and that may not be read yet."""
        begin = max(self.extent.first, self.extent.end, offset)
        return begin if self.extent is not NOTHING and begin < self.next_offset else None

    async def look(self, delivered: Delivered | None, *, anew: bool = False) -> None:
        """Find out what may be read, and take a snapshot if the source has changed, or `anew`.

        Raises `Diverged` if the source has another history than what was delivered or is on the tier. If the
        source is gone for now, or damaged as a whole, `error` is set. If its files go away while they are
        compared, another snapshot is taken. Other errors are raised, such as `TryAgain` of a store.
        """
        for tries_left in reversed(range(TRIES)):
            try:
                mark = await self.source.mark()
                is_known = mark is not None and mark == self._mark and self._compared is self.tier.manifest
                if is_known and not anew and self.error is None and self.extent.end == self.next_offset:
                    return
                await self.aclose()
                snapshot = await self.source.snapshot(self.tier.since)
            except (TryAgain, NotOffloaded, Corrupt) as error:
                await self._lose(error)
                return
            self._snapshot, self.error = snapshot, None
            try:
                await self._show(snapshot, delivered)
            except FilesGone as gone:
                await self._lose(None if tries_left else gone.error)
            except BaseException:
                await self.aclose()
                raise
            else:
                # Only now: if the comparison failed, the next look must not believe that nothing is new.
                self._mark, self._compared = mark, self.tier.manifest
                return

    async def has_news(self) -> bool:
        """Return whether another look may find more, or other reasons why there is nothing."""
        try:
            mark = await self.source.mark()
        except (TryAgain, NotOffloaded, Corrupt):
            return self.error is None
        return mark is None or mark != self._mark or self.extent.end != self.next_offset

    async def changed(self) -> bool:
        """Wait until the source has changed, if it can tell. Otherwise return False at once."""
        return self._mark is not None and self.error is None and await self.source.changed(self._mark)

    async def chunks(self, part: int, offset: int, until: int) -> AsyncGenerator[StoredChunk, None]:
        """Yield what may be read from the chunk that holds `offset` on, as chunks of this part.

        Between two steps, a window of about 4 MiB is held. Ends early if the broker has deleted the files, or
        if a chunk is damaged: another look then says what is left.
        """
        assert self._snapshot is not None, "the caller has looked"
        limit = self.extent.end
        for ledger in self._snapshot.ledgers:
            if ledger.next_offset <= offset:
                continue
            if ledger.first_offset >= until:
                break
            try:
                table = await ledger.table()
                rows = table[row_holding(table, offset) : row_from(table, until)]
                for wanted in ledger.windows(_up_to(rows, limit)):
                    try:
                        data = await ledger.read(wanted)
                    except Corrupt as error:
                        self._doubt(*await _unreadable(ledger, wanted, error))
                        return
                    damage = await asyncio.to_thread(_damage, data, wanted, ledger.where)
                    if damage is not None:
                        # The sound chunks before it are read again, up to the end of the extent.
                        row = wanted[_row_of(wanted, damage)]
                        begin = int(row["offset"])
                        self._doubt(begin, begin + int(row["records"]), damage)
                        return
                    self._tries, self._doubted = 0, None
                    for chunk in chunks_in(Window(wanted, data, ledger.where), part=part):
                        yield chunk
                await ledger.aclose()
            except Corrupt as damage:
                self._doubt(max(offset, ledger.first_offset), ledger.next_offset, damage)
                return
            except TryAgain as error:
                self._tries += 1
                await self._lose(error if self._tries >= TRIES else None)
                return

    async def attach(self, position: Position) -> int:
        """Return the offset at which reading the source from a position begins (`read.snapshots`)."""
        assert self._snapshot is not None, "the caller has looked"
        return await attach(self._snapshot, position)

    async def aclose(self) -> None:
        """Close the snapshot. The result of the last look stays known. Idempotent."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            await snapshot.aclose()

    async def _show(self, snapshot: Snapshot, delivered: Delivered | None) -> None:
        """Compare a new snapshot, and note what may be read of it."""
        self.next_offset, self.damage = snapshot.next_offset, snapshot.damage
        self.extent = NOTHING
        is_on_tier = await self._continues_tier(snapshot, delivered)
        if is_on_tier is None:
            return
        with reading_source():
            end = await self.believed.end(snapshot)
        if is_on_tier:
            # The tier has it, so somebody has vouched for it already.
            end = max(end, self.tier.extent(self.tier.newest).end)
        if delivered is not None and await self._continues(snapshot, delivered, is_on_tier=is_on_tier):
            end = max(end, delivered.header.next_offset)
        end = await _end_of_chunk(snapshot, min(end, snapshot.next_offset))
        self.extent = Extent(snapshot.first_offset, end, self._failure)

    async def _continues_tier(self, snapshot: Snapshot, delivered: Delivered | None) -> bool | None:
        """Return whether a comparison with the tier shows one history.

        Returns None for a source that ends before the tier and has another history there: it may be a replica
        that has not cut its tail yet.
        """
        try:
            return await self.tier.compare(snapshot)
        except Diverged as error:
            if error.kind is not Divergence.BEHIND:
                raise Diverged(f"{error}; {ADVICE}", kind=error.kind) from error
            # A log that was cut may have lost records that were delivered, and that the tier does not have.
            if delivered is not None and delivered.is_local:
                self._refuse_lost(snapshot, delivered)
            return await self._lags(snapshot)
        except (TryAgain, Corrupt):
            # The store is down, or damaged. The delivered chunk is proof enough, if it is comparable.
            if delivered is None or not await self._continues(snapshot, delivered, is_on_tier=False):
                raise
            return False

    async def _continues(self, snapshot: Snapshot, delivered: Delivered, *, is_on_tier: bool) -> bool:
        """Raise `Diverged` unless the snapshot has the last delivered chunk. False if nothing shows it."""
        header = delivered.header
        if not delivered.is_local and is_on_tier:
            return True  # it is on the tier, and the tier's last chunk is in the source
        if snapshot.first_offset >= header.next_offset:
            return False
        if snapshot.next_offset < header.next_offset:
            self._refuse_lost(snapshot, delivered)
            return False
        if snapshot.holds is not None and len(delivered.chunk) <= CHUNK_HEADER.size_bytes:
            return False  # there are no records to compare
        try:
            with reading_source():
                await check_chunk(self.source.name, delivered.chunk, snapshot, held_by="reader")
        except Diverged as error:
            raise Diverged(f"{error}; {ADVICE}", kind=error.kind) from error
        return True

    async def _lags(self, snapshot: Snapshot) -> bool | None:
        """Compare a source that ends before the tier by the source's last chunk, as `_continues_tier`."""
        if not snapshot.ledgers:
            return False
        last = snapshot.ledgers[-1]
        try:
            raw = bytes(await last.read((await last.table())[-1:]))
            if snapshot.holds is None:
                raw = raw[: CHUNK_HEADER.size_bytes]  # its epoch and CRC say more than its records
            is_held = await self.tier.holds(self.tier.newest, raw)
        except (TryAgain, Corrupt):
            return None  # the next look may show it
        return None if is_held is False else is_held is True

    def _refuse_lost(self, snapshot: Snapshot, delivered: Delivered) -> None:
        """Raise `Diverged` if records were delivered that neither the source nor the tier has now."""
        end = delivered.header.next_offset
        tier = self.tier.manifest
        if snapshot.next_offset < end and (tier is None or tier.next_offset < end):
            raise Diverged(
                f"stream {self.source.name!r}: records were read up to offset {end}, but the source ends at "
                f"offset {snapshot.next_offset} now, and the tier does not have them: the broker has cut "
                f"its log; {ADVICE}",
                kind=Divergence.BEHIND,
            )

    async def _lose(self, error: OffloadError | None) -> None:
        """Give up the snapshot. With an error, the source has nothing for now."""
        await self.aclose()
        self._mark = None
        if error is not None:
            self.error, self.extent, self._tries = error, NOTHING, 0

    def _doubt(self, begin: int, end: int, damage: Corrupt) -> None:
        """Read offsets that seem damaged once more, from a new snapshot. After that, leave them out."""
        self._mark = None
        if self._doubted != begin:
            self._doubted = begin  # the broker may have cut and rewritten its log under the snapshot
            return
        self._failure = Failure(begin, end, damage.within(damage.where, stream=self.source.name))
        self.extent = self.extent.without(self._failure)


async def _end_of_chunk(snapshot: Snapshot, end: int) -> int:
    """Return the end of the last chunk that ends at or before `end`."""
    if end == snapshot.next_offset:
        return end
    for ledger in snapshot.ledgers:
        if ledger.first_offset < end < ledger.next_offset:
            try:
                rows = _up_to(await ledger.table(), end)
            except (Corrupt, TryAgain):  # reading it finds out
                return end
            return int(rows["offset"][-1]) + int(rows["records"][-1]) if len(rows) else ledger.first_offset
    return end


def _up_to(rows: ChunkTable, limit: int) -> ChunkTable:
    """Return the chunks that end at `limit` or before."""
    return rows[: int(np.searchsorted(rows["offset"] + rows["records"], np.uint64(limit), side="right"))]


def _damage(data: bytes | memoryview, rows: ChunkTable, where: str) -> Corrupt | None:
    try:
        check_source(data, rows, where=where)
    except Corrupt as damage:
        return damage
    return None


async def _unreadable(ledger: ReadHandle, rows: ChunkTable, damage: Corrupt) -> tuple[int, int, Corrupt]:
    """Return the offsets of the first of these chunks that the source refuses to read, and why it does.

    A source that checks its records as it reads them refuses all of a window because of one.
    """
    for row in range(len(rows)):
        try:
            await ledger.read(rows[row : row + 1])
        except Corrupt as error:
            begin = int(rows["offset"][row])
            return begin, begin + int(rows["records"][row]), error
    return int(rows["offset"][0]), int(rows["offset"][-1] + rows["records"][-1]), damage


def _row_of(rows: ChunkTable, damage: Corrupt) -> int:
    """Return the row of the damaged chunk."""
    return max(int(np.searchsorted(rows["position"], np.uint64(damage.position), side="right")) - 1, 0)
