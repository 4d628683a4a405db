"""Shredding: a stream is deleted, and its keys are destroyed, so that copies of its data cannot be read.

    1. delete    commit a tombstone, as `delete_stream` does. From now on no writer can commit, and one that
                 makes a key for an ended life takes it back. After the tombstone of the first part, make
                 sure that the stream gets no other part
    2. list      the key objects of all lives
    3. load      the newest root. If the stream was begun again, the keys of its new life stay
    4. destroy   each master key that was made for a key alone, in the key service. The service unwraps the
                 key first, which it does only for the stream that the key is of. Otherwise whoever can write
                 to the bucket could make us destroy another stream's master key, by a forged key object
    5. delete    all generations of the key, in both copies
    6. read      each of these objects. Only a read that finds nothing shows that an object is gone. A proxy
                 or a broken store may answer a deletion with success, and keep the object

    stopped           left behind                        cured by
    before step 1     nothing                            nothing to cure
    after step 1      keys                               the next shred
    after step 4      a key whose master key is gone     the next shred: the service has no such key
    after step 5      nothing, if the store is honest    the next shred, which lists what is left

A stream with parts is shredded part by part, the newest first. Each plan has the names of all of them. A part
that was begun since is a `Conflict`: the next run shreds it too (`upkeep.parts`).

A key that fails keeps all of its objects, because only they name its master key. The other keys go.

Invariants:

- Nothing is destroyed before the tombstone is committed, and never a key of the life that the stream has.
- A master key that streams share is never destroyed.
- No key is reported as deleted unless a read of each of its objects found nothing.
- No live stream is deleted if the key service lacks its own master key: that is another key service.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from uuid import UUID

from offload.contracts.catalogue import Catalogue
from offload.contracts.keys import KeyService
from offload.contracts.store import ObjectStore, Span
from offload.formats.anchor import KeyObject
from offload.formats.keys import StreamKeys
from offload.ground.env import Env
from offload.ground.errors import (
    Absent,
    BeingRebuilt,
    Conflict,
    Corrupt,
    Denied,
    Misuse,
    NoSuchKey,
    NotFound,
    NotOffloaded,
    OffloadError,
    TryAgain,
)
from offload.model.manifest import Manifest, StreamState
from offload.native.anchors import read_anchor
from offload.native.fragment_reader import load_tail
from offload.native.key_objects import asking, decode_key_object, unwrap_key
from offload.native.layout_check import native
from offload.native.lost_roots import loss_shown_by_base
from offload.native.offloader import ObjectStoreOffloader
from offload.parts.whole_stream import WholeStream
from offload.upkeep.parts import refuse_new_parts, refuse_unseen
from offload.upkeep.retention import delete_stream, load_unless_deleted

__all__ = [
    "KeyFate",
    "ShredPlan",
    "ShreddedKey",
    "StoredKey",
    "plan_parts",
    "plan_shred",
    "planned",
    "shred",
]


class KeyFate(StrEnum):
    """The fate of a key of a stream that is shredded. In a dry run, the fate that its objects would have."""

    DELETED = "deleted"
    """Its objects were deleted. The master key is shared, and stays."""
    DESTROYED = "destroyed"
    """Its own master key was destroyed, and then its objects were deleted."""
    MISSING = "missing"
    """The service has no such master key, so an earlier run has destroyed it. Its objects were deleted."""
    DAMAGED = "damaged"
    """Its objects were deleted. None was sound, so nobody knows if it had a master key of its own."""
    LOST = "lost"
    """A fragment needs it, and none of its objects is left. It may have a master key of its own."""
    KEPT = "kept"
    """An error kept it, with all of its objects."""
    LEFT = "left"
    """The store accepted the deletion of its objects, and a read found one of them, or got no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShreddedKey:
    """A key of a stream, and one master key that wraps it. A rotation that broke off leaves two."""

    uid: UUID
    label: str
    """Empty if the key is damaged or lost."""

    own: bool
    fate: KeyFate
    seconds: float = 0.0
    """How long somebody can still restore the master key that was destroyed."""

    error: OffloadError | None = None
    """Why the key or an object of it is left. A master key that was destroyed is destroyed nevertheless."""

    def as_json(self) -> dict[str, object]:
        """Return the row of `offload shred --json`."""
        row: dict[str, object] = {
            "key": str(self.uid),
            "label": self.label or None,
            "own": self.own,
            "fate": str(self.fate),
        }
        if self.fate is KeyFate.DESTROYED:
            row["restorable_seconds"] = self.seconds
        return row if self.error is None else {**row, "error": str(self.error)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShredPlan:
    """The plan of a shred, from the state of one moment."""

    stream: str
    manifest: Manifest | None
    """The manifest that would be deleted. None if the stream is deleted already."""

    keys: list[StoredKey]
    plain_fragments: int | None
    """Fragments that are not encrypted, so that no key protects copies of them. None if it is not known."""

    lost: UUID | None = None
    """The key of the newest fragment, if none of its objects is left."""

    parts: tuple[str, ...] = ()
    """The names of all parts that are shredded together, in order. Empty if this stream alone is shredded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """All objects of a key of a stream."""

    incarnation: UUID
    uid: UUID
    names: list[str]
    """Both copies of each generation that has an object, whether or not both are there."""

    found: list[KeyObject] = field(repr=False)
    """Those that are sound, each once."""

    def labels(self) -> list[tuple[str, bool]]:
        """Return each label of a master key, and whether that was made for this key alone."""
        return sorted({(each.label, each.own) for each in self.found})


async def plan_shred(
    tier: Catalogue, stream: str, *, service: KeyService | None = None, may_be_empty: bool = False
) -> ShredPlan:
    """Return what a shred of this stream would do. Changes nothing.

    A stream without fragments has no key yet, which is an error unless it `may_be_empty`. Raises `Misuse` if
    the stream is not encrypted, or if it needs a key service and there is none; `NoSuchKey` if the service
    lacks a master key of the live stream; and `NotOffloaded` as `load_manifest`.
    """
    offloader = native(tier, to="shred a stream of")
    manifest = await load_unless_deleted(offloader, stream)
    keys = await _stored(offloader, stream)
    plain: int | None = 0
    lost: UUID | None = None
    if manifest is not None:
        mine = [key for key in keys if key.incarnation == manifest.incarnation]
        plain = await _plain_fragments(offloader, manifest)
        is_empty = may_be_empty and not manifest.fragments
        if not mine and plain == manifest.fragments and not is_empty:
            raise Misuse(f"stream {stream!r} is not encrypted, so it has no key; use `offload delete` for it")
        await _check_service(mine, service)
        lost = await _lost_key(offloader, manifest, {key.uid for key in mine})
    if service is None and any(own for key in keys for _, own in key.labels()):
        raise _no_service(stream)
    return ShredPlan(stream=stream, manifest=manifest, keys=keys, plain_fragments=plain, lost=lost)


async def plan_parts(tier: Catalogue, stream: str, *, service: KeyService | None = None) -> list[ShredPlan]:
    """Return the plan of each part of a stream, in order, also of deleted ones, which may have left keys.

    Shred the last one first. Raises as `plan_shred` does for the first part that cannot be shredded.
    """
    plans = list[ShredPlan]()
    for name in await WholeStream(tier, stream).names():
        try:
            is_later = name != stream
            plans.append(await plan_shred(tier, name, service=service, may_be_empty=is_later))
        except BeingRebuilt:
            raise
        except NotOffloaded:
            if name == stream:
                raise  # a later part may be begun, and have no data and no key yet
    names = tuple(plan.stream for plan in plans)
    return [replace(plan, parts=names) for plan in plans]


async def shred(
    tier: Catalogue, plan: ShredPlan, *, service: KeyService | None = None, env: Env | None = None
) -> list[ShreddedKey]:
    """Delete the stream, and destroy the keys of all its ended lives. Return what became of each key.

    A stream that was begun again since `plan` stays. After a crash, and for keys that an error kept, plan and
    call it again. Raises `Conflict` if a part was begun that is not in `plan.parts`: plan and call it again.
    """
    offloader, stream = native(tier, to="shred a stream of"), plan.stream
    await offloader.open()
    # 1.
    if plan.parts:
        await refuse_unseen(offloader, plan.parts[0], plan.parts)
    if plan.manifest is not None:
        await delete_stream(offloader, stream, seen=plan.manifest, env=env)
    # Before any key goes: if this raises, all rows are reported by the next run.
    if stream in plan.parts[:1]:
        await refuse_new_parts(offloader, stream, env=env)
    # 2.
    keys = await _stored(offloader, stream)
    # 3.
    newest = await offloader.log(stream).load_newest()
    if newest is None:
        raise NotOffloaded(f"{tier.url} has no stream {stream!r}; `offload ls` shows which it has")
    if newest.state is StreamState.REBUILDING:  # it may bring any of its lives back
        raise Conflict(f"stream {stream!r} is being rebuilt; wait until the rebuild is done, and run again")
    bases = [(each.base_version, key.names[0]) for key in keys for each in key.found]
    version, name = max(bases, default=(0, ""))
    if (loss := loss_shown_by_base(offloader.log(stream), name, version, newest)) is not None:
        raise loss  # a key of a life that only lost roots knew looks like a key of an ended life
    living = newest.incarnation if newest.state is StreamState.LIVE else None
    if plan.manifest is not None and living == plan.manifest.incarnation:
        # The roots were lost while it was deleted, and a writer that knew older ones committed meanwhile.
        raise Conflict(f"stream {stream!r} is back since this run deleted it, with all keys; run again")
    done: list[ShreddedKey] = []
    for key in keys:
        if key.incarnation == living:
            continue
        # 4.
        rows = [await _ended(key, label, service, own=own) for label, own in key.labels()]
        rows = rows or [ShreddedKey(uid=key.uid, label="", own=False, fate=KeyFate.DAMAGED)]
        done += rows
        # 5.
        if all(row.error is None for row in rows):
            await offloader.store.delete(key.names)
            # 6.
            if (error := await _still_there(offloader.store, key.names)) is not None:
                done[-len(rows) :] = [_with_objects_left(row, error) for row in rows]
    return done + _lost(plan)


def planned(plan: ShredPlan) -> list[ShreddedKey]:
    """Return what a shred would do with each key, if the service agrees."""
    rows = []
    for key in plan.keys:
        for label, own in key.labels() or [("", False)]:
            fate = KeyFate.DAMAGED if not label else KeyFate.DESTROYED if own else KeyFate.DELETED
            rows.append(ShreddedKey(uid=key.uid, label=label, own=own, fate=fate))
    return rows + _lost(plan)


def _lost(plan: ShredPlan) -> list[ShreddedKey]:
    """Return the row of the key that is lost. Nobody can know if its master key is shared."""
    if plan.lost is None:
        return []
    return [ShreddedKey(uid=plan.lost, label="", own=False, fate=KeyFate.LOST)]


async def _still_there(store: ObjectStore, names: Iterable[str]) -> TryAgain | None:
    """Return an error that names the first object that is not known to be gone. None if all are gone."""
    for name in names:
        try:
            await store.get(name, Span(0, 1))
        except NotFound:
            continue
        except OffloadError as exc:
            return TryAgain(f"it is not known whether {name} is gone, because a read of it failed: {exc}")
        return TryAgain(f"the store answered that {name} is deleted, and a read still finds it")
    return None


def _with_objects_left(row: ShreddedKey, error: OffloadError) -> ShreddedKey:
    """Return the row of a key with objects that may be left. The fate of a master key stays true."""
    is_of_objects = row.fate in (KeyFate.DELETED, KeyFate.DAMAGED)
    return replace(row, fate=KeyFate.LEFT if is_of_objects else row.fate, error=error)


async def _ended(key: StoredKey, label: str, service: KeyService | None, *, own: bool) -> ShreddedKey:
    """Destroy a master key of its own. Leave a shared one."""
    row = partial(ShreddedKey, uid=key.uid, label=label, own=own)
    if not own:
        return row(fate=KeyFate.DELETED)
    try:
        if service is None:  # a writer made the key after the plan
            raise _no_service(key.found[0].stream)
        await _unwrap_any(service, [each for each in key.found if each.own and each.label == label])
        with asking(key.found[0].stream):
            return row(fate=KeyFate.DESTROYED, seconds=await service.destroy(label))
    except NoSuchKey:
        return row(fate=KeyFate.MISSING)
    except OffloadError as error:
        return row(fate=KeyFate.KEPT, error=error)


async def _unwrap_any(service: KeyService, objects: Sequence[KeyObject]) -> None:
    """Raise unless the service unwraps one of these: only then the master key is that of this stream."""
    *others, last = objects
    for each in others:
        try:
            await unwrap_key(service, each)
        except NoSuchKey:
            raise
        except Denied:
            continue
        return
    await unwrap_key(service, last)


async def _check_service(keys: Sequence[StoredKey], service: KeyService | None) -> None:
    """Raise `NoSuchKey` if the service lacks a master key of a live stream, and `TryAgain` if it is down.

    No earlier run has destroyed it, because that would have deleted the stream first. Any other `Denied` may
    be of a forged object, which must not keep anybody from shredding the rest.
    """
    for each in (each for key in keys for each in key.found if each.own):
        if service is None:
            raise _no_service(each.stream)
        try:
            await unwrap_key(service, each)
        except NoSuchKey as exc:
            raise NoSuchKey(
                f"{exc}. Nothing was deleted: use the --keys of the stream's writers. If that master key was "
                "destroyed before, run `offload delete`, and then this again"
            ) from exc
        except Denied:
            continue


def _no_service(stream: str) -> Misuse:
    return Misuse(f"stream {stream!r} has a master key of its own; to destroy that, add --keys")


async def _plain_fragments(offloader: ObjectStoreOffloader, manifest: Manifest) -> int | None:
    """Return how many fragments are not encrypted. None if a group is damaged. Loads all groups."""
    plain = manifest.fragments
    try:
        async with aclosing(offloader.tree(manifest).walk()) as runs:
            async for run in runs:
                plain -= int(run["encrypted"].sum())
    except Corrupt:  # a damaged stream can be shredded nevertheless
        return None
    return plain


async def _lost_key(offloader: ObjectStoreOffloader, manifest: Manifest, stored: set[UUID]) -> UUID | None:
    """Return the key of the newest fragment, if no object of it is stored. One request, or a few."""
    try:
        last = await offloader.tree(manifest).last()
        if last is None or not last.encrypted:
            return None
        uid, _ = (await load_tail(offloader.store, manifest, last)).wrapped_key
    except (Corrupt, Absent):  # a damaged stream can be shredded nevertheless
        return None
    return None if uid in stored else uid


async def _stored(offloader: ObjectStoreOffloader, stream: str) -> list[StoredKey]:
    """Return the keys of all lives of a stream, with every object that is sound."""
    keys, store = StreamKeys(stream), offloader.store
    found: dict[tuple[UUID, UUID], StoredKey] = {}
    names = [listed.key async for listed in store.list(keys.stream_keys)]
    for name in names:
        if (parsed := keys.parse_key_object(name)) is None:
            continue
        life, uid, generation = parsed
        key = found.setdefault((life, uid), StoredKey(incarnation=life, uid=uid, names=[], found=[]))
        # Both copies, also if the list shows one: a list that lacks a copy does not show that it is gone.
        pair = keys.key_objects(life, uid, generation)
        key.names.extend(each for each in pair if each not in key.names)
        try:
            one = await read_anchor(store, name, partial(decode_key_object, keys=keys, where=name))
        except (Corrupt, NotFound):
            continue  # a second copy may be sound; what is gone, another shred or a rotation has deleted
        if one not in key.found:
            key.found.append(one)
    return [*found.values()]
