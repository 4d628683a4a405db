"""`offload ls`: which streams a tier holds."""

from __future__ import annotations

from typing import Annotated

import typer

from offload.cli.output import print_json, print_table, size_text
from offload.cli.state import State, run_async
from offload.formats.manifest import Manifest
from offload.position import iso_of
from offload.tier.sync import newest, totals


def ls(
    context: typer.Context,
    tier: Annotated[str, typer.Argument(help="A folder, or a URL that a backend knows.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
) -> None:
    """List the streams of TIER."""
    state: State = context.obj

    async def main() -> list[Manifest]:
        async with state.tier(tier) as offloader:
            found = [await newest(offloader, stream) for stream in await offloader.streams()]
        return [manifest for manifest in found if manifest is not None]

    manifests = run_async(main)
    if json:
        for manifest in manifests:
            print_json(totals(manifest.stream, manifest))
        return
    heads = ("stream", "messages", "first offset", "next offset", "size", "fragments", "version", "newest")
    print_table(heads, [_row(manifest) for manifest in manifests])


def _row(manifest: Manifest) -> tuple[object, ...]:
    last_ms = int(manifest.entries["last_timestamp_ms"].max()) if manifest.fragments else None
    return (
        manifest.stream,
        manifest.messages,
        manifest.first_offset,
        manifest.next_offset,
        size_text(manifest.stored_size_bytes),
        manifest.fragments,
        manifest.version,
        "-" if last_ms is None else iso_of(last_ms),
    )
