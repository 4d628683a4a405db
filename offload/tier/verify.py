"""Verifying a tier: every object against every checksum, against its key, and against the manifest.

Objects are listed first and judged afterwards by the newest root, as in the sweep: so a verify that
runs beside a sync neither calls a fresh upload damage nor misses what was committed meanwhile.

Invariants: nothing is changed; every object of the prefix is read whole, superseded roots and
fragments that no root names included; an object that nobody names is explained, not blamed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import numpy as np

from offload.env import Env
from offload.errors import Corrupt, Misuse, NotFound, NotOffloaded, OffloadError, UnsupportedFormat
from offload.formats.anchor import StreamAnchor, TierAnchor
from offload.formats.group import group_size_bytes
from offload.formats.keys import TIER_ANCHOR, TIER_PREFIX, StreamKeys, escape, looks_escaped
from offload.formats.manifest import Entries, Entry, Manifest, State, decode_entries
from offload.manifest.commit import RootLog, decode_root
from offload.manifest.groups import fetch_group, key_of
from offload.manifest.tree import Tree
from offload.offloader import LedgerOffloader
from offload.store.port import Listed, ObjectStore
from offload.tasks import run_each
from offload.tier.fragment_check import check_fragment
from offload.tier.fragments import check_entry
from offload.tier.object_store_offloader import ObjectStoreOffloader, check_stream_anchor
from offload.tier.place import get_anchor

OBJECTS_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreferenced:
    """An object that no manifest names, and why it is there."""

    key: str
    attempt: UUID | None
    reason: str

    def as_json(self) -> dict[str, object]:
        """A row of the report."""
        attempt = None if self.attempt is None else str(self.attempt)
        return {"object": self.key, "attempt": attempt, "reason": self.reason}


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """What was read and what was found."""

    streams: int = 0
    objects: int = 0
    bytes: int = 0
    damages: list[Corrupt] = field(default_factory=list)
    unreferenced: list[Unreferenced] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """The document of `offload verify --json`."""
        return {
            "streams": self.streams,
            "objects": self.objects,
            "bytes": self.bytes,
            "damages": [damage_as_json(damage) for damage in self.damages],
            "unreferenced": [row.as_json() for row in self.unreferenced],
        }


def damage_as_json(damage: Corrupt) -> dict[str, object]:
    """A row of the report's damages."""
    return {
        "stream": damage.stream,
        "object": damage.where,
        "position": damage.position,
        "what": damage.what,
        "expected": str(damage.expected),
        "found": str(damage.found),
    }


async def verify(
    tier: LedgerOffloader | ObjectStore,
    *,
    stream: str | None = None,
    env: Env | None = None,
    progress: Callable[[VerifyReport], None] = lambda report: None,
) -> VerifyReport:
    """Check a tier, or one stream of it. `progress` is told after every object.

    Raises `NotOffloaded` where the place is no tier or has no such stream, `Misuse` for an offloader
    that keeps no objects; damage is reported, not raised.
    """
    if isinstance(tier, ObjectStoreOffloader):
        with suppress(Corrupt, NotOffloaded, UnsupportedFormat):  # which are found again, and reported
            await tier.open()
    store = tier.store if isinstance(tier, ObjectStoreOffloader) else tier
    if isinstance(store, LedgerOffloader):
        raise Misuse(f"{store.url} is no object store; ask its backend for a way to verify it")
    verifier = _Verifier(store=store, env=env or Env(), progress=progress)
    await verifier.run(stream)
    return verifier.report


