"""A folder keeps the store's contract."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from campaign import CAMPAIGN
from offload_conformance import StoreConformance
from offload_posix import PosixStore


class TestPosixStore(StoreConformance):
    newest_kept = 1
    listing_keys = 10_050 if CAMPAIGN else 1_100

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.root = tmp_path / "not" / "there" / "yet"

    def open_store(self) -> PosixStore:
        return PosixStore(root=self.root, threads=4)

    def keys_in_store(self) -> set[str]:
        walk = os.walk(self.root)
        files = {
            os.path.relpath(os.path.join(folder, name), self.root)
            for folder, _, names in walk
            for name in names
        }
        assert not any(name.startswith(".staging") for name in files), "nothing may be left under way"
        return files
