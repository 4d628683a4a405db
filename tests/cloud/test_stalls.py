"""A connection on which no byte moves is given up by every client, at any moment of a request.

The server is a socket that takes or sends as much as a test says and then nothing, with the connection open.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pytest
from cloud.clients import CLIENTS, Call

from offload import Body, ObjectStore, OutcomeUnknown, TryAgain
from offload.errors import OffloadError

STALL_SECONDS: Final = 0.2
LARGE: Final = bytes(16 * 2**20)
"""More than the sockets hold."""

HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nContent-Type: application/octet-stream\r\n"
    b'ETag: "e"\r\nx-amz-request-id: r\r\nx-ms-request-id: r\r\nx-ms-version: 2026-02-06\r\n'
    b"x-ms-blob-type: BlockBlob\r\nLast-Modified: Sat, 21 Nov 2026 19:51:58 GMT\r\n\r\n"
)


@contextmanager
def stalling(reply: bytes, *, reads: bool = True) -> Iterator[str]:
    """A server that sends `reply` when it has heard a request's head, and then stalls. `reads`: bodies."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def hold(connection: socket.socket) -> None:
        with suppress(OSError):
            heard = b""
            while b"\r\n\r\n" not in heard:
                heard += connection.recv(65536) or b"\r\n\r\n"
            connection.sendall(reply)
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
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for connection in held:
            connection.close()


async def put(store: ObjectStore) -> None:
    await store.put("a/key", Body.of(b"small"))


async def put_large(store: ObjectStore) -> None:
    await store.put("a/key", Body.of(LARGE))


async def create(store: ObjectStore) -> None:
    await store.create("a/key", b"data")


async def create_large(store: ObjectStore) -> None:
    await store.create("a/key", LARGE[: 8 * 2**20])


async def get(store: ObjectStore) -> None:
    await store.get("a/key")


async def names(store: ObjectStore) -> None:
    async for _ in store.list("a/"):
        pass


async def delete(store: ObjectStore) -> None:
    await store.delete(["a/key"])


MUTATIONS: Final = (put, put_large, create, create_large, delete)
READS: Final = (get, names)


def error_of(client: str, url: str, call: Call) -> OffloadError:
    with pytest.raises(OffloadError) as caught:
        CLIENTS[client].of_store(url, call, read_timeout_seconds=STALL_SECONDS)
    return caught.value


@pytest.mark.parametrize("call", [*MUTATIONS, *READS])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_request_that_is_never_answered_ends(
    client: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a mutation nobody knows then whether it was applied."""
    monkeypatch.setattr("offload_cloud.fast.PUT_BYTES_PER_SECOND_MIN", 100 * 2**20)
    with stalling(b"") as url:
        error = error_of(client, url, call)

    assert type(error) is (TryAgain if call in READS else OutcomeUnknown)


@pytest.mark.parametrize("call", [put_large, create_large])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_body_that_nobody_reads_ends(client: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offload_cloud.fast.PUT_BYTES_PER_SECOND_MIN", 100 * 2**20)
    with stalling(b"", reads=False) as url:
        assert type(error_of(client, url, call)) is OutcomeUnknown


@pytest.mark.parametrize("call", READS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_reply_that_stops_in_the_middle_of_its_body_ends(client: str, call: Call) -> None:
    with stalling(HEAD + b"some of it") as url:
        assert type(error_of(client, url, call)) is TryAgain
