"""One run of the suite as a black box: pytest in this process, and a plugin that records the results.

Invariants: everything that the run wrote is removed, however it ends. If this process runs under pytest
itself, nothing of that run is changed. A clause that did not run to its end is `not_run`, with the reason.
"""

from __future__ import annotations

import io
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import hypothesis.core
import pytest

from offload.ground.errors import OffloadError
from offload_conformance.asynchronous import Overdue
from offload_conformance.clauses import Clause, clause_of
from offload_conformance.draws import by_seed_alone
from offload_conformance.findings import FINDINGS, NOTE

_USE_V: Final = re.compile(r"\s*Use -v+ to get more diff$", re.MULTILINE)
"""Advice of pytest that does not apply to this command."""

_NOT_RAISED: Final = re.compile(r"\AFailed: DID NOT RAISE (?:any of )?(.+)\Z")
_RAISED: Final = re.compile(
    rf"\A(?:{re.escape(OffloadError.__module__)}\.)?(?!AssertionError|Failed)((?:\w+\.)*[A-Z]\w*): "
)
"""The texts by which pytest reports that an error was missing, or that one was raised."""

Outcome = Literal["passed", "failed", "not_run"]

SUITE: Final = Path(__file__).with_name("suite.py")

HUNG_MAX: Final = 5
"""After so many clauses hung, no other clause runs: each would take its deadline to give the same result."""


@dataclass(slots=True)
class Result:
    """The result of one clause."""

    clause: Clause
    outcome: Outcome = "not_run"
    message: str = ""
    cases: int = 0
    """The number of its cases that ran."""

    duration_seconds: float = 0.0
    tests: list[str] = field(default_factory=list)
    """The ids that pytest gives its cases."""

    unfinished: int = 0
    skipped: str = ""
    note: str = ""
    """Something that limited the clause and that an option can change."""

    def settle(self) -> None:
        """Set the final outcome: a clause passed only if every case ran to its end."""
        if self.outcome == "failed":
            return
        if self.skipped or self.unfinished or not self.cases:
            self.outcome = "not_run"
            self.message = self.skipped or self.message or "the run was stopped"
        else:
            self.outcome, self.message = "passed", self.note


