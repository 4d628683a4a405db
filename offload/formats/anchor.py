"""Anchors: small texts that say what a prefix is, to programs and to people who open the bucket.

```text
ledger-offload tier 1
{"branching_factor":1024}
crc32c 7a1b5c2e
```

A first line of kind and version, one line of JSON with sorted keys and no spaces, and the CRC-32C
of both lines. Invariant: an anchor has one spelling only. What decodes must encode to the very
same bytes, so no bit of it can change unseen. Every later version keeps the first line and the last, so
that damage to the version is not taken for a newer one.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, Self

from offload.errors import Corrupt, Misuse
from offload.formats.checksums import check_version, crc32c
from offload.formats.keys import escape

ANCHOR_FORMAT_VERSION: Final = 1
ANCHOR_SIZE_BYTES_MAX: Final = 64 * 1024
"""More is never read: an anchor that is longer does not decode."""

_HEAD: Final = re.compile(rb"ledger-offload (tier|stream) ([0-9]{1,9})\n")

BRANCHING_FACTOR_MAX: Final = 1625
"""A mega-group holds its cube of fragments, and an entry counts them, and their ledgers, in 32 bits."""

_SUM_SIZE_BYTES: Final = len(b"crc32c 00000000\n")
_PASSWORD: Final = re.compile(r"//[^/]*:[^/]*@")

TIER_FIELDS: Final = (
    ("branching_factor", "int", f"how many entries of one kind a group takes, 2 to {BRANCHING_FACTOR_MAX:,}"),
    ("hashed_keys", "bool", "all keys but those of the tier itself stand below a folder, `0/` to `f/`"),
    ("commit_store", "str", "the URL of the store that holds roots and anchors, without credentials"),
    ("data_store", "str", "with `commit_store`: the URL of the store that holds everything else"),
    ("uid", "str", "with `commit_store`: a UUID, so that no other tier has the same anchor"),
)
"""A field that is absent is false, or empty; only what is neither is written."""
STREAM_FIELDS: Final = (("stream", "str", "the stream's true name"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Anchor(ABC):
    kind: ClassVar[str]

    def _fields(self) -> dict[str, Any]:
        return asdict(self)

    @abstractmethod
    def _check(self) -> None:
        """Raise `Misuse` where a field is not what it must be."""

    def encode(self) -> bytes:
        """The anchor's bytes. Raises `Misuse` where a field is not what it must be."""
        self._check()
        text = json.dumps(self._fields(), sort_keys=True, separators=(",", ":"))
        lines = f"ledger-offload {self.kind} {ANCHOR_FORMAT_VERSION}\n{text}\n".encode()
        return lines + _sum_of(lines)

    @classmethod
    def decode(cls, raw: bytes, *, where: str) -> Self:
        """Undo `encode`. Raises `Corrupt` where any bit is off, `UnsupportedFormat` for another version."""
        head = _HEAD.match(raw)
        if head is None or head[1].decode() != cls.kind:
            raise Corrupt("anchor", where, expected=f"ledger-offload {cls.kind}", found=raw[:40])
        lines, last = raw[:-_SUM_SIZE_BYTES], raw[-_SUM_SIZE_BYTES:]
        if _sum_of(lines) != last:
            raise Corrupt("anchor checksum", where, expected=last, found=_sum_of(lines))
        check_version(f"{cls.kind} anchor", int(head[2]), ANCHOR_FORMAT_VERSION, where)
        try:
            anchor = cls(**json.loads(raw.split(b"\n")[1]))
            same = anchor.encode() == raw
        except (ValueError, TypeError, IndexError, RecursionError) as exc:
            raise Corrupt("anchor", where, expected="one line of JSON", found=str(exc)) from exc
        if not same:
            raise Corrupt("anchor", where, expected=anchor.encode(), found=raw)
        return anchor


@dataclass(frozen=True, slots=True, kw_only=True)
class TierAnchor(_Anchor):
    """Says that a prefix is a tier, and what every stream on it has in common."""

    kind: ClassVar[str] = "tier"
    branching_factor: int = 1024
    hashed_keys: bool = False
    commit_store: str = ""
    data_store: str = ""
    uid: str = ""

    def _fields(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not False and value != ""}

    def _check(self) -> None:
        factor = self.branching_factor
        if type(factor) is not int or not 2 <= factor <= BRANCHING_FACTOR_MAX:
            raise Misuse(f"a branching factor from 2 to {BRANCHING_FACTOR_MAX}, not {factor!r}")
        if type(self.hashed_keys) is not bool:
            raise Misuse(f"hashed keys of {self.hashed_keys!r}")
        names = (self.commit_store, self.data_store, self.uid)
        if any(type(name) is not str for name in names) or len({not name for name in names}) > 1:
            raise Misuse("a commit store goes with a data store and a uid")
        for url in names[:2]:
            if _PASSWORD.search(url):
                raise Misuse("an URL with a password")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAnchor(_Anchor):
    """Says which stream a prefix holds, since an escaped name may have been cut."""

    kind: ClassVar[str] = "stream"
    stream: str

    def _check(self) -> None:
        if not isinstance(self.stream, str):
            raise Misuse(f"a stream named {self.stream!r}")
        escape(self.stream)


def _sum_of(lines: bytes) -> bytes:
    """The last line of an anchor that begins with these lines."""
    return b"crc32c %08x\n" % crc32c(lines)
