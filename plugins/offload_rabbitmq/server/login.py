"""The commands before a connection is open: who the peer is, whether it may enter, and what both agree on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from offload_rabbitmq.server.connection import (
    ANY_STEP,
    FIRST_FRAME_SIZE_BYTES_MAX,
    FRAME_SIZE_BYTES_MAX,
    LoginStep,
    ServedConnection,
    StreamCommand,
)
from offload_rabbitmq.stream_frames import Code, Frame, Key, encode

HEARTBEAT_SECONDS: Final = 60

SERVER_PROPERTIES: Final = {
    "product": "ledger-offload",
    "version": "3.13.0",  # of the protocol: clients decide by it what they may ask for
    "platform": "Python",
    "information": "Reads archived streams. Nothing can be published here.",
}

_log: Final = logging.getLogger(__name__)


def _peer_properties(connection: ServedConnection, frame: Frame) -> None:
    connection.answer(frame, properties=SERVER_PROPERTIES)
    connection.enter(LoginStep.AUTHENTICATING)


def _sasl_handshake(connection: ServedConnection, frame: Frame) -> None:
    connection.answer(frame, mechanisms=connection.shared.logins.mechanisms)
    if connection.step is not LoginStep.AUTHENTICATING:  # RabbitMQ answers first, too
        connection.hang_up()


async def _sasl_authenticate(connection: ServedConnection, frame: Frame) -> None:
    shared = connection.shared
    code = await shared.logins.may_enter(frame["mechanism"], frame["data"], host=connection.host)
    connection.answer(frame, code)
    if code != Code.OK:
        shared.counts.refused += 1
        _log.warning("%s: the login was refused (code %d)", connection.peer, code)
        connection.hang_up()
        return
    connection.enter(LoginStep.TUNING)
    most, seconds = FRAME_SIZE_BYTES_MAX, HEARTBEAT_SECONDS
    connection.send(encode(Key.TUNE, frame_size_bytes_max=most, heartbeat_seconds=seconds))


def _tune(connection: ServedConnection, frame: Frame) -> None:
    wanted = frame["frame_size_bytes_max"] or FRAME_SIZE_BYTES_MAX
    # RabbitMQ does not hold clients to a maximum that is smaller than the first one.
    connection.agreed_size_bytes_max = min(max(wanted, FIRST_FRAME_SIZE_BYTES_MAX), FRAME_SIZE_BYTES_MAX)
    connection.keep_alive(frame["heartbeat_seconds"])


def _open(connection: ServedConnection, frame: Frame) -> None:
    connection.virtual_host = frame["virtual_host"]
    host, port = connection.shared.advertised
    connection.answer(frame, properties={"advertised_host": host, "advertised_port": str(port)})
    connection.enter(LoginStep.OPEN)


LOGIN: Final[Mapping[Key, StreamCommand]] = {
    Key.PEER_PROPERTIES: StreamCommand(_peer_properties, (LoginStep.CONNECTED,)),
    Key.SASL_HANDSHAKE: StreamCommand(_sasl_handshake, ANY_STEP),
    Key.SASL_AUTHENTICATE: StreamCommand(_sasl_authenticate, (LoginStep.AUTHENTICATING,)),
    Key.TUNE: StreamCommand(_tune, (LoginStep.TUNING,)),
    Key.OPEN: StreamCommand(_open, (LoginStep.TUNING,)),
}
