"""Anchors: small texts that identify a prefix, for programs and for people who open the bucket.

```text
ledger-offload tier 1
{"branching_factor":1024}
crc32c 7a1b5c2e
```

The first line has the kind and the version. The second line is JSON with sorted keys and no spaces. The third
line has the CRC-32C of both.

Invariant: an anchor has only one spelling. Bytes that decode must encode to the same bytes, so no bit can
change unnoticed. Every later version keeps the first and the last line, so that damage to the version is not
taken for a newer version.

The anchor of a tier with `compression` has version 2, and so has the anchor of a part of another stream.
That of a part with `behind` has version 3. Every other anchor has version 1, with the same bytes as ever.
A program that does not know the fields refuses the later versions, and asks for an upgrade: it would show a
part as a stream of its own, or copy restored messages into it.
"""

from __future__ import annotations

import base64
import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Self

from offload.formats.checksums import check_version, crc32c
from offload.formats.chunk import CHUNK_HEADER, ChunkHeader
from offload.formats.keys import escape
from offload.ground.errors import Corrupt, Misuse
from offload.ground.outside import json_outside
from offload.model.compression import BlockCodec, Compression
from offload.model.labels import check_label
from offload.model.part import PART_MAX, StreamPart

ANCHOR_FORMAT_VERSION: Final = 1
COMPRESSION_FORMAT_VERSION: Final = 2
"""The version of an anchor with `compression`."""
PART_FORMAT_VERSION: Final = 2
"""The version of the anchor of a part."""
BEHIND_FORMAT_VERSION: Final = 3
"""The version of the anchor of a part with `behind`."""

ANCHOR_SIZE_BYTES_MAX: Final = 64 * 1024
"""The most bytes that are read. A longer anchor does not decode."""

_HEAD: Final = re.compile(rb"ledger-offload (tier|stream|key) ([0-9]{1,9})\n")

BRANCHING_FACTOR_MAX: Final = 1625
"""A mega-group has its cube of fragments, and an entry counts them and their ledgers in 32 bits."""

WRAPPED_SIZE_BYTES_MAX: Final = 4096
"""The most bytes of a wrapped key of a stream. Key services return some hundred."""

_SUM_SIZE_BYTES: Final = len(b"crc32c 00000000\n")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PASSWORD: Final = re.compile(r"//[^/]*:[^/]*@")

TIER_FIELDS: Final = (
    ("branching_factor", "int", f"number of entries of one kind in a group, 2 to {BRANCHING_FACTOR_MAX:,}"),
    ("hashed_keys", "bool", "if true, all keys except the tier's own are below a folder, `0/` to `f/`"),
    (
        "commit_store",
        "str",
        "URL of the store that holds roots, anchors and key objects, without credentials",
    ),
    ("data_store", "str", "with `commit_store`: URL of the store that holds everything else"),
    ("uid", "str", "with `commit_store`: a UUID, so that no other tier has the same anchor"),
    ("compression", "str", "default for new fragments: `lz4`, or `zstd:1` to `zstd:19`. Version 2 only"),
)
"""The fields of a tier's anchor. A field that is false or empty is not written."""
STREAM_FIELDS: Final = (
    (
        "behind",
        "str",
        "with `continues`: hexadecimal header of the source's chunk behind which the part begins",
    ),
    ("continues", "str", "the full name of the first part. Not in version 1"),
    ("part", "int", f"with `continues`: number of this part, 2 to {PART_MAX:,}"),
    ("stream", "str", "the stream's full name, not escaped. That of a part is `<continues>-part-<part>`"),
)
"""The fields of a stream's anchor. One that is empty or 0 is not written."""
KEY_FIELDS: Final = (
    ("base_version", "int", "version of the newest root that the maker of the key knew, below 2^63"),
    ("generation", "int", "1, and one more after each rotation, as in the object's name"),
    ("incarnation", "str", "UUID of the stream's incarnation, as in the object's name"),
    ("label", "str", "name of the master key: 1 to 64 of `a-z`, `0-9` and `-`, with no `-` at either end"),
    (
        "own",
        "bool",
        "true: the master key was made for this key alone. Only then, `label` ends in `-` and `uid`",
    ),
    ("stream", "str", "the stream's full name, not escaped"),
    ("uid", "str", "UUID of the stream's key, as in the object's name"),
    (
        "wrapped",
        "str",
        f"base64 of the stream's key, wrapped by the key service: 1 to {WRAPPED_SIZE_BYTES_MAX:,} bytes",
    ),
)
"""The fields of a key object. All are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Anchor(ABC):
    kind: ClassVar[str]
    known_version: ClassVar[int] = ANCHOR_FORMAT_VERSION
    """The highest version that this program reads."""

    @property
    def format_version(self) -> int:
        """The version in which the anchor is written: the lowest that has all of its fields."""
        return ANCHOR_FORMAT_VERSION

    def _fields(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # `asdict` would copy deeply

    @abstractmethod
    def _check(self) -> None:
        """Raise `Misuse` if a field is invalid."""

    def encode(self) -> bytes:
        """Return the anchor's bytes. Raises `Misuse` if a field is invalid."""
        self._check()
        text = json.dumps(self._fields(), sort_keys=True, separators=(",", ":"))
        lines = f"ledger-offload {self.kind} {self.format_version}\n{text}\n".encode()
        return lines + _sum_of(lines)

    @classmethod
    def decode(cls, raw: bytes, *, where: str) -> Self:
        """Undo `encode`.

        Raises `Corrupt` for any damaged bit, and `UnsupportedFormat` for another version.
        """
        head = _HEAD.match(raw)
        if head is None or head[1].decode() != cls.kind:
            raise Corrupt("anchor", where, expected=f"ledger-offload {cls.kind}", found=raw[:40])
        lines, last = raw[:-_SUM_SIZE_BYTES], raw[-_SUM_SIZE_BYTES:]
        if _sum_of(lines) != last:
            raise Corrupt("anchor checksum", where, expected=last, found=_sum_of(lines))
        # After the checksum: a flipped bit of the version is damage, and an upgrade would not help.
        if not ANCHOR_FORMAT_VERSION <= int(head[2]) <= cls.known_version:
            check_version(f"{cls.kind} anchor", int(head[2]), cls.known_version, where)
        try:
            anchor = cls(**json_outside(raw.split(b"\n")[1]))
            same = anchor.encode() == raw
        except (ValueError, TypeError, IndexError) as exc:
            raise Corrupt("anchor", where, expected="one line of JSON", found=str(exc)) from exc
        if not same:
            raise Corrupt("anchor", where, expected=anchor.encode(), found=raw)
        return anchor


