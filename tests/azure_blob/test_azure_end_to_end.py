"""The command line on a container: what a user does, with credentials where the ecosystem looks for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from osiris_data import DATA, body_of
from servers import Place, Running, servers_of
from servers.places import AZURE_ACCOUNT, AZURE_KEY

OFFLOAD = [sys.executable, "-c", "from offload.cli.main import main; main()"]

pytestmark = pytest.mark.parametrize("running_server", servers_of("azure"), indirect=True)


class Container:
    """A fresh container, the environment that leads to it, and a look at it by the synchronous client."""

    def __init__(self, place: Place, endpoint: str) -> None:
        self.place, self.endpoint, self.tier = place, endpoint, f"{place.url}/some/tier"
        bare = {name: value for name, value in os.environ.items() if not name.startswith("AZURE_")}
        self.environment = bare | {"AZURE_STORAGE_CONNECTION_STRING": place.options["connection_string"]}

    def offload(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*OFFLOAD, *arguments], env=self.environment, capture_output=True, text=True)

    def objects(self) -> dict[str, bytes]:
        return {key: self.place.get(key) for key in self.place.keys()}  # noqa: SIM118 - it is no mapping


@pytest.fixture
def container(running_server: Running) -> Container:
    return Container(running_server.place(), running_server.endpoint)


def test_real_streams_go_to_a_container_and_come_back(container: Container) -> None:
    synced = container.offload("sync", f"rabbitmq://{DATA}", container.tier, "--json")
    read = container.offload("read", container.tier, "batches", "--decode", "amqp", "--format", "body")
    verified = container.offload("verify", container.tier, "--json")

    assert synced.returncode == 0, synced.stderr
    assert {json.loads(line)["stream"] for line in synced.stdout.splitlines()} == {
        "batches",
        "filtered",
        "tiny",
    }
    assert read.stdout.encode().splitlines() == [body_of(i) for i in range(12_240)]
    assert json.loads(verified.stdout)["damages"] == []
    assert json.loads(verified.stdout)["unreferenced"] == []
    assert all(key.startswith("some/tier/") for key in container.objects())
    assert "rror" not in synced.stderr + read.stderr + verified.stderr


def test_a_second_sync_changes_nothing_by_whatever_name_the_tier_is_called(container: Container) -> None:
    """By another scheme, and with the account as options instead of the environment's."""
    container.offload("sync", f"rabbitmq://{DATA}/tiny", container.tier)
    before = container.objects()
    del container.environment["AZURE_STORAGE_CONNECTION_STRING"]
    account = [
        *("-o", f"account_name={AZURE_ACCOUNT}"),
        *("-o", f"account_key={AZURE_KEY}"),
        *("-o", f"endpoint_url={container.endpoint}/{AZURE_ACCOUNT}"),
    ]

    tier = container.tier.replace("az://", "abfs://")
    again = container.offload("sync", f"rabbitmq://{DATA}/tiny", tier, "--json", *account)

    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["uploaded_bytes"] == 0
    assert container.objects() == before


def test_damage_in_the_container_is_found(container: Container) -> None:
    container.offload("sync", f"rabbitmq://{DATA}/tiny", container.tier)
    [victim] = [key for key in container.objects() if key.endswith(".fragment")]
    raw = bytearray(container.place.get(victim))
    raw[1000] ^= 1
    container.place.put(victim, bytes(raw))

    verified = container.offload("verify", container.tier, "--json")

    assert verified.returncode == 1
    assert [row["object"] for row in json.loads(verified.stdout)["damages"]] == [
        victim.removeprefix("some/tier/")
    ]


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
    done = container.offload(*arguments)

    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert AZURE_KEY not in done.stderr


def test_a_key_that_does_not_fit_is_said_in_one_plain_line(container: Container) -> None:
    string = container.environment["AZURE_STORAGE_CONNECTION_STRING"].replace(AZURE_KEY, "aHVzaA==")
    container.environment["AZURE_STORAGE_CONNECTION_STRING"] = string

    done = container.offload("ls", container.tier)

    assert done.returncode == 1
    assert "the credentials are wrong" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "aHVzaA" not in done.stderr
