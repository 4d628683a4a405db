"""Fragments by obstore: the same headers, errors and care as by the client behind, and only where it can."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureSasCredential
from azure_calls import (
    DIGITS,
    KEY,
    TAGGED,
    Call,
    answers,
    create,
    delete,
    error_of,
    get,
    of_store,
    part_of,
    put,
    reading,
    refusal,
    upload,
)
from certificates import certificate, served
from offload_azure import AzureOptions
from offload_azure.account import Account
from offload_azure.fast import OF_OBSTORE_ALONE, _credentials, why_not_fast
from offload_azure.url import open_container
from offload_cloud.fast import FastStore
from offload_conformance import OffloaderConformance, StoreConformance
from offload_conformance.asynchronous import Run
from servers import Place, Running, servers_of
from wire import Answer, Heard, Wire, wire

from offload import (
    LedgerOffloader,
    Misuse,
    NotFound,
    ObjectStore,
    ObjectStoreOffloader,
    OffloadError,
    OutcomeUnknown,
    Span,
    Suffix,
    TryAgain,
)
from offload.store.retry import RetryingStore

CAMPAIGN = bool(os.environ.get("OFFLOAD_CAMPAIGN"))
FAST = {"client": "obstore"}
CPK = base64.b64encode(b"k" * 32).decode()
SERVERS = pytest.mark.parametrize("running_server", servers_of("azure"), indirect=True)


class _OnServer:
    place: Place

    @pytest.fixture(autouse=True)
    def _place(self, running_server: Running) -> None:
        self.place = running_server.place()
        self.bucket, self.options = self.place.name, self.place.options  # for other processes

    def fast_store(self) -> ObjectStore:
        store = open_container(self.bucket, AzureOptions.of(self.options | FAST))
        assert isinstance(store, FastStore)
        return store

    def keys_in_store(self) -> set[str]:
        """By the synchronous client: the store's own are others."""
        return self.place.keys()


@SERVERS
class TestFastAzureStore(_OnServer, StoreConformance):
    if not CAMPAIGN:  # the client behind lists, as `TestAzureStore` has it do
        test_listing_goes_on_page_after_page = test_a_level_goes_on_page_after_page = None

    def open_store(self) -> ObjectStore:
        return self.fast_store()

    @pytest.mark.parametrize("key", ["a\\b", "a.", "a/b..."])
    def test_keys_that_the_service_takes_for_others_are_refused(self, run: Run, key: str) -> None:
        with pytest.raises(Misuse):
            run(self.fast_store().get(key))


@SERVERS
class TestFastAzureOffloader(_OnServer, OffloaderConformance):
    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(RetryingStore(self.fast_store()))


@pytest.fixture
def azure() -> Iterator[Wire]:
    with wire(answers) as server:
        yield server


def by_obstore(heard: Heard) -> bool:
    return heard.headers["user-agent"].startswith("object_store/")


# What goes which way


def test_only_whole_puts_and_reads_go_by_obstore(azure: Wire) -> None:
    for call in (put, get, reading(Span(1, 2)), create, upload, delete):
        of_store(azure.url, call, **FAST)

    assert [by_obstore(heard) for heard in azure.heard] == [True, True, True, *[False] * 4]


def test_the_end_of_an_object_is_read_by_the_client_behind(azure: Wire) -> None:
    """Azure knows no range from the end, and obstore does not ask for the size first."""
    assert of_store(azure.url, reading(Suffix(3)), **FAST) == b"789"
    assert not any(by_obstore(heard) for heard in azure.heard)


@pytest.mark.parametrize("name", OF_OBSTORE_ALONE)
def test_what_obstore_alone_would_obey_keeps_it_out(
    azure: Wire, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "x")

    of_store(azure.url, put, client="auto")

    assert [by_obstore(heard) for heard in azure.heard] == [False]
    with pytest.raises(Misuse, match=name):
        of_store(azure.url, put, **FAST)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"encryption_scope": "scope"}, "encryption_scope"),
        ({"api_version": "2021-12-02"}, "api_version"),
        ({"hierarchical_namespace": True}, "hierarchical_namespace"),
    ],
)
def test_what_obstore_cannot_do_is_done_by_the_client_behind(
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
def test_of_every_option_it_is_known_whether_obstore_can_do_it(name: str) -> None:
    """A new option fails here, until somebody has seen it on the wire."""
    assert why_not_fast(AzureOptions.of(CAN[name])) is None


# On the wire


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        ({"access_tier": "Cool"}, {"x-ms-access-tier": "Cool"}),
        ({"tags": "team=a"}, {"x-ms-tags": "team=a"}),
        ({"metadata": "written_by=us"}, {"x-ms-meta-written_by": "us"}),
        ({}, {"x-ms-blob-type": "BlockBlob"}),
    ],
)
def test_headers_are_those_of_the_client_behind(
    azure: Wire, options: dict[str, Any], headers: dict[str, str]
) -> None:
    for client in ("obstore", "fsspec"):
        of_store(azure.url, put, client=client, **options)

    fast, plain = azure.heard
    assert headers.items() <= fast.headers.items()
    assert headers.items() <= plain.headers.items()
    assert (fast.method, fast.path, fast.body) == (plain.method, plain.path, plain.body)
    assert by_obstore(fast)


