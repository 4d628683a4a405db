"""`offload verify`: every object of a tier against manifest and checksums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich.status import Status

from offload.cli.arguments import Options, Tier
from offload.cli.output import error_line, one_line, print_json, size_text, stderr
from offload.cli.state import State, run_async
from offload.events import DamageFound
from offload.tier.verify import VerifyReport
from offload.tier.verify import verify as verify_tier


def verify(
    context: typer.Context,
    tier: Tier,
    stream: Annotated[str | None, typer.Argument(help="Only this stream.")] = None,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> int:
    """Read every object of TIER and hold it against its checksums, its key and the manifest."""
    state: State = context.obj

    async def main() -> VerifyReport:
        async with state.tier(tier, option) as offloader:
            with _Status() as progress:
                return await verify_tier(offloader, stream=stream, progress=progress)

    report = run_async(main)
    for damage in report.damages:
        state.plugins.emit(DamageFound(damage=damage))
    if json:
        print_json(report.as_json(), indent=2)
    else:
        _show(report)
    return 1 if report.damages else 0


def _show(report: VerifyReport) -> None:
    for damage in report.damages:
        print(f"DAMAGE {error_line(damage)}")
    for row in report.unreferenced:
        print(f"unreferenced {one_line(row.key)}: {row.reason}")
    verdict = f"{len(report.damages)} damaged" if report.damages else "all of them sound"
    print(f"{report.streams} streams, {report.objects} objects, {size_text(report.bytes)}: {verdict}")


class _Status:
    """A live line on stderr where that is a terminal, and silence elsewhere."""

    def __init__(self) -> None:
        self._live = Status("reading", console=stderr()) if stderr().is_terminal else None

    def __enter__(self) -> Callable[[VerifyReport], None]:
        if self._live is not None:
            self._live.start()
        return self._show

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _show(self, report: VerifyReport) -> None:
        if self._live is not None:
            self._live.update(
                f"{report.objects} objects, {size_text(report.bytes)}, {len(report.damages)} damaged"
            )
