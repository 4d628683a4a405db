"""Tests of the layer `protocol` of `offload conformance` on the store in memory and on a folder.

`tests/conformance_box` asks every clause on a store in memory, by the command.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign import campaign, some
from offload_conformance.protocol import ProtocolConformance
from offload_posix import PosixStore

from offload.store.memory import MemoryStore


@campaign("all clauses of the protocol in memory; make test asks them by the command")
class TestMemory(ProtocolConformance):
    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.objects: dict[str, bytes] = {}

    def open_store(self) -> MemoryStore:
        return MemoryStore(objects=self.objects)

    def keys_in_store(self) -> set[str]:
        return set(self.objects)


@some("clauses of the protocol: make test has half in a folder, some on GCS, and all in memory", 2, start=1)
class TestPosix(ProtocolConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.root = tmp_path / "tier"

    def open_store(self) -> PosixStore:
        return PosixStore(root=self.root)

    def keys_in_store(self) -> set[str]:
        files = (path for path in self.root.rglob("*") if path.is_file())
        return {path.relative_to(self.root).as_posix() for path in files}
