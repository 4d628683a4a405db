"""Tests of the contract's clauses on codings, on a tier that compresses and encrypts."""

from __future__ import annotations

import pytest
from offload_conformance.offloader.coded import CodedClauses
from offload_keys import open_environment

from offload.contracts.offloader import LedgerOffloader
from offload.model.compression import Compression
from offload.model.labels import MasterKey
from offload.native.key_ring import KeyRing
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.store.memory import MemoryStore


class TestMemory(CodedClauses):
    """All codecs, alone and with encryption. Each client has the keys."""

    codings = ("none", "lz4", "zstd", "lz4 encrypted", "zstd:9 encrypted", "none encrypted")

    @pytest.fixture(autouse=True)
    def _place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.objects: dict[str, bytes] = {}
        monkeypatch.setenv("OFFLOAD_KEY_TESTS", "bWFzdGVyIGtleSBvZiAzMiBieXRlcyBmb3IgdGVzdHM=")

    def open_offloader(self) -> LedgerOffloader:
        return self.tier(TierOptions(), None)

    def open_coded(self, coding: str) -> LedgerOffloader:
        codec, _, encrypted = coding.partition(" ")
        options = TierOptions(compression=Compression.parse(codec))
        return self.tier(options, MasterKey("tests") if encrypted else None)

    def tier(self, options: TierOptions, new: MasterKey | None) -> ObjectStoreOffloader:
        ring = KeyRing(service=open_environment("keyenv:"), new=new)
        return ObjectStoreOffloader(MemoryStore(objects=self.objects), options=options, ring=ring)

    def keys_in_store(self) -> set[str]:
        return set(self.objects)
