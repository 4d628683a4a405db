"""The findings of a verify, as `offload verify` and Spark's job print them, and the exit code that they give.

Invariant: a key that the key service refuses is told apart from damage, in words and by the exit code.
"""

from __future__ import annotations

from typing import Final

from offload.cli.kit.output import counted, error_line, one_line
from offload.upkeep.verify.report import VerifyReport

__all__ = ["exit_code", "show_findings", "show_not_opened", "verdict"]

NOT_CHECKED: Final = 3
"""The exit code if no damage was found, and the key service did not let everything be checked."""


def exit_code(report: VerifyReport) -> int:
    """Return 1 for damage, `NOT_CHECKED` for keys that could not be checked, and 0 otherwise."""
    return 1 if report.damages else NOT_CHECKED if report.unchecked else 0


def show_findings(report: VerifyReport) -> None:
    """Print a line for each damage, and for each key that could not be checked."""
    for damage in report.damages:
        print(f"DAMAGE {error_line(damage)}")
    for row in report.unchecked.values():
        reason = f"cannot be checked: the key service does not open it: {row.reason}"
        print(f"UNCHECKED {one_line(row.key)}: {one_line(reason)}")


def show_not_opened(report: VerifyReport) -> None:
    """Print how many encrypted fragments were not opened, if there are any."""
    if report.not_opened:
        what = counted(report.not_opened, "encrypted fragment was", "encrypted fragments were")
        cure = "" if report.unchecked else "; use --keys, or set OFFLOAD_KEYS"
        print(f"{what} not opened, so only stored bytes were checked{cure}")


def verdict(report: VerifyReport, *, sound: str) -> str:
    """Return the last words of a verify. `sound` is for a tier without findings."""
    if report.damages:
        return f"{len(report.damages)} damaged"
    if report.unchecked:
        keys = counted(len(report.unchecked), "key")
        return f"no damage was found, but {keys} cannot be checked: use the --keys of the streams' writers"
    return sound
