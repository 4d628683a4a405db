"""What the S3 backend promises beyond the port: options, errors by code, secrets, the probe."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest
from offload_cloud.ranges import range_of
from offload_s3 import S3Options, S3Store
from offload_s3.plugin import OPTIONS
from offload_s3.store import checksum_of
from offload_s3.url import open_url

from offload import Body, Denied, Env, Misuse, ObjectStoreOffloader, Span, StreamWriter, Suffix, TryAgain
from offload.contracts.capabilities import Capabilities
from offload.store.memory import MemoryStore
from offload.store.metrics import MeteredStore
from offload.store.probe import make_sure_of_create
from offload.store.wrap import StoreDecorator

NOWHERE = {"endpoint_url": "http://127.0.0.1:1", "region": "us-east-1", "key": "AKEY", "secret": "HUSH"}


class Overwrites(StoreDecorator):
    """A server that does not know conditional puts: it answers 200 and overwrites."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            atomic_create=True, create_is_probed=True, strong_listing=True, multipart=True, durable=False
        )

    async def create(self, key: str, data: bytes) -> None:
        await self.inner.put(key, Body.of(data))


class Honours(Overwrites):
    """A server that knows them."""

    async def create(self, key: str, data: bytes) -> None:
        await self.inner.create(key, data)


def test_the_declared_options_are_those_of_the_model() -> None:
    """Declared twice, so that listing plugins imports no pydantic."""
    assert set(OPTIONS) == set(S3Options.model_fields)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"endpoint_url": "ftp://x"}, "endpoint_url"),
        ({"connections_max": "many"}, "connections_max"),
        ({"addressing": "sideways"}, "addressing"),
        ({"sse": "rot13"}, "sse"),
        ({"part_size_bytes": 1}, "part_size_bytes"),
        ({"colour": "red"}, "colour"),
        ({"endpoint_url": "http://user:HUSH@host"}, "endpoint_url"),
        ({"endpoint_url": "http://"}, "endpoint_url"),
        ({"proxy": "HUSH"}, "proxy"),
        ({"verify": "no-such-file.pem"}, "verify"),
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
        ({"metadata": {"a": "x\ny"}}, "metadata"),
        ({"metadata": {"a": "é"}}, "metadata"),
        ({"metadata": {"a": "x" * 2048}}, "metadata"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(Misuse, match=named) as wrong:
        S3Options.of(options)
    assert "HUSH" not in str(wrong.value)


def test_options_are_text_on_the_command_line_and_values_in_python() -> None:
    text = {
        "verify": "false",
        "anonymous": "yes",
        "tags": "a=b, c=d=e",
        "metadata": "",
        "read_timeout_seconds": "5",
    }
    values = {"verify": False, "anonymous": True, "tags": {"a": "b", "c": "d=e"}, "read_timeout_seconds": 5}

    assert S3Options.of(text) == S3Options.of(values)


def test_secrets_are_in_no_text() -> None:
    secrets = {"token": "HUSH-token", "proxy": "http://user:HUSH@host", "sse_c_key": "HUSH" * 10 + "HUE="}
    options = S3Options.of(NOWHERE | secrets)
    store = S3Store(bucket="b", options=options)

    with pytest.raises(Misuse) as wrong:
        S3Options.of(NOWHERE | {"secret": ["HUSH"]})

    for text in (repr(options), str(options), repr(store), store.url, str(wrong.value), repr(wrong.value)):
        assert "HUSH" not in text


def test_a_store_is_not_pickled_with_its_secrets() -> None:
    store = S3Store(bucket="b", options=S3Options.of(NOWHERE))

    with pytest.raises(TypeError, match="send its URL and options"):
        pickle.dumps(store)


def test_an_error_takes_no_secret_along() -> None:
    """Nor does anything that it was raised from: a traceback prints them all, and a pickle has the first."""
    options = NOWHERE | {"token": "HUSH-token", "proxy": "http://user:HUSH@127.0.0.1:1"}

    async def main() -> None:
        store = S3Store(bucket="b", options=S3Options.of(options))
        try:
            with pytest.raises(TryAgain) as caught:
                await store.create("key", b"x")
        finally:
            await store.aclose()
        printed = "".join(traceback.format_exception(caught.value))
        assert "HUSH" not in printed
        assert b"HUSH" not in pickle.dumps(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    asyncio.run(main())


def test_an_url_holds_no_credentials() -> None:
    with pytest.raises(Misuse) as wrong:
        open_url("s3://AKEY:HUSH@bucket/prefix", options={})

    assert "HUSH" not in str(wrong.value)


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "s3://bucket/../other", "s3://bucket/a//b"])
def test_an_url_that_names_no_place_is_refused(url: str) -> None:
    with pytest.raises(Misuse):
        open_url(url, options={})


def test_an_url_is_a_bucket_and_a_prefix() -> None:
    assert open_url("s3://bucket/a/tier/", options=NOWHERE).url == "s3://bucket/a/tier"
    assert open_url("s3://bucket", options=NOWHERE).url == "s3://bucket"


@pytest.mark.parametrize(
    ("span", "header"),
    [
        (None, None),
        (Span(0, 10), "bytes=0-9"),
        (Span(5, 1), "bytes=5-5"),
        (Span(5, 0), "bytes=5-5"),
        (Suffix(7), "bytes=-7"),
    ],
)
def test_a_span_is_the_header_that_asks_for_it(span: Span | Suffix | None, header: str | None) -> None:
    assert range_of(span) == header


def test_a_checksum_is_written_as_the_service_documents_it() -> None:
    """`123456789` has the CRC-32C e3069283 (RFC 3720, appendix B.4 has others of the kind)."""
    assert checksum_of(b"123456789") == "4waSgw=="


def test_a_store_that_overwrites_holds_no_tier() -> None:
    """Refused before the first object, the anchor included, is there; and the probe cleans up."""
    objects: dict[str, bytes] = {}

    async def main() -> None:
        async with ObjectStoreOffloader(Overwrites(MemoryStore(objects=objects))) as offloader:
            await StreamWriter.claim(offloader, "orders")

    with pytest.raises(Denied, match="two writers could both commit"):
        asyncio.run(main())

    assert objects == {}


def test_a_store_is_probed_once_and_only_before_a_commit() -> None:
    async def main() -> None:
        metered = MeteredStore(Honours(MemoryStore()))
        async with ObjectStoreOffloader(metered) as offloader:
            await StreamWriter.claim(offloader, "orders")
            writing = metered.metrics.requests["create"]
            await StreamWriter.claim(offloader, "invoices")

            # Two of the probe, tier anchor, stream anchor, root; then stream anchor and root.
            assert writing == 5
            assert metered.metrics.requests["create"] == 7

    asyncio.run(main())


def test_a_store_that_is_known_to_be_atomic_is_not_probed() -> None:
    metered = MeteredStore(MemoryStore())

    asyncio.run(make_sure_of_create(metered, Env()))

    assert not metered.metrics.requests


def test_finding_the_plugin_imports_no_sdk(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from offload import Plugins; Plugins.find();"
        "print([m for m in ('s3fs', 'botocore', 'pydantic', 'aiohttp') if m in sys.modules])"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)

    assert said.stdout.strip() == "[]"
