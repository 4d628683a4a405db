"""A server that records every request as it came over the wire, and answers as a test says."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

ANSWER_SECONDS_MAX: Final = 60.0
"""The time after which even a silent server hangs up, so that a client without a timeout ends too."""


@dataclass(frozen=True)
class Heard:
    """A request as it arrived. `connection` counts connections, so that reuse is visible."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True)


@dataclass(frozen=True)
class Answer:
    """A reply. `cut`: only so many bytes of the body are sent, and the connection is dropped.

    `drop`: there is no reply at all; the connection is dropped once the request has been read.
    `raw`: these bytes are sent instead of a reply, and the connection is dropped.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    drop: bool = False
    raw: bytes | None = None


class Wire:
    """The requests so far, and the function that answers."""

    def __init__(self, answer: Callable[[Heard], Answer]) -> None:
        self.answer = answer
        self.heard: list[Heard] = []
        self.url = ""
        self.connections = 0

    def of(self, method: str) -> list[Heard]:
        return [heard for heard in self.heard if heard.method == method]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wire: Wire

    def setup(self) -> None:
        super().setup()
        self.wire.connections += 1
        self.number = self.wire.connections

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        heard = Heard(self.command, self.path, headers, body, self.number)
        self.wire.heard.append(heard)
        answer = self.wire.answer(heard)
        if answer.drop or answer.raw is not None:
            self.wfile.write(answer.raw or b"")
            self._hang_up()
            return
        self.send_response_only(answer.status)
        length = {} if "Transfer-Encoding" in answer.headers else {"Content-Length": str(len(answer.body))}
        for name, value in (length | answer.headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: answer.cut])
        # A HEAD has no body to cut. Hanging up would race with the next request on this connection.
        if answer.cut is not None and self.command != "HEAD":
            self._hang_up()

    def _hang_up(self) -> None:
        self.wfile.flush()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64  # 5 by default: a busy machine drops connections of twenty clients

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: some tests expect a client that hangs up."""


@contextmanager
def silent() -> Iterator[Wire]:
    """Run a server that reads every request and answers none, so a call that returns waits for no answer."""
    over = threading.Event()

    def held(heard: Heard) -> Answer:
        over.wait(ANSWER_SECONDS_MAX)
        return Answer(drop=True)

    with wire(held) as server:
        try:
            yield server
        finally:
            over.set()


@contextmanager
def wire(answer: Callable[[Heard], Answer], *, tls: ssl.SSLContext | None = None) -> Iterator[Wire]:
    """Run a server on loopback with this function for answers, over TLS if a context is given."""
    heard = Wire(answer)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"wire": heard}))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    heard.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
