"""Tests of the GCS store against the contracts, on every server of the catalogue."""

from __future__ import annotations

import asyncio

import pytest
from campaign import CAMPAIGN, few, leaving, some
from cloud.on_server import OnServer
from offload_conformance import OffloaderConformance, ProtocolConformance, StoreConformance
from offload_gcs import GcsOptions, GcsStore
from servers import Running, servers_of

from offload import Denied, ObjectStoreOffloader, StreamWriter

SERVERS = pytest.mark.parametrize("running_server", servers_of("gcs"), indirect=True)
CASES = few(
    "cases of clauses on a cloud: each clause keeps some, the other two clouds the rest, and a folder all",
    3,
    start=1,
    whole=("test_keys_are_taken_as_they_are",),  # each store writes keys into its requests by itself
)


LISTINGS = leaving(
    "long listings of GCS by levels and to their end; make test has two others, and a folder all",
    "test_a_level_goes_on_page_after_page",
    "test_listing_keeps_its_end",
)
RACES = leaving(
    "creates between processes on GCS as a clause; make test has threads, and processes in a folder",
    "test_create_is_atomic_between_processes",
)


@RACES
@LISTINGS
@CASES
@SERVERS
class TestGcsStore(OnServer, StoreConformance):
    listing_keys = 1_100  # each request takes time here
    model_examples = 30 if CAMPAIGN else 4  # likewise; in memory and in folders all are drawn


@few("cases of the offloader's clauses on GCS: each clause keeps one of three, and memory has all", 3)
@some("clauses of an offloader: make test has one of four on GCS, half in a folder, and all in memory", 4)
@SERVERS
class TestGcsOffloader(OnServer, OffloaderConformance):
    pass


@some("clauses of the protocol: make test has one of four on GCS, half in a folder, and all in memory", 4)
@SERVERS
class TestGcsProtocol(OnServer, ProtocolConformance):
    walk_examples = 4 if CAMPAIGN else 1  # likewise; in memory and in folders all are drawn


@pytest.mark.parametrize("running_server", servers_of("gcs", honours_create=False), indirect=True)
def test_a_server_that_overwrites_on_create_is_refused(running_server: Running) -> None:
    """The probe notices it before the first commit, and removes its objects."""
    place = running_server.place()

    async def main() -> None:
        store = GcsStore(bucket=place.name, options=GcsOptions.of(place.options))
        async with ObjectStoreOffloader(store) as offloader:
            await StreamWriter.claim(offloader, "orders")

    with pytest.raises(Denied, match="two writers could both commit"):
        asyncio.run(main())

    assert place.keys() == set()