class BoxListener:
    """The pytest plugin that chooses tests, seeds them, and records how each ends."""

    def __init__(self, *, select: Sequence[str], seed: int, tell: Callable[[str], None]) -> None:
        self.results: dict[str, Result] = {}
        self.capabilities: dict[str, dict[str, object]] = {}
        """The finding for each tested capability, by name."""

        self.unmatched: list[str] = []
        self.trouble = ""
        """The reason why nothing could be collected."""

        self._select, self._seed, self._tell = select, seed, tell
        self._of_test: dict[str, Result] = {}
        self._chosen = self._done = 0
        self._hung: set[str] = set()
        """The ids of the clauses that exceeded their deadline."""

        self._now: tuple[Result, float] | None = None
        """The running clause, and the time at which it began."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep the error if the suite itself cannot be imported."""
        if report.failed:
            self.trouble = report.longreprtext

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the selected tests. The others are in the report too, as not run."""
        for item in items:
            assert isinstance(item, pytest.Function)
            clause = clause_of(item.parent.obj, item.originalname)  # type: ignore[union-attr]
            result = self.results.setdefault(clause.id, Result(clause))
            result.tests.append(item.nodeid)
            self._of_test[item.nodeid] = result
        clauses = [result.clause for result in self.results.values()]
        # A pattern without a match is a typing error: running the others would look like success.
        self.unmatched = [each for each in self._select if not any(c.matches(each) for c in clauses)]
        chosen = [item for item in items if self._is_selected(self._of_test[item.nodeid])]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        # Pytest runs what is left in this very list.
        items[:] = [] if self.unmatched else chosen
        self._chosen = len(items)
        for item in items:
            self._of_test[item.nodeid].unfinished += 1

    def _is_selected(self, result: Result) -> bool:
        selected = not self._select or any(result.clause.matches(each) for each in self._select)
        if not selected:
            result.message = "not selected"
        return selected

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Seed the draws by the test's name, so that a test draws the same alone as in a whole run."""
        clause = self._of_test[item.nodeid].clause.id
        if clause in self._hung:
            pytest.skip("another case of this clause exceeded its deadline")
        if len(self._hung) >= HUNG_MAX:
            pytest.skip(f"{HUNG_MAX} other clauses had exceeded their deadlines")
        # By the name and not by position: `--select` must not change what a test draws.
        random.seed(f"{self._seed} {item.name}")
        self._now = self._of_test[item.nodeid], time.monotonic()
        self._tell(f"{self._done} of {self._chosen}: {clause}")

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Note that a clause hung."""
        if call.excinfo is not None and call.excinfo.errisinstance(Overdue):
            self._hung.add(self._of_test[item.nodeid].clause.id)

    def pytest_keyboard_interrupt(self) -> None:
        """Record the clause in which Ctrl-C ended the run, and how long it had run by then."""
        if self._now is not None:
            result, began = self._now
            result.skipped = f"Ctrl-C ended the run {time.monotonic() - began:.1f} s after this clause began"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record one phase of one case."""
        result = self._of_test[report.nodeid]
        result.duration_seconds += report.duration
        if report.failed and result.outcome != "failed":
            result.outcome, result.message = "failed", _message(report)
        elif report.skipped:
            result.skipped = result.skipped or _reason(report)
        elif report.when == "call":  # a case counts once, by its call; setup and teardown may only fail it
            result.cases += 1
        if report.failed and report.when == "call":
            result.cases += 1
        if report.when == "teardown":
            result.unfinished -= 1
            self._done += 1

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Record what a test found about capabilities, and what limited it."""
        self._of_test[item.nodeid].note = item.stash.get(NOTE, "")
        found = item.stash.get(FINDINGS, None)
        self.capabilities |= found or {}


def run(listener: BoxListener, *, seed: int) -> bool:
    """Run pytest once, on the current place. Return False if Ctrl-C stopped it."""
    arguments = [str(SUITE), "--import-mode=importlib", "--capture=no", "-q", "--no-header"]
    # Only the message of a failure is shown. The other styles parse each source file of a traceback.
    arguments += ["--tb=native"]
    # Otherwise pytest lists every folder above the suite, and runs a `conftest.py` that it finds there.
    arguments += ["--confcutdir", str(SUITE.parent)]
    arguments += ["-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:terminalreporter"]
    # This plugin of pytest collects garbage five times, for warnings that nobody would read here.
    arguments += ["-p", "no:unraisableexception"]
    arguments += ["-p", "offload_conformance.pytest_plugin"]
    # In a second run of one process the clauses are imported already, and pytest would warn of that.
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    arguments += ["-p", "_hypothesis_pytestplugin", f"--hypothesis-seed={seed}"]
    with tempfile.TemporaryDirectory(prefix="conformance-") as scratch, _alone():
        arguments += ["--rootdir", scratch, "--basetemp", os.path.join(scratch, "tests")]
        code = pytest.main(arguments, plugins=[listener])
    return code != pytest.ExitCode.INTERRUPTED


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other plugins, options and output out of the run, and restore everything afterwards."""
    before = {name: os.environ.get(name) for name in ("PYTEST_ADDOPTS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD")}
    forced = hypothesis.core.global_force_seed
    drawn = random.getstate()
    os.environ.pop("PYTEST_ADDOPTS", None)
    # A plugin of the environment could reorder, retry or parallelize the clauses.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        with redirect_stdout(io.StringIO()), by_seed_alone():
            yield
    finally:
        random.setstate(drawn)
        hypothesis.core.global_force_seed = forced
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        for name, module in [*sys.modules.items()]:
            if getattr(module, "__file__", None) == str(SUITE):
                del sys.modules[name]  # the next run must import it again, for its own place


def _message(report: pytest.TestReport) -> str:
    """Return what a failed test expected and found, and in which case."""
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    text = _USE_V.sub("", crash.message if crash is not None else report.longreprtext)
    text = text.removeprefix(f"{Overdue.__module__}.{Overdue.__name__}: ")
    text = _NOT_RAISED.sub(r"expected \1; found no error", text)
    text = _RAISED.sub(r"expected no error; found \1: ", text)
    # The id of a case may contain brackets, so only the first one begins it.
    _, bracket, case = report.nodeid.partition("[")
    where = {"setup": "before the test: ", "teardown": "after the test: "}.get(report.when, "")
    return f"{where}{text}" + (f" (case {case.rstrip(']')})" if bracket else "")


def _reason(report: pytest.TestReport) -> str:
    """Return the reason for which a test skipped itself."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return reason.removeprefix("Skipped: ")
