"""`offload delete`: delete a stream for good."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from offload.cli.kit.arguments import Options, Stream, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.names import known_name
from offload.cli.kit.output import counted, one_line, print_json, print_note, size_text
from offload.cli.kit.state import CommandContext, run_async
from offload.ground.errors import OffloadError
from offload.model.manifest import Manifest
from offload.model.totals import joined_totals, totals
from offload.parts.whole_stream import part_named
from offload.upkeep.parts import delete_parts, live_manifests


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

    If STREAM has further parts, all of them are deleted, the newest first. The name of a later part
    deletes that part alone. A later `offload sync` of the same name begins a new stream.
    """
    state: CommandContext = context.obj
    if not (yes or dry_run or sys.stdin.isatty()):
        raise Usage("delete asks for the stream's name, and there is no terminal to ask on: add --yes")

    async def main() -> list[Manifest]:
        async with state.tier(tier, option) as offloader:
            named = await known_name(offloader, stream)
            found = await live_manifests(offloader, named)
            if found and (part := await part_named(offloader, named)) is not None:
                print_note(f"this is part {part.number} of stream {part.first!r}, whose readers will skip it")
            if dry_run:
                return found
            if found and not yes:
                _ask(stream, found)
            await delete_parts(offloader, named, found)
            return found

    gone = run_async(main)
    if json:
        print_json(_as_json(stream, gone, dry_run=dry_run))
    else:
        _show(stream, gone, dry_run=dry_run)


def _show(stream: str, gone: list[Manifest], *, dry_run: bool) -> None:
    if not gone:
        print(f"{one_line(stream)}: already deleted, nothing to do")
    for manifest in gone:
        done = "would be deleted" if dry_run else "deleted; `offload sweep` frees their space"
        print(f"{held_by(manifest)} {done}")


def _as_json(stream: str, gone: list[Manifest], *, dry_run: bool) -> dict[str, object]:
    parts = [totals(manifest.stream, manifest) for manifest in gone]
    whole = joined_totals(stream, parts) if parts else totals(stream, None)
    document = {**whole, "dry_run": dry_run, "deleted": bool(gone) and not dry_run}
    return document | ({"parts": parts} if len(parts) > 1 else {})


def _ask(stream: str, found: list[Manifest]) -> None:
    """Ask a person to type the stream's name. Raises if they type something else."""
    held = "\n".join(held_by(manifest) for manifest in found)
    sys.stderr.write(
        f"{held} will be deleted. This cannot be undone: no command brings them back, and\n"
        "`offload sweep` removes the objects. Type the stream's name to delete it: "
    )
    sys.stderr.flush()
    if sys.stdin.readline().rstrip("\n") != stream:
        raise OffloadError(f"that is not the name of stream {stream!r}; nothing was deleted")


def held_by(manifest: Manifest) -> str:
    """Return the name of a stream, and what it holds."""
    held = f"{counted(manifest.messages, 'message')}, {size_text(manifest.stored_size_bytes)}"
    return f"{one_line(manifest.stream)}: {held}, offsets [{manifest.first_offset}, {manifest.next_offset})"
