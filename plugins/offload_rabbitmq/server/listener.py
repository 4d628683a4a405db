"""The listener of `offload serve` for RabbitMQ's clients (`server.options` has its URL).

Clients compare the advertised address with the one in Metadata as text, so both come from here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from typing import Final

from offload.contracts.listener import Listener, ListenerCounts, ServedStreams
from offload.ground.env import Env
from offload.ground.errors import Misuse
from offload.service.address import listen
from offload_rabbitmq.server.connection import ServedConnection
from offload_rabbitmq.server.login import LOGIN
from offload_rabbitmq.server.names import TierNames
from offload_rabbitmq.server.offsets import OffsetsInFile, OffsetsInMemory
from offload_rabbitmq.server.options import ListenerOptions
from offload_rabbitmq.server.requests import REQUESTS
from offload_rabbitmq.server.state import ServerState
from offload_rabbitmq.server.users import Everybody, UsersInFile

CONNECTIONS_MAX: Final = 1000
TLS_SECONDS: Final = 10.0
ACCEPT_AGAIN_SECONDS: Final = 1.0
COMMANDS: Final = {**LOGIN, **REQUESTS}

_log: Final = logging.getLogger(__name__)


def open_listener(url: str, *, env: Env) -> Listener:
    """Return the listener of a URL. Raises `Misuse` if an option is wrong."""
    return StreamListener(ListenerOptions.of(url), env)


class StreamListener(Listener):
    """A listener for RabbitMQ's stream protocol."""

    def __init__(self, options: ListenerOptions, env: Env) -> None:
        self._options, self._env = options, env
        self._counts = ListenerCounts()
        self._socket: socket.socket | None = None
        self._tls = _tls_of(options) if options.is_tls else None
        self._connections_max = options.number("connections-max", CONNECTIONS_MAX)
        self._beginning: set[ServedConnection] = set()
        """Those whose TLS handshake goes on."""

        self._logins: Everybody | UsersInFile = Everybody()
        self._offsets = OffsetsInMemory()

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
        """Take the files, and then the port. Raises `Misuse` if one of them is wrong, or is in use."""
        query, problems = self._options.query, self._counts.problems
        if "users" in query:
            self._logins = UsersInFile(query["users"], self._env, problems)
        if "offsets" in query:
            self._offsets = OffsetsInFile(query["offsets"], self._env, problems)
        self._socket = listen(self._options.host, self._options.port)
        if not self._options.is_loopback and not self._options.is_tls:
            _log.warning("passwords come to %s in the clear: rabbitmq-stream+tls encrypts them", self.url)

    async def serve(self, streams: ServedStreams, stopping: asyncio.Event) -> None:
        """See `Listener.serve`."""
        shared = self._shared(streams)
        accepting = asyncio.create_task(self._accept(shared))
        stopped = asyncio.create_task(stopping.wait())
        for beside in (self._offsets.keep(), shared.names.learn()):
            shared.keep(asyncio.create_task(beside))
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
        self._logins.close()
        offsets, self._offsets = self._offsets, OffsetsInMemory()
        await offsets.aclose()

    def _shared(self, streams: ServedStreams) -> ServerState:
        query = self._options.query
        return ServerState(
            streams=streams,
            names=TierNames(streams, self._env),
            logins=self._logins,
            offsets=self._offsets,
            advertised=(
                query.get("advertised-host", self._options.host),
                self._options.number("advertised-port", self._port),
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
            if len(shared.connections | self._beginning) >= self._connections_max:
                self._counts.refused += 1
                peer.close()
                continue
            plain = None if self._tls else peer
            made = ServedConnection(shared, *address[:2], plain=plain, commands=COMMANDS)
            self._beginning.add(made)
            shared.keep(asyncio.create_task(self._begin(made, peer)))

    async def _begin(self, made: ServedConnection, peer: socket.socket) -> None:
        # OSError: the peer is gone already, or is none that speaks TLS.
        try:
            with suppress(OSError):
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # A client without heartbeats whose machine is gone would be kept for ever.
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: made,
                    peer,
                    ssl=self._tls,
                    ssl_handshake_timeout=TLS_SECONDS if self._tls else None,
                )
        finally:
            self._beginning.discard(made)


def _tls_of(options: ListenerOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.query["cert"], options.query["key"])
    except (OSError, ssl.SSLError) as error:
        raise Misuse(f"the certificate cannot be used: {error}") from error
    return context
