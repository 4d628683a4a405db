"""What the Azure backend promises beyond the port: options, places, who we are, errors by code, secrets."""

from __future__ import annotations

import asyncio
import base64
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.identity import CredentialUnavailableError
from azure_calls import (
    KEY,
    LOGIN,
    Call,
    answers,
    create,
    delete,
    error_of,
    get,
    names,
    of_store,
    put,
    reading,
    refusal,
)
from offload_azure import AzureOptions, AzureStore
from offload_azure.account import Account, account_of
from offload_azure.failures import explained, one_line
from offload_azure.plugin import OPTIONS, SCHEMES
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
    """No account in the environment, and no proxy."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name in (*ENVIRONMENT, "TENANT_ID", "ANON"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


@pytest.fixture
def azure() -> Iterator[Wire]:
    with wire(answers) as server:
        yield server


# Options


def test_the_declared_options_are_those_of_the_model() -> None:
    """Declared twice, so that listing plugins imports no pydantic."""
    assert set(OPTIONS) == set(AzureOptions.model_fields)


def test_every_option_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/azure.md").read_text(encoding="utf-8")
    table = page.partition("## Options")[2].partition("\n## ")[0]

    assert [option for option in OPTIONS if f"`{option}`" not in table] == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"account_name": "Not_A_Name"}, "account_name"),
        ({"account_key": "no base64!"}, "account_key"),
        ({"sas_token": "https://acct.blob.core.windows.net/?sig=x"}, "sas_token"),
        ({"sas_token": "sv=1"}, "sas_token"),
        ({"account_host": "https://acct.blob.core.windows.net"}, "account_host"),
        ({"endpoint_url": "ftp://x"}, "endpoint_url"),
        ({"endpoint_url": "https://user:word@x"}, "endpoint_url"),
        ({"api_version": "new"}, "api_version"),
        ({"access_tier": "Archive"}, "access_tier"),
        ({"encryption_scope": "x"}, "encryption_scope"),
        ({"cpk_key": "aGk="}, "cpk_key"),
        ({"tags": "a"}, "tags"),
        ({"tags": "a=b,a=c"}, "tags"),
        ({"tags": "a=<b>"}, "tags"),
        ({"tags": {str(n): "" for n in range(11)}}, "tags"),
        ({"metadata": "written-by=us"}, "metadata"),
        ({"metadata": "a=é"}, "metadata"),
        ({"metadata": {"a": "x" * 9000}}, "metadata"),
        ({"verify": "/no/such/file"}, "verify"),
        ({"proxy": "socks://x"}, "proxy"),
        ({"connections_max": "many"}, "connections_max"),
        ({"part_size_bytes": 1}, "part_size_bytes"),
        ({"colour": "red"}, "colour"),
        ({"client_secret": "s"}, "tenant_id"),
        ({"tenant_id": "t", "client_id": "c"}, "client_secret"),
        ({"account_key": KEY, "sas_token": SAS}, "sas_token"),
        ({"account_key": KEY, "anonymous": "true"}, "anonymous"),
        ({"connection_string": CONNECTION, "account_key": KEY}, "connection_string"),
        ({"account_key": KEY, "client_id": "c"}, "client_id"),
        ({"account_host": "h", "endpoint_url": "http://x"}, "endpoint_url"),
        ({"connection_string": CONNECTION, "endpoint_url": "http://x"}, "connection_string"),
        ({"cpk_key": base64.b64encode(b"k" * 32).decode(), "encryption_scope": "scope"}, "encryption_scope"),
    ],
)
def test_a_wrong_option_is_named_and_its_value_is_not_repeated(options: dict[str, Any], named: str) -> None:
    with pytest.raises(Misuse, match=named) as wrong:
        AzureOptions.of(options)

    assert KEY not in str(wrong.value)
    assert "HUSH" not in str(wrong.value)


def test_secrets_are_in_no_text_and_no_store_is_pickled() -> None:
    options = AzureOptions.of(LOGIN | {"proxy": "http://user:HUSH@proxy"})
    store = AzureStore(container="container", options=options)

    for text in (repr(options), str(options), repr(store), store.url):
        assert "HUSH" not in text
        assert KEY not in text
    with pytest.raises(TypeError):
        pickle.dumps(store)


# Places


@pytest.mark.parametrize(
    "url",
    [
        "az://",
        "az:///prefix",
        "az://Container",
        "az://a",
        "az://a--b",
        "az://container/../other",
        "az://container/a//b",
        "az://container/a\\b",
        "az://container/a./b",
        "az://container?sig=HUSH",
        "az://user:HUSH@container/x",
        "abfs://container@account/prefix",
        "abfs://container@account.s3.amazonaws.com/prefix",
        "abfs://@account.dfs.core.windows.net/prefix",
    ],
)
def test_an_url_that_names_no_place_is_refused(url: str) -> None:
    with pytest.raises(Misuse) as caught:
        open_url(url, options={})

    assert "HUSH" not in str(caught.value)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_url_is_a_container_and_a_prefix(scheme: str) -> None:
    assert open_url(f"{scheme}://container/a/tier/", options=LOGIN).url == "az://container/a/tier"
    assert open_url(f"{scheme}://container", options=LOGIN).url == "az://container"


@pytest.mark.parametrize(
    ("host", "account", "reached"),
    [
        ("acct.dfs.core.windows.net", "acct", None),
        ("acct.blob.core.windows.net", "acct", None),
        ("acct.dfs.core.chinacloudapi.cn", "acct", "acct.blob.core.chinacloudapi.cn"),
    ],
)
def test_an_url_may_name_the_account(host: str, account: str, reached: str | None) -> None:
    url = f"abfss://container@{host}/tier"

    store = open_url(url, options={"account_key": KEY, "client": "fsspec"})

    assert isinstance(store, PrefixStore)
    assert isinstance(store.inner, AzureStore)
    options = store.inner.options
    assert (options.account_name, options.account_host) == (account, reached)
    assert store.url == f"az://container@{host}/tier"
    assert open_url(store.url, options={"account_key": KEY}).url == store.url


def test_an_url_and_an_option_that_name_two_accounts_are_refused() -> None:
    with pytest.raises(Misuse, match="account_name"):
        open_url("abfs://container@acct.dfs.core.windows.net/x", options={"account_name": "other"})


def test_the_schemes_lead_here() -> None:
    plugins = Plugins.find()

    assert {plugins.by_scheme("backend", scheme).name for scheme in ("az", "abfs", "abfss")} == {"azure"}


def test_finding_the_plugin_imports_no_sdk(tmp_path: Path) -> None:
    code = (
        "import sys; from offload import Plugins; Plugins.find();"
        "print([m for m in ('adlfs', 'azure', 'pydantic', 'aiohttp') if m in sys.modules])"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)

    assert said.stdout.strip() == "[]"


# Who we are


def resolved(**options: Any) -> Account:
    """The account that is found, its credential closed."""

    async def main() -> Account:
        account = account_of(AzureOptions.of(options))
        if hasattr(account.credential, "close"):
            await account.credential.close()
        return account

    return asyncio.run(main())


def way_of(account: Account) -> str:
    """What shows who we are, by the name of the option that would give it."""
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
def test_options_go_before_the_environment(
    options: dict[str, Any], way: str, environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """adlfs itself would take the key of the environment over a token that was given to it."""
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
def test_what_no_option_says_the_environment_says(
    environment: dict[str, str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acct")
    for name, value in environment.items():
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)

    account = resolved()

    assert way_of(account) == way
    assert account.connection_string or account.url == "https://acct.blob.core.windows.net"


def test_an_account_that_was_named_is_never_exchanged_for_the_environments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """adlfs itself would write to the account of the connection string, and say nothing."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", CONNECTION)

    with pytest.raises(Misuse, match=r"'acct' is named.*'other'.*AZURE_STORAGE_CONNECTION_STRING"):
        resolved(account_name="acct")
    for place in ({"endpoint_url": "http://x"}, {"account_host": "h"}):
        with pytest.raises(Misuse, match="AZURE_STORAGE_CONNECTION_STRING"):
            resolved(**place)
    with pytest.raises(Misuse, match="'client_id'"):
        resolved(client_id="mine")
    assert way_of(resolved(account_name="other")) == "connection_string"


