"""SQLite's errors become the framework's errors, which say what the caller can do next."""

import asyncio
import sqlite3

import pytest
from offload_conformance import Asynchronous
from offload_sqlite import SqliteStore
from offload_sqlite.store import open_url

from offload.contracts.store import Body
from offload.ground.errors import Denied, Misuse, NoSpace, NotFound, TryAgain


class TestErrors(Asynchronous):
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "tier.db"

    @pytest.fixture
    def store(self, run, path):
        store = SqliteStore(path)
        run(store.create("key", b"data"))
        yield store
        run(store.aclose())

    def test_a_busy_file_raises_try_again(self, run, path, store, monkeypatch):
        run(store.write(lambda db: None))
        store._db.execute("PRAGMA busy_timeout = 10")
        with sqlite3.connect(path, isolation_level=None) as rival:
            rival.execute("BEGIN EXCLUSIVE")
            for request in (store.create("other", b""), store.get("key")):
                with pytest.raises(TryAgain):
                    run(request)
        rival.close()

        assert run(store.get("key")) == b"data"

    def test_a_full_file_raises_no_space_and_keeps_its_objects(self, run, store):
        store._db.execute("PRAGMA max_page_count = 8")

        with pytest.raises(NoSpace):
            run(store.put("large", Body.of(bytes(1_000_000))))

        with pytest.raises(NotFound):
            run(store.get("large"))
        assert run(store.get("key")) == b"data"

    def test_a_file_that_cannot_be_written_raises_denied(self, run, store, tmp_path):
        store._db.execute("PRAGMA query_only = ON")

        with pytest.raises(Denied):
            run(store.create("other", b""))
        with pytest.raises(Denied):
            run(SqliteStore(tmp_path / "no" / "such" / "folder.db").create("key", b""))

    def test_a_file_that_is_no_database_raises_misuse(self, run, tmp_path):
        (tmp_path / "text").write_bytes(b"This is a text file. " * 100)
        store = SqliteStore(tmp_path / "text")

        with pytest.raises(Misuse, match="not a database"):
            run(store.create("key", b""))
        run(store.aclose())

    def test_reading_makes_no_file(self, run, path):
        store = SqliteStore(path)

        with pytest.raises(NotFound):
            run(store.get("key"))

        assert not path.exists()

    def test_several_tasks_share_one_connection(self, run, store):
        async def scenario():
            await asyncio.gather(*(store.create(f"many/{n}", b"%d" % n) for n in range(50)))
            return await asyncio.gather(*(store.get(f"many/{n}") for n in range(50)))

        assert run(scenario()) == [b"%d" % n for n in range(50)]

    def test_a_url_without_a_path_raises_misuse(self):
        with pytest.raises(Misuse):
            open_url("sqlite://")
