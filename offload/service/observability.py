"""The visible side of a process, put together: its routes, its metrics, and messages to a service manager.

The libraries for routes and metrics are imported only if the process listens.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from offload.contracts.events import Event
from offload.follow.dispatcher import Dispatcher
from offload.ground.errors import Misuse
from offload.ground.extras import missing_text
from offload.ground.urls import folder_named
from offload.opening.session import Session
from offload.service.address import OFF, address_of, listen
from offload.service.commanding import Commanding, PauseNotes
from offload.service.config import RunConfig
from offload.service.disk import DiskWatch
from offload.service.door import Door, default_name, open_door, runtime_folder
from offload.service.health import NO_ADVICE, Advises, Health
from offload.service.notify import notifier_of
from offload.service.process import SideTask
from offload.service.readiness import ReadinessLog
from offload.service.upkeep import Upkeep

__all__ = ["Observability", "door_of", "door_path", "listener_of"]


NEEDED: Final = {"prometheus_client": "prometheus-client", "starlette": "starlette", "uvicorn": "uvicorn"}

_log: Final = logging.getLogger(__name__)


def listener_of(address: tuple[str, int] | None, *, option: str = "--listen") -> socket.socket | None:
    """Return the socket on which the process answers, or None if it shall not.

    Raises `Misuse` if the port is in use or the libraries are missing. Call it before anything starts.
    """
    if address is None:
        return None
    for module, package in NEEDED.items():
        if find_spec(module) is None:
            raise Misuse(missing_text(option, package, "ledger-offload[run]"))
    return listen(*address)


def door_path(config: RunConfig, environ: Mapping[str, str]) -> Path | None:
    """Return where the process of a configuration has its door. None if it shall have none.

    Raises `OSError` if the default folder cannot be used.
    """
    if config.control == OFF:
        return None
    if config.control is not None:
        return Path(config.control).absolute()
    return runtime_folder(environ) / default_name(config.source, config.tier)


@contextmanager
def door_of(config: RunConfig, environ: Mapping[str, str]) -> Iterator[Door | None]:
    """Yield the door of the process, or None if it has none. It is closed at the end.

    Raises `Misuse` if the configuration names a path that cannot be used. Without a name, a door that cannot
    be opened is a line in the log.
    """
    door = None
    try:
        path = door_path(config, environ)
        missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
        if path is not None and missing:
            raise Misuse(missing_text("control", missing[0], "ledger-offload[run]"))
        door = None if path is None else open_door(path)
    except (Misuse, OSError) as error:
        if config.control is not None:
            raise Misuse(f"control: {error}") from error
        _log.warning("offload ctl cannot reach this process: %s", error)
    try:
        yield door
    finally:
        if door is not None:
            door.close()


@dataclass(slots=True, kw_only=True)
class Observability:
    """Passes the events of a process on, also to its metrics if the process listens."""

    listeners: list[Callable[[Event], None]]
    advice: Advises = NO_ADVICE

    def emit(self, event: Event) -> None:
        """Pass the event to every listener."""
        for listener in self.listeners:
            listener(event)

    def side_tasks(
        self,
        dispatchers: list[Dispatcher],
        upkeep: Upkeep,
        session: Session,
        listener: socket.socket | None,
        environ: Mapping[str, str],
        tier: str,
        *,
        door: Door | None,
        notes: PauseNotes,
    ) -> list[SideTask]:
        """Return what to run beside the followers. `environ` names the service manager, if there is one.

        `tier` is a URL: the disk of a folder is measured.
        """
        health = Health(dispatchers=dispatchers, upkeep=upkeep, advice=self.advice)
        notifier = notifier_of(environ, health, session.env)
        told: list[SideTask] = [ReadinessLog(health=health, env=session.env).run]
        if notifier is not None:
            told.append(notifier.run)
        self.listeners.append(notes.emit)
        if listener is None and door is None:
            return told
        # A process that does not listen needs no extra.
        from offload.service.http import door_routes, routes, serve_door, serve_http
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
            unverified=lambda: None if upkeep.rounds is None else upkeep.rounds.oldest_seconds,
        )
        self.listeners.append(metrics.emit)
        told += [disk.run for disk in disks]
        if listener is not None:
            _log.info("answering on %s", address_of(listener))
            application = routes(health, metrics.text)
            told.append(lambda stopping: serve_http(application, listener))
        if door is not None:
            _log.info("offload ctl is answered at %s", door.path)
            commands = door_routes(health, metrics.text, Commanding(dispatchers=dispatchers, notes=notes))
            told.append(lambda stopping: serve_door(commands, door.listener))
        return told
