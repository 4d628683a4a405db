"""Tests of the Azure store against the contracts, on every server of the catalogue."""

from __future__ import annotations

import pytest
from campaign import CAMPAIGN, campaign, few, leaving
from cloud.on_server import OnServer
from offload_conformance import OffloaderConformance, ProtocolConformance, StoreConformance
from offload_conformance.asynchronous import Run
from servers import servers_of

from offload import Body, Misuse, ObjectStore

SERVERS = pytest.mark.parametrize("running_server", servers_of("azure"), indirect=True)
CASES = few(
    "cases of clauses on a cloud: each clause keeps some, the other two clouds the rest, and a folder all",
    3,
    start=2,
    whole=("test_keys_are_taken_as_they_are",),  # each store writes keys into its requests by itself
)

LAYERS = campaign("layers above the Azure store, the slowest client: GCS has both in make test")


SLOW = leaving(
    "clauses of a thousand requests on Azurite; S3 and GCS have them, and Azure's pages a test of the wire",
    "test_listing_goes_on_page_after_page",
    "test_listing_goes_on_while_keys_change",
    "test_listing_keeps_its_end",
    "test_a_level_goes_on_page_after_page",
    "test_deletion_takes_any_number_of_keys",
    "test_uploads_may_have_many_parts",
)

RACES = leaving(
    "creates between processes on Azurite; make test has threads, and processes in a folder",
    "test_create_is_atomic_between_processes",
)


@CASES
@SERVERS
@SLOW
@RACES
class TestAzureStore(OnServer, StoreConformance):
    listing_keys = 1_100  # each request takes time here
    model_examples = 30 if CAMPAIGN else 4  # likewise; in memory and in folders all are drawn

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


@LAYERS
@SERVERS
class TestAzureOffloader(OnServer, OffloaderConformance):
    pass


@LAYERS
@SERVERS
class TestAzureProtocol(OnServer, ProtocolConformance):
    walk_examples = 4  # each request takes time here; in memory and in folders all are drawn
