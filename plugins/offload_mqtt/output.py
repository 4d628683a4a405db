"""Where the command `offload mqtt replay` puts messages: on stdout, or to a broker again."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np

from offload.cli.kit.output import print_note
from offload.contracts.decoder import Decoder
from offload.ground.errors import Misuse
from offload.read.batches import PartRun
from offload.showing.message_output import MessageOutput
from offload_mqtt.address import BrokerAddress
from offload_mqtt.connection import MqttConnection
from offload_mqtt.reading import ReplayRun
from offload_mqtt.topic_record import RecordKind
from offload_mqtt.topics import check_topic

__all__ = ["Output", "Printed", "Publisher"]

UNCONFIRMED_MAX: Final = 1000


class Output(ABC):
    """Takes messages in order."""

    @abstractmethod
    async def write(self, run: ReplayRun) -> None:
        """Take some messages. They may be written later."""

    @abstractmethod
    async def flush(self) -> None:
        """Return when all messages are where they belong."""


class Printed(Output):
    """Lines on stdout, as `offload read` prints them."""

    def __init__(self, lines: MessageOutput, *, at_once: bool) -> None:
        """`at_once` prints each run when it comes, for somebody who waits for it."""
        self._lines, self._at_once = lines, at_once

    async def write(self, run: ReplayRun) -> None:
        """Print the messages."""
        self._lines.write(PartRun(run.at.part, run.run), None)
        if self._at_once:
            self._lines.flush()

    async def flush(self) -> None:
        """Print what was kept."""
        self._lines.flush()


class Publisher(Output):
    """Publishes to a broker with QoS 1, without the retain flag: what is history must not replace a state."""

    def __init__(self, connection: MqttConnection, bodies: Decoder) -> None:
        """`bodies` finds the bodies of AMQP messages."""
        self._connection, self._bodies = connection, bodies
        self._waiting = set[int]()
        self._confirmed = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, address: BrokerAddress, client_id: str, bodies: Decoder
    ) -> AsyncIterator[Publisher]:
        """Yield a publisher on a new connection. Raises as `MqttConnection.open` does."""
        connection = await MqttConnection.open(address, client_id=client_id, clean_session=True)
        try:
            yield cls(connection, bodies)
        finally:
            await connection.aclose()

    async def write(self, run: ReplayRun) -> None:
        """Publish the messages. A topic that MQTT does not allow is left out, with a note."""
        if not len(run):
            return
        found = run.columns
        payloads, is_amqp = found.rests.to_list(), found.kinds == RecordKind.AMQP
        for row, body in zip(
            np.flatnonzero(is_amqp).tolist(),
            self._bodies.bodies([payloads[row] for row in np.flatnonzero(is_amqp)]),
            strict=True,
        ):
            payloads[row] = body
        for topic, payload in zip(found.topics, payloads, strict=True):
            try:
                check_topic(topic)
            except Misuse as error:
                print_note(f"a message is not published: {error}")
                continue
            await self._wait(UNCONFIRMED_MAX - 1)
            number = self._connection.publish(
                topic.decode(), payload, retain=False, confirmed=self._on_confirmed
            )
            self._waiting.add(number)
        self._connection.flush()

    async def flush(self) -> None:
        """Return when the broker has confirmed all messages. Raises `TryAgain` if the connection is lost."""
        self._connection.flush()
        await self._wait(0)

    def _on_confirmed(self, number: int) -> None:
        self._waiting.discard(number)
        self._confirmed.set()

    async def _wait(self, most: int) -> None:
        while len(self._waiting) > most:
            self._confirmed.clear()
            waiting = asyncio.ensure_future(self._confirmed.wait())
            either: list[asyncio.Future[Any]] = [waiting, self._connection.lost]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self._connection.lost.done():
                raise self._connection.lost.result()
