"""The contracts of a store and of an offloader, as tests that anyone can run.

A backend is tested by one class in its own tests. Pytest finds the clauses in it:

    class TestMyStore(StoreBackend):
        def open_backend(self):                # a fresh client at every call, of one place for each test
            return MyStore(self.folder)        # `self.folder` and `self.name` are new for each test

        def keys_in_store(self):               # by other means than the store: os.walk, an SDK
            return {...}

        capabilities = Capabilities(...)       # optional: what the store must declare; or, in five states:
        capabilities = Declared(multipart=State.NOT_YET, server_checksum=since("2.3"), server_version="2.1")
        limits = Limits(...)                   # optional: how far the tests may go

`OffloaderBackend` is the class for an offloader without an object store, and `CatalogueBackend` for a place
that can only be read: its author also says how to fill it. `QueueBackend` is the class for a queue of
messages. Declared `capabilities` are tested both ways: present ones must work, and absent ones must fail as
documented. `StoreConformance`, `OffloaderConformance` and `ProtocolConformance` are the layers by themselves,
for tests that set up their places in their own way. `ledger_of` and `MemoryLedger` make ledgers for an
author's own tests.

Names are imported when they are first used, because the package's plugin also runs without pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_conformance.asynchronous import Asynchronous, Run
    from offload_conformance.backend import Limits, OffloaderBackend, StoreBackend
    from offload_conformance.catalogue import CatalogueBackend, FilledStream
    from offload_conformance.declared import Declared, State, since
    from offload_conformance.ledgers import MemoryLedger, Sample, ledger_of
    from offload_conformance.offloader import OffloaderConformance
    from offload_conformance.protocol import ProtocolConformance, WalkConformance
    from offload_conformance.queues import QueueBackend
    from offload_conformance.store import StoreConformance

__all__ = [
    "Asynchronous",
    "CatalogueBackend",
    "Declared",
    "FilledStream",
    "Limits",
    "MemoryLedger",
    "OffloaderBackend",
    "OffloaderConformance",
    "ProtocolConformance",
    "QueueBackend",
    "Run",
    "Sample",
    "State",
    "StoreBackend",
    "StoreConformance",
    "WalkConformance",
    "ledger_of",
    "since",
]

_HOMES = {
    "Asynchronous": "offload_conformance.asynchronous",
    "CatalogueBackend": "offload_conformance.catalogue",
    "Declared": "offload_conformance.declared",
    "FilledStream": "offload_conformance.catalogue",
    "Limits": "offload_conformance.backend",
    "MemoryLedger": "offload_conformance.ledgers",
    "OffloaderBackend": "offload_conformance.backend",
    "OffloaderConformance": "offload_conformance.offloader",
    "ProtocolConformance": "offload_conformance.protocol",
    "QueueBackend": "offload_conformance.queues",
    "Run": "offload_conformance.asynchronous",
    "Sample": "offload_conformance.ledgers",
    "State": "offload_conformance.declared",
    "StoreBackend": "offload_conformance.backend",
    "StoreConformance": "offload_conformance.store",
    "WalkConformance": "offload_conformance.protocol",
    "ledger_of": "offload_conformance.ledgers",
    "since": "offload_conformance.declared",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
