"""A model of what RocketMQ's store answers about one queue, written from its documents, with its mistakes.

Each mistake is a field of `Mistakes`. Without any of them, the model says what is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offload_rocketmq.units import tag_code

UNITS_IN_FILE = 100
SIZE_BYTES_MAX = 256 * 1024
"""The setting `maxTransferBytesOnMessageInMemory` of the broker that was asked."""

STATUSES = {
    "FOUND": "FOUND",
    "NO_MATCHED_MESSAGE": "NO_MATCHED_MSG",
    "NO_MESSAGE_IN_QUEUE": "OFFSET_ILLEGAL",
    "OFFSET_TOO_SMALL": "OFFSET_ILLEGAL",
    "OFFSET_OVERFLOW_ONE": "NO_NEW_MSG",
    "OFFSET_OVERFLOW_BADLY": "OFFSET_ILLEGAL",
}
"""What a client of RocketMQ calls the statuses of its store."""


@dataclass(frozen=True)
class Mistakes:
    """What a reader of RocketMQ does otherwise."""

    tags_by_hash: bool = False
    """It compares the hashes of tags."""
    ends_with_file: bool = False
    """A pull ends where a file of the consume queue ends."""
    size_tested_late: bool = False
    """The message that exceeds the size is delivered, too."""
    upper_is_last_before: bool = False
    """UPPER is the last message at or before the time, or the first one."""


LOCAL = Mistakes(tags_by_hash=True, ends_with_file=True, upper_is_last_before=True)
TIER = Mistakes(tags_by_hash=True, size_tested_late=True)


@dataclass(frozen=True)
class Stored:
    """What the model knows of a message."""

    offset: int
    size: int
    store_ms: int
    tag: str | None


@dataclass(frozen=True)
class Queue:
    """Messages with offsets that follow each other, and the offsets [first, end)."""

    messages: Sequence[Stored]
    first: int
    end: int
    mistakes: Mistakes = Mistakes()

    def pull(
        self, offset: int, count: int, tags: str, size_max: int = SIZE_BYTES_MAX
    ) -> tuple[str, int, list[int]]:
        """Return status, next offset and offsets."""
        if self.end == 0:
            return "NO_MESSAGE_IN_QUEUE", offset, []
        if offset < self.first:
            return "OFFSET_TOO_SMALL", self.first, []
        if offset >= self.end:
            return "OFFSET_OVERFLOW_ONE" if offset == self.end else "OFFSET_OVERFLOW_BADLY", self.end, []
        found, size, at = list[int](), 0, offset
        while at < self.end and len(found) < count:
            if self.mistakes.ends_with_file and at > offset and at % UNITS_IN_FILE == 0:
                break
            message = self.messages[at - self.first]
            if self._matches(message, tags):
                size += message.size
                if found and size > size_max and not self.mistakes.size_tested_late:
                    break
                found.append(at)
            at += 1
            if size >= size_max and self.mistakes.size_tested_late:
                break
        return "FOUND" if found else "NO_MATCHED_MESSAGE", at, found

    def _matches(self, message: Stored, tags: str) -> bool:
        if tags == "*":
            return True
        wanted = [tag.strip() for tag in tags.split("||")]
        if self.mistakes.tags_by_hash:
            return tag_code(message.tag or "") in map(tag_code, wanted)
        return message.tag in wanted

    def at_time(self, ms: int, boundary: str) -> int:
        """Return the offset of a time. Store times ascend."""
        late = [each.offset for each in self.messages if each.store_ms >= ms]
        lower = late[0] if late else self.end
        equal = [each.offset for each in self.messages if each.store_ms == ms]
        if boundary == "lower":
            return lower
        if self.mistakes.upper_is_last_before:
            return max([each.offset for each in self.messages if each.store_ms <= ms], default=self.first)
        return equal[-1] if equal else lower
