"""The topics and topic filters of MQTT: their grammar, and which topics a filter matches.

A topic is bytes: brokers store what clients sent, and MQTT compares bytes. It is split at `/` into levels,
and an empty level counts. In a filter, the level `+` matches exactly one level, and `#` at the end matches
the parent and all levels below it. A filter that begins with a wildcard matches no topic with `$` first.

`match` takes any bytes as a topic, also those that break the grammar: they are in the data, and a filter
still selects them by their levels. `check_topic` is for a publisher.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Final

from offload.ground.errors import Misuse

__all__ = ["QUEUE_GROUP", "TopicFilter", "check_topic", "intersection", "levels_of", "match", "subset"]

ANY: Final = b"+"
REST: Final = b"#"
SIZE_BYTES_MAX: Final = 65_535
"""The size of a text in MQTT has 16 bits."""

QUEUE_GROUP: Final = "$queue"
"""The group of `$queue/FILTER`, an older spelling of EMQX. No `$share/GROUP/FILTER` needs this name."""


def levels_of(topic: bytes) -> tuple[bytes, ...]:
    """Return the levels of a topic. Every topic has one at least."""
    return tuple(topic.split(b"/"))


def check_topic(topic: bytes) -> None:
    """Raise `Misuse` if MQTT does not allow this topic in a message."""
    _check_text("topic", topic)
    if ANY in topic or REST in topic:
        raise Misuse(f"topic {_short(topic)}: a topic contains neither + nor #, because these are wildcards")


@dataclass(frozen=True)
class TopicFilter:
    """A topic filter, checked against the grammar, and the group that shares it, if any.

    `parse` reads one. Two filters are equal if their levels and their groups are equal.
    """

    levels: tuple[bytes, ...]
    group: str | None = None

    @classmethod
    def parse(cls, text: str) -> TopicFilter:
        """Return the filter of a text: `FILTER`, `$share/GROUP/FILTER` or `$queue/FILTER`.

        Raises `Misuse` if MQTT does not allow it.
        """
        try:
            raw = text.encode()
        except UnicodeEncodeError as exc:
            raise Misuse(f"topic filter {text[:80]!r}: it is no UTF-8") from exc
        _check_text("topic filter", raw)
        levels, group = levels_of(raw), None
        if levels[0] == b"$share":
            if len(levels) < 3 or not levels[1] or ANY in levels[1] or REST in levels[1]:
                raise Misuse(
                    f"topic filter {_short(raw)}: write $share/GROUP/FILTER; + and # are not part of a GROUP"
                )
            levels, group = levels[2:], levels[1].decode()
        elif levels[0] == QUEUE_GROUP.encode() and len(levels) > 1:
            levels, group = levels[1:], QUEUE_GROUP
        if group is not None and (levels == (b"",) or levels[0] in (b"$share", QUEUE_GROUP.encode())):
            raise Misuse(f"topic filter {_short(raw)}: the shared filter is empty or shared itself")
        for at, level in enumerate(levels):
            if (ANY in level or REST in level) and level not in (ANY, REST):
                raise Misuse(
                    f"topic filter {_short(raw)}: + and # fill a whole level, unlike in {_short(level)}"
                )
            if level == REST and at != len(levels) - 1:
                raise Misuse(f"topic filter {_short(raw)}: # is the last level or none")
        return cls(levels, group)

    @cached_property
    def text(self) -> str:
        """The filter as text, without its group."""
        return b"/".join(self.levels).decode()

    @property
    def begins_with_wildcard(self) -> bool:
        """True if the filter cannot match a topic that begins with `$`."""
        return self.levels[0] in (ANY, REST)


def match(topic: bytes, by: TopicFilter) -> bool:
    """Return whether a filter matches a topic. The group of the filter does not matter."""
    wanted, levels = by.levels, levels_of(topic)
    if topic.startswith(b"$") and by.begins_with_wildcard:
        return False
    if wanted[-1] == REST:
        wanted = wanted[:-1]
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(map(_fits, wanted, levels))


def intersection(one: TopicFilter, other: TopicFilter) -> TopicFilter | None:
    """Return the filter, without a group, that matches what both match. None if no topic fits both."""
    for this, that in ((one, other), (other, one)):
        if this.begins_with_wildcard and that.levels[0].startswith(b"$"):
            return None
    both: list[bytes] = []
    for at, (a, b) in enumerate(zip_longest(one.levels, other.levels)):
        if REST in (a, b):
            both += (other if a == REST else one).levels[at:]
            break
        if a is None or b is None or (a != b and ANY not in (a, b)):
            return None
        both.append(b if a == ANY else a)
    return TopicFilter(tuple(both)) if both != [b""] else None


def subset(one: TopicFilter, other: TopicFilter) -> bool:
    """Return whether `other` matches every topic that `one` matches."""
    both = intersection(one, other)
    return both is not None and _plain(both.levels) == _plain(one.levels)


def _plain(levels: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return one spelling for `#` and `+/#`, and for `/#` and `/+/#`: no topic is empty."""
    return (*levels[:-2], REST) if levels in ((ANY, REST), (b"", ANY, REST)) else levels


def _check_text(what: str, raw: bytes) -> None:
    if not raw or len(raw) > SIZE_BYTES_MAX:
        raise Misuse(f"{what} {_short(raw)}: it has {len(raw)} bytes; MQTT allows 1 to {SIZE_BYTES_MAX}")
    try:
        raw.decode()
    except UnicodeDecodeError as exc:
        raise Misuse(f"{what} {_short(raw)}: it is no UTF-8") from exc
    if b"\0" in raw:
        raise Misuse(f"{what} {_short(raw)}: it contains NUL")


def _short(raw: bytes) -> str:
    return repr(raw[:80].decode(errors="backslashreplace"))


def _fits(wanted: bytes, level: bytes) -> bool:
    return wanted in (ANY, level)
