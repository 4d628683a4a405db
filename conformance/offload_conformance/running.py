"""From a backend and a URL to the document of a run. What the run wrote is removed however it ends."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from offload.cli.output import live_line, print_note
from offload.cli.state import Usage
from offload.errors import Misuse, OffloadError
from offload.plugins import Backend, Plugin
from offload_conformance import report as reports
from offload_conformance.box import Listener, Result
from offload_conformance.box import run as run_pytest
from offload_conformance.clauses import LAYERS
from offload_conformance.current import CURRENT
from offload_conformance.place import OffloaderPlace, Place, StorePlace


def run(
    *,
    backend: Backend,
    plugin: Plugin,
    url: str,
    options: Mapping[str, Any],
    select: Sequence[str],
    seed: int,
    server: str | None,
    server_version: str | None = None,
) -> reports.Document:
    """Run the suite and report. Raises `Usage` for wrong arguments, and Ctrl-C when all is cleaned up."""
    started, clock = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
    place = _place(backend, url, options, server_version)
    try:
        place.try_out()
        listener, left = _listen(place, select=select, seed=seed)
        if listener.unmatched:
            raise Usage(f"--select {listener.unmatched[0]!r} names no layer and no clause")
        if not listener.results:
            raise OffloadError(f"the suite cannot be run: {listener.trouble.strip() or 'it has no clauses'}")
        return {
            "report": reports.VERSION,
            "suite_version": version("ledger-offload"),
            "backend": {
                "name": backend.name,
                "kind": backend.kind,
                "distribution": plugin.distribution,
                "version": plugin.version,
            },
            "url": place.shown_url,
            "server": server,
            "server_version": server_version,
            "environment": _environment(),
            "capabilities": place.capabilities(),
            "capability_states": listener.capabilities,
            "seed": seed,
            "select": list(select),
            "started_at": started,
            "duration_seconds": round(time.monotonic() - clock, 3),
            "totals": reports.totals({"outcome": each.outcome} for each in listener.results.values()),
            "clauses": [_clause(each, place) for each in _in_order(listener)],
            "left": left,
        }
    finally:
        place.close()


def _place(backend: Backend, url: str, options: Mapping[str, Any], server_version: str | None) -> Place:
    try:
        if backend.kind == "store":
            return StorePlace(backend, url, options, server_version=server_version)
        return OffloaderPlace(backend, url, options)
    except Misuse as exc:
        raise Usage(str(exc)) from exc


def _listen(place: Place, *, select: Sequence[str], seed: int) -> tuple[Listener, dict[str, str]]:
    """Run pytest, then clean up; what is still there is told also where Ctrl-C ends the run."""
    token = CURRENT.set(place)
    ended = False
    try:
        with live_line("collecting the clauses") as tell:
            listener = Listener(select=select, seed=seed, tell=tell)
            ended = run_pytest(listener, seed=seed)
    finally:
        CURRENT.reset(token)
        left = place.finish()
        if not ended:
            for key, reason in left.items():
                print_note(f"left in the store: {key}: {reason}")
    if not ended:
        raise KeyboardInterrupt
    for result in listener.results.values():
        result.settle()
    return listener, left


def _in_order(listener: Listener) -> list[Result]:
    return sorted(listener.results.values(), key=lambda each: LAYERS.index(each.clause.layer))


def _clause(result: Result, place: Place) -> reports.Document:
    clause = result.clause
    accounts = [place.accounts[test] for test in result.tests if test in place.accounts]
    return {
        "id": clause.id,
        "layer": clause.layer,
        "text": clause.text,
        "since": clause.since,
        "advisory": clause.advisory,
        "outcome": result.outcome,
        "cases": result.cases,
        "message": result.message,
        "duration_seconds": round(result.duration_seconds, 3),
        "requests": sum(account.requests for account in accounts),
    }


def _environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
    }
