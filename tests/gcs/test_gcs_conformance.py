"""The GCS store, held against the contracts on every server of the catalogue."""

from __future__ import annotations

import pytest
from offload_conformance import OffloaderConformance, StoreConformance
from offload_gcs import GcsOptions, GcsStore
from servers import Place, Running, servers_of

from offload import LedgerOffloader, ObjectStore, ObjectStoreOffloader

SERVERS = pytest.mark.parametrize("running_server", servers_of("gcs"), indirect=True)


class _OnServer:
    place: Place

    @pytest.fixture(autouse=True)
    def _place(self, running_server: Running) -> None:
        self.place = running_server.place()

    def gcs_store(self) -> GcsStore:
        return GcsStore(bucket=self.place.name, options=GcsOptions.of(self.place.options))

    def keys_in_store(self) -> set[str]:
        """By urllib: another client than the store's own."""
        return self.place.keys()


@SERVERS
class TestGcsStore(_OnServer, StoreConformance):
    def open_store(self) -> ObjectStore:
        return self.gcs_store()


@SERVERS
class TestGcsOffloader(_OnServer, OffloaderConformance):
    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(self.gcs_store())
