"""`offload index`: index a stream by a key of its messages."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer

from offload.cli.kit.arguments import Options, Stream, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.names import known_name
from offload.cli.kit.output import counted, one_line, print_error, print_json, size_text
from offload.cli.kit.state import CommandContext, run_async
from offload.cli.kit.terminal import live_line
from offload.contracts.decoder import Decoder
from offload.ground.errors import Misuse
from offload.index.job import IndexReport
from offload.index.job import index as index_stream
from offload.index.terms import Spec
from offload.model.record_columns import RecordBytes
from offload.native.layout_check import native

By = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="SPEC",
        help="The decoder, and where the terms are: DECODER:PATH[,PATH], such as "
        "amqp:properties.message_id. A PATH is key, a section, SECTION.FIELD or body.FIELD.",
    ),
]


def index(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    by: By,
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object for each part.")] = False,
) -> int:
    """Index STREAM by a key of its messages, so that `offload find` need not read all of them.

    Reads what is committed and not indexed, in all parts of STREAM. Safe beside syncs, readers, sweeps and
    other runs. If it is killed, run the same command again: what was indexed stays.
    """
    state: CommandContext = context.obj
    spec, decoder = spec_of(state, by)
    reports: list[IndexReport] = []

    async def main() -> None:
        async with state.catalogue(tier, option) as catalogue:
            name = await known_name(catalogue, stream)
            with live_line("indexing") as show:
                work = index_stream(
                    native(catalogue, to="index"), name, spec, decoder, progress=lambda one: show(_line(one))
                )
                async with aclosing(work) as done:
                    async for one in done:
                        reports.append(one)
                        _tell(one, json=json)

    run_async(main)
    return 1 if any(one.damages for one in reports) else 0


def spec_of(state: CommandContext, text: str) -> tuple[Spec, Decoder]:
    """Return the value of `--by` and its decoder. Raises `Usage` if there is no such decoder or section."""
    try:
        spec = Spec.parse(text)
        decoder = state.decoder(spec.decoder)
        spec.terms(decoder, RecordBytes.of([]))
    except Misuse as error:
        raise Usage(f"--by: {error}") from error
    return spec, decoder


def _tell(one: IndexReport, *, json: bool) -> None:
    if json:
        print_json(one.as_json())
    else:
        print(_line(one))
    for damage in one.damages:
        print_error(damage, advice="; the index object was deleted: run the same command again")


def _line(one: IndexReport) -> str:
    did = f"{counted(one.records, 'record')} indexed, {counted(one.rows, 'term')}"
    merged = f", {counted(one.merged, 'merge')}" if one.merged else ""
    has = f"{counted(one.objects, 'index object')}, {size_text(one.size_bytes)}"
    return f"{one_line(one.stream)}: {did}{merged}; {has}, up to offset {one.next_offset}"
