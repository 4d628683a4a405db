"""Server processes on loopback: started on a free port, awaited, and stopped by their own pid."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from random import SystemRandom
from typing import Final

READY_SECONDS: Final = 120.0
STOP_SECONDS: Final = 10.0
PORTS: Final = SystemRandom()
"""Chooses ports. Tests may seed the generator of the module `random`, which would repeat them."""


class NotReady(Exception):
    """The error if a server ended at once or did not answer in time; it has the end of its output."""


def free_port() -> int:
    """Return a port of loopback on which nobody listens now.

    The server listens there only later. So the port is none that the system could give to a client meanwhile:
    those of thousands of requests come from the range of Linux' `ip_local_port_range`.
    """
    for _ in range(1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", PORTS.randrange(10_240, _first_of_clients())))
            port: int = probe.getsockname()[1]
            return port
    raise NotReady("no port of loopback is free")


@lru_cache(1)
def _first_of_clients() -> int:
    """Return the first port that the system chooses for clients."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except FileNotFoundError:  # not on Linux: the range that IANA gives to clients
        return 49_152


@contextmanager
def process(
    *argv: str | Path, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process. On exit it is asked to end, awaited, and killed if it does not end."""
    with log.open("wb") as output:
        running = subprocess.Popen(
            [*bound_to_us(), *map(str, argv)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,  # Ctrl-C is for pytest, which then stops this process
        )
    try:
        yield running
    finally:
        stop(running)


def stop(running: subprocess.Popen[bytes]) -> None:
    """Terminate the process, wait, and kill it if it still runs."""
    running.terminate()
    try:
        running.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait(STOP_SECONDS)


def wait_until_it_answers(url: str, running: subprocess.Popen[bytes], *, log: Path) -> None:
    """Return as soon as `url` gets any answer. Raises `NotReady` if it never does."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if running.poll() is not None:
            raise NotReady(f"ended at once with code {running.returncode}: {end_of(log)}")
        if _answers(url):
            return
        time.sleep(0.05)
    raise NotReady(f"did not answer within {READY_SECONDS:.0f} seconds: {end_of(log)}")


def end_of(log: Path) -> str:
    """Return the last lines of a log, for a message."""
    return " / ".join(log.read_text(errors="replace").splitlines()[-5:]) or "it printed nothing"


def bound_to_us() -> Sequence[str]:
    """Return a prefix for commands: with Linux' setpriv(1), a server ends when its parent is killed."""
    found = shutil.which("setpriv")
    return [found, "--pdeathsig", "TERM", "--"] if found else []


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError as refusal:
        refusal.close()
        return True
    except OSError:
        return False
