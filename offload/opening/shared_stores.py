"""The stores of a session: those of one place share a client, and the last lease closes it.

Invariant: a store is closed with its last lease, never while another tier uses it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from offload.contracts.metrics import StoreMetrics
from offload.contracts.plugin import Backend
from offload.contracts.store import ObjectStore
from offload.ground.errors import Misuse
from offload.ground.urls import with_lower_scheme
from offload.opening.backends import open_bare
from offload.opening.closing import Closable, all_closed, whole_result
from offload.store.metrics import MeteredStore
from offload.store.prefix import PrefixStore

__all__ = ["SharedStores"]


class SharedStores:
    """The stores that a session has open. `opened` is the session's list of all that it must close."""

    def __init__(
        self,
        opened: list[Closable],
        *,
        metrics: StoreMetrics,
        clock: Callable[[], float],
        is_forked: Callable[[], bool],
    ) -> None:
        self._opened, self.metrics, self.clock, self.is_forked = opened, metrics, clock, is_forked
        self.stores: list[SharedStore] = []

    def leased(self, backend: Backend, url: str, options: Mapping[str, Any]) -> ObjectStore:
        """Return the store of a URL, on a client that it shares with other stores of the same place.

        Two stores have the same place if the caller's URLs are equal, without the prefix that the backend
        took from the end. The options and the environment at the time of opening must be equal too.
        """
        # The backend opens its store first, because only it knows which part of a URL is a prefix.
        opened = open_bare(backend, url, options)
        # The caller's URL is compared, not the store's: that one is for messages, and may leave out what
        # tells two places apart.
        place = with_lower_scheme(url).rstrip("/")
        asked = backend.name, {**options}, {**os.environ}  # variables may name an endpoint or an account
        if not isinstance(opened, PrefixStore):
            return self._lease(opened, (place, *asked))
        # The lease is below the prefix, because the client is the bucket's: all tiers of a bucket share it.
        outer = place.removesuffix(f"/{opened.prefix}")
        # If the URL does not end with the prefix, it says more than bucket and prefix, in the backend's own
        # way. Then it is unknown which other URL means the same bucket, and the client is not shared.
        is_known = outer != place
        opened.inner = self._lease(opened.inner, (outer, *asked) if is_known else None)
        return opened

    def _lease(self, store: ObjectStore, place: object) -> StoreLease:
        shared = next((each for each in self.stores if each.serves(place, store)), None)
        if shared is None:
            shared, spare = SharedStore(store, place), None
            self.stores.append(shared)
        else:
            # The backend had to open a store before its place could be compared. This one is not used, but it
            # may hold a client that must be closed. Closing waits, and this method cannot: the lease does it.
            spare = store
        lease = StoreLease(self, shared, spare)
        self._opened.append(lease)
        return lease

    def forget(self, lease: StoreLease) -> None:
        """Take a lease that has closed off the session's list."""
        with suppress(ValueError):  # the session is closing the lease itself, and took it off the list first
            self._opened.remove(lease)


@dataclass(slots=True, eq=False)
class SharedStore:
    """A store that is used by one lease or several."""

    store: ObjectStore
    place: object
    """The URL, backend, options and environment it was opened by. None if no other URL can be compared."""

    leases: int = 0

    def serves(self, place: object, store: ObjectStore) -> bool:
        """Return True if `store`, which was opened at `place`, is the same as this store."""
        # The stores' own URLs are compared too: a relative path names another folder after a `chdir`.
        return place is not None and self.place == place and self.store.url == store.url


class StoreLease(MeteredStore):
    """One tier's share of a store. It counts requests for the session; the last lease closes the store."""

    __slots__ = ("_all", "_closing", "_shared", "_spare")

    def __init__(self, all_stores: SharedStores, shared: SharedStore, spare: ObjectStore | None) -> None:
        super().__init__(shared.store, all_stores.metrics, clock=all_stores.clock, is_traced=True)
        self._all, self._shared, self._spare = all_stores, shared, spare
        self._closing: asyncio.Task[BaseException | None] | None = None
        shared.leases += 1

    async def aclose(self) -> None:
        """Close the store if this is its last lease. Idempotent. Does nothing in a forked process.

        A cancellation is raised after the closing has ended.
        """
        if self._all.is_forked():
            return
        if self._closing is None:
            # At once, before any wait: requests of this tier must fail from now on, although the client may
            # stay open for other tiers. A client that was closed might also connect again when it is used.
            self.inner = cast("ObjectStore", _ClosedStore(self.inner))
            self._closing = asyncio.ensure_future(self._give_back())
        error = await whole_result(self._closing)
        if error is not None:
            raise error

    async def _give_back(self) -> BaseException | None:
        """Close the stores that no other lease uses, and return the first error."""
        unused: list[Closable] = [self._spare] if self._spare is not None else []
        self._shared.leases -= 1
        if not self._shared.leases:
            # Before the wait: a tier that is opened meanwhile must not lease a store that is being closed.
            self._all.stores.remove(self._shared)
            unused.append(self._shared.store)
        error = await all_closed(unused)
        # After the wait: as long as the lease is on the list, a session that is closed waits for it too.
        self._all.forget(self)
        return error


class _ClosedStore:
    """The replacement for a store that was given back. Only its URL and capabilities are left."""

    def __init__(self, store: ObjectStore) -> None:
        self.url, self.capabilities = store.url, store.capabilities

    def __getattr__(self, name: str) -> NoReturn:
        raise Misuse(f"{self.url} was closed; open it again")
