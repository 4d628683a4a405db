"""The log of a process that runs for years: one line for each event, as text or as JSON.

    2026-11-23T16:40:01.123Z info took_over stream="orders" epoch=3
    {"time": "2026-11-23T16:40:01.123Z", "level": "info", "event": "took_over", "stream": "orders", ...}

Invariants: a line is one line, whatever a stream is called. Only plain values are shown: names, numbers, and
the texts of errors, which hold no secret.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from offload.contracts.events import Event
from offload.ground.errors import OffloadError
from offload.model.own_names import own_name, with_own_names

__all__ = ["log_events"]


LEVELS: Final = {
    "CopyBegun": logging.DEBUG,
    "FragmentUploaded": logging.DEBUG,
    "ManifestCommitted": logging.DEBUG,
    "Skipped": logging.WARNING,
    "Waiting": logging.WARNING,
    "DamageFound": logging.ERROR,
    "RecordsLost": logging.ERROR,
    "StreamPaused": logging.ERROR,
}
"""The levels of events. All others are of level warning if they have an error, and info otherwise."""

PARTS: Final = {
    "manifest": ("stream", "version", "next_offset"),
    "entry": ("first_offset", "next_offset", "stored_size_bytes"),
}
"""The attributes that are shown in place of a large value."""

Advise = Callable[[str, OffloadError | None], str]
"""Returns the end of a line about a stream and its error: what to run, and what to read."""


def no_advice(stream: str, error: OffloadError | None) -> str:
    """Return nothing."""
    return ""


_log: Final = logging.getLogger("offload.run")


class EventFormatter(logging.Formatter):
    """Formats an event, or another record of the log, as one line."""

    def __init__(self, *, is_json: bool) -> None:
        super().__init__()
        self._is_json = is_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = {"time": when.replace("+00:00", "Z"), "level": record.levelname.lower()}
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        if not fields and not hasattr(record, "event"):
            fields = {"logger": record.name, "message": with_own_names(record.getMessage())}
        if record.exc_info:
            fields = {**fields, "trace": self.formatException(record.exc_info)}
        event = getattr(record, "event", "message")
        if self._is_json:
            return _escaped(json.dumps({**head, "event": event, **fields}, ensure_ascii=False))
        words = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in fields.items())
        return _escaped(" ".join((*head.values(), event, *words)))


def log_events(level: str, *, is_json: bool) -> None:
    """Write the log to stderr, from this level on, in place of the log of other commands."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EventFormatter(is_json=is_json))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries tell what is routine at level info, and their debug logs hold signatures of requests.
    root.setLevel(logging.WARNING)
    logging.getLogger("offload").setLevel(level.upper())
    logging.getLogger("offload.opening.session").setLevel(
        logging.INFO
    )  # at level debug it logs events as well


def log_event(event: Event, *, advise: Advise = no_advice) -> None:
    """Write an event to the log. If it has an error about a stream, the line ends with what to do."""
    name = type(event).__name__
    fields = _fields(event) | _next(event, advise)
    otherwise = logging.INFO if getattr(event, "error", None) is None else logging.WARNING
    _log.log(
        LEVELS.get(name, otherwise),
        name,
        extra={
            "event": re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(),
            "fields": fields,
        },
    )


def _fields(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if field.name in PARTS:
            fields |= {part: _plain(getattr(value, part)) for part in PARTS[field.name]}
        elif value is not None:
            fields[field.name] = _plain(value)
    return _with_own_name(fields)


def _next(event: Event, advise: Advise) -> dict[str, str]:
    stream, error = getattr(event, "stream", None), getattr(event, "error", None)
    if not isinstance(stream, str) or not isinstance(error, OffloadError):
        return {}
    said = advise(stream, error).removeprefix("; ")
    return {"next": said} if said else {}


def _with_own_name(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with the own name of the stream, and with its name on the tier if that is another."""
    shown = {name: with_own_names(value) if name == "error" else value for name, value in fields.items()}
    stream = fields.get("stream")
    if isinstance(stream, str) and own_name(stream) != stream:
        shown |= {"stream": own_name(stream), "on_tier": stream}
    return shown


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bool | int | str):
        return value
    return round(value, 3) if isinstance(value, float) else str(value)


def _escaped(line: str) -> str:
    """Escape characters that a terminal would obey, in the way of JSON."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)
