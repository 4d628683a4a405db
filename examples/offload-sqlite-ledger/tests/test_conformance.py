"""The conformance suite of an offloader on a SQLite file, without an object store."""

import sqlite3
from uuid import UUID

from offload_conformance import OffloaderBackend
from offload_sqlite_ledger import SqliteLedgers


class TestSqliteLedgers(OffloaderBackend):
    def open_backend(self):
        return SqliteLedgers(self.folder)

    def keys_in_store(self):
        with sqlite3.connect(self.folder) as db:
            if not db.execute("SELECT 1 FROM sqlite_master").fetchall():
                return set()
            chunks = db.execute("SELECT attempt, offset FROM chunks").fetchall()
            attempts = db.execute("SELECT uid FROM attempts").fetchall()
            found = {f"attempts/{UUID(bytes=uid)}" for (uid,) in attempts}
            return found | {f"chunks/{UUID(bytes=uid)}/{offset}" for uid, offset in chunks}

    async def replace(self, offloader, key, change):
        _, uid, offset = key.split("/")
        row = (UUID(uid).bytes, int(offset))
        with sqlite3.connect(self.folder) as db:
            [(raw,)] = db.execute("SELECT data FROM chunks WHERE attempt = ? AND offset = ?", row)
            db.execute("UPDATE chunks SET data = ? WHERE attempt = ? AND offset = ?", (change(raw), *row))
