"""What the clauses of the protocol over a store stand on: worlds, and the tier that is asked.

Invariant: a clause asks no more of the store than its port. That the tier of this project keeps the protocol
is shown elsewhere; here it is the probe, and the store is what is under test.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import pytest

from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import ObjectStore
from offload.env import Env
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.store.retry import RetryingStore
from offload_conformance.asynchronous import Asynchronous, Run
from offload_conformance.protocol.world import Worlds


class ProtocolClauses(Asynchronous, ABC):
    """The place of a test, and worlds in it."""

    layer: ClassVar[str] = "protocol"

    @abstractmethod
    def open_store(self) -> ObjectStore:
        """A fresh client of the same place, which is empty when a test begins."""

    @abstractmethod
    def keys_in_store(self) -> set[str]:
        """The keys that are really there, found by other means than the store."""

    def open_tier(self, store: ObjectStore, *, env: Env, options: TierOptions) -> LedgerOffloader:
        """The tier as a process opens it: retries stand before the store, as they do for users.

        Whoever makes a tier of stores in another way overrides this.
        """
        return ObjectStoreOffloader(patient(store, env), env=env, options=options)

    @pytest.fixture
    def new_world(self, run: Run) -> Iterator[Worlds]:
        """Makes worlds."""
        worlds = Worlds(self.open_store, self.open_tier)
        yield worlds
        run(worlds.aclose())


def patient(store: ObjectStore, env: Env) -> ObjectStore:
    """The store behind retries that wait by the clock of `env`."""
    return RetryingStore(store, clock=env.monotonic, sleep=env.sleep, random=env.random)
