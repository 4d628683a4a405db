"""Shared notes: a small value of a stream on its tier, which several processes change by functions.

    note = await SharedNote.of(tier, "topics", "group.g1", env=env)
    value = await note.change(lambda old: take_a_unit(old or b""))

A note is a sequence of numbered objects. The newest one by listing has the value. To change it, a process
applies its function to the newest value, and creates the next number if it is absent. The loser loads the
newest, and applies its function again. After every create a listing decides, for the same reasons as with
roots (`commit.log`):

    highest is     and                             then the change
    n              the create succeeded            is in: a number is taken only once while it is the newest
    n              else, the object there is ours  is in: the reply to our create was lost
    above n        our UUID is where n's must be   is in, and others came after it
    above n        another UUID is there           is not in, and never will be: load again
    above n + 32                                   may be in: `OutcomeUnknown`
    below n        -                               has not landed: send the same bytes again

The two newest objects are kept, so that a reader finds the object that it has just listed. The author of
number n deletes those below n - 1. So a stalled process may create a number again that was deleted: a zombie.
It is below the newest, so nobody believes it, and the next author or a sweep deletes it.

A note belongs to one life of the stream. A stream that is deleted and begun again has no notes. Once the life
has ended, a sweep deletes its notes, and nothing is promised about them: who stalled may begin one again,
which the next sweep deletes. An object also has a root's version, so that a note of a life that only lost
roots knew proves the loss.

    stopped                        left behind             cured by
    before the create              nothing                 nothing to cure
    during the create              a new value, or none    the next change, which loads the newest
    before the delete              a third object          the next change, or a sweep

Invariants: of two changes of one value, one is in, and the loser applies its function to the winner's result.
What is not sound is never guessed: a damaged newest object is `Corrupt`, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

from offload.contracts.store import Listed, ObjectStore, Span
from offload.formats.keys import NOTE_NUMBER_MAX, NoteName, StreamKeys, escape
from offload.formats.shared_note import (
    NOTE_OBJECT_SIZE_BYTES_MAX,
    NOTE_PARENTS_MAX,
    NOTE_VALUE_SIZE_BYTES_MAX,
    NoteObject,
)
from offload.ground.env import Env
from offload.ground.errors import (
    AlreadyExists,
    Corrupt,
    Denied,
    Misuse,
    NoSpace,
    NotFound,
    NotOffloaded,
    OffloadError,
    OutcomeUnknown,
    TryAgain,
    UnsupportedFormat,
)
from offload.native.offloader import ObjectStoreOffloader
from offload.store.checked import checked

__all__ = ["SharedNote"]

NOTES_KEPT: Final = 2
NOTE_REQUESTS_MAX: Final = 8
"""How often one object is read or created before the call gives up."""
CHANGES_MAX: Final = 64
"""How often a function is applied before the call gives up. As many as a hundred members may compete."""
PAUSE_SECONDS_MAX: Final = 1.0

ChangeNote = Callable[[bytes | None], bytes]
"""Returns the next value for this one, which is None at first. It is called again if another change won."""


@dataclass(slots=True, kw_only=True)
class SharedNote:
    """One shared note, as one process uses it."""

    store: ObjectStore
    stream: str
    name: str
    incarnation: UUID
    base_version: int
    """A version of the stream's root in this life."""
    env: Env
    known: int = field(default=0, init=False)
    """The highest number that was seen."""

    @classmethod
    async def of(cls, tier: ObjectStoreOffloader, stream: str, name: str, *, env: Env) -> SharedNote:
        """Return a note of the present life of a stream. Nothing is stored before the first change.

        Raises `NotOffloaded` if there is no such stream, `StreamDeleted` if it was deleted, and `Misuse` for
        a name that no note can have: it has 1 to 4096 bytes.
        """
        escape(name)
        await tier.open()
        root = await tier.load_manifest(stream)
        return cls(
            store=tier.store,
            stream=stream,
            name=name,
            incarnation=root.incarnation,
            base_version=root.version,
            env=env,
        )

    async def load(self) -> bytes | None:
        """Return the value, or None if the note was never changed.

        Raises `Corrupt` if the newest object is damaged or a stranger's, `NotOffloaded` if the note is gone,
        and `TryAgain` if it changes faster than it can be read.
        """
        newest = await self._newest(confirmed=True)
        return None if newest is None else newest.value

    async def change(self, function: ChangeNote) -> bytes:
        """Apply `function` to the newest value, store its result, and return it.

        If the result equals the value, nothing is stored. The result of exactly one call of the function is
        in when this returns. Raises `Misuse` if the result is larger than 64 KiB, and what the function and
        `load` raise. `TryAgain` promises that nothing was changed. After `OutcomeUnknown` and `Corrupt` the
        change may be in.
        """
        for attempt in range(CHANGES_MAX):
            base = await self._newest()
            value = function(None if base is None else base.value)
            if len(value) > NOTE_VALUE_SIZE_BYTES_MAX:
                raise Misuse(f"note {self.name!r}: a value of {len(value)} bytes; 65,536 is the most")
            if base is not None and value == base.value:
                # What was read may be a zombie, which never was a value.
                if await self._highest() == base.name.number:
                    return value
            elif await self._is_in(self._after(base, value)):
                return value
            await self._pause(attempt)
        raise TryAgain(f"{self._where()} changes faster than this process can change it; run again")

    def _after(self, base: NoteObject | None, value: bytes) -> NoteObject:
        number, parents = (0, ()) if base is None else (base.name.number, (base.uid, *base.parents))
        if number == NOTE_NUMBER_MAX:
            raise Corrupt("note number", self._key(number), expected="one below the last", found=number)
        return NoteObject(
            name=self._name(number + 1),
            base_version=self.base_version,
            uid=self.env.uuid(),
            parents=parents[:NOTE_PARENTS_MAX],
            value=value,
        )

    async def _is_in(self, mine: NoteObject) -> bool:
        """Create an object, and return True if it became a value of the note, and False if it never will."""
        number, raw = mine.name.number, mine.encode(StreamKeys(self.stream))
        is_open = False  # true once a create was sent that may still land
        for attempt in range(NOTE_REQUESTS_MAX):
            # The same bytes each time, so it is safe to send them again after a lost reply.
            created, refusal = False, None
            try:
                await self.store.create(self._key(number), raw)
                created = True
            except AlreadyExists:  # perhaps ours: a client library may have sent it twice
                self.known = max(self.known, number)
            except (Denied, NoSpace) as exc:
                refusal = exc
            except (TryAgain, OutcomeUnknown):
                pass
            try:
                highest = await self._highest()
                if highest > number or (highest == number and not created):
                    return await self._shows(mine)
            except (Corrupt, UnsupportedFormat):
                raise
            except OffloadError as exc:
                raise self._unknown(number) from exc
            if highest == number:
                await self._delete_before(number)
                return True
            if refusal is not None and not is_open:
                raise refusal
            is_open = True
            await self._pause(attempt)
        raise self._unknown(number)

    async def _shows(self, mine: NoteObject) -> bool:
        """Return whether the newest object is this one, or has it among its parents."""
        newest = await self._newest(confirmed=True)
        distance = -1 if newest is None else newest.name.number - mine.name.number
        if newest is None or not 0 <= distance <= NOTE_PARENTS_MAX:
            raise self._unknown(mine.name.number)
        return (newest.uid, *newest.parents)[distance] == mine.uid

    async def _newest(self, *, confirmed: bool = False) -> NoteObject | None:
        """Return the newest object. If `confirmed`, it was the newest after it was read: it is no zombie."""
        for attempt in range(NOTE_REQUESTS_MAX):
            number = await self._highest()
            if not number:
                return None
            with suppress(NotFound):  # superseded, and deleted since it was listed
                found = await read_note(self.store, self.stream, self._name(number))
                if not confirmed or await self._highest() == number:
                    return found
            await self._pause(attempt)
        if not await self._listed():
            raise NotOffloaded(
                f"{self._where()} is gone: the stream was deleted or begun again, or somebody removed it"
            )
        raise TryAgain(f"{self._where()} changes faster than it can be read; run again")

    async def _highest(self) -> int:
        """Return the highest number by a listing, or one that was seen before. 0 if there is none."""
        names = [StreamKeys(self.stream).parse_note(row.key) for row in await self._listed()]
        self.known = max([self.known, *(name.number for name in names if name is not None)])
        return self.known

    async def _listed(self) -> list[Listed]:
        prefix = StreamKeys(self.stream).notes_of_life(escape(self.name), self.incarnation)
        return [row async for row in self.store.list(prefix)]

    async def _delete_before(self, number: int) -> None:
        """Delete what is below the two newest. If that fails, a later change or a sweep does it."""
        with suppress(OffloadError):
            parsed = [(StreamKeys(self.stream).parse_note(row.key), row.key) for row in await self._listed()]
            gone = [key for name, key in parsed if name and name.number <= number - NOTES_KEPT]
            if gone:
                await self.store.delete(gone)

    def _name(self, number: int) -> NoteName:
        return NoteName(escape(self.name), self.incarnation, number)

    def _key(self, number: int) -> str:
        return StreamKeys(self.stream).note(self._name(number))

    def _where(self) -> str:
        return f"note {self.name!r} of stream {self.stream!r}"

    def _unknown(self, number: int) -> OutcomeUnknown:
        return OutcomeUnknown(f"{self._key(number)}: nothing shows whether this change is in; look again")

    async def _pause(self, attempt: int) -> None:
        await self.env.sleep(self.env.backoff_seconds(attempt, max_seconds=PAUSE_SECONDS_MAX))


async def read_note(store: ObjectStore, stream: str, name: NoteName) -> NoteObject:
    """Return one object of a note. Raises `Corrupt`, `UnsupportedFormat`, or `NotFound`."""
    key = StreamKeys(stream).note(name)
    try:
        # A stranger's object may have any size: no more of it is fetched than a note can have.
        span = Span(0, NOTE_OBJECT_SIZE_BYTES_MAX + 1)
        return await checked(store, key, partial(NoteObject.decode, name=name, where=key), span=span)
    except Corrupt as damage:
        raise damage.within(key, stream=stream) from damage
