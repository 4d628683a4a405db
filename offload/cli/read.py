"""`offload read`: print the messages of a stream, from any position, in one of three formats."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from enum import StrEnum
from json.encoder import encode_basestring
from typing import Annotated, Any, Final

import typer

from offload.cli.kit.arguments import EncryptedOnly, Keys, Options, Stream, Tier
from offload.cli.kit.output import counted, print_note, write_bytes
from offload.cli.kit.state import CommandContext, position_of, run_async
from offload.contracts.decoder import Decoded, Decoder
from offload.contracts.events import Event, Skipped
from offload.errors import TryAgain
from offload.model.position import AtEdge, AtOffset, AtTime, PartOffset, Position, iso_of
from offload.streams.joined import part_numbered
from offload.streams.reader import IN_FLIGHT, Messages, StreamReader, reason_of

OUTPUT_SIZE_BYTES: Final = 256 * 1024
"""The size of one write to stdout. Many small writes cost more than decoding the messages."""


_Until = AtOffset | AtTime | PartOffset | None
"""Where reading ends: before this place, or where this offset or time is met first."""


class Format(StrEnum):
    """The format in which messages are printed."""

    JSONL = "jsonl"
    BODY = "body"
    RAW = "raw"


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
        help="Begin in this part of STREAM: --from is a position in it. Reading goes on in the later parts. "
        "Default: --from is a position in all parts together.",
    ),
]
Limit = Annotated[int | None, typer.Option(metavar="N", min=0, help="Print at most this many messages.")]
RequestsAtOnce = Annotated[
    int,
    typer.Option(metavar="N", min=1, max=64, help="Read ahead with this many requests, up to 16 MiB each."),
]
Decode = Annotated[
    str, typer.Option(metavar="NAME", help="The decoder: raw, or one of a plugin, such as amqp.")
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
) -> None:
    """Print the messages of STREAM. Tracking records are never printed, and --limit does not count them.

    If STREAM goes on in further parts, they are printed too, in order. The name of a later part prints that
    part alone.
    """
    state: CommandContext = context.obj.with_keys(keys, encrypted_only=encrypted_only)
    position, end = position_of(start), None if to is None else position_of(to)
    output = _Output(renderer(how, _decoder(state, decode)))

    async def main() -> None:
        async with state.catalogue(tier, option) as catalogue:
            emit = _listener(state.plugins.emit)
            reader = await StreamReader.open(catalogue, stream, in_flight=at_once, emit=emit)
            place, until = await _place(reader, position, part), await _until(reader, end)
            source = reader.follow(place, caught_up=output.flush) if follow else reader.messages(place)
            await _print(source, until, limit, output)

    try:
        run_async(main)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(output.so_far()) from stop
    except TryAgain:  # any other error would come again at this offset: no advice to resume there
        output.advise()
        raise


def _listener(emit: Callable[[Event], None]) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        if isinstance(event, Skipped):
            print_note(f"{reason_of(event)}; reading continues at offset {event.to_offset}")
        emit(event)

    return listen


async def _place(reader: StreamReader, position: Position, part: int | None) -> PartOffset:
    """Return the place at which reading begins. Print a note if it is not where the position asks for."""
    if part is None:
        place = await reader.place_of(position)
    else:
        place = PartOffset(part, await part_numbered(reader.parts, part).offset_here(position))
    at = part_numbered(reader.parts, place.part)
    if isinstance(position, AtOffset) and position.offset < place.offset:
        below = "the first" if at is reader else f"the first of part {at.part}"
        print_note(f"offset {position.offset} is below {below}; reading starts at offset {place.offset}")
    if isinstance(position, AtTime) and place.offset == at.manifest.next_offset:
        print_note(await _beyond(reader, position))
    return place


async def _until(reader: StreamReader, end: Position | None) -> _Until:
    """Return where reading ends. The edges of the stream are those of now."""
    return await reader.place_of(end) if isinstance(end, AtEdge) else end


async def _print(
    source: AsyncGenerator[Messages, None], until: _Until, limit: int | None, output: _Output
) -> None:
    left = limit
    try:
        async with aclosing(source) as batches:
            while left != 0 and (batch := await anext(batches, None)) is not None:
                wanted = _wanted(batch, until)
                bodies = batch.bodies[:wanted][:left]
                if bodies:
                    output.write(replace(batch, bodies=bodies))
                if wanted is not None:
                    break
                left = None if left is None else left - len(bodies)
    finally:
        output.flush()  # the messages before a damaged chunk are sound, and are printed


def _wanted(batch: Messages, until: _Until) -> int | None:
    """Return how many messages of a chunk come before the end; None if the end is not reached."""
    behind = len(batch.bodies) + 1
    match until:
        case PartOffset(part) if batch.part > part:
            behind = 0
        case AtTime(timestamp_ms) if batch.timestamp_ms >= timestamp_ms:
            behind = 0
        case AtOffset(offset):
            behind = offset - batch.offset
        case PartOffset(part, offset) if batch.part == part:
            behind = offset - batch.offset
    return max(behind, 0) if behind <= len(batch.bodies) else None


async def _beyond(reader: StreamReader, position: AtTime) -> str:
    """Return the reason why nothing is printed, if the time is beyond the end."""
    times = [await part.last_timestamp_ms() for part in reader.parts]
    newest_ms = max((each for each in times if each is not None), default=None)
    has = "holds no messages" if newest_ms is None else f"has none later than {iso_of(newest_ms)}"
    return f"nothing to read from {iso_of(position.timestamp_ms)}: stream {reader.manifest.stream!r} {has}"


class _Output:
    """Writes messages to stdout in large pieces, and remembers the last one."""

    def __init__(self, render: Callable[[Messages], bytes]) -> None:
        self._render = render
        self._pieces: list[bytes] = []
        self._size = 0
        self._messages = 0
        self.next_offset: int | None = None
        """First offset after the last message that was written; None if none was."""
        self._part = 1

    def so_far(self) -> str:
        """Return a sentence on what an interrupted read has printed, and how to resume it."""
        if self.next_offset is None:
            return "no message was printed"
        printed = f"{counted(self._messages, 'message')} printed, up to offset {self.next_offset - 1}"
        in_part = "" if self._part == 1 else f" --part {self._part}"
        return f"{printed}; resume with --from {self.next_offset}{in_part}"

    def advise(self) -> None:
        """Print how to resume behind what was printed, if anything was."""
        if self.next_offset is not None:
            print_note(self.so_far())

    def write(self, batch: Messages) -> None:
        piece = self._render(batch)
        self._pieces.append(piece)
        self._size += len(piece)
        self._messages += len(batch.bodies)
        self.next_offset, self._part = batch.offset + len(batch.bodies), batch.part
        if self._size >= OUTPUT_SIZE_BYTES:
            self.flush()

    def flush(self) -> None:
        write_bytes(b"".join(self._pieces))
        self._pieces, self._size = [], 0


def _decoder(state: CommandContext, name: str) -> Decoder | None:
    return None if name == "raw" else state.decoder(name)


def renderer(format: Format, decoder: Decoder | None) -> Callable[[Messages], bytes]:  # noqa: A002 - as above
    """Return the function that formats the messages of one chunk."""
    match format:
        case Format.RAW:
            return _raw
        case Format.BODY:
            bodies_of = decoder.bodies if decoder is not None else list
            return lambda batch: b"\n".join([*bodies_of(batch.bodies), b""])
        case Format.JSONL if decoder is not None:
            decode, tails = decoder.decode, _Tails()
            return lambda batch: _jsonl(batch, [(d.value, tails.of(d)) for d in decode(batch.bodies)])
        case Format.JSONL:
            return lambda batch: _jsonl(batch, [(body, "}\n") for body in batch.bodies])


def _raw(batch: Messages) -> bytes:
    return b"".join([piece for body in batch.bodies for piece in (len(body).to_bytes(4, "big"), body)])


def _jsonl(batch: Messages, values: list[tuple[Any, str]]) -> bytes:
    """Return one line per message."""
    # The same for the whole chunk. Part 1 is not printed: most streams have no other.
    part = "" if batch.part == 1 else f',"part":{batch.part}'
    middle = f'{part},"timestamp":"{iso_of(batch.timestamp_ms)}","value":'
    lines = [
        f'{{"offset":{offset}{middle}{_value(value)}{tail}'
        for offset, (value, tail) in enumerate(values, start=batch.offset)
    ]
    return "".join(lines).encode()


def _value(value: Any) -> str:
    """Return a JSON value. Bytes become text if they are UTF-8, otherwise base64 with an `encoding` key."""
    if isinstance(value, bytes):
        try:
            return encode_basestring(value.decode())
        except UnicodeDecodeError:
            return f'"{base64.b64encode(value).decode()}","encoding":"base64"'
    if isinstance(value, str):
        return encode_basestring(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class _Tails:
    """The end of each line, behind the value. It is reused: most messages share one `sections` object."""

    def __init__(self) -> None:
        self._last: tuple[object, str] = (None, "")

    def of(self, decoded: Decoded) -> str:
        sections, tail = self._last
        if decoded.sections is not sections:
            text = json.dumps(decoded.sections, ensure_ascii=False, separators=(",", ":"))
            tail = f",{text[1:]}\n"
            self._last = (decoded.sections, tail)
        return tail
