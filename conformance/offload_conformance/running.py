"""A run of the suite, from a backend and a URL to the report. The run removes what it wrote, however it ends.

Invariant: no clause is imported before pytest runs, because pytest rewrites assertions during the import.
Otherwise a failure would be a bare `AssertionError`.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from offload.cli.kit.ending import Usage
from offload.cli.kit.output import print_note
from offload.cli.kit.terminal import live_line
from offload.contracts.plugin import CONTRACT, Backend
from offload.ground.errors import Misuse, OffloadError
from offload.opening.plugins import Plugin
from offload_conformance import performance
from offload_conformance import report as reports
from offload_conformance.asynchronous import CLAUSE_SECONDS_MAX
from offload_conformance.box import BoxListener, Result
from offload_conformance.box import run as run_pytest
from offload_conformance.clauses import LAYERS, clauses_of
from offload_conformance.current import CURRENT
from offload_conformance.place import BackendPlace, OffloaderPlace, StorePlace


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
    upload_size_bytes: int = 0,
    listing_keys: int = 0,
    clause_seconds_max: float = CLAUSE_SECONDS_MAX,
    ask: bool = True,
    measure: bool = False,
) -> reports.Document:
    """Run the clauses, measure, and return the report. After Ctrl-C it has the results so far.

    Raises `Usage` for wrong arguments, and `KeyboardInterrupt` if Ctrl-C came before the clauses were known.
    """
    started, clock = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
    if measure and backend.kind != "store":
        raise Usage(f"--performance measures stores, but the backend {backend.name!r} opens an offloader")
    place = _place(backend, url, options, server_version, upload_size_bytes)
    place.clause_seconds_max, place.listing_keys = clause_seconds_max, listing_keys
    try:
        place.try_out()
        done = _work(place, select=select, seed=seed, ask=ask, measure=measure)
        return {
            "report": reports.VERSION,
            "suite_version": version("ledger-offload"),
            "contract": CONTRACT,
            "backend": {
                "name": backend.name,
                "kind": backend.kind,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "tested_against": backend.tested_against,
            },
            "url": place.shown_url,
            "server": server,
            "server_version": server_version,
            "environment": _environment(),
            "capabilities": place.capabilities(),
            "capability_states": done.capabilities,
            "seed": seed,
            "select": list(select),
            "started_at": started,
            "duration_seconds": round(time.monotonic() - clock, 3),
            "interrupted": done.interrupted,
            "totals": reports.totals({"outcome": each.outcome} for each in done.results),
            "clauses": [_clause(each, place) for each in done.results],
            "performance": done.performance,
            "left": done.left,
        }
    finally:
        place.close()


def _place(
    backend: Backend,
    url: str,
    options: Mapping[str, Any],
    server_version: str | None,
    upload_size_bytes: int,
) -> BackendPlace:
    try:
        if backend.kind == "store":
            return StorePlace(
                backend, url, options, server_version=server_version, upload_size_bytes=upload_size_bytes
            )
        return OffloaderPlace(backend, url, options)
    except Misuse as exc:
        raise Usage(str(exc)) from exc


@dataclass(slots=True)
class _Done:
    """The results of a run until it ended or was stopped."""

    results: list[Result] = field(default_factory=list)
    capabilities: dict[str, dict[str, object]] = field(default_factory=dict)
    performance: reports.Document | None = None
    left: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False


def _work(place: BackendPlace, *, select: Sequence[str], seed: int, ask: bool, measure: bool) -> _Done:
    """Run the clauses, measure, and clean up.

    If an error is raised, a note lists what is left in the store.
    """
    done, ended = _Done(), False
    try:
        with live_line("collecting the clauses") as tell:
            if ask:
                _ask(place, done, BoxListener(select=select, seed=seed, tell=tell), seed)
            else:
                done.results = _all_unasked()
            if measure and not done.interrupted:
                _measure(place, done, seed, tell)
        ended = True
    finally:
        done.left = place.finish()
        if not ended:
            for key, reason in done.left.items():
                print_note(f"left in the store: {key}: {reason}")
    return done


def _all_unasked() -> list[Result]:
    """Return every clause as not selected, for a run that only measures."""
    from offload_conformance.backend import SUITES  # late: see the docstring of this module

    return [Result(clause, message="not selected") for clause in clauses_of(*SUITES)]


def _ask(place: BackendPlace, done: _Done, listener: BoxListener, seed: int) -> None:
    """Run pytest. Clauses that Ctrl-C prevented are `not_run`."""
    token = CURRENT.set(place)
    try:
        done.interrupted = not run_pytest(listener, seed=seed)
    finally:
        CURRENT.reset(token)
    if listener.unmatched:
        raise Usage(f"--select {listener.unmatched[0]!r} matches no layer and no clause")
    if not listener.results and done.interrupted:
        raise KeyboardInterrupt
    if not listener.results:
        raise OffloadError(f"cannot run the suite: {listener.trouble.strip() or 'it has no clauses'}")
    for result in listener.results.values():
        result.settle()
    done.capabilities = listener.capabilities
    done.results = sorted(listener.results.values(), key=lambda each: LAYERS.index(each.clause.layer))


def _measure(place: BackendPlace, done: _Done, seed: int, tell: Callable[[str], None]) -> None:
    """Measure the store. After Ctrl-C the complete rows are kept."""
    assert isinstance(place, StorePlace)
    account, found = place.begin("performance"), reports.Document()

    async def measured() -> None:
        store = place.open(account)
        try:
            await performance.measure(store, found, clock=time.monotonic, seed=seed, tell=tell)
        finally:
            await store.aclose()

    try:
        asyncio.run(measured())
    except KeyboardInterrupt:
        done.interrupted = True
    done.performance = found or None


def _clause(result: Result, place: BackendPlace) -> reports.Document:
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
        "retries": sum(account.retries for account in accounts),
    }


def _environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
    }
