"""The command `offload spark index`: indexes streams by a key of their messages, in parallel."""

from __future__ import annotations

from typing import Annotated

import typer

from offload.cli.kit.arguments import Options, Tier
from offload.cli.kit.indexes import By, tell_index
from offload.cli.kit.output import one_line, print_error
from offload.cli.kit.terminal import live_line
from offload.ground.errors import Denied
from offload_spark.jobs.plain_errors import plain_errors
from offload_spark.options import absolute
from offload_spark.running import Master, given, session_at


def index(
    context: typer.Context,
    tier: Tier,
    by: By,
    stream: Annotated[
        list[str] | None, typer.Option("--stream", metavar="NAME", help="Only this stream. May be repeated.")
    ] = None,
    option: Options = None,
    master: Master = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object for each part of a stream.")] = False,
) -> int:
    """Index the streams of TIER by a key of their messages, for `offload find`. Commits nothing."""
    options, refused = given(context.obj, option), list[Denied]()
    with session_at(master) as spark, live_line("indexing") as show, plain_errors():
        from offload_spark.jobs.index import index as run

        done = run(
            spark,
            absolute(tier),
            by,
            streams=stream or [],
            storage_options=options,
            refused=refused.append,
            progress=lambda name, next_offset: show(f"{one_line(name)}: up to offset {next_offset}"),
        )
    for one in done:
        tell_index(one, json=json)
    for error in refused:
        print_error(error)
    return 1 if refused or any(one.damages for one in done) else 0
