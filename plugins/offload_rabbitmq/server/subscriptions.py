"""The subscriptions of one connection, by their numbers. A number is one byte, so there are 256 at most."""

from __future__ import annotations

import logging
from typing import Final

from offload.contracts.listener import ServedStream
from offload.ground.errors import Corrupt, OffloadError
from offload_rabbitmq.server.delivery import ChunkFilterOf, Subscription, explain
from offload_rabbitmq.server.outbox import Outbox
from offload_rabbitmq.server.state import ServerState
from offload_rabbitmq.stream_frames import Code, Frame, Key, encode

_log: Final = logging.getLogger(__name__)


class Subscriptions:
    """What a connection delivers. They end with it."""

    def __init__(self, shared: ServerState, outbox: Outbox) -> None:
        self._shared, self._outbox = shared, outbox
        self._by_number: dict[int, Subscription] = {}

    def __contains__(self, number: int) -> bool:
        """Return True if the number is in use."""
        return number in self._by_number

    def get(self, number: int) -> Subscription | None:
        """Return a subscription."""
        return self._by_number.get(number)

    def start(self, frame: Frame, reader: ServedStream, *, version: int) -> None:
        """Begin what a request asks for. `version` is that of the frames that deliver."""
        made = self._by_number[frame["subscription"]] = Subscription(
            frame["subscription"],
            frame["stream"],
            offset=frame["offset"],
            credit=frame["credit"],
            version=version,
            wanted=ChunkFilterOf(frame["properties"]),
            outbox=self._outbox,
            counts=self._shared.counts,
            env=self._shared.env,
        )
        self._shared.keep(made.start(reader, self._ended))

    def wake(self) -> None:
        """Let all of them look again whether a chunk may be sent."""
        for each in self._by_number.values():
            each.wake()

    def end(self, number: int) -> None:
        """End one, whose number is in use."""
        self._by_number.pop(number).cancel()

    def end_all(self) -> None:
        """End all of them."""
        for number in [*self._by_number]:
            self.end(number)

    def _ended(self, ended: Subscription, error: Exception | None) -> None:
        """Tell the client that the stream is gone: then all of its subscriptions of this stream are."""
        if error is not None:
            self._shared.counts.damaged += isinstance(error, Corrupt)
            self._shared.counts.problems[ended.name] = explain(ended.name, error)
            _log.error(
                "%s", explain(ended.name, error), exc_info=not isinstance(error, OffloadError) and error
            )
        if self._by_number.get(ended.number) is ended:
            for number in [n for n, each in self._by_number.items() if each.name == ended.name]:
                self.end(number)
            update = encode(Key.METADATA_UPDATE, code=Code.STREAM_NOT_AVAILABLE, stream=ended.name)
            self._outbox.send(update)
