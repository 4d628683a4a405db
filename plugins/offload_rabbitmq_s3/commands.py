"""The commands `offload rabbitmq-s3 …`: look into a bucket of rabbitmq-stream-s3, and write one."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from offload.cli.kit.arguments import Keys, Options, Tier
from offload.cli.kit.names import known_name
from offload.cli.kit.output import counted, error_line, print_json, print_note, print_table, size_text
from offload.cli.kit.progress import CommandProgress, progress
from offload.cli.kit.quantities import parse_size
from offload.cli.kit.state import CommandContext, run_async
from offload.ground.urls import FILE_SCHEME, folder_named
from offload.read.reader import StreamReader
from offload_rabbitmq_s3.catalogue import PREFIX, RabbitmqS3Catalogue
from offload_rabbitmq_s3.exporting import ExportedStream, RabbitmqS3Export
from offload_rabbitmq_s3.keys import RabbitmqKey
from offload_rabbitmq_s3.scanning import RabbitmqS3Scan, as_json, scan_bucket

app = typer.Typer(
    help="Look into buckets of rabbitmq-stream-s3, RabbitMQ's plugin for S3, and write them.",
    no_args_is_help=True,
)

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The bucket: rabbitmq+s3://bucket, rabbitmq+gs://…, rabbitmq+az://…, or a folder.",
    ),
]
OneDocument = Annotated[bool, typer.Option("--json", help="One JSON document.")]
StreamId = Annotated[
    str,
    typer.Option("--id", metavar="ID", help="The id of the new stream: the name of its folder on a broker."),
]
Epoch = Annotated[
    int | None,
    typer.Option(metavar="N", help="The epoch of the root. Default: the leader epoch of the newest chunk."),
]
FragmentTarget = Annotated[
    str,
    typer.Option(metavar="SIZE", help="A fragment ends with the chunk that brings it to this size."),
]
Branching = Annotated[int, typer.Option(metavar="N", help="The number of entries in a group.")]
TargetBucketOptions = Annotated[
    list[str] | None,
    typer.Option("--bucket-option", metavar="NAME=VALUE", help="An option of the bucket. May be repeated."),
]


@app.command()
def scan(
    context: typer.Context,
    url: Url,
    option: Options = None,
    json: OneDocument = False,
) -> int:
    """List what a bucket lacks, and what no manifest in it names.

    Each unused object is listed with its size and a reason. Nothing is deleted. Exit code 1 if data is
    missing or damaged.
    """
    state: CommandContext = context.obj
    found = RabbitmqS3Scan()

    async def main() -> None:
        tier = state.catalogue(url if plain_url(url) != url else _prefixed(url), option)
        assert isinstance(tier, RabbitmqS3Catalogue)
        await tier.open()  # it looks for a given root
        with progress(json=json) as show:
            await scan_bucket(tier, found, lambda seen: show(_scanned(seen)))

    run_async(main)
    if json:
        print_json(as_json(found), indent=2)
    else:
        _show(found)
    return 1 if found.is_bad else 0


@app.command()
def export(
    context: typer.Context,
    tier: Tier,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream, as `offload ls` names it.")],
    url: Url,
    id_: StreamId,
    epoch: Epoch = None,
    fragment_size: FragmentTarget = "64MiB",
    branching: Branching = 1024,
    keys: Keys = None,
    option: Options = None,
    bucket_option: TargetBucketOptions = None,
    json: OneDocument = False,
) -> int:
    """Write STREAM as objects of rabbitmq-stream-s3, the root last.

    Prints what RabbitMQ's metadata store, Khepri, would need. Nothing is written there, and no broker adopts
    the objects by itself. To resume after a kill, run it again.
    """
    state: CommandContext = context.obj.with_keys(keys)
    fragment_size_bytes = parse_size(fragment_size, option="--fragment-size")
    done = ExportedStream()

    async def main() -> None:
        async with state.catalogue(tier, option) as catalogue:
            name = await known_name(catalogue, stream)
            if later := await catalogue.parts(name):
                print_note(f"{name} continues in {counted(len(later), 'part')}: export each by its own name")
            with progress(json=json) as show:
                exporting = RabbitmqS3Export(
                    reader=await StreamReader.open(catalogue, name),
                    store=state.store(plain_url(url), bucket_option),
                    stream_id=id_,
                    epoch=epoch,
                    fragment_size_bytes=fragment_size_bytes,
                    branching=branching,
                    progress=lambda seen: show(_exported(name, seen)),
                    done=done,
                )
                await exporting.run()

    run_async(main)
    assert done.root is not None, "it was written last"
    if json:
        print_json(_export_json(done, done.root), indent=2)
        return 0
    size = size_text(done.size_bytes)
    print(
        f"{id_}: offsets [{done.first_offset}, {done.next_offset}), {size} in "
        f"{counted(done.fragments, 'fragment')} and {counted(done.groups, 'group')}"
    )
    print(f"in Khepri, its manifest would be {{Uid, Epoch}} = {{{done.root.uid:08x}, {done.root.number}}}")
    print_note("no broker adopts these objects by itself: this command writes nothing to Khepri")
    return 0


def plain_url(url: str) -> str:
    """Return the URL of the store itself."""
    return url[len(PREFIX) :] if url[: len(PREFIX)].lower() == PREFIX else url


def _prefixed(url: str) -> str:
    """Return the URL of the tier in a store."""
    path = folder_named(url)
    return PREFIX + (url if path is None else f"{FILE_SCHEME}://{quote(str(path.absolute()))}")


def _exported(name: str, done: ExportedStream) -> CommandProgress:
    what = f"exporting {name}"
    return CommandProgress(what=what, done=done.fragments, total=None, size_bytes=done.size_bytes)


def _export_json(done: ExportedStream, root: RabbitmqKey) -> dict[str, object]:
    return {
        "stream": root.stream,
        "root": str(root),
        "uid": f"{root.uid:08x}",
        "epoch": root.number,
        "first_offset": done.first_offset,
        "next_offset": done.next_offset,
        "fragments": done.fragments,
        "groups": done.groups,
        "bytes": done.size_bytes,
    }


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
