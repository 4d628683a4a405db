"""RocketMQ: the local store of a broker as a source, and the messages in its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_rocketmq.record import RecordColumns
    from offload_rocketmq.source import RocketmqSource, RocketmqStream

__all__ = ["RecordColumns", "RocketmqSource", "RocketmqStream"]

_HOMES = {
    "RecordColumns": "offload_rocketmq.record",
    "RocketmqSource": "offload_rocketmq.source",
    "RocketmqStream": "offload_rocketmq.source",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
