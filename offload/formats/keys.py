"""The names of objects on a tier. Sorting by name is sorting by offset, or by version.

```text
tier.anchor                                                    the anchor of the tier
tier.verified                                                  how far a verify has read the tier
<stream, escaped>/stream.anchor                                the anchor of the stream
<stream, escaped>/data/<first offset>.<attempt>.fragment       a fragment
<stream, escaped>/data/<first offset>.<attempt>.<name>         a companion of that fragment
<stream, escaped>/metadata/root.<version>.manifest             a root
<stream, escaped>/groups/<first offset>.<version>.<uid>.group      a group, made for the root of that version
<stream, escaped>/metadata/sweep.<milliseconds>.<uid>.sighting     a sighting of a sweep, with its time
<stream, escaped>/keys/<incarnation>.<uid>.<generation>.key    a key of the stream in that life, wrapped
<stream, escaped>/keys/<incarnation>.<uid>.<generation>.copy   the second copy of that object
<stream, escaped>/index/<SPEC, escaped>.<rules>/<name>.index   an index object
<stream, escaped>/notes/<name, escaped>/<incarnation>.<number>.note     a value of a shared note
```

A companion is an object that some program made for a fragment, perhaps later, such as an index by key. Its
name has at most 8 characters. It lives and dies with its fragment, also if nobody here knows its name.

An index object's name is `<first>.<next>.<root>.<incarnation>.<uid>`. It covers the offsets from `<first>` to
before `<next>`, and was made on the root of version `<root>`. Its SPEC is escaped like a stream's name. The
number `<rules>`, without leading zeros, is the version of the rules by which records give terms.

The name of a shared note is escaped like a stream's name. Its numbers begin at 1, and are below 2^63.

Numbers have 20 decimal digits. Kilo-groups end in `.kgroup`, mega-groups in `.mgroup`.

A stream's name is always escaped in the same way. Its bytes outside `A-Za-z0-9_-` become `%XX`. If the result
is longer than 200 bytes, it is cut to 134 and followed by `%s` and the name's SHA-256 in hex. No escaped byte
becomes `%s`. The escaped name has no dot and no slash, so a stream's name cannot lead out of its own prefix
or equal an anchor's. Two names with the same escaped form would need a collision of SHA-256. The anchor has
the full name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote
from uuid import UUID

from offload.ground.errors import Misuse

__all__ = ["TIER_ANCHOR", "VERIFY_NOTES", "IndexName", "StreamKeys", "escape", "is_name"]


TIER_PREFIX: Final = "tier."
"""The prefix of the keys of a tier's own objects. No stream's key has it: an escaped name has no dot."""

TIER_ANCHOR: Final = TIER_PREFIX + "anchor"
VERIFY_NOTES: Final = TIER_PREFIX + "verified"
_STREAM_ANCHOR: Final = "stream.anchor"
_ROOTS: Final = "metadata/root."
_KEYS: Final = "keys/"
_NOTES: Final = "notes/"
_DECISIVE: Final = (_ROOTS, _KEYS, _NOTES)
_SIGHTINGS: Final = "metadata/sweep."
ESCAPED_SIZE_BYTES_MAX: Final = 200
STREAM_SIZE_BYTES_MAX: Final = 4096
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_FRAGMENT: Final = re.compile(r"data/([0-9]{20})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.fragment")
_COMPANION: Final = re.compile(
    r"data/([0-9]{20})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.(?!fragment)([a-z0-9-]{1,8})"
)
_GROUP: Final = re.compile(
    r"groups/([0-9]{20})\.([0-9]{20})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.(group|kgroup|mgroup)"
)
_STREAM_KEY: Final = re.compile(
    r"keys/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"\.([0-9]{20})\.(?:key|copy)"
)
_GROUP_KINDS: Final = ("group", "kgroup", "mgroup")
_ROOT: Final = re.compile(r"metadata/root\.([0-9]{20})\.manifest")
_SIGHTING: Final = re.compile(
    r"metadata/sweep\.([0-9]{20})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.sighting"
)
_INDEX: Final = re.compile(
    r"index/([A-Za-z0-9_%-]{1,200})\.([1-9][0-9]{0,8})/([0-9]{20})\.([0-9]{20})\.([0-9]{20})"
    r"\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.index"
)
RANGES: Final = "ranges="
"""The SPEC of an index of ranges begins with it. No decoder's name has this character."""
_NOTE: Final = re.compile(
    r"notes/([A-Za-z0-9_%-]{1,200})/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.([0-9]{20})\.note"
)
NOTE_NUMBER_MAX: Final = 2**63 - 1
INDEX_RECORDS_MAX: Final = 2**32
"""The most offsets that an index object covers: its rows have 32 bits for an offset."""

