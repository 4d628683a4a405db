"""MQTT: topics and their filters, an archive of a broker, and the replay of a stream's messages by topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_mqtt.iterators import HistoryTrimmed, ReplayUnit
    from offload_mqtt.origin import ReplayOrigin
    from offload_mqtt.reading import ReplayMessage, ReplayRun
    from offload_mqtt.replay import Replay, Replayed
    from offload_mqtt.selector import TopicSelector
    from offload_mqtt.topics import TopicFilter, check_topic, intersection, match, subset

__all__ = [
    "HistoryTrimmed",
    "Replay",
    "ReplayMessage",
    "ReplayOrigin",
    "ReplayRun",
    "ReplayUnit",
    "Replayed",
    "TopicFilter",
    "TopicSelector",
    "check_topic",
    "intersection",
    "match",
    "subset",
]

_HOMES = {
    "HistoryTrimmed": "offload_mqtt.iterators",
    "Replay": "offload_mqtt.replay",
    "ReplayMessage": "offload_mqtt.reading",
    "ReplayOrigin": "offload_mqtt.origin",
    "ReplayRun": "offload_mqtt.reading",
    "ReplayUnit": "offload_mqtt.iterators",
    "Replayed": "offload_mqtt.replay",
    "TopicFilter": "offload_mqtt.topics",
    "TopicSelector": "offload_mqtt.selector",
    "check_topic": "offload_mqtt.topics",
    "intersection": "offload_mqtt.topics",
    "match": "offload_mqtt.topics",
    "subset": "offload_mqtt.topics",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
