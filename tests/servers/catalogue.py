"""Every server that the tests know: one entry each, with its version, and what it is for."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from servers.places import PLACES, Place
from servers.processes import free_port, process, wait_until_it_answers

Start = Callable[[Path], AbstractContextManager[str]]
"""Starts a server in a scratch folder that is its own, and says its URL once it answers."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that can be run on loopback, and what its kind of success is worth."""

    name: str
    protocol: Literal["s3", "gcs", "azure"]
    kind: Literal["fake", "emulator", "real server"]
    honours_create: bool = True
    """False: it overwrites what it should only create. Commits to it must be refused."""

    version: str
    start: Start

    def missing(self) -> str | None:
        """Why it cannot be run on this machine, and what to do; None where it can."""
        return None

    @contextmanager
    def running(self) -> Iterator[Running]:
        """Started on a free port of loopback; on leaving it has ended and its files are gone."""
        with (
            tempfile.TemporaryDirectory(prefix=f"{self.name}-", ignore_cleanup_errors=True) as scratch,
            self.start(Path(scratch)) as endpoint,
        ):
            yield Running(server=self, endpoint=endpoint, version=self.version)


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that runs."""

    server: Server
    endpoint: str
    version: str

    def place(self) -> Place:
        """A new, empty bucket or container."""
        return PLACES[self.server.protocol](self.endpoint)


@contextmanager
def _moto(scratch: Path) -> Iterator[str]:
    port, log = free_port(), scratch / "log"
    argv = (sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port))
    with process(*argv, log=log) as running:
        endpoint = f"http://127.0.0.1:{port}"
        wait_until_it_answers(endpoint, running, log=log)
        yield endpoint


SERVERS: Final[tuple[Server, ...]] = (
    Server(name="moto", protocol="s3", kind="fake", version=version("moto"), start=_moto),
)


def server(name: str) -> Server:
    """The server of this name."""
    return {each.name: each for each in SERVERS}[name]
