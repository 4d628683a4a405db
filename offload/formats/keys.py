"""The names of objects on a tier. Sorting by name is sorting by offset, or by version.

```text
tier.anchor                                                    what this place is
<stream, escaped>/stream.anchor                                what this prefix is
<stream, escaped>/data/<first offset>.<attempt>.fragment       a fragment
<stream, escaped>/metadata/root.<version>.manifest             a root
<stream, escaped>/groups/<first offset>.<version>.<uid>.group      a group, made for the root of that version
<stream, escaped>/metadata/sweep.<milliseconds>.<uid>.sighting     what a sweep saw, at that time
```

Numbers have 20 decimal digits; kilo-groups end in `.kgroup`, mega-groups in `.mgroup`. A stream's
name is escaped for good and in one way: its bytes outside `A-Za-z0-9_-` become `%XX`; where that is
longer than 200 bytes, it is cut to 134 and followed by `%s` (which no escaped byte reads) and the
name's SHA-256 in hex. The escaped name holds no dot and no slash, so no stream's name reaches
outside its own prefix or meets an anchor. Two names of one escape would need a collision of
SHA-256; the anchor holds the true name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote
from uuid import UUID

from offload.errors import Misuse

__all__ = ["StreamKeys", "escape"]


TIER_PREFIX: Final = "tier."
"""What the keys of a tier's own objects begin with. No stream's do: an escaped name holds no dot."""

TIER_ANCHOR: Final = TIER_PREFIX + "anchor"
_STREAM_ANCHOR: Final = "stream.anchor"
_ROOTS: Final = "metadata/root."
_SIGHTINGS: Final = "metadata/sweep."
ESCAPED_SIZE_BYTES_MAX: Final = 200
STREAM_SIZE_BYTES_MAX: Final = 4096
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_FRAGMENT: Final = re.compile(r"data/([0-9]{20})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.fragment")
_GROUP: Final = re.compile(
    r"groups/([0-9]{20})\.([0-9]{20})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.(group|kgroup|mgroup)"
)
_GROUP_KINDS: Final = ("group", "kgroup", "mgroup")
_ROOT: Final = re.compile(r"metadata/root\.([0-9]{20})\.manifest")
_SIGHTING: Final = re.compile(
    r"metadata/sweep\.([0-9]{20})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.sighting"
)
_ESCAPED: Final = re.compile(r"[A-Za-z0-9_%-]+")


@lru_cache(1024)
def escape(stream: str) -> str:
    """A stream's name as the first part of its keys."""
    try:
        raw = stream.encode()
    except UnicodeEncodeError as exc:
        raise Misuse(f"{stream!r} is no stream name: it is not valid Unicode") from exc
    if not 0 < len(raw) <= STREAM_SIZE_BYTES_MAX:
        raise Misuse(f"a stream name has 1 to {STREAM_SIZE_BYTES_MAX} bytes, not {len(raw)}")
    text = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if len(text) <= ESCAPED_SIZE_BYTES_MAX:
        return text
    return f"{text[:134]}%s{hashlib.sha256(raw).hexdigest()}"


