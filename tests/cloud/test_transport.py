"""Tests of the byte transport: bad replies, cancellation, slow servers, forks and reuse of connections."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from certificates import certificate, served
from offload_cloud import slow
from offload_cloud.exchange import UNSIZED_BYTES_MAX, Connection, Request, TimeLimits
from offload_cloud.exchange_errors import Cause, ExchangeError
from offload_cloud.transport import Transport
from wire import Answer, Heard, wire

from offload.contracts.metrics import StoreMetrics
from offload.contracts.store import Span, Suffix
from offload.store.memory import MemoryStore
from offload.store.metrics import MeteredStore

T = TypeVar("T")
PATIENT: Final = TimeLimits(connect_seconds=60.0, stall_seconds=60.0)
BODY: Final = bytes(range(256)) * 4096
OK: Final = b"HTTP/1.1 200 OK\r\n"
ANNOUNCED: Final = b"Content-Length: %d\r\n\r\n"


def of_transport(
    call: Callable[[Transport], Awaitable[T]], *, limits: TimeLimits = PATIENT, at_once: int = 4
) -> T:
    """Return the result of a call with a transport that trusts every certificate."""

    def context() -> ssl.SSLContext:
        made = ssl.create_default_context()
        made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
        return made

    async def main() -> T:
        transport = Transport(limits=limits, connections_max=at_once, context=context)
        try:
            return await call(transport)
        finally:
            await transport.aclose()

    return asyncio.run(main())


async def get(transport: Transport, url: str, size_bytes_max: int | None = None) -> bytes:
    async with await transport.ask(Request(method="GET", url=f"{url}/key", headers={}), proxy=None) as reply:
        reply.check_body(size_bytes_max)
        return await reply.read()


def why_of(call: Callable[[Transport], Awaitable[object]], *, limits: TimeLimits = PATIENT) -> Cause:
    with pytest.raises(ExchangeError) as caught:
        of_transport(call, limits=limits)
    assert "\n" not in str(caught.value)
    return caught.value.why


def whole(heard: Heard) -> Answer:
    return Answer(200, BODY)


@contextmanager
def saying(
    *pieces: bytes, pause_seconds: float = 0.0, said: Callable[[], object] = lambda: None
) -> Iterator[str]:
    """Run a server that answers each connection with these pieces, whatever it hears, and yield its URL.

    It calls `said` after each piece, and then pauses.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            for piece in pieces:
                connection.sendall(piece)
                said()
                time.sleep(pause_seconds)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()


def test_the_head_of_a_reply_is_the_first_byte_of_a_read() -> None:
    """The body comes later, and is no part of that time."""

    class Store(MemoryStore):
        async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
            return await get(transport, url)

    async def read(given: Transport) -> StoreMetrics:
        nonlocal transport
        transport = given
        metered = MeteredStore(Store())
        await metered.get("key")
        return metered.metrics

    transport: Any = None
    with saying(OK + ANNOUNCED % 4, b"", b"body", pause_seconds=0.1) as url:
        metrics = of_transport(read)

    assert metrics.first_bytes.count == 1
    assert metrics.first_bytes.seconds < metrics.times["get", "ok"].seconds


# Replies that are no body


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        pytest.param(OK + ANNOUNCED % 100 + b"short", Cause.SHORT, id="short"),
        pytest.param(OK + ANNOUNCED % 1001 + bytes(1001), Cause.LONG, id="more than the range"),
        pytest.param(OK + ANNOUNCED % 2**59 + b"x", Cause.LONG, id="an absurd length"),
        pytest.param(OK + b"\r\nuntil the end", Cause.ENDLESS, id="no length"),
        pytest.param(b"HTTP/1.1 500 No\r\n" + ANNOUNCED % 2**40 + b"x", Cause.LONG, id="a refusal of 1 TiB"),
        pytest.param(OK + b"Content-Encoding: gzip\r\n" + ANNOUNCED % 3 + b"abc", Cause.ENCODED, id="gzip"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", Cause.SHORT, id="a chunk cut short"),
        pytest.param(
            OK + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % 2**31 + bytes(UNSIZED_BYTES_MAX + 1),
            Cause.LONG,
            id="endless chunks",
        ),
        pytest.param(
            OK + b"X: " + b"x" * 2**20 + b"\r\n" + ANNOUNCED % 1, Cause.BROKEN, id="a header of 1 MiB"
        ),
        pytest.param(OK + b"X: x\r\n" * 200_000 + ANNOUNCED % 1, Cause.BROKEN, id="200,000 headers"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", Cause.CLOSED, id="no HTTP"),
        pytest.param(b"", Cause.CLOSED, id="nothing"),
    ],
)
def test_a_reply_that_is_no_body_is_an_error(reply: bytes, why: Cause) -> None:
    with saying(reply) as url:
        assert why_of(lambda transport: get(transport, url, size_bytes_max=1000)) is why


