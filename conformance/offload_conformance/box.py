"""One run of the suite as a black box: pytest in this process, and a plugin that listens.

Invariants: what the run wrote is removed however it ends; nothing of this process' own pytest, if it has one,
is changed; a clause that was not asked to its end is `not_run`, with the reason.
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

from offload_conformance.asynchronous import Overdue
from offload_conformance.clauses import Clause, clause_of
from offload_conformance.draws import by_seed_alone
from offload_conformance.findings import FINDINGS, NOTE

_USE_V: Final = re.compile(r"\s*Use -v+ to get more diff$", re.MULTILINE)
"""Advice of pytest's that means another command."""

_NOT_RAISED: Final = re.compile(r"\AFailed: DID NOT RAISE (?:any of )?(.+)\Z")
_RAISED: Final = re.compile(r"\A(?:offload\.errors\.)?(?!AssertionError|Failed)((?:\w+\.)*[A-Z]\w*): ")
"""How pytest tells that an error did not come, or that one came."""

Outcome = Literal["passed", "failed", "not_run"]

SUITE: Final = Path(__file__).with_name("suite.py")

HUNG_MAX: Final = 5
"""After so many clauses that hung, no other is asked: each would cost its whole deadline and say the same."""


@dataclass(slots=True)
class Result:
    """What became of one clause."""

    clause: Clause
    outcome: Outcome = "not_run"
    message: str = ""
    cases: int = 0
    """How many of its cases were asked."""

    duration_seconds: float = 0.0
    tests: list[str] = field(default_factory=list)
    """The ids that pytest gives its cases."""

    unfinished: int = 0
    skipped: str = ""
    note: str = ""
    """What it was asked with, where an option makes that more or less."""

    def settle(self) -> None:
        """Passed is only what was asked to its end, in every case."""
        if self.outcome == "failed":
            return
        if self.skipped or self.unfinished or not self.cases:
            self.outcome = "not_run"
            self.message = self.skipped or self.message or "the run was stopped"
        else:
            self.outcome, self.message = "passed", self.note


class Listener:
    """The plugin: chooses tests, seeds them, and takes down how each ends."""

    def __init__(self, *, select: Sequence[str], seed: int, tell: Callable[[str], None]) -> None:
        self.results: dict[str, Result] = {}
        self.capabilities: dict[str, dict[str, object]] = {}
        """What was found of each capability that was probed, by name."""

        self.unmatched: list[str] = []
        self.trouble = ""
        """Why nothing could be collected."""

        self._select, self._seed, self._tell = select, seed, tell
        self._of_test: dict[str, Result] = {}
        self._chosen = self._done = 0
        self._hung: set[str] = set()
        """The ids of the clauses that exceeded their deadline."""

        self._now: tuple[Result, float] | None = None
        """The clause that is being asked, and since when."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """The suite itself may fail to be imported."""
        if report.failed:
            self.trouble = report.longreprtext

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep what is selected; the others are in the report all the same."""
        for item in items:
            assert isinstance(item, pytest.Function)
            clause = clause_of(item.parent.obj, item.originalname)  # type: ignore[union-attr]
            result = self.results.setdefault(clause.id, Result(clause))
            result.tests.append(item.nodeid)
            self._of_test[item.nodeid] = result
        clauses = [result.clause for result in self.results.values()]
        self.unmatched = [each for each in self._select if not any(c.matches(each) for c in clauses)]
        chosen = [item for item in items if self._is_selected(self._of_test[item.nodeid])]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
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
        """Whatever a test draws, it draws again with the same seed, alone as well."""
        clause = self._of_test[item.nodeid].clause.id
        if clause in self._hung:
            pytest.skip("another case of it exceeded its deadline")
        if len(self._hung) >= HUNG_MAX:
            pytest.skip(f"{HUNG_MAX} other clauses had exceeded their deadlines")
        random.seed(f"{self._seed} {item.name}")
        self._now = self._of_test[item.nodeid], time.monotonic()
        self._tell(f"{self._done} of {self._chosen}: {clause}")

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Note the clause of a hang."""
        if call.excinfo is not None and call.excinfo.errisinstance(Overdue):
            self._hung.add(self._of_test[item.nodeid].clause.id)

    def pytest_keyboard_interrupt(self) -> None:
        """Say in which clause Ctrl-C ended the run, and how long that had taken by then."""
        if self._now is not None:
            result, began = self._now
            result.skipped = f"Ctrl-C ended the run {time.monotonic() - began:.1f} s after this clause began"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take down one phase of one case."""
        result = self._of_test[report.nodeid]
        result.duration_seconds += report.duration
        if report.failed and result.outcome != "failed":
            result.outcome, result.message = "failed", _message(report)
        elif report.skipped:
            result.skipped = result.skipped or _reason(report)
        elif report.when == "call":
            result.cases += 1
        if report.failed and report.when == "call":
            result.cases += 1
        if report.when == "teardown":
            result.unfinished -= 1
            self._done += 1

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Take down what it found of capabilities, and what it was asked with."""
        self._of_test[item.nodeid].note = item.stash.get(NOTE, "")
        found = item.stash.get(FINDINGS, None)
        self.capabilities |= found or {}


def run(listener: Listener, *, seed: int) -> bool:
    """Run pytest once, on the place that is current. False if Ctrl-C stopped it."""
    arguments = [str(SUITE), "--import-mode=importlib", "--capture=no", "-q", "--tb=short", "--no-header"]
    arguments += ["-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:terminalreporter"]
    arguments += ["-p", "offload_conformance.pytest_plugin"]
    arguments += [
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
    ]  # a second run finds the clauses imported
    arguments += ["-p", "_hypothesis_pytestplugin", f"--hypothesis-seed={seed}"]
    with tempfile.TemporaryDirectory(prefix="conformance-") as scratch, _alone():
        arguments += ["--rootdir", scratch, "--basetemp", os.path.join(scratch, "tests")]
        code = pytest.main(arguments, plugins=[listener])
    return code != pytest.ExitCode.INTERRUPTED


@contextmanager
def _alone() -> Iterator[None]:
    """No other plugins, options or output than the run's own; afterwards everything is as it was."""
    before = {name: os.environ.get(name) for name in ("PYTEST_ADDOPTS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD")}
    forced = hypothesis.core.global_force_seed
    drawn = random.getstate()
    os.environ.pop("PYTEST_ADDOPTS", None)
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
                del sys.modules[name]  # the next run collects it anew


def _message(report: pytest.TestReport) -> str:
    """What was expected and found, and in which case."""
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    text = _USE_V.sub("", crash.message if crash is not None else report.longreprtext)
    text = text.removeprefix(f"{Overdue.__module__}.{Overdue.__name__}: ")
    text = _NOT_RAISED.sub(r"expected \1; found no error", text)
    text = _RAISED.sub(r"expected no error; found \1: ", text)
    _, bracket, case = report.nodeid.partition("[")
    where = {"setup": "before the test: ", "teardown": "after the test: "}.get(report.when, "")
    return f"{where}{text}" + (f" (case {case.rstrip(']')})" if bracket else "")


def _reason(report: pytest.TestReport) -> str:
    """Why a test skipped itself."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return reason.removeprefix("Skipped: ")
