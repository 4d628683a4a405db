"""Tests of requests: every client sends each once, to the right address, with the login and nobody else's."""

from __future__ import annotations

import asyncio
import base64
import gc
import threading
from pathlib import Path
from typing import Any, Final

import pytest
from campaign import few
from certificates import certificate, served
from cloud.azure import AZURE, KEY
from cloud.calls import DIGITS, MUTATIONS, Call, Client, create, get
from cloud.clients import EACH_CALL, EACH_CLIENT
from cloud.gcs import GCS
from cloud.s3 import S3
from offload_cloud import long_reads
from wire import Answer, Heard, wire

from offload import ObjectStore, OutcomeUnknown, Span, StoreDenied, TryAgain
from offload.store.buffers import BufferPool

MARKS: Final = {"x-amz-request-id": "r", "x-ms-request-id": "r", "x-ms-version": "2026-02-06"}
"""Headers by which the clients know the services."""


# One call is one request


@few("calls of each client; make test has a third of them", 3)
@EACH_CALL
def test_a_request_whose_connection_drops_is_sent_once(client: Client, call: Call) -> None:
    """On a new connection and on a used one: a second request could hide that the first was applied."""
    is_dropping = True

    def answer(heard: Heard) -> Answer:
        return Answer(drop=True) if is_dropping else client.answers(heard)

    async def twice(store: ObjectStore) -> None:
        nonlocal is_dropping
        await call(store)
        is_dropping = True
        await call(store)

    with wire(answer) as new:
        first = client.error_of(new.url, call)
    is_dropping = False
    with wire(answer) as used:
        second = client.error_of(used.url, twice)

    assert type(first) is type(second) is (OutcomeUnknown if call in MUTATIONS else TryAgain)
    assert [heard.connection for heard in (*new.heard, *used.heard)] == [1, 1, 1]


@few("calls of each client; make test has a third of them", 3)
@EACH_CALL
def test_a_request_that_is_refused_is_sent_once(client: Client, call: Call) -> None:
    """Neither the SDK nor the transport repeats it."""
    statuses = (401, 403, 408, 412, 429, 500, 502, 503, 504)
    refusals = iter([Answer(status, headers=MARKS) for status in statuses])

    with wire(lambda heard: next(refusals)) as server:
        for _ in statuses:
            client.error_of(server.url, call)

    assert len(server.heard) == len(statuses)


@few("calls of each client; make test has a third of them", 3)
@EACH_CALL
def test_no_redirect_is_followed(client: Client, call: Call) -> None:
    """It could lead the bytes and the credentials to a stranger."""
    statuses = iter((301, 302, 303, 307, 308))

    def redirect(heard: Heard) -> Answer:
        return Answer(next(statuses), headers=MARKS | {"Location": stranger.url + heard.target})

    with wire(client.answers) as stranger, wire(redirect) as server:
        for _ in range(5):
            client.error_of(server.url, call)

    assert len(server.heard) == 5
    assert stranger.heard == []


@EACH_CLIENT
def test_no_more_requests_are_under_way_than_connections_are_allowed(client: Client) -> None:
    """Every request waits for a second one, so a third would be seen beside them."""
    pair, lock, under_way = threading.Barrier(2, timeout=60), threading.Lock(), [0]
    seen: set[int] = set()

    def answer(heard: Heard) -> Answer:
        with lock:
            under_way[0] += 1
            seen.add(under_way[0])
        pair.wait()
        with lock:
            under_way[0] -= 1
        return client.answers(heard)

    async def many(store: ObjectStore) -> None:
        await asyncio.gather(*(store.get("a/key") for _ in range(20)))

    with wire(answer) as server:
        client.of_store(server.url, many, connections_max=2)

    assert len(server.heard) == 20
    assert seen == {1, 2}


