"""`offload sweep`: delete unused objects."""

from __future__ import annotations

from math import ceil
from typing import Annotated

import typer

from offload.cli.kit.arguments import EachObject, OnlyStream, Options, Tier
from offload.cli.kit.names import known_name
from offload.cli.kit.output import (
    counted,
    one_line,
    print_error,
    print_json,
    print_note,
    print_objects,
    size_text,
)
from offload.cli.kit.quantities import parse_duration
from offload.cli.kit.state import CommandContext, run_async
from offload.cli.kit.terminal import live_line
from offload.upkeep.sweep.page import Why
from offload.upkeep.sweep.report import Condemned, StreamSweep, SweepReport, Tally
from offload.upkeep.sweep.tier import sweep as sweep_tier

Grace = Annotated[
    str,
    typer.Option(
        "--grace",
        metavar="DURATION",
        help="How long an unused object stays for readers: 30m, 1h, 2d. One sweep finds the object, and the "
        "first sweep after this time deletes it. 0 deletes at once: use it only if nobody reads TIER.",
    ),
]
Uploads = Annotated[
    str,
    typer.Option(
        "--uploads-older-than",
        metavar="DURATION",
        help="Abort unfinished uploads older than this that no writer will finish. Only S3 can list them.",
    ),
]
SweepDryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be deleted, and when. Change nothing.")
]


def sweep(
    context: typer.Context,
    tier: Tier,
    stream: OnlyStream = None,
    grace: Grace = "1h",
    uploads: Uploads = "7d",
    dry_run: SweepDryRun = False,
    verbose: EachObject = False,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> int:
    """Delete objects that no manifest in TIER references: crashed uploads, trimmed data, deleted streams.

    Run it regularly: each run deletes what an earlier run found. Safe beside syncs, readers and other sweeps.
    """
    state: CommandContext = context.obj
    grace_seconds = 0.0 if grace.strip() == "0" else parse_duration(grace, option="--grace")
    uploads_seconds = parse_duration(uploads, option="--uploads-older-than")
    objects: list[Condemned] = []
    tell = objects.append if json else _show_condemned if verbose else lambda condemned: None

    async def main() -> SweepReport:
        async with state.tier(tier, option) as offloader:
            with live_line("listing") as show:
                return await sweep_tier(
                    offloader,
                    stream=None if stream is None else await known_name(offloader, stream),
                    grace_seconds=grace_seconds,
                    uploads_seconds=uploads_seconds,
                    dry_run=dry_run,
                    progress=lambda seen: show(_progress(seen)),
                    tell=tell if dry_run else lambda condemned: None,
                )

    report = run_async(main)
    if json:
        _print_json(report, objects)
    else:
        _show(report, verbose=verbose)
    return 1 if report.errors else 0


def _print_json(report: SweepReport, objects: list[Condemned]) -> None:
    rows = {"objects": [condemned.as_json() for condemned in objects]} if report.dry_run else {}
    print_json({**report.as_json(), **rows}, indent=2)
    for error in report.errors:
        print_error(error)


def _show_condemned(condemned: Condemned) -> None:
    when = f"in {duration_text(condemned.waits_seconds)}" if condemned.waits_seconds else "now"
    print(f"{when}: {one_line(condemned.key)}, {size_text(condemned.size_bytes)}: {condemned.why}")


def _show(report: SweepReport, *, verbose: bool) -> None:
    print_objects("left alone", report.strangers.items(), verbose=verbose)
    if report.strangers_count > len(report.strangers):
        more = counted(report.strangers_count - len(report.strangers), "more object")
        print(f"left alone {more} that {'is' if more == '1 more object' else 'are'} not of this format")
    if report.trials_deleted:
        did = "would delete" if report.dry_run else "deleted"
        print(f"{did} {counted(report.trials_deleted, 'object')} of interrupted trials of the store")
    for row in report.streams:
        for note in row.notes:
            print_note(note)
        _show_stream(row, dry_run=report.dry_run)
    for error in report.errors:
        print_error(error)


def _show_stream(row: StreamSweep, *, dry_run: bool) -> None:
    goes, waits = row.deleted.objects.total(), row.waits.objects.total()
    listed = f"{one_line(row.stream)}: {counted(row.listed, 'object')}, {size_text(row.listed_bytes)}"
    if row.errors and not goes:
        print(f"{listed}; nothing was deleted")
    elif row.state == "no root" and not row.errors:
        print(f"{listed}; nothing was ever committed, so nothing is deleted")
    elif row.state == "rebuilding":
        print(f"{listed}; the stream is being rebuilt, so nothing is deleted")
    elif not goes and not waits:
        print(f"{listed}; nothing to delete")
    else:
        print(listed)
    if row.stays.objects[Why.OWN_KEY]:  # of all that stays, only this waits for a person
        objects, size = counted(row.stays.objects[Why.OWN_KEY], "object"), row.stays.bytes[Why.OWN_KEY]
        print(f"  kept {objects}, {size_text(size)}: {Why.OWN_KEY}")
    if goes:
        _show_tally("would delete" if dry_run else "deleted", row.deleted)
    if waits:
        _show_tally(f"kept for up to {duration_text(row.waits_seconds)} more:", row.waits)


def _show_tally(what: str, tally: Tally) -> None:
    for why, objects in sorted(tally.objects.items()):
        print(f"  {what} {counted(objects, 'object')}, {size_text(tally.bytes[why])}: {why}")


def duration_text(seconds: float) -> str:
    """Return a duration for people, rounded up: 45s, 59m, 36h, 4d."""
    for unit, size, limit in (("s", 1, 120), ("m", 60, 120), ("h", 3600, 48)):
        if seconds <= limit * size:
            return f"{ceil(seconds / size)}{unit}"
    return f"{ceil(seconds / 86_400)}d"


def _progress(report: SweepReport) -> str:
    listed = sum(row.listed for row in report.streams)
    deleted = sum(row.deleted.objects.total() for row in report.streams)
    return f"{counted(len(report.streams), 'stream')}, {counted(listed, 'object')}, {deleted} deleted"
