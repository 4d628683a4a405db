"""Tests of the layer `protocol` of `offload conformance` on the store in memory and on a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from offload_conformance.protocol import ProtocolConformance
from offload_posix import PosixStore

from offload.store.memory import MemoryStore


class TestMemory(ProtocolConformance):
    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.objects: dict[str, bytes] = {}

    def open_store(self) -> MemoryStore:
        return MemoryStore(objects=self.objects)

    def keys_in_store(self) -> set[str]:
        return set(self.objects)


class TestPosix(ProtocolConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.root = tmp_path / "tier"

    def open_store(self) -> PosixStore:
        return PosixStore(root=self.root)

    def keys_in_store(self) -> set[str]:
        files = (path for path in self.root.rglob("*") if path.is_file())
        return {path.relative_to(self.root).as_posix() for path in files}
