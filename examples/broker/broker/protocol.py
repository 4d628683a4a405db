"""The protocol: lines of ASCII over TCP. A message is any bytes, behind a line that has their number.

    the client sends                      the broker answers
    publish TOPIC SIZE, then the bytes    ok OFFSET, when the message is durable
    topics                                topic NAME NEXT, for each, and then: ok COUNT
    consume TOPIC START [CURSOR]          ok NEXT, and then without end:
                                          message OFFSET TIMESTAMP_MS SIZE, then the bytes
    acknowledge OFFSET                    nothing. Up to this offset, the cursor has everything

    anything that fails                   error KIND TEXT

Bytes are followed by one more line feed. START is `first`, `next`, `last`, an offset, or a time. A client may
send requests before it has the answers to earlier ones. Answers come in order. After a line that is no
request, the broker closes the connection: it cannot know where the next one begins.

A consumer that leaves closes its half first, and reads until the broker has closed the other: a socket that
is closed with messages unread is reset, and the last acknowledgements are lost with it.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Final

from offload import Misuse, OffloadError, Position, parse_position

__all__ = [
    "BODY_SIZE_BYTES_MAX",
    "LINE_SIZE_BYTES_MAX",
    "TOPIC",
    "Acknowledge",
    "BrokerRequest",
    "Consume",
    "ListTopics",
    "Publish",
    "body_after",
    "encode_error",
    "number_in",
    "read_request",
]

LINE_SIZE_BYTES_MAX: Final = 4096
BODY_SIZE_BYTES_MAX: Final = 2**20
ERROR_CHARACTERS_MAX: Final = 1000

TOPIC: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The name of a topic, and of a cursor. It is also the name of a folder, so it has no dot and no slash."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Append a message to a topic, which begins with its first message."""

    topic: str
    body: bytes


@dataclass(frozen=True, slots=True)
class ListTopics:
    """List the topics."""


@dataclass(frozen=True, slots=True)
class Consume:
    """Deliver a topic from `start` on, or from where its cursor is. A new cursor begins at `start`."""

    topic: str
    start: Position
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Move the cursor of this connection behind an offset."""

    offset: int


BrokerRequest = Publish | ListTopics | Consume | Acknowledge


async def read_request(reader: asyncio.StreamReader) -> BrokerRequest | None:
    """Return the next request; None if the client has gone. Raises `Misuse` for anything else."""
    try:
        line = await reader.readuntil(b"\n")
        if len(line) > LINE_SIZE_BYTES_MAX:
            raise Misuse(f"a line has at most {LINE_SIZE_BYTES_MAX} bytes")
        match line.decode("ascii", "replace").split():
            case ["publish", topic, size]:
                name = _name(topic)
                return Publish(name, await body_after(reader, number_in(size, BODY_SIZE_BYTES_MAX)))
            case ["topics"]:
                return ListTopics()
            case ["consume", topic, start]:
                return Consume(_name(topic), _position(start), None)
            case ["consume", topic, start, cursor]:
                return Consume(_name(topic), _position(start), _name(cursor))
            case ["acknowledge", offset]:
                return Acknowledge(number_in(offset, 2**63))
            case words:
                raise Misuse(f"{' '.join(words)[:40]!r} is no request")
    except asyncio.LimitOverrunError as exc:
        raise Misuse(f"a line has at most {LINE_SIZE_BYTES_MAX} bytes") from exc
    except asyncio.IncompleteReadError:
        return None  # what it began to send has no answer, and no effect


async def body_after(reader: asyncio.StreamReader, size_bytes: int) -> bytes:
    """Return the bytes behind a line. Raises `Misuse` if no line feed follows them."""
    body = await reader.readexactly(size_bytes + 1)
    if not body.endswith(b"\n"):
        raise Misuse(f"a line feed follows the {size_bytes} bytes of a message")
    return body[:-1]


def number_in(text: str, highest: int) -> int:
    """Return the number from 0 to `highest` in a text. Raises `Misuse` if it has none."""
    # `int` alone would take signs, underscores and the digits of other scripts, and any length.
    if not re.fullmatch("[0-9]{1,20}", text) or int(text) > highest:
        raise Misuse(f"{text[:40]!r} is no number from 0 to {highest}")
    return int(text)


def encode_error(error: OffloadError) -> bytes:
    """Return the line of an error: its class, which says what to do next, and its text."""
    text = " ".join(str(error).split())[:ERROR_CHARACTERS_MAX]
    return f"error {type(error).__name__} {text}\n".encode("ascii", "backslashreplace")


def _name(text: str) -> str:
    if not TOPIC.fullmatch(text):
        raise Misuse(f"a topic and a cursor have 1 to 64 of A-Z a-z 0-9 _ -, not {text[:70]!r}")
    return text


def _position(text: str) -> Position:
    return parse_position(text, now_ms=time.time_ns() // 1_000_000)
