"""`offload rebuild`: rebuild a stream's manifest from its data, or restore a tier's anchor."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from offload.cli.kit.arguments import Keys, Options, Tier, Verbose, compression_of
from offload.cli.kit.ending import Usage
from offload.cli.kit.names import known_name
from offload.cli.kit.output import counted, one_line, print_json
from offload.cli.kit.rebuild import Begin, DryRun, End, Incarnation, IsPart, Yes, make_sure, tell
from offload.cli.kit.state import CommandContext, run_async
from offload.cli.kit.terminal import live_line
from offload.contracts.offloader import LedgerOffloader
from offload.formats.anchor import TierAnchor
from offload.ground.errors import Misuse
from offload.native.layout_check import native
from offload.native.offloader import ObjectStoreOffloader
from offload.native.place import TierPlan
from offload.upkeep.rebuild.report import RebuildReport
from offload.upkeep.rebuild.stream import rebuild as rebuild_stream

LostCommitStore = Annotated[
    str,
    typer.Option(
        "--commit-store",
        metavar="URL",
        help="Without STREAM: the store that holds TIER's roots, or `none` if they were beside the data.",
    ),
]
LostDefault = Annotated[
    str | None,
    typer.Option(
        "--compress",
        metavar="CODEC",
        help="Without STREAM: the default compression that TIER was made with, such as zstd:3. Fragments do "
        "not show it. Default: none.",
    ),
]
Lost = Annotated[
    str | None,
    typer.Argument(
        metavar="STREAM", help="The stream that lost roots or its anchor. Default: restore TIER's anchor."
    ),
]


def rebuild(
    context: typer.Context,
    tier: Tier,
    stream: Lost = None,
    keys: Keys = None,
    option: Options = None,
    incarnation: Incarnation = None,
    begin: Begin = None,
    end: End = None,
    part: IsPart = None,
    commit_store: LostCommitStore = "",
    compress: LostDefault = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    verbose: Verbose = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> int:
    """Rebuild the manifest of STREAM from its data objects. Stop all writers and sweeps of it first."""
    state: CommandContext = context.obj.with_keys(keys)
    if stream is None:
        plan = TierPlan(commit_store=commit_store, compression=compression_of(compress))
        return _restore_tier(state, tier, option, plan, dry_run=dry_run, json=json)
    if commit_store or compress is not None:
        raise Usage("--commit-store and --compress restore a tier's anchor: leave out STREAM")
    make_sure(dry_run=dry_run, yes=yes)
    run = partial(rebuild_stream, incarnation=incarnation, begin=begin, end=end, is_part=part)

    async def main() -> RebuildReport:
        async with state.tier(tier, option) as offloader:
            with live_line("listing") as show:
                return await run(
                    _on_a_store(offloader),
                    await known_name(offloader, stream),
                    dry_run=dry_run,
                    progress=lambda read, listed: show(f"read {read} of {counted(listed, 'fragment')}"),
                )

    command = f"offload rebuild {shlex.quote(tier)} {shlex.quote(stream)}"
    return tell(run_async(main), command=command, dry_run=dry_run, json=json, verbose=verbose)


def _on_a_store(offloader: LedgerOffloader) -> ObjectStoreOffloader:
    try:
        return native(offloader, to="rebuild")
    except Misuse as error:
        raise Usage(str(error)) from error


def _restore_tier(
    state: CommandContext,
    tier: str,
    option: list[str] | None,
    plan: TierPlan,
    *,
    dry_run: bool,
    json: bool,
) -> int:
    """Restore the anchor of the tier. The objects prove its fields, or the operator states them."""

    async def main() -> TierAnchor | None:
        async with state.tier(tier, option, plan=plan) as offloader:
            return await _on_a_store(offloader).restore_anchor(dry_run=dry_run)

    anchor = run_async(main)
    if json:
        fields = None if anchor is None else asdict(anchor)
        print_json({"anchor": fields, "restored": anchor is not None and not dry_run}, indent=2)
    elif anchor is None:
        print(f"{one_line(tier)}: its anchor is sound. To rebuild a stream, name it: `offload ls` lists them")
    else:
        done = "would be restored" if dry_run else "is restored"
        keys = "spread over sixteen folders" if anchor.hashed_keys else "not hashed"
        roots = f"at {anchor.commit_store}" if anchor.commit_store else "beside the data"
        print(f"{one_line(tier)}: its anchor was lost, and {done}")
        print(f"  keys are {keys}, as the objects show")
        print(f"  roots are {one_line(roots)}")
        print(
            f"  new fragments have compression {anchor.default_compression}, unless a command names another"
        )
        if plan.compression is None and not anchor.commit_store:
            # No command changes the default afterwards, and the command in the error lines names none.
            what = "add" if dry_run else "remove tier.anchor, and run this again with"
            print(f"  if the tier had another default, {what} --compress: the objects do not show it")
        print(f"  groups take {anchor.branching_factor} entries, as in every tier that a release made")
    return 0 if anchor is not None else 1
