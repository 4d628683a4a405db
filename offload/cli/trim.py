"""`offload trim`: drop the oldest fragments of a stream."""

from __future__ import annotations

from typing import Annotated

import typer

from offload.cli.kit.arguments import Options, Stream, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.output import counted, one_line, print_json, size_text
from offload.cli.kit.quantities import parse_duration, parse_size
from offload.cli.kit.state import CommandContext, run_async
from offload.model.totals import totals
from offload.upkeep.retention import Retention, TrimReport
from offload.upkeep.retention import trim as trim_stream


def trim(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    max_age: Annotated[
        str | None,
        typer.Option("--max-age", metavar="DURATION", help="Drop what is older: 90s, 15m, 36h, 7d, 2w."),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            "--max-bytes", metavar="SIZE", help="Drop the oldest until so much is left: 100GB, 64MiB."
        ),
    ] = None,
    before: Annotated[
        int | None,
        typer.Option("--before", metavar="OFFSET", min=0, help="Drop what ends at or below this offset."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing, only say what would go.")
    ] = False,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Delete the oldest data of STREAM. Only whole fragments are removed. `offload sweep` frees their space.

    If several limits are given, the strictest applies. By age and size the last fragment always stays.
    """
    state: CommandContext = context.obj
    retention = _retention(max_age, max_bytes, before)

    async def main() -> TrimReport:
        async with state.tier(tier, option) as offloader:
            return await trim_stream(offloader, stream, retention, dry_run=dry_run)

    report = run_async(main)
    if json:
        print_json(as_json(report, dry_run=dry_run))
    else:
        _show(report, dry_run=dry_run)


def _retention(max_age: str | None, max_bytes: str | None, before: int | None) -> Retention:
    if max_age is None and max_bytes is None and before is None:
        raise Usage("say what may go: --max-age 7d, --max-bytes 100GB or --before OFFSET")
    return Retention(
        age_seconds_max=None if max_age is None else parse_duration(max_age, option="--max-age"),
        size_bytes_max=None if max_bytes is None else parse_size(max_bytes, option="--max-bytes"),
        before_offset=before,
    )


def as_json(report: TrimReport, *, dry_run: bool) -> dict[str, object]:
    """The document of `offload trim --json`: the keys of `ls` for what stays, and what goes."""
    dropped = report.dropped
    return {
        **totals(report.manifest.stream, report.manifest),
        "dry_run": dry_run,
        "dropped": {
            "ledgers": dropped.ledgers,
            "fragments": dropped.fragments,
            "messages": dropped.messages,
            "first_offset": report.since,
            "next_offset": report.since if report.trim is None else report.trim.first_offset,
            "bytes": dropped.data_size_bytes,
            "stored_bytes": dropped.stored_size_bytes,
        },
    }


def _show(report: TrimReport, *, dry_run: bool) -> None:
    kept, dropped, would = report.manifest, report.dropped, "would " if dry_run else ""
    name = one_line(kept.stream)
    if report.trim is None:
        print(f"{name}: nothing to drop")
    else:
        gone = f"{counted(dropped.fragments, 'fragment')}, {size_text(dropped.stored_size_bytes)}"
        drop = "would drop" if dry_run else "dropped"
        print(f"{name}: {drop} {gone}, offsets [{report.since}, {report.trim.first_offset})")
    if kept.fragments:
        stays = f"{counted(kept.fragments, 'fragment')}, {size_text(kept.stored_size_bytes)}"
        print(f"{name}: {stays}, offsets [{kept.first_offset}, {kept.next_offset}) {would}stay")
    else:
        print(
            f"{name}: nothing {'would stay' if dry_run else 'stays'}; offset {kept.next_offset} is the next"
        )
