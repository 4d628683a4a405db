"""Messages to the service manager that started the process, as systemd's `Type=notify` expects them.

    READY=1       the process follows its streams
    WATCHDOG=1    the event loop answers, as for `/livez`. Without it, systemd restarts the process
    STATUS=       one line for `systemctl status`: what the process leads, and its first problem
    STOPPING=1    the process ends, and commits what is in flight

The manager names its socket in the variable NOTIFY_SOCKET: a path, or an abstract name that begins with "@".

Invariants:

- Each message has all of it, so a message that is lost is made up for by the next one.
- Nothing here waits for the manager: one that does not read loses messages, and stops no follower.
- A message is sent by the event loop that copies, and from nowhere else: a loop that hangs sends none.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from offload.ground.env import Env
from offload.ground.outside import number_outside
from offload.service.health import Health

__all__ = ["Notifier", "notifier_of"]


BEAT_SECONDS_MAX: Final = 10.0
BEATS_PER_WATCHDOG: Final = 3
"""So that one or two messages may be lost."""

STATUS_SIZE_BYTES_MAX: Final = 1000
"""systemd drops messages of more than a page of memory."""

_log: Final = logging.getLogger(__name__)


def notifier_of(environ: Mapping[str, str], health: Health, env: Env) -> Notifier | None:
    """Return what sends messages to the manager of this process, or None if it has none that listens."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return None
    beat_seconds = BEAT_SECONDS_MAX
    microseconds = number_outside(environ.get("WATCHDOG_USEC", ""))
    is_ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    if is_ours and microseconds:
        beat_seconds = min(beat_seconds, microseconds / 1e6 / BEATS_PER_WATCHDOG)
    return Notifier(address=address, beat_seconds=beat_seconds, health=health, env=env)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifier:
    """Sends messages to the service manager, every few seconds."""

    address: str
    beat_seconds: float
    health: Health
    env: Env = field(default_factory=Env)

    async def run(self, stopping: asyncio.Event) -> None:
        """Send messages until this is cancelled. The first ones come at once, and when `stopping` is set."""
        ends = asyncio.ensure_future(stopping.wait())
        try:
            while True:
                self._send("STOPPING=1" if ends.done() else "READY=1")
                pause = asyncio.ensure_future(self.env.sleep(self.beat_seconds))
                waits = [pause] if ends.done() else [pause, ends]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    pause.cancel()
        finally:
            ends.cancel()

    def _send(self, state: str) -> None:
        message = f"{state}\nWATCHDOG=1\nSTATUS={_cut(self._status())}".encode()
        name = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(message, name)
        except OSError as error:  # the next message may arrive
            _log.debug("the service manager at %s takes no message: %s", self.address, error)

    def _status(self) -> str:
        problems = self.health.problems()
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        return self.health.summary() + (f"; {problems[0]}{more}" if problems else "")


def _cut(text: str) -> str:
    return text.encode()[:STATUS_SIZE_BYTES_MAX].decode(errors="ignore")