def test_an_absurd_length_of_a_whole_object_takes_no_memory() -> None:
    with saying(OK + ANNOUNCED % 2**59 + b"x") as url:
        assert why_of(lambda transport: get(transport, url)) is Cause.BROKEN


@pytest.mark.parametrize("is_later", [False, True], ids=["at once", "later"])
def test_bytes_after_the_body_are_never_part_of_another_reply(is_later: bool) -> None:
    """The server sends a second reply that nobody asked for. The next request opens a connection."""
    one, said = OK + ANNOUNCED % 3, threading.Semaphore(0)
    pieces = (one + b"abc", one + b"XYZ") if is_later else (one + b"abc" + one + b"XYZ",)

    async def twice(transport: Transport) -> list[bytes]:
        first = await get(transport, url)
        for _ in pieces:
            await asyncio.to_thread(said.acquire)
        return [first, await get(transport, url)]

    with saying(*pieces, pause_seconds=0.3, said=said.release) as url:  # the connection stays open meanwhile
        assert of_transport(twice) == [b"abc", b"abc"]


# Time

STALL: Final = TimeLimits(connect_seconds=60.0, stall_seconds=1.5)


def test_a_server_that_sends_one_byte_at_a_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte moves before each stall would end, but the whole takes too long."""
    monkeypatch.setattr(slow, "STALLS_MAX", 2)
    with saying(OK + ANNOUNCED % 1000, *[b"x"] * 1000, pause_seconds=0.05) as url:
        assert why_of(lambda transport: get(transport, url), limits=STALL) is Cause.SLOW
    with saying(*[bytes([byte]) for byte in OK + b"X: " + b"x" * 1000], pause_seconds=0.05) as url:
        assert why_of(lambda transport: get(transport, url), limits=STALL) is Cause.SLOW


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
def test_a_cancelled_read_ends_its_thread_before_it_raises(
    is_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread writes into the buffer afterwards, and the connection is not used again."""
    receive, inside = Connection.readinto, [0]

    def counted(connection: Connection, buffer: memoryview) -> None:
        inside[0] += 1
        try:
            receive(connection, buffer)
        finally:
            time.sleep(0.05)  # long enough to find a caller that does not wait
            inside[0] -= 1

    monkeypatch.setattr(Connection, "readinto", counted)

    def half(heard: Heard) -> Answer:
        return Answer(200, 2 * BODY, {"Content-Length": str(4 * len(BODY))})

    async def cancelled(transport: Transport) -> bytes:
        buffer = bytearray(4 * len(BODY))
        request = Request(method="GET", url=f"{server.url}/key", headers={})
        async with await transport.ask(request, proxy=None) as reply:
            reading = asyncio.create_task(reply.readinto(memoryview(buffer)))
            while buffer[len(BODY) - 1] != BODY[-1]:  # noqa: ASYNC110 - a thread fills it, and sets no event
                await asyncio.sleep(0.01)
            reading.cancel()
            began = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert time.monotonic() - began < 30
            assert inside == [0]
        server.answer = whole
        return await get(transport, server.url)

    tls = served(certificate(tmp_path)) if is_tls else None
    with wire(half, tls=tls) as server:
        assert of_transport(cancelled) == BODY
        assert [heard.connection for heard in server.heard] == [1, 2]


