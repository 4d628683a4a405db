"""The base of the protocol clauses for stores: worlds, and the tier that runs in them.

Invariant: a clause asks no more of the store than its port. Other tests show that the tier of this project
keeps the protocol. Here the tier is the probe, and the store is under test.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import pytest

from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import ObjectStore
from offload.ground.env import Env
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.store.retry import RetryingStore
from offload_conformance.asynchronous import Asynchronous, Run
from offload_conformance.protocol.world import Worlds


class ProtocolClauses(Asynchronous, ABC):
    """The place of a test, and worlds in it."""

    layer: ClassVar[str] = "protocol"

    @abstractmethod
    def open_store(self) -> ObjectStore:
        """Return a fresh client of the same place, which is empty when a test begins."""

    @abstractmethod
    def keys_in_store(self) -> set[str]:
        """Return the keys that are really stored, found by other means than the store."""

    def open_tier(self, store: ObjectStore, *, env: Env, options: TierOptions) -> LedgerOffloader:
        """Return the tier as a process opens it, with retries before the store, as users have it.

        An author whose tiers are made of stores in another way overrides this.
        """
        return ObjectStoreOffloader(patient(store, env), env=env, options=options)

    @pytest.fixture
    def new_world(self, run: Run) -> Iterator[Worlds]:
        """Return a function that makes worlds."""
        worlds = Worlds(self.open_store, self.open_tier)
        yield worlds
        run(worlds.aclose())


def patient(store: ObjectStore, env: Env) -> ObjectStore:
    """Return the store behind retries. They wait by the clock of `env`."""
    return RetryingStore(store, clock=env.monotonic, sleep=env.sleep, random=env.random)
