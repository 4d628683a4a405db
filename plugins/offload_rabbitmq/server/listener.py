"""The listener of `offload serve` for RabbitMQ's clients: `rabbitmq-stream://HOST:PORT?OPTION=VALUE&…`.

    advertised-host, advertised-port   the address that clients dial, if it is another one than HOST and PORT
    connections-max                    1,000 by default
    cert, key                          the files of the certificate, with `rabbitmq-stream+tls`

Clients compare the advertised address with the one in Metadata as text, so both come from here.

Nobody proves who they are, so only loopback addresses listen. The offsets that consumers store are kept in
memory: clients poll a stored offset until they read it back, so it cannot be dropped.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from offload.contracts.listener import Listener, ListenerCounts, ServedStreams
from offload.ground.env import Env
from offload.ground.errors import Misuse
from offload.ground.outside import number_outside
from offload.service.address import listen
from offload_rabbitmq.server.connection import ServedConnection, ServerState
from offload_rabbitmq.server.names import TierNames
from offload_rabbitmq.stream_frames import Code
from offload_rabbitmq.stream_place import PORTS, TLS_SCHEME

OPTIONS: Final = ("advertised-host", "advertised-port", "cert", "connections-max", "key")
CONNECTIONS_MAX: Final = 1000
OFFSETS_MAX: Final = 100_000
TLS_SECONDS: Final = 10.0
ACCEPT_AGAIN_SECONDS: Final = 1.0
PLAIN: Final = "PLAIN"
ANONYMOUS: Final = "ANONYMOUS"

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerOptions:
    """The URL of a listener, in its parts."""

    scheme: str
    host: str
    port: int
    query: Mapping[str, str]

    @classmethod
    def of(cls, url: str) -> ListenerOptions:
        """Parse a URL. Raises `Misuse` if it is none of a listener, or has an unknown option."""
        try:
            parts = urlsplit(url)
            port = PORTS[parts.scheme] if parts.port is None else parts.port
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except (ValueError, KeyError) as exc:
            raise Misuse(f"{url!r} is no address of a listener: use {PORTS_EXAMPLE}") from exc
        if not parts.hostname or parts.path.strip("/") or parts.fragment:
            raise Misuse(f"{url!r} is no address of a listener: use {PORTS_EXAMPLE}")
        query = dict(pairs)
        for name, value in pairs:
            if name not in OPTIONS:
                raise Misuse(f"a listener has no option {name!r}; it has {', '.join(OPTIONS)}")
            if not value:
                raise Misuse(f"the option {name!r} of a listener has no value")
        found = cls(scheme=parts.scheme, host=parts.hostname, port=port, query=query)
        found.check()
        return found

    @property
    def is_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.scheme == TLS_SCHEME

    def check(self) -> None:
        """Raise `Misuse` if the options contradict each other."""
        for name in ("cert", "key"):
            if self.is_tls != (name in self.query):
                needs = "needs" if self.is_tls else "takes no"
                raise Misuse(f"{self.scheme}:// {needs} option {name!r}")
        if not _is_loopback(self.host):
            raise Misuse(f"{self.host} is open to other machines, and nobody logs in: listen on localhost")
        self.number("advertised-port", 0, 65_535)
        self.number("connections-max", 0, 1_000_000)

    def number(self, name: str, default: int, most: int) -> int:
        """Return the value of an option that is a number. Raises `Misuse` if it is none, or too large."""
        if name not in self.query:
            return default
        found = number_outside(self.query[name])
        if found is None or not 0 < found <= most:
            raise Misuse(f"{name} is a number from 1 to {most}, not {self.query[name]!r}")
        return found


PORTS_EXAMPLE: Final = "rabbitmq-stream://localhost:5552"


def open_listener(url: str, *, env: Env) -> Listener:
    """Return the listener of a URL. Raises `Misuse` if an option is wrong, or a file cannot be read."""
    return StreamListener(ListenerOptions.of(url), env)


class StreamListener(Listener):
    """A listener for RabbitMQ's stream protocol."""

    def __init__(self, options: ListenerOptions, env: Env) -> None:
        self._options, self._env = options, env
        self._counts = ListenerCounts()
        self._socket: socket.socket | None = None
        self._tls = _tls_of(options) if options.is_tls else None
        self._connections_max = options.number("connections-max", CONNECTIONS_MAX, 1_000_000)

    @property
    def url(self) -> str:
        """See `Listener.url`."""
        host = f"[{self._options.host}]" if ":" in self._options.host else self._options.host
        return f"{self._options.scheme}://{host}:{self._port}"

    @property
    def counts(self) -> ListenerCounts:
        """See `Listener.counts`."""
        return self._counts

    @property
    def _port(self) -> int:
        return self._options.port if self._socket is None else int(self._socket.getsockname()[1])

    def listen(self) -> None:
        """See `Listener.listen`."""
        self._socket = listen(self._options.host, self._options.port)

    async def serve(self, streams: ServedStreams, stopping: asyncio.Event) -> None:
        """See `Listener.serve`."""
        shared = self._shared(streams)
        accepting = asyncio.create_task(self._accept(shared))
        stopped = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait([accepting, stopped], return_when=asyncio.FIRST_COMPLETED)
            if accepting.done():
                accepting.result()
            accepting.cancel()
            for each in [*shared.connections]:
                each.say_goodbye()
            while shared.connections:
                await self._env.sleep(0.05)
        finally:
            for each in [*shared.connections]:
                each.abort()
            tasks = [accepting, stopped, *shared.tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def aclose(self) -> None:
        """See `Listener.aclose`."""
        if self._socket is not None:
            self._socket.close()

    def _shared(self, streams: ServedStreams) -> ServerState:
        query = self._options.query
        return ServerState(
            streams=streams,
            names=TierNames(streams, self._env),
            logins=Everybody(),
            offsets=OffsetsInMemory(),
            advertised=(
                query.get("advertised-host", self._options.host),
                self._options.number("advertised-port", self._port, 65_535),
            ),
            counts=self._counts,
            env=self._env,
        )

    async def _accept(self, shared: ServerState) -> None:
        loop = asyncio.get_running_loop()
        assert self._socket is not None, "the framework calls `listen` first"
        while True:
            try:
                peer, address = await loop.sock_accept(self._socket)
            except OSError as error:  # no descriptor is left, for example
                _log.error("no connection can be accepted for now: %s", error)
                await self._env.sleep(ACCEPT_AGAIN_SECONDS)
                continue
            if len(shared.connections) >= self._connections_max:
                self._counts.refused += 1
                peer.close()
                continue
            task = asyncio.create_task(self._begin(shared, peer, f"{address[0]}:{address[1]}"))
            shared.tasks.add(task)
            task.add_done_callback(shared.tasks.discard)

    async def _begin(self, shared: ServerState, peer: socket.socket, name: str) -> None:
        # OSError: the peer is gone already, or is none that speaks TLS.
        with suppress(OSError):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: ServedConnection(shared, name, None if self._tls else peer),
                peer,
                ssl=self._tls,
                ssl_handshake_timeout=TLS_SECONDS if self._tls else None,
            )


