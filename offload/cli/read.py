"""`offload read`: print the messages of a stream, from any position, in one of three formats."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Annotated

import numpy as np
import typer

from offload.cli.kit.arguments import EncryptedOnly, Keys, Options, Stream, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.message_output import MessageOutput, decoder_or_raw
from offload.cli.kit.output import print_note
from offload.cli.kit.reading import (
    AnyReader,
    AskedBroker,
    Beside,
    HoldBack,
    open_reader,
    place_in,
    print_sides,
)
from offload.cli.kit.state import CommandContext, position_of, run_async
from offload.formats.records import RecordRun
from offload.ground.errors import Misuse, TryAgain
from offload.model.position import AtEdge, AtOffset, AtTime, PartOffset, Position
from offload.model.record_columns import RecordBytes
from offload.read import joined
from offload.read.batches import PartRun
from offload.read.chunk_filter import ChunkFilter
from offload.read.reader import IN_FLIGHT, Messages, StreamReader
from offload.showing.lines import Format
from offload.two_sides.choice import ReadPriority

_Until = AtOffset | AtTime | PartOffset | None
"""Where reading ends: before this place, or where this offset or time is met first."""


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
    output = MessageOutput(how, decoder_or_raw(state, decode), _filter(values, match_unfiltered, source))

    async def main() -> None:
        async with (
            state.opened_to_read(tier, option) as catalogue,
            open_reader(state, catalogue, stream, beside, in_flight=at_once) as reader,
        ):
            place, until = await place_in(reader, position, part, output.decoder), await _until(reader, end)
            await _print(_runs(reader, place, until, output, follow=follow), until, limit, output, reader)

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


async def _runs(
    reader: AnyReader, place: PartOffset, until: _Until, output: MessageOutput, *, follow: bool
) -> AsyncGenerator[PartRun, None]:
    # The end is looked up: nothing behind it is fetched, and a filter may hide the message that shows it.
    if isinstance(reader, StreamReader) and follow:
        found = _runs_of(reader.follow(place, until=until, caught_up=output.flush, rows_of=output.chosen))
    elif isinstance(reader, StreamReader):
        end = None if until is None else await joined.reading_end(reader.parts, place, until)
        found = reader.runs(place, until=end, rows_of=output.chosen)
    else:
        found = _runs_of(reader.follow(place, caught_up=output.flush) if follow else reader.messages(place))
    async with aclosing(found) as runs:
        async for each in runs:
            yield each


def _ended(main: Callable[[], Coroutine[None, None, None]], output: MessageOutput) -> None:
    """Run the read. If it is interrupted, say how to resume it."""
    try:
        run_async(main)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(output.so_far()) from stop
    except TryAgain:  # any other error would come again at this offset: no advice to resume there
        output.advise()
        raise


async def _until(reader: AnyReader, end: Position | None) -> _Until:
    """Return where reading ends. The edges of the stream are those of now."""
    return await reader.place_of(end) if isinstance(end, AtEdge) else end


async def _runs_of(found: AsyncGenerator[Messages, None]) -> AsyncGenerator[PartRun, None]:
    async with aclosing(found) as batches:
        async for batch in batches:
            records = RecordBytes.of(batch.bodies)
            offsets = np.arange(len(records), dtype=np.uint64) + np.uint64(batch.offset)
            times = np.full(len(records), batch.timestamp_ms, np.int64)
            run = RecordRun(offsets, times, records.starts, records.sizes, records.data.data)
            yield PartRun(batch.part, run)


async def _print(
    found: AsyncGenerator[PartRun, None],
    until: _Until,
    limit: int | None,
    output: MessageOutput,
    reader: AnyReader,
) -> None:
    left = limit
    try:
        async with aclosing(found) as runs:
            while left != 0 and (each := await anext(runs, None)) is not None:
                wanted = _wanted(each, until)
                run = each.run.rows(0, len(each.run) if wanted is None else wanted)
                printed = output.write(PartRun(each.part, run), left)
                if wanted is not None:
                    break
                left = None if left is None else left - printed
    finally:
        output.flush()  # the messages before a damaged chunk are sound, and are printed
        print_sides(reader)
        if output.chosen is not None:
            print_note(str(output.chosen))


def _wanted(each: PartRun, until: _Until) -> int | None:
    """Return how many messages of a run come before the end; None if the end is not reached."""
    run = each.run
    match until:
        case PartOffset(part) if each.part > part:
            return 0
        case AtTime(timestamp_ms):
            reached = np.flatnonzero(run.timestamps_ms >= timestamp_ms)
            return int(reached[0]) if len(reached) else None
        case AtOffset(offset):
            pass
        case PartOffset(part, offset) if each.part == part:
            pass
        case _:
            return None
    return int(np.searchsorted(run.offsets, np.uint64(offset))) if offset <= run.offsets[-1] + 1 else None
