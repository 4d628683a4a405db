"""The visible side of a process, put together: its routes, its metrics, and messages to a service manager.

The libraries for routes and metrics are imported only if the process listens.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from offload.contracts.events import Event
from offload.errors import Misuse
from offload.extras import missing_text
from offload.service.disk import DiskWatch
from offload.service.health import Health
from offload.service.listening import address_of, listen
from offload.service.notify import notifier_of
from offload.service.process import Companion
from offload.service.upkeep import Upkeep
from offload.session import Session
from offload.streams.dispatcher import Dispatcher
from offload.urls import folder_named

__all__ = ["Seeing", "listener_of"]


NEEDED: Final = {"prometheus_client": "prometheus-client", "starlette": "starlette", "uvicorn": "uvicorn"}

_log: Final = logging.getLogger(__name__)


def listener_of(address: tuple[str, int] | None) -> socket.socket | None:
    """Return the socket on which the process answers, or None if it shall not.

    Raises `Misuse` if the port is in use or the libraries are missing. Call it before anything starts.
    """
    if address is None:
        return None
    for module, package in NEEDED.items():
        if find_spec(module) is None:
            raise Misuse(missing_text("--listen", package, "ledger-offload[run]"))
    return listen(*address)


@dataclass(slots=True, kw_only=True)
class Seeing:
    """Passes the events of a process on, also to its metrics if the process listens."""

    listeners: list[Callable[[Event], None]]

    def emit(self, event: Event) -> None:
        """Pass the event to every listener."""
        for listener in self.listeners:
            listener(event)

    def companions(
        self,
        dispatchers: list[Dispatcher],
        upkeep: Upkeep,
        session: Session,
        listener: socket.socket | None,
        environ: Mapping[str, str],
        tier: str,
    ) -> list[Companion]:
        """Return what to run beside the followers. `environ` names the service manager, if there is one.

        `tier` is a URL: the disk of a folder is measured.
        """
        health = Health(dispatchers=dispatchers, upkeep=upkeep)
        notifier = notifier_of(environ, health, session.env)
        told: list[Companion] = [] if notifier is None else [notifier.run]
        if listener is None:
            return told
        from offload.service.http import routes, serve_http  # a process that does not listen needs no extra
        from offload.service.metrics import ServiceMetrics

        folders = [each.source.folder for each in dispatchers]
        disks = [DiskWatch(folder=each, env=session.env) for each in folders if each is not None]
        if (of_tier := folder_named(tier)) is not None:
            disks.append(DiskWatch(folder=of_tier, of="tier", env=session.env))
        metrics = ServiceMetrics(
            health.statuses,
            stores=session.metrics,
            asked=health.asked,
            disks=disks,
            lost_sources=health.lost_sources,
            lost_tails=health.lost_tails,
        )
        self.listeners.append(metrics.emit)
        _log.info("answering on %s", address_of(listener))
        application = routes(health, metrics.text)
        return [*told, *(disk.run for disk in disks), lambda stopping: serve_http(application, listener)]
