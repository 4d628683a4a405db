"""`offload rebuild`: a stream's manifest from its data, if roots of it are lost."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import typer

from offload.cli.arguments import Options, Tier
from offload.cli.ending import Usage
from offload.cli.output import counted, error_line, one_line, print_json, size_text
from offload.cli.state import State, run_async
from offload.cli.terminal import live_line
from offload.errors import Misuse
from offload.formats.anchor import TierAnchor
from offload.formats.keys import StreamKeys
from offload.formats.manifest import Manifest
from offload.formats.manifest import State as ManifestState
from offload.offloader import LedgerOffloader
from offload.position import iso_of
from offload.tier.native import native
from offload.tier.object_store_offloader import ObjectStoreOffloader
from offload.tier.place import TierPlan
from offload.tier.rebuild import RebuildReport, names
from offload.tier.rebuild import rebuild as rebuild_stream

WARNING = (
    "No writer, no sync and no sweep of this stream may be alive, on any machine. Data that was trimmed, or "
    "that was never committed, may come back."
)

Stream = Annotated[
    str | None,
    typer.Argument(help="The stream that lost roots or its anchor. If left out: TIER's own anchor."),
]
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
CommitStore = Annotated[
    str,
    typer.Option(
        "--commit-store",
        metavar="URL",
        help="Without STREAM: the store that holds TIER's roots, or `none` if they were beside the data.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be committed, and change nothing.")]
Lost = Annotated[
    str | None,
    typer.Argument(
        metavar="STREAM", help="The stream that lost roots or its anchor. Default: restore TIER's anchor."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Confirm that all writers and sweeps are stopped.")]


def rebuild(
    context: typer.Context,
    tier: Tier,
    stream: Lost = None,
    option: Options = None,
    incarnation: Incarnation = None,
    begin: Begin = None,
    end: End = None,
    commit_store: CommitStore = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> int:
    """Rebuild the manifest of STREAM from its data objects. Stop all writers and sweeps of it first."""
    state: State = context.obj
    if stream is None:
        return _restore_tier(state, tier, option, commit_store, dry_run=dry_run, json=json)
    if commit_store:
        raise Usage("--commit-store is for a tier's anchor: leave out STREAM")
    make_sure(dry_run=dry_run, yes=yes)

    async def main() -> RebuildReport:
        async with state.tier(tier, option) as offloader:
            store_tier = _on_a_store(offloader)
            with live_line("reading") as show:
                return await rebuild_stream(
                    store_tier,
                    stream,
                    incarnation=incarnation,
                    begin=begin,
                    end=end,
                    dry_run=dry_run,
                    progress=lambda read, listed: show(f"{read} of {counted(listed, 'fragment')}"),
                )

    command = f"offload rebuild {shlex.quote(tier)} {shlex.quote(stream)}"
    return tell(run_async(main), command=command, dry_run=dry_run, json=json)


def _on_a_store(offloader: LedgerOffloader) -> ObjectStoreOffloader:
    try:
        return native(offloader, to="rebuild")
    except Misuse as error:
        raise Usage(str(error)) from error


def _restore_tier(
    state: State, tier: str, option: list[str] | None, commit_store: str, *, dry_run: bool, json: bool
) -> int:
    """Restore the anchor of the tier. Objects prove all that it says, or the operator says it."""

    async def main() -> TierAnchor | None:
        plan = TierPlan(commit_store=commit_store)
        async with state.tier(tier, option, plan=plan) as offloader:
            return await _on_a_store(offloader).restore_anchor(dry_run=dry_run)

    anchor = run_async(main)
    if json:
        fields = None if anchor is None else asdict(anchor)
        print_json({"anchor": fields, "restored": anchor is not None and not dry_run}, indent=2)
    elif anchor is None:
        print(f"{one_line(tier)}: its anchor is sound. To rebuild a stream, name it: `offload ls` shows them")
    else:
        done = "would be restored" if dry_run else "is restored"
        keys = "spread over sixteen folders" if anchor.hashed_keys else "not hashed"
        roots = f"at {anchor.commit_store}" if anchor.commit_store else "beside the data"
        print(f"{one_line(tier)}: its anchor was lost, and {done}")
        print(f"  keys are {keys}, as the objects show")
        print(f"  roots are {one_line(roots)}")
        print(f"  groups take {anchor.branching_factor} entries, as in every tier that a release made")
    return 0 if anchor is not None else 1


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
