"""A running RabbitMQ: `rabbitmq-stream://HOST[:PORT][/VHOST]`, or `rabbitmq-stream+tls://` with TLS.

**Which chunk is committed.** No request that every version of the broker has returns a committed offset. But
a consumer is sent committed chunks only. So a question is a subscription at an offset, with credit for one
chunk, which ends with the delivery. It moves one chunk, and leaves nothing in the broker. A subscription to
everything would move every byte twice. `StreamStats`, and the committed chunk id in deliveries, exist from
RabbitMQ 3.11 on.

**Which node leads.** A Metadata request names the leader's address. It is compared with the address by which
the cluster knows the node of this connection. So the URL is that of the node beside the files, and not that
of a load balancer.

**Which stream.** A source names a stream after its folder: virtual host, name and time of creation, in which
every character but letters, digits, `-`, `_` and `=` has become `_`. A `_` may therefore stand for a `.` too:
up to `NAMES_MAX` such names are tried. A wrong stream does no harm: it does not have the source's chunk.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, product
from typing import Final
from urllib.parse import unquote, urlsplit

from offload.contracts.broker import BrokerView, CommittedChunk, LeadingNode
from offload.formats.chunk import ChunkHeader
from offload.ground.env import Env
from offload.ground.errors import Misuse, NotOffloaded, OffloadError, TryAgain
from offload_rabbitmq.connection import KeptConnection
from offload_rabbitmq.stream_answers import leader_of
from offload_rabbitmq.stream_connection import StreamConnection
from offload_rabbitmq.stream_frames import Frame, Key
from offload_rabbitmq.stream_place import GUEST, PORTS, BrokerEndpoint, tls_of
from offload_rabbitmq.stream_wire import OffsetKind, OffsetSpec

NAMES_MAX: Final = 18
"""All names with up to four `_` or `.`, the first two tried twice. A name costs one request, once."""

QUESTIONS_MAX: Final = 200
"""Questions at once. The protocol has 256 subscriptions for each connection."""

_CREATED: Final = re.compile(r"_\d+$")
_REPLACED: Final = re.compile(r"[^A-Za-z0-9_\-=]")


def open_broker(url: str, *, user: str | None, password: str | None, env: Env) -> RabbitmqBroker:
    """Return the broker at a URL, without a connection. Raises `Misuse` if it is no such URL."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise Misuse(f"{url!r} has no valid port") from error
    if not parts.hostname or parts.query or parts.fragment:
        raise Misuse(
            f"{url!r} is no broker: use {parts.scheme}://HOST:PORT, or {parts.scheme}://HOST:PORT/VHOST"
        )
    endpoint = BrokerEndpoint(
        host=parts.hostname,
        port=port or PORTS[parts.scheme],
        virtual_host=unquote(parts.path.removeprefix("/")) or "/",
        user=GUEST if user is None else user,
        password=GUEST if password is None else password,
        tls=tls_of(parts.scheme),
    )
    return RabbitmqBroker(endpoint, env=env)


