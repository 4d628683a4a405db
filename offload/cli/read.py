"""`offload read`: print the messages of a stream, from any position, in one of three formats."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Annotated

import typer

from offload.cli.kit.arguments import EncryptedOnly, Keys, Options, Stream, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.output import print_note
from offload.cli.kit.reading import (
    AskedBroker,
    Beside,
    HoldBack,
    open_reader,
    place_in,
    print_sides,
    printed,
    so_far,
)
from offload.cli.kit.state import CommandContext, position_of, run_async
from offload.ground.errors import Misuse, TryAgain
from offload.model.position import PartOffset
from offload.read.chunk_filter import ChunkFilter
from offload.read.reader import IN_FLIGHT
from offload.showing.lines import Format
from offload.showing.message_output import MessageOutput
from offload.showing.reading import AnyReader, ReadingEnd, end_of_reading, messages_shown, runs_to_show
from offload.two_sides.choice import ReadPriority

At = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="SPEC",
        help="The position to begin at: first, last, next, an offset, an ISO 8601 time (UTC unless it has a "
        "zone), @ and milliseconds since 1970, or -1h (s, m, h, d) for so long ago.",
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="SPEC",
        help="End before this position. A time ends before the first chunk of that time or later. "
        "[default: the end]",
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="At the end, wait for what comes later. Ctrl-C ends it.")
]
PartNumber = Annotated[
    int | None,
    typer.Option(
        "--part",
        metavar="N",
        min=1,
        help="Begin in this part of STREAM: --from is a position in it. Later parts follow. "
        "Default: --from is a position in all parts together.",
    ),
]
Limit = Annotated[int | None, typer.Option(metavar="N", min=0, help="Print at most this many messages.")]
RequestsAtOnce = Annotated[
    int,
    typer.Option(metavar="N", min=1, max=64, help="Read ahead with this many windows, up to 8 MiB each."),
]
Decode = Annotated[
    str, typer.Option(metavar="NAME", help="The decoder: raw, or one of a plugin, such as amqp.")
]
FromSource = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="URL",
        help="Also read the disk of the broker that writes STREAM, up to its newest message: "
        "rabbitmq:///var/lib/…/stream. Needs no copy to be made first.",
    ),
]
Priority = Annotated[
    ReadPriority,
    typer.Option(
        "--priority", help="With --source: where a message is read that is on the disk and on TIER."
    ),
]
FilterValues = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="VALUE",
        help="Print only the chunks that may have messages with this filter value, which publishers set as "
        "x-stream-filter-value. Their other messages are printed too. Repeat it for several values.",
    ),
]
MatchUnfiltered = Annotated[
    bool,
    typer.Option(
        "--match-unfiltered",
        help="With --filter: also print the chunks that may have messages without a filter value.",
    ),
]
Print = Annotated[Format, typer.Option("--format", help="The format of each message.")]


def read(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    start: At = "first",
    part: PartNumber = None,
    keys: Keys = None,
    encrypted_only: EncryptedOnly = False,
    option: Options = None,
    to: To = None,
    follow: Follow = False,
    limit: Limit = None,
    at_once: RequestsAtOnce = IN_FLIGHT,
    decode: Decode = "raw",
    how: Print = Format.JSONL,
    values: FilterValues = None,
    match_unfiltered: MatchUnfiltered = False,
    source: FromSource = None,
    priority: Priority = ReadPriority.LOCAL_FIRST,
    hold_back: HoldBack = None,
    broker: AskedBroker = None,
) -> None:
    """Print the messages of STREAM. Tracking records are never printed, and --limit does not count them.

    If STREAM has further parts, they are printed too. The name of a later part prints that part alone.
    """
    state: CommandContext = context.obj.with_keys(keys, encrypted_only=encrypted_only)
    beside = Beside.of(source, priority, hold_back, broker)
    position, end = position_of(start), None if to is None else position_of(to)
    output = printed(state, decode, how, chosen=_filter(values, match_unfiltered, source))

    async def main() -> None:
        async with (
            state.opened_to_read(tier, option) as catalogue,
            open_reader(state, catalogue, stream, beside, in_flight=at_once) as reader,
        ):
            place = await place_in(reader, position, part, output.decoder)
            await _print(reader, place, await end_of_reading(reader, end), limit, output, follow=follow)

    _ended(main, output)


def _filter(values: list[str] | None, match_unfiltered: bool, source: str | None) -> ChunkFilter | None:
    if not values:
        if match_unfiltered:
            raise Usage("--match-unfiltered needs --filter: without it, all messages are printed")
        return None
    if source is not None:
        raise Usage("--filter reads the tier alone: leave --source out")
    try:
        return ChunkFilter(values, match_unfiltered=match_unfiltered)
    except Misuse as error:
        raise Usage(
            "--filter takes a value that is not empty; --match-unfiltered is for messages without one"
        ) from error


async def _print(
    reader: AnyReader,
    place: PartOffset,
    until: ReadingEnd,
    limit: int | None,
    output: MessageOutput,
    *,
    follow: bool,
) -> None:
    found = runs_to_show(reader, place, until, output, follow=follow)
    try:
        async with aclosing(messages_shown(found, until, limit, output)) as runs:
            async for _ in runs:
                pass
    finally:
        print_sides(reader)
        if output.chosen is not None:
            print_note(str(output.chosen))


def _ended(main: Callable[[], Coroutine[None, None, None]], output: MessageOutput) -> None:
    """Run the read. If it is interrupted, say how to resume it."""
    try:
        run_async(main)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(so_far(output)) from stop
    except TryAgain:  # any other error would come again at this offset: no advice to resume there
        if output.next_offset is not None:
            print_note(so_far(output))
        raise
