"""The command line on a container: what a user does, with credentials where the ecosystem looks for them."""

from __future__ import annotations

import os

import pytest
from command_line import offload
from osiris_data import DATA, body_of
from servers import Place, Running, servers_of
from servers.places import AZURE_ACCOUNT, AZURE_KEY

CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"

pytestmark = pytest.mark.parametrize("running_server", servers_of("azure"), indirect=True)


class Container:
    """A fresh container, and a look at it by the synchronous client. The environment leads there."""

    def __init__(self, place: Place, endpoint: str) -> None:
        self.place, self.endpoint, self.tier = place, endpoint, f"{place.url}/some/tier"

    def objects(self) -> dict[str, bytes]:
        return {key: self.place.get(key) for key in self.place.keys()}  # noqa: SIM118 - it is no mapping


@pytest.fixture
def container(running_server: Running, monkeypatch: pytest.MonkeyPatch) -> Container:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    place = running_server.place()
    monkeypatch.setenv(CONNECTION, place.options["connection_string"])
    return Container(place, running_server.endpoint)


def test_real_streams_go_to_a_container_and_come_back(container: Container) -> None:
    synced = offload("sync", f"rabbitmq://{DATA}", container.tier, "--json")
    read = offload("read", container.tier, "batches", "--decode", "amqp", "--format", "body")
    verified = offload("verify", container.tier, "--json")

    assert synced.code == 0, synced.stderr
    assert {report["stream"] for report in synced.objects} == {"batches", "filtered", "tiny"}
    assert read.stdout.splitlines() == [body_of(i) for i in range(12_240)]
    assert verified.document["damages"] == []
    assert verified.document["unreferenced"] == []
    assert all(key.startswith("some/tier/") for key in container.objects())
    assert "rror" not in synced.stderr + read.stderr + verified.stderr


def test_a_second_sync_changes_nothing_by_whatever_name_the_tier_is_called(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another scheme, and with the account as options instead of the environment's."""
    offload("sync", f"rabbitmq://{DATA}/tiny", container.tier)
    before = container.objects()
    monkeypatch.delenv(CONNECTION)
    account = [
        *("-o", f"account_name={AZURE_ACCOUNT}"),
        *("-o", f"account_key={AZURE_KEY}"),
        *("-o", f"endpoint_url={container.endpoint}/{AZURE_ACCOUNT}"),
    ]

    tier = container.tier.replace("az://", "abfs://")
    again = offload("sync", f"rabbitmq://{DATA}/tiny", tier, "--json", *account)

    assert again.code == 0, again.stderr
    assert again.document["uploaded_bytes"] == 0
    assert container.objects() == before


def test_damage_in_the_container_is_found(container: Container) -> None:
    offload("sync", f"rabbitmq://{DATA}/tiny", container.tier)
    [victim] = [key for key in container.objects() if key.endswith(".fragment")]
    raw = bytearray(container.place.get(victim))
    raw[1000] ^= 1
    container.place.put(victim, bytes(raw))

    verified = offload("verify", container.tier, "--json")

    assert verified.code == 1
    assert [row["object"] for row in verified.document["damages"]] == [victim.removeprefix("some/tier/")]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("ls", "az://no-such-container-anywhere"), 1, "the container does not exist"),
        (("ls", "az://"), 2, "names no container"),
        (("ls", "az://container", "-o", "colour=red"), 2, "colour"),
        (("ls", "az://container", "-o", "access_tier=Archive"), 2, "access_tier"),
        (("ls", "az://container", "-o", "account_name=mine"), 1, "AZURE_STORAGE_CONNECTION_STRING"),
        (("ls", "abfs://container@mine.dfs.core.windows.net"), 1, "AZURE_STORAGE_CONNECTION_STRING"),
    ],
)
def test_what_is_wrong_is_one_plain_line(
    container: Container, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = offload(*arguments)

    assert done.code == code
    assert said in done.error
    assert AZURE_KEY not in done.stderr


def test_a_key_that_does_not_fit_is_said_in_one_plain_line(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONNECTION, os.environ[CONNECTION].replace(AZURE_KEY, "aHVzaA=="))

    done = offload("ls", container.tier)

    assert done.code == 1
    assert "the credentials are wrong" in done.error
    assert "aHVzaA" not in done.stderr
