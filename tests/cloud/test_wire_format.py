"""Tests of replies byte by byte: whatever a server sends, a caller gets exactly the body or an error."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_cloud.exchange import Connection, Request, Route, TimeLimits
from offload_cloud.exchange_errors import Cause, ExchangeError
from offload_cloud.replies import HEAD_SIZE_BYTES_MAX

BODY: Final = b"0123456789" * 20
OK: Final = b"HTTP/1.1 200 OK\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n\r\n"
LIMITS: Final = TimeLimits(connect_seconds=5.0, stall_seconds=5.0)


@dataclass(frozen=True)
class Outcome:
    body: bytes
    is_usable: bool


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


@contextmanager
def connected(listener: socket.socket) -> Iterator[tuple[Connection, socket.socket]]:
    """Yield a connection, and the server's end of it."""
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    connection = Connection(Route.of(url, None), LIMITS, None)
    connection.connect()
    try:
        with listener.accept()[0] as server:
            yield connection, server
    finally:
        connection.close()


def outcome_of(listener: socket.socket, *pieces: bytes, ends: bool = True, piecewise: int = 0) -> Outcome:
    """Return what a GET gives whose reply is `pieces`. With `piecewise`, the body is taken in such pieces."""
    with connected(listener) as (connection, server):
        server.sendall(b"".join(pieces))
        if ends:
            server.shutdown(socket.SHUT_WR)
        connection.send(Request(method="GET", url="http://host/key", headers={}))
        size_bytes = connection.check_body(1000)
        if piecewise and size_bytes is not None:
            buffer = memoryview(bytearray(size_bytes))
            for start in range(0, size_bytes, piecewise):
                connection.readinto(buffer[start : start + piecewise])
            body = bytes(buffer)
        else:
            body = connection.read()
        connection.finish()
        return Outcome(body, connection.is_usable())


def chunks(body: bytes, size_bytes: int, trailer: bytes = b"") -> bytes:
    pieces = [body[start : start + size_bytes] for start in range(0, len(body), size_bytes)]
    return b"".join(b"%X;x=y\r\n%s\r\n" % (len(each), each) for each in pieces) + b"0\r\n%s\r\n" % trailer


