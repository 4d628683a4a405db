"""The note of a replay group: who reads what, and how far. A value, and the changes that members make.

    start     where the group began: the first member sets it, and nobody changes it
    cursor    what is before it was taken: done, or in an open unit
    open      units that were taken and are not done, each with its place and its lease

So a history of any length is one cursor and the few units that are being read. A member takes an open unit
whose lease has expired, or else the next one behind the cursor. A lease has no time: it is a member and a
count that the member raises. Whoever has seen the same lease for 60 seconds of its own clock may take the
unit. So clocks need not agree, and one that is wrong costs messages twice, and never one.

Units are computed by each member from the indexes of the moment. They may differ, so a unit is cut to what
is behind the cursor, and to the ledger of the open ones. Each rule holds for any units in order of offsets.

Invariants: each offset from the start on is behind the cursor, or in an open unit from its place on, or done;
units of two ledgers are never open at once, so each topic is in order if nobody takes over; a note that a
stranger wrote is checked, and has at most `OPEN_MAX` units, which always fit into 64 KiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from offload.formats.shared_note import NOTE_VALUE_SIZE_BYTES_MAX
from offload.ground.errors import Corrupt, Misuse
from offload_mqtt.iterators import ReplayUnit

__all__ = ["GroupNote", "Lease", "OpenUnit"]

OPEN_MAX: Final = 256
"""The most units that are open at once. Each takes less than 128 bytes."""
VERSION: Final = 1

_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_Time = Annotated[int, msgspec.Meta(ge=-(2**62), lt=2**62)]


class Lease(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The right to read a unit: the UUID of a member, and a count that only this member raises."""

    member: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    beat: _Number = 0


