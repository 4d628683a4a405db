"""The contract of a decoder: a way to make more of a record than bytes. Plugins declare them by name.

Invariant: a decoder never fails on a record. What is not of its kind stays what it is: raw bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Decoded", "Decoder"]


class Decoded(NamedTuple):
    """A record, decoded."""

    value: Any
    """Bytes, text, or whatever JSON can hold."""

    sections: Mapping[str, Any]
    """What comes beside the value, each JSON-ready, in the order in which it is to be printed."""


class Decoder(ABC):
    """Made once per command by calling the declared target without arguments."""

    @abstractmethod
    def bodies(self, records: Sequence[bytes]) -> list[bytes]:
        """The value of each record as bytes; what is neither bytes nor text as JSON."""

    @abstractmethod
    def decode(self, records: Sequence[bytes]) -> list[Decoded]:
        """Each record with its sections. `sections` has the same keys for every record."""

    def keys(self, records: Sequence[bytes]) -> list[bytes | None]:
        """The key of each record, by which a broker routes or parts it; None where it has none."""
        return [None] * len(records)

    def headers(self, records: Sequence[bytes]) -> list[list[tuple[str, bytes]]]:
        """What an application wrote beside each record, in order: text as UTF-8, other values as JSON."""
        return [[] for _ in records]
