"""The offsets of ledgers with entries: counted on from what a tier has, and compared with it.

A ledger begins where the one before it ends. The oldest ledgers may be deleted, and the others keep their
offsets: the entries of a manifest carry ledger ids, so a ledger that is on the tier is found there. The first
one that is not on the tier begins where the tier ends.

    tier     7: [0, 100)    9: [100, 250)   12: [250, 300)
    source                  9: 150 entries  12: 80 entries    13: 10 entries
    offsets                 [100, 250)      [250, 330)        [330, 340)

Each chunk carries the offset of entry 0 of its ledger as its leader epoch. So it shows which entry its first
record is, also if the beginning of the ledger was trimmed. A store that states the broker's own epoch keeps
this offset itself, and its chunks carry the epoch.

Invariant: a ledger gets offsets only if all that is known agrees on them. A ledger that is older than the
entries in the root gets none, and is left out: the tier has it. If the root shows that the tier never had it,
it was added too late, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import TypeAlias

from offload.contracts.catalogue import Catalogue, StreamView
from offload.contracts.entries import EntryLedger
from offload.copy.history import last_chunk
from offload.formats.chunk import ChunkHeader
from offload.ground.errors import Corrupt, Diverged, Misuse, NotOffloaded
from offload.model.manifest import CommittedStream, Manifest

__all__ = ["ListedLedger", "NumberedLedger", "first_offset_of_ledger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLedger:
    """A ledger, and what its store states of it."""

    stream: str
    ledger: EntryLedger
    ledger_id: int
    count: int
    length: int | None
    is_sealed: bool
    first_offset: int | None
    leader_epoch: int | None = None
    first_entry: int = 0

    @classmethod
    def of(cls, ledger: EntryLedger, stream: str) -> ListedLedger:
        """Return the facts of a ledger. Raises `Misuse` for one of the wrong type. Values are not checked."""
        optional = "first_offset", "leader_epoch", "length"
        numbers = {
            name: getattr(ledger, name)
            for name in ("ledger_id", "last_entry", "length", "first_entry", *optional)
        }
        for name, value in numbers.items():
            is_number = isinstance(value, Integral) and not isinstance(value, bool)
            if not is_number and not (name in optional and value is None):
                raise Misuse(f"stream {stream!r}: the {name} of a ledger is {value!r}, which is no integer")
        if ledger.leader_epoch is not None and ledger.first_offset is None:
            raise Misuse(f"stream {stream!r}: a ledger with a leader_epoch has a first_offset, too")
        if ledger.first_entry and ledger.first_offset is None:
            raise Misuse(f"stream {stream!r}: a ledger with a first_entry has a first_offset, too")
        return cls(
            stream=stream,
            ledger=ledger,
            ledger_id=ledger.ledger_id,
            count=ledger.last_entry + 1,
            length=ledger.length,
            is_sealed=ledger.is_sealed,
            first_offset=ledger.first_offset,
            leader_epoch=ledger.leader_epoch,
            first_entry=ledger.first_entry,
        )

    @property
    def where(self) -> str:
        """The ledger and its stream, for messages."""
        return f"ledger {self.ledger_id} of stream {self.stream!r}"


@dataclass(frozen=True, slots=True)
class SeenLedger:
    """The facts of a ledger in an earlier listing."""

    count: int
    length: int | None
    is_sealed: bool
    first_entry: int = 0


@dataclass(frozen=True, slots=True)
class NumberedLedger:
    """A ledger with at least one entry that can be read, and the offset of entry 0."""

    listed: ListedLedger
    begin: int

    @property
    def ledger(self) -> EntryLedger:
        """The ledger itself."""
        return self.listed.ledger

    @property
    def ledger_id(self) -> int:
        """The id of the ledger."""
        return self.listed.ledger_id

    @property
    def count(self) -> int:
        """The number of entries."""
        return self.listed.count

    @property
    def length(self) -> int | None:
        """The stated size of all entries. None if it is not known."""
        return self.listed.length

    @property
    def first_entry(self) -> int:
        """The first entry that can be read."""
        return self.listed.first_entry

    @property
    def first_offset(self) -> int:
        """The offset of the first entry that can be read."""
        return self.begin + self.first_entry

    @property
    def chunk_epoch(self) -> int:
        """The epoch in the headers of its chunks: the broker's own, or the offset of entry 0 without one."""
        return self.begin if self.listed.leader_epoch is None else self.listed.leader_epoch

    @property
    def next_offset(self) -> int:
        """The first offset after the ledger."""
        return self.begin + self.count

    @property
    def where(self) -> str:
        """The ledger and its stream, for messages."""
        return self.listed.where


@dataclass(frozen=True, slots=True)
class LedgerSpan:
    """The offsets of a ledger on a tier. `begin` is that of entry 0, or None if nothing shows it."""

    begin: int | None
    end: int


SeenLedgers: TypeAlias = dict[int, SeenLedger]
"""The facts of ledgers in earlier listings, by ledger id, in order."""


