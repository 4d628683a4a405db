"""Tests of http:// to a TLS server and https:// to a plain one: one line names the mistake."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from offload import Body, ObjectStore, OffloadError, Plugins, StoreDenied, TryAgain
from offload.opening.by_url import open_store

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
S3 = {"region": "us-east-1", "key": "AKEY", "secret": "secret"}
AZURE = {"account_name": "devstoreaccount1", "account_key": KEY}
CLIENTS = [
    pytest.param("s3://bucket", S3, id="s3"),
    pytest.param("gs://bucket", {"anonymous": "true"}, id="gcs"),
    pytest.param("az://container", AZURE, id="azure"),
]
CALLS: list[Callable[[ObjectStore], Awaitable[Any]]] = [
    lambda store: store.get("a/b"),
    lambda store: store.put("a/b", Body.of(b"x")),
    lambda store: store.create("a/b", b"x"),
]
PAGE = b"<html><head><title>400 The plain HTTP request was sent to HTTPS port</title></head></html>"
TO_PLAIN_HTTP = {
    "go": b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
    "nginx": b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(PAGE), PAGE),
}
"""The replies of HTTPS servers to a request without TLS."""


def answering(answer: bytes) -> AbstractAsyncContextManager[int]:
    """Return a port that sends this reply after the first bytes of any request, and no more.

    A connection is closed at the end only: closed with bytes unread, it is reset, and the reply may be lost.
    """
    answered: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered.append(writer)
        await reader.read(65536)
        writer.write(answer)
        writer.write_eof()

    @asynccontextmanager
    async def serve() -> Any:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        async with server:
            try:
                yield server.sockets[0].getsockname()[1]
            finally:
                for each in answered:
                    each.close()
                await asyncio.gather(*(each.wait_closed() for each in answered), return_exceptions=True)

    return serve()


async def errors_of(scheme: str, answer: bytes, url: str, options: dict[str, str]) -> list[OffloadError]:
    async with answering(answer) as port:
        at = options | {"endpoint_url": f"{scheme}://127.0.0.1:{port}"}
        store = open_store(url, plugins=Plugins.find(), storage_options=at)
        found = []
        try:
            for call in CALLS:
                with pytest.raises(OffloadError) as caught:
                    await call(store)
                found.append(caught.value)
        finally:
            await store.aclose()
        return found


@pytest.mark.parametrize("server", TO_PLAIN_HTTP)
@pytest.mark.parametrize(("url", "options"), CLIENTS)
def test_http_to_a_tls_port_is_named(url: str, options: dict[str, str], server: str) -> None:
    for error in asyncio.run(errors_of("http", TO_PLAIN_HTTP[server], url, options)):
        assert type(error) is StoreDenied
        assert "the server wants https:// in" in str(error)


@pytest.mark.parametrize(("url", "options"), CLIENTS)
def test_https_to_a_plain_port_is_named(url: str, options: dict[str, str]) -> None:
    for error in asyncio.run(errors_of("https", TO_PLAIN_HTTP["go"], url, options)):
        assert type(error) is StoreDenied
        assert "no TLS that we understand" in str(error)
        assert "is it http:// in `endpoint_url`?" in str(error)


@pytest.mark.parametrize(("url", "options"), CLIENTS)
def test_a_server_that_hangs_up_in_the_handshake_is_tried_again(url: str, options: dict[str, str]) -> None:
    """A server that is stopping does this, and no request was sent yet."""
    for error in asyncio.run(errors_of("https", b"", url, options)):
        assert type(error) is TryAgain


def test_the_hint_for_a_tls_port_that_hangs_up_is_a_guess() -> None:
    for error in asyncio.run(errors_of("http", b"", "s3://bucket", S3)):
        assert type(error) is not StoreDenied
        assert "does the server want https:// in `endpoint_url`?" in str(error)
