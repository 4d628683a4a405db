"""Tests of asking a process for its status: another program at its port costs neither patience nor memory."""

from __future__ import annotations

import asyncio

import pytest

from offload.service import client as asking
from offload.service.client import AskedProcess, ask_process


def asked(reply: bytes, *, pause_seconds: float = 0.0) -> AskedProcess:
    """Ask a server that sends this reply, byte by byte if there is a pause."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            for piece in [reply] if not pause_seconds else [reply[at : at + 1] for at in range(len(reply))]:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_seconds)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def scenario() -> AskedProcess:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            return await asyncio.wait_for(ask_process(server.sockets[0].getsockname()[:2]), 60)

    return asyncio.run(scenario())


def test_a_reply_that_comes_byte_by_byte_ends_within_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PATIENCE_SECONDS", 0.5)

    found = asked(b"HTTP/1.0 200 OK\r\n\r\n" + b" " * 100_000, pause_seconds=0.01)

    assert (found.status, found.error) == (None, "no answer within 0.5 s")


@pytest.mark.parametrize("body", [b"[" * 100_000, b"9" * 5000, b"<html>", b" " * 200_000])
def test_what_is_no_status_within_the_bounds_is_another_program(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(asking, "STATUS_REPLY_SIZE_BYTES_MAX", 100_000)

    assert asked(b"HTTP/1.0 200 OK\r\n\r\n" + body).error == "another program answers there"
