"""`offload ls`: list the streams of a tier."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import typer

from offload.cli.encryption import is_encrypted
from offload.cli.kit.arguments import Options, Tier
from offload.cli.kit.output import print_error, print_json, print_table, ratio_text, size_text
from offload.cli.kit.state import CommandContext, run_async
from offload.contracts.catalogue import Catalogue
from offload.errors import Absent, Corrupt, NotOffloaded, OffloadError, UnsupportedFormat
from offload.model.manifest import CommittedStream
from offload.model.position import iso_of
from offload.model.totals import codecs_of, stored_totals, totals

HEADS: Final = (
    "stream", "messages", "first offset", "next offset", "size", "stored", "ratio", "codecs", "fragments",
    "version", "newest",
)  # fmt: skip
ENCRYPTED: Final = "encrypted"
"""The last column. It is shown if any stream is encrypted."""


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
                    continue  # it was deleted, or its first commit never came
                except (Corrupt, UnsupportedFormat) as error:  # damage of one stream must not hide the others
                    errors.append(error)
        return rows, errors

    rows, errors = run_async(main)
    if json:
        for row in rows:
            print_json(as_json(row))
    else:
        heads = (*HEADS, ENCRYPTED) if any(row.encrypted for row in rows) else HEADS
        print_table(heads, [_row(row)[: len(heads)] for row in rows])
    for error in errors:
        print_error(error)
    return 1 if errors else 0


class _Listed(NamedTuple):
    committed: CommittedStream
    last_ms: int | None
    """The greatest timestamp of its live messages; None if it has none."""
    encrypted: bool


async def _look(catalogue: Catalogue, stream: str) -> _Listed:
    view = await catalogue.view(stream)
    while True:
        try:
            return _Listed(view.committed, await view.last_timestamp_ms(), await is_encrypted(view))
        except Absent:
            seen, view = view, await catalogue.view(stream)
            # The group of the first view may have been trimmed or replaced since, and swept. If the newest
            # view is the same one, the group is lost.
            if view.committed.version == seen.committed.version:
                raise


def as_json(row: _Listed) -> dict[str, object]:
    """Return a line of `offload ls --json`: the columns of the table, and the keys that `sync` prints."""
    committed, last_ms, encrypted = row
    return {
        **totals(committed.stream, committed),
        **stored_totals(committed),
        "newest": None if last_ms is None else iso_of(last_ms),
        "encrypted": encrypted,
    }


def _row(row: _Listed) -> tuple[object, ...]:
    committed, last_ms, encrypted = row
    return (
        committed.stream,
        committed.messages,
        committed.first_offset,
        committed.next_offset,
        size_text(committed.data_size_bytes),
        size_text(committed.stored_size_bytes),
        ratio_text(committed.data_size_bytes, committed.stored_size_bytes),
        ", ".join(codecs_of(committed)) or "-",
        committed.fragments,
        committed.version,
        "-" if last_ms is None else iso_of(last_ms),
        "yes" if encrypted else "no",
    )
