"""A small client. Neither class connects again: the caller knows what was acknowledged, and where it was."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, Self

from broker.protocol import BODY_SIZE_BYTES_MAX, body_after, number_in

__all__ = ["BrokerClient", "BrokerConsumer", "BrokerError", "Delivery", "connect", "consume"]

REPLY_SIZE_BYTES_MAX: Final = 2**16
OFFSET_MAX: Final = 2**64 - 1
LEAVE_SECONDS: Final = 60.0
"""A broker has this long to take what a consumer acknowledged last."""


class BrokerError(Exception):
    """The broker refused a request. `kind` is the class of its error."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message, as a consumer gets it."""

    offset: int
    timestamp_ms: int
    body: bytes


@dataclass(slots=True)
class _Asked:
    """A request that has no answer yet."""

    done: asyncio.Future[int]
    topics: dict[str, int]


class BrokerClient:
    """Publishes, and lists topics. See `connect`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._asked: deque[_Asked] = deque()
        self._lost: ConnectionError | None = None

    async def send(self, topic: str, body: bytes) -> asyncio.Future[int]:
        """Send a message, and return the future of its offset: it is done when the message is durable.

        A future that raises `ConnectionError` says nothing: the message may be published, or not.
        """
        return (await self._ask(b"publish %s %d\n%s\n" % (topic.encode(), len(body), body))).done

    async def publish(self, topic: str, body: bytes) -> int:
        """Publish a message, and return its offset."""
        return await (await self.send(topic, body))

    async def topics(self) -> dict[str, int]:
        """Return the topics, each with the offset of its next message."""
        asked = await self._ask(b"topics\n")
        await asked.done
        return asked.topics

    def check(self) -> None:
        """Raise `ConnectionError` if the connection is lost."""
        if self._lost is not None:
            raise self._lost

    async def _ask(self, request: bytes) -> _Asked:
        self.check()
        asked = _Asked(asyncio.get_running_loop().create_future(), {})
        self._asked.append(asked)
        self._writer.write(request)
        await self._writer.drain()
        return asked

    async def _take_answers(self) -> None:
        """Give each answer to the request that waits for the longest time."""
        why = "the broker closed the connection"
        try:
            while words := await _words(self._reader):
                if not self._asked:
                    why = " ".join(words)  # the broker has refused the connection itself
                    return
                asked = self._asked[0]
                if words[0] == "topic":
                    asked.topics[words[1]] = number_in(words[2], OFFSET_MAX)
                    continue
                self._asked.popleft()
                if asked.done.done():
                    continue  # cancelled
                if words[0] == "ok":
                    asked.done.set_result(number_in(words[1], OFFSET_MAX))
                else:
                    asked.done.set_exception(_error(words))
        except OSError as exc:
            why = str(exc)
        finally:
            self._lost = ConnectionError(why)
            for asked in self._asked:
                if not asked.done.done():
                    asked.done.set_exception(ConnectionError(why))
                    asked.done.exception()  # a caller that does not look is not reported


class BrokerConsumer:
    """Gets the messages of a topic in order, without end: `async for`. See `consume`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, next_offset: int) -> None:
        self._reader, self._writer = reader, writer
        self.next_offset = next_offset
        """The offset that the next message of the topic had when the consumer began."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """Return the next message. Raises `BrokerError` if the broker ends it, and `ConnectionError`."""
        words = await _words(self._reader)
        if words[:1] != ["message"]:
            raise _error(words)
        offset, timestamp_ms, size = words[1:]
        body = await _body(self._reader, number_in(size, BODY_SIZE_BYTES_MAX))
        return Delivery(number_in(offset, OFFSET_MAX), int(timestamp_ms), body)

    async def acknowledge(self, offset: int) -> None:
        """Move the cursor behind this offset, where the consumer resumes if it begins again."""
        self._writer.write(b"acknowledge %d\n" % offset)
        await self._writer.drain()


@asynccontextmanager
async def connect(host: str, port: int) -> AsyncIterator[BrokerClient]:
    """Connect, and close the connection behind the block."""
    async with _connection(host, port) as (reader, writer):
        client = BrokerClient(reader, writer)
        answers = asyncio.create_task(client._take_answers())
        try:
            yield client
        finally:
            answers.cancel()
            with suppress(asyncio.CancelledError):
                await answers


@asynccontextmanager
async def consume(
    host: str, port: int, topic: str, start: str = "first", cursor: str = ""
) -> AsyncIterator[BrokerConsumer]:
    """Begin to consume. The block closes the connection. Raises `BrokerError` if that is refused.

    If the block ends without an error, the broker has taken all acknowledgements before this returns, or has
    gone. Closing at once would lose them: a socket with messages that nobody read is reset.
    """
    async with _connection(host, port) as (reader, writer):
        writer.write(f"consume {topic} {start} {cursor}\n".encode())
        words = await _words(reader)
        if words[:1] != ["ok"]:
            raise _error(words)
        yield BrokerConsumer(reader, writer, number_in(words[1], OFFSET_MAX))
        with suppress(OSError):  # also `TimeoutError`
            writer.write_eof()
            async with asyncio.timeout(LEAVE_SECONDS):
                while await reader.read(REPLY_SIZE_BYTES_MAX):
                    pass


@asynccontextmanager
async def _connection(
    host: str, port: int
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, port, limit=REPLY_SIZE_BYTES_MAX)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _words(reader: asyncio.StreamReader) -> list[str]:
    """Return the words of the next line; none at the end."""
    try:
        return (await reader.readuntil(b"\n")).decode("ascii").split()
    except asyncio.IncompleteReadError:
        return []


async def _body(reader: asyncio.StreamReader, size_bytes: int) -> bytes:
    try:
        return await body_after(reader, size_bytes)
    except asyncio.IncompleteReadError as exc:
        raise ConnectionError("the broker closed the connection") from exc


def _error(words: list[str]) -> Exception:
    if words[:1] == ["error"]:
        return BrokerError(words[1], " ".join(words[2:]))
    return ConnectionError("the broker closed the connection")
