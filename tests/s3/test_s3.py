"""What the S3 backend promises beyond the port: options, errors by code, secrets, the probe."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from offload_cloud.ranges import range_of
from offload_s3 import S3Options, S3Store
from offload_s3.failures import explained
from offload_s3.plugin import OPTIONS
from offload_s3.store import checksum_of
from offload_s3.url import open_url

from offload import (
    AlreadyExists,
    Body,
    Denied,
    Env,
    Misuse,
    NoSpace,
    NotFound,
    ObjectStoreOffloader,
    OffloadError,
    OutcomeUnknown,
    Span,
    StreamWriter,
    Suffix,
    Throttled,
    TryAgain,
)
from offload.store.capabilities import Capabilities
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


def refused(code: str, *, mutation: bool = True) -> OffloadError:
    reply: Any = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    return explained(
        ClientError(reply, "PutObject"), what="do it", where="s3://b", key="k", mutation=mutation
    )


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
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(Misuse, match=named):
        S3Options.of(options)


def test_secrets_are_in_no_text() -> None:
    options = S3Options.of(NOWHERE | {"token": "HUSH-token"})
    store = S3Store(bucket="b", options=options)

    with pytest.raises(Misuse) as wrong:
        S3Options.of(NOWHERE | {"secret": ["HUSH"]})

    for text in (repr(options), str(options), repr(store), store.url, str(wrong.value)):
        assert "HUSH" not in text


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "s3://bucket/../other", "s3://bucket/a//b"])
def test_an_url_that_names_no_place_is_refused(url: str) -> None:
    with pytest.raises(Misuse):
        open_url(url, options={})


def test_an_url_is_a_bucket_and_a_prefix() -> None:
    assert open_url("s3://bucket/a/tier/", options=NOWHERE).url == "s3://bucket/a/tier"
    assert open_url("s3://bucket", options=NOWHERE).url == "s3://bucket"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("PreconditionFailed", AlreadyExists),
        ("412", AlreadyExists),
        ("ConditionalRequestConflict", AlreadyExists),
        ("NoSuchKey", NotFound),
        ("AccessDenied", Denied),
        ("RequestTimeTooSkewed", Denied),
        ("NoSuchBucket", Denied),
        ("PermanentRedirect", Denied),
        ("QuotaExceeded", NoSpace),
        ("SlowDown", Throttled),
        ("BadDigest", TryAgain),
        ("InternalError", OutcomeUnknown),
        ("EntityTooSmall", Misuse),
    ],
)
def test_an_error_is_what_its_code_says(code: str, kind: type[OffloadError]) -> None:
    """Not what its type says: servers and client libraries differ in types, and agree in codes."""
    assert type(refused(code)) is kind


def test_a_read_whose_outcome_is_unknown_may_simply_be_tried_again() -> None:
    assert type(refused("InternalError", mutation=False)) is TryAgain


def test_credentials_that_are_not_there_are_a_persons_to_set() -> None:
    error = explained(NoCredentialsError(), what="read", where="s3://b", mutation=False)

    assert isinstance(error, Denied)
    assert "credentials" in str(error)


def test_a_server_that_is_not_there_leaves_a_mutation_unknown_and_a_read_to_be_tried_again() -> None:
    lost = EndpointConnectionError(endpoint_url="http://127.0.0.1:1")

    assert isinstance(explained(lost, what="w", where="s3://b", mutation=True), OutcomeUnknown)
    assert isinstance(explained(lost, what="r", where="s3://b", mutation=False), TryAgain)


def test_requests_to_a_server_that_is_not_there_end_with_an_error_of_ours() -> None:
    async def main() -> None:
        store = S3Store(bucket="b", options=S3Options.of(NOWHERE | {"connect_timeout_seconds": 1}))
        try:
            with pytest.raises(TryAgain):
                await store.get("key")
            with pytest.raises(OutcomeUnknown):
                await store.create("key", b"x")
        finally:
            await store.aclose()

    asyncio.run(main())


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
