"""Tests of fragments by obstore: which calls and options it takes, and which the client behind it takes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureSasCredential
from certificates import certificate, served
from cloud.azure import KEY, answers, error_of, of_store, part_of, refusal
from cloud.calls import create, delete, get, put, reading, upload
from offload_azure import AzureOptions
from offload_azure.account import Account
from offload_azure.fast import _credentials, why_not_fast
from wire import Answer, Heard, Wire, wire

from offload import (
    Misuse,
    NotFound,
    Span,
    Suffix,
)

FAST = {"client": "obstore"}
CPK = base64.b64encode(b"k" * 32).decode()


@pytest.fixture
def azure() -> Iterator[Wire]:
    with wire(answers) as server:
        yield server


def by_obstore(heard: Heard) -> bool:
    return heard.headers["user-agent"].startswith("object_store/")


# Which client sends a call


def test_only_whole_puts_and_reads_go_by_obstore(azure: Wire) -> None:
    for call in (put, get, reading(Span(1, 2)), create, upload, delete):
        of_store(azure.url, call, **FAST)

    assert [by_obstore(heard) for heard in azure.heard] == [True, True, True, *[False] * 4]


def test_the_client_behind_reads_the_end_of_an_object(azure: Wire) -> None:
    """Azure has no ranges from the end, and obstore does not ask for the size first."""
    assert of_store(azure.url, reading(Suffix(3)), **FAST) == b"789"
    assert not any(by_obstore(heard) for heard in azure.heard)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"encryption_scope": "scope"}, "encryption_scope"),
        ({"api_version": "2021-12-02"}, "api_version"),
        ({"hierarchical_namespace": True}, "hierarchical_namespace"),
    ],
)
def test_the_client_behind_honours_options_that_obstore_cannot(
    azure: Wire, options: dict[str, Any], named: str
) -> None:
    of_store(azure.url, put, client="auto", **options)

    assert [by_obstore(heard) for heard in azure.heard] == [False]
    with pytest.raises(Misuse, match=named):
        of_store(azure.url, put, **FAST, **options)


CAN: dict[str, dict[str, Any]] = {
    "client": {"client": "auto"},
    "account_name": {"account_name": "acct"},
    "account_key": {"account_key": KEY},
    "sas_token": {"sas_token": "sv=1&sig=x"},
    "connection_string": {"connection_string": "x"},
    "tenant_id": {"tenant_id": "t", "client_id": "c", "client_secret": "s"},
    "client_id": {"client_id": "c"},
    "client_secret": {"tenant_id": "t", "client_id": "c", "client_secret": "s"},
    "anonymous": {"anonymous": True},
    "account_host": {"account_host": "host"},
    "endpoint_url": {"endpoint_url": "https://host"},
    "verify": {"verify": False},
    "proxy": {"proxy": "http://h"},
    "connect_timeout_seconds": {"connect_timeout_seconds": 1},
    "read_timeout_seconds": {"read_timeout_seconds": 1},
    "connections_max": {"connections_max": 1},
    "cpk_key": {"cpk_key": CPK},
    "access_tier": {"access_tier": "Cool"},
    "tags": {"tags": "a=b"},
    "metadata": {"metadata": "a=b"},
    "part_size_bytes": {"part_size_bytes": 2**20},
}
CANNOT = {"encryption_scope", "api_version", "hierarchical_namespace"}


@pytest.mark.parametrize("name", sorted(set(AzureOptions.model_fields) - CANNOT))
def test_every_option_is_known_to_work_with_obstore_or_not(name: str) -> None:
    """A new option fails here until it is in this table. Add it after a test of its header."""
    assert why_not_fast(AzureOptions.of(CAN[name])) is None


# On the wire


def test_a_key_of_the_caller_is_sent_over_tls_only(azure: Wire, tmp_path: Path) -> None:
    with wire(answers, tls=served(certificate(tmp_path))) as server:
        for call in (put, get):
            of_store(server.url, call, **FAST, cpk_key=CPK, verify=False)
            assert type(error_of(azure.url, call, **FAST, cpk_key=CPK)) is Misuse

    assert [by_obstore(heard) and heard.headers["x-ms-encryption-key"] for heard in server.heard] == [
        CPK,
        CPK,
    ]
    assert azure.heard == []


def test_the_query_contains_the_token_and_no_error_does(azure: Wire) -> None:
    token = {"account_key": None, "sas_token": "sv=2024-01-01&sig=HUSH%2BHUSH"}

    of_store(azure.url, get, **FAST, **token)
    with wire(lambda heard: refusal("InternalError", 500)) as server:
        error_of(server.url, get, **FAST, **token)
    with wire(lambda heard: Answer(drop=True)) as server:
        error_of(server.url, put, **FAST, **token)

    [heard] = azure.heard
    assert heard.query["sig"] == ["HUSH+HUSH"]
    assert "authorization" not in heard.headers


def test_a_sign_in_has_the_expiry_of_its_token() -> None:
    class SignIn:
        async def get_token(self, *scopes: str) -> AccessToken:
            assert scopes == ("https://storage.azure.com/.default",)
            return AccessToken("HUSH", 1_800_000_000)

    provider = _credentials(Account(credential=SignIn()))

    assert provider is not None
    assert asyncio.run(provider()) == {
        "token": "HUSH",
        "expires_at": datetime.fromtimestamp(1_800_000_000, UTC),
    }


@pytest.mark.parametrize(
    ("account", "credential"),
    [
        (
            Account(credential={"account_name": "a", "account_key": "k"}),
            {"access_key": "k", "expires_at": None},
        ),
        (Account(credential=AzureSasCredential("sig=s")), {"sas_token": "sig=s", "expires_at": None}),
        (
            Account(connection_string="AccountName=a;AccountKey=k=="),
            {"access_key": "k==", "expires_at": None},
        ),
        (
            Account(connection_string="BlobEndpoint=https://h;SharedAccessSignature=?sig=s"),
            {"sas_token": "sig=s", "expires_at": None},
        ),
    ],
)
def test_both_clients_use_the_same_credentials(account: Account, credential: dict[str, Any]) -> None:
    provider = _credentials(account)

    assert provider is not None
    assert asyncio.run(provider()) == credential


def test_a_folder_is_no_object() -> None:
    """The options do not declare the account's hierarchical namespace."""
    marked = {"x-ms-meta-hdi_isfolder": "true"}

    with wire(lambda heard: part_of(b"", heard, **marked)) as server:
        error = error_of(server.url, get, **FAST)

    assert type(error) is NotFound
