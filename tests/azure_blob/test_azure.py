"""Tests of the Azure backend's own promises: URLs, logins, errors by code, secrets."""

from __future__ import annotations

import asyncio
import base64
import pickle
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.identity import CredentialUnavailableError
from cloud.azure import KEY, answers, error_of, of_store, refusal
from cloud.calls import Call, create, delete, get, names, put, reading
from offload_azure import AzureOptions, AzureStore
from offload_azure.account import Account, account_of
from offload_azure.failures import explained, one_line
from offload_azure.url import open_url
from wire import Answer, Wire, wire

from offload import (
    AlreadyExists,
    Denied,
    Misuse,
    NoSpace,
    NotFound,
    OffloadError,
    OutcomeUnknown,
    Plugins,
    StoreDenied,
    Suffix,
    Throttled,
    TryAgain,
)
from offload.store.prefix import PrefixStore

SAS = "sv=2022-11-02&sp=racwdl&sig=HUSH%2Bsig"
CONNECTION = (
    f"DefaultEndpointsProtocol=https;AccountName=other;AccountKey={KEY};EndpointSuffix=core.windows.net"
)
PRINCIPAL = {"tenant_id": "t", "client_id": "c", "client_secret": "HUSH"}
ENVIRONMENT = ("CONNECTION_STRING", "ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN", "CLIENT_ID", "CLIENT_SECRET")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove every account and proxy from the environment."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name in (*ENVIRONMENT, "TENANT_ID", "ANON"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


@pytest.fixture
def azure() -> Iterator[Wire]:
    with wire(answers) as server:
        yield server


# URLs


@pytest.mark.parametrize(
    ("host", "account", "reached"),
    [
        ("acct.dfs.core.windows.net", "acct", None),
        ("acct.blob.core.windows.net", "acct", None),
        ("acct.dfs.core.chinacloudapi.cn", "acct", "acct.blob.core.chinacloudapi.cn"),
    ],
)
def test_a_url_may_name_the_account(host: str, account: str, reached: str | None) -> None:
    url = f"abfss://container@{host}/tier"

    store = open_url(url, options={"account_key": KEY})

    assert isinstance(store, PrefixStore)
    assert isinstance(store.inner, AzureStore)
    options = store.inner.options
    assert (options.account_name, options.account_host) == (account, reached)
    assert store.url == f"az://container@{host}/tier"
    assert open_url(store.url, options={"account_key": KEY}).url == store.url


def test_a_url_and_an_option_with_two_accounts_are_refused() -> None:
    with pytest.raises(Misuse, match="account_name"):
        open_url("abfs://container@acct.dfs.core.windows.net/x", options={"account_name": "other"})


def test_every_scheme_opens_the_azure_backend() -> None:
    plugins = Plugins.find()

    assert {plugins.by_scheme("backend", scheme).name for scheme in ("az", "abfs", "abfss")} == {"azure"}


# Logins


def resolved(**options: Any) -> Account:
    """Return the account that the options lead to, with its credential closed."""

    async def main() -> Account:
        account = account_of(AzureOptions.of(options))
        if hasattr(account.credential, "close"):
            await account.credential.close()
        return account

    return asyncio.run(main())


def way_of(account: Account) -> str:
    """Return the kind of login, as the option that gives it."""
    if account.connection_string:
        return "connection_string"
    match account.credential:
        case None:
            return "anonymous"
        case {"account_key": key}:
            return f"account_key {key == KEY}"
    return type(account.credential).__name__


@pytest.mark.parametrize(
    ("options", "way"),
    [
        ({"account_key": KEY}, "account_key True"),
        ({"sas_token": SAS}, "AzureSasCredential"),
        ({"connection_string": CONNECTION.replace("other", "acct")}, "connection_string"),
        ({"anonymous": "true"}, "anonymous"),
        (PRINCIPAL, "ClientSecretCredential"),
    ],
)
@pytest.mark.parametrize("environment", ENVIRONMENT[2:4])
def test_options_override_the_environment(
    options: dict[str, Any], way: str, environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """adlfs itself prefers the environment's key to a given token."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", CONNECTION)
    monkeypatch.setenv(f"AZURE_STORAGE_{environment}", base64.b64encode(b"others").decode())

    assert way_of(resolved(account_name="acct", **options)) == way


@pytest.mark.parametrize(
    ("environment", "way"),
    [
        ({"ACCOUNT_KEY": KEY}, "account_key True"),
        ({"SAS_TOKEN": "?" + SAS}, "AzureSasCredential"),
        ({"CONNECTION_STRING": CONNECTION}, "connection_string"),
        ({"ANON": "true"}, "anonymous"),
        ({"CLIENT_ID": "c", "CLIENT_SECRET": "HUSH", "TENANT_ID": "t"}, "ClientSecretCredential"),
        ({}, "DefaultAzureCredential"),
    ],
)
def test_the_environment_gives_what_the_options_leave_out(
    environment: dict[str, str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acct")
    for name, value in environment.items():
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)

    account = resolved()

    assert way_of(account) == way
    assert account.connection_string or account.url == "https://acct.blob.core.windows.net"


def test_the_environment_never_replaces_the_account_of_an_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """adlfs itself writes to the connection string's account without a word."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", CONNECTION)

    with pytest.raises(Misuse, match=r"'acct' is named.*'other'.*AZURE_STORAGE_CONNECTION_STRING"):
        resolved(account_name="acct")
    for place in ({"endpoint_url": "http://x"}, {"account_host": "h"}):
        with pytest.raises(Misuse, match="AZURE_STORAGE_CONNECTION_STRING"):
            resolved(**place)
    with pytest.raises(Misuse, match="'client_id'"):
        resolved(client_id="mine")
    assert way_of(resolved(account_name="other")) == "connection_string"


def test_the_client_id_chooses_the_managed_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr("azure.identity.DefaultAzureCredential", lambda **given: None)
    monkeypatch.setattr("azure.identity.aio.DefaultAzureCredential", lambda **given: seen.append(given))

    with pytest.raises(Misuse):  # the stand-in makes no credential
        resolved(account_name="acct", client_id="mine")

    assert seen == [{"managed_identity_client_id": "mine", "workload_identity_client_id": "mine"}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no account is named"),
        ({"connection_string": "AccountKey"}, "connection string"),
        ({"connection_string": f"AccountKey={KEY}"}, "incomplete"),
    ],
)
def test_a_missing_account_is_reported_as_misuse(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Misuse, match=said) as caught:
        resolved(**options)

    assert KEY not in str(caught.value)


