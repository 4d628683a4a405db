"""The routes of a process that follows streams.

    /           the names of the routes
    /metrics    for Prometheus
    /livez      200 as long as the event loop answers: otherwise restart the process
    /readyz     200, or 503 with a line for each reason: a stream that is late or paused. Errors that are
                tried again have a line from the first failed try on
    /status     the same and more, as JSON

On the door (`service.door`), and only there, commands change what the process does:

    POST /streams/retry, /streams/copy, /streams/pause, /streams/resume

The routes above change nothing and send no request to a store. They answer on a loopback address unless the
operator names another one, since names of streams and offsets are not for everybody. There is no TLS and no
login: put a proxy before them if other machines must ask.

Invariants: the port is taken before anything starts, so a port that is in use stops nothing half-way. A
connection lasts at most `CONNECTION_SECONDS`, and at most `CONNECTIONS_MAX` are open: uvicorn bounds neither
the time of a request that never ends, nor the connections without one. So whoever reaches the port takes only
so many of the descriptors that the streams need.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from offload.follow.rules import Verb
from offload.ground.errors import NotOffloaded
from offload.ground.outside import Unreadable, json_outside
from offload.service.commanding import Commanding
from offload.service.door import peer_user_of
from offload.service.health import ShownHealth, status_as_json

__all__ = ["door_routes", "routes", "serve_door", "serve_http"]


END_SECONDS: Final = 2
"""The time for replies that are under way when the process ends."""

CONNECTION_SECONDS: Final = 30.0
"""Prometheus opens another connection after that. A scrape takes milliseconds."""

KEEP_ALIVE_SECONDS: Final = 5
"""The time that a connection stays open after a reply."""

CONNECTIONS_MAX: Final = 64
"""A few programs ask: Prometheus, an orchestrator, people. The oldest connection makes room for a new one."""


ROOT: Final = 0
"""The user that may do everything on the machine anyway."""

COMMAND_SIZE_BYTES_MAX: Final = 2**20
"""The size of a command: the names of ten thousand streams."""

_log: Final = logging.getLogger(__name__)


def routes(health: ShownHealth, metrics: Callable[[], bytes]) -> Starlette:
    """Return the application. `metrics` returns the text for Prometheus."""

    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        problems = health.problems()
        lines = ["not ready" if problems else "ready", health.summary(), *problems, *health.notes()]
        return PlainTextResponse("\n".join(lines) + "\n", status_code=503 if problems else 200)

    async def status(request: Request) -> Response:
        # Written in ASCII: a name that is not UTF-8 has characters that only an escape can show.
        return Response(json.dumps(health.as_json()), media_type="application/json")

    async def scrape(request: Request) -> Response:
        return Response(metrics(), media_type=CONTENT_TYPE_LATEST)

    async def index(request: Request) -> Response:
        return PlainTextResponse("".join(f"{path}\n" for path in handlers))

    handlers = {"/": index, "/livez": livez, "/readyz": readyz, "/status": status, "/metrics": scrape}
    return Starlette(routes=[Route(path, handler) for path, handler in handlers.items()])


def door_routes(health: ShownHealth, metrics: Callable[[], bytes], commanding: Commanding) -> Starlette:
    """Return the application of the door: the routes, and the commands."""
    application = routes(health, metrics)

    async def command(request: Request) -> Response:
        try:
            names = _names(await _body(request))
            found = await commanding.obey(Verb(request.path_params["verb"]), names)
        except ValueError as error:
            return _document({"error": str(error)}, 400)
        except NotOffloaded as error:
            return _document({"error": str(error)}, 404)
        return _document({"streams": [status_as_json(status) for status in found]}, 200)

    application.routes.append(Route("/streams/{verb}", command, methods=["POST"]))
    return application


def _document(document: dict[str, object], code: int) -> Response:
    return Response(json.dumps(document), status_code=code, media_type="application/json")


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > COMMAND_SIZE_BYTES_MAX:
            raise Unreadable(f"a command has at most {COMMAND_SIZE_BYTES_MAX} bytes")
    return body


def _names(body: bytes) -> list[str] | None:
    """Return the names in a command, or None for all streams. Raises `ValueError` if it is none."""
    document = json_outside(body, size_bytes_max=COMMAND_SIZE_BYTES_MAX)
    if document == {"all": True}:
        return None
    names = document.get("streams") if isinstance(document, dict) and len(document) == 1 else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError('expected {"streams": [NAME, ...]} or {"all": true}')
    return names


async def serve_http(application: Starlette, listener: socket.socket) -> None:
    """Answer on a socket until this is cancelled. Replies that are under way are finished."""
    await _serve(application, listener, _Connection)


async def serve_door(application: Starlette, listener: socket.socket) -> None:
    """Answer on a Unix socket, as `serve_http`, to the user of this process and to root."""
    await _serve(application, listener, _DoorConnection)


async def _serve(application: Starlette, listener: socket.socket, connection: type[H11Protocol]) -> None:
    config = uvicorn.Config(
        application,
        log_config=None,  # the log is the process's
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=END_SECONDS,
        server_header=False,
        http=connection,
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        await serving


class _Connection(H11Protocol):
    """A connection that ends in time, and makes room for others."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        self._deadline = self.loop.call_later(CONNECTION_SECONDS, transport.abort)
        others = [each for each in self.connections if isinstance(each, _Connection)]
        if len(others) > CONNECTIONS_MAX:
            oldest = min(others, key=lambda each: 0.0 if each._deadline is None else each._deadline.when())
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)


class _DoorConnection(_Connection):
    """A connection that is closed unless the kernel says that its user may command this process."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        user = peer_user_of(transport.get_extra_info("socket"))
        super().connection_made(transport)
        if user not in (ROOT, os.geteuid()):
            _log.warning("user %d is refused at the door: it is for another user", user)
            transport.abort()


class _Server(uvicorn.Server):
    """A server that leaves the signals to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
