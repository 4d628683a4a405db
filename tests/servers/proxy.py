"""A reverse proxy for HTTP/1.1 that breaks requests on purpose, or only delays them.

    plan = Plan(rules=[Rule(Fault.CUT_AFTER, "PUT", "*/root.*", nth=1)])
    with proxied("http://127.0.0.1:9000", plan) as proxy:
        ...                         # a client of proxy.url
    proxy.counts["cut_after"]       # 1

    python tests/servers/proxy.py http://127.0.0.1:9000 --delay-ms 20   # in a process of its own

Rules, or chance from a seed, decide once per request which fault it gets; the first rule that fits
decides. The head of a request goes to the server unchanged, `Host` included, so signatures stay
valid. In a reply, a `Location` on the server itself is changed to the proxy. Clients use TLS if
`proxied` is given a certificate (`servers.proxy_tls`); the server never does.

Invariants: a fault is counted when it happens, not when it is planned; a request without a fault is passed
through window by window, so its size costs no memory; one connection of a client is one connection to the
server, as long as both keep it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # this module also runs as a script, which finds no package
    from servers.proxy_tls import Tls

WINDOW_SIZE_BYTES: Final = 256 * 1024
HEAD_SIZE_BYTES_MAX: Final = 64 * 1024
STOP_SECONDS: Final = 60.0
ABANDONED_SECONDS: Final = 0.02
"""The interval at which a stalling connection checks if its client still waits."""

END_OF_HEAD: Final = b"\r\n\r\n"


class Fault(Enum):
    """The fault of one request."""

    CUT_AFTER = "the server has answered; the client's connection ends before any byte of the reply"
    ERROR_AFTER = "the server has answered; the client gets 500 instead"
    REFUSE = "the server gets no request; the client gets 503, with Retry-After"
    RESET = "half of the body, if there is one, reaches the server; then both connections are reset"
    LATE = "the client's connection ends; the server gets the whole request some time later"
    TRICKLE = "the reply's body arrives in small pieces, with pauses"
    TRUNCATE = "the reply's body ends half-way, and so does the connection"
    DEAF = "nobody reads the request's body, and nobody answers; the connection stays open"
    STALL = "the server has answered; a part of the reply arrives; then the open connection is silent"
    HANG_UP = "the whole reply arrives; then the connection ends, over TLS without close_notify"
    CUT_RECORD = "over TLS: the reply's body ends within its last record, and so does the connection"
    FLIP = "one bit in the middle of the reply's body is flipped"
    IGNORE_PRECONDITION = "the server gets the request without its create-if-absent condition"

    def fits(self, request: Request) -> bool:
        """Return True if this request can have the fault. Conditions on the reply are checked later."""
        if self is Fault.IGNORE_PRECONDITION:
            return request.creates
        return self not in _OF_BODIES or request.method == "GET"


_OF_BODIES: Final = (Fault.TRICKLE, Fault.TRUNCATE, Fault.CUT_RECORD, Fault.FLIP)


class HandshakeFault(Enum):
    """The fault of one handshake of TLS."""

    CUT = "half of the server's first message arrives; then the connection ends"
    SILENT = "the connection stays open, and the server says nothing"


@dataclass(frozen=True)
class Request:
    """The head of a request."""

    raw: bytes
    """The head as received, with the empty line that ends it."""

    number: int = 0
    """The number of this request among all requests of the proxy, from 1."""

    @cached_property
    def method(self) -> str:
        return self._first_line[0]

    @cached_property
    def target(self) -> str:
        """Return path and query without percent-escapes, for matching patterns."""
        return urllib.parse.unquote(self._first_line[1])

    @cached_property
    def headers(self) -> dict[str, str]:
        """Return the headers by name in lower case."""
        return _headers(self.raw)

    @property
    def creates(self) -> bool:
        """Return True if the request is a create-if-absent."""
        return self.headers.get("if-none-match") == "*" or bool(re.search(_GENERATION, self.target))

    @property
    def body(self) -> Framing:
        """Return the framing of the body."""
        return _framing(self.headers, otherwise=0)

    @property
    def expects(self) -> bool:
        """Return True if the client waits for `100 Continue` before it sends the body."""
        return self.headers.get("expect", "").lower() == "100-continue"

    def without_precondition(self) -> bytes:
        """Return the head without the condition, as if the server knew no create-if-absent."""
        raw = re.sub(rb"(?i)\r\nif-none-match:[^\r]*", b"", self.raw)
        line, rest = raw.split(b"\r\n", 1)
        line = re.sub(rb"[?&]ifGenerationMatch=0(?=&| )", b"", line)
        if b"?" not in line:
            line = line.replace(b"&", b"?", 1)
        return line + b"\r\n" + rest

    @cached_property
    def _first_line(self) -> tuple[str, str]:
        method, target, _ = self.raw.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        return method, target


_GENERATION: Final = r"[?&]ifGenerationMatch=0(&|$)"


@dataclass(slots=True)
class Rule:
    """Fault the requests whose method and target (path and query) match, both as shell patterns.

    `nth` counts the matching requests from 1 and picks a single one; without it all are hit.
    """

    fault: Fault
    method: str = "*"
    target: str = "*"
    nth: int | None = field(default=None, kw_only=True)
    creates: bool = field(default=False, kw_only=True)
    """True to match only requests that create if absent."""

    seconds: float | None = field(default=None, kw_only=True)
    """The time that the rule lasts, from the first matching request on."""

    matched: int = field(default=0, init=False)
    begun: float = field(default=0.0, init=False)

    def hits(self, request: Request) -> bool:
        """Count this request if it matches, and return True if it must fail."""
        if not (fnmatchcase(request.method, self.method) and fnmatchcase(request.target, self.target)):
            return False
        if (self.creates and not request.creates) or not self.fault.fits(request):
            return False
        self.matched += 1
        now = time.monotonic()
        self.begun = self.begun or now
        return self.nth in (None, self.matched) and (self.seconds is None or now - self.begun < self.seconds)


@dataclass(kw_only=True)
class Plan:
    """The plan of faults for requests. It may be changed at any time.

    Random choices depend on the seed, the request's method and target, and the number of earlier requests
    of that kind. So the faults of one client do not depend on other clients. `forget` lists names that
    differ from run to run and are ignored, such as the name of the bucket.
    """

    rules: Sequence[Rule] = ()
    chances: Mapping[Fault, float] = field(default_factory=dict)
    """The chances of faults for requests that no rule hits."""

    create_chances: Mapping[Fault, float] = field(default_factory=dict)
    """The chances for requests that create if absent, instead."""

    seed: object = 0
    forget: Sequence[str] = ()
    delay_seconds: float = 0.0
    """The delay of each request before it is sent to the server."""

    retry_after_seconds_max: int | None = 1
    """The longest pause that a refusal asks for, drawn from `retry_after_seconds_min` on. None: no pause."""

    retry_after_seconds_min: int = 0
    stall_after_bytes: int = 0
    """The number of bytes of a body before it stalls. 0: not even the reply's head is sent."""

    late_seconds: float = 0.2
    pause_seconds: float = 0.005
    """The pause between the pieces of a trickle."""

    handshakes: deque[HandshakeFault] = field(default_factory=deque)
    """The faults of the next handshakes, in this order."""

    handshake_cut_chance: float = 0.0
    """The chance that a handshake is cut, after those of `handshakes`."""

    asked: Counter[str] = field(default_factory=Counter, init=False)

    def decide_handshake(self) -> HandshakeFault | None:
        """Return the fault of the next handshake, or None."""
        if self.handshakes:
            return self.handshakes.popleft()
        self.asked["handshake"] += 1
        draw = random.Random(f"{self.seed} handshake {self.asked['handshake']}").random()
        return HandshakeFault.CUT if draw < self.handshake_cut_chance else None

    def decide(self, request: Request) -> Fault | None:
        """Return the fault of this request, or None."""
        hits = [rule.fault for rule in self.rules if rule.hits(request)]  # every rule counts the request
        if hits:
            return hits[0]
        chances = self.create_chances if request.creates and self.create_chances else self.chances
        if not chances:
            return None
        draw = self.draw(request).random()
        for fault, chance in chances.items():
            if fault.fits(request):
                if draw < chance:
                    return fault
                draw -= chance
        return None

    def draw(self, request: Request) -> random.Random:
        """Draw the fault of this request by chance."""
        name = f"{request.method} {request.target}"
        for forgotten in self.forget:
            name = name.replace(forgotten, "")
        self.asked[name] += 1
        return random.Random(f"{self.seed} {name} {self.asked[name]}")


