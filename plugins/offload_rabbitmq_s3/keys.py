"""The keys of the plugin's objects.

| object | key |
|---|---|
| fragment | `rabbitmq/stream/<stream>/data/<first offset>.<uid>.fragment` |
| group | `rabbitmq/stream/<stream>/metadata/<first offset>.<uid>.group`, `.kgroup` or `.mgroup` |
| root | `rabbitmq/stream/<stream>/metadata/root.<epoch>.<uid>.manifest` |

An offset has 20 decimal digits. A UID is 32 random bits in 8 hex digits: it makes the keys of two writers
differ. An epoch is a decimal number without leading zeros. `<stream>` is the name of the stream's folder on a
broker, which is never used twice. Every other key is a stranger's.

Invariant: `RabbitmqKey.parse` undoes `str`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from offload.model.entry import EntryKind

__all__ = ["STREAMS", "RabbitmqKey", "is_stream_id", "stream_prefix"]

STREAMS: Final = "rabbitmq/stream/"
"""The prefix of the folders of all streams."""

ENDINGS: Final = ("fragment", "group", "kgroup", "mgroup")
"""The ends of keys, by `EntryKind`."""

_STREAM_ID: Final = re.compile(r"[A-Za-z0-9_=-]{1,255}")
_KEY: Final = re.compile(
    r"rabbitmq/stream/(?P<stream>[A-Za-z0-9_=-]{1,255})/"
    r"(?:data/(?P<data>[0-9]{20})|metadata/(?P<metadata>[0-9]{20})|metadata/root\.(?P<epoch>0|[1-9][0-9]{0,19}))"
    r"\.(?P<uid>[0-9a-f]{8})\.(?P<ending>fragment|group|kgroup|mgroup|manifest)"
)


def is_stream_id(name: str) -> bool:
    """Return True if a stream of a broker can have this name."""
    return _STREAM_ID.fullmatch(name) is not None


def stream_prefix(stream: str) -> str:
    """Return the prefix of all keys of a stream. It ends with a slash: one name may begin with another."""
    return f"{STREAMS}{stream}/"


@dataclass(frozen=True, slots=True, order=True)
class RabbitmqKey:
    """The key of one object. `number` is the first offset, or the epoch of a root."""

    stream: str
    kind: EntryKind | None
    """None for a root."""

    number: int
    uid: int

    def __str__(self) -> str:
        """Return the key."""
        if self.kind is None:
            name = f"metadata/root.{self.number}.{self.uid:08x}.manifest"
        else:
            folder = "metadata" if self.kind else "data"
            name = f"{folder}/{self.number:020d}.{self.uid:08x}.{ENDINGS[self.kind]}"
        return stream_prefix(self.stream) + name

    @classmethod
    def parse(cls, key: str) -> RabbitmqKey | None:
        """Undo `str`. Return None for any other key."""
        found = _KEY.fullmatch(key)
        if found is None:
            return None
        kind = None if found["epoch"] is not None else EntryKind(_kind(found["ending"]))
        number = int(found["epoch"] or found["data"] or found["metadata"])
        parsed = cls(found["stream"], kind, number, int(found["uid"], 16))
        # A fragment below `metadata/`, or a number of more than 64 bits, is none of the plugin's.
        return parsed if number < 2**64 and str(parsed) == key else None

    @property
    def root_name(self) -> str:
        """The name of a root in the option `root`, such as `4.1fb17c23`."""
        return f"{self.number}.{self.uid:08x}"


def roots_prefix(stream: str) -> str:
    """Return the prefix of the keys of a stream's roots."""
    return f"{stream_prefix(stream)}metadata/root."


def older_root(stream: str) -> str:
    """Return the key of the root that the first generation of the plugin wrote."""
    return f"{stream_prefix(stream)}metadata/manifest"


def _kind(ending: str) -> int:
    return ENDINGS.index(ending) if ending in ENDINGS else 0