_ESCAPED: Final = re.compile(r"[A-Za-z0-9_%-]+")


@lru_cache(1024)
def escape(stream: str) -> str:
    """Return a stream's name as the first part of its keys. Raises `Misuse` if no stream can have it."""
    try:
        raw = stream.encode()
    except UnicodeEncodeError as exc:
        raise Misuse(f"{stream!r} is not a stream name: it is not valid Unicode") from exc
    if not 0 < len(raw) <= STREAM_SIZE_BYTES_MAX:
        raise Misuse(f"a stream name has 1 to {STREAM_SIZE_BYTES_MAX} bytes, not {len(raw)}")
    text = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if len(text) <= ESCAPED_SIZE_BYTES_MAX:
        return text
    return f"{text[:134]}%s{hashlib.sha256(raw).hexdigest()}"


def is_name(stream: str) -> bool:
    """Return whether a stream can have this name."""
    try:
        escape(stream)
    except Misuse:
        return False
    return True


def unescape(part: str) -> str | None:
    """Return the stream with this escaped name. None if it is not an escaped name, or one that was cut."""
    try:
        stream = unquote(part, errors="strict")
        # `unquote` accepts more than `escape` makes, such as lower-case digits or bytes that need no escape.
        return stream if escape(stream) == part else None
    except (UnicodeDecodeError, Misuse):
        return None


class IndexName(NamedTuple):
    """The name of an index object. Names in order are in the order of their keys."""

    folder: str
    """The escaped SPEC and the version of the term rules, as `StreamKeys.index_folder` joins them."""
    first_offset: int
    next_offset: int
    version: int
    """The version of the root on which it was made."""
    incarnation: UUID
    uid: UUID

    @property
    def records(self) -> int:
        """The number of offsets that it covers."""
        return self.next_offset - self.first_offset

    @property
    def has_ranges(self) -> bool:
        """True if the object has ranges (`range_object`), and False if it has terms (`index_object`)."""
        return self.folder.startswith(escape(RANGES))


