"""A tier in memory keeps the offloader's contract, in large fragments and in small ones."""

from __future__ import annotations

import pytest
from offload_conformance import OffloaderConformance
from split_tier import split_tier

from offload.contracts.offloader import LedgerOffloader
from offload.formats.keys import TIER_ANCHOR
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.native.place import TierPlan
from offload.store.memory import MemoryStore


class TestMemoryOffloader(OffloaderConformance):
    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.objects: dict[str, bytes] = {}

    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(MemoryStore(objects=self.objects))

    def keys_in_store(self) -> set[str]:
        return set(self.objects)


class TestSmallFragments(TestMemoryOffloader):
    """A ledger becomes many objects, of which only one is on its way at a time."""

    def open_offloader(self) -> LedgerOffloader:
        options = TierOptions(fragment_size_bytes=200, uploads_max=1)
        return ObjectStoreOffloader(MemoryStore(objects=self.objects), options=options)

    tiny_chunks = 300


class TestSeveralUploadsAtOnce(TestMemoryOffloader):
    """A ledger becomes a few objects that are on their way together."""

    def open_offloader(self) -> LedgerOffloader:
        options = TierOptions(fragment_size_bytes=500, uploads_max=3)
        return ObjectStoreOffloader(MemoryStore(objects=self.objects), options=options)

    tiny_chunks = 300


class TestCommitStore(OffloaderConformance):
    """The data lies on a store that overwrites what it was asked to create; the roots on another one."""

    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.data: dict[str, bytes] = {}
        self.roots: dict[str, bytes] = {}

    def open_offloader(self) -> LedgerOffloader:
        return split_tier(self.data, self.roots)

    def keys_in_store(self) -> set[str]:
        """No object but the anchor of the tier is on both."""
        assert self.data.keys() & self.roots.keys() <= {TIER_ANCHOR}
        return self.data.keys() | self.roots.keys()


class TestHashedKeys(TestMemoryOffloader):
    """The tier's keys are spread over folders."""

    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(MemoryStore(objects=self.objects), plan=TierPlan(hashed_keys=True))

    def keys_in_store(self) -> set[str]:
        return {key if key == TIER_ANCHOR else key[2:] for key in self.objects}
