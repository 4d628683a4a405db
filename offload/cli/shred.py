"""`offload shred`: delete a stream, and destroy its keys."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Annotated, Any

import typer

from offload.cli.delete import held_by
from offload.cli.kit.arguments import Keys, Options, Stream, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.names import known_name
from offload.cli.kit.output import counted, one_line, print_error, print_json
from offload.cli.kit.state import CommandContext, run_async
from offload.cli.sweep import duration_text
from offload.contracts.catalogue import Catalogue
from offload.contracts.keys import KeyService
from offload.ground.errors import OffloadError
from offload.model.totals import joined_totals, totals
from offload.native.key_ring import KEPT_SECONDS
from offload.upkeep.shred import KeyFate, ShreddedKey, ShredPlan, plan_parts, planned
from offload.upkeep.shred import shred as shred_part

Shredded = tuple[ShredPlan, list[ShreddedKey]]
"""The plan of one part, and what became of its keys."""

ShredYes = Annotated[
    bool, typer.Option("--yes", help="Skip the confirmation prompt. Required when there is no terminal.")
]
ShredDryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be deleted and destroyed. Change nothing.")
]


def shred(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    keys: Keys = None,
    yes: ShredYes = False,
    dry_run: ShredDryRun = False,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> int:
    """Delete STREAM, and destroy its keys, so that nobody can read what is left of its data.

    If STREAM has further parts, all of them are shredded, the newest first. The name of a later part
    shreds that part alone.

    This cannot be undone. The output says who can still read: a master key that other streams share is not
    destroyed. A master key of its own is, and needs --keys. If it is killed, run the same command again.
    `offload sweep` frees the space.
    """
    state: CommandContext = context.obj
    if not (yes or dry_run or sys.stdin.isatty()):
        raise Usage("shred asks for the stream's name, and there is no terminal to ask on: add --yes")

    async def main() -> list[Shredded]:
        async with (
            nullcontext() if keys is None else state.key_service(keys) as service,
            state.tier(tier, option) as offloader,
        ):
            # All plans come first: if one part cannot be shredded, nothing is deleted.
            named = await known_name(offloader, stream)
            plans = await plan_parts(offloader, named, service=service)
            if dry_run:
                return [(plan, planned(plan)) for plan in plans]
            if not yes:
                _ask(stream, plans)
            return await _shred_all(offloader, named, plans, service, json=json)

    return _tell(stream, run_async(main), dry_run=dry_run, json=json)


async def _shred_all(
    offloader: Catalogue,
    stream: str,
    plans: list[ShredPlan],
    service: KeyService | None,
    *,
    json: bool,
) -> list[Shredded]:
    done: list[Shredded] = []
    try:
        for plan in reversed(plans):
            done.insert(0, (plan, await shred_part(offloader, plan, service=service)))
    except OffloadError:
        if done:  # their keys are gone, and no later run reports them
            _tell(stream, done, dry_run=False, json=json)
        raise
    return done


def _tell(stream: str, parts: list[Shredded], *, dry_run: bool, json: bool) -> int:
    """Report the result, and return the exit code."""
    if json:
        print_json(_as_json(stream, parts, dry_run=dry_run))
    for plan, rows in [] if json else parts:
        _show(plan, rows, dry_run=dry_run)
    errors = [row.error for _, rows in parts for row in rows if row.error is not None]
    for error in errors:
        print_error(error)
    return 1 if errors else 0


def _ask(stream: str, plans: list[ShredPlan]) -> None:
    """Ask a person to type the stream's name. Raises if they type something else."""
    held = "\n".join(one_line(p.stream) if p.manifest is None else held_by(p.manifest) for p in plans)
    keys = counted(sum(len(plan.keys) for plan in plans), "key")
    sys.stderr.write(
        f"{held} will be deleted, and {keys} destroyed. Nobody can undo this. "
        "Type the stream's name to shred it: "
    )
    sys.stderr.flush()
    if sys.stdin.readline().rstrip("\n") != stream:
        raise OffloadError(f"that is not the name of stream {stream!r}; nothing was deleted")


