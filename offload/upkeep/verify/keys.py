"""The judgement of key objects, and the keys that encrypted fragments need.

    a key object                                       is
    does not decode, or belongs elsewhere              damage
    of a life that has ended                           explained: a sweep or a shred deletes it
    beside a newer generation that has both copies     explained: a rotation did not finish
    differs from its copy                              damage
    without its copy, and another generation has both  explained: a rotation did not finish
    `.key` without `.copy`, which is made first        damage
    `.copy` without `.key`, and a fragment needs it    damage
    `.copy` without `.key` otherwise                   explained: it is being made, or a crash left it
    refused by the key service                         not checked: the service may be another one

Invariants: a copy that is missing is judged by a listing that is newer than the miss, so a sync, a rotation
or a shred beside the verify causes no damage; a key is asked of the key service once in a run, and again
only when its time in memory is over; a fragment whose key was refused counts as not opened, and the refusal
is reported once, under the name of the key object.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

from offload.commit.log import RootLog
from offload.contracts.store import ObjectStore
from offload.formats.anchor import KeyObject
from offload.formats.fragment import FragmentTail
from offload.formats.keys import StreamKeys
from offload.formats.sealing import unwrapped
from offload.ground.errors import Corrupt, Denied, NotFound, NotOffloaded, StoreDenied
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import Manifest, StreamState
from offload.native.anchors import read_anchor
from offload.native.fragment_reader import load_tail
from offload.native.key_objects import decode_key_object, search_key
from offload.native.key_ring import KeyRing
from offload.native.lost_roots import loss_shown_by_base
from offload.upkeep.verify.report import Unchecked, VerifyLevel, VerifyReport, counting, explain

__all__ = ["ReadKeys"]

LOOKS_MAX: Final = 8
"""How often a key is looked at, if each time a copy is gone that a listing showed."""

ENDED: Final = "left by a deleted life of the stream; a sweep deletes it"
UNFINISHED: Final = "a rotation of this key is under way, or did not finish; `offload rotate` finishes it"
UNUSED: Final = "one copy of a key that no fragment needs: a sync is making it, or a crash left it"
UNKNOWN: Final = (
    "one copy of a key: a crash left it, or the other copy is lost; `offload verify --level bytes` finds out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """One key as a verify found it. Both are empty if the key opens, or if there is no key service."""

    loss: str = ""
    label: str = ""
    """The master key of the object that opens; without a key service, of the first that is sound."""
    unchecked: Unchecked | None = None
    """The refusal of the key service to unwrap the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadKeys:
    """The keys of a stream that were looked for so far, each once."""

    store: ObjectStore
    ring: KeyRing | None
    _found: dict[tuple[UUID, UUID], _Found] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def opens(self, tail: FragmentTail, report: VerifyReport, *, where: str) -> bool | Corrupt:
        """Return True if the ring opens the fragment, and the damage if its key is lost.

        Returns False without a ring, and if the service refuses the key: `report` receives the refusal.
        Raises `Corrupt` if the service returns the stream's key, and that key does not open the fragment's.
        """
        uid, wrapped = tail.wrapped_key
        life = tail.trailer.incarnation
        found = await self._find(tail.stream, life, uid)
        if found.loss:
            return _damaged_key(tail, uid, found.loss, where=where)
        if self.ring is None or _refused(found, report):
            return False
        try:
            key = await self.ring.load(self.store, tail.stream, life, uid)
        except StoreDenied:
            raise
        except Denied as exc:
            # Lost or refused since it was found. A new look at it tells which.
            self._found.pop((life, uid), None)
            found = await self._find(tail.stream, life, uid)
            if found.loss:
                return _damaged_key(tail, uid, found.loss, where=where)
            if not _refused(found, report):  # the service has changed its mind again
                report.unchecked[where] = Unchecked(key=where, stream=tail.stream, error=exc)
            return False
        try:
            unwrapped(wrapped, key.raw, where=where)
        except Denied as exc:
            expected = "a key that the stream's key opens"
            raise Corrupt("data key", where, expected=expected, found=str(exc)) from exc
        return True

    async def is_refused(self, stream: str, life: UUID, uid: UUID, report: VerifyReport) -> bool:
        """Ask the key service for a key. If it refuses the key, `report` receives the refusal."""
        return _refused(await self._find(stream, life, uid), report)

    async def label(self, stream: str, life: UUID, uid: UUID) -> str:
        """Return the label of the master key that wraps a key, or a placeholder if it is not known."""
        return (await self._find(stream, life, uid)).label or "LABEL"

    async def _find(self, stream: str, life: UUID, uid: UUID) -> _Found:
        async with self._turn:
            if (found := self._found.get((life, uid))) is None:
                found = self._found[life, uid] = await self._look(stream, life, uid)
            return found

    async def _look(self, stream: str, life: UUID, uid: UUID) -> _Found:
        service = None if self.ring is None else self.ring.service
        search = await search_key(self.store, stream, life, uid, service=service)
        if search.refusal is None:
            return _Found(loss=search.loss, label="" if search.found is None else search.found.label)
        name = max(search.refused)
        return _Found(unchecked=Unchecked(key=name, stream=stream, error=search.refusal))


