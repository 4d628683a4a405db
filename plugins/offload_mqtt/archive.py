"""The archive of an MQTT broker: messages become records in a folder, and then they are acknowledged.

    broker --PUBLISH--> received --append--> FolderLog of the route, synced --PUBACK--> broker

The folder has a `FolderLog` for each stream, which is what `offload run rabbitmq://FOLDER TIER` copies, and
an `archive_state`. The session at the broker is not a clean one, so the broker keeps messages while the
archive is away.

A batch has all messages that came while the one before was being synced. So a slow disk makes large batches,
and at `WINDOW_SIZE_BYTES` received bytes nothing more is read from the broker.

Invariants:

- A message of QoS 1 is acknowledged when it is synced, and never otherwise. If appending fails, the archive
  ends with that error, and the broker keeps the batch.
- Acknowledgements are sent in the order of the messages, and only on the connection on which these came.
- No message is dropped: the first stream gets one that no route takes, as after an earlier subscription.
- At least once: the broker sends again what it has no acknowledgement of, and then it is stored again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Final

from paho.mqtt.client import MQTTMessage

from offload.contracts.log import LedgerLog
from offload.ground.env import Env
from offload.ground.errors import Misuse, NoSpace, TryAgain
from offload.log.disk import Disk
from offload.log.folder_log import FolderLog
from offload_mqtt.address import BrokerAddress
from offload_mqtt.archive_state import ArchiveState
from offload_mqtt.connection import MqttConnection
from offload_mqtt.topic_record import encode_record
from offload_mqtt.topics import TopicFilter, intersection, match

__all__ = ["MqttArchive", "MqttRoute", "check_routes", "open_archive"]

WINDOW_SIZE_BYTES: Final = 16 << 20
"""The bytes that may wait for a sync before reading pauses. One message may go beyond it."""

ROLL_SIZE_BYTES: Final = 500_000_000
"""The size of a segment of RabbitMQ."""

TOPICS_MAX: Final = 100_000
"""The topics whose streams are remembered."""

LASTING_SECONDS: Final = 5.0
"""A connection that ends earlier has failed: the next one waits longer."""

BACKOFF_SECONDS_MAX: Final = 30.0
RIVAL_FAILURES: Final = 3
"""After so many short connections, the reason may be another client with this id."""

_log: Final = logging.getLogger("offload.mqtt")


@dataclass(frozen=True)
class MqttRoute:
    """A filter, and the stream that gets its messages."""

    stream: str
    filter: TopicFilter


@dataclass
class MqttArchive:
    """An opened archive. `stored` counts the records by stream."""

    folder: Path
    logs: Mapping[str, LedgerLog]
    routes: Sequence[MqttRoute]
    client_id: str
    keep_size_bytes: int | None = None
    env: Env = field(default_factory=Env)
    disk: Disk = field(default_factory=Disk)
    stored: dict[str, int] = field(default_factory=dict)
    is_subscribed: bool = False
    """True while the broker has all subscriptions of this connection."""

    _streams: dict[bytes, str] = field(default_factory=dict)
    _received: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    """The number, or 0 if it is of QoS 0, the topic and the record of each message that waits."""
    _waiting_bytes: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _connection: MqttConnection | None = None

    async def run(self, address: BrokerAddress, stopping: asyncio.Event) -> None:
        """Archive until `stopping`. A lost connection is made again.

        Raises `Denied` and `Misuse` if the broker refuses the login, the client id or a filter, and the
        errors of `LedgerLog.append`, after which the broker still has what is not acknowledged.
        """
        failures = 0
        while not stopping.is_set():
            began = self.env.monotonic()
            try:
                await self._archive(address, stopping)
            except TryAgain as error:
                failures = 0 if self.env.monotonic() - began > LASTING_SECONDS else failures + 1
                rival = f"; does another client have the id {self.client_id!r}?"
                hint = rival if failures >= RIVAL_FAILURES and "closed" in str(error) else ""
                _log.warning("%s%s", error, hint)
                await self._pause(failures, stopping)

    async def _archive(self, address: BrokerAddress, stopping: asyncio.Event) -> None:
        """Archive on one connection until `stopping`. Raises `TryAgain` when it is lost."""
        self._wake.clear()
        # What an earlier connection has left is stored, and the broker gets no answer to it here.
        self._received = [(0, topic, record) for _, topic, record in self._received]
        connection = await MqttConnection.open(address, client_id=self.client_id, receive=self._receive)
        self._connection = connection
        subscribing = asyncio.create_task(self._subscribe(connection))
        stopped = asyncio.create_task(stopping.wait())
        for each in (subscribing, stopped, connection.lost):
            each.add_done_callback(lambda _: self._wake.set())
        try:
            while not (stopped.done() or connection.lost.done()):
                await self._wake.wait()
                self._wake.clear()
                if subscribing.done():
                    subscribing.result()  # raises its error
                if self._received:
                    await self._store(connection)
            connection.pause()
            if self._received:
                await self._store(connection, is_last=True)  # what came before the end, or before the loss
        finally:
            self._connection, self.is_subscribed = None, False
            subscribing.cancel()
            stopped.cancel()
            await asyncio.gather(subscribing, stopped, return_exceptions=True)
            await connection.aclose()
        if not stopping.is_set():
            raise connection.lost.result()

    async def _subscribe(self, connection: MqttConnection) -> None:
        """Subscribe at each connection: a broker may have lost the subscription and not the session."""
        filters = [each.filter.text for each in self.routes]
        known = ArchiveState.load(self.folder)
        wanted = ArchiveState(self.client_id, tuple(filters))
        if known != wanted:  # also what a crash leaves subscribed is known
            ArchiveState(self.client_id, tuple({*known.filters, *filters})).save(self.folder, self.disk)
        await connection.unsubscribe(sorted({*known.filters} - {*filters}))
        await connection.subscribe(filters)
        if known != wanted:
            wanted.save(self.folder, self.disk)
        self.is_subscribed = True
        _log.info("%s: archiving %s as %s", connection.address.url, ", ".join(filters), self.client_id)

    def _receive(self, message: MQTTMessage) -> None:
        # Not `message.topic`, which raises an error for a topic that is no UTF-8. Brokers send such topics.
        topic, payload, qos = message._topic, bytes(message.payload), message.qos
        flags = qos | message.retain << 2 | message.dup << 3  # `RecordFlag`, without its price
        record = encode_record(2, flags, 0, self.env.now_ms() * 1000, topic, payload)
        self._received.append((message.mid if qos else 0, topic, record))
        self._waiting_bytes += len(record)
        if self._waiting_bytes >= WINDOW_SIZE_BYTES and self._connection is not None:
            self._connection.pause()
        self._wake.set()

    async def _store(self, connection: MqttConnection, *, is_last: bool = False) -> None:
        """Append all that was received, and acknowledge it when it is synced."""
        batch, self._received = self._received, []
        self._waiting_bytes = 0
        now_ms = self.env.now_ms()
        records: dict[str, list[bytes]] = {}
        if len(self.logs) == 1:
            records[next(iter(self.logs))] = [record for _, _, record in batch]
        else:
            for _, topic, record in batch:
                records.setdefault(self._stream_of(topic), []).append(record)
        if not is_last:
            connection.resume()  # the next batch gathers
        appends = [self.logs[name].append(each, timestamp_ms=now_ms) for name, each in records.items()]
        results = await asyncio.gather(*appends, return_exceptions=True)
        for error in results:
            if isinstance(error, NoSpace):
                raise NoSpace(f"{error}. The broker keeps what is not acknowledged") from error
            if isinstance(error, BaseException):
                raise error
        connection.acknowledge([number for number, _, _ in batch if number])
        for name, each in records.items():
            self.stored[name] = self.stored.get(name, 0) + len(each)
            await self._trim(self.logs[name])

    def _stream_of(self, topic: bytes) -> str:
        stream = self._streams.get(topic)
        if stream is None:
            if len(self._streams) >= TOPICS_MAX:
                self._streams.clear()
            found = (each.stream for each in self.routes if match(topic, each.filter))
            stream = self._streams[topic] = next(found, self.routes[0].stream)
        return stream

    async def _trim(self, log: LedgerLog) -> None:
        """Delete the oldest sealed ledgers while the log is above the size to keep."""
        while self.keep_size_bytes is not None and len(log.ledgers) > 1:
            if sum(each.size_bytes for each in log.ledgers) <= self.keep_size_bytes:
                return
            await log.delete(log.ledgers[0].ledger_id)

    async def _pause(self, failures: int, stopping: asyncio.Event) -> None:
        seconds = self.env.backoff_seconds(failures, base_seconds=0.1, max_seconds=BACKOFF_SECONDS_MAX)
        sleeping, stopped = (
            asyncio.ensure_future(self.env.sleep(seconds)),
            asyncio.ensure_future(stopping.wait()),
        )
        await asyncio.wait([sleeping, stopped], return_when=asyncio.FIRST_COMPLETED)
        for each in (sleeping, stopped):
            each.cancel()


def check_routes(routes: Sequence[MqttRoute]) -> None:
    """Raise `Misuse` if there is no route, if a filter is shared, or if two filters match a common topic.

    A broker may send a message once for each of two such filters, and two streams would have to take it.
    """
    if not routes:
        raise Misuse("an archive needs a filter: add --filter '#' for all topics")
    for each in routes:
        if each.filter.group is not None:
            raise Misuse(
                f"{each.filter.text!r} is shared: others of its group would get messages in place of it"
            )
        if not each.stream or each.stream.startswith(".") or "/" in each.stream or "\0" in each.stream:
            raise Misuse(f"{each.stream!r} is no name of a stream: it is that of a folder, too")
    for one, other in combinations(routes, 2):
        if (common := intersection(one.filter, other.filter)) is not None:
            raise Misuse(
                f"{one.filter.text!r} and {other.filter.text!r} overlap in {common.text!r}: a message there "
                "would be stored twice; use filters that have no topic in common"
            )


@asynccontextmanager
async def open_archive(
    folder: Path,
    routes: Sequence[MqttRoute],
    *,
    client_id: str | None = None,
    roll_size_bytes: int = ROLL_SIZE_BYTES,
    keep_size_bytes: int | None = None,
    env: Env | None = None,
    disk: Disk | None = None,
) -> AsyncIterator[MqttArchive]:
    """Open the streams of an archive, and close them at the end of the block. Make what is missing.

    Raises `Misuse` for wrong routes, `Conflict` if another process has a stream open, and the other errors of
    `FolderLog.open`.
    """
    check_routes(routes)
    env, disk = env or Env(), disk or Disk()
    async with AsyncExitStack() as stack:
        logs: dict[str, LedgerLog] = {}
        for stream in dict.fromkeys(each.stream for each in routes):
            log = await FolderLog.open(folder / stream, roll_size_bytes=roll_size_bytes, env=env, disk=disk)
            logs[stream] = await stack.enter_async_context(log)
        state = ArchiveState.load(folder)
        if client_id is not None and client_id != state.client_id:
            state = ArchiveState(client_id)
        elif not state.client_id:
            state = ArchiveState(f"offload{env.uuid().hex[:16]}")  # 23 bytes: every broker takes it
        state.save(folder, disk)
        yield MqttArchive(folder, logs, routes, state.client_id, keep_size_bytes, env, disk)