@pytest.mark.parametrize("error", [get, put])
def test_a_sign_in_is_never_sent_without_tls(azure: Wire, error: Call) -> None:
    found = error_of(azure.url, error, account_key=None, **PRINCIPAL)

    assert type(found) is Misuse
    assert azure.heard == []


def test_every_request_carries_the_token(azure: Wire) -> None:
    for call in (put, create, get, delete, names):
        of_store(azure.url, call, account_key=None, sas_token="?" + SAS)

    assert {heard.query["sig"][0] for heard in azure.heard} == {"HUSH+sig"}
    assert not any("authorization" in heard.headers for heard in azure.heard)


def test_a_connection_string_leads_to_its_endpoint(azure: Wire) -> None:
    string = f"DefaultEndpointsProtocol=http;AccountName=acct;AccountKey={KEY};BlobEndpoint={azure.url}/acct;"

    of_store(None, get, account_name=None, account_key=None, connection_string=string)

    [heard] = azure.heard
    assert heard.path == "/acct/container/a/key"
    assert heard.headers["authorization"].startswith("SharedKey acct:")


# Errors by code


@pytest.mark.parametrize(
    ("code", "status", "kind", "said"),
    [
        ("BlobNotFound", 404, NotFound, "no object"),
        ("ContainerNotFound", 404, StoreDenied, "the container does not exist"),
        ("ContainerBeingDeleted", 409, StoreDenied, "being deleted"),
        ("AuthenticationFailed", 403, StoreDenied, "not valid for this account"),
        ("AuthorizationFailure", 403, Denied, "network rules"),
        ("AuthorizationPermissionMismatch", 403, Denied, "Storage Blob Data Contributor.*'r'"),
        ("InsufficientAccountPermissions", 403, Denied, "lack the permission"),
        ("InvalidAuthenticationInfo", 401, StoreDenied, "tenant"),
        ("NoAuthenticationInformation", 401, StoreDenied, "not public"),
        ("KeyBasedAuthenticationNotPermitted", 403, StoreDenied, "allows no keys"),
        ("AccountIsDisabled", 403, StoreDenied, "disabled"),
        ("BlobArchived", 409, Denied, "archived"),
        ("BlobUsesCustomerSpecifiedEncryption", 409, Denied, "`cpk_key`"),
        ("LeaseIdMissing", 412, Denied, "lease"),
        ("ServerBusy", 503, Throttled, "ServerBusy"),
        ("OperationTimedOut", 500, TryAgain, "OperationTimedOut"),
        ("InternalError", 500, TryAgain, "InternalError"),
        ("NeverHeardOf", 400, OffloadError, "NeverHeardOf"),
    ],
)
@pytest.mark.parametrize("call", [get, reading(Suffix(1))])
def test_the_code_chooses_the_error(
    code: str, status: int, kind: type[OffloadError], said: str, call: Call
) -> None:
    """The code is also in a header, because the reply to a HEAD has no body."""
    with wire(lambda heard: refusal(code, status)) as server:
        error = error_of(server.url, call)

    assert type(error) is kind
    with pytest.raises(kind, match=said):
        raise error


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("InternalError", 500, OutcomeUnknown),
        ("OperationTimedOut", 500, OutcomeUnknown),
        ("ServerBusy", 503, Throttled),
        ("Md5Mismatch", 400, TryAgain),
        ("RequestBodyTooLarge", 413, Misuse),
        ("InsufficientStorage", 507, NoSpace),
        ("AuthorizationPermissionMismatch", 403, Denied),
        ("BlobImmutableDueToPolicy", 409, Denied),
        ("UnauthorizedBlobOverwrite", 403, Denied),
        ("InvalidBlobTier", 400, Denied),
        ("InvalidBlobType", 409, Denied),
    ],
)
def test_the_code_chooses_the_error_of_a_write(code: str, status: int, kind: type[OffloadError]) -> None:
    with wire(lambda heard: refusal(code, status)) as server:
        assert type(error_of(server.url, put)) is kind


