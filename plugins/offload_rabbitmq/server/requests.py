"""The commands on an open connection: what a consumer asks for, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offload.model.position import AtEdge
from offload_rabbitmq.server.connection import ANY_STEP, LoginStep, ServedConnection, StreamCommand
from offload_rabbitmq.server.state import or_code
from offload_rabbitmq.stream_frames import Code, Frame, Key, encode
from offload_rabbitmq.stream_wire import OffsetKind

REFERENCE_SIZE_BYTES_MAX: Final = 255
NO_LEADER: Final = 0xFFFF

VERSIONS: Final = tuple(
    (int(key), 1, 2 if key is Key.PUBLISH else 1)
    for key in (
        Key.DECLARE_PUBLISHER,  # rstream takes the second one for PUBLISH, wherever it is
        Key.PUBLISH,
        Key.QUERY_PUBLISHER_SEQUENCE,
        Key.DELETE_PUBLISHER,
        Key.SUBSCRIBE,
        Key.CREDIT,
        Key.STORE_OFFSET,
        Key.QUERY_OFFSET,
        Key.UNSUBSCRIBE,
        Key.CREATE,
        Key.DELETE,
        Key.METADATA,
        Key.CLOSE,
        Key.HEARTBEAT,
        Key.ROUTE,
        Key.PARTITIONS,
        Key.STREAM_STATS,
        Key.CREATE_SUPER_STREAM,
        Key.DELETE_SUPER_STREAM,
    )
)
"""The commands that the server knows, with the versions of each, in RabbitMQ's order."""


def _exchange_versions(connection: ServedConnection, frame: Frame) -> None:
    asked = {key: most for key, _, most in frame["commands"]}
    connection.deliver_version = 2 if asked.get(Key.DELIVER, 1) >= 2 else 1
    connection.answer(frame, commands=VERSIONS)


def _close(connection: ServedConnection, frame: Frame) -> None:
    if not frame.is_response:
        connection.answer(frame)
        connection.hang_up()


def _ignore(connection: ServedConnection, frame: Frame) -> None:
    pass


# Streams.


async def _metadata(connection: ServedConnection, frame: Frame) -> None:
    shared, rows = connection.shared, []
    for name in dict.fromkeys(frame["streams"]):
        found = await shared.open(connection.virtual_host, name)
        is_refused = isinstance(found, Code)
        rows.append((name, found if is_refused else Code.OK, NO_LEADER if is_refused else 0, ()))
    nodes, correlation = [(0, *shared.advertised)], frame["correlation"]
    connection.send(encode(Key.METADATA, response=True, correlation=correlation, nodes=nodes, streams=rows))


async def _stream_stats(connection: ServedConnection, frame: Frame) -> None:
    name = frame["stream"]
    reader = await connection.shared.open(connection.virtual_host, name)
    if isinstance(reader, Code):
        return connection.answer(frame, reader)
    ids = list[int]()
    for edge in (AtEdge.FIRST, AtEdge.LAST, AtEdge.NEXT):
        place = await or_code(name, reader.place_of(edge))
        if isinstance(place, Code):
            return connection.answer(frame, place)
        ids.append(place.offset)
    first, last, end = ids
    if last == end:
        first = last = -1
    stats = [("first_chunk_id", first), ("last_chunk_id", last), ("committed_chunk_id", last)]
    return connection.answer(frame, stats=stats)


async def _partitions(connection: ServedConnection, frame: Frame) -> None:
    name = frame["super_stream"]
    found = await or_code(name, connection.shared.names.partitions(connection.virtual_host, name))
    if isinstance(found, Code):
        return connection.answer(frame, found, streams=())
    if frame.key is Key.ROUTE:
        found = [each for each in found if each == f"{name}-{frame['routing_key']}"]
    return connection.answer(frame, streams=found)


# Consumers.


