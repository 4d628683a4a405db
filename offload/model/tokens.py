"""Tokens: the mark by which a job recognizes that a batch was committed before.

If a batch has a name, its attempts' UUIDs begin with eight bytes that are derived from it, and so do their
entries and objects. The rest of each UUID is random, because an attempt is never run twice. A job that runs
the batch again finds the token in the manifest.

Invariants:

- A UUID with a token has version 8, whose bits have no fixed meaning (RFC 9562, section 5.8). A random UUID
  has version 4, and no token.
- A copy of a fragment keeps the token, so fragments with different tokens are never copied into one.
"""

from __future__ import annotations

import hashlib
from typing import Final
from uuid import UUID

from offload.ground.errors import Misuse

__all__ = ["token_for", "token_of", "with_token"]


SIZE_BYTES: Final = 8
_VERSION_BYTE: Final = 6
_VERSION_BITS: Final = 0x80
_VARIANT_BYTE: Final = 8


def token_for(name: str) -> bytes:
    """Return the token of a name. The empty name has the empty token, which means no token."""
    if not name:
        return b""
    token = bytearray(hashlib.sha256(name.encode()).digest()[:SIZE_BYTES])
    token[_VERSION_BYTE] = _VERSION_BITS | (token[_VERSION_BYTE] & 0x0F)
    return bytes(token)


def with_token(token: bytes, random: UUID) -> UUID:
    """Return a UUID that begins with `token`, or `random` if the token is empty.

    Raises `Misuse` for a bad token.
    """
    if not token:
        return random
    if len(token) != SIZE_BYTES or token[_VERSION_BYTE] & 0xF0 != _VERSION_BITS:
        raise Misuse(f"{token!r} is not a token; make one from a name with `token_for`")
    rest = bytearray(random.bytes[SIZE_BYTES:])
    rest[_VARIANT_BYTE - SIZE_BYTES] = 0x80 | (rest[_VARIANT_BYTE - SIZE_BYTES] & 0x3F)
    return UUID(bytes=token + bytes(rest))


def token_of(uid: UUID) -> bytes:
    """Return the token with which a UUID begins. It is empty for a random UUID."""
    return uid.bytes[:SIZE_BYTES] if uid.version == 8 else b""