def test_a_managed_identity_of_ones_own_is_named_by_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_account_that_is_not_named_is_a_persons_to_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Misuse, match=said) as caught:
        resolved(**options)

    assert KEY not in str(caught.value)


@pytest.mark.parametrize("error", [get, put])
def test_a_sign_in_goes_out_encrypted_only(azure: Wire, error: Call) -> None:
    found = error_of(azure.url, error, account_key=None, **PRINCIPAL)

    assert type(found) is Misuse
    assert azure.heard == []


def test_without_credentials_nothing_is_signed(azure: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)

    of_store(azure.url, get, account_key=None, anonymous="true")
    of_store(azure.url, get)

    assert ["authorization" in heard.headers for heard in azure.heard] == [False, True]


def test_a_token_goes_with_every_request(azure: Wire) -> None:
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


# Errors, by what the service says


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
        ("KeyBasedAuthenticationNotPermitted", 403, StoreDenied, "takes no keys"),
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
def test_an_error_is_what_its_code_says(
    code: str, status: int, kind: type[OffloadError], said: str, call: Call
) -> None:
    """Also of a HEAD, whose reply has no body: the code stands in a header as well."""
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
def test_an_error_of_a_write_is_what_its_code_says(code: str, status: int, kind: type[OffloadError]) -> None:
    with wire(lambda heard: refusal(code, status)) as server:
        assert type(error_of(server.url, put)) is kind