@pytest.mark.parametrize(
    ("call", "letters"), [(put, "'c and w'"), (create, "'c'"), (get, "'r'"), (names, "'l'"), (delete, "'d'")]
)
def test_an_error_names_the_missing_permission(call: Call, letters: str) -> None:
    with wire(lambda heard: refusal("AuthorizationPermissionMismatch", 403)) as server:
        assert f"{letters} in a SAS token" in str(error_of(server.url, call))


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ("Request date header too old: 'Sat, 21 Nov 2026 19:51:58 GMT'", "clock"),
        ("Signature not valid in the specified time frame: Start [a] - Expiry [b] - Current [c]", "expired"),
        ("Signature did not match. String to sign used was rl 2026", "SAS token is not for"),
        ("The MAC signature found in the HTTP request 'x' is not the same", "account key"),
    ],
)
def test_an_error_says_why_the_credentials_are_wrong(detail: str, said: str) -> None:
    inside = f"<AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail>"
    with wire(lambda heard: refusal("AuthenticationFailed", 403, inside=inside)) as server:
        error = error_of(server.url, put)

    assert type(error) is StoreDenied
    assert said in str(error)


def test_missing_credentials_are_denied_with_advice() -> None:
    text = "DefaultAzureCredential failed to retrieve a token from the included credentials.\nAttempted: ..."

    error = explained(CredentialUnavailableError(message=text), what="read", where="az://c", mutation=False)

    assert type(error) is StoreDenied
    assert "az login" in str(error)
    assert "`account_key`" in str(error)


def test_the_error_of_a_refused_sign_in_has_its_number() -> None:
    refused = ClientAuthenticationError(message="Authentication failed: AADSTS7000215: Invalid client secret")

    error = explained(refused, what="read", where="az://c", mutation=True)

    assert type(error) is StoreDenied
    assert "AADSTS7000215" in str(error)
    assert "`client_secret`" in str(error)


def test_an_error_names_an_absent_account() -> None:
    error = error_of(None, put, account_host="acct.blob.invalid")

    assert type(error) is TryAgain
    assert "acct.blob.invalid does not resolve" in str(error)
    assert "`account_name`" in str(error)


@pytest.mark.parametrize("status", [403, 407])
def test_an_error_names_the_proxy_that_refuses(status: int) -> None:
    with wire(lambda heard: Answer(status)) as server:
        proxy = server.url.replace("://", "://user:HUSH@")
        error = error_of("https://acct.blob.invalid", put, proxy=proxy)

    assert type(error) is StoreDenied
    assert "`proxy`" in str(error)


def test_a_web_server_is_no_blob_service() -> None:
    """Its 404 does not mean that the object is absent."""
    with wire(lambda heard: Answer(404, b"<html>not here</html>", {"Content-Type": "text/html"})) as server:
        error = error_of(server.url, get)

    assert type(error) is StoreDenied
    assert "not from a blob service" in str(error)


@pytest.mark.parametrize("call", [get, put, names])
def test_no_error_contains_the_token(call: Call) -> None:
    """The URL contains the token, and libraries put URLs into their errors."""
    login = {"account_key": None, "sas_token": SAS}
    with wire(lambda heard: Answer(drop=True)) as server:
        dropped = error_of(server.url, call, **login)
    with wire(lambda heard: Answer(200, b"x", {"Content-Length": "none"})) as server:
        garbled = error_of(server.url, call, **login)
    with wire(lambda heard: refusal("InternalError", 500)) as server:
        refused = error_of(server.url, call, **login)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        unreached = error_of(url, call, connect_timeout_seconds=0.2, **login)

    for error in (dropped, garbled, refused, unreached):
        assert b"HUSH" not in pickle.dumps(error)
    assert type(unreached) is TryAgain
    assert "`connect_timeout_seconds`" in str(unreached)


def test_a_quoted_text_is_one_line_without_secrets() -> None:
    text = f"at https://u:HUSH@acct/c?sv=1&sig=HUSH\n{CONNECTION} sig=HUSH&x SharedAccessSignature=sv=1"

    assert "HUSH" not in one_line(text)
    assert KEY not in one_line(text)
    assert "\n" not in one_line(text)


def test_create_refuses_an_object_too_large_for_one_request(azure: Wire) -> None:
    async def large(store: AzureStore) -> None:
        await store.create("k", bytes(128 * 2**20 + 1))

    assert type(error_of(azure.url, large)) is Misuse
    assert azure.heard == []


def test_a_create_of_an_existing_blob_raises_already_exists() -> None:
    with wire(lambda heard: refusal("BlobAlreadyExists", 409)) as server:
        error = error_of(server.url, create)

    assert type(error) is AlreadyExists
