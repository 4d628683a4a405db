"""Tests of the offloader's contract on a tier in memory, with large and small fragments.

`tests/conformance_box` asks every clause on a tier in memory, by the command.
"""

from __future__ import annotations

import pytest
from campaign import campaign, few, some
from offload_conformance import OffloaderConformance
from split_tier import split_tier

from offload.contracts.offloader import LedgerOffloader
from offload.formats.keys import TIER_ANCHOR
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.native.place import TierPlan
from offload.store.memory import MemoryStore

VARIANTS = campaign("other options of an offloader in memory, with all clauses")

CASES = "cases of clauses with other options: each clause keeps one of three, and the command has all"

SHARED = (
    "clauses with other options: small fragments, a commit store and a slow store share them in make test"
)


class InMemory(OffloaderConformance):
    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.objects: dict[str, bytes] = {}

    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(MemoryStore(objects=self.objects))

    def keys_in_store(self) -> set[str]:
        return set(self.objects)


@campaign("all clauses of an offloader in memory; make test asks them by the command")
class TestMemoryOffloader(InMemory):
    pass


@few(CASES, 3, start=0)
@some(SHARED, 3, start=0)
class TestSmallFragments(InMemory):
    """A ledger becomes many objects, uploaded one at a time."""

    def open_offloader(self) -> LedgerOffloader:
        options = TierOptions(fragment_size_bytes=200, uploads_max=1)
        return ObjectStoreOffloader(MemoryStore(objects=self.objects), options=options)

    tiny_chunks = 300


@VARIANTS
class TestSeveralUploadsAtOnce(InMemory):
    """A ledger becomes a few objects, uploaded at the same time."""

    def open_offloader(self) -> LedgerOffloader:
        options = TierOptions(fragment_size_bytes=500, uploads_max=3)
        return ObjectStoreOffloader(MemoryStore(objects=self.objects), options=options)

    tiny_chunks = 300


@few(CASES, 3, start=2)
@some(SHARED, 3, start=1)
class TestCommitStore(OffloaderConformance):
    """The data is on a store that overwrites on create, and the roots are on another store."""

    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.data: dict[str, bytes] = {}
        self.roots: dict[str, bytes] = {}

    def open_offloader(self) -> LedgerOffloader:
        return split_tier(self.data, self.roots)

    def keys_in_store(self) -> set[str]:
        """Return the keys of both stores; only the anchor of the tier is on both."""
        assert self.data.keys() & self.roots.keys() <= {TIER_ANCHOR}
        return self.data.keys() | self.roots.keys()


@VARIANTS
class TestHashedKeys(InMemory):
    """The keys of the tier are hashed."""

    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(MemoryStore(objects=self.objects), plan=TierPlan(hashed_keys=True))

    def keys_in_store(self) -> set[str]:
        return {key if key == TIER_ANCHOR else key[2:] for key in self.objects}
