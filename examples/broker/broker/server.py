"""The connections of a broker. Each has two tasks, or three if it consumes, and a bound for its memory.

    the client --> reading --> inbox --> answering --> topic         publish, topics, acknowledge
    the client <-------------------- pushing <-------- topic         consume

While an append is under way, the next messages gather in the inbox, and are appended together. So a client
that sends ahead costs few syncs of the disk, and its messages keep their order.

Memory of a connection: `INBOX_SIZE_BYTES` and one message; for a consumer one chunk, about 1 MiB, twice; and
`WRITE_SIZE_BYTES`. A client that takes nothing for `stall_seconds` is cut off.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final

from broker.protocol import (
    Acknowledge,
    BrokerRequest,
    Consume,
    ListTopics,
    Publish,
    encode_error,
    read_request,
)
from broker.topics import Topics
from offload import AtEdge, AtOffset, ManagedLedger, Messages, Misuse, OffloadError, Position, TryAgain

__all__ = ["BrokerServer"]

READ_SIZE_BYTES: Final = 2**16
"""Longer lines are refused before they are read whole."""

INBOX_SIZE_BYTES: Final = 2**20
WRITE_SIZE_BYTES: Final = 2**18
KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""A peer that has vanished is noticed after two minutes of silence."""

_log: Final = logging.getLogger(__name__)


