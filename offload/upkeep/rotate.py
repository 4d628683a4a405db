"""Rotation: the keys of streams are wrapped by another master key. Keys and data stay the same.

For each key of the life that a stream has now:

    1. read     the newest generation, and unwrap it; the second copy, or an older generation, if the service
                refuses the first. If nothing is to be done, stop here
    2. store    the next generation, wrapped again: a second copy, then the object
    3. ask      the newest root. If the stream no longer has this life, delete what step 2 stored: somebody
                may have shredded the stream, and have listed its keys before step 2 (`store_key`)
    4. read     both copies back
    5. list     the generations. If there is a newer one, another rotation was faster, and this one ends
    6. delete   the older generations

    stopped              left behind                      cured by
    during step 2        one copy, or none                the next rotation makes the generation after it
    before step 6        two generations of one key       the same
    during step 6        a part of an older generation    the same

If the service refuses a key, or all of its objects are gone, the newest root is loaded. Somebody may have
destroyed the key because the stream was deleted. Then that is reported, and no lost key.

Rotations exclude each other: only one can create the second copy of a generation. If one stalls before that,
and wakes when its generation was made and deleted by others, it finds a newer one in step 5.

Invariants:

- A generation is deleted only while a newer one has both copies. So a key always has a whole generation.
- A service has unwrapped each generation before it was stored.
- A rotation never changes whether a stream has a master key of its own. Copies of the bucket still hold the
  older generations, and what `shred` says of them must stay true.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from uuid import UUID

from offload.contracts.catalogue import Catalogue
from offload.contracts.keys import KeyService, check_label
from offload.formats.anchor import KeyObject
from offload.formats.keys import StreamKeys
from offload.ground.env import Env
from offload.ground.errors import (
    AlreadyExists,
    Conflict,
    Denied,
    NotOffloaded,
    OffloadError,
    StoreDenied,
    StreamDeleted,
)
from offload.model.manifest import StreamState
from offload.native.fragment_reader import load_tail
from offload.native.key_objects import (
    listed_keys,
    open_key,
    read_both_copies,
    search_key,
    sound_object,
    store_key,
)
from offload.native.layout_check import native
from offload.native.offloader import ObjectStoreOffloader
from offload.parts.whole_stream import with_parts

__all__ = ["Rotated", "rotate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotated:
    """The result of a rotation for one stream. Each key of the stream is counted once."""

    stream: str
    rotated: int = 0
    """The number of keys that were wrapped again. In a dry run, of those that would be."""

    unchanged: int = 0
    """Keys that the master key had wrapped before."""

    own: int = 0
    """Keys with a master key of their own, which stay as they are."""

    error: OffloadError | None = None
    """The first error; None if there was none. Each other key of the stream was tried nevertheless."""

    def as_json(self) -> dict[str, object]:
        """Return a line of `offload rotate --json`."""
        plain = {name: value for name, value in asdict(self).items() if name != "error"}
        return plain if self.error is None else {**plain, "error": str(self.error)}


async def rotate(
    tier: Catalogue,
    label: str,
    *,
    service: KeyService,
    old_service: KeyService | None = None,
    streams: Sequence[str] = (),
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
    env: Env | None = None,
) -> AsyncIterator[Rotated]:
    """Wrap the keys of all streams, or of those named and their parts, by the master key `label`.

    `service` has that key. `old_service` unwraps keys that `service` does not have; None if they are all in
    `service`. If a copy of a key was lost, it has both afterwards. Keys with a master key of their own are
    skipped unless a copy was lost. Keys of deleted streams stay as they are. `progress` is called with the
    number of streams that are done, and of all.

    A stream that fails is reported with its error, and the next stream follows. After `StoreDenied` no stream
    follows. After a crash, call it again. Raises `Misuse` for a label that no master key can have, and
    `NotOffloaded` if the place is no tier.
    """
    offloader = native(tier, to="rotate the keys of")
    await offloader.open()
    rotation = _Rotation(
        tier=offloader,
        label=check_label(label),
        new=service,
        old=old_service,
        dry_run=dry_run,
        env=env or Env(),
    )
    # A part with the old key would be lost if somebody destroyed that key after a rotation of its stream.
    names = await with_parts(offloader, streams) or await offloader.streams()
    for number, stream in enumerate(names):
        progress(number, len(names))
        found = await rotation.of_stream(stream)
        # Of all streams, and of all parts, some are deleted.
        if stream in streams or not isinstance(found.error, NotOffloaded):
            yield found
        if isinstance(found.error, StoreDenied):  # every other stream would be denied too
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rotation:
    tier: ObjectStoreOffloader
    label: str
    new: KeyService
    old: KeyService | None
    dry_run: bool
    env: Env

    async def of_stream(self, stream: str) -> Rotated:
        done = Rotated(stream=stream)
        try:
            life = await self._life_of(stream)
            listed = await listed_keys(self.tier.store, stream, life)
            if not listed:
                await self._refuse_lost(stream)
        except OffloadError as error:
            return replace(done, error=error)
        for uid, counts in sorted(listed.items()):
            try:
                kind = await self._of_key_unless_over(stream, life, uid, counts)
                done = replace(done, **{kind: getattr(done, kind) + 1})
            except OffloadError as error:
                done = replace(done, error=done.error or error)
        return done

    async def _life_of(self, stream: str) -> UUID:
        """Return the life of the newest root. Raises unless it is live."""
        newest = await self.tier.log(stream).load_newest()
        if newest is None:
            raise NotOffloaded(f"{self.tier.url} has no stream {stream!r}; `offload ls` shows which it has")
        if newest.state is StreamState.DELETED:
            raise StreamDeleted(f"stream {stream!r} of {self.tier.url} was deleted", epoch=newest.epoch)
        # Not `NotOffloaded`: whoever rotates all streams must hear of one whose keys were left alone.
        if newest.state is StreamState.REBUILDING:
            raise Conflict(
                f"stream {stream!r} is being rebuilt; wait until the rebuild is done, and run again"
            )
        return newest.incarnation

    async def _refuse_lost(self, stream: str) -> None:
        """Raise `Denied` if a fragment needs a key, although no key was listed."""
        newest = await self.tier.log(stream).load_newest()
        last = None if newest is None else await self.tier.tree(newest).last()
        if newest is None or last is None or not last.encrypted:
            return
        uid, _ = (await load_tail(self.tier.store, newest, last)).wrapped_key
        # It looks again: a sync may have made the stream's first key since.
        sound_object(await search_key(self.tier.store, stream, newest.incarnation, uid), stream, uid)

    async def _of_key_unless_over(self, stream: str, life: UUID, uid: UUID, counts: dict[int, int]) -> str:
        """Do as `_of_key`. A key that went with its life is no error of its own."""
        try:
            return await self._of_key(stream, life, uid, counts)
        except Denied:
            # A shred destroys the keys of a life that has ended. So does a writer that has just made its key.
            await self._refuse_ended(stream, life)
            raise

    async def _of_key(self, stream: str, life: UUID, uid: UUID, counts: dict[int, int]) -> str:
        """Do all steps for a key. Return the field of `Rotated` that counts it."""
        store, newest = self.tier.store, max(counts)
        # 1.
        whole = await read_both_copies(store, stream, life, uid, newest)
        is_alone = whole is not None and len(counts) == 1
        if whole is not None and whole.own and is_alone:
            return "own"
        found, raw, service = await self._opened(stream, life, uid)
        if found.label == self.label and service is self.new and is_alone:
            return "unchanged"
        if not self.dry_run:
            # An own master key that lost a copy is wrapped again where it is.
            to, label = (service, found.label) if found.own else (self.new, self.label)
            draft = replace(found, generation=newest + 1, label=label, wrapped="")
            await self._replace(draft, raw, to)
        return "rotated"

    async def _opened(self, stream: str, life: UUID, uid: UUID) -> tuple[KeyObject, bytes, KeyService]:
        """Return the object of a key that a service unwraps, the key, and that service."""
        # The new service first: an earlier run may have been interrupted, and both may know the same label.
        first, *others = [self.new] if self.old is None else [self.new, self.old]
        store = self.tier.store
        try:
            return *await open_key(first, store, stream, life, uid), first
        except Denied:
            if not others:
                raise
        return *await open_key(others[0], store, stream, life, uid), others[0]

    async def _replace(self, draft: KeyObject, raw: bytes, service: KeyService) -> None:
        store, stream, mine = self.tier.store, draft.stream, draft.generation
        life, uid = UUID(draft.incarnation), UUID(draft.uid)
        rival = Conflict(f"stream {stream!r}: another rotation of its key {uid} is under way; run again")
        # 2. and 3.
        try:
            refuse_if_over = partial(self._refuse_if_over, stream, life)
            await store_key(store, service, draft, raw, self.env, refuse_if_over=refuse_if_over)
        except AlreadyExists as exc:
            raise rival from exc
        except StreamDeleted:
            await self._refuse_ended(stream, life)
            raise
        # 4.
        made = await read_both_copies(store, stream, life, uid, mine)
        # 5.
        names = await self._generations(stream, life, uid)
        newer = [generation for generation in names.values() if generation > mine]
        if newer:
            # Ours is wrapped by a master key that may have been given up since.
            if newer.count(max(newer)) == 2:
                await store.delete([name for name, generation in names.items() if generation == mine])
            raise rival
        if made is None:
            raise Denied(f"stream {stream!r}: its rotated key cannot be read back; the older one was kept")
        # 6.
        if older := [name for name, generation in names.items() if generation < mine]:
            await store.delete(older)

    async def _refuse_ended(self, stream: str, life: UUID) -> None:
        """Raise as `_refuse_if_over`, but `Conflict` if the stream was begun again: its new key is to do."""
        try:
            await self._refuse_if_over(stream, life)
        except StreamDeleted as ended:
            await self._life_of(stream)  # raises too, unless somebody has begun the stream again
            raise Conflict(f"{ended}, and begun again; run again") from ended

    async def _refuse_if_over(self, stream: str, life: UUID) -> None:
        """Raise `StreamDeleted` if the stream was deleted, or begun again."""
        ended = f"stream {stream!r} was deleted while its key was rotated"
        try:
            now = await self._life_of(stream)
        except StreamDeleted as exc:
            raise StreamDeleted(ended, epoch=exc.epoch) from exc
        if now != life:
            raise StreamDeleted(ended, epoch=None)

    async def _generations(self, stream: str, life: UUID, uid: UUID) -> dict[str, int]:
        """Return the generation of each object of a key."""
        keys = StreamKeys(stream)
        listed = self.tier.store.list(f"{keys.keys_of_life(life)}{uid}.")
        parsed = {each.key: keys.parse_key_object(each.key) async for each in listed}
        return {name: each[2] for name, each in parsed.items() if each is not None}
