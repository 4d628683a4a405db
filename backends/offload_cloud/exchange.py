"""One HTTP/1.1 connection of blocking sockets. Large bodies move between the socket and memory of ours.

A `Connection` makes one exchange after another: `connect` once, then for each request `send`, and then
`readinto` or `read` until the body has ended. All of them block, so threads call them (`direct`). `cut` and
`close` may be called from any thread. Invariants:

- A request is sent once, and no redirect is followed.
- An error says if the request was sent (`exchange_errors`). Every failure before the first byte of a request
  is an error of connecting.
- The body of a request is sent from the memory of the caller, and nothing is copied. The body of a reply is
  received into the memory of the caller, except for the bytes that came together with the headers.
- Exactly the body is delivered. A reply that ends early, has no length, or is compressed is an error.
- A connection is used again only if its last exchange ended exactly, and the server sent nothing since.

`http.client` writes the request's head, and parses the reply's: at most 100 headers of at most 64 KiB each.
Sockets, TLS and the tunnel through a proxy are made here, because `http.client` reports a proxy's refusal by
a text, and cannot say if a request was sent.
"""

from __future__ import annotations

import base64
import http.client
import io
import select
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from offload_cloud.exchange_errors import Cause, ExchangeError

__all__ = ["Connection", "Request", "Route", "TimeLimits"]


UNSIZED_BYTES_MAX: Final = 16 * 2**20
"""The most bytes of a body that has no length in advance: a chunked one. As large as a reader's window."""

LOT_SIZE_BYTES: Final = 2**20
"""A thread that waits for a large body is woken when this much has arrived, and not for every packet. That
took 0.44 instead of 0.50 CPU seconds per GiB, and the server (MinIO) 0.55 instead of 0.66."""

LARGE_SIZE_BYTES: Final = 64 * 2**10
WAKES_IN_LOTS: Final = sys.platform == "linux"  # it makes the socket's buffer large enough; others may not

FAILURES: Final = (OSError, http.client.HTTPException, ValueError, MemoryError)
REASONS: Final = (
    (TimeoutError, Cause.STALLED),
    (http.client.BadStatusLine, Cause.CLOSED),  # also of a server that closed before it answered
    (http.client.IncompleteRead, Cause.SHORT),
    (BaseException, Cause.BROKEN),
)
"""The reasons of errors after the first byte of a request. The first line that fits counts."""

PLAIN_CODINGS: Final = {"", "identity", "aws-chunked"}
"""Values of `Content-Encoding` of a body that is the object's bytes. S3 keeps the last one by mistake."""

