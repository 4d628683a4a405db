"""The contracts of a store and of an offloader, executable by strangers.

A backend proves itself by a subclass in its own tests, and pytest finds the claims in it:

    class TestMyStore(StoreConformance):
        @pytest.fixture(autouse=True)
        def place(self, tmp_path):             # a fresh, empty place for every test
            self.folder = tmp_path / "store"

        def open_store(self):                  # a fresh client on that place, at every call
            return MyStore(self.folder)

        def keys_in_store(self):               # by other means than the store: os.walk, an SDK
            return {...}

    class TestMyStoreAsTier(OffloaderConformance):
        ...                                    # the same place, and the same keys

        def open_offloader(self):              # or an offloader of your own
            return ObjectStoreOffloader(MyStore(self.folder))

What a store declares in its `capabilities` is asserted both ways; nothing is skipped. `ledger_of`
and `MemoryLedger` make ledgers for tests of one's own.
"""

from offload_conformance.asynchronous import Asynchronous, Run
from offload_conformance.ledgers import MemoryLedger, Sample, ledger_of
from offload_conformance.offloader import OffloaderConformance
from offload_conformance.store import StoreConformance

__all__ = [
    "Asynchronous",
    "MemoryLedger",
    "OffloaderConformance",
    "Run",
    "Sample",
    "StoreConformance",
    "ledger_of",
]
