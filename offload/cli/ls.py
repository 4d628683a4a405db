"""`offload ls`: list the streams of a tier."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import typer

from offload.cli.encryption import is_encrypted
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
from offload.contracts.catalogue import Catalogue
from offload.ground.errors import Absent, Corrupt, NotOffloaded, OffloadError, UnsupportedFormat
from offload.model.gaps import PartEnds, lost_records
from offload.model.own_names import labels_of
from offload.model.position import iso_of
from offload.model.totals import joined_totals, ratio_of, stored_totals, totals
from offload.native.layout_check import native_or_none
from offload.parts.whole_stream import WholeStream, grouped

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
            names, found = await _streams(catalogue)
            errors.extend(found)
            for stream in await grouped(catalogue, names=names, damaged=errors.append):
                try:
                    rows += await _look(stream)
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
            print_json(_printed(row))
    else:
        _show(rows, verbose=verbose)
    for error in errors:
        print_error(error)
    return 1 if errors else 0


async def _streams(catalogue: Catalogue) -> tuple[list[str], Sequence[OffloadError]]:
    """Return the names of the streams, and an error for each folder that hides its own."""
    if (objects := native_or_none(catalogue)) is not None:
        return await objects.find_streams()
    return await catalogue.streams(), []


async def _look(stream: WholeStream) -> list[dict[str, Any]]:
    """Return the row of a stream, or nothing if it was deleted, or its first commit never came."""
    found = []
    for part in await stream.parts():
        with suppress(NotOffloaded):
            found.append((part, await _look_at(stream.catalogue, part.name)))
    if len(found) < 2:
        return [document for _, document in found]
    documents = [{**document, "part": part.number} for part, document in found]
    ends = {part.number: _ends(document) for part, document in found}
    gaps = await stream.gaps_between(ends)
    return [
        {
            **_joined(stream.name, documents),
            "gaps": len(gaps),
            "lost_records": lost_records(gaps),
            "parts": documents,
        }
    ]


def _ends(document: dict[str, Any]) -> PartEnds:
    return PartEnds(document["first_offset"], document["next_offset"], document["fragments"])


async def _look_at(catalogue: Catalogue, stream: str) -> dict[str, Any]:
    """Return the columns of the table, and the keys that `sync` prints, for one part alone.

    `newest` is the greatest timestamp of its live messages in milliseconds; None if it has none.
    """
    view = await catalogue.view(stream)
    while True:
        committed = view.committed
        try:
            last_ms, encrypted = await view.last_timestamp_ms(), await is_encrypted(view)
        except Absent:
            view = await catalogue.view(stream)
            # The group of the first view may have been trimmed or replaced since, and swept. If the newest
            # view is the same one, the group is lost.
            if view.committed.version == committed.version:
                raise
        else:
            return {
                **totals(committed.stream, committed),
                **stored_totals(committed),
                "newest": last_ms,
                "encrypted": encrypted,
            }


def _joined(stream: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of a stream with these parts."""
    whole = joined_totals(stream, parts)
    return {
        **whole,
        "ratio": ratio_of(whole["bytes"], whole["stored_bytes"]),
        "codecs": [*dict.fromkeys(codec for part in parts for codec in part["codecs"])],
        "newest": max((part["newest"] for part in parts if part["newest"] is not None), default=None),
        "encrypted": any(part["encrypted"] for part in parts),
    }


def _printed(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as a line of `offload ls --json`."""
    printed = {**row, "newest": None if row["newest"] is None else iso_of(row["newest"])}
    return printed | ({"parts": [_printed(part) for part in row["parts"]]} if "parts" in row else {})


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
