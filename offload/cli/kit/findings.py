"""The findings of a verify, as `offload verify` and Spark's job print them, and the exit code that they give.

Invariant: an object that cannot be checked is not called damage, and has another exit code. A newer
program wrote it, or it is a key that the key service refuses.
"""

from __future__ import annotations

from typing import Final

from offload.cli.kit.output import counted, error_line, one_line
from offload.formats.keys import StreamKeys
from offload.ground.errors import Corrupt
from offload.upkeep.verify.report import VerifyReport

__all__ = ["exit_code", "show_findings", "show_not_opened", "verdict"]

NOT_CHECKED: Final = 3
"""The exit code if no damage was found, and not everything could be checked."""


def exit_code(report: VerifyReport) -> int:
    """Return 1 for damage, `NOT_CHECKED` if an object could not be checked, and 0 otherwise."""
    return 1 if report.damages else NOT_CHECKED if report.unchecked else 0


def show_findings(report: VerifyReport) -> None:
    """Print a line for each damage, and for each object that could not be checked."""
    for damage in report.damages:
        print(f"DAMAGE {error_line(damage)}{_advice(damage)}")
    for row in report.unchecked.values():
        print(f"UNCHECKED {one_line(row.key)}: cannot be checked: {one_line(row.reason)}")


def _advice(damage: Corrupt) -> str:
    """Return what to do about a damaged index: it holds no data. Empty for another object."""
    if damage.stream is None or StreamKeys(damage.stream).parse_index(damage.where) is None:
        return ""
    return "; it is only an index, and no data is lost: delete the object, and run `offload index` again"


def show_not_opened(report: VerifyReport) -> None:
    """Print how many encrypted fragments were not opened, if there are any."""
    if report.not_opened:
        what = counted(report.not_opened, "encrypted fragment was", "encrypted fragments were")
        is_refused = any(not row.is_newer for row in report.unchecked.values())
        cure = "" if is_refused else "; use --keys, or set OFFLOAD_KEYS"
        print(f"{what} not opened, so only stored bytes were checked{cure}")


def verdict(report: VerifyReport, *, sound: str) -> str:
    """Return the last words of a verify. `sound` is for a tier without findings."""
    if report.damages:
        return f"{len(report.damages)} damaged"
    newer = sum(row.is_newer for row in report.unchecked.values())
    refused = len(report.unchecked) - newer
    found = (
        (newer, "object", "upgrade this program"),
        (refused, "key", "use the --keys of the streams' writers"),
    )
    left = [f"{counted(number, what)} cannot be checked: {cure}" for number, what, cure in found if number]
    return f"no damage was found, but {'; '.join(left)}" if left else sound