class NoteName(NamedTuple):
    """The name of one object of a shared note. Names of one note and life are in the order of their keys."""

    folder: str
    """The escaped name of the note."""
    incarnation: UUID
    number: int


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """The keys of one stream."""

    stream: str

    @property
    def prefix(self) -> str:
        """The prefix of all keys of the stream, with its slash."""
        return escape(self.stream) + "/"

    @property
    def anchor(self) -> str:
        """The key of the stream's anchor, which has its full name."""
        return self.prefix + _STREAM_ANCHOR

    @property
    def data(self) -> str:
        """The prefix of the keys of all fragments."""
        return self.prefix + "data/"

    @property
    def roots(self) -> str:
        """The prefix of the keys of all roots."""
        return self.prefix + _ROOTS

    def fragment(self, first_offset: int, attempt: UUID) -> str:
        """Return the key of a fragment."""
        return f"{self.data}{first_offset:020d}.{attempt}.fragment"

    def companion(self, first_offset: int, attempt: UUID, name: str) -> str:
        """Return the key of a companion of a fragment. Raises `Misuse` for a name that none can have."""
        key = f"{self.data}{first_offset:020d}.{attempt}.{name}"
        if self.parse_companion(key) is None:
            raise Misuse(f"a companion's name has 1 to 8 of the characters a-z, 0-9 and '-', not {name!r}")
        return key

    def root(self, version: int) -> str:
        """Return the key of a root."""
        return f"{self.roots}{version:020d}.manifest"

    @property
    def metadata(self) -> str:
        """The prefix of the keys of all roots and sightings."""
        return self.prefix + "metadata/"

    @property
    def groups(self) -> str:
        """The prefix of the keys of all groups."""
        # It differs from that of the roots, because each commit lists all roots.
        return self.prefix + "groups/"

    def group(self, first_offset: int, version: int, uid: UUID, kind: int) -> str:
        """Return the key of a group that is made for the root of `version`. `kind` is 1 to 3."""
        return f"{self.groups}{first_offset:020d}.{version:020d}.{uid}.{_GROUP_KINDS[kind - 1]}"

    @property
    def indexes(self) -> str:
        """The prefix of the keys of all index objects."""
        return self.prefix + "index/"

    def index_folder(self, spec: str, rules: int) -> str:
        """Return the folder of the index objects for a SPEC under a version of the term rules."""
        return f"{escape(spec)}.{rules}"

    def index(self, name: IndexName) -> str:
        """Return the key of an index object."""
        folder, first, following, version, incarnation, uid = name
        return (
            f"{self.indexes}{folder}/{first:020d}.{following:020d}.{version:020d}.{incarnation}.{uid}.index"
        )

    def parse_index(self, key: str) -> IndexName | None:
        """Return the name, or None if no index object of this stream can have this key."""
        match = self._parsed(_INDEX, key)
        if match is None:
            return None
        spec, rules, first, following, version, incarnation, uid = match.groups()
        name = IndexName(
            f"{spec}.{rules}", int(first), int(following), int(version), UUID(incarnation), UUID(uid)
        )
        return name if 0 < name.records <= INDEX_RECORDS_MAX else None

    @property
    def notes(self) -> str:
        """The prefix of the keys of all shared notes."""
        return self.prefix + _NOTES

    def notes_of_life(self, folder: str, incarnation: UUID) -> str:
        """Return the prefix of the keys of one shared note in one life of the stream."""
        return f"{self.notes}{folder}/{incarnation}."

    def note(self, name: NoteName) -> str:
        """Return the key of an object of a shared note."""
        return f"{self.notes_of_life(name.folder, name.incarnation)}{name.number:020d}.note"

    def parse_note(self, key: str) -> NoteName | None:
        """Return the name, or None if no shared note of this stream can have this key."""
        match = self._parsed(_NOTE, key)
        if match is None or not 0 < int(match[3]) <= NOTE_NUMBER_MAX:
            return None
        return NoteName(match[1], UUID(match[2]), int(match[3]))

    @property
    def stream_keys(self) -> str:
        """The prefix of the keys of all key objects."""
        return self.prefix + _KEYS

    def keys_of_life(self, incarnation: UUID) -> str:
        """Return the prefix of the keys of all key objects of one life of the stream."""
        return f"{self.stream_keys}{incarnation}."

    def key_objects(self, incarnation: UUID, uid: UUID, generation: int) -> tuple[str, str]:
        """Return the keys of both copies of the object that holds a key of the stream, wrapped."""
        name = f"{self.keys_of_life(incarnation)}{uid}.{generation:020d}"
        return f"{name}.key", f"{name}.copy"

    def parse_key_object(self, key: str) -> tuple[UUID, UUID, int] | None:
        """Return incarnation, uid and generation, or None if it is no key object's key of this stream."""
        match = self._parsed(_STREAM_KEY, key)
        return (UUID(match[1]), UUID(match[2]), int(match[3])) if match else None

    @property
    def sightings(self) -> str:
        """The prefix of the keys of all sightings."""
        return self.prefix + _SIGHTINGS

    def sighting(self, time_ms: int, uid: UUID) -> str:
        """Return the key of a sweep's sighting. `time_ms` is milliseconds since 1970 by its wall clock."""
        return f"{self.sightings}{time_ms:020d}.{uid}.sighting"

    def before_fragments_of(self, offset: int) -> str:
        """Return a key behind all fragments that begin before `offset`, and before all others."""
        return f"{self.data}{offset:020d}."

    def parse_fragment(self, key: str) -> tuple[int, UUID] | None:
        """Return first offset and attempt, or None if it is not the key of a fragment of this stream."""
        match = self._parsed(_FRAGMENT, key)
        return (int(match[1]), UUID(match[2])) if match else None

    def parse_companion(self, key: str) -> tuple[int, UUID, str] | None:
        """Return first offset, attempt and name, or None if it is not a companion's key of this stream."""
        match = self._parsed(_COMPANION, key)
        return (int(match[1]), UUID(match[2]), match[3]) if match else None

    def parse_data(self, key: str) -> tuple[int, UUID] | None:
        """Return first offset and attempt of a fragment or a companion; None for any other key."""
        companion = self.parse_companion(key)
        return self.parse_fragment(key) if companion is None else companion[:2]

    def parse_group(self, key: str) -> tuple[int, int, UUID, int] | None:
        """Return first offset, version, uid and kind, or None if it is not a group's key of this stream."""
        match = self._parsed(_GROUP, key)
        if match is None:
            return None
        return int(match[1]), int(match[2]), UUID(match[3]), _GROUP_KINDS.index(match[4]) + 1

    def parse_sighting(self, key: str) -> tuple[int, UUID] | None:
        """Return time in milliseconds and uid, or None if it is not the key of a sighting of this stream."""
        match = self._parsed(_SIGHTING, key)
        return (int(match[1]), UUID(match[2])) if match else None

    def parse_root(self, key: str) -> int | None:
        """Return the version, or None if it is not the key of a root of this stream."""
        match = self._parsed(_ROOT, key)
        return int(match[1]) if match else None

    def _parsed(self, pattern: re.Pattern[str], key: str) -> re.Match[str] | None:
        """Return the parts of a key of this stream.

        None if it does not match, or a number exceeds 64 bits.
        """
        match = pattern.fullmatch(key, len(self.prefix)) if key.startswith(self.prefix) else None
        if match is None or any(_exceeds_64_bits(part) for part in match.groups()):
            return None
        return match


