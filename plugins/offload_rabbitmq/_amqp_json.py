"""AMQP values as JSON, for people and their tools. They cannot be converted back.

bytes                       {"encoding": "base64", "value": "..."}
symbol, uuid, decimal       text
timestamp                   text as in RFC 3339, UTC; a number of milliseconds beyond the years 1 to 9999
infinity and NaN            "Infinity", "-Infinity", "NaN"
map                         an object whose keys are text; {"encoding": "pairs", "value": [[key, value]]}
                            if two keys have the same text
described value             {"descriptor": ..., "value": ...}
"""

from __future__ import annotations

import base64
import math
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from offload_rabbitmq._amqp_values import Timestamp

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_jsonable(value: Any) -> Any:
    """Return `value`, or a whole message, as values that `json.dumps(..., allow_nan=False)` accepts.

    Accepts all that `decode` returns, and values of AMQP 0-9-1 as pamqp returns them. Raises `TypeError` for
    anything else.
    """
    match value:
        case Timestamp():
            return _timestamp(value)
        case datetime():
            return _timestamp(Timestamp((value - _EPOCH) // timedelta(milliseconds=1)))
        case None | bool() | int():
            return value
        case str() | UUID() | Decimal():
            return str(value)
        case float():
            return value if math.isfinite(value) else _not_finite(value)
        case bytes() | bytearray():
            return {"encoding": "base64", "value": base64.b64encode(value).decode()}
        case list():
            return [to_jsonable(element) for element in value]
        case dict():
            return _map(value)
    if is_dataclass(value) and not isinstance(value, type):  # a message, or a described value
        return {part.name: to_jsonable(getattr(value, part.name)) for part in fields(value)}
    raise TypeError(f"no AMQP value: {type(value).__name__}")


def _timestamp(value: Timestamp) -> str | int:
    try:
        moment = _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        return int(value)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _map(value: dict[Any, Any]) -> dict[str, Any]:
    pairs = [(to_jsonable(key), to_jsonable(item)) for key, item in value.items()]
    named = {_text(key): item for key, item in pairs}
    if len(named) == len(pairs):
        return named
    return {"encoding": "pairs", "value": [list(pair) for pair in pairs]}


def _text(key: Any) -> str:
    """Return a jsonable key as text."""
    match key:
        case str():
            return key
        case None | bool():
            return {None: "null", True: "true", False: "false"}[key]
        case {"encoding": "base64", "value": str(encoded)}:
            return encoded
    return str(key)