class RabbitmqBroker(BrokerView):
    """The broker at one endpoint, which has the streams of one virtual host. One connection, kept."""

    __slots__ = ("_connection", "_names", "_numbers", "_prefix", "_releases", "_waiting")

    def __init__(self, endpoint: BrokerEndpoint, *, env: Env) -> None:
        self._connection = KeptConnection(
            endpoint=endpoint, on_deliver=self._on_deliver, on_gone=self._on_gone, env=env
        )
        self._prefix = _REPLACED.sub("_", endpoint.virtual_host) + "_"
        self._names: dict[str, str] = {}
        self._waiting: dict[int, tuple[str, asyncio.Future[CommittedChunk | None]]] = {}
        # Taken from one end and returned to the other, so that a late delivery meets no new question.
        self._numbers: asyncio.Queue[int] = asyncio.Queue()
        for number in range(QUESTIONS_MAX):
            self._numbers.put_nowait(number)
        self._releases: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The address, without virtual host and login."""
        return self._connection.endpoint.url

    @property
    def error(self) -> OffloadError | None:
        """The error of the last try, or None if it succeeded or there was none."""
        return self._connection.error

    async def committed(self, stream: str, offset: int) -> CommittedChunk:
        """Subscribe to one chunk, wait for it, and end the subscription."""
        name = await self._name_of(stream)
        number = await self._numbers.get()
        delivery: asyncio.Future[CommittedChunk | None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = name, delivery
        used: list[StreamConnection] = []

        async def subscribe(connection: StreamConnection) -> None:
            used.append(connection)
            await connection.ask(
                Key.SUBSCRIBE,
                subscription=number,
                stream=name,
                offset=OffsetSpec(OffsetKind.OFFSET, offset),
                credit=1,
                doing=f"deliver stream {name!r}",
            )

        try:
            await self._connection.run(subscribe)
            chunk = await delivery
        except NotOffloaded:
            self._names.pop(stream, None)
            raise
        finally:
            del self._waiting[number]
            release = asyncio.create_task(self._release(number, used))
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)
        if chunk is None:
            raise TryAgain(f"{self.url}: the subscription to {name!r} ended")
        return chunk

    async def leader(self, stream: str) -> LeadingNode:
        """Ask for the leader's address, and compare it with that of this node."""
        leader = await self._leader(await self._name_of(stream))
        address = self._connection.address
        return LeadingNode(address=leader, is_asked=None if address is None else leader == address)

    async def aclose(self) -> None:
        """End all questions and close the connection."""
        self._on_gone(None)
        await asyncio.gather(*self._releases)
        await self._connection.aclose()

    async def _leader(self, name: str) -> str:
        async def metadata(connection: StreamConnection) -> str:
            answer = await connection.ask(Key.METADATA, streams=[name], doing=f"name the leader of {name!r}")
            leader = leader_of(answer, name, self.url)
            return f"{leader.host}:{leader.port}"

        return await self._connection.run(metadata)

    async def _name_of(self, stream: str) -> str:
        """Return the name that the broker has for a folder. Raises `NotOffloaded` if it has none."""
        if stream not in self._names:
            self._names[stream] = await self._found(stream)
        return self._names[stream]

    async def _found(self, stream: str) -> str:
        for name in islice(_candidates(stream, self._prefix), NAMES_MAX):
            try:
                await self._leader(name)
            except NotOffloaded:
                continue
            except TryAgain:
                # The stream exists if only its leader is not known.
                if self.error is not None:
                    raise
            return name
        vhost = self._connection.endpoint.virtual_host
        raise NotOffloaded(f"{self.url}: virtual host {vhost!r} has no stream for the folder {stream!r}")

    def _on_deliver(self, deliver: Frame) -> None:
        _, delivery = self._waiting.get(deliver["subscription"], ("", None))
        if delivery is not None and not delivery.done():
            header = ChunkHeader.decode(deliver["chunk"], where=self.url)
            delivery.set_result(
                CommittedChunk(
                    first_offset=header.offset,
                    next_offset=header.next_offset,
                    epoch=header.epoch,
                    crc=header.crc,
                )
            )

    def _on_gone(self, name: str | None) -> None:
        for stream, delivery in self._waiting.values():
            if name in (None, stream) and not delivery.done():
                delivery.set_result(None)

    async def _release(self, number: int, used: list[StreamConnection]) -> None:
        """End a subscription. Its number is free afterwards."""

        async def unsubscribe(connection: StreamConnection) -> None:
            await connection.ask(Key.UNSUBSCRIBE, subscription=number, doing="end a subscription")

        if used and self._connection.holds(used[0]):
            with suppress(OffloadError):  # it did not exist, or it ended with the connection
                await self._connection.run(unsubscribe)
        self._numbers.put_nowait(number)


def _candidates(stream: str, prefix: str) -> Iterator[str]:
    """Yield the names that a stream can have whose folder has this name, the likeliest first."""
    if stream.startswith(prefix):
        name = _CREATED.sub("", stream.removeprefix(prefix))
        yield from (name, name.replace("_", "."))
        yield from map("".join, product(*(("_", ".") if each == "_" else (each,) for each in name)))
