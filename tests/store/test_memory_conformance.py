"""The store in memory keeps the contract, and no decorator breaks it.

`tests/conformance_box` asks every clause of the plain store, by the command.
"""

from __future__ import annotations

import pytest
from campaign import CAMPAIGN, campaign, few, some
from offload_conformance import StoreConformance
from offload_conformance.asynchronous import Run
from offload_conformance.store import level
from offload_conformance.store.base import StoreClauses
from offload_conformance.store.errors import ErrorClauses
from offload_conformance.store.listings import ListingClauses
from offload_conformance.store.manners import StoreMannerClauses
from offload_conformance.store.model import ModelClauses

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

PASSES_ON = campaign("decorators that pass every call on, with all clauses; their own tests are in make test")

CASES = "cases of clauses with a decorator: each clause keeps one of four, and a folder has all"

RETRIES = (
    "clauses with a decorator: retries and limits of requests share them in make test, and a folder has all"
)

KEYS = "clauses with a decorator: prefixes and hashed keys share them in make test, and a folder has all"

DRAWN = 30 if CAMPAIGN else 10
"""The number of drawn histories of a store with a decorator. The plain store has all."""


class InMemory(StoreClauses):
    """The place of a test: a dict of objects."""

    listing_keys = 1_100  # the command asks for more: `tests/conformance_box`
    newest_kept = 1

    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.objects: dict[str, bytes] = {}

    def open_store(self) -> ObjectStore:
        return MemoryStore(objects=self.objects)

    def keys_in_store(self) -> set[str]:
        return set(self.objects)


class Whole(InMemory, StoreConformance):
    """All clauses, on what `open_store` returns."""


@campaign("all clauses of the store in memory; make test asks them by the command")
class TestMemoryStore(Whole):
    pass


class OnlyLists(MemoryStore):
    """A backend that uses the port's own `level`."""

    level = ObjectStore.level


class TestWithoutLevelsOfItsOwn(InMemory, ListingClauses, ModelClauses, ErrorClauses, StoreMannerClauses):
    """The families of clauses that ask for levels. All other clauses are those of the store in memory."""

    def open_store(self) -> ObjectStore:
        return OnlyLists(objects=self.objects)

    def test_keys_with_the_last_unicode_character_do_not_end_a_level_early(self, run: Run) -> None:
        self.objects |= dict.fromkeys(
            ["a/x", "a/\U0010ffff", "a/\U0010ffffz", "a/\U0010ffff/z", "a0", "b/x"], b""
        )

        assert run(level(self.open_store(), "")) == ["a/", "a0", "b/"]


@PASSES_ON
class TestPlainDecorator(Whole):
    def open_store(self) -> ObjectStore:
        return StoreDecorator(super().open_store())


@few(CASES, 4)
@some(RETRIES, 2, start=0)
class TestRetryingStore(Whole):
    model_examples = DRAWN

    def open_store(self) -> ObjectStore:
        return RetryingStore(super().open_store())


@few(CASES, 4, start=1)
@some(RETRIES, 2, start=1)
class TestLimitedStore(Whole):
    model_examples = DRAWN

    def open_store(self) -> ObjectStore:
        return LimitedStore(
            super().open_store(), RequestLimits(up_requests_max=3, down_requests_max=3, deadline_seconds=30)
        )


@PASSES_ON
class TestMeteredStore(Whole):
    def open_store(self) -> ObjectStore:
        return MeteredStore(super().open_store())


@PASSES_ON
class TestLoggedStore(Whole):
    def open_store(self) -> ObjectStore:
        return LoggedStore(super().open_store())


@PASSES_ON
class TestFaultyStoreWithoutFaults(Whole):
    def open_store(self) -> ObjectStore:
        return FaultyStore(super().open_store())


@few(CASES, 4, start=2)
@some(KEYS, 2, start=0)
class TestPrefixStore(Whole):
    model_examples = DRAWN

    @pytest.fixture(autouse=True)
    def neighbours(self, place: None) -> None:
        """Add objects beside the prefix. The store must not show them."""
        self.objects |= {"b/other": b"", "a/x": b"", "a/tier-2/key": b"", "a/tie": b"", "a/tier.": b""}
        self.beside = set(self.objects)

    def open_store(self) -> ObjectStore:
        return PrefixStore(super().open_store(), "a/tier")

    def keys_in_store(self) -> set[str]:
        assert self.beside <= set(self.objects)
        return {key.removeprefix("a/tier/") for key in self.objects if key not in self.beside}


@few(CASES, 4, start=3)
@some(KEYS, 2, start=1)
class TestHashedStore(Whole):
    """A store whose lone keys may begin with any text. Listing them takes a full scan."""

    model_examples = DRAWN

    def open_store(self) -> ObjectStore:
        return HashedStore(super().open_store(), lone="")

    def keys_in_store(self) -> set[str]:
        """Return the keys without their folders, after checking that each folder is the right one."""
        spread = {key for key in self.objects if "/" in key}
        assert all(key[0] == folder_of(key.split("/")[1]) for key in spread)
        return {key[2:] for key in spread} | (set(self.objects) - spread)