class OpenUnit(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A unit that was taken. What it selects before the offset `place` was handed on."""

    unit: ReplayUnit
    place: _Number
    lease: Lease


class Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A place between units."""

    part: _Number
    offset: _Number
    within: bool = False
    """The unit before it is not the end of its ledger. It has the rest of a topic that goes on behind it."""


class GroupNote(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The note, decoded. Immutable: each change returns another one."""

    version: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)]
    start: Cursor
    origin: _Number
    """The replay leaves out what has a smaller offset in the origin."""
    since_us: _Time
    """The replay leaves out what is older."""
    cursor: Cursor
    open: Annotated[tuple[OpenUnit, ...], msgspec.Meta(max_length=OPEN_MAX)] = ()

    @classmethod
    def begun(cls, part: int, offset: int, *, origin: int, since_us: int) -> GroupNote:
        """Return the note of a group that begins."""
        start = Cursor(part, offset)
        return cls(VERSION, start, origin, since_us, start)

    def encode(self) -> bytes:
        """Return the note as bytes, at most 64 KiB."""
        raw = msgspec.msgpack.encode(self)
        assert len(raw) <= NOTE_VALUE_SIZE_BYTES_MAX
        return raw

    @classmethod
    def decode(cls, raw: bytes, *, where: str) -> GroupNote:
        """Undo `encode`. Raises `Corrupt` for bytes that no member writes."""
        try:
            found = msgspec.msgpack.decode(raw, type=cls)
        except msgspec.MsgspecError as exc:
            raise Corrupt("group note", where, expected="a note of a replay group", found=str(exc)) from exc
        units = [each.unit for each in found.open]
        ends = [each for unit in units for each in (unit.first_offset, unit.next_offset)]
        if ends != sorted(ends) or len({each.part for each in units}) > 1:
            raise Corrupt("group note", where, expected="units in order", found=units)
        if not all(map(_is_whole, found.open)):
            raise Corrupt("group note", where, expected="whole units", found=found.open)
        if any((each.part, each.next_offset) > (found.cursor.part, found.cursor.offset) for each in units):
            raise Corrupt("group note", where, expected="units before the cursor", found=found.cursor)
        return found

    def held_by(self, member: bytes) -> OpenUnit | None:
        """Return the unit that a member holds: it holds one at most."""
        return next((each for each in self.open if each.lease.member == member), None)

    def taken(
        self, member: bytes, units: Iterable[ReplayUnit], is_expired: Callable[[OpenUnit], bool]
    ) -> GroupNote:
        """Return the note after a member took a unit: its own, an expired one, or the next one.

        Returns this note if nothing is free now.
        """
        if self.held_by(member) is not None:  # the answer to an earlier request of this member was lost
            return self
        for each in self.open:
            if is_expired(each):
                return self._with(each, replace(each, lease=Lease(member)))
        unit = self._next(units)
        if unit is None or len(self.open) == OPEN_MAX:
            return self
        found = OpenUnit(unit, unit.first_offset, Lease(member))
        cursor = Cursor(unit.part, unit.next_offset, unit.next_offset < unit.ledger_end)
        return replace(self, cursor=cursor, open=(*self.open, found))

    def _next(self, units: Iterable[ReplayUnit]) -> ReplayUnit | None:
        at = self.cursor
        for unit in units:
            if (unit.part, unit.next_offset) <= (at.part, at.offset) or unit.part < at.part:
                continue
            if unit.part == at.part and unit.first_offset <= at.offset:
                # A topic that goes on here belongs to the unit before, if that is of the same ledger.
                ledger = unit.ledger if at.within else at.offset
                unit = replace(unit, first_offset=at.offset, ledger=ledger)
            end = min((each.unit.ledger_end for each in self.open), default=unit.ledger_end)
            if any(each.unit.part != unit.part for each in self.open) or unit.first_offset >= end:
                return None  # a later ledger: its turn comes when all units of this one are done
            end = min(end, unit.ledger_end)
            return replace(unit, next_offset=min(unit.next_offset, end), ledger_end=end)
        return None

    def moved(self, member: bytes, unit: ReplayUnit, place: int) -> GroupNote | None:
        """Return the note after a member came to a place in its unit. None if it holds this unit no more."""
        found = self.held_by(member)
        if found is None or found.unit != unit:
            return None
        lease = replace(found.lease, beat=found.lease.beat + 1)
        return self._with(
            found, replace(found, place=min(max(place, found.place), unit.ledger_end), lease=lease)
        )

    def done(self, member: bytes, unit: ReplayUnit) -> GroupNote | None:
        """Return the note after a member has done its unit. None if it holds this unit no more."""
        found = self.held_by(member)
        return None if found is None or found.unit != unit else self._with(found)

    def _with(self, old: OpenUnit, *new: OpenUnit) -> GroupNote:
        at = self.open.index(old)
        return replace(self, open=(*self.open[:at], *new, *self.open[at + 1 :]))


def _is_whole(each: OpenUnit) -> bool:
    unit = each.unit
    ends = (unit.ledger, unit.first_offset, unit.next_offset, unit.ledger_end)
    return (
        list(ends) == sorted(ends)
        and unit.first_offset < unit.next_offset
        and (unit.first_offset <= each.place <= unit.ledger_end)
    )


@dataclass(slots=True)
class Watch:
    """What one member has seen of leases, by its own clock."""

    now: Callable[[], float]
    lease_seconds: float
    _seen: dict[ReplayUnit, tuple[Lease, float]] | None = None

    def see(self, note: GroupNote) -> None:
        """Look at a note. A lease counts from the first look at it."""
        before, now = self._seen or {}, self.now()
        self._seen = {}
        for each in note.open:
            known = before.get(each.unit)
            since = known[1] if known is not None and known[0] == each.lease else now
            self._seen[each.unit] = each.lease, since

    def is_foreign(self, each: OpenUnit) -> bool:
        """Return whether another member held this unit at the last look."""
        seen = (self._seen or {}).get(each.unit)
        return seen is not None and seen[0].member != each.lease.member

    def is_expired(self, each: OpenUnit) -> bool:
        """Return whether the lease of a unit is as it was so long ago."""
        lease, since = (self._seen or {}).get(each.unit, (None, 0.0))
        return lease == each.lease and self.now() - since >= self.lease_seconds


def check_group(group: str) -> str:
    """Return the name of a group. Raises `Misuse` for one that MQTT does not allow in `$share/GROUP/…`."""
    if not group or {*group} & {*"/+#\0"} or len(group.encode()) > 1024:
        raise Misuse(f"group {group[:40]!r}: give 1 to 1024 bytes, without / + # and NUL")
    return group
