"""The identity of a process that follows streams, by which it recognizes writers of its own earlier lives.

A process that was killed leaves roots that say that its writer works. Others cannot know that it is dead, so
they wait. The next process with the same identity knows it, because no two of them run at a time: whoever
makes an `Instance` holds a lock for as long as it uses it (`service.instance_file`).

The identity is in the writer's UUID, so the format of the roots does not know of it:

    48 bits    the tag: the start of a hash of what makes the process itself
    4 bits     8, the version of UUIDs whose other bits have no fixed meaning (RFC 9562, section 5.8)
    74 bits    random for each claim, and the 2 bits of the variant

Invariants:

- Nothing about safety depends on a tag. A wrong answer costs a claim that fences a writer that works.
- A process that meets a claim of its identity that it did not make, after one of its own, knows that another
  one lives with that identity. From then on it treats such writers as those of strangers.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from typing import Final, Self
from uuid import UUID

__all__ = ["Instance"]


INSTANCE_TAG_SIZE_BYTES: Final = 6

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Instance:
    """The identity of this process, and what it knows about others that have it. For one event loop."""

    tag: bytes
    """The first `INSTANCE_TAG_SIZE_BYTES` bytes of each writer's UUID."""
    is_shared: bool = False
    """True if another process has this identity and lives."""
    _made: set[UUID] = field(default_factory=set)
    """The writers of this process. There are few: one for each claim."""

    @classmethod
    def of(cls, *facts: bytes) -> Self:
        """Return the identity that these facts make, in this order."""
        digest = hashlib.sha256(b"".join(b"%d:%s" % (len(each), each) for each in facts))
        return cls(digest.digest()[:INSTANCE_TAG_SIZE_BYTES])

    def fresh_writer(self, random: UUID) -> UUID:
        """Return the UUID of a new writer of this process. It is as random as `random`, but for the tag."""
        raw = bytearray(self.tag + random.bytes[INSTANCE_TAG_SIZE_BYTES:])
        raw[6] = 0x80 | raw[6] & 0x0F
        raw[8] = 0x80 | raw[8] & 0x3F
        writer = UUID(bytes=bytes(raw))
        self._made.add(writer)
        return writer

    def is_of_another(self, writer: UUID) -> bool:
        """Return True if another process with this identity made this writer, in an earlier life or now."""
        has_tag = writer.version == 8 and writer.bytes.startswith(self.tag)
        return has_tag and writer not in self._made

    def note_shared(self, stream: str) -> None:
        """Note that another living process with this identity has claimed `stream`. One line of the log."""
        if not self.is_shared:
            self.is_shared = True
            _log.error(
                "stream %r: another process claims streams with the identity of this one, so it was copied: "
                "nothing is lost, and this process no longer takes over at once; give each process an "
                "`instance` of its own, and restart them",
                stream,
            )
