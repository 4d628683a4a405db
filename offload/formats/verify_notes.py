"""The notes of a verify that takes days: how far it has read the tier, and when it read which keys.

One JSON object, `tier.verified`. `offload run` writes it every few minutes and when it stops, and continues
from there. It decides nothing about data: if it is lost or damaged, the next round begins at the first key.

    since_ms    when the first round of this tier began
    by          the process that works on the round; empty if none does
    saved_ms    when these notes were written
    reached     the key up to which this round has judged everything; empty if it has judged nothing
    ended_ms    when this round ended; null while it is under way
    marks       of this round, keys with the times at which they were reached, the first one an empty key
    before      the marks of the round before

Invariants: the marks ascend by key and by time; there are at most `MARKS_MAX` of them, and then every other
one is dropped, so that the age that they show is never too low. Times are milliseconds since 1970.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

__all__ = ["VerifyNotes"]

FORMAT_VERSION: Final = 1
MARKS_MAX: Final = 64
MARK_MS: Final = 60_000
"""The least time between two marks."""
VERIFY_NOTES_SIZE_BYTES_MAX: Final = 1 << 20

Marks = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyNotes:
    """The notes, decoded. Immutable. Fields as at the head of this module."""

    since_ms: int
    by: str = ""
    saved_ms: int = 0
    reached: str = ""
    ended_ms: int | None = None
    marks: Marks = ()
    before: Marks = ()

    @property
    def began_ms(self) -> int | None:
        """When this round began. None if none ever did."""
        return self.marks[0][1] if self.marks else None

    @property
    def oldest_ms(self) -> int:
        """The time since which the fragment that was read the longest ago has not been read, at the earliest.

        Before the end of the first round it is the beginning of that round: nobody has noted earlier reads.
        """
        if self.ended_ms is not None and self.marks:
            return self.marks[0][1]
        passed = [at_ms for key, at_ms in self.before if key <= self.reached]
        return passed[-1] if passed else self.since_ms

    def begun(self, now_ms: int) -> VerifyNotes:
        """Return the notes of a new round."""
        before = self.marks if self.ended_ms is not None else self.before
        return replace(self, reached="", ended_ms=None, marks=(("", now_ms),), before=before)

    def reaching(self, key: str, now_ms: int) -> VerifyNotes:
        """Return the notes after everything up to `key` was judged."""
        marks = self.marks
        if marks and now_ms - marks[-1][1] >= MARK_MS and key > marks[-1][0]:
            marks = (*marks, (key, now_ms))
            marks = marks if len(marks) <= MARKS_MAX else marks[::2]
        return replace(self, reached=key, marks=marks)

    def encode(self) -> bytes:
        """Return the object's bytes."""
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, raw: bytes) -> VerifyNotes | None:
        """Undo `encode`. Returns None for anything else: the notes are then begun anew."""
        try:
            found: dict[str, Any] = json.loads(raw) if len(raw) <= VERIFY_NOTES_SIZE_BYTES_MAX else {}
            if found.pop("format_version") != FORMAT_VERSION:
                return None
            for name in ("marks", "before"):
                found[name] = tuple((str(key), int(at_ms)) for key, at_ms in found[name])
            ended_ms = found["ended_ms"]
            return cls(
                since_ms=int(found["since_ms"]),
                by=str(found["by"]),
                saved_ms=int(found["saved_ms"]),
                reached=str(found["reached"]),
                ended_ms=None if ended_ms is None else int(ended_ms),
                marks=found["marks"],
                before=found["before"],
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
