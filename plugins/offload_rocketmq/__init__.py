"""RocketMQ: the local store of a broker as a source, and the messages in its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_rocketmq.record import RecordColumns

__all__ = ["RecordColumns"]

_HOMES = {"RecordColumns": "offload_rocketmq.record"}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
