"""MQTT: topics and their filters, and the replay of a stream's messages by topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_mqtt.topics import TopicFilter, check_topic, intersection, match, subset

__all__ = ["TopicFilter", "check_topic", "intersection", "match", "subset"]

_HOMES = {
    "TopicFilter": "offload_mqtt.topics",
    "check_topic": "offload_mqtt.topics",
    "intersection": "offload_mqtt.topics",
    "match": "offload_mqtt.topics",
    "subset": "offload_mqtt.topics",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