class BrokerServer:
    """Serves clients of the topics, at most so many at once."""

    def __init__(self, topics: Topics, *, clients_max: int = 1000, stall_seconds: float = 60.0) -> None:
        self._topics, self._clients_max, self._stall_seconds = topics, clients_max, stall_seconds
        self._clients: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        self._listening: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Begin to serve, and return the address. Port 0 picks one."""
        self._listening = await asyncio.start_server(self._serve, host, port, limit=READ_SIZE_BYTES)
        found: tuple[str, int] = self._listening.sockets[0].getsockname()[:2]
        return found

    @property
    def clients(self) -> Sequence[asyncio.WriteTransport]:
        """The connections that are served now."""
        return list(self._clients.values())

    async def aclose(self) -> None:
        """Cut off all clients. Also one whose append is under way: it gets no answer."""
        if self._listening is not None:
            self._listening.close()
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._clients) >= self._clients_max:
                writer.write(encode_error(TryAgain(f"this broker has {self._clients_max} clients already")))
                return
            self._clients[task] = writer.transport
            _keep_alive(writer)
            await _Client(self._topics, reader, writer, self._stall_seconds).run()
        except (ConnectionError, TimeoutError):
            writer.transport.abort()  # it has vanished, or takes nothing: what it was sent is worth nothing
        except asyncio.CancelledError:
            writer.transport.abort()
        except Exception:  # noqa: BLE001 - a mistake of ours ends one connection, and is in the log
            writer.transport.abort()
            _log.exception("a client was cut off")
        finally:
            self._clients.pop(task, None)
            writer.close()


class _Inbox:
    """Requests that wait, up to a number of bytes. None ends them, and so does an error."""

    def __init__(self) -> None:
        self._waiting: deque[BrokerRequest | OffloadError | None] = deque()
        self._size_bytes = 0
        self._changed = asyncio.Condition()

    async def put(self, request: BrokerRequest | OffloadError | None) -> None:
        """Add a request when there is room for it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._size_bytes < INBOX_SIZE_BYTES)
            self._waiting.append(request)
            self._size_bytes += _size_of(request)
            self._changed.notify_all()

    async def take(self) -> tuple[BrokerRequest | OffloadError | None, list[bytes]]:
        """Return the next request. All messages to one topic that wait are one, with their bodies."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._waiting))
            first = self._waiting.popleft()
            self._size_bytes -= _size_of(first)
            bodies = [first.body] if isinstance(first, Publish) else []
            while isinstance(first, Publish) and self._waiting:
                request = self._waiting[0]
                if not isinstance(request, Publish) or request.topic != first.topic:
                    break
                bodies.append(request.body)
                self._size_bytes -= _size_of(self._waiting.popleft())
            self._changed.notify_all()
            return first, bodies


def _size_of(request: BrokerRequest | OffloadError | None) -> int:
    return 200 + len(request.body) if isinstance(request, Publish) else 200


class _Client:
    """One client."""

    def __init__(
        self,
        topics: Topics,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        stall_seconds: float,
    ) -> None:
        self._topics, self._reader, self._writer = topics, reader, writer
        self._stall_seconds = stall_seconds
        self._inbox = _Inbox()
        self._consumed: tuple[ManagedLedger, str | None] | None = None
        self._writer.transport.set_write_buffer_limits(WRITE_SIZE_BYTES)

    async def run(self) -> None:
        """Serve the client until it has gone, or sends what is no request."""
        tasks = [asyncio.create_task(self._end_with(self._read()))]
        try:
            while True:
                request, bodies = await self._inbox.take()
                match request:
                    case None:
                        return
                    case OffloadError():
                        await self._send(encode_error(request))
                        return
                    case Consume() if self._consumed is None:
                        start = await self._begin(request)
                        if start is not None:
                            tasks.append(asyncio.create_task(self._end_with(self._push(start))))
                    case _:
                        await self._send(await self._answer(request, bodies))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _end_with(self, work: Coroutine[Any, Any, None]) -> None:
        """Run one half of the connection. Its end ends all, behind the requests before it."""
        end: OffloadError | None = None
        try:
            await work
        except OffloadError as error:
            end = error
        except (ConnectionError, TimeoutError):
            self._writer.transport.abort()
        except Exception:  # noqa: BLE001 - as in `BrokerServer`
            self._writer.transport.abort()
            _log.exception("a client was cut off")
        await self._inbox.put(end)

    async def _read(self) -> None:
        while (request := await read_request(self._reader)) is not None:
            await self._inbox.put(request)

    async def _answer(self, request: BrokerRequest, bodies: list[bytes]) -> bytes:
        """Do what a request asks for, and return the answer."""
        try:
            match request:
                case Publish():
                    first = await (await self._topics.begin(request.topic)).append(bodies)
                    return b"".join(b"ok %d\n" % offset for offset in range(first, first + len(bodies)))
                case ListTopics():
                    lines = [f"topic {name} {end}\n" for name, end in self._topics.ends()]
                    return "".join([*lines, f"ok {len(lines)}\n"]).encode()
                case Acknowledge():
                    ledger, cursor = self._consumed or (None, None)
                    if ledger is None or cursor is None:
                        raise Misuse("this connection has no cursor: consume with one")
                    ledger.acknowledge(cursor, request.offset + 1)
                    return b""
                case Consume():
                    raise Misuse("this connection consumes already")
        except OffloadError as error:
            return encode_error(error) * max(len(bodies), 1)

    async def _begin(self, request: Consume) -> Position | None:
        """Return where a consumer begins, after telling it; None if it cannot."""
        try:
            ledger = await self._topics.get(request.topic)
            start = request.start
            if request.cursor is not None:
                start = AtOffset(ledger.open_cursor(request.cursor, _offset_of(request.start, ledger)))
        except OffloadError as error:
            await self._send(encode_error(error))
            return None
        self._consumed = ledger, request.cursor
        await self._send(b"ok %d\n" % ledger.next_offset)
        return start

    async def _push(self, start: Position) -> None:
        """Send messages without end."""
        assert self._consumed is not None
        async with aclosing(self._consumed[0].follow(start)) as batches:
            async for batch in batches:
                for part in _parts(batch):
                    await self._send(part)

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(self._stall_seconds):
            await self._writer.drain()


def _parts(batch: Messages) -> Iterator[bytes]:
    """Yield the messages of a chunk as they are sent, in parts of about the size of the buffer."""
    part, size_bytes = list[bytes](), 0
    for offset, body in enumerate(batch.bodies, batch.offset):
        part += b"message %d %d %d\n" % (offset, batch.timestamp_ms, len(body)), body, b"\n"
        size_bytes += len(body)
        if size_bytes >= WRITE_SIZE_BYTES:
            yield b"".join(part)
            part, size_bytes = [], 0
    yield b"".join(part)


def _offset_of(start: Position, ledger: ManagedLedger) -> int:
    """Return the offset of a new cursor."""
    match start:
        case AtEdge.FIRST:
            return 0
        case AtEdge.NEXT:
            return ledger.next_offset
        case AtOffset():
            return start.offset
        case _:
            raise Misuse("a new cursor begins at first, at next, or at an offset")


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    peer = writer.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        with suppress(AttributeError, OSError):  # the system has no such option
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
