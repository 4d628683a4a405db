"""The recipes for etcd and PostgreSQL keep the contracts, on real servers."""

from __future__ import annotations

from uuid import uuid4

import pytest
from campaign import CAMPAIGN, campaign, leaving, some
from offload_conformance import OffloaderConformance, ProtocolConformance, StoreConformance
from records.in_memory import plugins
from servers.metadata import MetadataServer

from offload import LedgerOffloader, ObjectStore, ObjectStoreOffloader, TierPlan
from offload.opening.by_url import open_store
from offload.store.memory import MemoryStore

PLUGINS = plugins()


class OnServer:
    """The place of a test: records of a name that no other test has."""

    @pytest.fixture(autouse=True)
    def place(self, metadata_server: MetadataServer) -> None:
        self.server = metadata_server
        self.records_name = f"test-{uuid4()}"
        self.url = metadata_server.url(self.records_name)
        self.data: dict[str, bytes] = {}

    def open_store(self) -> ObjectStore:
        return open_store(self.url, plugins=PLUGINS)

    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(
            MemoryStore(objects=self.data),
            plan=TierPlan(commit_store=self.url),
            open_store=lambda url: open_store(url, plugins=PLUGINS),
        )

    def keys_in_store(self) -> set[str]:
        return self.data.keys() | self.server.records(self.records_name).keys()


@leaving(
    "claims on etcd and PostgreSQL that one more client does not change: in make test on a service in memory",
    "test_a_cancelled_call_hinders_no_other",
    "test_a_level_goes_on_page_after_page",
    "test_calls_do_not_hold_up_the_loop",
    "test_calls_may_overlap",
    "test_errors_are_of_their_cause_alone",
    "test_hints_change_no_byte",
    "test_keys_are_checked",
    "test_keys_are_refused_as_declared",
    "test_keys_are_taken_as_they_are",
    "test_listing_goes_on_page_after_page",
    "test_listing_goes_on_while_keys_change",
    "test_metadata_that_some_store_cannot_keep_is_refused",
    "test_puts_are_whole_while_replaced",
    "test_ranges_are_exact",
    "test_ranges_are_exact_at_every_border",
)
@leaving(
    "creates between processes on metadata services as a clause; make test has rival owners on both",
    "test_create_is_atomic_between_processes",
)
class Records(OnServer, StoreConformance):
    listing_keys = 1_100  # each request takes time here
    model_examples = 30 if CAMPAIGN else 3  # likewise; in memory all are drawn


@pytest.mark.parametrize("metadata_server", ["etcd"], indirect=True)
class TestRecords(Records):
    """All clauses, on one service."""


@some("clauses on PostgreSQL: make test has one of four, and all on etcd and in memory", 4)
@pytest.mark.parametrize("metadata_server", ["postgresql"], indirect=True)
class TestRecordsOfPostgreSQL(Records):
    """The clauses depend on the recipe only where it sends a request."""


@campaign(
    "an offloader with its roots there; in make test on a service in memory, and by rivals and commands"
)
class TestCommitStore(OnServer, OffloaderConformance):
    """The roots are on the server, and the data is in memory."""


@campaign("the protocol on etcd and PostgreSQL; in make test, rival processes commit to both")
class TestProtocol(OnServer, ProtocolConformance):
    """A whole tier of small fragments."""
