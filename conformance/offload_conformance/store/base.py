"""What every family of a store's clauses stands on: the place, its clients, and small makers of bodies.

Invariants: nothing is asked of the store under test but its port; what is really there is looked at by
`keys_in_store` alone. A store whose listings are late by declaration is given time to show an effect.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Final

import pytest

from offload.errors import Denied
from offload.store.capabilities import KEY_SIZE_BYTES_MAX, Capabilities
from offload.store.port import Body, Listed, ObjectStore
from offload.tier.object_store_offloader import ObjectStoreOffloader
from offload_conformance.asynchronous import Asynchronous, Run
from offload_conformance.contender import Job, job_of
from offload_conformance.declared import Declared

DIGITS: Final = b"0123456789"

LATE_LOOKS_MAX: Final = 200
LATE_PAUSE_SECONDS: Final = 0.05
"""How often, and after what pauses, a listing that may be late is looked at: ten seconds in all."""


class StoreClauses(Asynchronous, ABC):
    """The place of a test, and clients of it."""

    layer: ClassVar[str] = "store"

    capabilities: ClassVar[Capabilities | Declared | None] = None
    """What is meant of the store, where that is stated apart from its own word."""

    key_size_bytes_max = KEY_SIZE_BYTES_MAX
    """Of the keys that the tests use, if that is less than the store declares."""

    newest_kept: ClassVar[int] = 16
    """How many of a folder's greatest keys exist at any moment while listings run: as many as a sweep keeps.

    1 is the strictest, for a store whose pages each show one moment.
    """

    @abstractmethod
    def open_store(self) -> ObjectStore:
        """A fresh client of the same place, which is empty when a test begins."""

    @abstractmethod
    def keys_in_store(self) -> set[str]:
        """The keys that are really there, found by other means than the store."""

    def keys_beside(self) -> set[str]:
        """Return what is stored beside the place of this test, if that is a part of a larger one."""
        return set()

    def elsewhere(self, keys: Sequence[str]) -> Job:
        """How another process opens the same place, in which it may create these keys.

        By this class, its file, and those attributes of its instance that are paths or plain JSON values.
        """
        return job_of(self)

    @pytest.fixture
    def open_client(self, run: Run) -> Iterator[Callable[[], ObjectStore]]:
        """Opens clients that are closed after the test."""
        clients: list[ObjectStore] = []

        async def on_the_loop() -> ObjectStore:
            return self.open_store()

        def open_client() -> ObjectStore:
            clients.append(run(on_the_loop()))
            return clients[-1]

        yield open_client
        for client in clients:
            run(client.aclose())

    @pytest.fixture
    def store(self, open_client: Callable[[], ObjectStore]) -> ObjectStore:
        """The client under test."""
        return open_client()

    @pytest.fixture
    def other(self, open_client: Callable[[], ObjectStore]) -> ObjectStore:
        """A second client of the same place."""
        return open_client()

    def holds_no_tier(self, run: Run, store: ObjectStore) -> None:
        """Assert what follows where the store declares that no commit is safe on it: `Denied`, at once."""
        with pytest.raises(Denied):
            run(ObjectStoreOffloader(store).open(create=True))
        assert self.keys_in_store() == set(), "a place that is refused is left as it was"


async def listed(
    store: ObjectStore, prefix: str = "", *, after: str = "", awaiting: Sequence[str] | None = None
) -> list[Listed]:
    """A listing to its end; of a store that may be late, the first with the keys `awaiting`, or the last."""
    looks = 1 if awaiting is None or store.capabilities.strong_listing else LATE_LOOKS_MAX
    for look in range(looks):
        rows = [row async for row in store.list(prefix, after=after)]
        if awaiting is None or keys(rows) == list(awaiting):
            break
        if look < looks - 1:
            await asyncio.sleep(LATE_PAUSE_SECONDS)
    return rows


def refuses(store: ObjectStore, key: str) -> bool:
    """Whether the store declares that it cannot hold this key."""
    pattern = store.capabilities.keys_refused
    return pattern is not None and re.search(pattern, key) is not None


async def level(store: ObjectStore, prefix: str) -> list[str]:
    """The names of a level."""
    return [name async for name in store.level(prefix)]


def keys(rows: Iterable[Listed]) -> list[str]:
    """The keys of a listing."""
    return [row.key for row in rows]


def body_of(*windows: bytes) -> Body:
    """A body of several windows."""

    async def again() -> AsyncIterator[bytes]:
        for window in windows:
            yield window

    return Body(size_bytes=sum(map(len, windows)), windows=again)
