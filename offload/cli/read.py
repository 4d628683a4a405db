"""`offload read`: a stream's messages, from any place in it, in three formats."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import aclosing
from enum import StrEnum
from json.encoder import encode_basestring
from typing import Annotated, Any, Final

import typer

from offload.cli.kit.arguments import Options, Stream, Tier
from offload.cli.kit.output import counted, print_note, write_bytes
from offload.cli.kit.state import CommandContext, position_of, run_async
from offload.contracts.decoder import Decoded, Decoder
from offload.contracts.events import Event, Skipped
from offload.errors import TryAgain
from offload.model.position import AtOffset, AtTime, Position, iso_of
from offload.streams.reader import IN_FLIGHT, Messages, StreamReader

OUTPUT_SIZE_BYTES: Final = 256 * 1024
"""How much is gathered before it is written."""


class Format(StrEnum):
    """How a message is printed."""

    JSONL = "jsonl"
    BODY = "body"
    RAW = "raw"


At = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="SPEC",
        help="Where to begin: first, last, next, an offset, an ISO 8601 time (UTC unless it has a zone), or "
        "@ and milliseconds since 1970.",
    ),
]
Limit = Annotated[int | None, typer.Option(metavar="N", min=0, help="Print at most this many messages.")]
RequestsAtOnce = Annotated[
    int, typer.Option(metavar="N", min=1, max=64, help="Requests under way, each for up to 16 MiB.")
]
Decode = Annotated[str, typer.Option(metavar="NAME", help="raw, or a decoder of a plugin, such as amqp.")]
Print = Annotated[Format, typer.Option("--format", help="How each message is printed.")]


def read(
    context: typer.Context,
    tier: Tier,
    stream: Stream,
    start: At = "first",
    option: Options = None,
    limit: Limit = None,
    at_once: RequestsAtOnce = IN_FLIGHT,
    decode: Decode = "raw",
    how: Print = Format.JSONL,
) -> None:
    """Print the messages of STREAM. Tracking records are never printed, and --limit does not count them."""
    state: CommandContext = context.obj
    position = position_of(start)
    output = _Output(renderer(how, _decoder(state, decode)))

    async def main() -> None:
        async with state.catalogue(tier, option) as catalogue:
            reader = await StreamReader.open(
                catalogue, stream, in_flight=at_once, emit=_listener(state.plugins.emit)
            )
            await _read(reader, position, limit, output)

    try:
        run_async(main)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(output.so_far()) from stop
    except TryAgain:  # after any other error, the same offset fails again
        if output.next_offset is not None:
            print_note(output.so_far())
        raise


def _listener(emit: Callable[[Event], None]) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        if isinstance(event, Skipped):
            print_note(
                f"offsets [{event.from_offset}, {event.to_offset}) were trimmed before they were read; "
                f"reading goes on at offset {event.to_offset}"
            )
        emit(event)

    return listen


async def _read(reader: StreamReader, position: Position, limit: int | None, output: _Output) -> None:
    offset = await reader.offset_of(position)
    if isinstance(position, AtOffset) and position.offset < offset:
        print_note(f"offset {position.offset} is below the first; reading starts at offset {offset}")
    if isinstance(position, AtTime) and offset == reader.manifest.next_offset:
        print_note(await _beyond(reader, position))
    if limit == 0:
        return
    left = limit
    try:
        async with aclosing(reader.messages(offset)) as batches:
            async for batch in batches:
                if left is not None and len(batch.bodies) >= left:
                    output.write(Messages(batch.offset, batch.timestamp_ms, batch.bodies[:left]))
                    break
                output.write(batch)
                left = None if left is None else left - len(batch.bodies)
    finally:
        output.flush()  # what stands before a damaged chunk is sound, and is printed


async def _beyond(reader: StreamReader, position: AtTime) -> str:
    """Why nothing is printed, where the time is beyond the end."""
    newest_ms = await reader.last_timestamp_ms()
    has = "holds no messages" if newest_ms is None else f"has none later than {iso_of(newest_ms)}"
    return f"nothing to read from {iso_of(position.timestamp_ms)}: stream {reader.manifest.stream!r} {has}"


class _Output:
    """stdout in large pieces, and how far it came."""

    def __init__(self, render: Callable[[Messages], bytes]) -> None:
        self._render = render
        self._pieces: list[bytes] = []
        self._size = 0
        self._messages = 0
        self.next_offset: int | None = None
        """Behind the last message that was written; None if none was."""

    def so_far(self) -> str:
        """What was printed by a read that did not end, and how to go on."""
        if self.next_offset is None:
            return "no message was printed"
        printed = f"{counted(self._messages, 'message')} printed, up to offset {self.next_offset - 1}"
        return f"{printed}; go on with --from {self.next_offset}"

    def write(self, batch: Messages) -> None:
        piece = self._render(batch)
        self._pieces.append(piece)
        self._size += len(piece)
        self._messages += len(batch.bodies)
        self.next_offset = batch.offset + len(batch.bodies)
        if self._size >= OUTPUT_SIZE_BYTES:
            self.flush()

    def flush(self) -> None:
        write_bytes(b"".join(self._pieces))
        self._pieces, self._size = [], 0


def _decoder(state: CommandContext, name: str) -> Decoder | None:
    return None if name == "raw" else state.decoder(name)


def renderer(format: Format, decoder: Decoder | None) -> Callable[[Messages], bytes]:  # noqa: A002 - as above
    """The function that prints the messages of one chunk."""
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
    """One line per message: the head and its timestamp are made once per chunk."""
    middle = f',"timestamp":"{iso_of(batch.timestamp_ms)}","value":'
    lines = [
        f'{{"offset":{offset}{middle}{_value(value)}{tail}'
        for offset, (value, tail) in enumerate(values, start=batch.offset)
    ]
    return "".join(lines).encode()


def _value(value: Any) -> str:
    """A JSON value: bytes are text where they are UTF-8, and base64 with a key that says so elsewhere."""
    if isinstance(value, bytes):
        try:
            return encode_basestring(value.decode())
        except UnicodeDecodeError:
            return f'"{base64.b64encode(value).decode()}","encoding":"base64"'
    if isinstance(value, str):
        return encode_basestring(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class _Tails:
    """What follows the value in a line. Nearly all messages share one object of empty sections."""

    def __init__(self) -> None:
        self._last: tuple[object, str] = (None, "")

    def of(self, decoded: Decoded) -> str:
        sections, tail = self._last
        if decoded.sections is not sections:
            text = json.dumps(decoded.sections, ensure_ascii=False, separators=(",", ":"))
            tail = f",{text[1:]}\n"
            self._last = (decoded.sections, tail)
        return tail
