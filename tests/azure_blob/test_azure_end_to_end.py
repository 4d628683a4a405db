"""Tests of the command line on a container: other names of a tier, wrong arguments and a wrong key."""

from __future__ import annotations

import os

import pytest
from cloud.tiers import CloudTier
from command_line import offload
from osiris_data import DATA
from servers import Running, servers_of
from servers.places import AZURE_ACCOUNT, AZURE_KEY

CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"

pytestmark = pytest.mark.parametrize("running_server", servers_of("azure"), indirect=True)


@pytest.fixture
def tier(running_server: Running, monkeypatch: pytest.MonkeyPatch) -> CloudTier:
    return CloudTier(running_server.place(), monkeypatch)


def test_a_sync_to_the_same_tier_by_another_name_changes_nothing(
    running_server: Running, tier: CloudTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another scheme, and with the account in options instead of the environment."""
    offload("sync", f"rabbitmq://{DATA}/tiny", tier.url)
    before = tier.objects()
    monkeypatch.delenv(CONNECTION)
    account = [
        *("-o", f"account_name={AZURE_ACCOUNT}"),
        *("-o", f"account_key={AZURE_KEY}"),
        *("-o", f"endpoint_url={running_server.endpoint}/{AZURE_ACCOUNT}"),
    ]

    again = offload(
        "sync", f"rabbitmq://{DATA}/tiny", tier.url.replace("az://", "abfs://"), "--json", *account
    )

    assert again.code == 0, again.stderr
    assert again.document["uploaded_bytes"] == 0
    assert tier.objects() == before


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("ls", "az://"), 2, "names no container"),
        (("ls", "az://container", "-o", "colour=red"), 2, "colour"),
        (("ls", "az://container", "-o", "access_tier=Archive"), 2, "access_tier"),
        (("ls", "az://container", "-o", "account_name=mine"), 1, "AZURE_STORAGE_CONNECTION_STRING"),
        (("ls", "abfs://container@mine.dfs.core.windows.net"), 1, "AZURE_STORAGE_CONNECTION_STRING"),
    ],
)
def test_a_wrong_argument_is_one_plain_line(
    tier: CloudTier, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = offload(*arguments)

    assert done.code == code
    assert said in done.error
    assert AZURE_KEY not in done.stderr


def test_a_wrong_key_is_one_plain_line(tier: CloudTier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONNECTION, os.environ[CONNECTION].replace(AZURE_KEY, "aHVzaA=="))

    done = offload("ls", tier.url)

    assert done.code == 1
    assert "the credentials are wrong" in done.error
    assert "aHVzaA" not in done.stderr
