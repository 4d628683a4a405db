"""One queue as its store knows it: its places, and the records that are in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from offload_queue.log_records import MessageTags
from offload_queue.positions import QueuePositions

__all__ = ["StoredQueue"]


@dataclass(slots=True, eq=False)
class StoredQueue:
    """A declared queue of a store."""

    number: int
    name: str
    places: QueuePositions
    records: dict[int, bytes] = field(default_factory=dict)
    """Records of ready messages, by tag. RabbitMQ calls such messages alpha."""
    ram_size_bytes: int = 0
    """The size of `records`."""
    is_deleted: bool = False

    def keep(self, first: int, records: Sequence[bytes], size_bytes: int) -> None:
        """Keep the records of new messages."""
        self.records.update(zip(range(first, first + len(records)), records, strict=True))
        self.ram_size_bytes += size_bytes

    def let_go(self, tags: MessageTags) -> None:
        """Forget records."""
        if self.records:
            gone = map(self.records.pop, tags.tolist(), repeat(b""))
            self.ram_size_bytes -= sum(map(len, gone))

    def take_back(self, end: int) -> None:
        """Forget the messages from a tag on: they were not written."""
        self.let_go(self.places.near.cut(end))
        self.places.unacked.cut(end)
        self.places.given = min(self.places.given, end)

    def local_below(self, end: int, moved: int) -> MessageTags:
        """Return the tags of ready and unacknowledged messages that are in the log, below `end`."""
        unacked = self.places.unacked.below(end)
        both = np.concatenate([self.places.near.below(end), unacked[unacked >= moved]])
        both.sort()
        return both
