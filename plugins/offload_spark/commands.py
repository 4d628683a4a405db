"""The commands `offload spark …`, one for each job. They start Spark on this machine or at `--master`."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from offload.cli.kit.arguments import Compress, Encrypt, OnlyStream, Options, Tier, compression_of
from offload.cli.kit.ending import Usage
from offload.cli.kit.findings import exit_code, show_findings, show_not_opened, verdict
from offload.cli.kit.output import counted, print_json, print_note, size_text
from offload.cli.kit.state import CommandContext
from offload.cli.kit.terminal import live_line
from offload.contracts.events import DamageFound
from offload.ground.errors import OffloadError
from offload.upkeep.verify.report import VerifyReport
from offload_spark.compacting import compact
from offload_spark.copying import copy
from offload_spark.indexing import index
from offload_spark.jobs.plain_errors import plain_errors
from offload_spark.options import absolute
from offload_spark.rebuilding import rebuild
from offload_spark.running import ExecutorKeys, Master, check_keys, given, session_at

app = typer.Typer(help="Jobs that Spark runs in parallel.", no_args_is_help=True)
app.command()(compact)
app.command()(copy)
app.command()(index)
app.command()(rebuild)


@app.command()
def verify(
    context: typer.Context,
    tier: Tier,
    stream: OnlyStream = None,
    after: Annotated[
        str,
        typer.Option(metavar="OBJECT", help="Resume after this object, as printed by an interrupted run."),
    ] = "",
    keys: ExecutorKeys = None,
    option: Options = None,
    master: Master = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> int:
    """Read every committed fragment of TIER whole, and verify all of its checksums."""
    state: CommandContext = context.obj
    report = VerifyReport()
    options = given(state, option)
    try:
        with session_at(master) as spark, live_line("reading") as show, plain_errors():
            from offload_spark.jobs.verify import verify as run

            run(
                spark,
                absolute(tier),
                stream=stream,
                storage_options=options,
                keys=keys or "",
                after=after,
                report=report,
                progress=lambda seen: show(_verified(seen)),
            )
    except (KeyboardInterrupt, OffloadError):
        if report.judged_to is not None:
            print_note(f"everything up to {report.judged_to} was verified; to continue, use --after with it")
        raise
    for damage in report.damages:
        state.plugins.emit(DamageFound(damage=damage))
    if json:
        print_json(report.as_json(), indent=2)
    else:
        show_findings(report)
        show_not_opened(report)
        print(_verified(report))
    return exit_code(report)


@app.command()
def backfill(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="The broker's data, by a URL that every executor can open."),
    ],
    tier: Tier,
    stream: Annotated[
        list[str] | None, typer.Option("--stream", metavar="NAME", help="Only this stream. May be repeated.")
    ] = None,
    compress: Compress = None,
    keys: ExecutorKeys = None,
    encrypt: Encrypt = None,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Discard what an unfinished run left of --stream, and exit.")
    ] = False,
    option: Options = None,
    master: Master = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
) -> int:
    """Copy the sealed ledgers of SOURCE to TIER, each by a task, with one commit for each stream."""
    options, compression = given(context.obj, option), compression_of(compress)
    check_keys(context.obj, keys, encrypt)
    if give_up:
        return _give_up(source, tier, stream or [], options)
    with session_at(master) as spark, live_line("uploading") as show, plain_errors():
        from offload_spark.jobs.backfill import backfill as run

        done = run(
            spark,
            source,
            absolute(tier),
            streams=stream or [],
            storage_options=options,
            compression=compression,
            keys=keys or "",
            encrypt=encrypt or "",
            progress=lambda one: show(
                f"{one.stream}: {counted(one.ledgers, 'ledger')}, up to {one.next_offset}"
            ),
        )
    for one in done:
        if json:
            print_json(asdict(one))
        else:
            earlier = counted(one.taken_over, "fragment")
            taken = f", {earlier} taken over from an earlier run" if one.taken_over else ""
            ledgers = counted(one.ledgers, "ledger")
            print(f"{one.stream}: {ledgers} uploaded{taken}; the tier ends at {one.next_offset}")
    return 0


def _give_up(source: str, tier: str, streams: list[str], options: Mapping[str, Any]) -> int:
    from offload_spark.jobs.backfill import abandon

    if not streams:
        raise Usage("--give-up needs --stream: name the streams")
    for stream in streams:
        abandon(source, absolute(tier), stream, storage_options=options)
        print_note(f"{stream}: the unfinished job is discarded; the next sweep deletes its objects")
    return 0


@app.command()
def export(
    context: typer.Context,
    tier: Tier,
    target: Annotated[
        str, typer.Argument(metavar="FOLDER", help="The folder for the Parquet files, as Spark names it.")
    ],
    stream: Annotated[str | None, typer.Option(metavar="STREAM", help="Only this stream.")] = None,
    decode: Annotated[str | None, typer.Option(metavar="NAME", help="Add a decoder's columns.")] = None,
    keys: ExecutorKeys = None,
    option: Options = None,
    master: Master = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> int:
    """Write the streams of TIER as Parquet files, by stream and date. A repeated run adds new records."""
    options = {"storageOptions": json_module.dumps(given(context.obj, option))}
    options |= {"keys": keys} if keys else {}
    options |= {"stream": stream} if stream is not None else {}
    options |= {"decode": decode} if decode is not None else {}
    with session_at(master) as spark, live_line("writing") as show:
        from offload_spark.jobs.export import export as run

        with plain_errors():
            exported = run(
                spark,
                absolute(tier),
                absolute(target),
                options=options,
                progress=lambda seen: show(
                    f"{counted(seen.rows, 'record')}, {counted(seen.batches, 'batch', 'batches')}"
                ),
            )
    if json:
        print_json(asdict(exported), indent=2)
    else:
        print(f"{counted(exported.rows, 'record')} added in {counted(exported.batches, 'batch', 'batches')}")
    return 0


def _verified(report: VerifyReport) -> str:
    what = f"{counted(report.streams, 'stream')}, {counted(report.objects, 'object')}"
    return f"{what}, {size_text(report.bytes)} read: {verdict(report, sound='all of them sound')}"