@pytest.mark.parametrize("at_once", [1000, 34_000])
def test_a_body_that_comes_slowly_is_no_stall(at_once: int) -> None:
    """Each piece comes before the time limit of a stall, the whole body long after it."""
    pieces = [BODY[start : start + at_once] for start in range(0, 30 * at_once, at_once)]
    body, patient = b"".join(pieces), replace(STALL, stall_seconds=3.0)  # thirty times a pause

    with saying(OK + ANNOUNCED % len(body), *pieces, pause_seconds=0.12) as url:
        assert of_transport(lambda transport: get(transport, url), limits=patient) == body


def test_a_body_that_stops_is_a_stall_wherever_it_stops() -> None:
    """Bytes are delivered in lots, and the time limit holds within a lot as well."""
    for sent in (0, 1, 100_000, len(BODY) - 1):
        with saying(OK + ANNOUNCED % len(BODY) + BODY[:sent], b"", pause_seconds=60.0) as url:
            begun = time.monotonic()
            assert why_of(lambda transport, url=url: get(transport, url), limits=STALL) is Cause.STALLED
            assert time.monotonic() - begun < 30.0


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
def test_the_last_bytes_of_a_body_and_a_short_one_behind_it_wait_for_no_others(
    is_tls: bool, tmp_path: Path
) -> None:
    bodies = [BODY[: len(BODY) // 2], b"abc", BODY + BODY[: len(BODY) // 2], b"abc"]
    answers = iter(bodies)

    async def several(transport: Transport) -> list[bytes]:
        return [await get(transport, server.url) for _ in bodies]

    begun = time.monotonic()
    tls = served(certificate(tmp_path)) if is_tls else None
    with wire(lambda heard: Answer(200, next(answers)), tls=tls) as server:
        assert of_transport(several) == bodies

    assert time.monotonic() - begun < 30


def test_a_cancelled_request_makes_room_for_another() -> None:
    asked = threading.Semaphore(0)

    def never(heard: Heard) -> Answer:
        asked.release()
        time.sleep(0.2)
        return Answer(drop=True)

    async def several(transport: Transport) -> bytes:
        for _ in range(3):
            task = asyncio.create_task(get(transport, server.url))
            await asyncio.to_thread(asked.acquire)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        server.answer = whole
        return await get(transport, server.url)

    with wire(never) as server:
        assert of_transport(several, at_once=1) == BODY


# Connections


def test_a_connection_is_used_again_after_a_whole_reply_alone() -> None:
    async def several(transport: Transport) -> None:
        await get(transport, server.url)
        await get(transport, server.url)
        async with await transport.ask(
            Request(method="GET", url=f"{server.url}/key", headers={}), proxy=None
        ):
            pass  # the body is not read
        await get(transport, server.url)

    with wire(whole) as server:
        of_transport(several)

    assert [heard.connection for heard in server.heard] == [1, 1, 1, 2]


def test_a_connection_that_the_server_ended_behind_its_reply_is_closed() -> None:
    async def read(transport: Transport) -> None:
        request = Request(method="GET", url=f"{url}/key", headers={})
        async with await transport.ask(request, proxy=None) as reply:
            assert await reply.read() == b"abc"
            await asyncio.sleep(0.1)  # the server hangs up
        gc.collect()  # a socket that is still open gives a ResourceWarning, which fails the test

    with saying(OK + ANNOUNCED % 3 + b"abc") as url:
        of_transport(read)


def test_a_connection_serves_no_other_server() -> None:
    """The next request may have other credentials."""

    async def both(transport: Transport) -> None:
        for server in (first, second, first):
            await get(transport, server.url)

    with wire(whole) as first, wire(whole) as second:
        of_transport(both)

    assert [heard.connection for heard in first.heard] == [1, 1]
    assert [heard.connection for heard in second.heard] == [1]


def test_a_body_is_received_into_memory_of_the_caller() -> None:
    async def pieces(transport: Transport) -> bytes:
        buffer = bytearray(len(BODY))
        async with await transport.ask(
            Request(method="GET", url=f"{server.url}/key", headers={}), proxy=None
        ) as reply:
            assert reply.check_body() == len(BODY)
            for start, end in ((0, 1), (1, 70_000), (70_000, len(BODY))):
                await reply.readinto(memoryview(buffer)[start:end])
            with pytest.raises(ExchangeError):
                await reply.readinto(memoryview(bytearray(1)))
        return bytes(buffer)

    with wire(whole) as server:
        assert of_transport(pieces) == BODY


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
def test_a_body_is_sent_window_by_window(is_tls: bool, tmp_path: Path) -> None:
    windows = (memoryview(BODY)[:10], BODY, memoryview(BODY)[10:])
    request = {"method": "PUT", "headers": {}, "body": windows}

    async def put(transport: Transport) -> int:
        async with await transport.ask(Request(url=f"{server.url}/key", **request), proxy=None) as reply:  # type: ignore[arg-type]
            return reply.status

    tls = served(certificate(tmp_path)) if is_tls else None
    with wire(lambda heard: Answer(200), tls=tls) as server:
        assert of_transport(put) == 200

    assert server.heard[0].body == BODY[:10] + BODY + BODY[10:]


def test_a_forked_child_opens_connections_and_threads_of_its_own() -> None:
    async def forked(transport: Transport) -> tuple[int, bytes]:
        await get(transport, server.url)  # leaves a connection and a thread
        child = os.fork()
        if child == 0:
            code = 1
            try:
                asyncio.events._set_running_loop(None)
                code = (
                    0
                    if asyncio.new_event_loop().run_until_complete(get(transport, server.url)) == BODY
                    else 2
                )
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        return os.waitstatus_to_exitcode(status), await get(transport, server.url)

    with wire(whole) as server:
        assert of_transport(forked) == (0, BODY)

    assert [heard.connection for heard in server.heard] == [1, 2, 1]


# Proxies


@contextmanager
def tunnelling(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Run a proxy that answers CONNECT and forwards bytes. Yield its address and the heads that it heard."""
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def forward(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            heard.append(connection.recv(65536))
            host, _, port = heard[-1].split()[1].decode().rpartition(":")
            with socket.create_connection((host, int(port))) as target:
                connection.sendall(answer)
                back = threading.Thread(target=forward, args=(target, connection))
                back.start()
                forward(connection, target)
                back.join()

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", heard
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()


async def get_by(transport: Transport, url: str, proxy: str) -> bytes:
    async with await transport.ask(Request(method="GET", url=f"{url}/key", headers={}), proxy=proxy) as reply:
        return await reply.read()


def test_a_tunnel_carries_tls_and_keeps_the_proxys_login_from_the_server(tmp_path: Path) -> None:
    opened = b"HTTP/1.1 200 OK\r\nVia: us\r\n\r\n"
    with wire(whole, tls=served(certificate(tmp_path))) as server, tunnelling(opened) as (place, heard):
        assert (
            of_transport(lambda transport: get_by(transport, server.url, f"http://user:HUSH@{place}")) == BODY
        )

    assert heard[0].startswith(f"CONNECT {server.url.removeprefix('https://')} HTTP/1.1\r\n".encode())
    assert base64.b64encode(b"user:HUSH") in heard[0]
    assert "proxy-authorization" not in server.heard[0].headers


@pytest.mark.parametrize(
    ("status", "surplus", "why"),
    [(407, b"", Cause.PROXY_REFUSES), (502, b"", Cause.NO_PROXY), (200, b"x", Cause.NO_PROXY)],
)
def test_a_proxy_that_opens_no_tunnel_is_an_error_before_the_request(
    status: int, surplus: bytes, why: Cause, tmp_path: Path
) -> None:
    refusal = b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status + surplus
    with wire(whole, tls=served(certificate(tmp_path))) as server, tunnelling(refusal) as (place, _):
        assert why_of(lambda transport: get_by(transport, server.url, f"http://{place}")) is why
    assert server.heard == []


def test_a_login_is_never_sent_to_a_proxy_without_its_tls() -> None:
    with wire(whole) as proxy:
        place = proxy.url.removeprefix("http://")
        with pytest.raises(ExchangeError) as caught:
            of_transport(
                lambda transport: get_by(transport, "http://store.invalid", f"https://user:HUSH@{place}")
            )
    assert caught.value.why is Cause.PROXY_TLS
    assert "HUSH" not in str(caught.value)
    assert proxy.connections == 0
