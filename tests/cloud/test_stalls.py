"""Tests of stalls: every client gives up a connection on which no byte moves, at any moment of a request.

The server is a socket that takes or sends as much as a test says and then nothing, with the connection open.
"""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pytest
from campaign import few
from cloud.calls import Call, Client, create, delete, get, names, put, reading
from cloud.clients import EACH_CLIENT
from offload_cloud import slow

from offload import Body, Denied, ObjectStore, OutcomeUnknown, Span, TryAgain
from offload.ground.errors import OffloadError

STALL_SECONDS: Final = 0.2
LARGE: Final = bytes(16 * 2**20)
"""More bytes than the buffers of the sockets hold."""

HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nContent-Type: application/octet-stream\r\n"
    b'ETag: "e"\r\nx-amz-request-id: r\r\nx-ms-request-id: r\r\nx-ms-version: 2026-02-06\r\n'
    b"x-ms-blob-type: BlockBlob\r\nLast-Modified: Sat, 21 Nov 2026 19:51:58 GMT\r\n\r\n"
)


@contextmanager
def stalling(
    reply: bytes, *, reads: bool = True, drips: bool = False
) -> Iterator[tuple[str, list[socket.socket]]]:
    """Run a server that sends `reply` after a request's head, and then stalls. With `reads` it reads bodies.

    With `drips` it does not stall: it sends byte after byte. Yields its URL and its connections.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def hold(connection: socket.socket) -> None:
        with suppress(OSError):
            heard = b""
            while b"\r\n\r\n" not in heard:
                heard += connection.recv(65536) or b"\r\n\r\n"
            connection.sendall(reply)
            while drips:
                time.sleep(STALL_SECONDS / 3)
                connection.sendall(b"x")
            while reads and connection.recv(65536):
                pass

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                held.append(connection)
                threading.Thread(target=hold, args=(connection,), daemon=True).start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", held
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for connection in held:
            connection.close()


async def put_large(store: ObjectStore) -> None:
    await store.put("a/key", Body.of(LARGE))


async def create_large(store: ObjectStore) -> None:
    await store.create("a/key", LARGE[: 8 * 2**20])


MUTATIONS: Final = (put, put_large, create, create_large, delete)
READS: Final = (get, names)


def error_of(client: Client, url: str, call: Call) -> OffloadError:
    return client.error_of(url, call, read_timeout_seconds=STALL_SECONDS)


@few("calls of each client on a server that stalls; make test has a fifth of them", 5)
@pytest.mark.parametrize("call", [*MUTATIONS, *READS])
@EACH_CLIENT
def test_a_request_that_is_never_answered_ends(client: Client, call: Call) -> None:
    """If the request is a mutation, nobody then knows if it was applied."""
    with stalling(b"") as (url, connections):
        error = error_of(client, url, call)
        while not connections:  # the server's thread may be late
            time.sleep(0.001)

    assert len(connections) == 1  # the client does not send it again
    assert type(error) is (TryAgain if call in READS else OutcomeUnknown)
    assert "`read_timeout_seconds`" in str(error)


@pytest.mark.parametrize("call", [put_large, create_large])
@EACH_CLIENT
def test_a_body_that_nobody_reads_ends(client: Client, call: Call) -> None:
    with stalling(b"", reads=False) as (url, _):
        assert type(error_of(client, url, call)) is OutcomeUnknown


@EACH_CLIENT
def test_an_answer_before_the_end_of_a_body_leaves_no_connection_open(client: Client) -> None:
    """The server refuses after the head, and reads no more."""
    refusal = HEAD.replace(b"200 OK", b"403 Forbidden").replace(b"Length: 1000", b"Length: 0")
    with stalling(refusal, reads=False) as (url, _):
        assert type(client.error_of(url, create_large, read_timeout_seconds=60)) is Denied
        gc.collect()  # a transport that is still open gives a ResourceWarning, which fails the test


@pytest.mark.parametrize("call", READS)
@EACH_CLIENT
def test_a_reply_that_stops_in_the_middle_of_its_body_ends(client: Client, call: Call) -> None:
    with stalling(HEAD + b"some of it") as (url, _):
        assert type(error_of(client, url, call)) is TryAgain


@few("calls of each client on a server that stalls; make test has a fifth of them", 5)
@pytest.mark.parametrize("call", [put, create, delete, get, reading(Span(0, 10)), names])
@EACH_CLIENT
def test_a_server_that_sends_one_byte_at_a_time_is_given_up(
    client: Client, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte moves before each stall would end. The head of the reply comes slowly, then its body."""
    monkeypatch.setattr(slow, "STALLS_MAX", 2)
    for reply in (HEAD, HEAD[:-2] + b"X: "):
        with stalling(reply, drips=True) as (url, _):
            error = error_of(client, url, call)
        assert type(error) is (OutcomeUnknown if call in MUTATIONS else TryAgain)
