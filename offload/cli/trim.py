"""`offload trim`: delete the oldest fragments of a stream."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from offload.cli.kit.arguments import Options, Stream, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.names import known_name
from offload.cli.kit.output import counted, one_line, print_json, print_note, size_text
from offload.cli.kit.quantities import parse_duration, parse_size
from offload.cli.kit.state import CommandContext, run_async
from offload.commit.guest import TrimmedTotals
from offload.ground.errors import OffloadError
from offload.model.manifest import CommittedStream
from offload.model.totals import joined_totals, totals
from offload.upkeep.parts import trim_parts
from offload.upkeep.retention import Retention, TrimReport

DROPPED: Final = ("ledgers", "fragments", "messages", "bytes", "stored_bytes")
"""The keys of which a stream with parts has the sum of what was dropped."""

MaxAge = Annotated[
    str | None,
    typer.Option("--max-age", metavar="DURATION", help="Delete data older than this: 90s, 15m, 36h, 7d, 2w."),
]
MaxBytes = Annotated[
    str | None,
    typer.Option(
        "--max-bytes",
        metavar="SIZE",
        help="Delete the oldest data until at most this much is left, counted before compression: 100GB, "
        "64MiB.",
    ),
]
Before = Annotated[
    int | None,
    typer.Option(
        "--before", metavar="OFFSET", min=0, help="Delete fragments that end at or below this offset."
    ),
]
TrimYes = Annotated[
    bool, typer.Option("--yes", help="Skip the question, which is asked on a terminal alone.")
]
TrimDryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted. Change nothing.")]


def trim(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    before: Before = None,
    yes: TrimYes = False,
    dry_run: TrimDryRun = False,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Delete the oldest data of STREAM. Only whole fragments are removed. `offload sweep` frees their space.

    If several limits are given, the strictest applies. By age and size the last fragment always stays. If
    STREAM has further parts, the limits count all of them, and the oldest part is trimmed first.
    """
    state: CommandContext = context.obj
    retention = _retention(max_age, max_bytes, before)

    async def main() -> list[TrimReport]:
        async with state.tier(tier, option) as offloader:
            named = await known_name(offloader, stream)
            if sys.stdin.isatty() and not (yes or dry_run or json):
                _ask(stream, await trim_parts(offloader, named, retention, dry_run=True))
            return await trim_parts(offloader, named, retention, dry_run=dry_run)

    reports = run_async(main)
    for report in reports:
        if report.note is not None:
            print_note(report.note)
    if json:
        print_json(as_json(stream, reports, dry_run=dry_run))
    else:
        for report in reports:
            _show(report, dry_run=dry_run)


def _ask(stream: str, planned: list[TrimReport]) -> None:
    """Show what would be dropped, and ask a person. Raises `OffloadError` unless they answer yes."""
    if all(report.trim is None for report in planned):
        return
    for report in planned:
        _show(report, dry_run=True)
    sys.stderr.write("This cannot be undone. Drop it? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise OffloadError(f"nothing was dropped of stream {stream!r}")


def _retention(max_age: str | None, max_bytes: str | None, before: int | None) -> Retention:
    if max_age is None and max_bytes is None and before is None:
        raise Usage("trim needs a limit: --max-age 7d, --max-bytes 100GB or --before OFFSET")
    return Retention(
        age_seconds_max=None if max_age is None else parse_duration(max_age, option="--max-age"),
        size_bytes_max=None if max_bytes is None else parse_size(max_bytes, option="--max-bytes"),
        before_offset=before,
    )


def as_json(stream: str, reports: list[TrimReport], *, dry_run: bool) -> dict[str, Any]:
    """Return the document of `offload trim --json`: the keys of `ls` for what stays, and `dropped`."""
    parts = [_as_json(report, dry_run=dry_run) for report in reports]
    if len(parts) == 1:
        return parts[0]
    dropped = {name: sum(part["dropped"][name] for part in parts) for name in DROPPED}
    return {**joined_totals(stream, parts), "dry_run": dry_run, "dropped": dropped, "parts": parts}


def _as_json(report: TrimReport, *, dry_run: bool) -> dict[str, Any]:
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


def _sizes(of: TrimmedTotals | CommittedStream) -> str:
    """Return the stored size; and the plain size, which `--max-bytes` counts, if compression made it less."""
    stored, plain = of.stored_size_bytes, of.data_size_bytes
    return size_text(stored) + (f" ({size_text(plain)} before compression)" if stored < plain else "")


def _show(report: TrimReport, *, dry_run: bool) -> None:
    kept, dropped = report.manifest, report.dropped
    name = one_line(kept.stream)
    if report.trim is None:
        print(f"{name}: nothing to drop")
    else:
        gone = f"{counted(dropped.fragments, 'fragment')}, {_sizes(dropped)}"
        drop = "would drop" if dry_run else "dropped"
        print(f"{name}: {drop} {gone}, offsets [{report.since}, {report.trim.first_offset})")
    if kept.fragments:
        left = f"{counted(kept.fragments, 'fragment')}, {_sizes(kept)}"
        stay = "would stay" if dry_run else "stays" if kept.fragments == 1 else "stay"
        print(f"{name}: {left}, offsets [{kept.first_offset}, {kept.next_offset}) {stay}")
    else:
        print(
            f"{name}: nothing {'would stay' if dry_run else 'stays'}; offset {kept.next_offset} is the next"
        )
