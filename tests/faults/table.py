"""Print how long `offload sync` and `offload read` take, and how they end, on a server in trouble.

    PYTHONPATH=tests python -m faults.table [--server minio]... [--only WORD] [--tls]

This runs in real time, so it takes some minutes and is not a test. The tests make the same claims with their
own clocks. Each row is a command with its own process, bucket and proxy. `intact` means that the messages
were read back afterwards, past the proxy, and equal those of the source.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Final

from certificates import certificate
from command_line import SOURCE, Ran, finish, formula, start
from osiris_data import MANIFEST
from servers import Place, Running
from servers.catalogue import server
from servers.proxy import Fault, Plan, Proxy, Request, Rule, proxied
from servers.proxy_tls import Tls
from servers.session import Session
from servers.table import aligned

STREAM: Final = "filtered"
ENDS_SECONDS: Final = 400.0
HEAD: Final = ("fault", "command", "server", "seconds", "exit code", "faults", "notes", "intact")
FRAGMENT, ROOT, LISTING = "*/data/*.fragment*", "*/root.*", "*list-type=2*"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A fault, and the command that meets it."""

    name: str
    command: str
    rules: Callable[[], list[Rule]] = list
    plan: dict[str, int | None] = field(default_factory=dict)
    gone_seconds: float = 0.0
    """The time for which the server is gone, from the first request for a fragment on."""


ROWS: Final = (
    Row(name="none", command="sync"),
    Row(name="none", command="read"),
    Row(
        name="stall of a GET before its reply",
        command="read",
        rules=lambda: [Rule(Fault.STALL, "GET", FRAGMENT, nth=1)],
    ),
    Row(
        name="stall of a GET within its reply",
        command="read",
        rules=lambda: [Rule(Fault.STALL, "GET", FRAGMENT, nth=1)],
        plan={"stall_after_bytes": 100},
    ),
    Row(
        name="stall of a PUT that is not read",
        command="sync",
        rules=lambda: [Rule(Fault.DEAF, "PUT", FRAGMENT, nth=1)],
    ),
    Row(
        name="stall of a PUT that is not answered",
        command="sync",
        rules=lambda: [Rule(Fault.STALL, "PUT", FRAGMENT, nth=1)],
    ),
    Row(name="stall of a LIST", command="sync", rules=lambda: [Rule(Fault.STALL, "GET", LISTING, nth=2)]),
    Row(name="stall of a LIST", command="read", rules=lambda: [Rule(Fault.STALL, "GET", LISTING, nth=1)]),
    Row(
        name="stall of a create that is not read",
        command="sync",
        rules=lambda: [Rule(Fault.DEAF, "PUT", ROOT, nth=1)],
    ),
    Row(
        name="stall of a create that is not answered",
        command="sync",
        rules=lambda: [Rule(Fault.STALL, "PUT", ROOT, nth=1)],
    ),
    *(
        Row(
            name=f"{fault.name.lower()} with status 200 for each first {method} of {target}",
            command=command,
            rules=lambda fault=fault, method=method, target=target: [Rule(fault, method, target, nth=1)],
        )
        for fault in (Fault.PAGE, Fault.EMPTY)
        for command, method, target in (
            ("sync", "GET", LISTING),
            ("sync", "PUT", FRAGMENT),
            ("sync", "PUT", ROOT),
            ("sync", "POST", "*delete*"),
            ("read", "GET", LISTING),
            ("read", "GET", FRAGMENT),
        )
    ),
    *(
        Row(
            name="SlowDown for 30 s",
            command=command,
            rules=lambda: [Rule(Fault.REFUSE, seconds=30)],
            plan={"retry_after_seconds_max": None},
        )
        for command in ("sync", "read")
    ),
    *(
        Row(
            name="SlowDown for 15 s, Retry-After: 20",
            command=command,
            rules=lambda: [Rule(Fault.REFUSE, seconds=15)],
            plan={"retry_after_seconds_min": 20, "retry_after_seconds_max": 20},
        )
        for command in ("sync", "read")
    ),
    *(
        Row(name=f"server gone for {seconds} s", command=command, gone_seconds=seconds)
        for seconds in (5, 30, 90)
        for command in ("sync", "read")
    ),
    Row(name="server gone for 200 s", command="sync", gone_seconds=200),
    Row(
        name="flipped byte in a reply",
        command="read",
        rules=lambda: [Rule(Fault.FLIP, "GET", FRAGMENT, nth=1)],
    ),
    Row(
        name="flipped byte in a later reply",
        command="read",
        rules=lambda: [Rule(Fault.FLIP, "GET", FRAGMENT, nth=3)],
    ),
)


