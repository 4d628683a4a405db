"""The options and the report of commands that rebuild a manifest."""

from __future__ import annotations

import sys
from typing import Annotated
from uuid import UUID

import typer

from offload.cli.kit.ending import Usage
from offload.cli.kit.output import counted, error_line, one_line, print_json, print_objects, size_text
from offload.formats.keys import StreamKeys
from offload.model.manifest import Manifest
from offload.model.manifest import StreamState as ManifestState
from offload.model.position import iso_of
from offload.upkeep.rebuild.report import RebuildReport, names

__all__ = ["Begin", "DryRun", "End", "Incarnation", "IsPart", "Yes", "make_sure", "tell"]


WARNING = (
    "Stop every writer, sync and sweep of this stream first, on all machines. Data that was trimmed, or that "
    "was never committed, may come back."
)
Incarnation = Annotated[
    UUID | None,
    typer.Option(
        "--incarnation",
        metavar="UUID",
        help="Bring back this history. If several are found and none is given, they are listed.",
    ),
]

Begin = Annotated[
    int | None,
    typer.Option(
        "--accept-holes-before",
        metavar="OFFSET",
        min=0,
        help="Begin at this offset, and give up all data before it.",
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
IsPart = Annotated[
    bool | None,
    typer.Option(
        "--part/--no-part",
        help="STREAM is a part of another stream, or a stream of its own. Needed if its anchor is lost and "
        "its name looks like that of a part.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be committed. Change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Confirm that all writers and sweeps are stopped.")]


def make_sure(*, dry_run: bool, yes: bool) -> None:
    """Ask the operator to confirm that nobody else uses the stream. Not needed for a dry run."""
    if dry_run or yes:
        return
    if not sys.stdin.isatty():
        raise Usage(f"{WARNING} Then run this with --yes, or look first with --dry-run")
    print(WARNING, file=sys.stderr)
    if not typer.confirm("Are they all stopped?", err=True):
        raise typer.Exit(1)


def tell(report: RebuildReport, *, command: str, dry_run: bool, json: bool, verbose: bool = False) -> int:
    """Print the report, and return its exit code. `command` is the command line to run again.

    With `verbose`, each fragment that is left out is named, and each history has the epochs of its writers.
    """
    if json:
        print_json(report.as_json(), indent=2)
    else:
        _show(report, command, dry_run=dry_run, verbose=verbose)
    # A manifest is rebuilt even if its data cannot be read any more. A script must not take it for sound.
    return 0 if report.is_complete and not report.lost_keys else 1


def _show(report: RebuildReport, command: str, *, dry_run: bool, verbose: bool) -> None:
    stream = one_line(report.stream)
    for damage in report.damages:
        print(f"DAMAGE {error_line(damage)}")
    if report.anchor_restored:
        print(f"{stream}: its anchor was lost{', and would be restored' if dry_run else ' and is restored'}")
    if report.histories:
        _show_histories(report, command, verbose=verbose)
    elif report.incarnation is not None:
        _show_plan(report, dry_run=dry_run, verbose=verbose)


def _show_plan(report: RebuildReport, *, dry_run: bool, verbose: bool) -> None:
    choice, stream = report.choice, one_line(report.stream)
    keys = StreamKeys(report.stream)
    left_out = [
        (keys.fragment(found.entry.first_offset, found.entry.attempt), reason)
        for found, reason in choice.left_out
    ]
    print_objects("left out", left_out, verbose=verbose)
    for uid, fragments in report.lost_keys.items():
        needed = f"{counted(fragments, 'fragment')} cannot be read without it"
        print(f"KEY LOST {uid}: {needed}; restore one of its copies below {one_line(keys.stream_keys)}")
    for begin, end in choice.holes:
        print(f"HOLE no fragment holds offsets [{begin}, {end})")
    first, last = report.range
    size = size_text(sum(each.entry.stored_size_bytes for each in choice.chosen))
    what = f"[{first}, {last}), {counted(len(choice.chosen), 'fragment')}, {size}"
    for part in (*report.before, *report.behind):
        what += f", and a copy of [{part.first_offset}, {part.next_offset})"
    if report.manifest is not None:
        print(f"{stream}: rebuilt {what}, as version {report.manifest.version}")
        if report.lost_keys:
            print("no sync continues this stream until the lost key is restored")
            print("if a shred destroyed it, nobody can read the data: give it up again by `offload delete`")
            return
        print("run `offload verify` to read every byte of it, then start the writers")
    elif choice.holes:
        print(f"{stream}: nothing was committed. The data before the first hole is {what}")
        _advise(report)
    elif dry_run:
        print(f"{stream}: would rebuild {what}")


def _advise(report: RebuildReport) -> None:
    choice, last = report.choice, report.choice.next_offset
    if any(begin == last for begin, _ in choice.holes):
        print(
            f"if the source still has the data from offset {last} on: --end-before {last}, "
            "and the next sync copies it again"
        )
    begins = {each.entry.first_offset for each in (*choice.chosen, *choice.beyond)}
    for begin in [end for _, end in choice.holes if end in begins][-1:]:
        print(
            f"if it is gone for good: --accept-holes-before {begin} gives up all data before offset {begin}"
        )


def _show_histories(report: RebuildReport, command: str, *, verbose: bool) -> None:
    stream, standing = one_line(report.stream), report.standing
    found = counted(len(report.histories), "history", "histories")
    print(f"{stream}: {_state(standing)}, and data of {found} was found. Nothing was committed")
    for row in report.histories:
        choice, is_named = row.choice, names(standing, row)
        times = f"{iso_of(row.first_timestamp_ms)} to {iso_of(row.last_timestamp_ms)}"
        epochs = f", writers' epochs {row.epochs[0]} to {row.epochs[1]}" if verbose else ""
        print(
            f"history {row.incarnation}{', which the manifest names' if is_named else ''}: "
            f"{counted(choice.messages, 'message')} in offsets [{choice.first_offset}, {choice.next_offset})"
            f"{' and behind holes' if choice.holes else ''}, {times}{epochs}"
        )
        if not is_named:
            print(f"  to bring it back: {command} --incarnation {row.incarnation}")
    if standing is not None and standing.state is ManifestState.LIVE:
        print("the history that the manifest names now is joined to it, if the two touch and agree")


def _state(standing: Manifest | None) -> str:
    if standing is None:
        return "all roots are lost"
    return {
        ManifestState.LIVE: f"the manifest, version {standing.version}, is sound",
        ManifestState.DELETED: "the stream was deleted",
        ManifestState.REBUILDING: "a rebuild was interrupted",
    }[standing.state]