bodies = st.binary(max_size=60)
framings = st.one_of(
    bodies.map(lambda body: (body, b"content-length:%d \r\n\r\n" % len(body), body)),
    st.tuples(bodies, st.integers(1, 20), st.sampled_from([b"", b"X: y\r\nZ: 1\r\n"])).map(
        lambda drawn: (drawn[0], CHUNKED, chunks(*drawn))
    ),
)
interims = st.lists(
    st.sampled_from([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 E\r\nLink: x\r\n\r\n"]), max_size=3
).map(b"".join)
fields = st.lists(
    st.sampled_from([b"X: y\r\n", b"x:\r\n", b"Server: a\0b\r\n", b"Content-Encoding: identity\r\n"]),
    max_size=3,
).map(b"".join)
statuses = st.sampled_from([b"200 OK", b"206 Partial Content", b"403 ", b"500"])


@given(statuses, interims, fields, framings, st.binary(max_size=3), st.integers(0), st.integers(0, 20))
def test_a_caller_gets_exactly_the_body_or_an_error(
    listener, status, interim, headers, framing, surplus, cut, piecewise
):
    """The body, if all of the reply arrives. The connection is used again if nothing else does."""
    body, length, framed = framing
    reply = interim + b"HTTP/1.1 " + status + b"\r\n" + headers + length + framed
    sent = (reply + surplus)[: cut % (2 * (len(reply) + len(surplus)))]
    if len(sent) < len(reply):
        with pytest.raises(ExchangeError):
            outcome_of(listener, sent, piecewise=piecewise)
    else:
        found = outcome_of(listener, sent, ends=False, piecewise=piecewise)
        assert found == Outcome(body, is_usable=sent == reply)


@given(
    st.sampled_from([b"Content-Length: 60\r\n\r\n" + BODY[:60], CHUNKED + chunks(BODY[:60], 25)]), st.data()
)
def test_damaged_replies_give_bytes_or_an_error_of_the_exchange(listener, rest, data):
    reply = bytearray(OK + rest)
    for at in data.draw(st.sets(st.integers(0, len(reply) - 1), min_size=1, max_size=3)):
        reply[at] = data.draw(st.integers(0, 255))
    try:
        found = outcome_of(listener, bytes(reply))
    except ExchangeError:
        return
    assert len(found.body) <= len(reply)


AMBIGUOUS: Final = {
    "two lengths": b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",
    "two lengths in one header": b"Content-Length: 3, 5\r\n\r\nabcde",
    "a length and chunks": b"Content-Length: 3\r\n" + CHUNKED + chunks(b"abc", 3),
    "two transfer codings": b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunks(b"abc", 3),
    "an unknown coding": b"Transfer-Encoding: identity\r\n\r\nabc",
    "a negative length": b"Content-Length: -1\r\n\r\nabc",
    "a sign": b"Content-Length: +3\r\n\r\nabc",
    "an underscore": b"Content-Length: 1_0\r\n\r\n0123456789",
    "a length of 2**63": b"Content-Length: %d\r\n\r\nabc" % 2**63,
    "a length of 4,000 digits": b"Content-Length: 1%s\r\n\r\nabc" % (b"0" * 4000),
    "a line that is no header": b"Content-Length: 3\r\nno header\r\nContent-Encoding: gzip\r\n\r\nabc",
    "a space before the colon": b"Content-Length : 3\r\n\r\nabc",
    "a folded header": b"X: a\r\n b\r\nContent-Length: 3\r\n\r\nabc",
    "a line of a space": b"Content-Length: 3\r\n \r\nabc",
    "a bare CR": b"X: a\rContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a chunk of -1 bytes": CHUNKED + b"-1\r\n" + BODY,
    "a chunk of 0x3 bytes": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "a chunk of 2**64 bytes": CHUNKED + b"%x\r\nabc" % 2**64,
    "a chunk that ends elsewhere": CHUNKED + b"3\r\nabcXX\r\n0\r\n\r\n",
    "a long line of a chunk": CHUNKED + b"3;" + b"x" * 5000 + b"\r\nabc\r\n0\r\n\r\n",
    "a long trailer": CHUNKED + b"0\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
}


@pytest.mark.parametrize("reply", AMBIGUOUS.values(), ids=list(AMBIGUOUS))
def test_a_reply_that_two_readers_could_read_in_two_ways_is_an_error(listener, reply) -> None:
    with pytest.raises(ExchangeError) as caught:
        outcome_of(listener, OK + reply)
    assert caught.value.why is Cause.BROKEN
    assert str(caught.value).isprintable()


def test_every_coding_of_a_body_counts(listener) -> None:
    codings = (
        b"Content-Encoding: identity\r\nContent-Encoding: \x1b[31m\0gzip\r\nContent-Length: 3\r\n\r\nabc"
    )
    with pytest.raises(ExchangeError) as caught:
        outcome_of(listener, OK + codings + b"Content-Length: 3\r\n\r\nabc")
    assert caught.value.why is Cause.ENCODED
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.0 200 OK\r\n", OK + b"Connection: x, Close\r\n"],
    ids=["HTTP/1.0", "Connection: close"],
)
def test_a_connection_that_the_server_will_close_is_not_used_again(listener, head) -> None:
    found = outcome_of(listener, head + b"Content-Length: 3\r\n\r\nabc", ends=False)
    assert found == Outcome(b"abc", is_usable=False)


def test_a_reply_without_content_has_no_body_whatever_its_head_says(listener) -> None:
    found = outcome_of(listener, b"HTTP/1.1 204 No\r\nContent-Length: 3\r\n\r\nabc", ends=False)
    assert found == Outcome(b"", is_usable=False)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" * (HEAD_SIZE_BYTES_MAX // 20), Cause.BROKEN),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + OK + b"Content-Length: 3\r\n\r\nabc", Cause.BROKEN),
        (OK + b"X: " + b"x" * HEAD_SIZE_BYTES_MAX, Cause.BROKEN),
    ],
    ids=["a flood of interim replies", "another protocol", "an endless header"],
)
def test_a_head_is_bounded(listener, reply, why) -> None:
    with pytest.raises(ExchangeError) as caught:
        outcome_of(listener, reply)
    assert caught.value.why is why


