"""One HTTP/1.1 connection of blocking sockets. Large bodies move between the socket and memory of ours.

A `Connection` makes one exchange after another: `connect` once, then for each request `send`, and then
`readinto` or `read` until the body has ended. All of them block, so threads call them (`transport`). `cut`
and `close` may be called from any thread. Invariants:

- A request is sent once, and no redirect is followed.
- An error says if the request was sent (`exchange_errors`). Every failure before the first byte of a request
  is an error of connecting.
- The body of a request is sent from the memory of the caller, and nothing is copied. The body of a reply is
  received into the memory of the caller, except for the bytes that came together with the headers.
- Exactly the body is delivered (`replies`). A reply that ends early, has no length, or is compressed is an
  error.
- A connection is used again only if its last exchange ended exactly, and the server sent nothing since.
"""

from __future__ import annotations

import base64
import io
import os
import re
import select
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote, urlsplit

from offload_cloud.exchange_errors import Cause, ExchangeError
from offload_cloud.replies import BadReply, Reply, poll

__all__ = ["Connection", "Request", "Route", "TimeLimits"]


UNSIZED_BYTES_MAX: Final = 16 * 2**20
"""The most bytes of a body that has no length in advance: a chunked one. As large as a reader's window."""

PIECE_SIZE_BYTES: Final = 64 * 2**10
"""How much of such a body is received at once."""

FAILURES: Final = (OSError, BadReply, ValueError, MemoryError)

_SENDABLE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]+")
"""A line of a request's head. A line end in a header would begin another header."""

PLAIN_CODINGS: Final = {"", "identity", "aws-chunked"}
"""Values of `Content-Encoding` of a body that is the object's bytes. S3 keeps the last one by mistake."""

STORED_CODING: Final = "x-goog-stored-content-encoding"
"""GCS names in it the coding in which an object is stored. A body in that coding is the object's bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Time limits in seconds."""

    connect_seconds: float
    stall_seconds: float
    """How long no byte may move, in either direction."""


@dataclass(frozen=True, slots=True)
class Route:
    """The server of a URL, and the proxy on the way there. A connection serves every equal route."""

    scheme: str
    host: str
    port: int
    proxy: str | None = field(default=None, repr=False)
    """The proxy's URL, which may hold a login."""

    @classmethod
    def of(cls, url: str, proxy: str | None) -> Route:
        """Return the route to the server of `url`."""
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return cls(parts.scheme, parts.hostname or "", port, proxy)

    @property
    def place(self) -> str:
        """The server, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_usual = self.port == (443 if self.scheme == "https" else 80)
        return f"{self.scheme}://{host}" + ("" if is_usual else f":{self.port}")

    @property
    def is_forwarded(self) -> bool:
        """True if a proxy reads each request, and forwards it: without TLS there is no tunnel."""
        return self.proxy is not None and self.scheme == "http"

    def proxy_login(self) -> dict[str, str]:
        """Return the header that logs in at the proxy, if its URL holds a login."""
        parts = urlsplit(self.proxy or "")
        if parts.username is None:
            return {}
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that is signed already. `body` is sent as it is, window by window."""

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: Sequence[bytes | memoryview] = field(default=(), repr=False)

    @property
    def size_bytes(self) -> int:
        """The size of the body."""
        return sum(map(len, self.body))


