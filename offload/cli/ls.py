"""`offload ls`: which streams a tier holds."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from offload.cli.arguments import Options, Tier
from offload.cli.output import print_error, print_json, print_table, size_text
from offload.cli.state import State, run_async
from offload.errors import Corrupt, NotOffloaded, OffloadError, UnsupportedFormat
from offload.formats.manifest import Manifest
from offload.position import iso_of
from offload.tier.sync import totals

HEADS: Final = ("stream", "messages", "first offset", "next offset", "size", "fragments", "version", "newest")


def ls(
    context: typer.Context,
    tier: Tier,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
) -> int:
    """List the streams of TIER."""
    state: State = context.obj

    async def main() -> tuple[list[Manifest], list[OffloadError]]:
        manifests: list[Manifest] = []
        errors: list[OffloadError] = []
        async with state.tier(tier, option) as offloader:
            for stream in await offloader.streams():
                try:
                    manifests.append(await offloader.load_manifest(stream))
                except NotOffloaded:
                    continue  # begun, and never committed; or deleted
                except (Corrupt, UnsupportedFormat) as error:  # one stream's trouble hides no other
                    errors.append(error)
        return manifests, errors

    manifests, errors = run_async(main)
    if json:
        for manifest in manifests:
            print_json(totals(manifest.stream, manifest))
    else:
        print_table(HEADS, [_row(manifest) for manifest in manifests])
    for error in errors:
        print_error(error)
    return 1 if errors else 0


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
