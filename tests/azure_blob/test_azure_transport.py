"""Tests of Azure's SDK on the byte transport: no body is joined, no connection is held, no token is shown."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from certificates import certificate, served
from cloud.azure import TAGGED, answers, error_of, of_store, part_of, refusal
from cloud.calls import DIGITS, get, put
from offload_azure import AzureStore
from wire import Answer, Heard, Wire, wire

from offload import Body, Misuse, Span, TryAgain

SIGNED_IN = {"account_key": None, "tenant_id": "t", "client_id": "c", "client_secret": "HUSH"}
CHALLENGE = 'Bearer authorization_uri="https://login.invalid/tenant" resource_id="https://storage.azure.com"'


@pytest.fixture
def azure() -> Iterator[Wire]:
    with wire(answers) as server:
        yield server


def test_the_windows_of_a_put_arrive_in_order_with_one_checksum(azure: Wire) -> None:
    """The SDK gets their size alone, so nothing joins them."""
    windows = [bytes([number]) * 300_000 for number in range(4)]

    async def each() -> Any:
        for window in windows:
            yield window

    of_store(azure.url, lambda store: store.put("k", Body(size_bytes=1_200_000, windows=each)))

    [heard] = azure.heard
    assert heard.body == b"".join(windows)
    assert heard.headers["content-md5"] == base64.b64encode(hashlib.md5(heard.body).digest()).decode()


def test_spans_that_follow_each_other_are_one_request(azure: Wire) -> None:
    async def read(store: AzureStore) -> list[bytes]:
        spans = [Span(1, 3, follows=5), Span(4, 3, follows=2), Span(7, 2)]
        return [bytes(await store.get("a/key", span)) for span in spans]

    assert of_store(azure.url, read) == [b"123", b"456", b"78"]
    assert [heard.headers["x-ms-range"] for heard in azure.heard] == ["bytes=1-8"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Range": "3-6/10"},
        {"Content-Range": "bytes 3-6/*"},
        {"Content-Range": "bytes 3-6/10", "Last-Modified": "yesterday"},
    ],
)
def test_a_reply_that_the_sdk_cannot_read_holds_no_connection(headers: dict[str, str]) -> None:
    """The SDK raises an error while the body is on its way. With one connection, a later read would wait."""

    def odd(heard: Heard) -> Answer:
        first = len(server.heard) == 1
        return Answer(206, b"3456", TAGGED | headers) if first else part_of(DIGITS, heard)

    async def twice(store: AzureStore) -> bytes:
        with pytest.raises(TryAgain):
            await store.get("a/key", Span(3, 4))
        async with asyncio.timeout(60):
            return bytes(await store.get("a/key", Span(3, 4)))

    with wire(odd) as server:
        assert of_store(server.url, twice, connections_max=1) == b"3456"


def test_a_challenge_is_answered_over_the_same_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If Azure asks for a token of another tenant, the SDK sends the refused request once more."""

    class SignIn:
        async def get_token(self, *scopes: str, tenant_id: str = "", **wanted: Any) -> AccessToken:
            return AccessToken(tenant_id or "none", int(time.time()) + 3600)

        async def close(self) -> None:
            pass

    def challenging(heard: Heard) -> Answer:
        if heard.headers["authorization"] == "Bearer tenant":
            return answers(heard)
        return refusal("InvalidAuthenticationInfo", 401, **{"WWW-Authenticate": CHALLENGE})

    async def put_and_read(store: AzureStore) -> bytes:
        await put(store)
        return bytes(await store.get("a/key", Span(3, 4)))

    made = certificate(tmp_path)
    monkeypatch.setattr("offload_azure.account._service_principal", lambda options: SignIn())
    with wire(challenging, tls=served(made)) as server:
        settings = {"verify": str(made.path), "connections_max": 1}
        assert of_store(server.url, put_and_read, **SIGNED_IN, **settings) == b"3456"

    assert [(heard.method, heard.headers["authorization"]) for heard in server.heard] == [
        ("PUT", "Bearer none"),
        ("PUT", "Bearer tenant"),
        ("GET", "Bearer tenant"),
    ]
    assert server.heard[0].body == server.heard[1].body == DIGITS
    assert {heard.connection for heard in server.heard} == {1}


def test_a_token_that_no_url_can_hold_is_misuse_without_its_text(
    azure: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token from a file may end with a line end."""
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=HUSH\nHUSH")

    error = error_of(azure.url, get, account_key=None)

    assert type(error) is Misuse
    assert "SAS token" in str(error)
    assert azure.heard == []