class Connection:
    """One connection, and the exchange that is under way on it."""

    def __init__(self, route: Route, limits: TimeLimits, context: ssl.SSLContext | None) -> None:
        """Make an object that is not connected. `context` is for TLS, and needed if the route has TLS."""
        self.route: Final = route
        self.process: Final = os.getpid()
        """The process whose connection it is. A forked child has only a copy of its socket."""

        self._limits, self._context = limits, context
        self._socket: socket.socket | None = None
        self._reply: Reply | None = None
        self._is_cut = self._is_early = False

    def connect(self) -> None:
        """Connect, through the proxy if there is one, and shake hands. No request was sent if it fails."""
        self._socket = self._reached()
        try:
            if self.route.proxy is not None and not self.route.is_forwarded:
                self._tunnel(self._socket)
            if self.route.scheme == "https":
                self._socket = self._shaken(self._socket)
            # Only now: until here a step takes as long as connecting may, which is shorter.
            self._socket.settimeout(self._limits.stall_seconds)
        except BaseException:
            self.close()
            raise
        if self._is_cut:  # while it connected, and there was nothing to cut
            self.close()
            raise ExchangeError(Cause.CUT, self.route.place)

    def is_usable(self) -> bool:
        """Return True if another request may be sent: no exchange is open, and the server is silent."""
        if self._socket is None or self._reply is not None:
            return False
        # Bytes that nobody asked for, or the end: a request would be lost, or get the reply to another one.
        return not poll(self._socket, select.POLLIN, 0.0)

    @property
    def holds_body(self) -> bool:
        """True if reading the rest of the body waits for nothing."""
        return self._reply is not None and self._reply.holds_body

    def send(self, request: Request) -> Reply:
        """Send a request, wait for the head of its reply, and return that. The body is still to be read.

        A small body is waited for too.
        """
        assert self._socket is not None
        self._is_early = False
        self._reply = reply = Reply(self._socket, has_body=request.method != "HEAD")
        # Set before the first byte: from here on the connection is busy until `finish`, whatever happens.
        with self._failing():
            self._socket.sendall(_head_of(request, self.route))
            self._send_body(self._socket, request.body, reply)
            reply.receive_head()
            reply.hold_small_body()
        return reply

    def check_body(self, size_bytes_max: int | None = None) -> int | None:
        """Return the size of the reply's body, None if it is chunked. Raises for a body that cannot be it."""
        assert self._reply is not None
        size_bytes = self._reply.size_bytes_left
        if self._reply.status >= HTTPStatus.MULTIPLE_CHOICES:
            # The text of a refusal, which some servers end by hanging up. It is no object, so it may be cut.
            size_bytes_max = UNSIZED_BYTES_MAX
        # A body that ends with the connection looks whole if it was cut, so an object may not come like this.
        elif size_bytes is None and not self._reply.is_chunked:
            raise self._failed(Cause.ENDLESS)
        codings, stored = (
            {each.strip().lower() for each in self._reply.value_of(name).split(",")}
            for name in ("content-encoding", STORED_CODING)
        )
        if unwanted := codings - PLAIN_CODINGS - stored:
            raise self._failed(Cause.ENCODED, min(unwanted)[:40])
        if size_bytes is not None and size_bytes_max is not None and size_bytes > size_bytes_max:
            raise self._failed(Cause.LONG, f"{size_bytes} instead of at most {size_bytes_max} bytes")
        return size_bytes

    def readinto(self, buffer: memoryview) -> None:
        """Fill the whole buffer with the next bytes of the body. Raises if the body ends before."""
        assert self._reply is not None
        filled = 0
        with self._failing():
            while filled < len(buffer):
                count = self._reply.readinto(buffer[filled:])
                self._raise_if_cut()
                if not count:
                    raise self._failed(Cause.SHORT, f"{len(buffer) - filled} bytes are missing")
                filled += count

    def read(self) -> bytes:
        """Return the rest of the body: all of it if its size is known, else `UNSIZED_BYTES_MAX` at most."""
        assert self._reply is not None
        if self._reply.size_bytes_left is None:
            return self._read_unsized(self._reply)
        # The server names the size, so the memory for it may not be there: a failure of this exchange.
        with self._failing():
            whole = io.BytesIO(bytes(self._reply.size_bytes_left))
        with whole.getbuffer() as memory:
            self.readinto(memory)
        return whole.getvalue()  # the memory itself: nothing is copied

    def _read_unsized(self, reply: Reply) -> bytes:
        data, piece = bytearray(), memoryview(bytearray(PIECE_SIZE_BYTES))
        with self._failing():
            while count := reply.readinto(piece):
                data += piece[:count]
                if len(data) > UNSIZED_BYTES_MAX:
                    raise self._failed(Cause.LONG, f"more than {UNSIZED_BYTES_MAX} bytes")
            self._raise_if_cut()
        return bytes(data)

    def finish(self) -> None:
        """End the exchange. The connection is kept if the body has ended, and closed if it has not."""
        reply, self._reply = self._reply, None
        # Bytes behind the body would be taken for the head of the next reply. After an early answer, the rest
        # of the request was not sent, and the server would take the next one for it.
        is_over = reply is not None and reply.is_over and not reply.will_close and not reply.holds_more
        if not is_over or self._is_early:
            self.close()

    def cut(self) -> None:
        """End the exchange at once, from any thread: the thread that blocks in it gets an error."""
        self._is_cut = True
        if (connected := self._socket) is not None:
            with suppress(OSError):
                # Not `SSLSocket.shutdown`: it drops the TLS layer first, and the blocked thread could then
                # receive encrypted bytes as if they were the body.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. Idempotent. No thread may be blocked in an exchange: `cut` ends those."""
        connected, self._socket = self._socket, None
        if connected is not None:
            connected.close()

    def _reached(self) -> socket.socket:
        """Return a socket that is connected to the server, or to the proxy."""
        proxy = urlsplit(self.route.proxy or "")
        if proxy.scheme == "https":  # without TLS, the proxy's login would be readable on the way
            raise ExchangeError(Cause.PROXY_TLS, self.route.place)
        host, port = (
            (proxy.hostname, proxy.port or 80) if self.route.proxy else (self.route.host, self.route.port)
        )
        try:
            reached = socket.create_connection((host or "", port), self._limits.connect_seconds)
            # Head and body are two writes, and the second must not wait until the first is acknowledged.
            reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, UnicodeError) as exc:
            if self.route.proxy:
                raise ExchangeError(Cause.NO_PROXY, self.route.place) from exc
            if isinstance(exc, socket.gaierror | UnicodeError):
                raise ExchangeError(Cause.UNRESOLVED, self.route.place) from exc
            why = Cause.SLOW_CONNECT if isinstance(exc, TimeoutError) else Cause.UNREACHABLE
            raise ExchangeError(why, self.route.place) from exc
        return reached

    def _tunnel(self, reached: socket.socket) -> None:
        """Ask the proxy for a tunnel. No byte may follow its reply: a server is silent until TLS begins."""
        target = self.route.place.partition("://")[2]
        target = target if target.rpartition(":")[2].isdigit() else f"{target}:{self.route.port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        lines += [f"{name}: {value}" for name, value in self.route.proxy_login().items()]
        reply = Reply(reached)
        try:
            reached.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
            reply.receive_head()
        except (OSError, UnicodeError, BadReply) as exc:
            raise ExchangeError(Cause.NO_PROXY, self.route.place) from exc
        if reply.status in {403, 407}:
            # The only refusals that a person can mend. Other statuses may pass.
            raise ExchangeError(Cause.PROXY_REFUSES, self.route.place, f"HTTP {reply.status}")
        if reply.status != HTTPStatus.OK or reply.holds_more:
            raise ExchangeError(Cause.NO_PROXY, self.route.place, f"HTTP {reply.status}")

    def _shaken(self, reached: socket.socket) -> ssl.SSLSocket:
        assert self._context is not None
        try:
            return self._context.wrap_socket(reached, server_hostname=self.route.host)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError) as exc:
            # A server that hangs up in the handshake may only be stopping. Nothing was sent yet.
            raise ExchangeError(Cause.UNREACHABLE, self.route.place) from exc
        except ssl.SSLError as exc:
            raise ExchangeError(Cause.TLS, self.route.place) from exc
        except OSError as exc:
            raise ExchangeError(Cause.SLOW_CONNECT, self.route.place) from exc

    def _send_body(self, connected: socket.socket, body: Sequence[bytes | memoryview], reply: Reply) -> None:
        """Send the body until its end, or until the server answers or hangs up before that."""
        # Not `sendall`: a server that refuses a large body at once says so before it has read it, and closes.
        for window in body:
            view, sent = memoryview(window), 0
            while sent < len(view):
                if self._answers_early(connected, reply):
                    self._is_early = True
                    return
                try:
                    sent += connected.send(view[sent:])
                except (BrokenPipeError, ConnectionResetError):
                    self._is_early = True  # a server that refused may have said so before it hung up
                    return

    def _answers_early(self, connected: socket.socket, reply: Reply) -> bool:
        """Wait until the socket takes bytes; return True if the server answers before.

        With TLS, bytes need not be an answer: the server sends session tickets too. They are left unread
        until the body is sent, or the server hangs up.
        """
        # POLLIN is not asked for with TLS: unread tickets would make each poll return at once.
        is_tls = isinstance(connected, ssl.SSLSocket)
        wanted = select.POLLOUT | (0 if is_tls else select.POLLIN)
        while True:
            events = poll(connected, wanted, self._limits.stall_seconds)
            if not events:
                raise TimeoutError
            if events & select.POLLIN and reply.has_begun():
                return True
            if events & ~select.POLLIN:
                return False

    def _why_of(self, exc: BaseException) -> Cause:
        """Return the reason of an error after the first byte of a request."""
        # First: a cut makes any of the errors below, and none of them is the server's.
        if self._is_cut:
            return Cause.CUT
        if isinstance(exc, BadReply):
            return exc.why
        return Cause.STALLED if isinstance(exc, TimeoutError) else Cause.BROKEN

    def _raise_if_cut(self) -> None:
        # After a cut, the bytes that had already arrived may still be read, and so look like an end.
        if self._is_cut:
            raise self._failed(Cause.CUT)

    def _failed(self, why: Cause, detail: str = "") -> ExchangeError:
        """Close the connection, and return the error of an exchange."""
        self.close()
        return ExchangeError(why, self.route.place, detail)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Translate errors after the first byte of a request. The connection is closed then."""
        try:
            yield
        except ExchangeError:
            raise
        except FAILURES as exc:
            raise self._failed(self._why_of(exc), f"{type(exc).__name__}: {exc}") from exc
        except BaseException:
            self.close()
            raise


def _head_of(request: Request, route: Route) -> bytes:
    """Return the head of a request as it is sent. Raises `ValueError` for one that cannot be sent."""
    parts = urlsplit(request.url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {name.lower(): value for name, value in request.headers.items()}
    if route.is_forwarded:
        target = route.place + target
        headers |= {name.lower(): value for name, value in route.proxy_login().items()}
    # The host as the signer sees it: without the port that is usual for the scheme.
    headers = {"host": route.place.partition("://")[2], "accept-encoding": "identity"} | headers
    # Also of an empty body: servers refuse a PUT or POST without a length (411).
    if request.body or request.method in {"PUT", "POST"}:
        headers["content-length"] = str(request.size_bytes)
    lines = [f"{request.method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if " " in target or not all(map(_SENDABLE.fullmatch, lines)):
        raise ValueError("a control character in the head of the request")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
