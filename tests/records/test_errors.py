"""The recipes translate what etcd and PostgreSQL really say into the error that tells what to do next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import asyncpg
import pytest
from records.in_memory import plugins
from servers.metadata import EtcdServer, MetadataServer, PostgresServer, served

from offload import Body, ObjectStore
from offload.contracts.capabilities import KEY_SIZE_BYTES_MAX
from offload.ground.errors import Misuse, NoSpace, OffloadError, OutcomeUnknown, StoreDenied, TryAgain
from offload.opening.by_url import open_store

PLUGINS = plugins()
KIB = 1024


def ask(
    server: MetadataServer,
    *calls: Callable[[ObjectStore], Awaitable[object]],
    name: str = "errors",
    **options: str,
) -> list[OffloadError | None]:
    """Make these calls one after the other, by one client. Return their errors."""

    async def main() -> list[OffloadError | None]:
        store = open_store(server.url(name), plugins=PLUGINS, storage_options=options)
        found: list[OffloadError | None] = []
        for call in calls:
            try:
                await call(store)
                found.append(None)
            except OffloadError as error:
                found.append(error)
        await store.aclose()
        return found

    return asyncio.run(main())


def create(store: ObjectStore) -> Awaitable[object]:
    return store.create("orders/metadata/root.1", b"root")


def get(store: ObjectStore) -> Awaitable[object]:
    return store.get("orders/metadata/root.1")


def delete(store: ObjectStore) -> Awaitable[object]:
    return store.delete(["orders/metadata/root.1"])


class TestEtcd:
    def test_a_full_database_is_no_space_and_still_deletes(self) -> None:
        """A person makes room; a sweep of old roots is a part of that."""

        async def fill(store: ObjectStore) -> None:
            for number in range(100):
                await store.put(f"big.{number}", Body.of(bytes(256 * KIB)))

        with served("etcd", "--quota-backend-bytes=2000000") as server:
            errors = ask(server, create, fill, get, delete, create)

        assert [type(error) for error in errors] == [type(None), NoSpace, type(None), type(None), NoSpace]
        assert "database space exceeded" in str(errors[1])

    def test_a_smaller_limit_of_the_server_is_misuse_and_stores_nothing(self) -> None:
        """It is started with `--max-request-bytes`, and the recipe counts on the default."""
        with served("etcd", "--max-request-bytes=100000") as server:
            [error] = ask(server, lambda store: store.create("root", bytes(200 * KIB)))

            assert isinstance(error, Misuse), error
            assert "request is too large" in str(error)
            assert server.records("errors") == {}

    def test_the_declared_limit_is_just_below_the_servers_own(self) -> None:
        """The largest value fits under the longest key and a name of 64 characters. 4 KiB more never do."""
        key = "/".join(["k" * 204] * 5)
        assert len(key) == KEY_SIZE_BYTES_MAX

        async def largest(store: ObjectStore) -> None:
            most = store.capabilities.create_size_bytes_max
            assert most == (1536 - 4) * KIB
            await store.create(key, bytes(most))
            assert len(await store.get(key)) == most

        with served("etcd") as server:
            assert ask(server, largest, name="n" * 64) == [None]
            assert isinstance(server, EtcdServer)
            refused = server.status("kv/put", {"key": "a2V5", "value": "AAAA" * (512 * KIB)})
        assert refused == (400, "etcdserver: request is too large")

    def test_a_user_without_the_right_password_is_denied(self) -> None:
        with served("etcd", "--auth-token-ttl=3") as server:
            assert isinstance(server, EtcdServer)
            for path, body in (
                ("auth/user/add", {"name": "root", "password": "secret"}),
                ("auth/role/add", {"name": "root"}),
                ("auth/user/grant", {"user": "root", "role": "root"}),
                ("auth/user/add", {"name": "stranger", "password": "secret"}),
                ("auth/enable", {}),
            ):
                server.ask(path, body)

            async def expire(_store: ObjectStore) -> None:
                await asyncio.sleep(6)

            unnamed = ask(server, create, get)
            wrong = ask(server, create, get, user="root", password="guess")
            without_a_right = ask(server, create, get, user="stranger", password="secret")
            right = ask(server, create, get, expire, get, get, user="root", password="secret")

        assert {type(error) for error in [*unnamed, *wrong, *without_a_right]} == {StoreDenied}
        assert [type(error) for error in right] == [*[type(None)] * 3, TryAgain, type(None)]
        assert "guess" not in f"{wrong}"


SETTINGS = {
    "fsync=off": (StoreDenied, "fsync or synchronous_commit off"),
    "synchronous_commit=off": (StoreDenied, "fsync or synchronous_commit off"),
    "default_transaction_read_only=on": (TryAgain, ""),
}


class TestPostgres:
    @pytest.mark.parametrize("setting", SETTINGS)
    def test_a_server_that_would_lose_commits_is_refused(self, setting: str) -> None:
        kind, text = SETTINGS[setting]

        with served("postgresql", setting) as server:
            errors = ask(server, create, get)

        assert [type(error) for error in errors] == [kind, kind]
        assert text in str(errors[0])

    def test_its_states_say_what_to_do_next(self) -> None:
        """A trigger raises each of them. The server rolls back, so nothing is stored."""
        expected: Mapping[str, type[OffloadError]] = {
            "40001": TryAgain,
            "40P01": TryAgain,
            "55P03": TryAgain,
            "53200": TryAgain,
            "53100": NoSpace,
            "42501": StoreDenied,
            "40003": OutcomeUnknown,  # "statement completion unknown"
            "57014": OutcomeUnknown,  # a cancelled wait for a standby ends a commit that was done
            "XX000": OutcomeUnknown,
        }
        with served("postgresql") as server:
            assert isinstance(server, PostgresServer)
            assert ask(server, create, delete) == [None, None]
            found = {}
            for state in expected:
                server.sql(
                    "CREATE OR REPLACE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                    f"RAISE EXCEPTION 'trouble' USING errcode = '{state}'; END $$; "
                    "CREATE OR REPLACE TRIGGER trouble BEFORE INSERT ON offload_records "
                    "FOR EACH ROW EXECUTE FUNCTION trouble();"
                )
                [error] = ask(server, create)
                found[state] = type(error)
            assert server.records("errors") == {}

        assert found == expected

    def test_credentials_are_denied_or_found_as_libpq_finds_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with served("postgresql") as server:
            assert isinstance(server, PostgresServer)
            server.sql("CREATE ROLE stranger LOGIN; CREATE ROLE reader LOGIN")
            stranger = ask(server, create, user="stranger")  # may not create the table
            nobody = ask(server, create, user="nobody-of-this-name")
            assert ask(server, create) == [None]  # PGUSER
            server.sql("GRANT SELECT ON offload_records TO reader")
            reader = ask(server, get, create, user="reader")

        assert [type(error) for error in (*stranger, *nobody, *reader)] == [
            *(StoreDenied, StoreDenied),
            *(type(None), StoreDenied),
        ]

    def test_many_first_clients_make_one_table(self) -> None:
        async def main(url: str) -> list[object]:
            stores = [open_store(url, plugins=PLUGINS) for _ in range(8)]
            try:
                return await asyncio.gather(*map(create, stores), return_exceptions=True)
            finally:
                for store in stores:
                    await store.aclose()

        with served("postgresql") as server:
            found = asyncio.run(main(server.url("first")))

        assert sorted(type(each).__name__ for each in found) == [*["AlreadyExists"] * 7, "NoneType"], found

    def test_a_client_that_loses_the_race_for_the_table_uses_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The error of the server depends on the moment at which the winner commits."""
        made, execute = list[str](), asyncpg.Connection.execute

        async def late(self: Any, statement: str) -> Any:
            await execute(self, statement)  # of the winner
            [state] = states
            made.append(state)
            return await execute(self, f"DO $$ BEGIN RAISE 'late' USING errcode = '{state}'; END $$")

        monkeypatch.setattr(asyncpg.Connection, "execute", late)
        with served("postgresql") as server:
            assert isinstance(server, PostgresServer)
            for states in (["23505"], ["42P07"], ["42710"]):
                assert ask(server, create, delete) == [None, None], states
                server.sql("DROP TABLE offload_records")

        assert made == ["23505", "42P07", "42710"]


@pytest.mark.parametrize(
    "url",
    [
        "etcd://127.0.0.1:2379",
        "etcd://root:secret@127.0.0.1:2379/tier",
        "etcd://127.0.0.1:2379/one/two",
        "etcd://127.0.0.1:2379/a b",
        "etcds://127.0.0.1:2379",
        "postgresql://127.0.0.1/tier",
        "postgresql://tier:secret@127.0.0.1/database/tier",
        "postgresql://127.0.0.1/database/tier?sslmode=disable",
    ],
)
def test_a_malformed_url_is_misuse_and_shows_no_password(url: str) -> None:
    with pytest.raises(Misuse, match="a place of records is") as caught:
        open_store(url, plugins=PLUGINS)

    assert "secret" not in str(caught.value)
    assert f"a place of records is {url.partition(':')[0]}://HOST:PORT/" in str(caught.value)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon", "601"])
def test_a_wrong_timeout_is_misuse(seconds: str) -> None:
    with pytest.raises(Misuse, match="timeout"):
        open_store("etcd://127.0.0.1:2379/tier", plugins=PLUGINS, storage_options={"timeout": seconds})
