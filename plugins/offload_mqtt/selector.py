"""The selection of records by topic: which chunks can hold a match, and which records are one.

A filter is asked once for each different topic. A record matches only if it has a topic that MQTT allows in a
message: the sorted copy of any other record has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.contracts.decoder import RecordSelector
from offload.ground.errors import Misuse
from offload.model.record_columns import RecordBytes
from offload_mqtt.key_scan import of_filters
from offload_mqtt.structure import decode_structures
from offload_mqtt.topic_record import columns_of
from offload_mqtt.topics import TopicFilter, check_topic, match

__all__ = ["RANGES", "TopicSelector"]

RANGES: Final = "ranges=mqtt:topic"
"""The SPEC of the indexes that say which topics are in which chunks."""

TOPICS_KEPT_MAX: Final = 2**17
"""Topics whose answer is kept. A stream may have any number of them."""


class TopicSelector(RecordSelector):
    """The records whose topic one of some filters matches."""

    def __init__(self, filters: Sequence[TopicFilter]) -> None:
        """Raises `Misuse` if there is no filter."""
        if not filters:
            raise Misuse("give one topic filter or more; # is all topics")
        self.filters: Final = filters
        self._known = dict[bytes, bool]()

    @property
    def ranges(self) -> str:
        """The SPEC of the index."""
        return RANGES

    def candidates(self, about: bytes, keys: Sequence[bytes]) -> Sequence[int]:
        """Return the chunks of a ledger that can hold a match."""
        found = of_filters(keys, decode_structures(about), self.filters)
        return sorted({chunk for chunks in found.values() for chunk in chunks})

    def matches(self, records: RecordBytes) -> npt.NDArray[np.bool_]:
        """Return which records have a topic that matches."""
        return self.picked(columns_of(records).topics)

    def picked(self, topics: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Return which of these topics match."""
        new = {*topics}.difference(self._known)
        if len(self._known) + len(new) > TOPICS_KEPT_MAX:
            self._known, new = {}, {*topics}
        self._known |= {topic: self.wants(topic) for topic in new}
        return np.fromiter(map(self._known.__getitem__, topics), np.bool_, len(topics))

    def wants(self, topic: bytes) -> bool:
        """Return whether a filter matches a topic."""
        if not any(match(topic, each) for each in self.filters):
            return False
        try:
            check_topic(topic)
        except Misuse:
            return False
        return True
