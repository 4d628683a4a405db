"""The commands `offload rabbitmq-s3 …`: look into a bucket of rabbitmq-stream-s3."""

from __future__ import annotations

from typing import Annotated

import typer

from offload.cli.kit.arguments import Options
from offload.cli.kit.output import counted, error_line, print_json, print_note, print_table, size_text
from offload.cli.kit.progress import CommandProgress, progress
from offload.cli.kit.state import CommandContext, run_async
from offload.ground.errors import NotOffloaded
from offload_rabbitmq_s3.catalogue import PREFIX, RabbitmqS3Catalogue
from offload_rabbitmq_s3.scanning import RabbitmqS3Scan, as_json, scan_bucket

app = typer.Typer(
    help="Look into buckets of rabbitmq-stream-s3, RabbitMQ's plugin for S3.", no_args_is_help=True
)


@app.callback()
def _group() -> None:
    """Keep `scan` a command of the group, although it is the only one."""


@app.command()
def scan(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="The bucket: rabbitmq+s3://bucket, rabbitmq+gs://…, rabbitmq+az://…, or a folder.",
        ),
    ],
    option: Options = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> int:
    """List what a bucket lacks, and what no manifest in it names.

    Each unused object is listed with its size and a reason. Nothing is deleted. Exit code 1 if data is
    missing or damaged.
    """
    state: CommandContext = context.obj
    found = RabbitmqS3Scan()
    plain = url[len(PREFIX) :] if url[: len(PREFIX)].lower() == PREFIX else url

    async def main() -> None:
        tier = RabbitmqS3Catalogue(state.store(plain, option), url)
        with progress(json=json) as show:
            await scan_bucket(tier, found, lambda seen: show(_scanned(seen)))

    run_async(main)
    if not found.streams:
        raise NotOffloaded(f"{url} has no stream of rabbitmq-stream-s3")
    if json:
        print_json(as_json(found), indent=2)
    else:
        _show(found)
    return 1 if found.is_bad else 0


def _scanned(found: RabbitmqS3Scan) -> CommandProgress:
    size_bytes = sum(each.size_bytes for each in found.streams)
    return CommandProgress(what="scanning", done=found.objects, total=None, size_bytes=size_bytes)


def _show(found: RabbitmqS3Scan) -> None:
    print_table(
        ("stream", "root", "first offset", "next offset", "objects", "size", "other roots"),
        [
            (
                each.stream,
                "-" if each.root is None else each.root.root_name,
                each.first_offset,
                each.next_offset,
                each.objects,
                size_text(each.size_bytes),
                ", ".join(each.rivals) or "-",
            )
            for each in found.streams
        ],
        drop=("other roots",),
    )
    for stream in found.streams:
        for one in stream.missing:
            print(f"MISSING {one.key}: {one.reason}")
        if stream.error is not None:
            print(f"NOT JUDGED {stream.stream}: {error_line(stream.error)}")
        for one in stream.unused:
            print(f"UNUSED {one.key}: {one.reason}, {size_text(one.size_bytes)}")
    for reason, count, size_bytes in found.totals():
        print(f"{counted(count, 'object')}, {size_text(size_bytes)}: {reason}")
    if found.stranger_count:
        print_note(f"{counted(found.stranger_count, 'object')} of others, such as {found.strangers[0]!r}")
