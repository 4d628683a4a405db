"""The proof: a SQLite file keeps the contract of a store, and as a tier that of an offloader."""

import sqlite3

import pytest
from offload_conformance import OffloaderConformance, StoreConformance
from offload_sqlite import SqliteStore

from offload import ObjectStoreOffloader


class Place:
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.path = tmp_path / "tier.db"

    def keys_in_store(self):
        with sqlite3.connect(self.path) as db:
            if not db.execute("SELECT 1 FROM sqlite_master").fetchall():
                return set()
            return {key.decode() for (key,) in db.execute("SELECT key FROM objects")}


class TestSqliteStore(Place, StoreConformance):
    def open_store(self):
        return SqliteStore(self.path)


class TestSqliteTier(Place, OffloaderConformance):
    def open_offloader(self):
        return ObjectStoreOffloader(SqliteStore(self.path))
