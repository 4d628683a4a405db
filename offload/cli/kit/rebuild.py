"""The options and the report of commands that rebuild a manifest."""

from __future__ import annotations

import sys
from typing import Annotated
from uuid import UUID

import typer

from offload.cli.kit.ending import Usage
from offload.cli.kit.output import counted, error_line, one_line, print_json, size_text
from offload.formats.keys import StreamKeys
from offload.model.manifest import Manifest
from offload.model.manifest import StreamState as ManifestState
from offload.model.position import iso_of
from offload.upkeep.rebuild.report import RebuildReport, names

__all__ = ["Begin", "DryRun", "End", "Incarnation", "Yes", "make_sure", "tell"]


WARNING = (
    "No writer, no sync and no sweep of this stream may be alive, on any machine. Data that was trimmed, or "
    "that was never committed, may come back."
)
Incarnation = Annotated[
    UUID | None,
    typer.Option(
        "--incarnation",
        metavar="UUID",
        help="Bring back this history, if several are found. Without it they are listed.",
    ),
]

Begin = Annotated[
    int | None,
    typer.Option(
        "--accept-holes-before",
        metavar="OFFSET",
        min=0,
        help="Begin at this offset. Data before it is given up.",
    ),
]
End = Annotated[
    int | None,
    typer.Option(
        "--end-before",
        metavar="OFFSET",
        min=0,
        help="End before this offset. The next sync copies what follows.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be committed, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Confirm that all writers and sweeps are stopped.")]


def make_sure(*, dry_run: bool, yes: bool) -> None:
    """Have the operator say that nobody else is at the stream, unless nothing is to be done to it."""
    if dry_run or yes:
        return
    if not sys.stdin.isatty():
        raise Usage(f"{WARNING} Say --yes where that is so, or --dry-run to look first")
    print(WARNING, file=sys.stderr)
    if not typer.confirm("Are they all stopped?", err=True):
        raise typer.Exit(1)


def tell(report: RebuildReport, *, command: str, dry_run: bool, json: bool) -> int:
    """Print the report, and return the exit code that goes with it. `command` is what to run again."""
    if json:
        print_json(report.as_json(), indent=2)
    else:
        _show(report, command, dry_run=dry_run)
    return 0 if report.is_complete else 1


def _show(report: RebuildReport, command: str, *, dry_run: bool) -> None:
    stream = one_line(report.stream)
    for damage in report.damages:
        print(f"DAMAGE {error_line(damage)}")
    if report.anchor_restored:
        print(f"{stream}: its anchor was lost{', and would be restored' if dry_run else ' and is restored'}")
    if report.histories:
        _show_histories(report, command)
    elif report.incarnation is not None:
        _show_plan(report, command, dry_run=dry_run)


def _show_plan(report: RebuildReport, command: str, *, dry_run: bool) -> None:
    choice, stream = report.choice, one_line(report.stream)
    keys = StreamKeys(report.stream)
    for each, reason in choice.left_out:
        print(f"left out {one_line(keys.fragment(each.entry.first_offset, each.entry.attempt))}: {reason}")
    for begin, end in choice.holes:
        print(f"HOLE no fragment holds offsets [{begin}, {end})")
    first, last = report.range
    size = size_text(sum(each.entry.stored_size_bytes for each in choice.chosen))
    what = f"[{first}, {last}), {counted(len(choice.chosen), 'fragment')}, {size}"
    for part in (*report.before, *report.behind):
        what += f", and a copy of [{part.first_offset}, {part.next_offset})"
    if report.manifest is not None:
        print(f"{stream}: rebuilt {what}, as version {report.manifest.version}")
        print("run `offload verify` to read every byte of it, then start the writers")
    elif choice.holes:
        print(f"{stream}: nothing was committed. Without a hole there is {what}")
        _advise(report)
    elif dry_run:
        print(f"{stream}: would rebuild {what}")


def _advise(report: RebuildReport) -> None:
    choice, last = report.choice, report.choice.next_offset
    if any(begin == last for begin, _ in choice.holes):
        print(
            f"if the source still has what follows offset {last}: --end-before {last}, "
            "and the next sync copies it again"
        )
    begins = {each.entry.first_offset for each in (*choice.chosen, *choice.beyond)}
    for begin in [end for _, end in choice.holes if end in begins][-1:]:
        print(f"if it is gone for good: --accept-holes-before {begin} gives up all before {begin}")


def _show_histories(report: RebuildReport, command: str) -> None:
    stream, standing = one_line(report.stream), report.standing
    found = counted(len(report.histories), "history", "histories")
    print(f"{stream}: {_state(standing)}, and data of {found} was found. Nothing was committed")
    for row in report.histories:
        choice, is_named = row.choice, names(standing, row)
        times = f"{iso_of(row.first_timestamp_ms)} to {iso_of(row.last_timestamp_ms)}"
        print(
            f"incarnation {row.incarnation}{', which the manifest names' if is_named else ''}: "
            f"{choice.messages} messages in offsets [{choice.first_offset}, {choice.next_offset})"
            f"{' and behind holes' if choice.holes else ''}, {times}, writers' epochs "
            f"{row.epochs[0]} to {row.epochs[1]}"
        )
        if not is_named:
            print(f"  to bring it back: {command} --incarnation {row.incarnation}")
    if standing is not None and standing.state is ManifestState.LIVE:
        print("what the manifest names now is joined to it, if the two touch and agree")


def _state(standing: Manifest | None) -> str:
    if standing is None:
        return "all roots are lost"
    return {
        ManifestState.LIVE: f"the manifest, version {standing.version}, is sound",
        ManifestState.DELETED: "the stream was deleted",
        ManifestState.REBUILDING: "a rebuild was interrupted",
    }[standing.state]
