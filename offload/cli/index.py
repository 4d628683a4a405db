"""`offload index`: index a stream by a key of its messages."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer

from offload.cli.kit.arguments import Options, Stream, Tier
from offload.cli.kit.indexes import By, index_line, spec_of, tell_index
from offload.cli.kit.names import known_name
from offload.cli.kit.state import CommandContext, run_async
from offload.cli.kit.terminal import live_line
from offload.index.job import IndexReport
from offload.index.job import index as index_stream
from offload.native.layout_check import native


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
                    native(catalogue, to="index"),
                    name,
                    spec,
                    decoder,
                    progress=lambda one: show(index_line(one)),
                )
                async with aclosing(work) as done:
                    async for one in done:
                        reports.append(one)
                        tell_index(one, json=json)

    run_async(main)
    return 1 if any(one.damages for one in reports) else 0