def check_listing(
    listed: Sequence[ListedLedger], seen: SeenLedgers
) -> tuple[list[ListedLedger], Corrupt | None]:
    """Return the ledgers before the first one that is wrong, and what is wrong with it."""
    ids = {each.ledger_id for each in listed}
    # Only the oldest ledgers are ever deleted.
    lost = sorted(each for each in seen if listed and each > listed[0].ledger_id and each not in ids)
    before: ListedLedger | None = None
    for rank, each in enumerate(listed):
        wrong = _wrong(each, before, seen.get(each.ledger_id))
        if wrong is None and lost and lost[0] < each.ledger_id:
            wrong = "ledger before it", f"ledger {lost[0]}, which was there before", "none"
        if wrong is not None:
            what, expected, found = wrong
            return [*listed[:rank]], Corrupt(what, each.where, expected=expected, found=found)
        before = each
    if before is not None and lost:
        expected = f"ledger {lost[0]}, which was there before"
        return [*listed], Corrupt("ledger behind it", before.where, expected=expected, found="none")
    return [*listed], None


def _wrong(
    each: ListedLedger, before: ListedLedger | None, seen: SeenLedger | None
) -> tuple[str, object, object] | None:
    """Return the first fact that cannot be: its name, the expected and the found value."""
    begin = each.first_offset
    rules: list[tuple[bool, str, object, object]] = [
        (0 <= each.ledger_id < 2**64, "ledger id", "0 or more, below 2^64", each.ledger_id),
        (0 <= each.count <= 2**63, "last entry", "-1 or more, below 2^63", each.count - 1),
        ((each.length or 0) >= 0, "length", "0 or more", each.length),
        (each.count > 0 or not each.length, "length without entries", 0, each.length),
        (0 <= each.first_entry <= each.count, "first entry", f"0 to {each.count}", each.first_entry),
        (begin is None or 0 <= begin < 2**64, "first offset", "0 or more, below 2^64", begin),
        (0 <= (each.leader_epoch or 0) < 2**64, "leader epoch", "0 or more, below 2^64", each.leader_epoch),
    ]
    if before is not None:
        rules += [
            (before.ledger_id < each.ledger_id, "ledger id", f"above {before.ledger_id}", each.ledger_id),
            (before.is_sealed, "ledger before it", "a sealed one", f"ledger {before.ledger_id}, open"),
            (
                each.first_entry == 0 or before.first_entry == before.count,
                "first entry",
                f"0, as ledger {before.ledger_id} has entries",
                each.first_entry,
            ),
        ]
    if seen is not None:
        rules += [
            (seen.count <= each.count, "entries", f"{seen.count} or more, as before", each.count),
            (
                seen.first_entry <= each.first_entry,
                "first entry",
                f"{seen.first_entry} or more, as before",
                each.first_entry,
            ),
            (
                not seen.is_sealed
                or (seen.count, seen.length, True) == (each.count, each.length, each.is_sealed),
                "sealed ledger",
                f"{seen.count} entries of {seen.length} bytes, as before",
                f"{each.count} entries of {each.length} bytes, {'sealed' if each.is_sealed else 'open'}",
            ),
        ]
    return next(((what, expected, found) for holds, what, expected, found in rules if not holds), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """Gives offsets to the ledgers of one listing."""

    stream: str
    first_offset: int
    since: Manifest | None
    seen: SeenLedgers
    tier: Catalogue | None

    async def numbered(self, listed: Sequence[ListedLedger]) -> tuple[list[NumberedLedger], int]:
        """Return the ledgers whose offsets are certain, and the offset at which they end.

        Raises `Diverged` if the ledgers contradict the tier or each other, and `Misuse` if nothing shows
        where the newest committed ledger begins, or if the first offset is above that of the tier.
        """
        # It may be below: a trim raises the first offset of a tier.
        if self.since is not None and self.since.first_offset < self.first_offset:
            raise Misuse(
                f"stream {self.stream!r} begins at offset {self.since.first_offset} on the tier, and cannot "
                f"begin at {self.first_offset}: leave the first offset out, or copy to another tier"
            )
        newest = self.newest_id
        spans = {} if self.since is None else _spans(self.since)
        by_id = {each.ledger_id: each for each in listed}
        if newest is not None and newest in by_id:
            spans[newest] = await self._newest_span(spans.get(newest), by_id[newest])
        elif newest is not None and listed and listed[0].ledger_id < newest:
            first = listed[0].ledger_id
            raise self._diverged(
                f"ledger {newest} is on the tier, and the source has ledger {first} but not this"
            )
        numbered: list[NumberedLedger] = []
        at: int | None = None
        for each in listed:
            begin, span = each.first_offset, spans.get(each.ledger_id)
            if begin is None and span is not None:
                begin = span.begin
            if begin is None and at is None and (newest is None or each.ledger_id > newest):
                begin = self.end + self._lost(each.ledger_id, spans)
            if begin is None and at is None and self._is_new(each, spans):
                raise self._diverged(
                    f"ledger {each.ledger_id} is older than ledger {newest}, and the tier has only the newer "
                    "one: it was added behind it"
                )
            if at is not None and begin is not None and at != begin:
                raise self._diverged(
                    f"ledger {each.ledger_id} begins at offset {begin}, but the one before it in the source "
                    f"ends at {at}: a ledger between them is missing, or was added"
                )
            at = begin if at is None else at
            if at is None:
                continue
            if at + each.count >= 2**64:
                limit = f"offsets below 2^64 from {at} on"
                raise Corrupt("number of entries", each.where, expected=limit, found=each.count)
            if each.first_entry < each.count:
                numbered.append(NumberedLedger(each, at))
            at += each.count
        return numbered, self.end if at is None else at

    @property
    def end(self) -> int:
        """The end of the tier, at which the first ledger begins that is not on it."""
        return self.first_offset if self.since is None else self.since.next_offset

    @property
    def newest_id(self) -> int | None:
        """The id of the newest ledger on the tier. None if the tier never had one."""
        since = self.since
        # The root of a stream without data has id 0, and one that was trimmed to nothing may have it, too.
        if since is None or not (since.fragments or since.last_ledger_id or self.end != self.first_offset):
            return None
        return since.last_ledger_id

    async def _newest_span(self, span: LedgerSpan | None, listed: ListedLedger) -> LedgerSpan:
        assert self.since is not None, "it has a newest ledger"
        if span is None:
            span = LedgerSpan(None, self.since.next_offset)
        if span.begin is not None or listed.first_offset is not None:
            return span
        if self.tier is None or not self.since.fragments:
            raise Misuse(
                f"{listed.where}: the tier's manifest does not show where it begins: that was trimmed, "
                "or is in a group: pass `tier` to EntryLedgerStream, or return EntryLedger.first_offset"
            )
        raw = await last_chunk(self.tier, self.since)
        return LedgerSpan(
            ChunkHeader.decode(raw, where=f"last chunk of {self.since.stream!r}").epoch, span.end
        )

    def _lost(self, oldest: int, spans: dict[int, LedgerSpan]) -> int:
        """Return the number of entries that went before they were copied, as far as this process saw them.

        They keep their offsets, so that the gap is reported.
        """
        newest = self.newest_id
        lost = 0
        for ledger_id, seen in self.seen.items():
            if ledger_id == newest:
                span = spans.get(ledger_id)
                if span is not None and span.begin is not None:
                    lost += max(span.begin + seen.count - span.end, 0)
            elif ledger_id < oldest and (newest is None or ledger_id > newest):
                lost += seen.count
        return lost

    def _is_new(self, each: ListedLedger, spans: dict[int, LedgerSpan]) -> bool:
        """Return True if a ledger that is older than the newest on the tier was certainly never there.

        The root shows it between two of its ledgers. Before all of them it does so if nothing was trimmed.
        """
        since = self.since
        if since is None or not each.count or not spans or each.ledger_id in spans:
            return False
        is_all = since.first_offset == self.first_offset and not since.entries["kind"].any()
        return is_all or min(spans) < each.ledger_id

    def _diverged(self, reason: str) -> Diverged:
        return Diverged(f"stream {self.stream!r}: {reason}")


async def first_offset_of_ledger(view: StreamView, ledger_id: int) -> int:
    """Return the offset that entry 0 of a ledger has on a tier, or had before it was trimmed.

    Entry `n` is the record at this offset plus `n`. An `EntryLedgerStream` filled the tier, from ledgers
    without a `leader_epoch`: a store that states one knows the offset. Costs a search in the manifest and two
    small reads. Raises `NotOffloaded` if the tier has nothing of the ledger.
    """
    low, high = view.committed.first_offset, view.committed.next_offset
    while low < high:
        entry = await view.find((low + high) // 2)
        assert entry is not None, "the offset is committed"
        if entry.ledger_id == ledger_id:
            async with await view.open(entry) as handle:
                raw = bytes(await handle.read((await handle.table())[:1]))
                return ChunkHeader.decode(raw, where=handle.where).epoch
        # Ids ascend with offsets.
        low, high = (entry.next_offset, high) if entry.ledger_id < ledger_id else (low, entry.first_offset)
    raise NotOffloaded(f"stream {view.committed.stream!r} of the tier has nothing of ledger {ledger_id}")


def _spans(since: CommittedStream) -> dict[int, LedgerSpan]:
    """Return the offsets of the ledgers that the root names without a group: none if it is empty."""
    rows = since.entries[since.entries["kind"] == 0]
    ids = rows["ledger_id"]
    firsts = [row for row in range(len(ids)) if row == 0 or ids[row] != ids[row - 1]]
    spans: dict[int, LedgerSpan] = {}
    for first, stop in pairwise([*firsts, len(rows)]):
        # The first row of all may continue a ledger. It says whether it does.
        is_beginning = first > 0 or bool(rows["ledgers"][first])
        last = rows[stop - 1]
        begin = int(rows["first_offset"][first]) if is_beginning else None
        spans[int(ids[first])] = LedgerSpan(begin, int(last["first_offset"]) + int(last["records"]))
    return spans
