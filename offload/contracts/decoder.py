"""The contract of a decoder, which turns the bytes of a record into values. Plugins declare decoders by name.

Invariant: a decoder never fails on a record. A record of another format stays raw bytes.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from offload.ground.errors import Misuse
from offload.model.record_columns import ByteColumn, HeaderColumn, Integers, RecordBytes
from offload.model.value_text import value_text

__all__ = ["Decoded", "Decoder", "RecordSelector"]


class Decoded(NamedTuple):
    """A decoded record."""

    value: Any
    """Bytes, text, or any value that JSON can represent."""

    sections: Mapping[str, Any]
    """The other parts of the record, each ready for JSON, in the order in which they are printed."""


class RecordSelector(ABC):
    """A selection of records that a decoder knows, such as those of some topics."""

    @property
    @abstractmethod
    def ranges(self) -> str:
        """The SPEC of the index of ranges that helps to find them, such as `ranges=mqtt:topic`."""

    @abstractmethod
    def candidates(self, about: bytes, keys: Sequence[bytes]) -> Sequence[int]:
        """Return the numbers of the ranges of one ledger that can hold selected records, ascending.

        Range `i` has the keys from `keys[i]` to `keys[i + 1]`, and `about` explains keys, as
        `Decoder.range_keys` made them. Raises `Corrupt` if they are none of these.
        """

    @abstractmethod
    def matches(self, records: RecordBytes) -> npt.NDArray[np.bool_]:
        """Return which records are selected. No record makes it fail."""


class Decoder(ABC):
    """A decoder. Each command makes one by calling the declared target without arguments."""

    holds_several: ClassVar[bool] = False
    """True if one record may hold several messages. Such a decoder overrides `messages`."""

    has_timestamps: ClassVar[bool] = False
    """True if records may have times of their own. Such a decoder overrides `timestamps`."""

    has_range_keys: ClassVar[bool] = False
    """True if records are stored in the order of a key. Such a decoder overrides `range_keys`."""

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

    def timestamps(self, records: RecordBytes) -> Integers:
        """Return the time of each record in milliseconds since 1970, as the record itself states it.

        It is -1 if a record states none, and by default for every record. A record with several messages has
        one time. Not promised: that times ascend, or that they are near the time at which the broker stored
        the record. Producers write them.
        """
        return np.full(len(records), -1, np.int64)

    def messages(self, records: Sequence[bytes]) -> Iterable[tuple[int, Decoded]]:
        """Yield every message, in order, each with the number of its record in `records`.

        By default a record is one message, as `decode` returns it. A record has at least one. `sections` has
        the same keys for every message, which may be others than those of `decode`.
        """
        return enumerate(self.decode(records))

    def range_keys(self, terms: Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
        """Return bytes that explain the keys of a ledger, and the key of each of these terms.

        `terms` are those of the ledger's records, in order, without equal neighbours. One is empty if its
        record has none. Keys are the same in every process. They never fall if the ledger is in their order,
        and otherwise its records are not indexed.
        """
        raise NotImplementedError(f"{type(self).__name__} has no keys of ranges")

    def topic_selector(self, filters: Sequence[str]) -> RecordSelector:
        """Return the selection of the records whose topic one of these filters matches.

        Raises `Misuse` for a filter that is none, and by default: most records have no topic.
        """
        raise Misuse(f"{type(self).__name__} knows no topics")

    def columns(self, records: RecordBytes, names: Sequence[str]) -> Mapping[str, ByteColumn | HeaderColumn]:
        """Return columns of these records, by name. Each has one row for each record.

            body           as `bodies`
            key            as `keys`
            headers        as `headers`, a `HeaderColumn`
            value          the value of `decode` as JSON, as `offload read` prints it behind `"value":`
            other names    a section of `decode` as JSON

        By default the methods above make them. A decoder that can parse many records at once overrides this,
        for speed alone: the content stays the same.
        """
        found: dict[str, ByteColumn | HeaderColumn] = {}
        listed, decoded = records.to_list(), list[Decoded]()
        if not {*names} <= {"body", "key", "headers"}:
            decoded = self.decode(listed)
        for name in names:
            if name == "body":
                found[name] = ByteColumn.of(self.bodies(listed))
            elif name == "key":
                found[name] = ByteColumn.of(self.keys(listed))
            elif name == "headers":
                found[name] = HeaderColumn.of(self.headers(listed))
            elif name == "value":
                found[name] = ByteColumn.of([value_text(each.value).encode() for each in decoded])
            else:
                found[name] = ByteColumn.of([_json(each.sections[name]) for each in decoded])
        return found


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
