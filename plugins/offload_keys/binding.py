"""The binding of a wrapped key to its label and its context: the associated data, and AES-256-GCM under it.

    sealed key = nonce (12 bytes), the key encrypted (32 bytes), tag (16 bytes)

Invariants: one label and one context have one spelling, and no other pair has the same; a nonce is random.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_SIZE_BYTES: Final = 32
NONCE_SIZE_BYTES: Final = 12
SEALED_SIZE_BYTES: Final = NONCE_SIZE_BYTES + KEY_SIZE_BYTES + 16


def bound(label: str, context: Mapping[str, str]) -> bytes:
    """Return the associated data of a label and a context."""
    return json.dumps([label, dict(context)], sort_keys=True, separators=(",", ":")).encode()


def sealed(master: bytes, key: bytes, associated: bytes) -> bytes:
    """Return `key` sealed by `master`. It opens with the same associated data alone."""
    nonce = os.urandom(NONCE_SIZE_BYTES)  # noqa: TID251 - a nonce from outside could repeat, and break the seal
    return nonce + AESGCM(master).encrypt(nonce, key, associated)


def opened(master: bytes, raw: bytes, associated: bytes) -> bytes | None:
    """Undo `sealed`. None if this master key and associated data did not seal `raw`."""
    if len(raw) != SEALED_SIZE_BYTES:
        return None
    try:
        return AESGCM(master).decrypt(raw[:NONCE_SIZE_BYTES], raw[NONCE_SIZE_BYTES:], associated)
    except InvalidTag:
        return None
