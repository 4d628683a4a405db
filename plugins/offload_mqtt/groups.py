"""Replay groups: members that share a replay by topic, through a note on the tier (decision 47).

    join     the first member sets the start
    take     the unit of a member that is gone, or the next one; else wait
    read     the unit from its place on, and hand its messages on
    save     every 20 seconds, and at the end: hand on what is kept, and then move the place in the note

No member leads, and there is no server. Members may come, die and stall at any time. A unit whose lease has
not changed for 60 seconds of a member's own clock is read by that member from the saved place on.

    stopped                    left behind                   cured by
    before a save              messages that were handed on  the next reader of the unit hands them on again
    between take and read      an open unit                  another member, when the lease has expired

Invariants: each message that the filters select is handed on at least once, and once if no member dies or
stalls; a place is saved only when everything before it was handed on; a member hands on nothing if its own
lease may have expired, so one that wakes up repeats a batch at most.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from offload.ground.env import Env
from offload.ground.errors import OutcomeUnknown, TryAgain
from offload.model.position import AtEdge, Position
from offload.native.offloader import ObjectStoreOffloader
from offload.native.shared_note import SharedNote
from offload_mqtt.group_note import GroupNote, OpenUnit, Watch, check_group
from offload_mqtt.iterators import HistoryTrimmed, ReplayIterator, ReplayUnit
from offload_mqtt.reading import ReplayRun
from offload_mqtt.replay import Replay
from offload_mqtt.topics import TopicFilter

__all__ = ["GroupMember"]

LEASE_SECONDS: Final = 60.0
SAVE_SECONDS: Final = LEASE_SECONDS / 3
LOOK_SECONDS: Final = 5.0
"""The time between two looks of a member that waits, on average."""
UNIT_CHUNKS: Final = 256
"""The most chunks of a unit: with chunks of 64 KiB, 16 MiB."""
CHANGES_MAX: Final = 8


async def _nothing() -> None:
    """Do nothing: what is handed on is safe at once."""


@dataclass(slots=True, kw_only=True)
class GroupMember:
    """One member of a group. It belongs to one event loop.

    `confirm` returns when everything that was handed on is safe. Other filters are another group, also under
    the same name. Raises what `Replay` and `SharedNote` raise; after an error, `runs` may be called again.
    """

    replay: Replay
    note: SharedNote
    filters: Sequence[str]
    env: Env
    confirm: Callable[[], Awaitable[None]] = _nothing
    chunks_max: int = UNIT_CHUNKS
    tell: Callable[[str], None] = lambda text: None
    """Called with what a person should know: a unit of another member was taken over, or history is gone."""
    member: bytes = field(init=False)
    _watch: Watch = field(init=False)
    _units: list[ReplayUnit] = field(default_factory=list, init=False)
    _until: float = field(default=0.0, init=False)
    """Until when its lease holds, by its own clock."""

    def __post_init__(self) -> None:
        self.member = self.env.uuid().bytes
        self._watch = Watch(self.env.monotonic, LEASE_SECONDS)

    @classmethod
    async def of(
        cls,
        tier: ObjectStoreOffloader,
        replay: Replay,
        stream: str,
        group: str,
        filters: Sequence[str],
        *,
        env: Env,
        confirm: Callable[[], Awaitable[None]] = _nothing,
        tell: Callable[[str], None] = lambda text: None,
    ) -> GroupMember:
        """Return a new member. Raises `Misuse` for names and filters that MQTT does not allow."""
        texts = sorted({TopicFilter.parse(each).text for each in filters})
        digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
        note = await SharedNote.of(tier, stream, f"mqtt.{check_group(group)}.{digest}", env=env)
        return cls(replay=replay, note=note, filters=texts, env=env, confirm=confirm, tell=tell)

    async def join(self, since: Position = AtEdge.FIRST) -> GroupNote:
        """Begin the group at a position, unless another member has begun it. Return the note.

        It also declares a group whose members come later.
        """
        at = ReplayIterator.parse(await self.replay.iterator(self.filters, since))
        begun = GroupNote.begun(at.part, at.offset, origin=at.origin, since_us=at.since_us)
        return await self._change(lambda note: note or begun)

    async def runs(
        self, since: Position = AtEdge.FIRST, *, follow: bool = False
    ) -> AsyncGenerator[ReplayRun, None]:
        """Yield messages until the group has handed on all that there is, or for ever if it follows.

        A run counts as handed on when the next one is asked for. Close the generator.
        """
        await self.join(since)
        while True:
            note = await self._take()
            held = note.held_by(self.member)
            if held is not None:
                async with aclosing(self._unit(note, held)) as runs:
                    async for run in runs:
                        yield run
            elif not self._units and not note.open and not follow:
                return
            else:
                await self.env.sleep(LOOK_SECONDS * (0.5 + self.env.random()))

    async def _take(self) -> GroupNote:
        """Take a unit, if one is free. The note says which."""
        note = await self._change(self._taken)
        if note.held_by(self.member) is None and not self._units:
            # No unit that was known is left: look for new ones.
            self._units = await self.replay.streams(self.filters, chunks_max=self.chunks_max)
            note = await self._change(self._taken)
        return note

    def _taken(self, note: GroupNote | None) -> GroupNote:
        assert note is not None, "`join` begins the note, and a member stops if it is gone"
        self._watch.see(note)
        at = note.cursor.part, note.cursor.offset
        self._units = [each for each in self._units if (each.part, each.next_offset) > at]
        return note.taken(self.member, self._units, self._watch.is_expired)

    async def _unit(self, note: GroupNote, held: OpenUnit) -> AsyncGenerator[ReplayRun, None]:
        """Yield the messages of a unit, and save its place. Ends early if another member has taken it."""
        unit, saved = held.unit, self.env.monotonic()
        if self._watch.is_foreign(held):
            self.tell(f"a member is gone: its unit is read on from offset {held.place}")
        at = ReplayIterator(
            self.note.stream,
            self.note.incarnation.hex if unit.part == 1 else "",
            tuple(self.filters),
            unit.part,
            held.place,
            note.origin if unit.part == note.start.part else 0,  # of a later part, everything is wanted
            note.since_us,
            unit,
        )
        place = held.place
        while True:
            try:
                async with aclosing(self.replay.runs(str(at))) as runs:
                    async for run in runs:
                        if self.env.monotonic() >= self._until and not await self._save(unit, place):
                            return
                        yield run
                        place = run.at.offset
                        if self.env.monotonic() - saved >= SAVE_SECONDS:
                            if not await self._save(unit, place):
                                return
                            saved = self.env.monotonic()
                break
            except HistoryTrimmed as gone:
                self.tell(str(gone))
                place = ReplayIterator.parse(gone.iterator).offset
                if place >= unit.next_offset:
                    break
                at = replace(at, offset=place)
        await self.confirm()
        await self._change(lambda note: note and (note.done(self.member, unit) or note))

    async def _save(self, unit: ReplayUnit, place: int) -> bool:
        """Save a place. Return False if another member has taken the unit."""
        await self.confirm()
        note = await self._change(lambda note: note and (note.moved(self.member, unit, place) or note))
        held = note.held_by(self.member)
        if held is None or held.unit != unit:
            self.tell(f"another member reads on in ledger {unit.ledger}: this one was too slow")
            return False
        return True

    async def _change(self, function: Callable[[GroupNote | None], GroupNote | None]) -> GroupNote:
        """Apply a function to the note. It may be applied twice: each of ours sees what it has done."""
        where = f"note {self.note.name!r} of stream {self.note.stream!r}"

        def changed(raw: bytes | None) -> bytes:
            note = function(None if raw is None else GroupNote.decode(raw, where=where))
            assert note is not None, "`join` begins the note, and a member stops if it is gone"
            return note.encode()

        for attempt in range(CHANGES_MAX):
            began = self.env.monotonic()
            try:
                note = GroupNote.decode(await self.note.change(changed), where=where)
            except (TryAgain, OutcomeUnknown):
                if attempt == CHANGES_MAX - 1:
                    raise
                await self.env.sleep(self.env.backoff_seconds(attempt, base_seconds=0.1))
                continue
            self._until = began + LEASE_SECONDS
            return note
        raise AssertionError("unreachable")
