"""The contract of a decoder, which turns the bytes of a record into values. Plugins declare decoders by name.

Invariant: a decoder never fails on a record. A record of another format stays raw bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Decoded", "Decoder"]


class Decoded(NamedTuple):
    """A decoded record."""

    value: Any
    """Bytes, text, or any value that JSON can represent."""

    sections: Mapping[str, Any]
    """The other parts of the record, each ready for JSON, in the order in which they are printed."""


class Decoder(ABC):
    """A decoder. Each command makes one by calling the declared target without arguments."""

    @abstractmethod
    def bodies(self, records: Sequence[bytes]) -> list[bytes]:
        """Return the value of each record as bytes. A value that is neither bytes nor text is JSON."""

    @abstractmethod
    def decode(self, records: Sequence[bytes]) -> list[Decoded]:
        """Return each record with its sections. `sections` has the same keys for every record."""

    def keys(self, records: Sequence[bytes]) -> list[bytes | None]:
        """Return the key by which a broker routes or partitions each record. None if a record has none."""
        return [None] * len(records)

    def headers(self, records: Sequence[bytes]) -> list[list[tuple[str, bytes]]]:
        """Return the headers that an application wrote: text as UTF-8, other values as JSON, in order."""
        return [[] for _ in records]
