"""`offload ls`: list the streams of a tier."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from offload.cli.kit.arguments import Options, Tier
from offload.cli.kit.output import (
    AT_LEAST,
    AT_MOST,
    print_error,
    print_json,
    print_table,
    ratio_text,
    size_text,
)
from offload.cli.kit.state import CommandContext, run_async
from offload.ground.errors import Corrupt, OffloadError, UnsupportedFormat
from offload.model.own_names import labels_of
from offload.model.position import iso_of
from offload.parts.whole_stream import grouped
from offload.showing.streams import row_as_json, rows_of_stream, stream_names

HEADS: Final = (
    "stream", "messages", "first offset", "next offset", "size", "stored", "ratio", "codecs", "fragments",
    "version", "newest",
)  # fmt: skip
DROP: Final = (
    "version", "codecs", "ratio", "fragments", "encrypted", "size", "first offset", "newest", "parts",
)  # fmt: skip
"""The columns that a narrow table leaves out, the first one first."""
ENCRYPTED: Final = "encrypted"
"""A column that is shown if any stream is encrypted."""
PARTS: Final = "parts"
"""A column that is shown if any stream has several parts."""
GAPS: Final = "gaps"
"""The last column. It is shown if any stream has a gap between two parts."""


EachPart = Annotated[bool, typer.Option("--verbose", "-v", help="Also list the parts of each stream.")]


def ls(
    context: typer.Context,
    tier: Tier,
    option: Options = None,
    verbose: EachPart = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
) -> int:
    """List the streams of TIER.

    A stream that has further parts is one line, with the totals of all parts. A stream of RabbitMQ has
    the name of its queue, unless several streams of TIER have that name.
    """
    state: CommandContext = context.obj

    async def main() -> tuple[list[dict[str, Any]], list[OffloadError]]:
        rows: list[dict[str, Any]] = []
        errors: list[OffloadError] = []
        async with state.opened_to_read(tier, option) as catalogue:
            names, found = await stream_names(catalogue)
            errors.extend(found)
            for stream in await grouped(catalogue, names=names, damaged=errors.append):
                try:
                    rows += await rows_of_stream(stream)
                except (Corrupt, UnsupportedFormat) as error:  # damage of one stream must not hide the others
                    errors.append(error)
        # Damage to a part is found when its stream looks for it, and when it is shown by itself.
        return rows, [*{str(error): error for error in errors}.values()]

    rows, errors = run_async(main)
    labels = labels_of(row["stream"] for row in rows)
    for row in rows:
        row["name"] = labels[row["stream"]]
    if json:
        for row in rows:
            print_json(row_as_json(row))
    else:
        _show(rows, verbose=verbose)
    for error in errors:
        print_error(error)
    return 1 if errors else 0


def _show(rows: list[dict[str, Any]], *, verbose: bool) -> None:
    has_parts = any("parts" in row for row in rows)
    has_gaps = any(row.get("gaps") for row in rows)
    has_encrypted = has_parts or any(row["encrypted"] for row in rows)
    heads = (*HEADS, *[ENCRYPTED] * has_encrypted, *[PARTS] * has_parts, *[GAPS] * has_gaps)
    lines = []
    for row in rows:
        lines.append(_line(row, len(row.get("parts", [row]))))
        if verbose:
            lines += [_line(part, f"part {part['part']}") for part in row.get("parts", [])]
    print_table(heads, [line[: len(heads)] for line in lines], drop=DROP)


def _line(row: dict[str, Any], parts: object) -> tuple[object, ...]:
    counts = row.get("counts_messages", True)
    return (
        row.get("name", row["stream"]),
        f"{'' if counts else AT_MOST}{row['messages']}",
        row["first_offset"],
        row["next_offset"],
        size_text(row["bytes"]),
        size_text(row["stored_bytes"]),
        ratio_text(row["bytes"], row["stored_bytes"]),
        ", ".join(row["codecs"]) or "-",
        f"{'' if counts else AT_LEAST}{row['fragments']}",
        row["version"],
        "-" if row["newest"] is None else iso_of(row["newest"]),
        "yes" if row["encrypted"] else "no",
        parts,
        row.get("gaps", "-" if "part" in row else 0),
    )
