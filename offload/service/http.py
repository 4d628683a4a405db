"""The routes of a process that follows streams.

    /metrics    for Prometheus
    /livez      200 as long as the event loop answers: otherwise restart the process
    /readyz     200, or 503 with a line for each reason: a stream that is late or paused. Errors that are
                tried again have a line from the first failed try on
    /status     the same and more, as JSON

The routes change nothing and send no request to a store. They answer on a loopback address unless the
operator names another one, since names of streams and offsets are not for everybody. There is no TLS and no
login: put a proxy before them if other machines must ask.

Invariant: the port is taken before anything starts, so a port that is in use stops nothing half-way.
"""

from __future__ import annotations

import asyncio
import json
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

from offload.service.health import Health

__all__ = ["routes", "serve_http"]


END_SECONDS: Final = 2
"""The time for replies that are under way when the process ends."""


def routes(health: Health, metrics: Callable[[], bytes]) -> Starlette:
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

    handlers = {"/livez": livez, "/readyz": readyz, "/status": status, "/metrics": scrape}
    return Starlette(routes=[Route(path, handler) for path, handler in handlers.items()])


async def serve_http(application: Starlette, listener: socket.socket) -> None:
    """Answer on a socket until this is cancelled. Replies that are under way are finished."""
    config = uvicorn.Config(
        application,
        log_config=None,  # the log is the process's
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=END_SECONDS,
        server_header=False,
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    """A server that leaves the signals to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
