"""A bucket whose fragments go by obstore keeps the contracts: on MinIO; in the campaign on every server."""

from __future__ import annotations

import os

import pytest
from offload_cloud.fast import FastStore
from offload_conformance import Declared, OffloaderConformance, ProtocolConformance, State, StoreConformance
from offload_s3 import S3Options
from offload_s3.url import open_bucket
from servers import Place, Running, servers_of

from offload import LedgerOffloader, ObjectStore, ObjectStoreOffloader
from offload.store.retry import RetryingStore

CAMPAIGN = bool(os.environ.get("OFFLOAD_CAMPAIGN"))
CHOSEN = servers_of("s3") if CAMPAIGN else ["minio"]
SERVERS = pytest.mark.parametrize("running_server", CHOSEN, indirect=True)


class _OnServer:
    place: Place

    @pytest.fixture(autouse=True)
    def _place(self, running_server: Running) -> None:
        self.place = running_server.place()
        self.bucket, self.options = self.place.name, self.place.options  # for other processes

    def fast_store(self) -> ObjectStore:
        store = open_bucket(self.bucket, S3Options.of(self.options | {"client": "obstore"}))
        assert isinstance(store, FastStore)
        return store

    def keys_in_store(self) -> set[str]:
        """By boto3: another client than the store's own."""
        return self.place.keys()


@SERVERS
class TestFastS3Store(_OnServer, StoreConformance):
    listing_keys = 1_100  # a request takes its time here
    capabilities = Declared(server_checksum=State.UNKNOWN)  # some servers keep none

    if not CAMPAIGN:  # the client behind lists, as `TestS3Store` has it do
        test_listing_goes_on_page_after_page = test_a_level_goes_on_page_after_page = None

    def open_store(self) -> ObjectStore:
        return self.fast_store()


@SERVERS
class TestFastS3Offloader(_OnServer, OffloaderConformance):
    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(RetryingStore(self.fast_store()))


@SERVERS
class TestFastS3Protocol(_OnServer, ProtocolConformance):
    if not CAMPAIGN:  # the client behind commits, as `TestS3Protocol` has it do
        test_walks_go_as_the_model_says = None

    def open_store(self) -> ObjectStore:
        return self.fast_store()
