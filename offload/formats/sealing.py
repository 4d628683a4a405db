"""Sealing the parts of a fragment: AES-256-GCM under a data key that encrypts this fragment and nothing else.

Each block and each encrypted section is one message. A seal over everything that stays readable (header,
index, directory, trailer) is one more. The associated data of a message says what it is and where it belongs.
So a part of another fragment, another place or another size does not open, even if all CRCs fit.

Invariants:

- A nonce is the kind of a message and its number. A data key is drawn for one fragment of one attempt, so a
  nonce is used for one plaintext. If a part is sealed again, for a retry, its bytes must be the same: that is
  compared before anything is encrypted.
- A data key leaves the process only wrapped by the stream's key (RFC 3394).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from offload.formats.layout import layout
from offload.ground.errors import Corrupt, Denied, Misuse
from offload.ground.extras import missing_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_SIZE_BYTES: Final = 32
WRAPPED_SIZE_BYTES: Final = KEY_SIZE_BYTES + 8
TAG_SIZE_BYTES: Final = 16
"""How much longer a sealed part is than its plain bytes."""

CONTEXT: Final = layout(
    "Associated data of an encrypted part",
    ("kind", "B", "1 block, 2 section, 3 seal"),
    ("incarnation", "16s", "UUID of the stream's incarnation"),
    ("attempt", "16s", "UUID of the attempt"),
    ("first_offset", "Q", "the fragment's first offset"),
    ("number", "Q", "number of the block, or of the section in the directory; zero for the seal"),
    ("plain_size_bytes", "Q", "plain length of the part; zero for the seal"),
    ("codec", "B", "compression of the part, before it was encrypted"),
    ("is_last", "B", "1: the last block of the fragment"),
)

KEY_SECTION: Final = layout(
    "Section `key` of an encrypted fragment",
    ("stream_key", "16s", "UUID of the stream's key"),
    ("wrapped", f"{WRAPPED_SIZE_BYTES}s", "the data key, wrapped by the stream's key (RFC 3394)"),
)


class SealedKind(IntEnum):
    """The kind of an encrypted part. It begins the nonce, so that numbers of two kinds never meet."""

    BLOCK = 1
    SECTION = 2
    SEAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedRange:
    """An encrypted part's place in its fragment."""

    kind: SealedKind
    number: int = 0
    plain_size_bytes: int = 0
    codec: int = 0
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DataKey:
    """The key of one fragment, with the fragment's identity. Its `repr` shows no key."""

    raw: bytes = field(repr=False)
    incarnation: UUID
    attempt: UUID
    first_offset: int
    _digests: dict[bytes, bytes] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        """Raise `TypeError`: a pickle would hold the key."""
        raise TypeError("a data key cannot be pickled")

    def seal(self, plain: bytes | memoryview, part: SealedRange) -> bytes:
        """Return a part encrypted, with its tag.

        The same part may be sealed again with the same bytes. Raises `Corrupt` for other bytes or another
        place: the source of a second pass has changed, and one nonce must not seal both.
        """
        return self._sealed(part, bytes(plain), self._context(part))

    def open(self, sealed: bytes | memoryview, part: SealedRange, *, where: str, position: int) -> bytes:
        """Undo `seal`. Raises `Corrupt` (at `position` of `where`) if any bit or the place is another one."""
        from cryptography.exceptions import InvalidTag

        what = f"seal of {part.kind.name.lower()} {part.number}"
        try:
            return self._cipher().decrypt(_nonce(part), bytes(sealed), self._context(part))
        except (InvalidTag, ValueError) as exc:
            found = "changed bytes, another place, or another key"
            raise Corrupt(what, where, expected="its own", found=found, position=position) from exc

    def tag_of(self, parts: bytes) -> bytes:
        """Return the tag that seals what stays readable, which `parts` describes. Raises as `seal` does."""
        part = SealedRange(kind=SealedKind.SEAL)
        return self._sealed(part, b"", self._context(part) + parts)

    def wrapped(self, stream_key: bytes) -> bytes:
        """Return the key, wrapped by the stream's key."""
        from cryptography.hazmat.primitives.keywrap import aes_key_wrap

        return aes_key_wrap(stream_key, self.raw)

    def _sealed(self, part: SealedRange, plain: bytes, context: bytes) -> bytes:
        # With the context: two tags of one nonce give away the key of the tags, also if only that differs.
        nonce, found = _nonce(part), hashlib.sha256(context)
        found.update(plain)
        if self._digests.setdefault(nonce, found.digest()) != found.digest():
            where = f"attempt {self.attempt}"
            raise Corrupt("bytes of a second read", where, expected="those of the first", found="other bytes")
        return self._cipher().encrypt(nonce, plain, context)

    def _cipher(self) -> AESGCM:
        return _aes_gcm(self.raw)

    def _context(self, part: SealedRange) -> bytes:
        return CONTEXT.pack(
            kind=part.kind,
            incarnation=self.incarnation.bytes,
            attempt=self.attempt.bytes,
            first_offset=self.first_offset,
            number=part.number,
            plain_size_bytes=part.plain_size_bytes,
            codec=part.codec,
            is_last=part.is_last,
        )


def unwrapped(wrapped: bytes, stream_key: bytes, *, where: str) -> bytes:
    """Undo `DataKey.wrapped`. Raises `Denied` if it is not a key that this stream's key has wrapped."""
    _need_cryptography()
    from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

    try:
        return aes_key_unwrap(stream_key, wrapped)
    except (InvalidUnwrap, ValueError) as exc:
        raise Denied(f"{where}: the stream's key does not open its data key: it is another key") from exc


def _nonce(part: SealedRange) -> bytes:
    return part.kind.to_bytes(4, "big") + part.number.to_bytes(8, "big")


def _aes_gcm(key: bytes) -> AESGCM:
    _need_cryptography()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _need_cryptography() -> None:
    try:
        import cryptography  # noqa: F401 - only to see that it is installed
    except ImportError as exc:
        text = missing_text("encryption", "cryptography", "ledger-offload[encrypt]")
        raise Misuse(text) from exc
