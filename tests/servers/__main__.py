"""`make servers`: install every server that is available here, try each once, and print the results.

Downloads run in parallel. Builds, which take both processors for minutes, run one after
another. Installed servers stay as they are. The exit code is 0 only if every server can be run.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from servers.catalogue import SERVERS, Server
from servers.processes import NotReady
from servers.rabbitmq import RECIPE, rabbitmq
from servers.recipes import home
from servers.scratch import scratch_folder
from servers.table import aligned

HEAD: Final = ("protocol", "server", "version", "installed in", "ready after", "")
TRIED_AT_ONCE: Final = 2
KEY, DATA = "a/tried once", b"\x00\xff some bytes\r\n"


def main() -> int:
    """Install the servers, try them, and print the table."""
    print(f"servers for tests, in {home()}", flush=True)
    with ThreadPoolExecutor(1) as one_by_one, ThreadPoolExecutor(len(SERVERS)) as side_by_side:
        installing = [
            (one_by_one if each.recipe.builds else side_by_side).submit(_installed, each) for each in SERVERS
        ]
        broker = side_by_side.submit(RECIPE.install)
    with ThreadPoolExecutor(TRIED_AT_ONCE) as trying:
        rows = [*trying.map(_row, SERVERS, installing), _broker_row(broker)]
    for line in aligned([HEAD, *rows]):
        print(line)
    return 0 if all("CANNOT" not in row[-1] for row in rows) else 1


def _installed(server: Server) -> str:
    if server.missing() is None:
        return "-"
    print(f"{server.name} {server.recipe.version}: installing", flush=True)
    started = time.monotonic()
    server.recipe.install()
    print(f"{server.name} {server.recipe.version}: installed in {_since(started)}", flush=True)
    return _since(started)


def _row(server: Server, installing: Future[str]) -> tuple[str, ...]:
    """Return the row of one server. A server that cannot be installed or run does not hide the others."""
    installed = ready = "-"
    try:
        installed = installing.result()
        started = time.monotonic()
        with server.running() as running:
            ready = _since(started)
            place = running.place()
            place.put(KEY, DATA)
            if (place.keys(), place.get(KEY)) != ({KEY}, DATA):
                raise NotReady("it does not give back what was put")
        said = server.purpose
    except Exception as exc:  # noqa: BLE001 - an error of its client concerns only this server
        said = f"CANNOT BE RUN: {exc}"
    return server.protocol, server.name, server.recipe.version, installed, ready, said


def _broker_row(installing: Future[None]) -> tuple[str, ...]:
    """Return the row of RabbitMQ. It stores no objects: its files are copied, and it is asked about them."""
    ready = "-"
    try:
        installing.result()
        started = time.monotonic()
        with scratch_folder("rabbitmq") as scratch, rabbitmq(scratch):
            ready = _since(started)
        said = "a broker whose streams are copied"
    except Exception as exc:  # noqa: BLE001 - as above
        said = f"CANNOT BE RUN: {exc}"
    return "stream", "rabbitmq", RECIPE.version, "-", ready, said


def _since(started: float) -> str:
    return f"{time.monotonic() - started:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
