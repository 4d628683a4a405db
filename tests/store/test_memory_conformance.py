"""The store in memory keeps the contract, and no decorator breaks it."""

from __future__ import annotations

import pytest
from offload_conformance import StoreConformance
from offload_conformance.asynchronous import Run
from offload_conformance.store import level

from offload.contracts.opening import RequestLimits
from offload.contracts.store import ObjectStore
from offload.store.faults import FaultyStore
from offload.store.hashed import HashedStore, folder_of
from offload.store.limit import LimitedStore
from offload.store.logged import LoggedStore
from offload.store.memory import MemoryStore
from offload.store.metrics import MeteredStore
from offload.store.prefix import PrefixStore
from offload.store.retry import RetryingStore
from offload.store.wrap import StoreDecorator


class TestMemoryStore(StoreConformance):
    listing_keys = 1_100  # the command asks for more: `tests/conformance_box`

    newest_kept = 1

    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.objects: dict[str, bytes] = {}

    def open_store(self) -> ObjectStore:
        return MemoryStore(objects=self.objects)

    def keys_in_store(self) -> set[str]:
        return set(self.objects)


class OnlyLists(MemoryStore):
    """A backend that leaves `level` to the port."""

    level = ObjectStore.level


class TestWithoutLevelsOfItsOwn(TestMemoryStore):
    def open_store(self) -> ObjectStore:
        return OnlyLists(objects=self.objects)

    def test_keys_of_the_last_of_all_characters_hold_up_nothing(self, run: Run) -> None:
        self.objects |= dict.fromkeys(
            ["a/x", "a/\U0010ffff", "a/\U0010ffffz", "a/\U0010ffff/z", "a0", "b/x"], b""
        )

        assert run(level(self.open_store(), "")) == ["a/", "a0", "b/"]


class TestPlainDecorator(TestMemoryStore):
    def open_store(self) -> ObjectStore:
        return StoreDecorator(super().open_store())


class TestRetryingStore(TestMemoryStore):
    def open_store(self) -> ObjectStore:
        return RetryingStore(super().open_store())


class TestLimitedStore(TestMemoryStore):
    def open_store(self) -> ObjectStore:
        return LimitedStore(
            super().open_store(), RequestLimits(up_requests_max=3, down_requests_max=3, deadline_seconds=30)
        )


class TestMeteredStore(TestMemoryStore):
    def open_store(self) -> ObjectStore:
        return MeteredStore(super().open_store())


class TestLoggedStore(TestMemoryStore):
    def open_store(self) -> ObjectStore:
        return LoggedStore(super().open_store())


class TestFaultyStoreWithoutFaults(TestMemoryStore):
    def open_store(self) -> ObjectStore:
        return FaultyStore(super().open_store())


class TestPrefixStore(TestMemoryStore):
    @pytest.fixture(autouse=True)
    def neighbours(self, place: None) -> None:
        """Objects beside the prefix, which must stay unseen."""
        self.objects |= {"b/other": b"", "a/x": b"", "a/tier-2/key": b"", "a/tie": b"", "a/tier.": b""}
        self.beside = set(self.objects)

    def open_store(self) -> ObjectStore:
        return PrefixStore(super().open_store(), "a/tier")

    def keys_in_store(self) -> set[str]:
        assert self.beside <= set(self.objects)
        return {key.removeprefix("a/tier/") for key in self.objects if key not in self.beside}


class TestHashedStore(TestMemoryStore):
    """Lone keys are listed too, wherever they begin: at the price of a look at everything."""

    def open_store(self) -> ObjectStore:
        return HashedStore(super().open_store(), lone="")

    def keys_in_store(self) -> set[str]:
        """Without the folders, each of which must be the right one."""
        spread = {key for key in self.objects if "/" in key}
        assert all(key[0] == folder_of(key.split("/")[1]) for key in spread)
        return {key[2:] for key in spread} | (set(self.objects) - spread)
