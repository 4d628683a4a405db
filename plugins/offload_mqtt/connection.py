"""One connection to an MQTT broker, by paho-mqtt on the event loop: MQTT 3.1.1, acknowledged by hand.

paho's own loops read one packet for each `select`. Here all packets that have arrived are read in a row, up
to `PACKETS_A_TURN`, and the acknowledgements of a batch are written in a row.

Each connection has a client of its own, so nothing of one that was lost reaches the next: the number of a
message means another message there if the broker has lost the session meanwhile.

Invariants:

- paho acknowledges nothing by itself.
- While `pause` holds, nothing is read from the socket. So TCP slows the broker down, and memory is bounded by
  what was received before, and by one message, of at most 256 MiB in MQTT.
- Whatever a broker sends, the connection ends at worst. No text of an error has the password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from paho.mqtt.client import Client, ConnectFlags, MQTTMessage, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from offload.ground.errors import Denied, Misuse, OffloadError, TryAgain
from offload_mqtt.address import BrokerAddress

__all__ = ["MqttConnection"]

ANSWER_SECONDS: Final = 20.0
"""The longest time for the answer to CONNECT, SUBSCRIBE and the like."""

KEEPALIVE_SECONDS: Final = 30
TEND_SECONDS: Final = 5.0
PACKETS_A_TURN: Final = 1000
"""The packets that are read before other tasks of the event loop have a turn."""

REFUSED: Final = {"Bad user name or password", "Not authorized"}
"""The answers to CONNECT after which only a person can help."""

LOGIN: Final = "set OFFLOAD_MQTT_USER and OFFLOAD_MQTT_PASSWORD, or --password-file"

Receive = Callable[[MQTTMessage], None]


class MqttConnection:
    """An open connection. `lost` ends, with an error, when the broker or the network closes it."""

    def __init__(self, client: Client, address: BrokerAddress, receive: Receive) -> None:
        self.address = address
        self.lost: asyncio.Future[OffloadError] = asyncio.get_running_loop().create_future()
        self.session_present = False
        self._client, self._receive = client, receive
        self._loop = asyncio.get_running_loop()
        self._events = 0
        self._descriptor: int | None = None
        self._is_paused = self._is_reading = False
        self._tending: asyncio.TimerHandle | None = None
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._published: Callable[[int], None] = lambda number: None

    @classmethod
    async def open(
        cls,
        address: BrokerAddress,
        *,
        client_id: str,
        clean_session: bool = False,
        receive: Receive = lambda message: None,
    ) -> Self:
        """Connect and log in. `receive` is called with each message that comes.

        Raises `Denied` if the broker refuses the login, `Misuse` if it refuses the client id, and `TryAgain`
        if it cannot be reached, does not answer, or refuses the connection otherwise.
        """
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=clean_session,
            protocol=MQTTv311,
            reconnect_on_failure=False,  # it would do so within a call of ours, and block the event loop
            manual_ack=True,
        )
        client.max_inflight_messages_set(0)  # the callers bound what they send
        if address.user is not None:
            client.username_pw_set(address.user, address.password)
        if address.tls is not None:
            client.tls_set_context(address.tls)
        connection = cls(client, address, receive)
        connection._listen()
        try:
            await asyncio.to_thread(client.connect, address.host, address.port, KEEPALIVE_SECONDS)
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
            reason = getattr(exc, "strerror", None) or exc
            raise TryAgain(f"{address.url} cannot be reached: {reason}") from exc
        connection._attach()
        try:
            await connection._answered(connection._connected, "CONNECT")
        except BaseException:
            await connection.aclose()
            raise
        return connection

    async def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe with QoS 1. Raises `Denied` if the broker refuses a filter."""
        for each in filters:  # one by one: RabbitMQ closes a connection that may not read one of them
            number = self._sent(self._client.subscribe(each, qos=1))
            try:
                await self._answered(self._answer(number), f"SUBSCRIBE of {each!r}")
            except Denied as exc:
                raise Denied(f"{self.address.url} refuses the filter {each!r}: grant its reading") from exc

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """End subscriptions."""
        for each in filters:
            number = self._sent(self._client.unsubscribe(each))
            await self._answered(self._answer(number), f"UNSUBSCRIBE of {each!r}")

    def acknowledge(self, numbers: Sequence[int]) -> None:
        """Acknowledge messages of QoS 1 of this connection. After its loss, nothing is sent."""
        if not self.lost.done():
            for number in numbers:
                self._client.ack(number, 1)
            self._client.loop_write()

    def publish(self, topic: str, payload: bytes, *, retain: bool, confirmed: Callable[[int], None]) -> int:
        """Send a message with QoS 1. Return the number that `confirmed` will get. Raises `TryAgain`."""
        self._published = confirmed
        info = self._client.publish(topic, payload, qos=1, retain=retain)
        return self._sent((info.rc, info.mid))

    def flush(self) -> None:
        """Write what waits, as far as the socket takes it."""
        if not self.lost.done():
            self._client.loop_write()

    def pause(self) -> None:
        """Read nothing from now on, until `resume`."""
        self._is_paused = True
        self._stop_reading()

    def resume(self) -> None:
        """Read again."""
        if self._is_paused and not self.lost.done():
            self._is_paused = False
            self._start_reading()
            self._loop.call_soon(self._read)  # TLS may have bytes that no selector sees

    async def aclose(self) -> None:
        """Send what waits, and then DISCONNECT, so that a session is kept in order. Idempotent."""
        if not self.lost.done():
            self._client.disconnect()
            self._client.loop_write()
            if not self.lost.done():
                await asyncio.wait([self.lost], timeout=ANSWER_SECONDS)
        self._end("it was closed")

    def _listen(self) -> None:
        client = self._client
        client.on_connect = self._on_connect
        client.on_disconnect = lambda _client, _data, _flags, reason, _properties: self._end(
            "it does not answer PING" if "keep alive" in str(reason).lower() else ""
        )
        client.on_subscribe = self._on_answer
        client.on_unsubscribe = self._on_answer
        client.on_publish = self._on_publish
        client.on_message = self._on_message

    def _attach(self) -> None:
        """Read and write on the event loop from now on."""
        client, loop, sock = self._client, self._loop, self._client.socket()
        if sock is None:
            return  # closed already, and `lost` says so
        descriptor = self._descriptor = sock.fileno()
        # Not before: during `connect` they would be called in its thread.
        client.on_socket_register_write = lambda *_: loop.add_writer(descriptor, client.loop_write)
        client.on_socket_unregister_write = lambda *_: _done(loop.remove_writer(descriptor))
        client.on_socket_close = lambda *_: self._detach()
        self._start_reading()
        self._tend()

    def _detach(self) -> None:
        """Leave the event loop, before the descriptor is closed, and perhaps used for something else."""
        if self._descriptor is not None:
            self._stop_reading()
            self._loop.remove_writer(self._descriptor)
            self._descriptor = None

    def _start_reading(self) -> None:
        if self._descriptor is not None:
            self._loop.add_reader(self._descriptor, self._read)
            self._is_reading = True

    def _stop_reading(self) -> None:
        if self._is_reading and self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
        self._is_reading = False

    def _read(self) -> None:
        """Read the packets that have arrived. One call of paho reads one packet, or a part of it."""
        pending = getattr(self._client.socket(), "pending", lambda: 0)
        try:
            for _ in range(PACKETS_A_TURN):
                if not self._is_reading:  # paused, or closed
                    return
                before = self._events
                self._client.loop_read()
                if self._events == before and not (self._is_reading and pending()):
                    return
        except Exception as exc:  # noqa: BLE001 - paho raises anything for packets that break the protocol
            self._end(f"it sent no MQTT: {type(exc).__name__}")
            return
        self._loop.call_soon(self._read)

    def _tend(self) -> None:
        """Send PING when it is due, and end a connection that does not answer it."""
        if self.lost.done():
            return
        if not self._is_paused:  # the answer to PING would not be read
            self._client.loop_misc()
        self._tending = self._loop.call_later(TEND_SECONDS, self._tend)

    def _on_connect(
        self,
        _client: Client,
        _data: object,
        flags: ConnectFlags,
        reason: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        if not reason.is_failure:
            self.session_present = flags.session_present
            _settle(self._connected, None)
            return
        text = f"{self.address.url} refuses the connection: {str(reason).lower()}"
        if str(reason) in REFUSED:
            _settle(self._connected, Denied(f"{text}; {LOGIN}"))
        elif str(reason) == "Client identifier not valid":
            _settle(self._connected, Misuse(f"{text}; give another one by --client-id"))
        else:
            _settle(self._connected, TryAgain(text))

    def _on_answer(
        self, _client: Client, _data: object, number: int, reasons: Sequence[ReasonCode], *_: object
    ) -> None:
        refused = any(each.is_failure for each in reasons)
        _settle(self._answer(number), Denied("refused") if refused else None)

    def _on_message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        self._events += 1
        self._receive(message)

    def _on_publish(self, _client: Client, _data: object, number: int, *_: object) -> None:
        self._events += 1
        self._published(number)

    def _answer(self, number: int) -> asyncio.Future[None]:
        # An answer may come before anyone waits for it.
        return self._answers.setdefault(number, self._loop.create_future())

    async def _answered(self, answer: asyncio.Future[None], to: str) -> None:
        waits: list[asyncio.Future[Any]] = [answer, self.lost]
        await asyncio.wait(waits, timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return await answer
        if self.lost.done():
            raise self.lost.result()
        raise TryAgain(f"{self.address.url} has not answered {to} within {ANSWER_SECONDS:g} s")

    def _sent(self, result: tuple[MQTTErrorCode, int | None]) -> int:
        code, number = result
        if code != MQTTErrorCode.MQTT_ERR_SUCCESS or number is None:
            raise TryAgain(f"{self.address.url}: the connection is lost")
        return number

    def _end(self, reason: str) -> None:
        if self._tending is not None:
            self._tending.cancel()
        if not self.lost.done():
            why = f": {reason}" if reason else ""
            self.lost.set_result(TryAgain(f"{self.address.url} closed the connection{why}"))
        self._detach()
        if (sock := self._client.socket()) is not None:
            sock.close()


def _done(_: object) -> None:
    """Return nothing, as paho's callbacks do."""


def _settle(answer: asyncio.Future[None], error: OffloadError | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)