class Proxy:
    """A proxy, made by `proxied`. Public attributes and methods may be used from any thread."""

    def __init__(self, upstream: str, plan: Plan, tls: Tls | None = None) -> None:
        parts = urllib.parse.urlsplit(upstream)
        assert parts.scheme == "http", upstream
        assert parts.hostname
        self.plan = plan
        self.tls = tls
        self.counts: Counter[str] = Counter()
        """The numbers of `connections`, `ended` connections, `requests`, `creates`, and faults by their names
        in lower case, those of handshakes with `handshake_` before it. `refused`: handshakes that the client
        ended. `gone`: connections that the server ended in the middle of a request."""

        self.log: deque[str] = deque(maxlen=500)
        """The last requests, one line each, for debugging."""

        self.watch: Callable[[Request, str], None] = lambda request, moment: None
        """A function called in the proxy's thread with each request, `before` the server gets it and `after`
        it has answered. If it blocks, the whole proxy waits."""

        self.mistakes: list[BaseException] = []
        """The errors of the proxy itself. `proxied` raises the first of them."""

        self._address = parts.hostname, parts.port or 80
        self._authority = parts.netloc
        self._listener = _listening(0)
        self._port: int = self._listener.getsockname()[1]
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._late = 0
        self._landed = threading.Condition()

    @property
    def url(self) -> str:
        """Return the URL of the proxy."""
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self._port}"

    def before(self, text: str) -> str:
        """Return `text`, an option or a URL, with the proxy's address instead of the server's."""
        return text.replace(f"http://{self._authority}", self.url)

    def options(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the options of a place, so that they lead to the proxy and name the authority of its TLS."""
        found = {name: self.before(value) for name, value in given.items()}
        return found if self.tls is None else found | {"verify": str(self.tls.trusted)}

    def settle(self) -> None:
        """Wait until every late request has landed."""
        with self._landed:
            assert self._landed.wait_for(lambda: not self._late, STOP_SECONDS), "a late request never landed"

    def leave(self) -> None:
        """Disappear like a killed server: end all connections, and refuse new ones."""
        self._on_loop(self._leave())

    def come_back(self) -> None:
        """Accept connections again, at the same address."""
        self._on_loop(self._come_back())

    def _on_loop(self, work: Coroutine[None, None, None]) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(work, self._loop).result(STOP_SECONDS)

    async def _leave(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()  # not before: the task that accepts still watches it

    async def _come_back(self) -> None:
        self._listener = _listening(self._port)
        self._begin(self._accept())

    async def serve(self) -> None:
        """Serve until cancelled."""
        self._loop = asyncio.get_running_loop()
        self._begin(self._accept())
        try:
            await asyncio.Event().wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            self.counts["connections"] += 1
            self._begin(self._serve(_Wire(connection, self.tls)))

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (mistake := task.exception()) is not None:
            self.mistakes.append(mistake)

    async def _serve(self, client: _Wire) -> None:
        exchange = _Exchange(self, client)
        try:
            await self._shake(client)
            while (head := await client.head()) is not None:
                self.counts["requests"] += 1
                request = Request(head, self.counts["requests"])
                if not await exchange.run(request):
                    return
        except (OSError, _Ended):
            pass  # one side has ended, so end the other too
        finally:
            exchange.close()
            self.counts["ended"] += 1

    async def _shake(self, client: _Wire) -> None:
        """Begin TLS, if there is TLS. Raises `ConnectionError` if that fails, on purpose or not."""
        if client.line is None:
            return
        fault = self.plan.decide_handshake()
        if fault is not None:
            self.counts[f"handshake_{fault.name.lower()}"] += 1
        if fault is HandshakeFault.SILENT:
            await client.abandoned()
            raise _Ended
        try:
            await client.line.shake(is_cut=fault is HandshakeFault.CUT)
        except ConnectionError:
            self.counts["refused"] += fault is None
            raise

    async def connect(self) -> _Wire:
        """Open a new connection to the server."""
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        wire = _Wire(connection)
        try:
            await asyncio.get_running_loop().sock_connect(connection, self._address)
        except BaseException:
            wire.close()
            raise
        return wire

    def count(self, fault: Fault) -> None:
        """Count a fault that happened."""
        self.counts[fault.name.lower()] += 1

    def send_late(self, request: Request, body: bytes) -> None:
        """Deliver a request whose client has been cut off."""
        with self._landed:
            self._late += 1
        self._begin(self._land(request, body))

    async def _land(self, request: Request, body: bytes) -> None:
        try:
            await asyncio.sleep(self.plan.late_seconds)
            server = await self.connect()
            try:
                await server.send(request.raw + body)
                reply = await _reply_head(server)
                await server.drain(_reply_framing(request, reply))
                self.log.append(f"{request.number} landed late: {_status(reply)}")
            finally:
                server.close()
        except (OSError, _Ended) as exc:
            self.log.append(f"{request.number} never landed: {exc!r}")
        finally:
            with self._landed:
                self._late -= 1
                self._landed.notify_all()

    def relocated(self, reply: bytes, request: Request) -> bytes:
        """Return a reply's head whose `Location` leads to the proxy."""
        place = f"{urllib.parse.urlsplit(self.url).scheme}://{request.headers.get('host', '')}"
        server = re.escape(self._authority.encode())
        pattern = rb"(?i)(\r\nlocation: *)https?://" + server + rb"(?=[/?\r])"
        return re.sub(pattern, rb"\g<1>" + place.encode("latin-1"), reply)


def _listening(port: int) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    listener.setblocking(False)
    return listener


class _Exchange:
    """A client's connection, which serves one request at a time, and its connection to the server."""

    def __init__(self, proxy: Proxy, client: _Wire) -> None:
        self._proxy, self._client = proxy, client
        self._server: _Wire | None = None

    async def run(self, request: Request) -> bool:
        """Serve one request. Return True if the client's connection stays open."""
        proxy, plan = self._proxy, self._proxy.plan
        proxy.counts["creates"] += request.creates
        if plan.delay_seconds:
            await asyncio.sleep(plan.delay_seconds)
        fault = plan.decide(request)
        proxy.log.append(
            f"{request.number} {request.method} {request.target}{f'  <- {fault.name}' if fault else ''}"
        )
        proxy.watch(request, "before")
        match fault:
            case Fault.REFUSE:
                return await self._refuse(request)
            case Fault.RESET:
                return await self._reset(request)
            case Fault.LATE:
                return await self._late(request)
            case Fault.DEAF:
                proxy.count(fault)
                await self._client.abandoned()
                return False
            case Fault.IGNORE_PRECONDITION:
                proxy.count(fault)
                return await self._pass(request, request.without_precondition(), None)
            case _:
                return await self._pass(request, request.raw, fault)

    def close(self) -> None:
        """End both connections."""
        self._client.close()
        if self._server is not None:
            self._server.close()

    async def _refuse(self, request: Request) -> bool:
        plan = self._proxy.plan
        headers = []
        if plan.retry_after_seconds_max is not None:
            bounds = plan.retry_after_seconds_min, plan.retry_after_seconds_max
            headers = [f"Retry-After: {plan.draw(request).randint(*bounds)}"]
        if not request.expects:
            await self._client.drain(request.body)
        self._proxy.count(Fault.REFUSE)
        await self._client.send(_refusal(request, 503, *headers, end=request.expects))
        return not request.expects

    async def _reset(self, request: Request) -> bool:
        if request.body:
            server = await self._connected()
            await server.send(request.raw)
            if request.expects:
                await self._client.send(b"HTTP/1.1 100 Continue" + END_OF_HEAD)
            if isinstance(request.body, int):
                await self._client.copy(request.body // 2, server.send)
            else:
                body = await self._client.take(request.body)
                await server.send(body[: len(body) // 2])
            server.reset()
        self._proxy.count(Fault.RESET)
        self._client.reset()
        return False

    async def _late(self, request: Request) -> bool:
        if request.expects:
            await self._client.send(b"HTTP/1.1 100 Continue" + END_OF_HEAD)
        body = await self._client.take(request.body)
        self._proxy.count(Fault.LATE)
        self._proxy.send_late(request, body)
        return False

    async def _pass(self, request: Request, head: bytes, fault: Fault | None) -> bool:
        """Pass the request to the server, and the reply back, as `fault` changes them."""
        server, client = await self._connected(), self._client
        sending = None
        if isinstance(request.body, int) and not request.expects and request.body <= len(client.read):
            await server.send(head + client.taken(request.body))
        else:
            await server.send(head)
            sending = asyncio.ensure_future(client.forward(request.body, server.send))
        try:
            reply, permitted = await self._replied(request, server, sending)
            self._proxy.watch(request, "after")
            unsent = sending is not None and not sending.done() and request.expects and not permitted
            kept = await self._deliver(request, reply, server, fault, end=unsent)
            if unsent or not kept:
                return False
            if sending is not None:
                await sending
            return True
        except _Ended:
            self._proxy.counts["gone"] += not client.at_end
            raise
        finally:
            if sending is not None:
                sending.cancel()
                with suppress(asyncio.CancelledError, OSError, _Ended):
                    await sending

    async def _replied(
        self, request: Request, server: _Wire, sending: asyncio.Task[None] | None
    ) -> tuple[bytes, bool]:
        """Return the head of the final reply, and True if the client was told to send its body."""
        permitted = False
        reading = asyncio.ensure_future(server.head())
        try:
            while True:
                waited = {reading} if sending is None else {reading, sending}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done() and sending is not None:
                    failure = sending.exception()
                    if isinstance(failure, _Ended):  # the client disconnected in the middle of its body
                        raise failure
                    sending = None  # sent, or refused by the server, whose reply gives the reason
                    continue
                head = reading.result()
                if head is None:
                    raise _Ended
                if _status(head) // 100 != 1:
                    return head, permitted
                permitted = True
                await self._client.send(head)
                reading = asyncio.ensure_future(server.head())
        finally:
            if not reading.done():
                reading.cancel()
                with suppress(asyncio.CancelledError, OSError, _Ended):
                    await reading

    async def _deliver(
        self, request: Request, reply: bytes, server: _Wire, fault: Fault | None, *, end: bool
    ) -> bool:
        proxy, client = self._proxy, self._client
        framing = _reply_framing(request, reply)
        kept = not (_closes(reply) or _closes(request.raw) or framing is _UNTIL_END or end)
        if fault is Fault.CUT_AFTER or fault is Fault.ERROR_AFTER:
            await server.drain(framing)
            proxy.count(fault)
            if fault is Fault.CUT_AFTER:
                return False
            await client.send(_refusal(request, 500, end=not kept))
            return kept
        if fault is Fault.STALL:
            body = await server.take(framing)
            proxy.count(fault)
            if proxy.plan.stall_after_bytes:
                await client.send(proxy.relocated(reply, request) + body[: proxy.plan.stall_after_bytes])
            await client.abandoned()
            return False
        head = proxy.relocated(reply, request)
        if end:
            head = head[:-2] + b"Connection: close" + END_OF_HEAD
        if fault in (None, Fault.HANG_UP) or not framing:
            await client.send(head)
            await server.forward(framing, client.send)
            if fault is Fault.HANG_UP:
                proxy.count(fault)
                return False
            if not kept and client.line is not None:
                await client.line.notify()
            return kept
        body = await server.take(framing)
        if len(body) < 2:
            await client.send(head + body)
            return kept
        proxy.count(fault)
        if fault is Fault.TRUNCATE:
            await client.send(head + body[: len(body) // 2])
            return False
        if fault is Fault.CUT_RECORD:
            assert client.line is not None, "there are no records without TLS"
            await client.send(head)
            await client.line.send_cut(body)
            return False
        if fault is Fault.FLIP:
            middle = len(body) // 2
            await client.send(head + body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :])
            return kept
        await client.send(head)
        for piece in _pieces(body):
            await asyncio.sleep(proxy.plan.pause_seconds)
            await client.send(piece)
        return kept

    async def _connected(self) -> _Wire:
        """Return the connection to the server: the existing one, unless the server has ended it since."""
        if self._server is not None and not self._server.is_quiet:
            self._server.close()
            self._server = None
        if self._server is None:
            self._server = await self._proxy.connect()
        return self._server


class _Ended(Exception):
    """The error if a connection ended too early."""


class _Chunked:
    """The framing of a body in chunks with their sizes."""


class _UntilEnd:
    """The framing of a body that ends with the connection."""


_CHUNKED: Final = _Chunked()
_UNTIL_END: Final = _UntilEnd()
Framing = int | _Chunked | _UntilEnd
"""The framing of a body: a number of bytes, or one of the two classes above."""

Sink = Callable[[bytes | memoryview], Awaitable[None]]
"""A function that takes a body, piece by piece."""


class _Wire:
    """A connection from which whole heads and framed bodies are read."""

    def __init__(self, connection: socket.socket, tls: Tls | None = None) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self.line = None if tls is None else tls.line(connection)
        """The TLS of this connection, if there is TLS."""

        self.read = bytearray()
        """The bytes that were received and not yet used."""

        self.at_end = False

    @property
    def is_quiet(self) -> bool:
        """Return True if the other side has sent nothing unexpected and has not ended."""
        watch = select.poll()
        watch.register(self._connection, select.POLLIN)
        return not self.read and not watch.poll(0)

    async def head(self) -> bytes | None:
        """Read a head with the empty line that ends it. Return None if the connection ended before it."""
        while (end := self.read.find(END_OF_HEAD)) < 0:
            assert len(self.read) <= HEAD_SIZE_BYTES_MAX, "the head of a message is too long"
            try:
                await self._receive()
            except (_Ended, ConnectionError):
                return None
        return self.taken(end + len(END_OF_HEAD))

    def taken(self, size_bytes: int) -> bytes:
        """Take the first bytes out of the buffer."""
        data = bytes(self.read[:size_bytes])
        del self.read[:size_bytes]
        return data

    async def copy(self, size_bytes: int, to: Sink) -> None:
        """Pass so many bytes on, with one window of memory."""
        begun = self.taken(min(size_bytes, len(self.read)))
        if begun:
            await to(begun)
        left = size_bytes - len(begun)
        if not left:
            return
        window = memoryview(bytearray(min(left, WINDOW_SIZE_BYTES)))
        while left:
            got = await self._receive_into(window[:left])
            if not got:
                self.at_end = True
                raise _Ended
            await to(window[:got])
            left -= got
            await asyncio.sleep(0)  # a socket that is always ready would block all other tasks

    async def forward(self, framing: Framing, to: Sink) -> None:
        """Pass a body on, with the same framing."""
        if isinstance(framing, int):
            await self.copy(framing, to)
        elif framing is _CHUNKED:
            while size_bytes := await self._chunk_head(to):
                await self.copy(size_bytes + 2, to)
            while await self._line(to) != b"\r\n":
                pass
        else:
            with suppress(_Ended):
                while True:
                    if not self.read:
                        await self._receive()
                    await self.copy(len(self.read), to)

    async def drain(self, framing: Framing) -> None:
        """Read a body and drop it."""

        async def nowhere(data: bytes | memoryview) -> None:
            pass

        await self.forward(framing, nowhere)

    async def take(self, framing: Framing) -> bytes:
        """Read a whole body unchanged, framing included."""
        kept = bytearray()

        async def keep(data: bytes | memoryview) -> None:
            kept.extend(data)

        await self.forward(framing, keep)
        return bytes(kept)

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of it."""
        if self.line is not None:
            await self.line.send(data)
        else:
            await self._loop.sock_sendall(self._connection, data)

    async def abandoned(self) -> None:
        """Wait until the other side ends the connection, and read nothing meanwhile."""
        watch = select.poll()
        watch.register(self._connection, select.POLLRDHUP)
        while not watch.poll(0):  # noqa: ASYNC110 - no event of the loop tells an end from bytes to read
            await asyncio.sleep(ABANDONED_SECONDS)

    def reset(self) -> None:
        """End the connection with a reset. Bytes on their way are lost."""
        if self._connection.fileno() >= 0:
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """End the connection. Idempotent."""
        self._connection.close()

    async def _chunk_head(self, to: Sink) -> int:
        return int((await self._line(to)).partition(b";")[0], 16)

    async def _line(self, to: Sink) -> bytes:
        while (end := self.read.find(b"\r\n")) < 0:
            await self._receive()
        line = self.taken(end + 2)
        await to(line)
        return line

    async def _receive(self) -> None:
        window = memoryview(bytearray(WINDOW_SIZE_BYTES))
        got = await self._receive_into(window)
        if not got:
            self.at_end = True
            raise _Ended
        self.read += window[:got]

    async def _receive_into(self, window: memoryview) -> int:
        if self.line is not None:
            return await self.line.receive_into(window)
        return await self._loop.sock_recv_into(self._connection, window)


async def _reply_head(server: _Wire) -> bytes:
    """Return the head of the final reply."""
    while (head := await server.head()) is not None:
        if _status(head) // 100 != 1:
            return head
    raise _Ended


def _status(head: bytes) -> int:
    return int(head.split(b" ", 2)[1])


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:-2]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _framing(headers: Mapping[str, str], *, otherwise: Framing) -> Framing:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return _CHUNKED
    length = headers.get("content-length")
    return otherwise if length is None else int(length)


def _reply_framing(request: Request, reply: bytes) -> Framing:
    if request.method == "HEAD" or _status(reply) in (204, 304):
        return 0
    return _framing(_headers(reply), otherwise=_UNTIL_END)


def _closes(head: bytes) -> bool:
    """Return True if the connection ends with this message."""
    said = _headers(head).get("connection", "").lower()
    old = b"HTTP/1.0" in head.split(b"\r\n", 1)[0]
    return said == "close" or (old and said != "keep-alive")


def _refusal(request: Request, status: int, *headers: str, end: bool) -> bytes:
    """Return an error reply in the format of the request's protocol."""
    reason, s3, azure = {
        500: ("Internal Server Error", "InternalError", "InternalError"),
        503: ("Service Unavailable", "SlowDown", "ServerBusy"),
    }[status]
    if "x-ms-version" in request.headers:
        body = f"<?xml version='1.0'?><Error><Code>{azure}</Code><Message>on purpose</Message></Error>"
        lines = ["Content-Type: application/xml", f"x-ms-error-code: {azure}", *headers]
    elif re.match(r"(/upload|/download)?/storage/v1/", request.target):
        body = json.dumps({"error": {"code": status, "message": "on purpose", "errors": []}})
        lines = ["Content-Type: application/json", *headers]
    else:
        body = f"<?xml version='1.0'?><Error><Code>{s3}</Code><Message>on purpose</Message></Error>"
        lines = ["Content-Type: application/xml", *headers]
    lines += [f"Content-Length: {len(body)}"] + ["Connection: close"] * end
    head = "\r\n".join([f"HTTP/1.1 {status} {reason}", *lines]).encode() + END_OF_HEAD
    return head if request.method == "HEAD" else head + body.encode()


def _pieces(body: bytes) -> Iterator[bytes]:
    size_bytes = max(1, len(body) // 8)
    for start in range(0, len(body), size_bytes):
        yield body[start : start + size_bytes]


@contextmanager
def proxied(upstream: str, plan: Plan | None = None, tls: Tls | None = None) -> Iterator[Proxy]:
    """Run a proxy in front of `upstream`, in a separate thread. If `tls` is given, clients use TLS."""
    proxy = Proxy(upstream, plan or Plan(), tls)
    loop = asyncio.new_event_loop()
    serving = loop.create_task(proxy.serve())

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(serving)

    thread = threading.Thread(target=run, name="proxy")
    thread.start()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(STOP_SECONDS)
        loop.close()
        proxy.close()
    if proxy.mistakes:
        raise proxy.mistakes[0]


@contextmanager
def delayed(upstream: str, *, delay_ms: float) -> Iterator[str]:
    """Run a proxy in a separate process that only delays every request, and return its URL."""
    argv = [sys.executable, __file__, upstream, "--delay-ms", str(delay_ms)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    with process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.stdout.read()


async def _main(upstream: str, delay_seconds: float) -> None:
    proxy = Proxy(upstream, Plan(delay_seconds=delay_seconds))
    serving = asyncio.ensure_future(proxy.serve())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    print(proxy.url, flush=True)
    with suppress(asyncio.CancelledError):
        await serving
    proxy.close()
    print(json.dumps(proxy.counts), flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Holds up every request on its way to a server.")
    arguments.add_argument("upstream", help="the server's URL")
    arguments.add_argument("--delay-ms", type=float, default=0.0)
    given = arguments.parse_args()
    asyncio.run(_main(given.upstream, given.delay_ms / 1000))