def _exceeds_64_bits(part: str) -> bool:
    return len(part) == 20 and part.isdigit() and int(part) >= 2**64


def looks_escaped(part: str) -> bool:
    """Return True if the first part of a key could be a stream's escaped name."""
    return bool(_ESCAPED.fullmatch(part))


def is_of_a_stream(key: str) -> bool:
    """Return True if this is the key of a root, a fragment, a group or a key object of any stream."""
    part, _, rest = key.partition("/")
    patterns = (_ROOT, _FRAGMENT, _GROUP, _STREAM_KEY)
    return looks_escaped(part) and any(each.fullmatch(rest) for each in patterns)


def shows_a_tier(key: str) -> bool:
    """Return True if an object under this key is of a stream, so that the place is a tier, or was one."""
    return is_of_a_stream(key) or is_of_a_stream(key[2:])  # with hashed keys, a folder such as `7/` is first


def is_decisive(key: str) -> bool:
    """Return True if this object must be created only once: roots, anchors, probes, streams' keys, and notes.

    A tier with a commit store keeps these objects there, and all others on its data store.
    """
    part, slash, rest = key.partition("/")
    if not slash:
        return part.startswith(TIER_PREFIX)
    return rest.startswith(_DECISIVE) or rest == _STREAM_ANCHOR


def sides_of(prefix: str) -> tuple[bool, bool]:
    """Return whether decisive keys may begin with this prefix, and whether other keys may."""
    _, slash, rest = prefix.partition("/")
    if not slash:
        return True, True
    only_decisive = rest.startswith(_DECISIVE)
    some_decisive = only_decisive or any(each.startswith(rest) for each in (*_DECISIVE, _STREAM_ANCHOR))
    return some_decisive, not only_decisive