def test_an_interim_reply_does_not_end_the_body_of_a_request(listener) -> None:
    """Some proxies send 100 (Continue) to every request. A final reply alone means: the rest is unwanted."""
    request = Request(method="PUT", url="http://host/key", headers={}, body=[BODY, BODY])
    received = bytearray()

    def serve() -> None:
        while not received.endswith(2 * BODY) and (data := server.recv(65536)):
            received.extend(data)
        server.sendall(OK + b"Content-Length: 0\r\n\r\n")

    with connected(listener) as (connection, server):
        server.sendall(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n")
        serving = threading.Thread(target=serve)
        serving.start()
        status = connection.send(request).status
        serving.join()

    assert status == 200


def test_a_refusal_behind_an_interim_reply_ends_the_body_of_a_request(listener) -> None:
    """The server reads nothing, so a client that went on with the body would stall."""
    request = Request(method="PUT", url="http://host/key", headers={}, body=[bytes(32 * 2**20)])
    with connected(listener) as (connection, server):
        server.sendall(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
        assert connection.send(request).status == 403
        connection.finish()
        assert not connection.is_usable()


def test_an_endless_interim_reply_ends_the_body_of_a_request(listener) -> None:
    request = Request(method="PUT", url="http://host/key", headers={}, body=[bytes(32 * 2**20)])
    with connected(listener) as (connection, server):
        server.sendall(b"HTTP/1.1 100 Continue\r\nX: " + b"x" * (2 * HEAD_SIZE_BYTES_MAX))
        with pytest.raises(ExchangeError) as caught:
            connection.send(request)
    assert caught.value.why is Cause.BROKEN


def test_a_connection_whose_body_is_still_to_come_is_not_used_again(listener) -> None:
    with connected(listener) as (connection, server):
        server.sendall(OK + b"Content-Length: 100000\r\n\r\n")  # a small body is waited for
        connection.send(Request(method="GET", url="http://host/key", headers={}))
        connection.finish()
        assert not connection.is_usable()


def test_a_header_with_a_line_end_is_never_sent(listener) -> None:
    request = Request(method="GET", url="http://host/key", headers={"x": "a\r\nEvil: yes"})
    with connected(listener) as (connection, server):
        with pytest.raises(ExchangeError):
            connection.send(request)
        assert server.recv(1) == b""


def test_a_connection_that_was_given_up_before_it_is_made_is_closed(listener) -> None:
    connection = Connection(Route("http", *listener.getsockname()), LIMITS, None)
    connection.cut()
    with pytest.raises(ExchangeError) as caught:
        connection.connect()
    assert caught.value.why is Cause.CUT
    with listener.accept()[0] as server:
        assert server.recv(1) == b""


@pytest.mark.parametrize(("url", "line"), [("http://host", b"GET / "), ("http://host?a=b", b"GET /?a=b ")])
def test_an_address_without_a_path_asks_for_the_root(listener, url, line) -> None:
    with connected(listener) as (connection, server):
        server.sendall(OK + b"Content-Length: 0\r\n\r\n")
        connection.send(Request(method="GET", url=url, headers={}))
        head = server.recv(1000)
    assert head.startswith(line)
    assert b"content-length" not in head


def test_an_address_with_a_space_is_never_sent(listener) -> None:
    with connected(listener) as (connection, server):
        with pytest.raises(ExchangeError):
            connection.send(Request(method="GET", url="http://host/a HTTP/1.1", headers={}))
        assert server.recv(1) == b""
