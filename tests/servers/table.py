"""The closing table: the servers on which the tests of this run passed, failed or did not run, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import pytest

from servers.catalogue import SERVERS, Server

HEAD: Final = ("protocol", "server", "version", "kind", "passed", "failed", "not run", "")
PROPERTY: Final = "server"
PASSED, FAILED, NOT_RUN = "passed", "failed", "skipped"


class ClosingTable:
    """A plugin of pytest. Every server of the catalogue has a row, even if no test used it."""

    def __init__(self) -> None:
        self._outcomes: dict[str, dict[str, str]] = {each.name: {} for each in SERVERS}
        self._reasons: dict[str, set[str]] = {each.name: set() for each in SERVERS}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Record for each test the server that it runs on, if it has one."""
        name = getattr(item, "callspec", None) and item.callspec.params.get("running_server")
        if name:
            item.user_properties.append((PROPERTY, name))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: as failed if any phase failed, as not run if a phase skipped it."""
        name = dict(report.user_properties).get(PROPERTY)
        if not isinstance(name, str):
            return
        outcomes = self._outcomes[name]
        if report.outcome != PASSED or report.when == "call":
            worst = outcomes.get(report.nodeid) == FAILED
            outcomes[report.nodeid] = FAILED if worst else report.outcome
        if report.outcome == NOT_RUN and isinstance(report.longrepr, tuple):
            self._reasons[name].add(report.longrepr[2].removeprefix("Skipped: "))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table before pytest's own last line."""
        if terminalreporter.config.option.collectonly:
            return
        terminalreporter.section("servers")
        for line in aligned([HEAD, *map(self._row, SERVERS)]):
            terminalreporter.write_line(line)

    def _row(self, server: Server) -> Sequence[str]:
        counts = Counter(self._outcomes[server.name].values())
        about = (server.protocol, server.name, server.recipe.version, server.kind)
        numbers = [str(counts[each]) for each in (PASSED, FAILED, NOT_RUN)]
        return *about, *numbers, self._said(server, counts)

    def _said(self, server: Server, counts: Counter[str]) -> str:
        if not counts:
            return "not used by this selection"
        if counts[NOT_RUN]:
            return f"NOT RUN: {'; '.join(sorted(self._reasons[server.name]))}"
        return "" if server.honours_create else "ignores preconditions: must be refused"


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the rows as lines with aligned columns."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