def shown(row: Row, running: Running, tls: Tls | None) -> tuple[str, ...]:
    """Run one row, and return its cells. With `tls`, the command reaches the proxy over TLS."""
    place = running.place()
    if row.command == "read":
        assert _direct("sync", f"{SOURCE}/{STREAM}", place.url, place=place).code == 0
    plan = Plan(rules=row.rules())
    for name, value in row.plan.items():
        setattr(plan, name, value)
    with proxied(running.endpoint, plan, tls) as proxy:
        ran, seconds = _met(row, place, proxy)
        faults = sum(proxy.counts[fault.name.lower()] for fault in Fault)
    notes = sum("waiting for" in line for line in ran.stderr.splitlines())
    said = [line for line in ran.stderr.splitlines() if "waiting for" not in line and line]
    for line in said:
        print(f"  {row.name}, {row.command}, {running.server.name}: {line}", flush=True)
    cells = (row.name, row.command, running.server.name, f"{seconds:.1f}", str(ran.code), str(faults))
    return (*cells, str(notes), _intact(row, place, ran))


def _met(row: Row, place: Place, proxy: Proxy) -> tuple[Ran, float]:
    """Run the command behind the proxy. Return its output and the seconds that it took."""
    met = Event()

    def watch(request: Request, moment: str) -> None:
        if ".fragment" in request.target:
            met.set()

    proxy.watch = watch
    given = proxy.options(place.options)
    options = [part for name, value in given.items() for part in ("-o", f"{name}={value}")]
    arguments = (
        ("sync", f"{SOURCE}/{STREAM}", place.url)
        if row.command == "sync"
        else ("read", place.url, STREAM, "--decode", "amqp", "--format", "body")
    )
    began = time.monotonic()
    process = start(*arguments, *options)

    def ended() -> tuple[Ran, float]:
        ran = finish(process, timeout_seconds=ENDS_SECONDS)
        return ran, time.monotonic() - began

    with ThreadPoolExecutor(1) as waiting:
        ending = waiting.submit(ended)
        if row.gone_seconds and met.wait(ENDS_SECONDS):
            proxy.leave()
            time.sleep(row.gone_seconds)
            proxy.come_back()
        return ending.result()


def _intact(row: Row, place: Place, ran: Ran) -> str:
    """Return yes if every message can be read back. A sync that ended with an error runs once more first."""
    if row.command == "read":
        return _yes(_bodies(ran))
    again = ""
    if ran.code:
        code = _direct("sync", f"{SOURCE}/{STREAM}", place.url, place=place).code
        again = f"; again: exit code {code}"
    read = _direct("read", place.url, STREAM, "--decode", "amqp", "--format", "body", place=place)
    return _yes(_bodies(read)) + again


def _bodies(ran: Ran) -> bool:
    return ran.stdout.split(b"\n")[:-1] == formula(MANIFEST["streams"][STREAM]["messages"])


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "NO"


def _direct(*arguments: str, place: Place) -> Ran:
    """Run a command past the proxy."""
    options = [part for name, value in place.options.items() for part in ("-o", f"{name}={value}")]
    return finish(start(*arguments, *options), timeout_seconds=ENDS_SECONDS)


def table(servers: Iterable[str], only: str, at_once: int, is_tls: bool) -> int:
    """Print the table. Return 0 if every row is intact, otherwise 1."""
    with (
        TemporaryDirectory() as folder,
        Session() as session,
        ThreadPoolExecutor(at_once) as pool,
    ):
        made = certificate(Path(folder))
        tls = Tls(made, trusted=made.path) if is_tls else None
        running = [session.running(name) for name in servers]
        asked = [
            pool.submit(shown, row, each, tls)
            for row in ROWS
            if only in f"{row.name} {row.command}"
            for each in running
        ]
        rows = [each.result() for each in asked]
    for line in aligned([HEAD, *rows]):
        print(line)
    return 0 if all(row[7].startswith("yes") for row in rows) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--server", action="append", help="a server of the catalogue (default: minio and rgw)"
    )
    parser.add_argument("--only", default="", help="run only rows with this text in their name or command")
    parser.add_argument(
        "--at-once", type=int, default=6, help="number of commands that run at once (default: 6)"
    )
    parser.add_argument("--tls", action="store_true", help="commands reach their server over TLS")
    arguments = parser.parse_args()
    for name in arguments.server or ():
        server(name)  # raises for a name that is not in the catalogue
    raise SystemExit(
        table(
            arguments.server or ("minio", "rgw"),
            arguments.only,
            arguments.at_once,
            arguments.tls,
        )
    )
