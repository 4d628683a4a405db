"""A source of ledgers that have entries and no chunks: `EntryLedgerStream` is one stream of them.

A record is an entry, untouched. `entry_chunks` cuts and builds chunks, and `entry_offsets` counts offsets.

A snapshot begins a chunk at the end of what is committed. So the same ledger and the same tier give the same
bytes in every process. The tail of a ledger that grows is cut elsewhere the next time, so histories are
compared entry by entry (`Snapshot.holds`).

Invariants: no entry is copied before its whole ledger was measured. If the answers of a ledger contradict
each other, or committed data, no more of it is copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Self

from offload.contracts.catalogue import Catalogue
from offload.contracts.entries import EntryLedger
from offload.contracts.source import Snapshot, SourceStream
from offload.entries.chunks import CHUNK_DATA_SIZE_BYTES, LENGTH_SIZE_BYTES, Cuts, EntryHandle, read_run
from offload.entries.offsets import (
    ListedLedger,
    NumberedLedger,
    Numbering,
    SeenLedger,
    SeenLedgers,
    check_listing,
)
from offload.formats.chunk import ChunkHeader
from offload.formats.entries import encode_run
from offload.ground.errors import Corrupt, Misuse
from offload.model.manifest import Manifest

__all__ = ["EntryLedgerStream"]


class EntryLedgerStream(SourceStream):
    """One stream: the ledgers that a function lists, the oldest first.

    The function is called for each snapshot and each mark, and returns new objects each time. The stream
    closes them. In the place of a ledger that cannot be read it may return the damage: the snapshot ends
    before it. Beside the errors of `SourceStream`, a snapshot raises `Diverged` if the ledgers cannot be
    those that were committed: one is missing between others, or has another number of entries. It raises
    `Misuse` if a property of a ledger is of the wrong type.
    """

    def __init__(
        self,
        name: str,
        ledgers: Callable[[], Awaitable[Sequence[EntryLedger | Corrupt]]],
        *,
        first_offset: int = 0,
        tier: Catalogue | None = None,
        on_gone: Callable[[int], None] = lambda ledger_id: None,
        chunk_size_bytes: int = CHUNK_DATA_SIZE_BYTES,
        ledgers_at_once: int | None = None,
    ) -> None:
        """`first_offset` is that of the oldest ledger if nothing is committed yet.

        A snapshot raises `Misuse` if it is above the first offset of the tier: it was another one before.

        `on_gone` is called with the id of the newest ledger on the tier if it is not listed any more, and no
        listing of this stream had it. Then nothing shows whether all of its entries were copied.

        `tier` is asked for its last chunk if the manifest alone does not show where the ledger of that chunk
        begins. Without it, and without `for_tier`, a snapshot then raises `Misuse`.

        A chunk has at most `chunk_size_bytes` of entries, or one larger entry. Readers that leave out chunks
        fetch less of smaller ones. If a ledger of the store is in memory while it is read, `ledgers_at_once`
        bounds how many a copy opens together. Raises `Misuse` unless both are at least 1.
        """
        if chunk_size_bytes < 1 or (ledgers_at_once is not None and ledgers_at_once < 1):
            raise Misuse(f"stream {name!r}: chunk_size_bytes and ledgers_at_once are 1 or more")
        self._chunk_size_bytes, self._ledgers_at_once = chunk_size_bytes, ledgers_at_once
        self._name, self._ledgers = name, ledgers
        self._first_offset, self._tier, self._on_gone = first_offset, tier, on_gone
        self._seen: SeenLedgers = {}
        self._cuts: dict[tuple[int, int], Cuts] = {}

    @property
    def name(self) -> str:
        """The name that was given."""
        return self._name

    @property
    def needs_since(self) -> bool:
        """True: offsets are counted on from what is committed."""
        return True

    def for_tier(self, tier: Catalogue) -> Self:
        """Return this stream, which asks the tier as its own, unless it was given another."""
        self._tier = self._tier or tier
        return self

    async def mark(self) -> Hashable:
        """Return a number that stands for the ids and sizes of the ledgers. Costs one listing."""
        ledgers, damage = await self._listed()
        mark = hash((str(damage), *((each.ledger_id, each.last_entry, each.is_sealed) for each in ledgers)))
        await _close(ledgers)
        return mark

    async def snapshot(self, since: Manifest | None = None) -> Snapshot:
        """Return the ledgers that are listed now. One with impossible facts ends the snapshot before it."""
        ledgers, damage = await self._listed()
        try:
            return await self._snapshot(ledgers, damage, since)
        except BaseException:
            await _close(ledgers)
            raise

    async def _listed(self) -> tuple[Sequence[EntryLedger], Corrupt | None]:
        """Return the ledgers before the first that cannot be read, and why it cannot."""
        ledgers: list[EntryLedger] = []
        damage: Corrupt | None = None
        for each in await self._ledgers():
            if isinstance(each, Corrupt):
                damage = damage or each
            elif damage is None:
                ledgers.append(each)
            else:
                await each.aclose()
        return ledgers, damage

    async def _snapshot(
        self, ledgers: Sequence[EntryLedger], unread: Corrupt | None, since: Manifest | None
    ) -> Snapshot:
        seen = self._seen
        if unread is not None:  # those behind the damage are not missing
            last_id = ledgers[-1].ledger_id if ledgers else -1
            seen = {ledger_id: facts for ledger_id, facts in seen.items() if ledger_id <= last_id}
        listed, damage = check_listing([ListedLedger.of(each, self._name) for each in ledgers], seen)
        if damage is None and unread is not None:
            damage = unread.within(unread.where, stream=self._name)
        numbering = Numbering(
            stream=self._name,
            first_offset=self._first_offset,
            since=since,
            seen=self._seen,
            tier=self._tier,
        )
        # Cut short before the end of the tier, the ledgers would look like those of a replica that lags.
        if damage is not None and (not listed or listed[-1].ledger_id < (numbering.newest_id or 0)):
            raise damage
        numbered, end = await numbering.numbered(listed)
        if damage is not None and end < numbering.end:
            raise damage
        if damage is None:
            self._tell_gone(listed, numbering.newest_id)
            self._remember(listed, numbering)
        committed = numbering.end
        # Not those of earlier ends of what is committed: a ledger that grows long would have one for each.
        lacking = {
            (each.ledger_id, first)
            for each in numbered
            for first, _ in _parts(each, committed)
            if each.next_offset > committed
        }
        self._cuts = {key: cuts for key, cuts in self._cuts.items() if key in lacking}
        return Snapshot(
            ledgers=[
                EntryHandle(
                    numbered=each,
                    first_entry=first,
                    stop=stop,
                    known=self._cuts,
                    chunk_size_bytes=self._chunk_size_bytes,
                )
                for each in numbered
                for first, stop in _parts(each, committed)
            ],
            first_offset=numbered[0].first_offset if numbered else end,
            next_offset=end,
            epoch=numbered[-1].chunk_epoch if numbered else 0,
            ledgers_at_once=self._ledgers_at_once,
            damage=damage,
            committed_offset=end,
            holds=_Comparison(numbered).reason,
        )

    def _tell_gone(self, listed: Sequence[ListedLedger], newest_id: int | None) -> None:
        is_known = newest_id in self._seen or any(each.ledger_id == newest_id for each in listed)
        if newest_id is not None and not is_known:
            self._on_gone(newest_id)

    def _remember(self, listed: Sequence[ListedLedger], numbering: Numbering) -> None:
        for each in listed:
            self._seen[each.ledger_id] = SeenLedger(each.count, each.length, each.is_sealed, each.first_entry)
        # Deleted ledgers are remembered until later ones are committed: they may not have been copied.
        newest = numbering.newest_id or 0
        oldest = min(newest, listed[0].ledger_id) if listed else newest
        self._seen = {ledger_id: seen for ledger_id, seen in self._seen.items() if ledger_id >= oldest}


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Compares a committed chunk with the ledgers of a snapshot."""

    ledgers: Sequence[NumberedLedger]

    async def reason(self, chunk: bytes) -> str | None:
        """Return why the ledgers do not have this chunk, or None if they do. See `Snapshot.holds`.

        Records that a ledger has no more are not compared.
        """
        header = ChunkHeader.decode(chunk, where="a committed chunk")
        ledger = next((each for each in self.ledgers if each.begin <= header.offset < each.next_offset), None)
        if ledger is None:
            return f"no ledger has offset {header.offset}"
        # A store may have begun to state epochs behind this chunk.
        if header.epoch not in (ledger.begin, ledger.chunk_epoch):
            return f"ledger {ledger.ledger_id} begins at offset {ledger.begin}, not {header.epoch}"
        if ledger.next_offset < header.next_offset:
            return f"ledger {ledger.ledger_id} ends at offset {ledger.next_offset}, within the chunk"
        stop = header.next_offset - ledger.begin
        entry = max(header.offset - ledger.begin, ledger.first_entry)
        at = _behind(chunk, header.data_start, entry + header.records - stop)
        while entry < stop:
            run = await read_run(ledger.ledger, entry, stop - 1, size_bytes=len(chunk), where=ledger.where)
            data = await asyncio.to_thread(encode_run, run.data, run.starts, run.ends)
            if chunk[at : at + len(data)] != data:
                return f"ledger {ledger.ledger_id} has other entries from {entry} on"
            entry, at = entry + len(run.ends), at + len(data)
        return None if at == header.trailer_start else f"ledger {ledger.ledger_id} has shorter entries"


def _behind(chunk: bytes, at: int, records: int) -> int:
    """Return where the data behind so many simple entries begins. At a sub-batch, it is beyond the chunk."""
    for _ in range(records):
        at += LENGTH_SIZE_BYTES + int.from_bytes(chunk[at : at + LENGTH_SIZE_BYTES], "big")
    return at


def _parts(ledger: NumberedLedger, committed: int) -> list[tuple[int, int]]:
    """Return the ledger's entries as ranges. One begins at the end of what is committed."""
    first, at = ledger.first_entry, committed - ledger.begin
    return [(first, at), (at, ledger.count)] if first < at < ledger.count else [(first, ledger.count)]


async def _close(ledgers: Sequence[EntryLedger]) -> None:
    """Close all of them, also if some fail. Raises the first error."""
    ended = await asyncio.gather(*(ledger.aclose() for ledger in ledgers), return_exceptions=True)
    for error in ended:
        if isinstance(error, BaseException):
            raise error
