"""Tests of the offloader's contract on a tier in a folder, opened by its URL as users open it."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign import few, some
from offload_conformance import OffloaderConformance

from offload.contracts.offloader import LedgerOffloader
from offload.opening.by_url import open_tier
from offload.opening.plugins import Plugins

PLUGINS = Plugins.find()


@few("cases of clauses on a folder: each clause keeps one of two, and memory has all", 2)
@some("clauses of an offloader: make test has half in a folder, some on GCS, and all in memory", 2, start=1)
class TestPosixOffloader(OffloaderConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.root = tmp_path / "tier"

    def open_offloader(self) -> LedgerOffloader:
        return open_tier(f"file://{self.root}", plugins=PLUGINS)

    def keys_in_store(self) -> set[str]:
        files = (path for path in self.root.rglob("*") if path.is_file())
        return {path.relative_to(self.root).as_posix() for path in files}
