"""A stream of a running RabbitMQ as a restore target: messages are published through the stream protocol.

- The publisher's name is made of the archived stream and its incarnation, and the id of a message is its
  archived offset plus 1. The broker drops a message whose id is not above the highest that it has of this
  name, and confirms it all the same. So messages go in order, on one connection to the stream's leader.
- The messages of sub-batches are published one by one, because a sub-batch has one id for all of them.
- Messages are read on a connection of their own, from the first one to the end. The broker does not mark the
  end. But it answers requests and delivers chunks in one order: if a request is answered while all credit is
  granted and no chunk came before the answer, then there was none.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

from offload.contracts.target import MessageTarget, RestoreOrigin, TargetMessages, Tell
from offload.formats.checksums import crc32
from offload.formats.chunk import CHUNK_HEADER, ChunkHeader
from offload.formats.entries import messages
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Misuse, NoSpace, NotOffloaded, OutcomeUnknown, TryAgain
from offload.ground.outside import number_outside
from offload_rabbitmq.stream_answers import leader_of, moved, refusal
from offload_rabbitmq.stream_connection import StreamConnection
from offload_rabbitmq.stream_frames import SIZE, Code, Frame, Key, encode, head_of
from offload_rabbitmq.stream_place import StreamPlace, parse_place
from offload_rabbitmq.stream_wire import OffsetKind, OffsetSpec

IN_FLIGHT_MESSAGES_MAX: Final = 50_000
IN_FLIGHT_BYTES_MAX: Final = 32 << 20
FRAME_SIZE_BYTES: Final = 256 << 10
"""The size of a frame of messages, if the broker accepts it. By default it accepts 1 MiB."""

FRAME_MESSAGES_MAX: Final = 2_000
PUBLISHER: Final = 1
SUBSCRIPTION: Final = 1
CREDIT: Final = 10
NAME_SIZE_BYTES_MAX: Final = 255
SEGMENT_SIZE_BYTES: Final = 500_000_000
"""The size of a segment, unless an argument says another. The broker deletes whole segments."""

NUMBERS: Final = ("max-length-bytes", "stream-max-segment-size-bytes")
"""The arguments that are numbers of bytes, of which the restore makes use."""

CONNECTION_NAME: Final = "offload restore"
CONNECT_SECONDS: Final = 30.0
ANSWER_SECONDS: Final = 30.0
PUBLISH_HEAD: Final = struct.Struct(head_of(Key.PUBLISH).format + "I")
"""Size, key, version, publisher and the count of messages."""

MESSAGE_HEAD: Final = struct.Struct(">QI")
"""Publishing id and size."""


def open_url(url: str, options: Mapping[str, str]) -> StreamTarget:
    """Return the target at a URL, without access to the network. Raises `Misuse` if it is no such URL."""
    return StreamTarget(parse_place(url), arguments=options, env=Env())


def publisher_name(origin: RestoreOrigin) -> str:
    """Return the name under which an archive is published: the same for every restore of it."""
    # The incarnation alone identifies the archive. The name of the stream is for people, so it may be cut.
    return f"offload-restore-{origin.incarnation.hex}-{quote(origin.stream, safe='')}"[:NAME_SIZE_BYTES_MAX]


class StreamTarget(MessageTarget):
    """A stream of a running broker. `arguments` are those of the stream's declaration."""

    def __init__(self, place: StreamPlace, *, arguments: Mapping[str, str], env: Env) -> None:
        for name in NUMBERS:
            text = arguments.get(name, "0")
            if number_outside(text) is None:
                raise Misuse(f"target option {name} is a number, not {text[:80]!r}")
        self._place, self._arguments, self._env = place, dict(arguments), env
        self._name = ""
        self._connection: StreamConnection | None = None
        self._frame_size_bytes = FRAME_SIZE_BYTES
        self._confirms = _Confirms()

    @property
    def url(self) -> str:
        """The address and the stream, without the login."""
        return self._place.url

    async def open(self, origin: RestoreOrigin, tell: Tell) -> None:
        """See `MessageTarget.open`. Declares the stream if arguments are given and it does not exist."""
        await self.aclose()
        self._confirms = _Confirms()
        self._name = publisher_name(origin)
        self._check_retention(origin)
        connection = await self._connected(self._place)
        try:
            await self._declare(connection, tell)
            leader = await self._leader(connection)
        finally:
            await connection.aclose()
        # A new connection even if it is the same node: then there is one way to the leader, not two.
        self._place = leader
        self._connection = connection = await self._connected(leader)
        if connection.frame_size_bytes_max:
            limit = connection.frame_size_bytes_max - PUBLISH_HEAD.size
            self._frame_size_bytes = min(FRAME_SIZE_BYTES, limit)
        version = connection.server.get("version", "of an unknown version")
        tell(f"{self.url} is on RabbitMQ {version}; the restored messages differ from the archived ones:")
        for line in _differences(origin, self._arguments):
            tell(line)
        connection.receivers[Key.PUBLISH_CONFIRM] = self._confirms.note
        connection.receivers[Key.PUBLISH_ERROR] = self._refused
        connection.receivers[Key.METADATA_UPDATE] = self._moved
        connection.lost.add_done_callback(lambda lost: self._confirms.fail(lost.result()))
        answer = await connection.ask(
            Key.DECLARE_PUBLISHER,
            publisher=PUBLISHER,
            reference=self._name,
            stream=leader.stream,
            doing=f"publish to stream {leader.stream!r}",
            accept=(Code.OK, Code.PRECONDITION_FAILED),
        )
        if answer["code"] == Code.PRECONDITION_FAILED:  # the broker's word for an alarm
            raise TryAgain(f"{self.url}: the broker takes no publisher now: see its memory and disk alarms")

    async def last_id(self) -> int:
        """See `MessageTarget.last_id`."""
        answer = await self._open_connection.ask(
            Key.QUERY_PUBLISHER_SEQUENCE,
            reference=self._name,
            stream=self._place.stream,
            doing=f"tell what it has of publisher {self._name!r}",
        )
        last_id: int = answer["sequence"]
        return last_id

    async def publish(self, first_id: int, bodies: Sequence[bytes]) -> None:
        """See `MessageTarget.publish`."""
        for start, stop, size_bytes in _frames(bodies, self._frame_size_bytes):
            await self._confirms.room_for(stop - start, size_bytes)
            data = publish_frame(first_id + start, bodies[start:stop])
            await self._open_connection.send(data)
            self._confirms.sent(first_id + stop - 1, stop - start, size_bytes)

    async def flush(self) -> None:
        """See `MessageTarget.flush`. Raises `OutcomeUnknown` if the broker lacks the last id."""
        await self._confirms.all_confirmed()
        last_id = await self.last_id()
        if self._confirms.last_id is not None and last_id < self._confirms.last_id:
            raise OutcomeUnknown(
                f"{self.url} confirmed all messages, but has them only up to id {last_id} of "
                f"{self._confirms.last_id}; run the same command again"
            )

    async def messages(self) -> AsyncGenerator[TargetMessages, None]:
        """See `MessageTarget.messages`."""
        connection = await self._connected(self._place)
        try:
            async with aclosing(_Subscription(connection, self._place.stream).chunks()) as chunks:
                async for chunk in chunks:
                    header = ChunkHeader.decode(chunk, where=self.url)
                    yield TargetMessages(
                        header.offset, messages(chunk, where=self.url), chunk[: CHUNK_HEADER.size_bytes]
                    )
        finally:
            await connection.aclose()

    async def aclose(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.aclose()

    async def _connected(self, place: StreamPlace) -> StreamConnection:
        return await StreamConnection.connect(
            place.endpoint,
            self._env,
            name=CONNECTION_NAME,
            connect_seconds=CONNECT_SECONDS,
            answer_seconds=ANSWER_SECONDS,
        )

    @property
    def _open_connection(self) -> StreamConnection:
        assert self._connection is not None, "open comes first"
        return self._connection

    async def _declare(self, connection: StreamConnection, tell: Tell) -> None:
        """Check the stream's arguments, or declare it with them if it does not exist.

        The protocol does not show the arguments of a stream. But to declare an existing stream fails in one
        way if the arguments are the same, and in another if they differ.
        """
        stream = self._place.stream
        if not self._arguments:
            await self._leader(connection)  # raises if there is no such stream: it could be a typing error
        answer = await connection.ask(
            Key.CREATE,
            stream=stream,
            arguments=self._arguments,
            doing=f"declare stream {stream!r}",
            accept=(Code.OK, Code.STREAM_EXISTS, Code.PRECONDITION_FAILED),
        )
        if answer["code"] == Code.OK:
            tell(f"stream {stream!r} did not exist and was declared")
        if answer["code"] == Code.PRECONDITION_FAILED:
            given = ", ".join(f"{name}={value}" for name, value in self._arguments.items())
            declared = f"other arguments than {given}" if given else "arguments"
            raise Misuse(
                f"{self.url} was declared with {declared}, so its retention is not known: give the arguments "
                "of its declaration, each with --target-option NAME=VALUE"
            )

    async def _leader(self, connection: StreamConnection) -> StreamPlace:
        stream = self._place.stream
        answer = await connection.ask(Key.METADATA, streams=[stream], doing=f"name the leader of {stream!r}")
        try:
            leader = leader_of(answer, stream, connection.where)
        except NotOffloaded as error:
            raise NotOffloaded(
                f"{error}; declare stream {stream!r} first, or give the arguments to declare it with, each "
                "with --target-option NAME=VALUE"
            ) from error
        advertised = connection.advertised
        if (leader.host, str(leader.port)) == (
            advertised.get("advertised_host"),
            advertised.get("advertised_port"),
        ):
            return self._place  # the address that the user gave leads here, and is sure to be reachable
        return self._place.at(leader.host, leader.port)

    def _check_retention(self, origin: RestoreOrigin) -> None:
        limit = self._arguments.get("max-length-bytes")
        if limit is None:
            return
        segment = int(self._arguments.get("stream-max-segment-size-bytes", SEGMENT_SIZE_BYTES))
        needed = origin.size_bytes + origin.size_bytes // 10 + segment
        if int(limit) < needed:
            raise NoSpace(
                f"{self.url} keeps {limit} bytes, and could delete the oldest restored messages: the archive "
                f"has {origin.size_bytes} bytes, and a segment up to {segment}; declare the stream with "
                f"max-length-bytes of {needed} or more, or with smaller segments"
            )

    def _moved(self, update: Frame) -> None:
        # Without this, the confirms of messages on their way would be awaited for ever.
        if error := moved(update, self._place.stream, self.url):
            self._confirms.fail(error)

    def _refused(self, refused: Frame) -> None:
        for publishing_id, code in refused["errors"][:1]:
            doing = f"take the message of archived offset {publishing_id - 1}"
            self._confirms.fail(refusal(code, doing, self.url))


class _Confirms:
    """Counts messages that are on their way. One task publishes, so at most one waits."""

    def __init__(self) -> None:
        self.last_id: int | None = None
        self._frames: deque[tuple[int, int]] = deque()
        self._messages = self._confirmed = self._bytes = 0
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def sent(self, last_id: int, count: int, size_bytes: int) -> None:
        """Note a frame of messages."""
        self.last_id = last_id
        self._frames.append((count, size_bytes))
        self._messages, self._bytes = self._messages + count, self._bytes + size_bytes

    def note(self, confirm: Frame) -> None:
        """Note the ids of a confirm."""
        # Only counted. Ids are confirmed once each, and `flush` asks the broker for the last one.
        self._confirmed += len(confirm["ids"])
        # Frames are confirmed in about the order in which they were sent. Their bytes only bound memory.
        while self._frames and self._confirmed >= self._frames[0][0]:
            count, size_bytes = self._frames.popleft()
            self._confirmed -= count
            self._messages, self._bytes = self._messages - count, self._bytes - size_bytes
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """Raise this error from the wait that runs, and from every later one."""
        self._error = self._error or error
        self._changed.set()

    async def room_for(self, count: int, size_bytes: int) -> None:
        """Wait until few enough messages and bytes are on their way."""
        while (
            self._messages
            and (
                self._messages + count > IN_FLIGHT_MESSAGES_MAX
                or self._bytes + size_bytes > IN_FLIGHT_BYTES_MAX
            )
        ) or self._error:
            await self._change()

    async def all_confirmed(self) -> None:
        """Wait until nothing is on its way."""
        while self._messages or self._error:
            await self._change()

    async def _change(self) -> None:
        if self._error is not None:
            raise self._error
        self._changed.clear()
        await self._changed.wait()


class _Subscription:
    """The user chunks of a stream from the first to the end."""

    def __init__(self, connection: StreamConnection, stream: str) -> None:
        self._connection, self._stream = connection, stream
        self._arrived: deque[Frame] = deque()
        self._error: TryAgain | None = None
        connection.receivers[Key.DELIVER] = self._arrived.append
        connection.receivers[Key.METADATA_UPDATE] = self._moved

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield chunks without filter and trailer, whose headers say so. Each has its checksum checked.

        Raises `TryAgain` if the broker ends the subscription before the end of the stream.
        """
        await self._connection.ask(
            Key.SUBSCRIBE,
            subscription=SUBSCRIPTION,
            stream=self._stream,
            offset=OffsetSpec(OffsetKind.FIRST),
            credit=CREDIT,
            doing=f"deliver stream {self._stream!r}",
        )
        one_more = encode(Key.CREDIT, subscription=SUBSCRIPTION, credit=1)
        while True:
            if not self._arrived:
                # All credit is granted, so the broker has sent what there is before it answers.
                await self._connection.ask(
                    Key.METADATA, streams=[self._stream], doing="answer behind the last chunk"
                )
                if self._error is not None:
                    raise self._error
                if not self._arrived:
                    return
            deliver = self._arrived.popleft()
            await self._connection.send(one_more)
            yield _plain(deliver["chunk"], self._connection.where)

    def _moved(self, update: Frame) -> None:
        self._error = moved(update, self._stream, self._connection.where) or self._error


def publish_frame(first_id: int, bodies: Sequence[bytes]) -> bytes:
    """Return the frame that publishes `bodies` under ascending ids. `encode` takes four times as long."""
    pack = MESSAGE_HEAD.pack
    parts = [b""]
    for publishing_id, body in enumerate(bodies, start=first_id):
        parts += pack(publishing_id, len(body)), body
    size_bytes = PUBLISH_HEAD.size - SIZE.size + len(bodies) * MESSAGE_HEAD.size + sum(map(len, bodies))
    parts[0] = PUBLISH_HEAD.pack(size_bytes, Key.PUBLISH, 1, PUBLISHER, len(bodies))
    return b"".join(parts)


def _plain(delivered: memoryview, where: str) -> bytes:
    """Return a delivered chunk, whose filter and trailer the broker left out, as a chunk that has none."""
    header = ChunkHeader.decode(delivered, where=where)
    data = delivered[48:]
    if crc32(data) != header.crc:
        raise Corrupt("checksum of a delivered chunk", where, expected=header.crc, found=crc32(data))
    return b"".join((delivered[:40], bytes(8), data))


def _frames(bodies: Sequence[bytes], limit_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield the messages of each frame, as a range and their size with that of their ids and lengths.

    A message that is larger than a frame may be is sent alone. The broker decides.
    """
    start = size_bytes = 0
    for stop, body in enumerate(bodies):
        added = len(body) + MESSAGE_HEAD.size
        if stop > start and (size_bytes + added > limit_bytes or stop - start >= FRAME_MESSAGES_MAX):
            yield start, stop, size_bytes
            start, size_bytes = stop, 0
        size_bytes += added
    if len(bodies) > start:
        yield start, len(bodies), size_bytes


def _differences(origin: RestoreOrigin, arguments: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each property of the archive that published messages do not have."""
    yield "timestamps are those of the restore"
    yield "filter values and the stored offsets of consumers are not restored"
    if origin.first_offset:
        yield f"offsets change, because the restore begins at offset {origin.first_offset}: see --map"
    elif origin.has_tracking:
        yield "offsets change, because some of the archive's are tracking records of the broker: see --map"
    else:
        yield "offsets change behind the first segment, where the broker adds tracking records: see --map"
    yield "consumers that are attached to the target get the messages at once"
    if "max-age" in arguments:
        yield f"the target deletes messages {arguments['max-age']} after the restore, however old they are"
    yield "no client can see whether a policy of the broker limits the target: check it before"
