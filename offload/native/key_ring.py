"""The keys of streams in the memory of a process. Each is made once for a life of a stream.

Invariants: an unwrapped key is in memory alone, and is used for `KEPT_SECONDS` at most; a stream that has a
key is never continued in the clear; no rebuild makes a key; whoever asks for encrypted fragments only reads
and writes no other; a forked process uses no key and no service of its parent process. Nothing is written
under a key that was made for an ended life.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from offload.contracts.keys import KeyService
from offload.contracts.store import ObjectStore
from offload.formats.anchor import KeyObject
from offload.formats.fragment import FragmentTail
from offload.formats.sealing import KEY_SECTION, KEY_SIZE_BYTES, DataKey, unwrapped
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Denied, Misuse
from offload.model.labels import MasterKey
from offload.native.key_objects import asking, listed_keys, open_key, store_key, try_master_key

KEPT_SECONDS: Final = 300.0
KEPT_MAX: Final = 1024
NO_SERVICE: Final = "no key service was given; use --keys (`keys` in Python and Spark), or set OFFLOAD_KEYS"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamKey:
    """A key of a stream, unwrapped. Its `repr` shows no key."""

    uid: UUID
    incarnation: UUID
    raw: bytes = field(repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        """Raise `TypeError`: a pickle would hold the key."""
        raise TypeError("a stream's key cannot be pickled")


@dataclass(kw_only=True)
class KeyRing:
    """The keys that one process has unwrapped lately. It belongs to one event loop."""

    service: KeyService
    new: MasterKey | None = None
    """The master key for streams that have no key yet. None: such a stream is not encrypted."""
    encrypted_only: bool = False
    """Refuse plain fragments: somebody who writes to the bucket may have put them in place of others."""
    env: Env = field(default_factory=Env)
    is_shared: bool = False
    """True: this is a copy for one tier, and does not close the service."""
    _pid: int = field(default_factory=os.getpid, repr=False)
    _kept: OrderedDict[tuple[str, str, UUID, UUID], tuple[float, StreamKey]] = field(
        default_factory=OrderedDict, repr=False
    )
    """The keys by store, stream, life and uid, each with the time at which it ends. The last used is last."""
    _is_closed: bool = field(default=False, repr=False)
    _locks: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = field(
        default_factory=WeakValueDictionary, repr=False
    )

    def shared(self, *, new: MasterKey | None, encrypted_only: bool) -> KeyRing:
        """Return a ring for another tier, with this ring's service and memory. Closing it does nothing."""
        return replace(self, new=new, encrypted_only=encrypted_only, is_shared=True)

    async def aclose(self) -> None:
        """Forget all keys and close the key service. Idempotent. Does nothing in a forked process."""
        if self.is_shared or self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        self._kept.clear()
        await self.service.aclose()

    async def try_new(self, stream: str) -> None:
        """Try the master key for new streams. Raises `Denied` and `TryAgain` as `for_writing` does.

        One of the form `own:LABEL` is made for each stream, so there is none to try.
        """
        if self.new is None:
            self._refuse_plain(stream)
        elif not self.new.is_own:
            with asking(stream):
                await try_master_key(self.service, self.new.label, self.env.secret(KEY_SIZE_BYTES))

    def _refuse_plain(self, stream: str) -> None:
        if self.encrypted_only:
            raise Denied(f"stream {stream!r} has no key to encrypt it; name a master key with --encrypt")

    async def for_writing(
        self,
        store: ObjectStore,
        stream: str,
        incarnation: UUID,
        *,
        base_version: int,
        refuse_if_over: Callable[[], Awaitable[None]],
    ) -> StreamKey | None:
        """Return the key of this life of the stream. It is made if there is none yet.

        `base_version` is that of a committed root of this life, the newest that the caller knows.
        `refuse_if_over` looks at the newest root, and raises `StreamDeleted` if this life has ended. Returns
        None if there is no key and `new` is None: the stream is not encrypted. Raises `Denied` instead of
        that with `encrypted_only`, if a key object is lost in both copies, or if the key service refuses.
        Raises `TryAgain` if that is down.
        """
        self._refuse_if_forked()
        # One at a time: several ledgers of a new stream are offloaded at once, and each would make a key.
        async with self._lock(store.url, stream):
            found = self._kept_of_life(store, stream, incarnation)
            if found is None:
                found = await self._find(store, stream, incarnation, refuse_if_over)
            if found is None and self.new is not None:
                draft, raw = self._draft(stream, incarnation, self.new, base_version)
                found = await self._make(store, draft, raw, refuse_if_over)
            if found is None:
                self._refuse_plain(stream)
            return found

    def data_key(self, stream_key: StreamKey, *, attempt: UUID, first_offset: int) -> tuple[DataKey, bytes]:
        """Return a new data key for a fragment, and the fragment's section that holds it wrapped."""
        raw = self.env.secret(KEY_SIZE_BYTES)
        incarnation = stream_key.incarnation
        key = DataKey(raw=raw, incarnation=incarnation, attempt=attempt, first_offset=first_offset)
        wrapped = key.wrapped(stream_key.raw)
        return key, KEY_SECTION.pack(stream_key=stream_key.uid.bytes, wrapped=wrapped)

    async def open(
        self, store: ObjectStore, stream: str, incarnation: UUID, uid: UUID, wrapped: bytes, *, where: str
    ) -> bytes:
        """Return a data key that the key `uid` of this life of the stream has wrapped.

        Raises `Denied` if the key is lost, or if the key service refuses; `TryAgain` if that is down.
        """
        key = await self.load(store, stream, incarnation, uid)
        return unwrapped(wrapped, key.raw, where=where)

    async def _find(
        self,
        store: ObjectStore,
        stream: str,
        incarnation: UUID,
        refuse_if_over: Callable[[], Awaitable[None]],
    ) -> StreamKey | None:
        copies = await listed_keys(store, stream, incarnation)
        # A key with both copies comes first. One with a single copy is half lost, or was never finished. It
        # is used if no other key may be made, because the alternative is to write in the clear.
        whole = {uid for uid, counts in copies.items() if 2 in counts.values()}
        if not (usable := whole if whole or self.new is not None else copies):
            return None
        # An earlier call may have made it for an ended life, and have failed to take it back.
        await refuse_if_over()
        return await self.load(store, stream, incarnation, min(usable))

    def _draft(
        self, stream: str, incarnation: UUID, master: MasterKey, base_version: int
    ) -> tuple[KeyObject, bytes]:
        """Return the object of a new key, still without the wrapped key, and the key."""
        uid = self.env.uuid()
        draft = KeyObject(
            stream=stream,
            base_version=base_version,
            incarnation=str(incarnation),
            uid=str(uid),
            generation=1,
            label=master.label_for(uid),
            own=master.is_own,
            wrapped="",
        )
        return draft, self.env.secret(KEY_SIZE_BYTES)

    async def _make(
        self, store: ObjectStore, draft: KeyObject, raw: bytes, refuse_if_over: Callable[[], Awaitable[None]]
    ) -> StreamKey:
        if draft.own:
            with asking(draft.stream):
                await self.service.create(draft.label)
        await store_key(store, self.service, draft, raw, self.env, refuse_if_over=refuse_if_over)
        key = StreamKey(uid=UUID(draft.uid), incarnation=UUID(draft.incarnation), raw=raw)
        self._keep(store, draft.stream, key)
        return key

    async def load(self, store: ObjectStore, stream: str, incarnation: UUID, uid: UUID) -> StreamKey:
        """Return this key of the stream. Raises as `open` does."""
        self._refuse_if_forked()
        # One at a time: all fragments of a stream are opened with the same key.
        async with self._lock(store.url, stream, str(incarnation), str(uid)):
            if (kept := self._kept_now(store, stream, incarnation, uid)) is not None:
                return kept
            _, raw = await open_key(self.service, store, stream, incarnation, uid)
            key = StreamKey(uid=uid, incarnation=incarnation, raw=raw)
            self._keep(store, stream, key)
            return key

    def _refuse_if_forked(self) -> None:
        if os.getpid() != self._pid:
            raise Misuse("the keys of streams do not survive a fork; open the tier again")

    def _kept_now(self, store: ObjectStore, stream: str, life: UUID, uid: UUID) -> StreamKey | None:
        # With the life: whoever writes to the bucket can put the uid of an older life's key into this one.
        name = store.url, stream, life, uid
        end, key = self._kept.get(name, (0.0, None))
        if key is None or self.env.monotonic() >= end:
            return None
        self._kept.move_to_end(name)
        return key

    def _kept_of_life(self, store: ObjectStore, stream: str, incarnation: UUID) -> StreamKey | None:
        for url, name, life, uid in self._kept:
            if (url, name, life) == (store.url, stream, incarnation):
                return self._kept_now(store, stream, life, uid)
        return None

    def _keep(self, store: ObjectStore, stream: str, key: StreamKey) -> None:
        now = self.env.monotonic()
        for name in [name for name, (end, _) in self._kept.items() if end <= now]:
            del self._kept[name]
        self._kept[store.url, stream, key.incarnation, key.uid] = now + KEPT_SECONDS, key
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)

    def _lock(self, *name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())


async def unlocked(
    store: ObjectStore, tail: FragmentTail, ring: KeyRing | None, *, where: str
) -> FragmentTail:
    """Return the tail of a fragment, ready to read its chunks. A plain fragment needs no ring.

    Raises `Denied` if there is no ring or it lacks this key, `TryAgain` if the key service is down, and
    `Corrupt` if the tail was changed, or if the fragment is plain and the ring takes encrypted ones only.
    """
    if not tail.trailer.encrypted:
        if ring is not None and ring.encrypted_only:
            at, found = tail.trailer.tail_start, "in the clear"
            raise Corrupt(
                "encryption", where, expected="encrypted", found=found, position=at, stream=tail.stream
            )
        return tail
    if ring is None:
        raise Denied(f"{where}: stream {tail.stream!r} is encrypted, and {NO_SERVICE}")
    uid, wrapped = tail.wrapped_key
    incarnation = tail.trailer.incarnation
    raw_key = await ring.open(store, tail.stream, incarnation, uid, wrapped, where=where)
    return tail.unlocked(raw_key, where=where)