async def _subscribe(connection: ServedConnection, frame: Frame) -> None:
    if frame["subscription"] in connection.subscriptions:
        return connection.answer(frame, Code.SUBSCRIPTION_EXISTS)
    if frame["properties"].get("single-active-consumer") == "true":
        return connection.answer(frame, Code.PRECONDITION_FAILED)
    if frame["offset"].kind is OffsetKind.NONE:
        return connection.close(Code.UNKNOWN_FRAME, "unknown frame")
    reader = await connection.shared.open(connection.virtual_host, frame["stream"])
    if isinstance(reader, Code):
        return connection.answer(frame, reader)
    if connection.step is LoginStep.OPEN:
        connection.answer(frame)
        connection.subscriptions.start(frame, reader, version=connection.deliver_version)
    return None


def _unsubscribe(connection: ServedConnection, frame: Frame) -> None:
    if frame["subscription"] not in connection.subscriptions:
        return connection.answer(frame, Code.NO_SUBSCRIPTION)
    connection.subscriptions.end(frame["subscription"])
    return connection.answer(frame)


def _credit(connection: ServedConnection, frame: Frame) -> None:
    number = frame["subscription"]
    if (found := connection.subscriptions.get(number)) is not None:
        return found.give_credit(frame["credit"])
    refused = encode(Key.CREDIT, response=True, code=Code.NO_SUBSCRIPTION, subscription=number)
    return connection.send(refused)


async def _store_offset(connection: ServedConnection, frame: Frame) -> None:
    shared, reference = connection.shared, frame["reference"]
    stream = await shared.find(connection.virtual_host, frame["stream"])
    if isinstance(stream, str) and 0 < len(reference.encode()) <= REFERENCE_SIZE_BYTES_MAX:
        shared.offsets.store(stream, reference, frame["offset"])


async def _query_offset(connection: ServedConnection, frame: Frame) -> None:
    shared = connection.shared
    stream = await shared.find(connection.virtual_host, frame["stream"])
    if isinstance(stream, Code):
        return connection.answer(frame, stream, offset=0)
    offset = shared.offsets.query(stream, frame["reference"])
    if offset is None:
        return connection.answer(frame, Code.NO_OFFSET, offset=0)
    return connection.answer(frame, offset=offset)


# What is refused.


def _refuse(connection: ServedConnection, frame: Frame) -> None:
    connection.answer(frame, Code.ACCESS_REFUSED)


def _no_publisher(connection: ServedConnection, frame: Frame) -> None:
    connection.answer(frame, Code.NO_PUBLISHER)


def _refuse_messages(connection: ServedConnection, frame: Frame) -> None:
    errors = [(message[0], Code.NO_PUBLISHER) for message in frame["messages"]]
    connection.send(encode(Key.PUBLISH_ERROR, publisher=frame["publisher"], errors=errors))


REQUESTS: Final[Mapping[Key, StreamCommand]] = {
    Key.DECLARE_PUBLISHER: StreamCommand(_refuse),
    Key.PUBLISH: StreamCommand(_refuse_messages),
    Key.QUERY_PUBLISHER_SEQUENCE: StreamCommand(_refuse),
    Key.DELETE_PUBLISHER: StreamCommand(_no_publisher),
    Key.SUBSCRIBE: StreamCommand(_subscribe),
    Key.CREDIT: StreamCommand(_credit),
    Key.STORE_OFFSET: StreamCommand(_store_offset),
    Key.QUERY_OFFSET: StreamCommand(_query_offset),
    Key.UNSUBSCRIBE: StreamCommand(_unsubscribe),
    Key.CREATE: StreamCommand(_refuse),
    Key.DELETE: StreamCommand(_refuse),
    Key.METADATA: StreamCommand(_metadata),
    Key.CLOSE: StreamCommand(_close, ANY_STEP),
    Key.HEARTBEAT: StreamCommand(_ignore, ANY_STEP),
    Key.ROUTE: StreamCommand(_partitions),
    Key.PARTITIONS: StreamCommand(_partitions),
    Key.CONSUMER_UPDATE: StreamCommand(_ignore),
    Key.EXCHANGE_COMMAND_VERSIONS: StreamCommand(_exchange_versions),
    Key.STREAM_STATS: StreamCommand(_stream_stats),
    Key.CREATE_SUPER_STREAM: StreamCommand(_refuse),
    Key.DELETE_SUPER_STREAM: StreamCommand(_refuse),
}
