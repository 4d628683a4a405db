"""The command `offload spark compact`: replaces small fragments by large ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offload.cli.kit.arguments import Compress, Encrypt, Options, Tier, compression_of
from offload.cli.kit.ending import Usage
from offload.cli.kit.output import counted, one_line, print_dropped, print_json, print_note, size_text
from offload.cli.kit.quantities import parse_size
from offload.cli.kit.terminal import live_line
from offload_spark.jobs.plain_errors import plain_errors
from offload_spark.options import absolute
from offload_spark.running import ExecutorKeys, Master, check_keys, given, session_at

if TYPE_CHECKING:
    from offload.upkeep.compact.stream import Compacted


def compact(
    context: typer.Context,
    tier: Tier,
    stream: Annotated[
        list[str] | None, typer.Option("--stream", metavar="NAME", help="Only this stream. May be repeated.")
    ] = None,
    fragment_size: Annotated[
        str, typer.Option(metavar="SIZE", help="The largest size of a merged fragment.")
    ] = "64MiB",
    fragments_min: Annotated[
        int, typer.Option(metavar="COUNT", min=2, help="Merge only runs of at least this many fragments.")
    ] = 2,
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
    """Merge small fragments of TIER into larger ones. `offload sweep` deletes the replaced ones later."""
    url, options = absolute(tier), given(context.obj, option)
    size_bytes = parse_size(fragment_size, option="--fragment-size")
    compression = compression_of(compress)
    check_keys(context.obj, keys, encrypt)
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
            compression=compression,
            keys=keys or "",
            encrypt=encrypt or "",
            progress=lambda seen: show(_line_of(seen)),
        )
    for one in done:
        if json:
            print_json(one.as_json())
        else:
            print(_line_of(one))
            print_dropped(one.stream, one.dropped_sections)
    return 0


def _give_up(url: str, streams: list[str], options: Mapping[str, Any]) -> int:
    from offload_spark.jobs.compact import give_up

    if not streams:
        raise Usage("--give-up needs --stream: name the streams")
    for stream in streams:
        give_up(url, stream, storage_options=options)
        print_note(f"{stream}: the unfinished job is discarded; the next sweep deletes its objects")
    return 0


def _line_of(done: Compacted) -> str:
    passed = f", {counted(done.passed_over, 'run')} changed meanwhile" if done.passed_over else ""
    size = size_text(done.bytes)
    became = f"{counted(done.fragments, 'fragment')} became {done.runs}"
    return f"{one_line(done.stream)}: {became}, {size} copied{passed}"
