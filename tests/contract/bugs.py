"""Deliberate bugs: each is a broken backend and the one clause that it violates.

The class is the bug. The first sentence of its docstring says what the class does wrong. The rest says
where such a bug was seen, or what causes it. docs/make_conformance_bugs.py makes docs/conformance-bugs.md
from both.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T", bound=type)

SENTENCE_ENDS: Final = re.compile(r"(?<=\.)\s")


@dataclass(frozen=True, slots=True)
class Bug:
    """A broken backend and the clause that must catch it."""

    make: Any
    """The class, which opens the backend as its sound base does."""

    clause: str
    """The name of the test that must catch it."""

    @property
    def name(self) -> str:
        """Return the name of the class."""
        return str(self.make.__name__)

    @property
    def does(self) -> str:
        """Return the sentence that says what the backend does wrong."""
        return self._sentences[0]

    @property
    def comes_from(self) -> str:
        """Return where such a bug was seen, or what causes it."""
        return self._sentences[1]

    @property
    def _sentences(self) -> list[str]:
        text = " ".join(inspect.cleandoc(self.make.__doc__).split())
        return SENTENCE_ENDS.split(text, maxsplit=1)


def breaks(clause: str, room: list[Bug]) -> Callable[[T], T]:
    """Return a decorator that adds a class to `room` as a bug that this clause catches."""

    def written_down(make: T) -> T:
        room.append(Bug(make, f"test_{clause}"))
        return make

    return written_down
