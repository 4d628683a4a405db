"""The Azure store, held against the contracts on every Azure server of the catalogue."""

from __future__ import annotations

import pytest
from offload_azure import AzureOptions, AzureStore
from offload_conformance import OffloaderConformance, ProtocolConformance, StoreConformance
from offload_conformance.asynchronous import Run
from servers import Place, Running, servers_of

from offload import Body, LedgerOffloader, Misuse, ObjectStore, ObjectStoreOffloader
from offload.store.retry import RetryingStore

SERVERS = pytest.mark.parametrize("running_server", servers_of("azure"), indirect=True)


class _OnServer:
    place: Place

    @pytest.fixture(autouse=True)
    def _place(self, running_server: Running) -> None:
        self.place = running_server.place()
        self.bucket, self.options = self.place.name, self.place.options  # for other processes

    def azure_store(self, **options: object) -> AzureStore:
        checked = AzureOptions.of(self.options | options)
        return AzureStore(container=self.bucket, options=checked)

    def keys_in_store(self) -> set[str]:
        """By the synchronous client: the store's own is another."""
        return self.place.keys()


@SERVERS
class TestAzureStore(_OnServer, StoreConformance):
    listing_keys = 1_100  # a request takes its time here

    def open_store(self) -> ObjectStore:
        return self.azure_store()

    @pytest.mark.parametrize("key", ["a\\b", "\\", "a.", "a./b", "a/b..."])
    def test_keys_that_the_service_takes_for_others_are_refused(
        self, run: Run, store: ObjectStore, key: str
    ) -> None:
        """`a\\b` would overwrite `a/b`, and `a.` would overwrite `a`."""
        run(store.put("a/b", Body.of(b"slash")))

        for call in (store.put(key, Body.of(b"")), store.create(key, b""), store.get(key)):
            with pytest.raises(Misuse):
                run(call)
        with pytest.raises(Misuse):
            run(store.delete(["a/b", key]))

        assert self.keys_in_store() == {"a/b"}


@SERVERS
class TestAzureOffloader(_OnServer, OffloaderConformance):
    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(RetryingStore(self.azure_store()))


@SERVERS
class TestAzureProtocol(_OnServer, ProtocolConformance):
    walk_examples = 4  # a request takes its time here; in memory and in folders all are drawn

    def open_store(self) -> ObjectStore:
        return self.azure_store()