@dataclass(frozen=True, slots=True, kw_only=True)
class TierAnchor(_Anchor):
    """The anchor of a tier: it marks a prefix as a tier, and has the settings of all its streams."""

    kind: ClassVar[str] = "tier"
    known_version: ClassVar[int] = COMPRESSION_FORMAT_VERSION
    branching_factor: int = 1024
    hashed_keys: bool = False
    commit_store: str = ""
    data_store: str = ""
    uid: str = ""
    compression: str = ""
    """The compression of new fragments if a writer names none, as `str(Compression)` spells it."""

    @property
    def format_version(self) -> int:
        """Version 2 with a compression, and 1 without."""
        return COMPRESSION_FORMAT_VERSION if self.compression else ANCHOR_FORMAT_VERSION

    @property
    def default_compression(self) -> Compression:
        """The compression of new fragments if a writer names none."""
        return Compression.parse(self.compression) if self.compression else Compression()

    def _fields(self) -> dict[str, Any]:
        every = _Anchor._fields(self)
        return {name: value for name, value in every.items() if value is not False and value != ""}

    def _check(self) -> None:
        factor = self.branching_factor
        if type(factor) is not int or not 2 <= factor <= BRANCHING_FACTOR_MAX:
            raise Misuse(f"a branching factor is 2 to {BRANCHING_FACTOR_MAX}, not {factor!r}")
        if type(self.hashed_keys) is not bool:
            raise Misuse(f"hashed keys are true or false, not {self.hashed_keys!r}")
        names = (self.commit_store, self.data_store, self.uid)
        if any(type(name) is not str for name in names) or len({not name for name in names}) > 1:
            raise Misuse("an anchor has a commit store, a data store and a uid, or none of the three")
        for url in names[:2]:
            if _PASSWORD.search(url):  # anybody who can read the tier can read its anchor
                raise Misuse("an anchor cannot hold a URL with a password")
        if type(self.compression) is not str:
            raise Misuse(f"a compression is a text such as 'zstd:3', not {self.compression!r}")
        default = self.default_compression  # raises for a text that names none
        # Without compression, the field is absent: there is one spelling of each anchor.
        if self.compression and (default.codec is BlockCodec.NONE or str(default) != self.compression):
            raise Misuse(f"an anchor names a compression by codec and level, not as {self.compression!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAnchor(_Anchor):
    """The anchor of a stream. It has the stream's full name, because an escaped name may have been cut."""

    kind: ClassVar[str] = "stream"
    known_version: ClassVar[int] = BEHIND_FORMAT_VERSION
    stream: str
    continues: str = ""
    """The name of the first part, if the stream is a part of another."""
    part: int = 0
    behind: str = ""
    """The header of the chunk behind which the part begins, in hexadecimal, if a restore began the part."""

    @classmethod
    def of(cls, part: StreamPart) -> StreamAnchor:
        """Return the anchor of this part. That of the first part is the same as if it had no others."""
        if part.number == 1:
            return cls(stream=part.name)
        return cls(stream=part.name, continues=part.first, part=part.number, behind=part.behind.hex())

    @property
    def as_part(self) -> StreamPart:
        """The part whose anchor this is. A stream of its own is part 1."""
        return StreamPart(self.continues or self.stream, self.part or 1, bytes.fromhex(self.behind))

    @property
    def format_version(self) -> int:
        """Version 3 for a part behind a chunk, 2 for any other later part, and 1 for every other stream."""
        if self.behind:
            return BEHIND_FORMAT_VERSION
        return PART_FORMAT_VERSION if self.part else ANCHOR_FORMAT_VERSION

    def _fields(self) -> dict[str, Any]:
        return {name: value for name, value in _Anchor._fields(self).items() if name == "stream" or value}

    def _check(self) -> None:
        if not isinstance(self.stream, str) or not isinstance(self.continues, str):
            raise Misuse(f"the name of a stream is a text, not {self.stream!r} or {self.continues!r}")
        escape(self.stream)  # raises for a name that no key can hold
        if type(self.part) is not int or not (self.part == 0 or 2 <= self.part <= PART_MAX):
            raise Misuse(f"the number of a part is 2 to {PART_MAX:,}, not {self.part!r}")
        if bool(self.continues) != bool(self.part):
            raise Misuse("an anchor has both `continues` and `part`, or none of them")
        # Parts are looked up by their names. So a part of another name would be found by nobody.
        if self.part and self.stream != StreamPart(self.continues, self.part).name:
            raise Misuse(f"{self.stream!r} is not the name of part {self.part} of {self.continues!r}")
        if not isinstance(self.behind, str) or (self.behind and not self.part):
            raise Misuse(f"only a part is behind a chunk, not {self.stream!r}")
        if self.behind:
            _check_behind(self.behind)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyObject(_Anchor):
    """A key of a stream, wrapped by a master key. It is a text like an anchor, so that people can read it."""

    kind: ClassVar[str] = "key"
    stream: str
    base_version: int
    incarnation: str
    uid: str
    generation: int
    label: str
    own: bool
    wrapped: str

    def _check(self) -> None:
        if type(self.generation) is not int or not 0 < self.generation < 2**64:
            raise Misuse(f"the generation of a key object is 1 or more, not {self.generation!r}")
        # It proves that this root existed. No sweep could delete anything if no writer reached that number.
        if type(self.base_version) is not int or not 0 < self.base_version < 2**63:
            raise Misuse(f"the root of a key object is 1 or more, and below 2**63, not {self.base_version!r}")
        values = (self.stream, self.incarnation, self.uid, self.label, self.wrapped)
        if any(not isinstance(value, str) for value in values):
            raise Misuse("the fields of a key object are texts")
        escape(self.stream)  # raises for a name that no key can hold
        # `UUID` and `b64decode` read other spellings too. A reader compares the uid as a text.
        for uid in (self.incarnation, self.uid):
            if not _UUID.fullmatch(uid):
                raise Misuse(f"a key object has UUIDs in lower case with hyphens, not {uid!r}")
        check_label(self.label)
        # Whoever shreds a stream destroys its own master key. That must never be a key that others need. The
        # label decides in both directions, because the key service binds it: so nobody can change the mark,
        # and have a shred spare the master key, or a rotation replace it by a shared one.
        if type(self.own) is not bool or self.own != self.label.endswith(f"-{self.uid}"):
            raise Misuse(f"own is true if and only if the label ends in the key's uid: {self.label!r}")
        try:
            wrapped = base64.b64decode(self.wrapped, validate=True)
        except ValueError as exc:
            raise Misuse("a wrapped key is written in base64") from exc
        if base64.b64encode(wrapped).decode() != self.wrapped:
            raise Misuse("base64 of a wrapped key ends with bits that are not zero")
        if not 0 < len(wrapped) <= WRAPPED_SIZE_BYTES_MAX:
            raise Misuse(f"a wrapped key has 1 to {WRAPPED_SIZE_BYTES_MAX:,} bytes, not {len(wrapped):,}")


def _check_behind(text: str) -> None:
    """Raise `Misuse` unless this is the header of a chunk, in the only spelling that is written."""
    if not re.fullmatch(f"[0-9a-f]{{{2 * CHUNK_HEADER.size_bytes}}}", text):
        raise Misuse(f"the header of a chunk is {CHUNK_HEADER.size_bytes} bytes in hexadecimal, not {text!r}")
    try:
        ChunkHeader.decode(bytes.fromhex(text), where="behind")
    except Corrupt as exc:
        raise Misuse(f"a part begins behind a chunk, and this is no chunk's header: {text}") from exc


def _sum_of(lines: bytes) -> bytes:
    """Return the last line of an anchor that begins with these lines."""
    return b"crc32c %08x\n" % crc32c(lines)
