"""The stores of a new place on a running server, for the conformance suite."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from cloud.elsewhere import Elsewhere
from offload_conformance.contender import ContenderTask, job_of
from servers import Place, Running

from offload import LedgerOffloader, ObjectStore, ObjectStoreOffloader, Plugins
from offload.opening.by_url import open_store
from offload.store.retry import RetryingStore

PLUGINS = Plugins.find()
"""Found once: a search reads the metadata of every installed package."""


class OnServer:
    """A new bucket or container for each test. The suite's classes call these methods."""

    place: Place

    @pytest.fixture(autouse=True)
    def _place(self, running_server: Running) -> None:
        self.place = running_server.place()
        self.url, self.options = self.place.url, self.place.options

    def open_store(self) -> ObjectStore:
        return open_store(self.url, plugins=PLUGINS, storage_options=self.options)

    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(RetryingStore(self.open_store()))

    def elsewhere(self, keys: Sequence[str]) -> ContenderTask:
        return job_of(Elsewhere(self.url, self.options))

    def keys_in_store(self) -> set[str]:
        """List by another client than the store's own."""
        return self.place.keys()
