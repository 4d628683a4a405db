"""The command `offload spark rebuild`. It has the arguments and the report of `offload rebuild`."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from offload.cli.kit.arguments import Options, Tier
from offload.cli.kit.output import counted
from offload.cli.kit.rebuild import Begin, DryRun, End, Incarnation, Yes, make_sure, tell
from offload.cli.kit.terminal import live_line
from offload_spark.jobs.plain_errors import plain_errors
from offload_spark.options import absolute
from offload_spark.running import ExecutorKeys, Master, given, session_at


def rebuild(
    context: typer.Context,
    tier: Tier,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream whose roots are lost.")],
    option: Options = None,
    incarnation: Incarnation = None,
    begin: Begin = None,
    end: End = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    keys: ExecutorKeys = None,
    master: Master = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> int:
    """Rebuild the manifest of STREAM. Tasks read its fragments. Stop all writers and sweeps first."""
    options = given(context.obj, option)
    make_sure(dry_run=dry_run, yes=yes)
    with session_at(master) as spark, live_line("reading") as show, plain_errors():
        from offload_spark.jobs.rebuild import rebuild as run

        report = run(
            spark,
            absolute(tier),
            stream,
            incarnation=incarnation,
            begin=begin,
            end=end,
            dry_run=dry_run,
            storage_options=options,
            keys=keys or "",
            progress=lambda read, listed: show(f"{read} of {counted(listed, 'fragment')}"),
        )
    command = f"offload spark rebuild {shlex.quote(tier)} {shlex.quote(stream)}"
    return tell(report, command=command, dry_run=dry_run, json=json)
