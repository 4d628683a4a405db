"""A tier in memory with a key service in memory, for tests of the keys of streams.

`Service` is a fake: it wraps with AES-GCM, so a test that asks with another context or label is refused as by
a real one.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from kit.world import Clock, TierWorld
from offload_conformance.ledgers import ledger_of

from offload import ObjectStoreOffloader, StreamReader, StreamWriter
from offload.contracts.keys import KeyService
from offload.formats.anchor import KeyObject
from offload.formats.keys import StreamKeys
from offload.formats.root import encode_root
from offload.ground.errors import Denied, NoSuchKey, TryAgain
from offload.model.labels import MasterKey
from offload.model.manifest import StreamState
from offload.native.key_ring import KeyRing

LABEL: Final = "tier-2026"

Objects = dict[str, bytes]


class Service(KeyService):
    """A key service in memory: labels and master keys. `calls` are its calls in order, without trials."""

    def __init__(self, *labels: str) -> None:
        self.masters = {label: AESGCM(AESGCM.generate_key(256)) for label in labels or (LABEL,)}
        self.calls: list[str] = []
        self.is_down = False
        self.waits_seconds = 0.0
        self.unwraps_to: Callable[[bytes], bytes] = lambda key: key

    async def wrap(self, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
        """Return the key encrypted, with the label and the context as associated data."""
        return self._master("wrap", label, context).encrypt(bytes(12), key, _bound(label, context))

    async def unwrap(self, label: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """Undo `wrap`."""
        master = self._master("unwrap", label, context)
        try:
            return self.unwraps_to(master.decrypt(bytes(12), wrapped, _bound(label, context)))
        except InvalidTag as exc:
            raise Denied(f"master key {label!r} did not wrap this key") from exc

    async def create(self, label: str) -> None:
        """Make a master key."""
        self.calls.append("create")
        self.masters.setdefault(label, AESGCM(AESGCM.generate_key(256)))

    async def destroy(self, label: str) -> float:
        """Destroy a master key."""
        self.calls.append("destroy")
        if self.is_down:
            raise TryAgain("the key service is down")
        return self.waits_seconds if self.masters.pop(label, None) else 0.0

    def _master(self, call: str, label: str, context: Mapping[str, str]) -> AESGCM:
        if context["purpose"] != "ledger-offload check":
            self.calls.append(call)
        if self.is_down:
            raise TryAgain("the key service is down")
        if label not in self.masters:
            raise NoSuchKey(f"the key service has no key {label!r}")
        return self.masters[label]


def _bound(label: str, context: Mapping[str, str]) -> bytes:
    return json.dumps([label, dict(context)], sort_keys=True).encode()


@dataclass
class World(TierWorld):
    """A tier with a key service. Its clock begins at 0, where a key's time is counted from."""

    clock: Clock = field(default_factory=lambda: Clock(0.0))
    service: Service = field(default_factory=Service)

    def ring(
        self, label: str | None = LABEL, *, secret: Callable[[int], bytes] = os.urandom, **changes: Any
    ) -> KeyRing:
        """Return the ring of another process."""
        new = None if label is None else MasterKey.parse(label)
        return KeyRing(service=self.service, new=new, env=replace(self.env(), secret=secret), **changes)

    def tier(self, ring: KeyRing | None = None) -> ObjectStoreOffloader:
        return ObjectStoreOffloader(self.store, ring=ring)

    def key_objects(self, suffix: str = "") -> list[str]:
        return sorted(key for key in self.objects if "/keys/" in key and key.endswith(suffix))

    def lose(self, suffix: str = "") -> None:
        for key in self.key_objects(suffix):
            del self.objects[key]

    def damage(self, suffix: str = "") -> None:
        for key in self.key_objects(suffix):
            self.objects[key] = self.objects[key][:-20] + b"x" * 20

    def forge(self, suffix: str = "") -> None:
        """Replace the wrapped keys of these objects. Their checksums are right."""
        for key in self.key_objects(suffix):
            found = KeyObject.decode(self.objects[key], where=key)
            self.objects[key] = replace(found, wrapped="d3JhcHBlZA==").encode()


def run(scenario: Callable[[World], Awaitable[None]], **changes: Any) -> World:
    world = World(**changes)
    asyncio.run(scenario(world))  # type: ignore[arg-type]  # a coroutine function
    return world


async def living() -> None:
    """Find that the stream lives, in place of a look at its newest root."""


async def append(tier: ObjectStoreOffloader, records: int = 10, *, stream: str = "orders") -> None:
    writer = await StreamWriter.claim(tier, stream)
    await writer.offload([ledger_of(records, first_offset=writer.manifest.next_offset)])


async def read(tier: ObjectStoreOffloader, stream: str = "orders") -> int:
    """Read the stream, and return the number of its messages."""
    reader = await StreamReader.open(tier, stream)
    return sum([len(batch.bodies) async for batch in reader.messages(0)])


async def is_encrypted(world: World, stream: str = "orders") -> list[bool]:
    """Return, for each fragment, if it is encrypted."""
    tier = world.tier()
    tree = tier.tree(await tier.load_manifest(stream))
    return [bool(flag) async for run in tree.walk() for flag in run["encrypted"]]


async def fence(world: World, stream: str = "orders") -> None:
    """Leave the stream as a rebuild that is under way does."""
    tier = world.tier()
    await tier.open()
    newest = await tier.log(stream).load_newest()
    assert newest is not None
    rebuilding = replace(newest, version=newest.version + 1, state=StreamState.REBUILDING)
    world.objects[StreamKeys(stream).root(rebuilding.version)] = encode_root(rebuilding)
