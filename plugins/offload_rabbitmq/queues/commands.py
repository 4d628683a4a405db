"""The commands `offload queues …`: list the classic queues of a stopped node, rescue and publish them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import aclosing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote, unquote

import typer

from offload.cli.kit.arguments import Keys, Options, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.names import known_name
from offload.cli.kit.output import (
    counted,
    one_line,
    print_error,
    print_json,
    print_note,
    print_table,
    size_text,
    write_bytes,
)
from offload.cli.kit.progress import CommandProgress, progress
from offload.cli.kit.state import CommandContext, run_async
from offload.copy.sync import sync
from offload.ground.errors import Misuse
from offload.model.value_text import value_text
from offload.read.reader import StreamReader
from offload_rabbitmq.queues.decoder import Amqp091Decoder
from offload_rabbitmq.queues.folder import ClassicQueue
from offload_rabbitmq.queues.publishing import ProgressFile, Published, broker_url
from offload_rabbitmq.queues.publishing import publish as publish_stream
from offload_rabbitmq.queues.records import encode_records
from offload_rabbitmq.queues.source import QueueSource

PRINTED_MESSAGES_MAX: Final = 2048

app = typer.Typer(help="Rescue the classic queues of a stopped RabbitMQ node.", no_args_is_help=True)


class LineFormat(StrEnum):
    """The format in which rescued messages are printed."""

    JSONL = "jsonl"


NodeFolder = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="The folder of a stopped node, which has msg_stores in it, or a copy of it."
    ),
]
TierToo = Annotated[
    str | None,
    typer.Argument(metavar="[TIER]", help="The tier that gets a stream for each queue: a folder, or a URL."),
]
Lines = Annotated[
    LineFormat | None,
    typer.Option("--format", help="Print each message as a line of JSON. The default without TIER."),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--stream", metavar="STREAM", help="Only this queue, as VHOST/QUEUE. May be repeated."),
]
Rescued = Annotated[
    str, typer.Argument(metavar="STREAM", help="The stream of the queue, as `offload ls` shows it.")
]
BrokerUrl = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="The broker: amqp://host:5672/vhost, or amqps://. The vhost / is the default."
    ),
]
QueueName = Annotated[
    str | None,
    typer.Option("--queue", metavar="QUEUE", help="The queue to publish to. Default: that of STREAM."),
]
AppendToo = Annotated[bool, typer.Option("--append", help="Publish although the queue has messages.")]
ProgressPath = Annotated[
    Path | None,
    typer.Option(
        "--progress",
        metavar="FILE",
        help="The file that says how far an earlier run came. Default: STREAM.published in this folder.",
    ),
]


@app.command()
def ls(
    path: NodeFolder, json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False
) -> int:
    """List the queues in the folder of a node, with what cannot be read. Exit code 1 if there is any."""
    source = QueueSource(path)
    queues = run_async(source.queues)
    rows = [(each.stream, "+".join(each.versions) or "-", len(each.rows), each.size_bytes) for each in queues]
    if json:
        heads = ("stream", "version", "messages", "bytes")
        found = [dict(zip(heads, row, strict=True)) for row in rows]
        print_json({"queues": found, "damages": _damages_as_json(source)}, indent=2)
        return 1 if source.damages else 0
    print_table(["queue", "version", "messages", "bytes"], rows)
    return _told(source)


@app.command()
def rescue(
    context: typer.Context,
    path: NodeFolder,
    tier: TierToo = None,
    how: Lines = None,
    stream: Only = None,
    option: Options = None,
) -> int:
    """Copy each queue to TIER as a stream, or print its messages. The folder is not changed.

    Exit code 1 if something cannot be read: it is counted by queue, file and reason.
    """
    state: CommandContext = context.obj
    source = QueueSource(path)

    async def copied(tier: str) -> bool:
        is_done = True
        async with (
            state.tier(tier, option) as offloader,
            aclosing(sync(source, offloader, only=stream or [])) as reports,
        ):
            async for report in reports:
                if report.error is not None:
                    is_done = False
                    print_error(report.error)
                elif report.manifest is not None:
                    messages = counted(report.manifest.messages, "message")
                    print(f"{one_line(report.stream)}: {messages}, {size_text(report.uploaded_bytes)} copied")
        return is_done

    is_done = True if tier is None else run_async(lambda: copied(tier))
    if tier is None or how is not None:
        queues = run_async(source.queues)
        if unknown := {*(stream or ())} - {each.stream for each in queues}:
            raise source.unknown(min(unknown))
        for each in queues:
            if not stream or each.stream in stream:
                _print_messages(each)
    return max(_told(source), 0 if is_done else 1)


def _print_messages(queue: ClassicQueue) -> None:
    decoder, name = Amqp091Decoder(), value_text(queue.stream)
    for first in range(0, len(queue.rows), PRINTED_MESSAGES_MAX):
        rows = queue.rows[first : first + PRINTED_MESSAGES_MAX]
        records = encode_records(rows, queue.terms(first, first + len(rows)))
        lines = list[str]()
        for offset, (value, sections) in enumerate(decoder.decode(records), first):
            for part in ("queue", "properties"):
                if "error" in sections[part]:
                    queue.count_bad(offset, part)
            tail = value_text(sections)[1:]
            lines.append(f'{{"stream":{name},"offset":{offset},"value":{value_text(value)},{tail}\n')
        write_bytes("".join(lines).encode())


def _told(source: QueueSource) -> int:
    """Print what could not be read. Return the exit code."""
    for note in source.notes:
        print_note(note)
    return 1 if source.damages else 0


def _damages_as_json(source: QueueSource) -> Sequence[dict[str, object]]:
    heads = ("queue", "file", "reason", "count")
    return [dict(zip(heads, each, strict=True)) for each in source.damages]


@app.command()
def publish(
    context: typer.Context,
    tier: Tier,
    stream: Rescued,
    url: BrokerUrl,
    queue: QueueName = None,
    append: AppendToo = False,
    progress_path: ProgressPath = None,
    keys: Keys = None,
    option: Options = None,
) -> int:
    """Publish a rescued queue to a broker: all messages in order, confirmed in batches, at least once.

    If it is killed, run the same command again. Exit code 1 if a message cannot be published.
    """
    state: CommandContext = context.obj.with_keys(keys)
    if not state.debug:  # the library logs the errors that it raises
        logging.getLogger("aiormq").setLevel(logging.CRITICAL)
    name = queue or unquote(stream.rpartition("/")[2])
    try:
        broker = broker_url(url)
    except Misuse as error:
        raise Usage(str(error)) from error

    async def main() -> Published:
        async with state.catalogue(tier, option) as catalogue:
            reader = await StreamReader.open(catalogue, await known_name(catalogue, stream))
            begun = ProgressFile(
                path=progress_path or Path(f"{quote(stream, safe='')}.published"),
                what={"tier": tier, "stream": stream, "broker": url, "queue": name},
            )
            begun.load()
            with progress() as show:
                return await publish_stream(
                    reader, broker, name, begun, append=append, show=lambda done: show(_shown(reader, done))
                )

    done = run_async(main)
    print(f"{one_line(stream)}: {counted(done.messages, 'message')} published to queue {one_line(name)}")
    for reason, count in sorted(done.left_out.items()):
        print_note(f"{stream}: not published: {reason}: {count}")
    return 1 if done.left_out else 0


def _shown(reader: StreamReader, done: Published) -> CommandProgress:
    total = reader.manifest.messages
    return CommandProgress(what="publishing", done=done.messages, total=total, size_bytes=0)
