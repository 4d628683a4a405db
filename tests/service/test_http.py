"""Tests of the port for metrics against callers that never end a request."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from offload.service import http


async def livez(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok\n")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def reply_of(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    reply = await reader.read()
    writer.close()
    return reply


@pytest.mark.parametrize("sent", [b"", b"GET /liv", b"GET /livez HTTP/1.1\r\nHost: x\r\nA: ", b"\r\n"])
def test_half_a_request_is_closed_in_time_and_takes_few_descriptors(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http, "CONNECTION_SECONDS", 0.5)

    async def scenario() -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        port = listener.getsockname()[1]
        serving = asyncio.create_task(http.serve_http(Starlette(routes=[Route("/livez", livez)]), listener))
        callers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        for _, writer in callers:
            writer.write(sent)
        await asyncio.sleep(0.1)
        # Each caller has a descriptor of its own in this process.
        kept = descriptors() - before - len(callers)
        assert kept <= http.CONNECTIONS_MAX + 10
        assert (await reply_of(port, b"GET /livez HTTP/1.0\r\n\r\n")).endswith(b"ok\n")
        for reader, writer in callers:
            with suppress(ConnectionError):  # or a refusal, and then the end
                await asyncio.wait_for(reader.read(), 5)
            writer.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    before = descriptors()
    asyncio.run(scenario())
    assert descriptors() <= before + 2
