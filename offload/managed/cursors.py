"""Cursors: consumers by name, each with the offset up to which it has acknowledged everything.

    {"version": 1, "cursors": {"billing": 6250, "search": 12500}}

The positions are saved as one small note: beside the log, or as an object of any store. They are saved some
time after they moved, so a crash may take the last acknowledgements back. A consumer then gets those messages
again, and never misses one.

Invariants: a position never falls, unless its cursor is reset; none is beyond the end of the stream. A
position that was kept and is beyond the end becomes the end: what it acknowledged is lost with a disk, and
the next records with those offsets are others.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from offload.contracts.log import LedgerLog
from offload.contracts.store import Body, ObjectStore, Span
from offload.ground.errors import Corrupt, Misuse, NotFound, UnsupportedFormat
from offload.ground.outside import json_outside

__all__ = ["CursorNote", "LogCursors", "StoreCursors"]


CURSORS_VERSION: Final = 1
CURSORS_NOTE: Final = "cursors"
NAME_SIZE_MAX: Final = 256
NOTE_SIZE_BYTES_MAX: Final = 2**20

_log: Final = logging.getLogger(__name__)


class CursorNote(ABC):
    """The note with the positions of a stream's cursors, in the log or on a store."""

    __slots__ = ()

    @property
    @abstractmethod
    def where(self) -> str:
        """The file or object, for messages."""

    @abstractmethod
    async def load(self) -> bytes | None:
        """Return the note; None if there is none."""

    @abstractmethod
    async def save(self, note: bytes) -> None:
        """Replace the note, whole. It is durable when the call returns."""


@dataclass(frozen=True, slots=True)
class LogCursors(CursorNote):
    """Keeps the positions beside the log."""

    log: LedgerLog

    @property
    def where(self) -> str:
        """The log."""
        return f"{self.log.where}, note {CURSORS_NOTE!r}"

    async def load(self) -> bytes | None:
        """See `CursorNote.load`."""
        return await self.log.load_note(CURSORS_NOTE)

    async def save(self, note: bytes) -> None:
        """See `CursorNote.save`."""
        await self.log.save_note(CURSORS_NOTE, note)


@dataclass(frozen=True, slots=True)
class StoreCursors(CursorNote):
    """Keeps the positions as an object of a store, so that they outlive the machine.

    Give it a place of its own beside the tier, such as `session.store("s3://bucket/cursors")`, and the key of
    this stream. One process at a time may own the stream: the last one that saves is believed.
    """

    store: ObjectStore
    key: str

    @property
    def where(self) -> str:
        """The URL and the key."""
        return f"{self.store.url}/{self.key}"

    async def load(self) -> bytes | None:
        """See `CursorNote.load`. Loads at most one byte more than a note may have."""
        try:
            return bytes(await self.store.get(self.key, Span(0, NOTE_SIZE_BYTES_MAX + 1)))
        except NotFound:
            return None

    async def save(self, note: bytes) -> None:
        """See `CursorNote.save`."""
        await self.store.put(self.key, Body.of(note))


def encode_cursors(positions: dict[str, int]) -> bytes:
    """Return the note of these positions. Raises `Misuse` if it exceeds 1 MiB."""
    note = json.dumps({"version": CURSORS_VERSION, "cursors": positions}, sort_keys=True).encode()
    if len(note) > NOTE_SIZE_BYTES_MAX:
        raise Misuse(f"{len(positions)} cursors do not fit {NOTE_SIZE_BYTES_MAX} bytes: delete some")
    return note


def decode_cursors(note: bytes, *, where: str) -> dict[str, int]:
    """Return the positions in a note. Raises `Corrupt` or `UnsupportedFormat`."""
    if len(note) > NOTE_SIZE_BYTES_MAX:
        raise Corrupt(
            "size of the cursors", where, expected=f"at most {NOTE_SIZE_BYTES_MAX}", found=len(note)
        )
    try:
        value = json_outside(note, size_bytes_max=NOTE_SIZE_BYTES_MAX)
        version, positions = value["version"], value["cursors"]
    except (ValueError, KeyError, TypeError) as exc:
        raise Corrupt("cursors", where, expected="an object with version and cursors", found="none") from exc
    if version != CURSORS_VERSION:
        raise UnsupportedFormat(
            f"{where} has version {version!r}; this program reads version {CURSORS_VERSION}"
        )
    is_right = isinstance(positions, dict) and all(
        isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset < 2**64
        for offset in positions.values()
    )
    if not is_right:
        raise Corrupt("cursors", where, expected="an offset for each name", found="something else")
    return dict(positions)


def check_cursor_name(name: str) -> None:
    """Raise `Misuse` unless this can be the name of a cursor."""
    if not 0 < len(name) <= NAME_SIZE_MAX or not name.isprintable():
        raise Misuse(f"the name of a cursor has 1 to {NAME_SIZE_MAX} printable characters, not {name[:40]!r}")


class Cursors:
    """The cursors of one stream, of which `place` keeps the positions."""

    def __init__(self, place: CursorNote, *, stream: str) -> None:
        self._place, self._stream = place, stream
        self._positions: dict[str, int] = {}
        self._saved: dict[str, int] = {}

    @property
    def positions(self) -> Mapping[str, int]:
        """The cursors by name, each with the offset up to which everything is acknowledged."""
        return dict(self._positions)

    @property
    def slowest(self) -> int | None:
        """The lowest position. None if there is no cursor."""
        return min(self._positions.values(), default=None)

    @property
    def is_moved(self) -> bool:
        """True if there is something to save."""
        return self._positions != self._saved

    async def load(self, end: int) -> None:
        """Load the positions of a stream that ends at `end`. Raises `Corrupt` or `UnsupportedFormat`."""
        note = await self._place.load()
        if note is None:
            return
        self._saved = decode_cursors(note, where=self._place.where)
        self._positions = {name: min(offset, end) for name, offset in self._saved.items()}
        beyond = sorted(name for name, offset in self._saved.items() if offset > end)
        if beyond:
            _log.warning(
                "stream %r ends at offset %d: the cursors %s were beyond it, and begin again there",
                self._stream,
                end,
                ", ".join(f"{name!r} ({self._saved[name]})" for name in beyond),
            )

    async def save(self) -> None:
        """Save the positions, if one has moved."""
        if self.is_moved:
            positions = dict(self._positions)
            await self._place.save(encode_cursors(positions))
            self._saved = positions

    async def clear(self) -> None:
        """Save that there is no cursor."""
        self._positions.clear()
        if self._saved:
            await self.save()

    def open(self, name: str, start: int, *, end: int) -> int:
        """Return the position of a cursor, which begins at `start` if there is none."""
        if name not in self._positions:
            check_cursor_name(name)
            self._check(start, end)
            encode_cursors({**self._positions, name: start})
            self._positions[name] = start
        return self._positions[name]

    def move(self, name: str, offset: int, *, end: int, may_fall: bool = False) -> None:
        """Move a cursor. A lower offset changes nothing, unless it `may_fall`."""
        if name not in self._positions:
            raise Misuse(f"stream {self._stream!r} has no cursor {name!r}: open it first")
        self._check(offset, end)
        if may_fall or offset > self._positions[name]:
            self._positions[name] = offset

    def drop(self, name: str) -> None:
        """Forget a cursor. Idempotent."""
        self._positions.pop(name, None)

    def _check(self, offset: int, end: int) -> None:
        if not 0 <= offset <= end:
            raise Misuse(f"stream {self._stream!r} ends at offset {end}: a cursor cannot be at {offset}")