def _refused(found: _Found, report: VerifyReport) -> bool:
    if found.unchecked is None:
        return False
    report.unchecked.setdefault(found.unchecked.key, found.unchecked)
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyJudge:
    """Judges the key objects of one page by the root that was the newest after the page was listed."""

    store: ObjectStore
    log: RootLog
    newest: Manifest | None
    reload: Callable[[], Awaitable[Manifest | None]]
    read: ReadKeys

    @property
    def keys(self) -> StreamKeys:
        """The keys of the stream."""
        return self.log.keys

    async def judge(self, key: str, report: VerifyReport, *, level: VerifyLevel) -> None:
        """Judge one object."""
        parsed = self.keys.parse_key_object(key)
        assert parsed is not None
        life, uid, _ = parsed
        is_present = self.newest is not None and self.newest.state is not StreamState.DELETED
        is_present = is_present and self.newest is not None and self.newest.incarnation == life
        try:
            found = await self._object(key, report)
        except NotFound:  # rotated, shredded or swept since it was listed
            return
        except Corrupt as damage:
            cure = self._cure(await self.read.label(self.keys.stream, life, uid)) if is_present else ENDED
            raise _cured(damage, f"{damage.found}; {cure}") from damage
        if self.newest is None:
            explain(report, key, reason="no sound root says whether it is needed")
            return
        loss = loss_shown_by_base(self.log, key, found.base_version, self.newest)
        if loss is not None:
            raise loss
        if not is_present:
            shred = (
                f"left by a deleted life of the stream, whose own master key {found.label!r} still exists; "
            )
            explain(report, key, reason=shred + "`offload shred` destroys both" if found.own else ENDED)
            return
        reason = await self._compared(key, found, level)
        # One object of a key is enough. A `.copy` alone is asked too: nobody can tell for sure that no
        # fragment needs it.
        is_asked = (reason is None and key.endswith(".key")) or reason in (UNUSED, UNKNOWN)
        if is_asked and await self.read.is_refused(self.keys.stream, life, uid, report):
            return
        if reason:
            explain(report, key, reason=reason)

    async def _object(self, key: str, report: VerifyReport | None = None) -> KeyObject:
        decode = partial(decode_key_object, keys=self.keys, where=key)
        return await read_anchor(self.store, key, decode if report is None else counting(report, decode))

    async def _compared(self, key: str, found: KeyObject, level: VerifyLevel) -> str | None:
        """Compare an object with its copy, and with other generations. Return a reason to explain it.

        None if it is the newest generation, and has its copy.
        """
        names = self.keys.key_objects(UUID(found.incarnation), UUID(found.uid), found.generation)
        twin = names[key == names[0]]
        for _ in range(LOOKS_MAX):
            # The listing comes after the object was read, and after each miss of its copy.
            listed = await self._generations(found)
            whole = [generation for generation, copies in listed.items() if len(copies) == len(names)]
            if key not in listed.get(found.generation, ()):  # deleted since it was read
                return ""
            if any(generation > found.generation for generation in whole):
                return UNFINISHED
            if found.generation not in whole:
                return UNFINISHED if whole else await self._alone(key, twin, found, level)
            try:
                other = await self._object(twin)
            except NotFound:
                continue
            except Corrupt:  # reported in its own turn
                return None
            if other != found and key == names[0]:  # once, and not for both
                label = found.label if found.label == other.label else await self._sound_label(found)
                raise self._damage(key, f"the bytes of {twin}", "others", label)
            return None
        return UNFINISHED

    async def _generations(self, found: KeyObject) -> dict[int, set[str]]:
        """List the objects of a key, by generation."""
        prefix = f"{self.keys.keys_of_life(UUID(found.incarnation))}{found.uid}."
        listed = dict[int, set[str]]()
        async for row in self.store.list(prefix):
            if (parsed := self.keys.parse_key_object(row.key)) is not None:
                listed.setdefault(parsed[2], set()).add(row.key)
        return listed

    async def _alone(self, key: str, twin: str, found: KeyObject, level: VerifyLevel) -> str:
        """Return why one copy may be missing. Raises `Corrupt` if it is lost."""
        # The copy is made first, so an object `.key` had one.
        is_used = key.endswith(".key") or await self._is_used(UUID(found.uid), level)
        if is_used:
            raise self._damage(key, twin, "nothing", found.label)
        return UNKNOWN if is_used is None else UNUSED

    async def _is_used(self, uid: UUID, level: VerifyLevel) -> bool | None:
        """Return whether a fragment needs this key. None if only other levels can tell."""
        try:
            newest = await self.reload()
        except NotOffloaded:
            return False
        if newest is None:
            return None
        tree = self.log.tree(newest)
        try:
            # What follows an encrypted fragment is encrypted. So the newest one tells if there is any.
            last = await tree.last()
            if last is None or not last.encrypted:
                return False
            if await self._needs(newest, last, uid):
                return True
            if level is not VerifyLevel.BYTES:
                return None
            async for run in tree.walk():
                for entry in entries_of_rows(run[run["encrypted"] == 1]):
                    if await self._needs(newest, entry, uid):
                        return True
        except Corrupt:  # reported in the turn of the group or the fragment
            return None
        return False

    async def _needs(self, newest: Manifest, entry: Entry, uid: UUID) -> bool:
        return (await load_tail(self.store, newest, entry)).wrapped_key[0] == uid

    async def _sound_label(self, found: KeyObject) -> str:
        """Return the label to print if two copies name different ones: a forged one must not get the key."""
        if self.read.ring is None:
            return "LABEL"
        return await self.read.label(self.keys.stream, UUID(found.incarnation), UUID(found.uid))

    def _damage(self, key: str, expected: str, found: str, label: str) -> Corrupt:
        return Corrupt("copy of a key", key, expected=expected, found=f"{found}; {self._cure(label)}")

    def _cure(self, label: str) -> str:
        words = ("--stream", self.keys.stream, "--encrypt", label, "--keys", "URL")
        command = shlex.join(("offload", "rotate", self.store.url, *words))
        return f"to write both copies again, run: {command}"


def _damaged_key(tail: FragmentTail, uid: UUID, loss: str, *, where: str) -> Corrupt:
    text, at = f"key {uid} is lost ({loss}); restore one of its copies from a backup", tail.trailer.tail_start
    return Corrupt("stream's key", where, expected=f"key {uid}", found=text, position=at)


def _cured(damage: Corrupt, found: str) -> Corrupt:
    return Corrupt(damage.what, damage.where, expected=damage.expected, found=found, position=damage.position)
