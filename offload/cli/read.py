"""`offload read`: print the messages of a stream, from any position, in one of three formats."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import replace
from enum import StrEnum
from itertools import islice
from json.encoder import encode_basestring
from typing import Annotated, Any, Final

import typer

from offload.cli.kit.arguments import EncryptedOnly, Keys, Options, Stream, Tier
from offload.cli.kit.output import counted, print_note, write_bytes
from offload.cli.kit.reading import (
    BROKER_PASSWORD,
    BROKER_USER,
    AnyReader,
    Beside,
    open_reader,
    place_in,
    print_sides,
)
from offload.cli.kit.state import CommandContext, position_of, run_async
from offload.contracts.decoder import Decoded, Decoder
from offload.errors import TryAgain
from offload.model.position import AtEdge, AtOffset, AtTime, PartOffset, Position, iso_of
from offload.streams.choice import ReadPriority
from offload.streams.reader import IN_FLIGHT, Messages

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
HoldBack = Annotated[
    str | None,
    typer.Option(
        "--hold-back",
        metavar="DURATION",
        help="With --source: how long a message must have been on the disk before it is printed, if nobody "
        "says that the broker has committed it. Default: 0.5s.",
    ),
]
Broker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="URL",
        help="With --source: ask this broker what it has committed: rabbitmq-stream://localhost. The login "
        f"is in {BROKER_USER} and {BROKER_PASSWORD}.",
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
    source: FromSource = None,
    priority: Priority = ReadPriority.LOCAL_FIRST,
    hold_back: HoldBack = None,
    broker: Broker = None,
) -> None:
    """Print the messages of STREAM. Tracking records are never printed, and --limit does not count them.

    If STREAM goes on in further parts, they are printed too, in order. The name of a later part prints that
    part alone.
    """
    state: CommandContext = context.obj.with_keys(keys, encrypted_only=encrypted_only)
    beside = Beside.of(source, priority, hold_back, broker)
    position, end = position_of(start), None if to is None else position_of(to)
    output = _Output(how, _decoder(state, decode))

    async def main() -> None:
        async with (
            state.opened_to_read(tier, option) as catalogue,
            open_reader(state, catalogue, stream, beside, in_flight=at_once) as reader,
        ):
            place, until = await place_in(reader, position, part), await _until(reader, end)
            found = reader.follow(place, caught_up=output.flush) if follow else reader.messages(place)
            await _print(found, until, limit, output, reader)

    _ended(main, output)


def _ended(main: Callable[[], Coroutine[None, None, None]], output: _Output) -> None:
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


async def _print(
    found: AsyncGenerator[Messages, None],
    until: _Until,
    limit: int | None,
    output: _Output,
    reader: AnyReader,
) -> None:
    left = limit
    try:
        async with aclosing(found) as batches:
            while left != 0 and (batch := await anext(batches, None)) is not None:
                wanted = _wanted(batch, until)
                bodies = batch.bodies[:wanted][:left]
                printed = output.write(replace(batch, bodies=bodies), left) if bodies else 0
                if wanted is not None:
                    break
                left = None if left is None else left - printed
    finally:
        output.flush()  # the messages before a damaged chunk are sound, and are printed
        print_sides(reader)


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


class _Output:
    """Writes messages to stdout in large pieces, and remembers the last one."""

    def __init__(self, how: Format, decoder: Decoder | None) -> None:
        self._render = renderer(how, decoder)
        self._lines = lines_of(how, decoder)
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

    def write(self, batch: Messages, most: int | None) -> int:
        """Write the messages of a chunk, and return their number.

        `most` is the number of messages that are wanted. A record counts as one of them, unless it may hold
        several.
        """
        if self._lines is None:
            self._add(self._render(batch))
            printed = len(batch.bodies)
        else:
            printed = 0
            for line in islice(self._lines(batch), most):
                self._add(line)
                printed += 1
        self._messages += printed
        self.next_offset, self._part = batch.offset + len(batch.bodies), batch.part
        return printed

    def _add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
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


def lines_of(
    format: Format,  # noqa: A002 - as above
    decoder: Decoder | None,
) -> Callable[[Messages], Iterator[bytes]] | None:
    """Return the function that formats messages one by one, if a record may hold several of them.

    One by one, because a record may hold many more bytes than it has itself.
    """
    if decoder is None or not decoder.holds_several or format is Format.RAW:
        return None
    messages = decoder.messages
    if format is Format.BODY:
        return lambda batch: (_body(decoded.value) + b"\n" for _, decoded in messages(batch.bodies))
    tails = _Tails()
    return lambda batch: (
        _jsonl(replace(batch, offset=batch.offset + number), [(decoded.value, tails.of(decoded))])
        for number, decoded in messages(batch.bodies)
    )


def _body(value: Any) -> bytes:
    """Return a value as `Decoder.bodies` does. No value is empty."""
    if isinstance(value, bytes):
        return value
    return b"" if value is None else value.encode() if isinstance(value, str) else _value(value).encode()


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