def unescape(part: str) -> str | None:
    """The stream whose escaped name this is; None if it is no such name, or one that was cut."""
    try:
        stream = unquote(part, errors="strict")
        return stream if escape(stream) == part else None
    except (UnicodeDecodeError, Misuse):
        return None


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """The keys of one stream."""

    stream: str

    @property
    def prefix(self) -> str:
        """What all keys of the stream begin with, its slash included."""
        return escape(self.stream) + "/"

    @property
    def anchor(self) -> str:
        """The object that holds the stream's true name."""
        return self.prefix + _STREAM_ANCHOR

    @property
    def data(self) -> str:
        """What the keys of all fragments begin with."""
        return self.prefix + "data/"

    @property
    def roots(self) -> str:
        """What the keys of all roots begin with."""
        return self.prefix + _ROOTS

    def fragment(self, first_offset: int, attempt: UUID) -> str:
        """The key of a fragment."""
        return f"{self.data}{first_offset:020d}.{attempt}.fragment"

    def root(self, version: int) -> str:
        """The key of a root."""
        return f"{self.roots}{version:020d}.manifest"

    @property
    def metadata(self) -> str:
        """What the keys of all roots and sightings begin with."""
        return self.prefix + "metadata/"

    @property
    def groups(self) -> str:
        """What the keys of all groups begin with. Apart from the roots, which are listed with each commit."""
        return self.prefix + "groups/"

    def group(self, first_offset: int, version: int, uid: UUID, kind: int) -> str:
        """The key of a group, made for the root of `version`. `kind` is 1 to 3."""
        return f"{self.groups}{first_offset:020d}.{version:020d}.{uid}.{_GROUP_KINDS[kind - 1]}"

    @property
    def sightings(self) -> str:
        """What the keys of all sightings begin with."""
        return self.prefix + _SIGHTINGS

    def sighting(self, time_ms: int, uid: UUID) -> str:
        """The key of what a sweep saw at that time, in milliseconds since 1970 by its wall clock."""
        return f"{self.sightings}{time_ms:020d}.{uid}.sighting"

    def before_fragments_of(self, offset: int) -> str:
        """A key that stands before every fragment that begins at or after `offset`, and behind all others."""
        return f"{self.data}{offset:020d}."

    def parse_fragment(self, key: str) -> tuple[int, UUID] | None:
        """First offset and attempt, or None where the key is no fragment's of this stream."""
        match = self._parsed(_FRAGMENT, key)
        return (int(match[1]), UUID(match[2])) if match else None

    def parse_group(self, key: str) -> tuple[int, int, UUID, int] | None:
        """First offset, version, uid and kind, or None where the key is no group's of this stream."""
        match = self._parsed(_GROUP, key)
        if match is None:
            return None
        return int(match[1]), int(match[2]), UUID(match[3]), _GROUP_KINDS.index(match[4]) + 1

    def parse_sighting(self, key: str) -> tuple[int, UUID] | None:
        """Time in milliseconds and uid, or None where the key is no sighting's of this stream."""
        match = self._parsed(_SIGHTING, key)
        return (int(match[1]), UUID(match[2])) if match else None

    def parse_root(self, key: str) -> int | None:
        """The version, or None where the key is no root's of this stream."""
        match = self._parsed(_ROOT, key)
        return int(match[1]) if match else None

    def _parsed(self, pattern: re.Pattern[str], key: str) -> re.Match[str] | None:
        """The parts of a key of this stream; None also if a number in it needs more than 64 bits."""
        match = pattern.fullmatch(key, len(self.prefix)) if key.startswith(self.prefix) else None
        if match is None or any(len(part) == 20 and int(part) >= 2**64 for part in match.groups()):
            return None
        return match


def looks_escaped(part: str) -> bool:
    """Whether the first part of a key could be a stream's escaped name."""
    return bool(_ESCAPED.fullmatch(part))


def is_of_a_stream(key: str) -> bool:
    """Whether this is the key of a root, a fragment or a group of some stream."""
    part, _, rest = key.partition("/")
    return looks_escaped(part) and any(each.fullmatch(rest) for each in (_ROOT, _FRAGMENT, _GROUP))


def is_decisive(key: str) -> bool:
    """Whether commits rest on this object being created only once: roots, anchors, probes.

    A tier with a commit store keeps these there, and all others on its data store.
    """
    part, slash, rest = key.partition("/")
    return rest.startswith(_ROOTS) or rest == _STREAM_ANCHOR if slash else part.startswith(TIER_PREFIX)


def sides_of(prefix: str) -> tuple[bool, bool]:
    """Whether decisive keys may begin with this prefix, and whether others may."""
    _, slash, rest = prefix.partition("/")
    if not slash:
        return True, True
    only_roots = rest.startswith(_ROOTS)
    return only_roots or _ROOTS.startswith(rest) or _STREAM_ANCHOR.startswith(rest), not only_roots