def test_a_key_of_the_callers_own_goes_over_tls_and_never_without(azure: Wire, tmp_path: Path) -> None:
    with wire(answers, tls=served(certificate(tmp_path))) as server:
        for call in (put, get):
            of_store(server.url, call, **FAST, cpk_key=CPK, verify=False)
            assert type(error_of(azure.url, call, **FAST, cpk_key=CPK)) is Misuse

    assert [by_obstore(heard) and heard.headers["x-ms-encryption-key"] for heard in server.heard] == [
        CPK,
        CPK,
    ]
    assert azure.heard == []


def test_a_token_stands_in_the_query_and_in_no_error(azure: Wire) -> None:
    token = {"account_key": None, "sas_token": "sv=2024-01-01&sig=HUSH%2BHUSH"}

    of_store(azure.url, get, **FAST, **token)
    with wire(lambda heard: refusal("InternalError", 500)) as server:
        error_of(server.url, get, **FAST, **token)
    with wire(lambda heard: Answer(drop=True)) as server:
        error_of(server.url, put, **FAST, **token)

    [heard] = azure.heard
    assert heard.query["sig"] == ["HUSH+HUSH"]
    assert "authorization" not in heard.headers


def test_without_credentials_nothing_is_signed(azure: Wire) -> None:
    of_store(azure.url, get, **FAST, account_key=None, anonymous=True)

    assert ["authorization" in heard.headers for heard in azure.heard] == [False]


def test_a_sign_in_is_asked_again_before_it_expires() -> None:
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
def test_credentials_are_those_of_the_client_behind(account: Account, credential: dict[str, Any]) -> None:
    provider = _credentials(account)

    assert provider is not None
    assert asyncio.run(provider()) == credential


@pytest.mark.parametrize(("call", "raised"), [(put, OutcomeUnknown), (get, TryAgain)])
def test_a_connection_that_drops_is_not_asked_again(call: Call, raised: type[OffloadError]) -> None:
    with wire(lambda heard: Answer(drop=True)) as server:
        error = error_of(server.url, call, **FAST)

    assert type(error) is raised
    assert len(server.heard) == 1


@pytest.mark.parametrize("call", [put, get])
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("AuthorizationPermissionMismatch", 403),
        ("AuthenticationFailed", 403),
        ("ContainerNotFound", 404),
        ("BlobArchived", 409),
        ("ServerBusy", 503),
        ("InternalError", 500),
        ("BlobUsesCustomerSpecifiedEncryption", 409),
    ],
)
def test_a_refusal_is_the_same_error_by_either_client(call: Call, code: str, status: int) -> None:
    with wire(lambda heard: refusal(code, status)) as server:
        fast = error_of(server.url, call, **FAST)
        plain = error_of(server.url, call)

    assert (type(fast), str(fast)) == (type(plain), str(plain))
    assert [by_obstore(heard) for heard in server.heard] == [True, False]


@pytest.mark.parametrize("call", [put, get])
def test_what_was_never_sent_is_told_by_the_client_behind(call: Call) -> None:
    error = error_of("http://127.0.0.1:1", call, **FAST)

    assert type(error) is TryAgain
    assert "nothing answers" in str(error)


@pytest.mark.parametrize("sent", [0, 1, 9])
@pytest.mark.parametrize("call", [get, reading(Span(0, 10))])
def test_a_body_that_is_cut_short_is_no_body(call: Call, sent: int) -> None:
    def cut(heard: Heard) -> Answer:
        part = {"Content-Range": "bytes 0-9/10"} if "range" in heard.headers else {}
        return Answer(206 if part else 200, DIGITS, TAGGED | part, cut=sent)

    with wire(cut) as server:
        assert type(error_of(server.url, call, **FAST)) is TryAgain

    assert len(server.heard) == 1


def test_a_folder_is_no_object() -> None:
    """On an account whose hierarchical namespace nobody declared."""
    marked = {"x-ms-meta-hdi_isfolder": "true"}

    with wire(lambda heard: part_of(b"", heard, **marked)) as server:
        error = error_of(server.url, get, **FAST)

    assert type(error) is NotFound
