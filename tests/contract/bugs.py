"""How a deliberate bug is written down: a broken backend, and the one clause that it breaks.

The class is the bug. The first sentence of its docstring says what it does wrong, and the rest where such a
bug was seen, or how it comes about; docs/conformance-bugs.md is made of both (docs/make_conformance_bugs.py).
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
    """A broken backend."""

    make: Any
    """The class: opens the backend, as its sound base does."""

    clause: str
    """The name of the test that must catch it."""

    @property
    def name(self) -> str:
        """The class's name."""
        return str(self.make.__name__)

    @property
    def does(self) -> str:
        """What it does wrong."""
        return self._sentences[0]

    @property
    def comes_from(self) -> str:
        """Where such a bug was seen, or how it comes about."""
        return self._sentences[1]

    @property
    def _sentences(self) -> list[str]:
        text = " ".join(inspect.cleandoc(self.make.__doc__).split())
        return SENTENCE_ENDS.split(text, maxsplit=1)


def breaks(clause: str, room: list[Bug]) -> Callable[[T], T]:
    """Write a class down in `room` as a bug that this clause catches."""

    def written_down(make: T) -> T:
        room.append(Bug(make, f"test_{clause}"))
        return make

    return written_down