STORED_CODING: Final = "X-Goog-Stored-Content-Encoding"
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
        self._limits, self._context = limits, context
        self._socket: socket.socket | None = None
        self._http = http.client.HTTPConnection(route.host, route.port)
        self._http.response_class = _Reply
        self._reply: _Reply | None = None
        self._is_cut = self._is_early = False

    def connect(self) -> None:
        """Connect, through the proxy if there is one, and shake hands. No request was sent if it fails."""
        self._socket = self._reached()
        try:
            if self.route.proxy is not None and not self.route.is_forwarded:
                self._tunnel(self._socket)
            if self.route.scheme == "https":
                self._socket = self._shaken(self._socket)
            self._socket.settimeout(self._limits.stall_seconds)
        except BaseException:
            self.close()
            raise
        self._http.sock = self._socket
        if self._is_cut:  # while it connected, and there was nothing to cut
            self.close()
            raise ExchangeError(Cause.CUT, self.route.place)

    def is_usable(self) -> bool:
        """Return True if another request may be sent: no exchange is open, and the server is silent."""
        if self._socket is None or self._is_cut or self._reply is not None:
            return False
        return not _poll(self._socket, select.POLLIN, 0.0)

    def send(self, request: Request) -> http.client.HTTPResponse:
        """Send a request, wait for the head of its reply, and return that. The body is still to be read."""
        self._is_early = False
        with self._failing():
            self._send_head(request)
            self._send_body(request.body)
            reply = self._http.getresponse()
        assert isinstance(reply, _Reply)
        self._reply = reply
        return reply

    def check_body(self, size_bytes_max: int | None = None) -> int | None:
        """Return the size of the reply's body, None if it is chunked. Raises for a body that cannot be it."""
        assert self._reply is not None
        size_bytes = self._reply.length
        if self._reply.status >= http.HTTPStatus.MULTIPLE_CHOICES:
            # The text of a refusal, which some servers end by hanging up. It is no object, so it may be cut.
            size_bytes_max = UNSIZED_BYTES_MAX
        elif size_bytes is None and not self._reply.chunked:
            raise self._failed(Cause.ENDLESS)
        codings = (self._reply.headers.get(name) or "" for name in ("Content-Encoding", STORED_CODING))
        coding, stored = (each.strip().lower() for each in codings)
        if coding not in {*PLAIN_CODINGS, stored}:
            raise self._failed(Cause.ENCODED, coding[:40])
        if size_bytes is not None and size_bytes_max is not None and size_bytes > size_bytes_max:
            raise self._failed(Cause.LONG, f"{size_bytes} instead of at most {size_bytes_max} bytes")
        return size_bytes

    def readinto(self, buffer: memoryview) -> None:
        """Fill the whole buffer with the next bytes of the body. Raises if the body ends before."""
        filled = 0
        with self._failing():
            while filled < len(buffer):
                count = self._reply.readinto(buffer[filled:]) if self._reply is not None else 0
                self._raise_if_cut()
                if not count:
                    raise self._failed(Cause.SHORT, f"{len(buffer) - filled} bytes are missing")
                filled += count

    def read(self) -> bytes:
        """Return the rest of the body: all of it if its size is known, else `UNSIZED_BYTES_MAX` at most."""
        assert self._reply is not None
        with self._failing():
            # Read at once, the bytes go from the socket to the result without a copy.
            size_bytes = self._reply.length
            data = self._reply.read(UNSIZED_BYTES_MAX + 1 if size_bytes is None else size_bytes)
            self._raise_if_cut()
            if size_bytes is None and len(data) > UNSIZED_BYTES_MAX:
                raise self._failed(Cause.LONG, f"more than {UNSIZED_BYTES_MAX} bytes")
            if size_bytes is not None and len(data) < size_bytes:
                raise self._failed(Cause.SHORT, f"{size_bytes - len(data)} bytes are missing")
        return data

    def finish(self) -> None:
        """End the exchange. The connection is kept if the body has ended, and closed if it has not."""
        reply, self._reply = self._reply, None
        is_over = (
            reply is not None and reply.isclosed() and not reply.will_close and not reply.reader.has_more
        )
        if not is_over or self._is_early or self._is_cut:
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
        if self._reply is not None:
            with suppress(OSError):
                self._reply.close()
        self._http.close()
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
        """Ask the proxy for a tunnel. The reply is read byte by byte: TLS begins behind its last one."""
        target = self.route.place.partition("://")[2]
        target = target if target.rpartition(":")[2].isdigit() else f"{target}:{self.route.port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        lines += [f"{name}: {value}" for name, value in self.route.proxy_login().items()]
        try:
            reached.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
            with reached.makefile("rb", buffering=0) as reader:
                words = reader.readline(1000).split(None, 2)
                http.client.parse_headers(reader)
            status = int(words[1])
        except (OSError, UnicodeError, ValueError, IndexError, http.client.HTTPException) as exc:
            raise ExchangeError(Cause.NO_PROXY, self.route.place) from exc
        if status in {403, 407}:
            raise ExchangeError(Cause.PROXY_REFUSES, self.route.place, f"HTTP {status}")
        if status != http.HTTPStatus.OK:
            raise ExchangeError(Cause.NO_PROXY, self.route.place, f"HTTP {status}")

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

    def _send_head(self, request: Request) -> None:
        parts = urlsplit(request.url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        headers = {name.lower(): value for name, value in request.headers.items()}
        if self.route.is_forwarded:
            target = self.route.place + target
            headers |= {name.lower(): value for name, value in self.route.proxy_login().items()}
        # The host as the signer sees it: without the port that is usual for the scheme.
        headers = {"host": self.route.place.partition("://")[2], "accept-encoding": "identity"} | headers
        if request.method != "GET":
            headers["content-length"] = str(request.size_bytes)
        self._http.putrequest(request.method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            self._http.putheader(name, value)
        self._http.endheaders()

    def _send_body(self, body: Sequence[bytes | memoryview]) -> None:
        """Send the body until its end, or until the server answers or hangs up before that."""
        assert self._socket is not None
        for window in body:
            view, sent = memoryview(window), 0
            while sent < len(view):
                if self._answers_early(self._socket):
                    self._is_early = True
                    return
                try:
                    sent += self._socket.send(view[sent:])
                except (BrokenPipeError, ConnectionResetError):
                    self._is_early = True  # a server that refused may have said so before it hung up
                    return

    def _answers_early(self, connected: socket.socket) -> bool:
        """Wait until the socket takes bytes; return True if the server sent some instead.

        With TLS, bytes need not be an answer: the server sends session tickets too. They are left unread
        until the body is sent, or the server hangs up.
        """
        is_tls = isinstance(connected, ssl.SSLSocket)
        events = _poll(
            connected, select.POLLOUT | (0 if is_tls else select.POLLIN), self._limits.stall_seconds
        )
        if not events:
            raise TimeoutError
        return bool(events & select.POLLIN)

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
            why = Cause.CUT if self._is_cut else next(why for kind, why in REASONS if isinstance(exc, kind))
            raise self._failed(why, f"{type(exc).__name__}: {exc}") from exc
        except BaseException:
            self.close()
            raise


class _Arriving(io.RawIOBase):
    """The bytes that arrive on a socket. When it is over, there are none, and nothing waits for them."""

    def __init__(self, connected: socket.socket, beneath: io.RawIOBase) -> None:
        self._socket, self._beneath = connected, beneath
        self._wakes_in_lots = WAKES_IN_LOTS and not isinstance(connected, ssl.SSLSocket)
        self.is_over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Receive at least one byte; None if it is over."""
        if self.is_over:
            return None
        if not self._wakes_in_lots or len(buffer) < LARGE_SIZE_BYTES:
            return self._socket.recv_into(buffer)
        # `BufferedReader` asks for so much only if the body has it, so the rest of the lot will come.
        self._wake_at(min(len(buffer), LOT_SIZE_BYTES))
        try:
            return self._socket.recv_into(buffer)
        except TimeoutError:
            self._wake_at(1)
            if not _poll(self._socket, select.POLLIN, 0.0):
                raise
            return self._socket.recv_into(buffer)  # part of a lot: the server is slow, and not silent
        finally:
            self._wake_at(1)

    def _wake_at(self, size_bytes: int) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)

    def close(self) -> None:
        self._beneath.close()
        super().close()


class _Reader(io.BufferedReader):
    """The buffer in front of a socket. When it is closed, `has_more` says if bytes were left in it.

    Such bytes are no part of the reply, and `http.client` would drop them in silence.
    """

    has_more = False

    def __init__(self, arriving: _Arriving) -> None:
        super().__init__(arriving)
        self._arriving = arriving

    def close(self) -> None:
        if not self.closed:
            self._arriving.is_over = True
            self.has_more = bool(self.peek(1))
        super().close()


class _Reply(http.client.HTTPResponse):
    """A reply that knows if the server sent more than its body."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = self.reader = _Reader(_Arriving(sock, self.fp.detach()))


def _poll(connected: socket.socket, events: int, seconds: float) -> int:
    """Wait for events of a socket. Return those that came, 0 if none came in time."""
    poll = select.poll()
    poll.register(connected, events)
    found = poll.poll(seconds * 1000)
    return found[0][1] if found else 0
