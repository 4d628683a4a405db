"""`offload rotate`: wrap the keys of streams by another master key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Annotated

import typer

from offload.cli.kit.arguments import Keys, Options, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.names import known_names
from offload.cli.kit.output import counted, print_error, print_json, print_note, print_table
from offload.cli.kit.state import CommandContext
from offload.cli.kit.terminal import live_line
from offload.cli.resumed import ended
from offload.contracts.keys import check_label
from offload.ground.errors import Misuse
from offload.upkeep.rotate import Rotated
from offload.upkeep.rotate import rotate as rotate_tier

NewLabel = Annotated[
    str,
    typer.Option(
        "--encrypt",
        metavar="LABEL",
        help="The master key of the key service that wraps the keys from now on.",
    ),
]
FromKeys = Annotated[
    str | None,
    typer.Option(
        "--from-keys",
        metavar="URL",
        help="The key service that has wrapped the keys so far, if that is another one. Default: --keys.",
    ),
]
RotatedStreams = Annotated[
    list[str] | None,
    typer.Option("--stream", metavar="NAME", help="Rotate only this stream. May be repeated. Default: all."),
]
RotateDryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show which keys would be rotated. Change nothing.")
]


def rotate(
    context: typer.Context,
    tier: Tier,
    encrypt: NewLabel,
    keys: Keys = None,
    from_keys: FromKeys = None,
    stream: RotatedStreams = None,
    dry_run: RotateDryRun = False,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
) -> int:
    """Wrap the keys of the streams of TIER by another master key. No data is rewritten.

    Safe beside syncs and readers. If it is killed, run the same command again. A lost copy of a key is
    restored. Streams with a master key of their own are skipped: rotate that key in the key service.
    """
    state: CommandContext = context.obj
    label, url = _checked(encrypt), _given(keys)
    done: list[Rotated] = []

    async def main() -> None:
        async with (
            state.key_service(url) as new,
            nullcontext() if from_keys is None else state.key_service(from_keys) as old,
            state.tier(tier, option) as offloader,
        ):
            rotated = partial(rotate_tier, offloader, label, service=new, old_service=old)
            names = await known_names(offloader, stream or [])
            with live_line("listing") as show:
                progress = partial(_live, show)
                async for one in rotated(streams=names, dry_run=dry_run, progress=progress):
                    done.append(one)
                    _tell(one, json=json, dry_run=dry_run)

    return ended(main, done, partial(_show, done, dry_run=dry_run), json=json)


def _live(show: Callable[[str], None], number: int, total: int) -> None:
    show(f"rotating the keys of stream {number + 1} of {total}")


def _checked(label: str) -> str:
    if label.startswith("own:"):
        raise Usage("--encrypt: a stream's own master key is rotated in the key service; name a shared one")
    try:
        return check_label(label)
    except Misuse as error:
        raise Usage(f"--encrypt: {error}") from error


def _given(keys: str | None) -> str:
    if keys is None:
        raise Usage("rotate needs a key service: add --keys, or set OFFLOAD_KEYS")
    return keys


def _tell(one: Rotated, *, json: bool, dry_run: bool) -> None:
    """Print a line of JSON, a note or an error as soon as a stream is done. The table comes at the end."""
    if json:
        print_json({**one.as_json(), "dry_run": dry_run})
    elif one.own:
        skipped = f"skipped {counted(one.own, 'key')} with a master key of its own"
        print_note(f"{one.stream}: {skipped}; rotate that in the key service")
    if one.error is not None:
        print_error(one.error)


def _show(done: list[Rotated], *, dry_run: bool) -> None:
    rows = [
        (one.stream, one.rotated, one.unchanged, one.own)
        for one in done
        if one.rotated or one.unchanged or one.own
    ]
    if rows:
        print_table(("stream", "would rotate" if dry_run else "rotated", "unchanged", "own"), rows)
    elif done and not any(one.error for one in done):
        print_note("no stream has a key, so there is nothing to rotate")
