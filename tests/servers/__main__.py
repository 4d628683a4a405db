"""`make servers`: install every server that is available here, try each once, and print the results.

Downloads run in parallel. Builds, which take both processors for minutes, run one after
another. Installed servers stay as they are. The exit code is 0 only if every server can be run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

from servers import javac, mosquitto
from servers.catalogue import SERVERS, Server
from servers.metadata import BY_NAME
from servers.processes import NotReady
from servers.rabbitmq import RECIPE, rabbitmq
from servers.recipes import Recipe, home
from servers.scratch import scratch_folder
from servers.table import aligned

HEAD: Final = ("protocol", "server", "version", "installed in", "ready after", "")
TRIED_AT_ONCE: Final = 2


@dataclass(frozen=True)
class Other:
    """A server that stores no objects by a protocol of the catalogue. To try it is to start it."""

    protocol: str
    name: str
    recipe: Recipe
    start: Callable[[], AbstractContextManager[object]]
    purpose: str


@contextmanager
def _broker() -> Iterator[object]:
    with scratch_folder("rabbitmq") as scratch, rabbitmq(scratch) as broker:
        yield broker


OTHERS: Final = (
    Other("stream", "rabbitmq", RECIPE, _broker, "a broker whose streams are copied"),
    Other("mqtt", "mosquitto", mosquitto.RECIPE, mosquitto.serving, "a broker without history, for archives"),
    Other("a program", "javac", javac.RECIPE, javac.compiler, "compiles Spark's Java reader"),
    *(Other("records", name, each.recipe, each.serving, each.purpose) for name, each in BY_NAME.items()),
)
KEY, DATA = "a/tried once", b"\x00\xff some bytes\r\n"


def main() -> int:
    """Install the servers, try them, and print the table."""
    print(f"servers for tests, in {home()}", flush=True)
    with ThreadPoolExecutor(1) as one_by_one, ThreadPoolExecutor(len(SERVERS)) as side_by_side:
        installing = [
            (one_by_one if each.recipe.builds else side_by_side).submit(_installed, each) for each in SERVERS
        ]
        others = [side_by_side.submit(each.recipe.install) for each in OTHERS]
    with ThreadPoolExecutor(TRIED_AT_ONCE) as trying:
        rows = [*trying.map(_row, SERVERS, installing), *trying.map(_other_row, OTHERS, others)]
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


def _other_row(other: Other, installing: Future[None]) -> tuple[str, ...]:
    """Return the row of one of the other servers."""
    ready, said = "-", other.purpose
    try:
        installing.result()
        started = time.monotonic()
        with other.start():
            ready = _since(started)
    except Exception as exc:  # noqa: BLE001 - as above
        said = f"CANNOT BE RUN: {exc}"
    return other.protocol, other.name, other.recipe.version, "-", ready, said


def _since(started: float) -> str:
    return f"{time.monotonic() - started:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
