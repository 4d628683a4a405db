"""Tests of options, URLs and secrets: what is wrong is named, and no secret is in a text or a pickle."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from cloud.azure import KEY
from cloud.calls import SECRET_IN_BASE64, Client
from cloud.clients import EACH_CLIENT
from offload_azure import AzureOptions
from offload_azure.plugin import OPTIONS as AZURE_OPTIONS
from offload_azure.plugin import SCHEMES
from offload_gcs import GcsOptions
from offload_gcs.plugin import OPTIONS as GCS_OPTIONS
from offload_s3 import S3Options
from offload_s3.plugin import OPTIONS as S3_OPTIONS

from offload import Misuse, ObjectStore, Plugins
from offload.opening.by_url import open_store

Options = type[S3Options] | type[GcsOptions] | type[AzureOptions]
Wrong = tuple[dict[str, Any], str]
"""Options, and the name that the error must contain."""

SAS: Final = "sv=2022-11-02&sp=racwdl&sig=HUSH%2Bsig"
CONNECTION: Final = (
    f"DefaultEndpointsProtocol=https;AccountName=other;AccountKey={KEY};EndpointSuffix=core.windows.net"
)
EACH_BACKEND: Final = pytest.mark.parametrize(
    ("model", "declared", "page"),
    [
        pytest.param(S3Options, S3_OPTIONS, "s3.md", id="s3"),
        pytest.param(GcsOptions, GCS_OPTIONS, "gcs.md", id="gcs"),
        pytest.param(AzureOptions, AZURE_OPTIONS, "azure.md", id="azure"),
    ],
)


@EACH_BACKEND
def test_the_plugin_and_the_page_have_every_option_of_the_model(
    model: Options, declared: tuple[str, ...], page: str
) -> None:
    """The plugin declares them again, so that listing plugins imports no pydantic."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    table = text.partition("## Options")[2].partition("\n## ")[0]

    assert set(declared) == set(model.model_fields)
    assert [option for option in declared if f"`{option}`" not in table] == []


WRONG_EVERYWHERE: Final[list[Wrong]] = [
    ({"endpoint_url": "ftp://x"}, "endpoint_url"),
    ({"endpoint_url": "http://user:HUSH@host"}, "endpoint_url"),
    ({"connections_max": "many"}, "connections_max"),
    ({"read_timeout_seconds": "0"}, "read_timeout_seconds"),
    ({"verify": "/no/such/file"}, "verify"),
    ({"proxy": "socks://HUSH"}, "proxy"),
    ({"colour": "red"}, "colour"),
    ({"metadata": "a"}, "metadata"),
    ({"metadata": {"a": "line\nend"}}, "metadata"),
    ({"metadata": {"a": "x" * 9000}}, "metadata"),
]
WRONG_FOR_S3: Final[list[Wrong]] = [
    ({"proxy": "HUSH"}, "proxy"),
    ({"metadata": {"a": "x" * 2048}}, "metadata"),
    ({"addressing": "sideways"}, "addressing"),
    ({"sse": "rot13"}, "sse"),
    ({"part_size_bytes": 1}, "part_size_bytes"),
    ({"endpoint_url": "http://"}, "endpoint_url"),
    ({"storage_class": "cold!"}, "storage_class"),
    ({"key": "AKEY"}, "secret"),
    ({"token": "HUSH"}, "token"),
    ({"anonymous": True, "key": "AKEY", "secret": "HUSH"}, "anonymous"),
    ({"sse_c_key": "HUSH"}, "sse_c_key"),
    ({"sse_c_key": "a" * 44, "sse": "AES256"}, "sse_c_key"),
    ({"sse_kms_key_id": "k"}, "sse_kms_key_id"),
    ({"sse_bucket_key": True, "sse": "AES256"}, "sse_bucket_key"),
    ({"tags": "a"}, "tags"),
    ({"tags": "a=1,a=2"}, "tags"),
    ({"tags": {f"t{n}": "" for n in range(11)}}, "tags"),
    ({"tags": {"a": "x" * 257}}, "tags"),
    ({"tags": {"aws:a": "x"}}, "tags"),
    ({"tags": {"a": "x&b=c"}}, "tags"),
    ({"metadata": {"A": "x"}}, "metadata"),
    ({"metadata": {"a": "é"}}, "metadata"),
]
WRONG_FOR_GCS: Final[list[Wrong]] = [
    ({"endpoint_url": "http://gcs.test", "token": "ya29.HUSH"}, "endpoint_url"),
    ({"endpoint_url": "http://gcs.test"}, "anonymous"),
    ({"kms_key_name": "my-key"}, "kms_key_name"),
    ({"storage_class": "cold & old"}, "storage_class"),
    ({"user_project": "a&b"}, "user_project"),
    ({"metadata": "a b=c"}, "metadata"),
    ({"token": "/no/such/HUSH"}, "token"),
    ({"token": "HUSH.json"}, "token"),
    ({"token": '{"HUSH'}, "token"),
    ({"token": "browser"}, "token"),
    ({"token": "ya29.HUSH", "anonymous": "true"}, "token"),
]
WRONG_FOR_AZURE: Final[list[Wrong]] = [
    ({"account_name": "Not_A_Name"}, "account_name"),
    ({"account_key": "no base64!"}, "account_key"),
    ({"sas_token": "https://acct.blob.core.windows.net/?sig=x"}, "sas_token"),
    ({"sas_token": "sv=1"}, "sas_token"),
    ({"account_host": "https://acct.blob.core.windows.net"}, "account_host"),
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
    ({"part_size_bytes": 1}, "part_size_bytes"),
    ({"client_secret": "s"}, "tenant_id"),
    ({"tenant_id": "t", "client_id": "c"}, "client_secret"),
    ({"account_key": KEY, "sas_token": SAS}, "sas_token"),
    ({"account_key": KEY, "anonymous": "true"}, "anonymous"),
    ({"connection_string": CONNECTION, "account_key": KEY}, "connection_string"),
    ({"account_key": KEY, "client_id": "c"}, "client_id"),
    ({"account_host": "h", "endpoint_url": "http://x"}, "endpoint_url"),
    ({"connection_string": CONNECTION, "endpoint_url": "http://x"}, "connection_string"),
    ({"cpk_key": base64.b64encode(b"k" * 32).decode(), "encryption_scope": "scope"}, "encryption_scope"),
]


