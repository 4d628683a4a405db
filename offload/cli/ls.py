"""`offload ls`: which streams a tier holds."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from offload.cli.kit.arguments import Options, Tier
from offload.cli.kit.output import print_error, print_json, print_table, size_text
from offload.cli.kit.state import CommandContext, run_async
from offload.contracts.catalogue import Catalogue
from offload.errors import Absent, Corrupt, NotOffloaded, OffloadError, UnsupportedFormat
from offload.model.manifest import CommittedStream
from offload.model.position import iso_of
from offload.model.totals import totals

HEADS: Final = ("stream", "messages", "first offset", "next offset", "size", "fragments", "version", "newest")


def ls(
    context: typer.Context,
    tier: Tier,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
) -> int:
    """List the streams of TIER."""
    state: CommandContext = context.obj

    async def main() -> tuple[list[_Listed], list[OffloadError]]:
        rows: list[_Listed] = []
        errors: list[OffloadError] = []
        async with state.catalogue(tier, option) as catalogue:
            for stream in await catalogue.streams():
                try:
                    rows.append(await _look(catalogue, stream))
                except NotOffloaded:
                    continue  # begun, and never committed; or deleted
                except (Corrupt, UnsupportedFormat) as error:  # one stream's trouble hides no other
                    errors.append(error)
        return rows, errors

    rows, errors = run_async(main)
    if json:
        for row in rows:
            print_json(as_json(*row))
    else:
        print_table(HEADS, [_row(*row) for row in rows])
    for error in errors:
        print_error(error)
    return 1 if errors else 0


_Listed = tuple[CommittedStream, int | None]
"""A stream, and the greatest timestamp of what lives of it; None if nothing does."""


async def _look(catalogue: Catalogue, stream: str) -> _Listed:
    view = await catalogue.view(stream)
    while True:
        try:
            return view.committed, await view.last_timestamp_ms()
        except Absent:
            seen, view = view, await catalogue.view(stream)
            if view.committed.version == seen.committed.version:
                raise  # else a trim came between, and a sweep


def as_json(committed: CommittedStream, last_ms: int | None) -> dict[str, object]:
    """One line of `offload ls --json`: every column of the table, and what `sync` prints of the stream."""
    return {
        **totals(committed.stream, committed),
        "stored_bytes": committed.stored_size_bytes,
        "newest": None if last_ms is None else iso_of(last_ms),
    }


def _row(committed: CommittedStream, last_ms: int | None) -> tuple[object, ...]:
    return (
        committed.stream,
        committed.messages,
        committed.first_offset,
        committed.next_offset,
        size_text(committed.stored_size_bytes),
        committed.fragments,
        committed.version,
        "-" if last_ms is None else iso_of(last_ms),
    )
