"""A plugin of pytest: a test that was expected to fail and passed is a failure, whatever its mark says.

`xfail_strict` is only the default of a mark: `strict=False` would let such a test pass unnoticed. A test
whose outcome differs from run to run calls `pytest.xfail` in the case of the known failure.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest


class NoUnexpectedPass:
    """Report each pass of a test that was expected to fail as a failure."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # the last to see the report, after pytest's own `xfail`
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Turn an unexpected pass into a failure that has the reason of its mark."""
        report = yield
        if report.outcome == "passed" and hasattr(report, "wasxfail"):
            report.outcome = "failed"
            report.longrepr = f"[XPASS] {report.wasxfail}: remove the mark, or call `pytest.xfail`"
            del report.wasxfail
        return report
