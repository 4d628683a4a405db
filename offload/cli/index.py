"""`offload index`: index a stream by a key of its messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import typer

from offload.cli.kit.arguments import Options, StreamOrGlob, Tier
from offload.cli.kit.indexes import By, index_line, spec_of, tell_index
from offload.cli.kit.names import streams_meant
from offload.cli.kit.output import print_error, print_note
from offload.cli.kit.state import CommandContext, run_async
from offload.cli.kit.terminal import live_line
from offload.ground.errors import Denied, NotOffloaded, StoreDenied
from offload.index.job import IndexReport
from offload.index.job import index as index_stream
from offload.native.layout_check import native


def index(
    context: typer.Context,
    tier: Tier,
    stream: StreamOrGlob,
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

    async def main() -> bool:
        is_done = True
        async with state.catalogue(tier, option) as catalogue:
            names = await streams_meant(catalogue, stream)
            with live_line("indexing") as show:
                for name in names:
                    work = index_stream(
                        native(catalogue, to="index"),
                        name,
                        spec,
                        decoder,
                        progress=lambda one: show(index_line(one)),
                    )
                    is_done &= await _told(work, json=json, is_alone=not names[1:])
        return is_done

    return 0 if run_async(main) else 1


async def _told(work: AsyncGenerator[IndexReport, None], *, json: bool, is_alone: bool) -> bool:
    """Print the reports of one stream. Return False for damage, and if a stream of a glob is refused."""
    is_done = True
    try:
        async with aclosing(work) as reports:
            async for one in reports:
                tell_index(one, json=json)
                is_done &= not one.damages
    except (NotOffloaded, Denied) as error:
        if is_alone or isinstance(error, StoreDenied):
            raise
        if isinstance(error, Denied):  # such as an encrypted stream
            print_error(error)
            return False
        print_note(str(error))  # such as a deleted stream, which a glob matches too
    return is_done
