"""Tokens: how a job's batch is recognized by what it committed, when it comes again.

Attempts of a batch that has a name begin with eight bytes that are made of it, and so does each entry and
each object of theirs. The rest is random, since an attempt is never run twice. Whoever runs the batch again
finds it in the manifest.

Invariants: a UUID with a token has version 8, whose bits are its maker's own (RFC 9562, section 5.8); one
that was made at random has version 4, and no token. A copy of a fragment keeps the token, so fragments of
different tokens never become one.
"""

from __future__ import annotations

import hashlib
from typing import Final
from uuid import UUID

from offload.errors import Misuse

__all__ = ["token_for", "token_of", "with_token"]


SIZE_BYTES: Final = 8
_VERSION_BYTE: Final = 6
_VERSION_BITS: Final = 0x80
_VARIANT_BYTE: Final = 8


def token_for(name: str) -> bytes:
    """The token of a name; the empty name has none, which is the empty token."""
    if not name:
        return b""
    token = bytearray(hashlib.sha256(name.encode()).digest()[:SIZE_BYTES])
    token[_VERSION_BYTE] = _VERSION_BITS | (token[_VERSION_BYTE] & 0x0F)
    return bytes(token)


def with_token(token: bytes, random: UUID) -> UUID:
    """A UUID that begins with the token, if there is one. Raises `Misuse` for what is no token."""
    if not token:
        return random
    if len(token) != SIZE_BYTES or token[_VERSION_BYTE] & 0xF0 != _VERSION_BITS:
        raise Misuse(f"{token!r} is no token; `token_for` makes one of a name")
    rest = bytearray(random.bytes[SIZE_BYTES:])
    rest[_VARIANT_BYTE - SIZE_BYTES] = 0x80 | (rest[_VARIANT_BYTE - SIZE_BYTES] & 0x3F)
    return UUID(bytes=token + bytes(rest))


def token_of(uid: UUID) -> bytes:
    """The token with which it begins; empty for one that was made at random."""
    return uid.bytes[:SIZE_BYTES] if uid.version == 8 else b""