def _as_json(stream: str, parts: list[Shredded], *, dry_run: bool) -> dict[str, Any]:
    documents = [_part_as_json(plan, rows, dry_run=dry_run) for plan, rows in parts]
    if len(documents) == 1:
        return documents[0]
    return {
        **joined_totals(stream, documents),
        "dry_run": dry_run,
        "deleted": any(document["deleted"] for document in documents),
        "readers_seconds": KEPT_SECONDS,
        "parts": documents,
    }


def _part_as_json(plan: ShredPlan, rows: list[ShreddedKey], *, dry_run: bool) -> dict[str, Any]:
    return {
        **totals(plan.stream, plan.manifest),
        "dry_run": dry_run,
        "deleted": plan.manifest is not None and not dry_run,
        "keys": [row.as_json() for row in rows],
        "plain_fragments": plan.plain_fragments,
        "readers_seconds": KEPT_SECONDS,
    }


def _show(plan: ShredPlan, rows: list[ShreddedKey], *, dry_run: bool) -> None:
    name = one_line(plan.stream)
    if plan.manifest is None:
        print(f"{name}: already deleted{'' if rows else ', and it has no key here; nothing to do'}")
    else:
        print(f"{held_by(plan.manifest)} {'would be deleted' if dry_run else 'deleted'}")
    for row in rows:
        print(f"{name}: {_sentence(row, dry_run=dry_run)}")
    if plan.plain_fragments is None:
        print(f"{name}: its manifest is damaged: whoever has an older copy of the bucket may read some of it")
    elif plan.plain_fragments:
        what = counted(plan.plain_fragments, "fragment is", "fragments are")
        print(f"{name}: {what} not encrypted; whoever has an older copy of the bucket can read such data")
    if rows and not dry_run:
        print(
            f"{name}: a process that has the key in memory can read for up to {KEPT_SECONDS:.0f} s more; "
            "`offload sweep` frees the space"
        )


OLDER_COPY = "whoever has an older copy of the bucket (backups, object versions)"


def _sentence(row: ShreddedKey, *, dry_run: bool) -> str:
    """Say what became of a key, and who can still read what it has encrypted."""
    is_done = "would be" if dry_run else "is"
    if row.fate is KeyFate.DELETED:
        rest = f"{OLDER_COPY} and the master key that it names (now {row.label!r}) can still read"
        return f"key {row.uid} {is_done} deleted; {rest}"
    if row.fate is KeyFate.DESTROYED:
        if row.seconds:
            when = f"in {duration_text(row.seconds)}, until which it can be restored"
            rest = f": its data is gone for everybody {when}"
        else:  # files, for example, may have been copied
            rest = ": nobody can read its data now without a backup of that master key"
        return f"its own master key {row.label!r} {is_done} destroyed{'' if dry_run else rest}"
    if row.fate is KeyFate.MISSING:
        rest = "an earlier run has destroyed it. Make sure that no other key service has it"
        return f"its own master key {row.label!r} is gone or about to be destroyed: {rest}"
    if row.fate is KeyFate.DAMAGED:
        rest = f"if the key service has a master key that ends in -{row.uid}, destroy that there"
        return f"key {row.uid} was damaged, and {is_done} deleted; {rest}"
    if row.fate is KeyFate.LOST:
        rest = f"if the key service has a master key that ends in -{row.uid}, destroy that there. Otherwise"
        return f"key {row.uid} was lost before; {rest} {OLDER_COPY} and its master key can still read"
    if row.fate is KeyFate.LEFT:
        rest = "whoever has its master key can still read; run again"
        return f"key {row.uid} may still be on the tier, and {rest}"
    return f"its own master key {row.label!r} was not destroyed, and key {row.uid} is kept; run again"