@pytest.mark.parametrize("connections_max", [1, 2])
@EACH_CLIENT
def test_a_reader_that_pauses_keeps_no_other_request_waiting(
    client: Client, connections_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reply stays open for what it said it would read next, and holds a connection."""
    monkeypatch.setattr(long_reads, "IDLE_SECONDS", 600.0)

    async def read(store: ObjectStore) -> list[bytes]:
        async with asyncio.timeout(60):
            paused = [await store.get("a/key", Span(start, 4, follows=2)) for start in (0, 1, 2)]
            return [*paused, await store.get("a/key")]

    with wire(client.answers) as server:
        found = client.of_store(server.url, read, connections_max=connections_max)

    assert found == [b"0123", b"1234", b"2345", DIGITS]


@EACH_CLIENT
def test_closing_a_store_ends_the_reply_of_a_reader_that_pauses(client: Client) -> None:
    with wire(client.answers) as server:
        client.of_store(server.url, lambda store: store.get("a/key", Span(0, 4, follows=2)))

    gc.collect()  # a socket that is still open gives a ResourceWarning, which fails the test


@EACH_CLIENT
def test_a_closed_store_keeps_no_memory_of_reads(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_reads, "POOLED_SIZE_BYTES_MIN", 1)
    of_others = pools()

    def kept_size_bytes() -> int:
        return sum(pool.free_size_bytes for pool in pools() if pool not in of_others)

    async def read(store: ObjectStore) -> list[int]:
        await store.get("a/key", Span(0, 4))
        kept = [kept_size_bytes()]
        await store.aclose()
        return [*kept, kept_size_bytes()]

    with wire(client.answers) as server:
        before, after = client.of_store(server.url, read)

    assert before > after == 0


def pools() -> list[BufferPool]:
    return [each for each in gc.get_objects() if isinstance(each, BufferPool)]


@EACH_CALL
def test_no_request_lets_the_server_compress_its_reply(client: Client, call: Call) -> None:
    with wire(client.answers) as server:
        client.of_store(server.url, call)

    assert [heard.headers["accept-encoding"] for heard in server.heard] == ["identity"]


# Wrong addresses


@few("calls of each client; make test has a third of them", 3)
@EACH_CALL
def test_a_call_to_an_address_without_a_server_may_be_tried_again(client: Client, call: Call) -> None:
    """Nothing was sent, so the outcome of a mutation is known. A server may be about to start."""
    error = client.error_of("http://127.0.0.1:1", call)

    assert type(error) is TryAgain
    assert "127.0.0.1:1" in str(error)
    assert "`endpoint_url`" in str(error)


@pytest.mark.parametrize("scheme", ["http", "https"])
@EACH_CLIENT
def test_a_call_through_an_absent_proxy_may_be_tried_again(client: Client, scheme: str) -> None:
    proxied = client.given(**client.anonymous, proxy="http://u:HUSH@127.0.0.1:1")

    error = proxied.error_of(f"{scheme}://store.invalid", create)

    assert type(error) is TryAgain
    assert "`proxy`" in str(error)


# Credentials


@few("calls of each client; make test has a third of them", 3)
@EACH_CALL
def test_requests_are_signed_unless_the_client_is_anonymous(
    client: Client, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No login of the environment or of `~/.netrc` is used then."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password HUSH\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "HUSH")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    with wire(client.answers) as server:
        client.of_store(server.url, call)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        client.of_store(server.url, call, **client.anonymous)

    assert ["authorization" in heard.headers for heard in server.heard] == [True, False]


# Proxies


@pytest.mark.parametrize(
    ("client", "options", "host"),
    [
        (S3, {"addressing": "path"}, "store.invalid/bucket"),
        (S3, {"addressing": "virtual"}, "bucket.store.invalid"),
        (GCS, GCS.anonymous, "store.invalid/storage/v1/b/bucket/o"),
        (AZURE, {}, "store.invalid/container"),
    ],
)
def test_a_proxy_gets_the_whole_address_and_its_login(
    client: Client, options: dict[str, Any], host: str
) -> None:
    """The server's name does not resolve, so only the proxy can have answered."""
    with wire(client.answers) as server:
        proxy = server.url.replace("://", "://user:HUSH@")
        client.of_store("http://store.invalid", get, proxy=proxy, **options)

    [heard] = server.heard
    assert heard.target.partition("?")[0].replace("%2F", "/") == f"http://{host}/a/key"
    assert base64.b64decode(heard.headers["proxy-authorization"].split()[1]) == b"user:HUSH"


@EACH_CLIENT
def test_the_proxy_of_the_environment_is_used_except_for_hosts_that_it_excludes(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with wire(client.answers) as proxy, wire(client.answers) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        client.of_store("http://store.invalid", get, **client.anonymous)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        client.of_store(server.url, get)

    assert [heard.headers["host"] for heard in proxy.heard] == ["store.invalid"]
    assert len(server.heard) == 1


# Certificates


@EACH_CLIENT
def test_a_certificate_is_checked_unless_the_options_say_otherwise(client: Client, tmp_path: Path) -> None:
    made = certificate(tmp_path)

    with wire(client.answers, tls=served(made)) as server:
        untrusted = client.error_of(server.url, get)
        heard = len(server.heard)
        unchecked = client.of_store(server.url, get, verify="false")
        checked = client.of_store(server.url, get, verify=str(made.path))

    assert type(untrusted) is StoreDenied
    assert "not trusted" in str(untrusted)
    assert "`verify`" in str(untrusted)
    assert heard == 0
    assert unchecked == checked == DIGITS


@pytest.mark.parametrize(
    ("days", "address", "said"), [(-1, "127.0.0.1", "has expired"), (1, "127.0.0.9", "for another name")]
)
@EACH_CLIENT
def test_an_invalid_certificate_is_named(
    client: Client, tmp_path: Path, days: int, address: str, said: str
) -> None:
    made = certificate(tmp_path, days=days, address=address)

    with wire(client.answers, tls=served(made)) as server:
        error = client.error_of(server.url, get, verify=str(made.path))

    assert type(error) is StoreDenied
    assert said in str(error) or "not valid for" in str(error)
    assert server.heard == []
