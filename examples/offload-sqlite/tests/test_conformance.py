"""The conformance suite on a SQLite file: the contract of a store and, as a tier, that of an offloader."""

import sqlite3

from offload_conformance import StoreBackend
from offload_sqlite import SqliteStore


class TestSqlite(StoreBackend):
    def open_backend(self):
        return SqliteStore(self.folder)

    def keys_in_store(self):
        with sqlite3.connect(self.folder) as db:
            if not db.execute("SELECT 1 FROM sqlite_master").fetchall():
                return set()
            return {key.decode() for (key,) in db.execute("SELECT key FROM objects")}
