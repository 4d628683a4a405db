"""Tests of the TLS side of the proxy, with the TLS of the standard library as the client."""

from __future__ import annotations

import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from certificates import certificate
from servers.proxy import Fault, HandshakeFault, Plan, Proxy, Rule, proxied
from servers.proxy_tls import Tls
from wire import Answer, Heard, wire

HANGS_SECONDS = 60
BODY = bytes(range(256)) * 400
"""Seven records of TLS, and some of the proxy's own windows."""


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    made = certificate(tmp_path)
    return Tls(made, trusted=made.path)


@contextmanager
def connected(proxy: Proxy, *, ragged: bool = True) -> Iterator[ssl.SSLSocket]:
    """Connect with a client that trusts the proxy. Unless `ragged`, a missing close_notify is an error."""
    assert proxy.tls is not None
    context = ssl.create_default_context(cafile=proxy.tls.trusted)
    address = "127.0.0.1", int(proxy.url.rpartition(":")[2])
    with (
        socket.create_connection(address, HANGS_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=ragged) as secured,
    ):
        yield secured


def told(secured: ssl.SSLSocket) -> bytes:
    """Return all that arrives until the end."""
    return b"".join(iter(lambda: secured.recv(65536), b""))


def echo(heard: Heard) -> Answer:
    """Answer with the body of the request, and as it asks."""
    return Answer(200, heard.body, {"Connection": heard.headers.get("connection", "keep-alive")})


def put(body: bytes, connection: str) -> bytes:
    head = f"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: {connection}\r\n\r\n"
    return head.encode() + body


def test_bodies_pass_in_both_directions_and_a_connection_ends_by_close_notify(tls: Tls) -> None:
    with (
        wire(echo) as server,
        proxied(server.url, tls=tls) as proxy,
        connected(proxy, ragged=False) as secured,
    ):
        sending = threading.Thread(target=secured.sendall, args=(put(BODY, "close"),))
        sending.start()
        assert told(secured).endswith(b"\r\n\r\n" + BODY)
        sending.join()

    assert server.heard[0].body == BODY


def test_a_hang_up_comes_behind_the_whole_reply_without_close_notify(tls: Tls) -> None:
    plan = Plan(rules=[Rule(Fault.HANG_UP)])
    with wire(echo) as server, proxied(server.url, plan, tls) as proxy:
        with connected(proxy) as secured:
            secured.sendall(put(b"whole", "keep-alive"))
            assert told(secured).endswith(b"\r\n\r\nwhole")
        with connected(proxy, ragged=False) as secured:
            secured.sendall(put(b"whole", "keep-alive"))
            with pytest.raises(ssl.SSLEOFError):
                told(secured)

    assert proxy.counts["hang_up"] == 2


def test_a_cut_record_keeps_its_bytes_from_the_client(tls: Tls) -> None:
    plan = Plan(rules=[Rule(Fault.CUT_RECORD)])
    with (
        wire(lambda heard: Answer(200, BODY)) as server,
        proxied(server.url, plan, tls) as proxy,
        connected(proxy) as secured,
    ):
        secured.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
        body = told(secured).partition(b"\r\n\r\n")[2]

    assert proxy.counts["cut_record"] == 1
    assert body == BODY[: len(BODY) // 16384 * 16384]


def test_a_cut_handshake_has_half_a_message_and_the_next_one_succeeds(tls: Tls) -> None:
    plan = Plan(handshakes=deque([HandshakeFault.CUT]))
    with wire(echo) as server, proxied(server.url, plan, tls) as proxy:
        with pytest.raises(ssl.SSLEOFError), connected(proxy):
            pass
        with connected(proxy) as secured:
            secured.sendall(put(b"x", "close"))
            assert told(secured).endswith(b"x")

    assert proxy.counts["handshake_cut"] == 1


def test_a_client_that_refuses_the_certificate_is_counted(tls: Tls, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with wire(echo) as server, proxied(server.url, tls=tls) as proxy:
        tls.present(certificate(tmp_path / "other"))
        with pytest.raises(ssl.SSLCertVerificationError), connected(proxy):
            pass

    assert server.heard == []
    assert (proxy.counts["connections"], proxy.counts["requests"]) == (1, 0)
