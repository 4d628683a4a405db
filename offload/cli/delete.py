"""`offload delete`: delete a stream for good."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from offload.cli.kit.arguments import Options, Stream, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.output import counted, one_line, print_json, size_text
from offload.cli.kit.state import CommandContext, run_async
from offload.errors import OffloadError
from offload.model.manifest import Manifest
from offload.model.totals import totals
from offload.upkeep.retention import delete_stream, load_unless_deleted


def delete(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    yes: Annotated[
        bool, typer.Option("--yes", help="Skip the confirmation prompt. Required when there is no terminal.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted. Change nothing.")
    ] = False,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Delete STREAM. This cannot be undone. `offload sweep` frees its space.

    A later `offload sync` of the same name begins a new stream.
    """
    state: CommandContext = context.obj
    if not (yes or dry_run or sys.stdin.isatty()):
        raise Usage("delete asks for the stream's name, and there is no terminal to ask on: add --yes")

    async def main() -> Manifest | None:
        async with state.tier(tier, option) as offloader:
            found = await load_unless_deleted(offloader, stream)
            if found is None or dry_run:
                return found
            if not yes:
                _ask(found)
            return await delete_stream(offloader, stream, seen=found)

    gone = run_async(main)
    if json:
        print_json({**totals(stream, gone), "dry_run": dry_run, "deleted": gone is not None and not dry_run})
    elif gone is None:
        print(f"{one_line(stream)}: already deleted, nothing to do")
    else:
        done = "would be deleted" if dry_run else "deleted; `offload sweep` frees their space"
        print(f"{held_by(gone)} {done}")


def _ask(found: Manifest) -> None:
    """Ask a person to type the stream's name. Raises if they type something else."""
    sys.stderr.write(
        f"{held_by(found)} will be deleted. This cannot be undone: no command brings them back, and\n"
        "`offload sweep` removes the objects. Type the stream's name to delete it: "
    )
    sys.stderr.flush()
    if sys.stdin.readline().rstrip("\n") != found.stream:
        raise OffloadError(f"that is not the name of stream {found.stream!r}; nothing was deleted")


def held_by(manifest: Manifest) -> str:
    """Return the name of a stream, and what it holds."""
    held = f"{counted(manifest.messages, 'message')}, {size_text(manifest.stored_size_bytes)}"
    return f"{one_line(manifest.stream)}: {held}, offsets [{manifest.first_offset}, {manifest.next_offset})"
