"""The option and the report of commands that index streams, or find messages by an index."""

from __future__ import annotations

from typing import Annotated

import typer

from offload.cli.kit.ending import Usage
from offload.cli.kit.output import counted, one_line, print_error, print_json, print_note, size_text
from offload.cli.kit.state import CommandContext
from offload.contracts.decoder import Decoder
from offload.ground.errors import Misuse
from offload.index.job import IndexReport
from offload.index.terms import Spec

__all__ = ["By", "index_line", "no_value", "spec_of", "tell_index"]

By = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="SPEC",
        help="The decoder, and where the terms are: DECODER:PATH[,PATH], such as "
        "amqp:properties.message_id. A PATH is key, a section, SECTION.FIELD or body.FIELD.",
    ),
]


def spec_of(state: CommandContext, text: str) -> tuple[Spec, Decoder]:
    """Return the value of `--by` and its decoder. Raises `Usage` if there is no such decoder or section."""
    try:
        spec = Spec.parse(text)
        decoder = state.decoder(spec.decoder)
        spec.check(decoder)
    except Misuse as error:
        raise Usage(f"--by: {error}") from error
    return spec, decoder


def tell_index(one: IndexReport, *, json: bool) -> None:
    """Print a report, the damage that it has, and a note if no record has a term."""
    if json:
        print_json(one.as_json())
    else:
        print(index_line(one))
    if one.records and not one.rows:
        print_note(f"stream {one.stream!r}: {no_value(one.records)}")
    for damage in one.damages:
        print_error(damage, advice="; the index object was deleted, and what it covered was indexed again")


def no_value(records: int) -> str:
    """Return a sentence on records that have no term: the SPEC is probably wrong."""
    return f"none of {counted(records, 'record')} has such a value: check --by and its decoder"


def index_line(one: IndexReport) -> str:
    """Return a report in one line, for a person."""
    did = f"{counted(one.records, 'record')} indexed, {counted(one.rows, 'term')}"
    merged = f", {counted(one.merged, 'merge')}" if one.merged else ""
    has = f"{counted(one.objects, 'index object')}, {size_text(one.size_bytes)}"
    return f"{one_line(one.stream)}: {did}{merged}; {has}, up to offset {one.next_offset}"
