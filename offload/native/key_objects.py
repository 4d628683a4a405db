"""Key objects: the keys of a stream on its tier, each wrapped by a master key and stored in two copies.

A rotation makes the next generation of a key object, wrapped by another master key, and then deletes the
older ones. The key itself stays the same.

Invariants:

- A key object is created and never overwritten, so no stalled process undoes a rotation.
- The copy is created first. Whoever sees the object `.key` finds both.
- A key is stored only after the service has unwrapped what it has wrapped. Otherwise a service that can wrap
  and not unwrap would lose every message.
- A key that was stored for an ended life is taken back: a shred may have listed the keys before.

Both copies are read in the same way, so the loss of one loses nothing. If the key service refuses one copy,
the other is tried: the service alone tells a sound copy from a forged one. A reader or a writer does not
restore a lost copy: somebody may be shredding the stream.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from uuid import UUID

from offload.contracts.keys import KeyService
from offload.contracts.store import ObjectStore
from offload.formats.anchor import WRAPPED_SIZE_BYTES_MAX, KeyObject
from offload.formats.keys import StreamKeys
from offload.formats.sealing import KEY_SIZE_BYTES
from offload.ground.env import Env
from offload.ground.errors import (
    AlreadyExists,
    Corrupt,
    Denied,
    NotFound,
    OffloadError,
    StreamDeleted,
    TryAgain,
    UnsupportedFormat,
)
from offload.native.anchors import create_anchor, read_anchor

TRIED_MAX: Final = 16
"""How many objects of a key are tried, the newest first.

