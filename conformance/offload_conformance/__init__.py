"""The contract of a store, executable by strangers.

A backend proves itself by a subclass in its own tests, and pytest finds the claims in it:

    class TestMyStore(StoreConformance):
        @pytest.fixture(autouse=True)
        def place(self, tmp_path):             # a fresh, empty place for every test
            self.folder = tmp_path / "store"

        def open_store(self):                  # a fresh client on that place, at every call
            return MyStore(self.folder)

        def keys_in_store(self):               # by other means than the store: os.walk, an SDK
            return {...}

What the store declares in its `capabilities` is asserted both ways; nothing is skipped.
"""

from offload_conformance.asynchronous import Asynchronous, Run
from offload_conformance.store import StoreConformance

__all__ = ["Asynchronous", "Run", "StoreConformance"]
