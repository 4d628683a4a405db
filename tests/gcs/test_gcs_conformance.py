"""The GCS store, held against the contracts on every server of the catalogue."""

from __future__ import annotations

import asyncio

import pytest
from offload_conformance import OffloaderConformance, ProtocolConformance, StoreConformance
from offload_gcs import GcsOptions, GcsStore
from servers import Place, Running, servers_of

from offload import Denied, LedgerOffloader, ObjectStore, ObjectStoreOffloader, StreamWriter
from offload.store.retry import RetryingStore

SERVERS = pytest.mark.parametrize("running_server", servers_of("gcs"), indirect=True)


class _OnServer:
    place: Place

    @pytest.fixture(autouse=True)
    def _place(self, running_server: Running) -> None:
        self.place = running_server.place()
        self.bucket, self.options = self.place.name, self.place.options  # for other processes

    def gcs_store(self) -> GcsStore:
        return GcsStore(bucket=self.bucket, options=GcsOptions.of(self.options))

    def keys_in_store(self) -> set[str]:
        """By urllib: another client than the store's own."""
        return self.place.keys()


@SERVERS
class TestGcsStore(_OnServer, StoreConformance):
    listing_keys = 1_100  # a request takes its time here

    def open_store(self) -> ObjectStore:
        return self.gcs_store()


@SERVERS
class TestGcsOffloader(_OnServer, OffloaderConformance):
    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(RetryingStore(self.gcs_store()))


@SERVERS
class TestGcsProtocol(_OnServer, ProtocolConformance):
    walk_examples = 4  # a request takes its time here; in memory and in folders all are drawn

    def open_store(self) -> ObjectStore:
        return self.gcs_store()


@pytest.mark.parametrize("running_server", servers_of("gcs", honours_create=False), indirect=True)
def test_a_server_that_overwrites_what_it_should_create_holds_no_tier(running_server: Running) -> None:
    """Found out before the first commit; what was tried is removed."""
    place = running_server.place()

    async def main() -> None:
        store = GcsStore(bucket=place.name, options=GcsOptions.of(place.options))
        async with ObjectStoreOffloader(store) as offloader:
            await StreamWriter.claim(offloader, "orders")

    with pytest.raises(Denied, match="two writers could both commit"):
        asyncio.run(main())

    assert place.keys() == set()
