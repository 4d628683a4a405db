"""RocketMQ: the local store of a broker as a source, the messages in its records, and a reader of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_rocketmq.queue_reader import PullAnswer, PullStatus, QueueMessage, QueueReader, ReadLevel
    from offload_rocketmq.record import RecordColumns
    from offload_rocketmq.source import RocketmqSource, RocketmqStream

__all__ = [
    "PullAnswer",
    "PullStatus",
    "QueueMessage",
    "QueueReader",
    "ReadLevel",
    "RecordColumns",
    "RocketmqSource",
    "RocketmqStream",
]

_HOMES = {
    "PullAnswer": "offload_rocketmq.queue_reader",
    "PullStatus": "offload_rocketmq.queue_reader",
    "QueueMessage": "offload_rocketmq.queue_reader",
    "QueueReader": "offload_rocketmq.queue_reader",
    "ReadLevel": "offload_rocketmq.queue_reader",
    "RecordColumns": "offload_rocketmq.record",
    "RocketmqSource": "offload_rocketmq.source",
    "RocketmqStream": "offload_rocketmq.source",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