Rotations that broke off leave a few that are damaged or gone. Somebody who writes to the bucket can leave any
number, and no reader may be busy with them for hours.
"""


async def listed_keys(store: ObjectStore, stream: str, incarnation: UUID) -> dict[UUID, dict[int, int]]:
    """Return how many copies of each key of a life there are, by uid and generation.

    One list. Needs no key service.
    """
    keys, found = StreamKeys(stream), dict[UUID, dict[int, int]]()
    async for listed in store.list(keys.keys_of_life(incarnation)):
        if (parsed := keys.parse_key_object(listed.key)) is not None:
            _, uid, generation = parsed
            counts = found.setdefault(uid, {})
            counts[generation] = counts.get(generation, 0) + 1
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySearch:
    """The result of a search for a key among its objects."""

    found: KeyObject | None = None
    """The newest object that is sound. If a key service was asked, the newest that it unwraps."""

    raw: bytes = field(default=b"", repr=False)
    """The key, if a key service was asked."""

    refusal: Denied | None = None
    """The refusal of the first object by the key service, if it refused every one that is sound."""

    tried: Mapping[str, str]
    """The reason against each other object that was tried, by its name."""

    refused: Collection[str] = ()
    """The names of those that the key service refused."""

    @property
    def loss(self) -> str:
        """Why the key is lost. Empty if an object is sound: a refusal is no loss."""
        if self.found is not None or self.refusal is not None:
            return ""
        return "; ".join(self.tried.values()) or "no copy is left"


async def search_key(
    store: ObjectStore, stream: str, incarnation: UUID, uid: UUID, *, service: KeyService | None = None
) -> KeySearch:
    """Search the objects of a key, the newest first. One list and one get if the first is good.

    At most `TRIED_MAX` are tried. Raises `TryAgain` if the key service is down, and `UnsupportedFormat` if a
    newer program wrote an object, and no other one is good.
    """
    keys, tried = StreamKeys(stream), dict[str, str]()
    prefix = f"{keys.keys_of_life(incarnation)}{uid}."
    refusal: Denied | None = None
    newer: UnsupportedFormat | None = None
    refused: dict[str, KeyObject] = {}
    # A rotation may delete what was just listed. The next list then shows what it made before that.
    while len(tried) < TRIED_MAX and (name := await _newest_but(store, prefix, keys, tried)):
        try:
            one = await read_anchor(store, name, partial(decode_key_object, keys=keys, where=name))
        except (Corrupt, NotFound) as exc:
            tried[name] = str(exc)
            continue
        except UnsupportedFormat as exc:
            newer, tried[name] = newer or exc, str(exc)
            continue
        if service is None:
            return KeySearch(found=one, tried=tried)
        if one not in refused.values():  # the service would refuse an equal copy as well
            try:
                return KeySearch(found=one, raw=await unwrap_key(service, one), tried=tried)
            except Denied as exc:
                refusal = refusal or exc
        refused[name], tried[name] = one, "the key service refuses it"
    if newer is not None and refusal is None:
        raise newer
    return KeySearch(refusal=refusal, tried=tried, refused=[*refused])


async def open_key(
    service: KeyService, store: ObjectStore, stream: str, incarnation: UUID, uid: UUID
) -> tuple[KeyObject, bytes]:
    """Return the newest key object that the service unwraps, and the key.

    Raises `Denied` if no copy is left or sound, or if the service refuses them. Raises `TryAgain` if it is
    down.
    """
    search = await search_key(store, stream, incarnation, uid, service=service)
    if search.refusal is not None:
        raise search.refusal
    return sound_object(search, stream, uid), search.raw


def sound_object(search: KeySearch, stream: str, uid: UUID) -> KeyObject:
    """Return the object that was found. Raises `Denied` if the key is lost."""
    if search.found is not None:
        return search.found
    raise Denied(
        f"stream {stream!r}: both copies of its key {uid} are lost or damaged, and its data cannot be read "
        f"without it; restore one from a backup ({'; '.join(search.tried.values()) or 'none is left'})"
    )


async def read_both_copies(
    store: ObjectStore, stream: str, incarnation: UUID, uid: UUID, generation: int
) -> KeyObject | None:
    """Return one generation of a key. None unless both copies are there, sound and equal. Two gets."""
    keys, found = StreamKeys(stream), list[KeyObject]()
    for name in keys.key_objects(incarnation, uid, generation):
        try:
            found.append(await read_anchor(store, name, partial(decode_key_object, keys=keys, where=name)))
        except (Corrupt, NotFound):
            return None
    return found[0] if found[0] == found[1] else None


def decode_key_object(raw: bytes, *, keys: StreamKeys, where: str) -> KeyObject:
    """Decode a key object, and check that it belongs under its own key. Raises as `KeyObject.decode` does."""
    found = KeyObject.decode(raw, where=where)
    names = keys.key_objects(UUID(found.incarnation), UUID(found.uid), found.generation)
    if found.stream != keys.stream or where not in names:
        what = f"key {found.uid} of stream {found.stream!r}, generation {found.generation}"
        raise Corrupt("key object", where, expected="that of its name", found=what)
    return found


async def _newest_but(store: ObjectStore, prefix: str, keys: StreamKeys, tried: Collection[str]) -> str:
    """Return the highest generation, and `.key` before `.copy`; empty if none is left."""
    newest = ""
    async for listed in store.list(prefix):
        if listed.key not in tried and keys.parse_key_object(listed.key) is not None:
            newest = max(newest, listed.key)
    return newest


async def unwrap_key(service: KeyService, found: KeyObject) -> bytes:
    """Return the key of a key object.

    Raises `Denied` with the stream if the service refuses or returns no key of a stream, and `TryAgain` if
    it is down.
    """
    with asking(found.stream):
        raw = await service.unwrap(found.label, base64.b64decode(found.wrapped), _context(found))
    if len(raw) != KEY_SIZE_BYTES:
        raise Denied(f"stream {found.stream!r}: the key service returned a key of {len(raw)} bytes")
    return raw


async def try_master_key(service: KeyService, label: str, raw: bytes) -> None:
    """Wrap and unwrap `raw`, a key that encrypts nothing. Writes nothing.

    Raises `Denied` if another key comes back, and as the key service does.
    """
    context = {"purpose": "ledger-offload check"}
    if await service.unwrap(label, await service.wrap(label, raw, context), context) != raw:
        raise Denied("the key service does not return the key that it has wrapped")


async def store_key(
    store: ObjectStore,
    service: KeyService,
    draft: KeyObject,
    raw: bytes,
    env: Env,
    *,
    refuse_if_over: Callable[[], Awaitable[None]],
) -> None:
    """Wrap a key and store it in two copies. `draft` is its key object, still without the wrapped key.

    `refuse_if_over` looks at the newest root, and raises `StreamDeleted` if the life of this key has ended.
    Then nothing stays, not even the master key of the first generation if it was made for this key alone.

    Raises `AlreadyExists` if a rival has stored this generation, `TryAgain` if it was deleted meanwhile, and
    as `unwrap_key` does. After another error than `StreamDeleted`, copies may be stored.
    """
    with asking(draft.stream):
        wrapped = await service.wrap(draft.label, raw, _context(draft))
    if not 0 < len(wrapped) <= WRAPPED_SIZE_BYTES_MAX:
        raise Denied(
            f"stream {draft.stream!r}: the key service returned a wrapped key of {len(wrapped)} bytes"
        )
    made = replace(draft, wrapped=base64.b64encode(wrapped).decode())
    if await unwrap_key(service, made) != raw:
        raise Denied(f"stream {draft.stream!r}: the key service did not return the key that it has wrapped")
    text = made.encode()
    keys = StreamKeys(draft.stream)
    own, copy = keys.key_objects(UUID(draft.incarnation), UUID(draft.uid), draft.generation)
    for name in (copy, own):
        if await create_anchor(store, name, text, env):
            continue
        # An object that exists may be our own, from a create whose reply was lost.
        try:
            await read_anchor(store, name, partial(_same, text, where=name))
        except NotFound as exc:
            raise TryAgain(f"{name} was rotated or shredded while it was stored") from exc
        except Corrupt as exc:
            raise AlreadyExists(name) from exc
    try:
        await refuse_if_over()
    except StreamDeleted:
        # The master key first: only the key object names it. If it stays, the next shred finds both.
        if draft.own and draft.generation == 1:
            with asking(draft.stream):
                await service.destroy(draft.label)
        await store.delete([own, copy])
        raise


def _same(text: bytes, found: bytes, *, where: str) -> None:
    if found != text:
        raise Corrupt("key object", where, expected="what was stored", found="another one")


@contextmanager
def asking(stream: str) -> Iterator[None]:
    """Name the stream in an error of the key service, and take away the cause of the error.

    The cause is an error of an SDK. Some show the request or the reply, and with it a key.
    """
    try:
        yield
    except OffloadError as exc:
        exc.args = (f"stream {stream!r}: {exc}",)
        exc.__cause__ = exc.__context__ = None
        raise


def _context(found: KeyObject) -> dict[str, str]:
    """Return what binds a wrapped key to its place: the key service refuses it anywhere else."""
    purpose = "ledger-offload stream key"
    return {"purpose": purpose, "stream": found.stream, "incarnation": found.incarnation, "key": found.uid}