@dataclass(kw_only=True)
class _Verifier:
    store: ObjectStore
    env: Env
    progress: Callable[[VerifyReport], None]
    report: VerifyReport = field(default_factory=VerifyReport)
    _groups: set[str] = field(default_factory=set)

    async def run(self, stream: str | None) -> None:
        parts: dict[str, list[Listed]] = {}
        async for listed in self.store.list("" if stream is None else escape(stream) + "/"):
            parts.setdefault(listed.key.partition("/")[0], []).append(listed)
        await self._check_tier_anchor(any_object=bool(parts))
        parts.pop(TIER_ANCHOR, None)
        if stream is not None and not parts:
            raise NotOffloaded(f"{self.store.url} has no stream {stream!r}; `offload ls` shows which it has")
        for part, objects in parts.items():
            await self._check_part(part, objects)
        if stream is not None and not self.report.streams and not self.report.damages:
            raise NotOffloaded(f"{self.store.url} has no stream {stream!r}; `offload ls` shows which it has")

    async def _check_tier_anchor(self, *, any_object: bool) -> None:
        try:
            raw = await get_anchor(self.store, TIER_ANCHOR)
        except NotFound as exc:
            if any_object and await self._holds_a_stream():
                self._damaged(Corrupt("anchor", TIER_ANCHOR, expected="present", found="absent"))
                return
            raise NotOffloaded(f"{self.store.url} is no tier: it has no {TIER_ANCHOR}") from exc
        with self._judging(TIER_ANCHOR, None):
            self._count(len(raw))
            TierAnchor.decode(raw, where=TIER_ANCHOR)

    async def _holds_a_stream(self) -> bool:
        async for listed in self.store.list(""):
            if listed.key.endswith("/stream.anchor"):
                return True
        return False

    async def _check_part(self, part: str, objects: list[Listed]) -> None:
        """All objects under one first part of keys: those of one stream, or strangers."""
        stream = await self._stream_of(part, objects)
        if stream is None:
            return
        self.report.streams += 1
        keys = StreamKeys(stream)
        newest = await self._newest(keys)
        named = {} if newest is None else await self._named(newest, keys)
        listed_keys = {listed.key for listed in objects}
        # Committed since the listing: not listed, but named.
        late = [
            Listed(key, entry.stored_size_bytes) for key, entry in named.items() if key not in listed_keys
        ]

        async def check(listed: Listed) -> None:
            await self._check_object(listed, keys, newest, named)

        await run_each(check, [*objects, *late], at_once=OBJECTS_AT_ONCE)

    async def _stream_of(self, part: str, objects: list[Listed]) -> str | None:
        """The stream under this part. Without a sound anchor its name is taken from elsewhere."""
        anchor = f"{part}/stream.anchor"
        if anchor not in {listed.key for listed in objects}:
            strangers = not looks_escaped(part) or not any(
                "/metadata/root." in listed.key for listed in objects
            )
            if strangers:
                self._strange(objects)
                return None
            self._damaged(Corrupt("anchor", anchor, expected="present", found="absent"))
            return await self._name_in_roots(part, objects)
        raw = await get_anchor(self.store, anchor)
        self._count(len(raw))
        try:
            stream = StreamAnchor.decode(raw, where=anchor).stream
            check_stream_anchor(raw, StreamKeys(stream))
            if StreamKeys(stream).anchor != anchor:
                raise Corrupt("anchor", anchor, expected=f"the name behind {part}", found=stream)
        except (Corrupt, UnsupportedFormat) as exc:
            self._damaged(_as_damage(exc, anchor, None))
            return await self._name_in_roots(part, objects)
        return stream

    async def _name_in_roots(self, part: str, objects: list[Listed]) -> str | None:
        """The stream's name as its newest readable root says it; strangers where there is none."""
        for listed in reversed(objects):
            if "/metadata/root." not in listed.key:
                continue
            try:
                manifest = Manifest.decode(await self.store.get(listed.key), where=listed.key)
            except (Corrupt, NotFound, UnsupportedFormat):
                continue
            if escape(manifest.stream) == part:
                return manifest.stream
        self._strange(objects)
        return None

    async def _newest(self, keys: StreamKeys) -> Manifest | None:
        try:
            return await RootLog(store=self.store, stream=keys.stream, env=self.env).load_newest()
        except (Corrupt, UnsupportedFormat):
            return None  # the root is among the objects, and is reported as one of them

    async def _named(self, newest: Manifest, keys: StreamKeys) -> dict[str, Entry]:
        """The live fragments by their keys. The groups above them are read, checked and counted."""
        named: dict[str, Entry] = {}
        levels = [newest.entries]
        while levels:
            entries = levels.pop()
            for row in np.flatnonzero(entries["kind"]):
                one = entries[row : row + 1]
                self._groups.add(key_of(keys.stream, one))
                with self._judging(key_of(keys.stream, one), keys.stream):
                    below = (await fetch_group(self.store, newest, one)).entries
                    self._count(group_size_bytes(len(below)))
                    levels.append(below)
            live = entries["first_offset"] + entries["records"] > np.uint64(newest.first_offset)
            leaves = decode_entries(entries[(entries["kind"] == 0) & live])
            named |= {keys.fragment(e.first_offset, e.attempt): e for e in leaves}
        return named

    async def _check_object(
        self, listed: Listed, keys: StreamKeys, newest: Manifest | None, named: dict[str, Entry]
    ) -> None:
        key = listed.key
        if key == keys.anchor:
            return  # checked to find the stream's name
        if (version := keys.parse_root(key)) is not None:
            await self._check_root(key, version, keys)
        elif newest is not None and key in named:
            await self._check_named(key, listed.size_bytes, keys, newest, named[key])
        elif (parsed := keys.parse_fragment(key)) is not None:
            await self._check_unnamed(listed, parsed[1], keys, newest)
        elif (group := keys.parse_group(key)) is not None:
            if key not in self._groups:
                self._unnamed_group(listed, newest, version=group[1])
        elif keys.parse_sighting(key) is not None:
            reason = "a sweep's note of what it found; a later sweep uses and removes it"
            self.report.unreferenced.append(Unreferenced(key=key, attempt=None, reason=reason))
        else:
            self._strange([listed])

    async def _check_root(self, key: str, version: int, keys: StreamKeys) -> None:
        with self._judging(key, keys.stream):
            try:
                raw = await self.store.get(key)
            except NotFound:
                return  # superseded, and swept since it was listed
            self._count(len(raw))
            decode_root(raw, keys.stream, version, where=key)

    async def _check_named(
        self, key: str, size_bytes: int, keys: StreamKeys, newest: Manifest, entry: Entry
    ) -> None:
        with self._judging(key, keys.stream):
            try:
                checked = await check_fragment(self.store, key, size_bytes=size_bytes)
            except NotFound:
                again = await self._newest(keys)
                if again is not None and await _is_named(self.store, again, entry):
                    raise Corrupt("object", key, expected="present", found="absent") from None
                return
            finally:
                self._count(size_bytes)
            if checked.checksum != entry.checksum:
                raise Corrupt("object checksum", key, expected=entry.checksum, found=checked.checksum)
            check_entry(checked.tail.trailer, newest, entry, where=key)

    async def _check_unnamed(
        self, listed: Listed, attempt: UUID, keys: StreamKeys, newest: Manifest | None
    ) -> None:
        reason = _reason(attempt, newest)
        self.report.unreferenced.append(Unreferenced(key=listed.key, attempt=attempt, reason=reason))
        with self._judging(listed.key, keys.stream):
            try:
                await check_fragment(self.store, listed.key, size_bytes=listed.size_bytes)
            except NotFound:
                return  # swept since it was listed
            self._count(listed.size_bytes)

    def _unnamed_group(self, listed: Listed, newest: Manifest | None, *, version: int) -> None:
        decided = newest is not None and version <= newest.version
        reason = "no sound root says whether it is named"
        if newest is not None:
            reason = (
                "a commit that lost, or one that was superseded, made it; nothing will ever name it"
                if decided
                else "a commit is under way, or the next one supersedes what a crash left"
            )
        self.report.unreferenced.append(Unreferenced(key=listed.key, attempt=None, reason=reason))

    def _strange(self, objects: Iterable[Listed]) -> None:
        for listed in objects:
            reason = "not an object of this format; nothing here will ever touch it"
            if listed.key.startswith(TIER_PREFIX):
                reason = "left by a trial of the store that was interrupted; nothing reads it, and it may go"
            self.report.unreferenced.append(Unreferenced(key=listed.key, attempt=None, reason=reason))

    def _judging(self, key: str, stream: str | None) -> _Judging:
        return _Judging(self, key, stream)

    def _damaged(self, damage: Corrupt) -> None:
        self.report.damages.append(damage)
        self.progress(self.report)

    def _count(self, size_bytes: int) -> None:
        self.report.objects += 1
        self.report.bytes += size_bytes
        self.progress(self.report)


async def _is_named(store: ObjectStore, manifest: Manifest, entry: Entry) -> bool:
    async def load(base: Manifest, one: Entries) -> Entries:
        return (await fetch_group(store, base, one)).entries

    return await Tree(manifest, load).names(entry.first_offset, entry.attempt)


@dataclass(slots=True)
class _Judging:
    """Turns what breaks a format into a row of the report."""

    verifier: _Verifier
    key: str
    stream: str | None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, (Corrupt, UnsupportedFormat)):
            return False
        self.verifier._damaged(_as_damage(error, self.key, self.stream))
        return True


def _as_damage(error: OffloadError, key: str, stream: str | None) -> Corrupt:
    if isinstance(error, Corrupt):
        return error.within(key, stream=stream)
    return Corrupt(
        "format version", key, expected="one that this program knows", found=str(error), stream=stream
    )


def _reason(attempt: UUID, newest: Manifest | None) -> str:
    if newest is None:
        return "no sound root says whether it is named"
    if newest.state is State.DELETED:
        return "the stream was deleted; nothing will ever name it again"
    if newest.runs(attempt):
        return "its attempt runs: an upload is under way, or the next sync adopts or drops what a crash left"
    return "its attempt was dropped or superseded and can never be committed"