@pytest.mark.parametrize(
    ("model", "wrong"),
    [
        (S3Options, WRONG_EVERYWHERE + WRONG_FOR_S3),
        (GcsOptions, WRONG_EVERYWHERE + WRONG_FOR_GCS),
        (AzureOptions, WRONG_EVERYWHERE + WRONG_FOR_AZURE),
    ],
)
def test_a_wrong_option_is_named_and_its_value_is_not_repeated(model: Options, wrong: list[Wrong]) -> None:
    for options, named in wrong:
        with pytest.raises(Misuse, match=named) as caught:
            model.of(options)
        assert SECRET_IN_BASE64 not in str(caught.value), options
        assert "HUSH" not in str(caught.value), options


@EACH_CLIENT
def test_no_secret_is_in_a_text_and_no_store_is_pickled(client: Client) -> None:
    given = {**client.login, **client.options, "proxy": "http://user:HUSH@proxy"}
    store = client.open(given)
    inner: Any = getattr(store, "inner", store)
    options = getattr(inner, "options", None) or GcsOptions.of(given)

    for text in (repr(store), repr(inner), store.url, repr(options), str(options)):
        assert "HUSH" not in text
        assert SECRET_IN_BASE64 not in text
    with pytest.raises(TypeError, match="send its URL and options"):
        pickle.dumps(store)


def opened(url: str, options: Mapping[str, Any] | None = None) -> ObjectStore:
    return open_store(url, plugins=Plugins.find(), storage_options=options or {})


@pytest.mark.parametrize(
    "url",
    [
        *[
            f"{scheme}://{rest}"
            for scheme in ("s3", "gs", "az")
            for rest in ("", "/prefix", "user:HUSH@bucket/x")
        ],
        *[f"{scheme}://bucket/{rest}" for scheme in ("s3", "gs", "az") for rest in ("../other", "a//b")],
        "gs://Bucket",
        "gs://a?b=c",
        "az://Container",
        "az://a",
        "az://a--b",
        "az://container/a\\b",
        "az://container/a./b",
        "az://container?sig=HUSH",
        "abfs://container@account/prefix",
        "abfs://container@account.s3.amazonaws.com/prefix",
        "abfs://@account.dfs.core.windows.net/prefix",
    ],
)
def test_a_url_without_a_place_is_refused(url: str) -> None:
    with pytest.raises(Misuse) as caught:
        opened(url)

    assert "HUSH" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "written"),
    [("s3", "s3"), ("gs", "gs"), ("gcs", "gs"), *[(scheme, "az") for scheme in SCHEMES]],
)
def test_a_url_is_a_bucket_and_a_prefix(scheme: str, written: str) -> None:
    options = {"account_name": "acct", "account_key": KEY} if written == "az" else {}

    assert opened(f"{scheme}://bucket/a/tier/", options).url == f"{written}://bucket/a/tier"
    assert opened(f"{scheme}://bucket", options).url == f"{written}://bucket"


def test_finding_the_plugins_imports_no_sdk(tmp_path: Path) -> None:
    heavy = ("s3fs", "botocore", "gcsfs", "google.auth", "adlfs", "azure", "pydantic", "aiohttp")
    code = (
        "import sys; from offload import Plugins; Plugins.find();"
        f"print([name for name in {heavy} if name in sys.modules])"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)

    assert (said.stdout.strip(), said.stderr) == ("[]", "")


@pytest.mark.parametrize("model", [S3Options, GcsOptions, AzureOptions])
def test_the_option_for_another_transport_is_gone(model: Options) -> None:
    with pytest.raises(Misuse, match=r"option 'client' is gone.* leave it out"):
        model.of({"client": "fsspec"})
