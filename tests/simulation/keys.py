"""The key service of a simulated world, which all processes share. It may be down or deny for a while."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from offload.contracts.keys import KeyService
from offload.ground.errors import Denied, NoSuchKey, TryAgain

if TYPE_CHECKING:
    from simulation.store import SimulatedStore

TAG_SIZE_BYTES: Final = 16


@dataclass
class KeyHouse:
    """The key service of a world, and what it knows of each key."""

    random: Random
    masters: dict[str, bytes] = field(default_factory=dict)
    destroyed: set[str] = field(default_factory=set)
    shared: str = ""
    """The label of the shared master key for new streams. Each rotation makes another."""
    state: str = ""
    """Empty, `down` or `denying`."""
    ends_at: int = 0
    """The step at which the state ends."""
    denials: int = 0
    """The number of times at which it began to deny."""
    lost_copies: int = 0
    """The number of copies of key objects that were lost."""
    is_shredding: bool = False
    """True from the first shred on: then a process may meet a life without keys."""
    raw: dict[UUID, bytes] = field(default_factory=dict)
    """Every key of a stream that was ever wrapped, for the judge."""

    def __post_init__(self) -> None:
        self.new_shared()

    def new_shared(self) -> None:
        """Make another shared master key."""
        self.shared = f"shared-{len(self.masters)}"
        self.create(self.shared)

    def create(self, label: str) -> None:
        """Make a master key, unless it exists."""
        if label not in self.destroyed:
            self.masters.setdefault(label, self.random.randbytes(32))

    def destroy(self, label: str) -> None:
        """Destroy a master key for good."""
        self.masters.pop(label, None)
        self.destroyed.add(label)

    def wrap(self, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
        """See `KeyService.wrap`."""
        wrapped = aes_key_wrap(self._master(label), key)
        if "key" in context:  # a trial of the master key wraps the key of no stream
            self.raw[UUID(context["key"])] = key
        return _tag(label, context) + wrapped

    def unwrap(self, label: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """See `KeyService.unwrap`."""
        master = self._master(label)
        try:
            if wrapped[:TAG_SIZE_BYTES] != _tag(label, context):
                raise Denied(f"{label!r} wrapped this key for another place")
            return aes_key_unwrap(master, wrapped[TAG_SIZE_BYTES:])
        except InvalidUnwrap as exc:
            raise Denied(f"{label!r} did not wrap this key") from exc

    def _master(self, label: str) -> bytes:
        if label not in self.masters:
            raise NoSuchKey(f"there is no master key {label!r}")
        return self.masters[label]


def _tag(label: str, context: Mapping[str, str]) -> bytes:
    bound = json.dumps([label, dict(context)], sort_keys=True).encode()
    return hashlib.sha256(bound).digest()[:TAG_SIZE_BYTES]


class SimulatedKeys(KeyService):
    """The key service as one process sees it. Without a store to ask, it answers at once and never fails."""

    def __init__(self, house: KeyHouse, store: SimulatedStore | None = None) -> None:
        self._house, self._store = house, store

    async def wrap(self, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
        return await self._ask("wrap", label, lambda: self._house.wrap(label, key, context))

    async def unwrap(self, label: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        return await self._ask("unwrap", label, lambda: self._house.unwrap(label, wrapped, context))

    async def create(self, label: str) -> None:
        await self._ask("create", label, lambda: self._house.create(label))

    async def destroy(self, label: str) -> float:
        await self._ask("destroy", label, lambda: self._house.destroy(label))
        return 0.0

    async def _ask(self, operation: str, label: str, act: Callable[[], Any]) -> Any:
        if self._store is None:
            return act()

        def unless_troubled() -> Any:
            if self._house.state == "down":
                raise TryAgain("the key service is down")
            if self._house.state == "denying":
                raise Denied("the key service denies")
            return act()

        return await self._store.ask(operation, label, unless_troubled, changes=False)
