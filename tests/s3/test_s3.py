"""Tests of the S3 backend's own promises: options, secrets, the probe."""

from __future__ import annotations

import asyncio
import pickle
import traceback

import pytest
from offload_cloud.ranges import range_of
from offload_s3 import S3Options, S3Store

from offload import Body, Denied, Env, Misuse, ObjectStoreOffloader, Span, StreamWriter, Suffix, TryAgain
from offload.contracts.capabilities import Capabilities
from offload.store.memory import MemoryStore
from offload.store.metrics import MeteredStore
from offload.store.probe import make_sure_of_create
from offload.store.wrap import StoreDecorator

NOWHERE = {"endpoint_url": "http://127.0.0.1:1", "region": "us-east-1", "key": "AKEY", "secret": "HUSH"}


class Overwrites(StoreDecorator):
    """A server that ignores conditions of puts: it answers 200 and overwrites."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            atomic_create=True, create_is_probed=True, strong_listing=True, multipart=True, durable=False
        )

    async def create(self, key: str, data: bytes) -> None:
        await self.inner.put(key, Body.of(data))


class Honours(Overwrites):
    """A server that honours conditions of puts."""

    async def create(self, key: str, data: bytes) -> None:
        await self.inner.create(key, data)


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


def test_no_error_or_traceback_contains_a_secret() -> None:
    """A traceback also prints the errors that it was raised from. A pickle contains the error alone."""
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
def test_a_span_becomes_a_range_header(span: Span | Suffix | None, header: str | None) -> None:
    assert range_of(span) == header


def test_a_store_that_overwrites_on_create_is_refused() -> None:
    """The refusal comes before the first object, even the anchor. The probe deletes its objects."""
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


def test_a_store_with_a_documented_create_is_not_probed() -> None:
    metered = MeteredStore(MemoryStore())

    asyncio.run(make_sure_of_create(metered, Env()))

    assert not metered.metrics.requests
