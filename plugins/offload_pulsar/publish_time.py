"""The time at which the messages of an entry were published."""

from __future__ import annotations

from offload.contracts.store import Buffer
from offload.ground.errors import Corrupt
from offload_pulsar.messages import CHECKSUM_OF_ENTRY, PulsarEntry

__all__ = ["publish_ms"]


def publish_ms(entry: Buffer, *, where: str) -> int | None:
    """Return the time in milliseconds since 1970, or None if the entry is no message of Pulsar.

    A batch has one time, that of its sending. Raises `Corrupt` if the entry's own checksum is wrong.
    """
    try:
        return PulsarEntry.decode(entry, where=where).publish_ms
    except Corrupt as error:
        if error.what == CHECKSUM_OF_ENTRY:
            raise
        return None
