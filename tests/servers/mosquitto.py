"""A mosquitto, a real MQTT broker, from unpacked Debian packages.

Its database is in the scratch folder, so that it can be stopped or killed, and started again on its files.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from servers.processes import NotReady, bound_to_us, end_of, free_port, stop
from servers.recipes import DebianPackages
from servers.scratch import scratch_folder
from servers.session import REQUIRED

READY_SECONDS: Final = 30.0

RECIPE: Final = DebianPackages("mosquitto", ("mosquitto", "libmosquitto1", "libcjson1", "libdlt2"))

WHOLE: Final = (
    "persistence true",
    "autosave_interval 1",
    "max_queued_messages 0",
    "max_inflight_messages 0",
)
"""The settings under which it drops nothing while it runs, and loses at most a second when it is killed."""


@dataclass
class Mosquitto:
    """A broker on loopback. It keeps its port and its database when it is started again."""

    scratch: Path
    settings: Sequence[str] = WHOLE
    port: int = field(default_factory=free_port)
    running: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the URL of the broker."""
        return f"mqtt://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """Return the file with its output."""
        return self.scratch / "mosquitto.log"

    def start(self) -> None:
        """Start it, and return once it listens. Raises `NotReady` if it does not."""
        program = RECIPE.folder
        libraries = sorted({str(each.parent) for each in program.glob("usr/lib/*/lib*.so.*")})
        configuration = self.scratch / "mosquitto.conf"
        plain = [f"listener {self.port} 127.0.0.1", "allow_anonymous true"]
        own = any(line.startswith("listener ") for line in self.settings)
        lines = [f"persistence_location {self.scratch}/", *([] if own else plain), *self.settings]
        if os.geteuid() == 0:  # it would change to a user that the machine lacks
            lines.append("user root")
        configuration.write_text("\n".join(lines) + "\n")
        with self.log.open("ab") as output:
            self.running = subprocess.Popen(
                [*bound_to_us(), program / "usr/sbin/mosquitto", "-c", configuration],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)},
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_SECONDS
        while not _listens(self.port):
            if self.running.poll() is not None or time.monotonic() > deadline:
                raise NotReady(f"mosquitto did not start: {end_of(self.log)}")
            time.sleep(0.01)

    def stop(self) -> None:
        """End it in order: it saves its database."""
        if self.running is not None:
            stop(self.running)

    def kill(self) -> None:
        """End it at once, as a lost machine would."""
        assert self.running is not None
        with suppress(ProcessLookupError):
            os.killpg(self.running.pid, signal.SIGKILL)
        self.running.wait()


@contextmanager
def mosquitto(scratch: Path, *settings: str) -> Iterator[Mosquitto]:
    """Yield a running broker with these settings in place of `WHOLE`. On exit it has ended."""
    broker = Mosquitto(scratch, settings or WHOLE)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@contextmanager
def serving() -> Iterator[Mosquitto]:
    """Yield a running broker in a scratch folder of its own."""
    with scratch_folder("mosquitto") as scratch, mosquitto(scratch) as broker:
        yield broker


def require() -> None:
    """Skip the test if mosquitto is missing, or fail it if servers are required."""
    if (why := RECIPE.missing()) is not None:
        required = os.environ.get(REQUIRED) == "1"
        (pytest.fail if required else pytest.skip)(f"mosquitto cannot be run here: {why}")


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