@pytest.mark.parametrize(
    ("call", "letters"), [(put, "'c and w'"), (create, "'c'"), (get, "'r'"), (names, "'l'"), (delete, "'d'")]
)
def test_a_permission_that_is_missing_is_named(call: Call, letters: str) -> None:
    with wire(lambda heard: refusal("AuthorizationPermissionMismatch", 403)) as server:
        assert f"{letters} in a SAS token" in str(error_of(server.url, call))


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ("Request date header too old: 'Sat, 21 Nov 2026 19:51:58 GMT'", "clock"),
        ("Signature not valid in the specified time frame: Start [a] - Expiry [b] - Current [c]", "expired"),
        ("Signature did not match. String to sign used was rl 2026", "SAS token does not fit"),
        ("The MAC signature found in the HTTP request 'x' is not the same", "account key"),
    ],
)
def test_why_credentials_are_not_believed_is_said(detail: str, said: str) -> None:
    inside = f"<AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail>"
    with wire(lambda heard: refusal("AuthenticationFailed", 403, inside=inside)) as server:
        error = error_of(server.url, put)

    assert type(error) is StoreDenied
    assert said in str(error)


def test_credentials_that_are_not_there_are_a_persons_to_set() -> None:
    text = "DefaultAzureCredential failed to retrieve a token from the included credentials.\nAttempted: ..."

    error = explained(CredentialUnavailableError(message=text), what="read", where="az://c", mutation=False)

    assert type(error) is StoreDenied
    assert "az login" in str(error)
    assert "`account_key`" in str(error)


def test_a_sign_in_that_is_refused_says_by_which_number() -> None:
    refused = ClientAuthenticationError(message="Authentication failed: AADSTS7000215: Invalid client secret")

    error = explained(refused, what="read", where="az://c", mutation=True)

    assert type(error) is StoreDenied
    assert "AADSTS7000215" in str(error)
    assert "`client_secret`" in str(error)


@pytest.mark.parametrize("call", [get, put, create, delete, names])
def test_a_server_that_is_not_there_heard_nothing(call: Call) -> None:
    """So that a write, too, may simply be tried again."""
    error = error_of("http://127.0.0.1:1", call)

    assert type(error) is TryAgain
    assert "127.0.0.1:1" in str(error)
    assert "`endpoint_url`" in str(error)


def test_an_account_that_is_not_there_is_named() -> None:
    error = error_of(None, put, account_host="acct.blob.invalid")

    assert type(error) is TryAgain
    assert "acct.blob.invalid does not resolve" in str(error)
    assert "`account_name`" in str(error)


def test_a_server_that_speaks_no_tls_is_named(azure: Wire) -> None:
    error = error_of(azure.url.replace("http:", "https:"), put)

    assert type(error) is StoreDenied
    assert "http:// in `endpoint_url`" in str(error)


@pytest.mark.parametrize("status", [403, 407])
def test_a_proxy_that_refuses_is_named(status: int) -> None:
    with wire(lambda heard: Answer(status)) as server:
        proxy = server.url.replace("://", "://user:HUSH@")
        error = error_of("https://acct.blob.invalid", put, proxy=proxy)

    assert type(error) is StoreDenied
    assert "`proxy`" in str(error)


def test_what_answers_and_is_no_blob_service_is_named() -> None:
    """A 404 of a web server is no absence."""
    with wire(lambda heard: Answer(404, b"<html>not here</html>", {"Content-Type": "text/html"})) as server:
        error = error_of(server.url, get)

    assert type(error) is StoreDenied
    assert "no blob service" in str(error)


@pytest.mark.parametrize("call", [get, put, names])
def test_a_token_is_in_no_error_however_the_request_fails(call: Call) -> None:
    """The token stands in the URL, and libraries put URLs into their errors."""
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


def test_texts_are_one_line_without_secrets() -> None:
    text = f"at https://u:HUSH@acct/c?sv=1&sig=HUSH\n{CONNECTION} sig=HUSH&x SharedAccessSignature=sv=1"

    assert "HUSH" not in one_line(text)
    assert KEY not in one_line(text)
    assert "\n" not in one_line(text)


def test_an_object_too_large_for_one_request_is_not_created(azure: Wire) -> None:
    async def large(store: AzureStore) -> None:
        await store.create("k", bytes(128 * 2**20 + 1))

    assert type(error_of(azure.url, large)) is Misuse
    assert azure.heard == []


def test_a_create_that_exists_is_named_by_its_key() -> None:
    with wire(lambda heard: refusal("BlobAlreadyExists", 409)) as server:
        error = error_of(server.url, create)

    assert type(error) is AlreadyExists