class Everybody:
    """Lets everybody in who speaks one of the mechanisms."""

    mechanisms: Sequence[str] = (PLAIN, ANONYMOUS)

    async def may_enter(self, mechanism: str, data: bytes | None) -> Code:
        """Return `OK`, or the code for a mechanism or for data that is wrong."""
        if mechanism not in self.mechanisms:
            return Code.NO_MECHANISM
        if mechanism == PLAIN and (data or b"").count(b"\0") != 2:
            return Code.SASL_ERROR
        return Code.OK


class OffsetsInMemory:
    """The offsets that consumers stored since the process began, those of `OFFSETS_MAX` pairs at most."""

    def __init__(self) -> None:
        self._offsets: OrderedDict[tuple[str, str], int] = OrderedDict()

    def store(self, stream: str, reference: str, offset: int) -> None:
        """Remember an offset. The pair that was stored the longest ago makes room."""
        self._offsets[stream, reference] = offset
        self._offsets.move_to_end((stream, reference))
        if len(self._offsets) > OFFSETS_MAX:
            self._offsets.popitem(last=False)

    def query(self, stream: str, reference: str) -> int | None:
        """Return the offset that was stored last."""
        return self._offsets.get((stream, reference))


def _tls_of(options: ListenerOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.query["cert"], options.query["key"])
    except (OSError, ssl.SSLError) as error:
        raise Misuse(f"the certificate cannot be used: {error}") from error
    return context


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
