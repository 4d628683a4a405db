"""The reader of `offload read`: of a tier, or of a tier and the disk of a source beside it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from offload.cli.kit.ending import Usage
from offload.cli.kit.names import known_name
from offload.cli.kit.output import counted, print_note, write_bytes
from offload.cli.kit.state import CommandContext
from offload.contracts.catalogue import Catalogue
from offload.contracts.decoder import Decoder
from offload.contracts.events import Event, Skipped
from offload.contracts.source import Source
from offload.follow.vouched import VouchedSource
from offload.ground.errors import Misuse, NotOffloaded
from offload.model.position import AtEdge, AtOffset, AtTime, PartOffset, Position, iso_of
from offload.model.quantities import seconds_from
from offload.read.chunk_filter import ChunkFilter
from offload.read.joined import part_numbered
from offload.read.reader import StreamReader, reason_of
from offload.read.record_times import record_place
from offload.showing.lines import Format
from offload.showing.message_output import MessageOutput
from offload.showing.reading import AnyReader
from offload.two_sides.choice import ReadPriority, ReadSide
from offload.two_sides.tiered import TieredReader

BROKER_USER: Final = "OFFLOAD_BROKER_USER"
BROKER_PASSWORD: Final = "OFFLOAD_BROKER_PASSWORD"  # noqa: S105 - the name of a variable
HOLD_BACK: Final = "0.5s"

AskedBroker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="URL",
        help="With --source: ask this broker what it has committed: rabbitmq-stream://localhost. The login "
        f"is in {BROKER_USER} and {BROKER_PASSWORD}.",
    ),
]
HoldBack = Annotated[
    str | None,
    typer.Option(
        "--hold-back",
        metavar="DURATION",
        help="With --source: how long a message must have been on the disk before it is read, if nobody "
        "says that the broker has committed it. Default: 0.5s.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The source to read beside the tier, as the options name it."""

    source: str
    priority: ReadPriority
    hold_back_seconds: float
    broker: str | None

    @classmethod
    def of(
        cls, source: str | None, priority: ReadPriority, hold_back: str | None, broker: str | None
    ) -> Beside | None:
        """Return the source of the options; None without one. Raises `Usage` if the options are wrong."""
        if source is None:
            given = {"--priority": priority is not ReadPriority.LOCAL_FIRST}
            given |= {"--hold-back": hold_back is not None, "--broker": broker is not None}
            if wrong := next((name for name, is_given in given.items() if is_given), None):
                raise Usage(f"{wrong} needs --source: without it, only the tier is read")
            return None
        try:
            seconds = seconds_from(HOLD_BACK if hold_back is None else hold_back)
        except Misuse as error:
            raise Usage(f"--hold-back {error}") from error
        return cls(source=source, priority=priority, hold_back_seconds=seconds, broker=broker)

    def opened(self, state: CommandContext, environ: Mapping[str, str]) -> Source:
        """Return the source, which asks the broker if one is given. Close it."""
        source = state.source(self.source)
        if self.broker is None:
            return source
        broker = state.broker(self.broker, environ.get(BROKER_USER), environ.get(BROKER_PASSWORD))
        return VouchedSource(source, broker, env=state.session.env)


def printed(
    state: CommandContext,
    decoder: str,
    how: Format,
    *,
    chosen: ChunkFilter | None = None,
    stream: str | None = None,
) -> MessageOutput:
    """Return the output of messages to stdout, by the decoder of this name, or by none for `raw`."""
    found = None if decoder == "raw" else state.decoder(decoder)
    return MessageOutput(how, found, chosen, write=write_bytes, stream=stream)


@asynccontextmanager
async def open_reader(
    state: CommandContext, catalogue: Catalogue, stream: str, beside: Beside | None, *, in_flight: int
) -> AsyncIterator[AnyReader]:
    """Yield the reader of a stream, which prints a note for each offset that it leaves out.

    Raises `NotOffloaded` if the source has no stream of this name.
    """
    emit, stream = _listener(state.plugins.emit), await known_name(catalogue, stream)
    if beside is None:
        yield await StreamReader.open(catalogue, stream, in_flight=in_flight, emit=emit)
        return
    async with aclosing(beside.opened(state, os.environ)) as source:
        try:
            found = await source.stream(stream)
            stream = found.name
        except NotOffloaded as error:
            raise NotOffloaded(f"{error}; to read the tier alone, leave --source out") from error
        yield await TieredReader.open(
            found,
            catalogue,
            stream=stream,
            priority=beside.priority,
            hold_back_seconds=beside.hold_back_seconds,
            in_flight=in_flight,
            env=state.session.env,
            emit=emit,
        )


async def place_in(
    reader: AnyReader, position: Position, part: int | None, decoder: Decoder | None
) -> PartOffset:
    """Return the place at which reading begins. Print a note if it is not where the position asks for."""
    if part is None:
        place = await reader.place_of(position)
    elif isinstance(reader, TieredReader):
        place = await reader.place_of(position, part=part)
    else:
        place = PartOffset(part, await part_numbered(reader.parts, part).offset_here(position))
    if isinstance(position, AtOffset) and position.offset < place.offset:
        is_first = not reader.parts or place.part == reader.parts[0].part
        below = "the first" if is_first else f"the first of part {place.part}"
        print_note(f"offset {position.offset} is below {below}; reading starts at offset {place.offset}")
    if isinstance(position, AtTime) and (beyond := await _beyond(reader, position, place)):
        print_note(beyond)
    elif isinstance(position, AtTime) and decoder is not None:
        return await record_place(reader, position, place, decoder=decoder)
    return place


def so_far(output: MessageOutput) -> str:
    """Return a sentence on what a read has printed, and how to resume it."""
    if output.next_offset is None:
        return "no message was printed"
    printed = f"{counted(output.messages, 'message')} printed, up to offset {output.next_offset - 1}"
    in_part = "" if output.part == 1 else f" --part {output.part}"
    return f"{printed}; resume with --from {output.next_offset}{in_part}"


def print_sides(reader: AnyReader) -> None:
    """Print a note on how many messages came from the source and how many from the tier."""
    if isinstance(reader, TieredReader):
        local, tier = reader.records[ReadSide.LOCAL], reader.records[ReadSide.TIER]
        print_note(
            f"{counted(local, 'message')} came from the source, {counted(tier, 'message')} from the tier"
        )


async def _beyond(reader: AnyReader, position: AtTime, place: PartOffset) -> str | None:
    """Return the reason why nothing is printed, if the time is beyond the end."""
    nothing = f"nothing to read from {iso_of(position.timestamp_ms)}"
    if isinstance(reader, TieredReader):
        is_beyond = place == await reader.place_of(AtEdge.NEXT)
        return f"{nothing}: stream {reader.stream!r} has no such record yet" if is_beyond else None
    if place.offset < part_numbered(reader.parts, place.part).manifest.next_offset:
        return None
    times = [await part.last_timestamp_ms() for part in reader.parts]
    newest_ms = max((each for each in times if each is not None), default=None)
    if newest_ms is None:
        has = "holds no messages"
    elif all(part.is_measured for part in reader.parts):
        has = f"has none later than {iso_of(newest_ms)}"
    else:
        has = (
            f"ends at {iso_of(newest_ms)}. This tier keeps no times: earlier messages may have later ones, "
            "and `--from 0` reads them all"
        )
    return f"{nothing}: stream {reader.manifest.stream!r} {has}"


def _listener(emit: Callable[[Event], None]) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        if isinstance(event, Skipped):
            print_note(f"{reason_of(event)}; reading continues at offset {event.to_offset}")
        emit(event)

    return listen
