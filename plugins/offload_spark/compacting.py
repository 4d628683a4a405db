"""`offload spark compact`: large fragments in the place of small ones, as a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offload.cli.kit.arguments import Options, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.output import counted, one_line, print_json, print_note, size_text
from offload.cli.kit.quantities import parse_size
from offload.cli.kit.terminal import live_line
from offload_spark.jobs.plain_errors import plain_errors
from offload_spark.options import absolute
from offload_spark.running import Master, given, session_at

if TYPE_CHECKING:
    from offload.upkeep.compact.stream import Compacted


def compact(
    context: typer.Context,
    tier: Tier,
    stream: Annotated[
        list[str] | None, typer.Option("--stream", metavar="NAME", help="Only this one; may be repeated.")
    ] = None,
    fragment_size: Annotated[
        str, typer.Option(metavar="SIZE", help="How large fragments may become.")
    ] = "64MiB",
    fragments_min: Annotated[
        int, typer.Option(metavar="COUNT", min=2, help="Leave runs of fewer fragments as they are.")
    ] = 2,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Instead: drop what a run left that did not end, of --stream.")
    ] = False,
    option: Options = None,
    master: Master = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, one for each stream.")
    ] = False,
) -> int:
    """Put larger fragments in the place of small ones on TIER. `offload sweep` frees what is replaced."""
    url, options = absolute(tier), given(context.obj, option)
    size_bytes = parse_size(fragment_size, option="--fragment-size")
    if give_up:
        return _give_up(url, stream or [], options)
    with session_at(master) as spark, live_line("copying") as show, plain_errors():
        from offload_spark.jobs.compact import compact as run

        done = run(
            spark,
            url,
            streams=stream or [],
            storage_options=options,
            fragment_size_bytes=size_bytes,
            fragments_min=fragments_min,
            progress=lambda seen: show(_told(seen)),
        )
    for one in done:
        if json:
            print_json(one.as_json())
        else:
            print(_told(one))
    return 0


def _give_up(url: str, streams: list[str], options: Mapping[str, Any]) -> int:
    from offload_spark.jobs.compact import give_up

    if not streams:
        raise Usage("--give-up takes the streams by --stream")
    for stream in streams:
        give_up(url, stream, storage_options=options)
        print_note(f"{stream}: what was left is given up; the sweep takes it")
    return 0


def _told(done: Compacted) -> str:
    passed = f", {counted(done.passed_over, 'run')} changed meanwhile" if done.passed_over else ""
    size = size_text(done.bytes)
    became = f"{counted(done.fragments, 'fragment')} became {done.runs}"
    return f"{one_line(done.stream)}: {became}, {size} copied{passed}"
