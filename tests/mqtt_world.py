"""A publisher of numbered MQTT messages that outlives its broker, and what an archive has of them.

The publisher is paho with a session of its own, so it sends again what no broker confirmed. Message `i` has
the topic `site/S/metric/M` and `i` in its payload.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Self

from log_contract import records_of
from offload_mqtt.topic_record import columns_of
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion
from ready import ReadyCommand

from offload.log.folder_log import FolderLog
from offload.model.record_columns import RecordBytes

TOPICS = 20


def topic_of(number: int) -> str:
    """Return the topic of a message."""
    return f"site/{number % TOPICS}/metric/{number % 3}"


class Publisher:
    """Publishes with QoS 1 at a rate, from a thread, until it is stopped."""

    def __init__(self, port: int, *, rate: float, topic_of: Callable[[int], str] = topic_of) -> None:
        self._client = Client(
            CallbackAPIVersion.VERSION2, client_id="publisher", clean_session=False, reconnect_on_failure=True
        )
        self._client.reconnect_delay_set(1, 1)
        self._client.max_inflight_messages_set(1000)
        self._client.connect("127.0.0.1", port)
        self._topic_of, self._rate = topic_of, rate
        self._client.on_publish = lambda *_: self._confirm()
        self._stopping = threading.Event()
        self.published = self.confirmed = 0
        self._thread = threading.Thread(target=self._publish)

    def __enter__(self) -> Self:
        self._client.loop_start()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self, timeout_seconds: float = 60) -> None:
        """Publish no more, and wait until all is confirmed."""
        self._stopping.set()
        self._thread.join()
        until(lambda: self.confirmed == self.published, timeout_seconds)
        self._client.disconnect()
        self._client.loop_stop()

    def _publish(self) -> None:
        began = time.monotonic()
        while not self._stopping.is_set():
            due = int((time.monotonic() - began) * self._rate)
            while self.published < due and not self._stopping.is_set():
                number = self.published
                self._client.publish(self._topic_of(number), b"%d" % number, qos=1)
                self.published += 1
            time.sleep(0.005)

    def _confirm(self) -> None:
        self.confirmed += 1


def publish(port: int, messages: list[tuple[str, bytes]], *, retain: bool = False, qos: int = 1) -> None:
    """Publish messages, and wait until the broker has confirmed them."""
    client = Client(CallbackAPIVersion.VERSION2)
    client.max_inflight_messages_set(0)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        sent = [client.publish(topic, payload, qos=qos, retain=retain) for topic, payload in messages]
        for each in sent:
            each.wait_for_publish(30)
            assert each.is_published()
    finally:
        client.disconnect()
        client.loop_stop()


def archived(folder: Path, stream: str = "mqtt") -> list[tuple[str, bytes]]:
    """Return topic and payload of every record of a stream."""

    async def read() -> list[bytes]:
        async with await FolderLog.open(folder / stream) as log:
            return await records_of(log)

    found = columns_of(RecordBytes.of(asyncio.run(read())))
    return [
        (topic.decode(), payload) for topic, payload in zip(found.topics, found.rests.to_list(), strict=True)
    ]


def is_in_order(messages: list[tuple[str, bytes]]) -> bool:
    """Return whether the first occurrences of each topic's messages are in the order of their numbers."""
    newest: dict[str, int] = defaultdict(lambda: -1)
    seen = set[int]()
    for topic, payload in messages:
        number = int(payload)
        if number not in seen:
            seen.add(number)
            if number < newest[topic]:
                return False
            newest[topic] = number
    return True


def archiving(*words: object) -> ReadyCommand:
    """Start `offload mqtt archive`, and return when the broker has its subscriptions."""
    running = ReadyCommand("mqtt", "archive", *words)
    until(lambda: "archiving" in running.stderr or running.poll() is not None)
    return running


def until(is_so: Callable[[], bool], timeout_seconds: float = 30) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_seconds
    while not is_so():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)
