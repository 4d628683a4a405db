"""The JSON of a record's value, as `offload read` prints it."""

from __future__ import annotations

import base64
import json
from json.encoder import encode_basestring
from typing import Any, Final

__all__ = ["value_text"]

# `json.dumps` with these arguments would make an encoder for each value.
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def value_text(value: Any) -> str:
    """Return a JSON value. Bytes become text if they are UTF-8, otherwise base64 with an `encoding` key."""
    if isinstance(value, bytes):
        try:
            return encode_basestring(value.decode())
        except UnicodeDecodeError:
            return f'"{base64.b64encode(value).decode()}","encoding":"base64"'
    if isinstance(value, str):
        return encode_basestring(value)
    return _encode(value)
