"""`offload rebuild`: a stream's manifest from its data, where all of its roots are lost."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from offload.cli.arguments import Options, Tier
from offload.cli.output import counted, error_line, live_line, one_line, print_json, size_text
from offload.cli.state import State, Usage, run_async
from offload.formats.keys import StreamKeys
from offload.tier.object_store_offloader import ObjectStoreOffloader
from offload.tier.rebuild import RebuildReport
from offload.tier.rebuild import rebuild as rebuild_stream

WARNING = (
    "No writer, no sync and no sweep of this stream may be alive, on any machine. Data that was trimmed, or "
    "that was never committed, may come back."
)

Begin = Annotated[
    int | None,
    typer.Option(
        "--accept-holes-before",
        metavar="OFFSET",
        min=0,
        help="Begin at this offset; what stands before it is given up.",
    ),
]
End = Annotated[
    int | None,
    typer.Option(
        "--end-before",
        metavar="OFFSET",
        min=0,
        help="End before this offset; what stands behind it is left to the next sync.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be committed.")]
Yes = Annotated[bool, typer.Option("--yes", help="All writers and sweeps are stopped.")]


def rebuild(
    context: typer.Context,
    tier: Tier,
    stream: Annotated[str, typer.Argument(help="The stream whose roots are lost.")],
    option: Options = None,
    begin: Begin = None,
    end: End = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> int:
    """Make the manifest of STREAM anew from its data objects. Stop all writers and sweeps of it first."""
    state: State = context.obj
    make_sure(dry_run=dry_run, yes=yes)

    async def main() -> RebuildReport:
        async with state.tier(tier, option) as offloader:
            if not isinstance(offloader, ObjectStoreOffloader):
                raise Usage(f"{offloader.url} is no object store; ask its backend for a way to rebuild")
            with live_line("reading") as show:
                return await rebuild_stream(
                    offloader,
                    stream,
                    begin=begin,
                    end=end,
                    dry_run=dry_run,
                    progress=lambda read, listed: show(f"{read} of {counted(listed, 'fragment')}"),
                )

    return tell(run_async(main), dry_run=dry_run, json=json)


def make_sure(*, dry_run: bool, yes: bool) -> None:
    """Have the operator say that nobody else is at the stream, unless nothing is to be done to it."""
    if dry_run or yes:
        return
    if not sys.stdin.isatty():
        raise Usage(f"{WARNING} Say --yes where that is so, or --dry-run to look first")
    print(WARNING, file=sys.stderr)
    if not typer.confirm("Are they all stopped?", err=True):
        raise typer.Exit(1)


def tell(report: RebuildReport, *, dry_run: bool, json: bool) -> int:
    """Print the report, and return the exit code that goes with it."""
    if json:
        print_json(report.as_json(), indent=2)
    else:
        _show(report, dry_run=dry_run)
    return 0 if report.manifest is not None or (dry_run and not report.choice.holes) else 1


def _show(report: RebuildReport, *, dry_run: bool) -> None:
    choice, keys = report.choice, StreamKeys(report.stream)
    for damage in report.damages:
        print(f"DAMAGE {error_line(damage)}")
    for each, reason in choice.left_out:
        print(f"left out {one_line(keys.fragment(each.entry.first_offset, each.entry.attempt))}: {reason}")
    for begin, end in choice.holes:
        print(f"HOLE no fragment holds offsets [{begin}, {end})")
    first, last = choice.chosen[0].entry, choice.chosen[-1].entry
    size = size_text(sum(each.entry.stored_size_bytes for each in choice.chosen))
    what = f"[{first.first_offset}, {last.next_offset}), {counted(len(choice.chosen), 'fragment')}, {size}"
    if report.manifest is not None:
        print(f"{one_line(report.stream)}: rebuilt {what}, as version {report.manifest.version}")
        print("run `offload verify` to read every byte of it, then start the writers")
    elif choice.holes:
        print(f"{one_line(report.stream)}: nothing was committed. Without a hole there is {what}")
        _advise(report)
    elif dry_run:
        print(f"{one_line(report.stream)}: would rebuild {what}")


def _advise(report: RebuildReport) -> None:
    last = report.choice.chosen[-1].entry
    print(
        f"where the source still has what is behind offset {last.next_offset}: "
        f"--end-before {last.next_offset}, and the next sync copies it again"
    )
    begin = report.choice.holes[-1][1]
    print(f"where it is gone for good: --accept-holes-before {begin} gives up all before {begin}")
