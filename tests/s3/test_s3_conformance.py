"""The S3 store, held against the contracts on every real S3 server; in the campaign on the fake one too."""

from __future__ import annotations

import pytest
from offload_conformance import Declared, OffloaderConformance, ProtocolConformance, State, StoreConformance
from offload_s3 import S3Options, S3Store
from servers import Place, Running, real_servers_of

from offload import LedgerOffloader, ObjectStore, ObjectStoreOffloader
from offload.store.retry import RetryingStore

SERVERS = pytest.mark.parametrize("running_server", real_servers_of("s3"), indirect=True)


class _OnServer:
    place: Place

    @pytest.fixture(autouse=True)
    def _place(self, running_server: Running) -> None:
        self.place = running_server.place()
        self.bucket, self.options = self.place.name, self.place.options  # for other processes

    def s3_store(self) -> S3Store:
        return S3Store(bucket=self.bucket, options=S3Options.of(self.options))

    def keys_in_store(self) -> set[str]:
        """By boto3: another client than the store's own."""
        return self.place.keys()


@SERVERS
class TestS3Store(_OnServer, StoreConformance):
    listing_keys = 1_100  # a request takes its time here
    capabilities = Declared(server_checksum=State.UNKNOWN)  # some servers keep none

    def open_store(self) -> ObjectStore:
        return self.s3_store()


@SERVERS
class TestS3Offloader(_OnServer, OffloaderConformance):
    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(RetryingStore(self.s3_store()))


@SERVERS
class TestS3Protocol(_OnServer, ProtocolConformance):
    walk_examples = 4  # a request takes its time here; in memory and in folders all are drawn

    def open_store(self) -> ObjectStore:
        return self.s3_store()
