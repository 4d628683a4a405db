"""Commands of a person to a process that runs: try a stream now, copy what it has, pause it, resume it.

A pause by a person, and the reason of a pause by an error, are noted in a file beside the door. So the next
process of the same configuration begins with them: a restart neither resumes a stream that a person has
paused, nor tells the same reason a second time.

Invariants: the file is replaced as a whole. If it cannot be read or written, the notes count for this process
alone, and the log says so. It is in a folder that a reboot may empty, and other machines do not see it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from offload.contracts.events import Event, StreamPaused, StreamResumed
from offload.follow.dispatcher import Dispatcher
from offload.follow.gaps import SeenTail
from offload.follow.pauses import PausedBefore
from offload.follow.rules import FollowStatus, Verb
from offload.ground.env import Env
from offload.ground.errors import NotOffloaded
from offload.ground.outside import Unreadable, json_outside, read_outside
from offload.model.own_names import named_so
from offload.service.door import Door

__all__ = ["Commanding", "PauseNotes"]


OUTCOME_SECONDS: Final = 15.0
"""How long a command waits for its outcome. A copy that is under way may take longer."""

NOTES_SIZE_BYTES_MAX: Final = 16 * 2**20

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class PauseNotes:
    """The notes on streams that are paused or lack records: in a file, or without one in memory alone."""

    path: Path | None = None
    env: Env = field(default_factory=Env)
    tails: dict[str, SeenTail] = field(default_factory=dict)
    """The uncopied tails of streams, for the next process: a stream may be deleted meanwhile."""
    _noted: dict[str, PausedBefore] = field(default_factory=dict)

    def load(self) -> None:
        """Read the notes of the process before. Raises nothing."""
        if self.path is None:
            return
        try:
            document = json_outside(
                read_outside(self.path, size_bytes_max=NOTES_SIZE_BYTES_MAX),
                size_bytes_max=NOTES_SIZE_BYTES_MAX,
            )
            self._noted = {name: _note_from(row) for name, row in document["paused"].items()}
            self.tails = {name: _tail_from(row) for name, row in document.get("tails", {}).items()}
        except FileNotFoundError:
            return
        except (OSError, Unreadable, KeyError, TypeError, AttributeError, ValueError) as error:
            _log.warning("%s: the notes on paused streams cannot be read: %s", self.path, error)

    @classmethod
    def beside(cls, door: Door | None) -> PauseNotes:
        """Return the notes beside a door, as the process before left them. Without a door, in memory."""
        notes = cls(path=None if door is None else door.path.with_suffix(".paused"))
        notes.load()
        return notes

    def of(self, stream: str) -> PausedBefore | None:
        """Return how the process before left a stream. None if it was not paused."""
        return self._noted.get(stream)

    def emit(self, event: Event) -> None:
        """Note what an event says about a pause by an error."""
        if isinstance(event, StreamPaused):
            note = PausedBefore(
                kind=type(event.error).__name__,
                reason=str(event.error),
                since_ms=self.env.now_ms(),
                held_ms=self._before(event.stream).held_ms,
            )
            self._note(event.stream, note)
        elif isinstance(event, StreamResumed):
            self._note(event.stream, PausedBefore(held_ms=self._before(event.stream).held_ms))

    def hold(self, stream: str, *, is_held: bool) -> None:
        """Note that a person has paused or resumed a stream."""
        before = self._before(stream)
        held_ms = (before.held_ms or self.env.now_ms()) if is_held else None
        self._note(stream, replace(before, held_ms=held_ms))

    def _before(self, stream: str) -> PausedBefore:
        return self._noted.get(stream, PausedBefore())

    def _note(self, stream: str, note: PausedBefore) -> None:
        before = self._noted.pop(stream, None)
        if note != PausedBefore():
            self._noted[stream] = note
        if before != self._noted.get(stream):
            self._save("which streams are paused")

    def note_tails(self, tails: Mapping[str, SeenTail]) -> None:
        """Note what streams lack."""
        if tails != self.tails:
            self.tails = dict(tails)
            self._save("what streams lack")

    def _save(self, what: str) -> None:
        if self.path is None:
            return
        rows = {name: _row_of(each) for name, each in self._noted.items()}
        tails = {name: astuple(each) for name, each in self.tails.items()}
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            if not rows and not tails:
                self.path.unlink(missing_ok=True)
                return
            new.write_text(json.dumps({"paused": rows, "tails": tails}), encoding="ascii")
            os.replace(new, self.path)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            _log.warning("%s: cannot note %s: %s", self.path, what, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commanding:
    """Obeys a person, for all streams of a process."""

    dispatchers: Sequence[Dispatcher]
    notes: PauseNotes

    async def obey(self, verb: Verb, streams: Sequence[str] | None) -> list[FollowStatus]:
        """Do it to the streams of these names, or to all of them, and return their statuses then.

        Raises `NotOffloaded` if one of the names is that of no stream that is followed. Then nothing is done.
        """
        owners = {status.stream: each for each in self.dispatchers for status in each.statuses}
        named = (
            list(owners) if streams is None else list(dict.fromkeys(_meant(owners, name) for name in streams))
        )
        if verb in (Verb.PAUSE, Verb.RESUME):
            for name in named:
                self.notes.hold(name, is_held=verb is Verb.PAUSE)
        _log.warning("a person says: %s %s", verb.value, ", ".join(map(repr, named)))
        return await asyncio.gather(*(_obey(owners[name], verb, name) for name in named))


def _meant(streams: Iterable[str], name: str) -> str:
    found = named_so(streams, name)
    if not found:
        raise NotOffloaded(f"stream {name!r} is not followed by this process")
    if found[1:]:
        raise NotOffloaded(f"{len(found)} streams are called {name!r}: name one of {', '.join(found)}")
    return found[0]


async def _obey(dispatcher: Dispatcher, verb: Verb, stream: str) -> FollowStatus:
    match verb:
        case Verb.RETRY:
            return await dispatcher.retry(stream, patience_seconds=OUTCOME_SECONDS)
        case Verb.COPY:
            return await dispatcher.hurry(stream, patience_seconds=OUTCOME_SECONDS)
        case Verb.PAUSE:
            return await dispatcher.hold(stream, patience_seconds=OUTCOME_SECONDS)
        case Verb.RESUME:
            return await dispatcher.let_go(stream, patience_seconds=OUTCOME_SECONDS)


def _row_of(note: PausedBefore) -> dict[str, Any]:
    return {"kind": note.kind, "reason": note.reason, "since_ms": note.since_ms, "held_ms": note.held_ms}


def _note_from(row: dict[str, Any]) -> PausedBefore:
    kind, reason, since_ms, held_ms = (row[key] for key in ("kind", "reason", "since_ms", "held_ms"))
    if not isinstance(kind, str) or not isinstance(reason, str) or not isinstance(since_ms, int):
        raise ValueError("a note has values of another type")
    if held_ms is not None and not isinstance(held_ms, int):
        raise ValueError("a note has values of another type")
    return PausedBefore(kind=kind, reason=reason, since_ms=since_ms, held_ms=held_ms)


def _tail_from(row: list[Any]) -> SeenTail:
    begin, end, is_told = row
    if not isinstance(begin, int) or not isinstance(end, int) or not isinstance(is_told, bool):
        raise ValueError("a note has values of another type")
    return SeenTail(begin, end, is_told)
