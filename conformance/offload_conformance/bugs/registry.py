"""The register of planted bugs: a class with one mistake, the clause that finds it, and its sound class.

The first sentence of a class's docstring says what the class does wrong. The rest says where such a bug was
seen, or what causes it. `trial` checks the invariant: the clause passes on the sound class, and fails on the
bug.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from offload.native.offloader import ObjectStoreOffloader
from offload.store.memory import MemoryStore

T = TypeVar("T", bound=type)
OpenClient = Callable[[], Any]
"""Opens one more client of one and the same place."""

Proof = Callable[[OpenClient], Awaitable[None]]
"""Raises if the place breaks the contract."""

SENTENCE_ENDS: Final = re.compile(r"(?<=\.)\s")
SOUND: Final = (MemoryStore, ObjectStoreOffloader)
"""Sound classes of the core. Others have a `KIND`, and are opened by a URL."""

BUGS: Final[dict[str, Bug]] = {}
"""Every bug that is registered so far, by name. `bugs.load` registers those of the suite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A backend with one mistake."""

    backend: Any
    """The class, which is opened as its sound class is."""

    clause: str
    """The id of the clause that finds it, as reports have it: `store/puts_are_whole`."""

    sound: type
    """The class without the mistake from which it is made."""

    proof: Proof | None = None
    """Shows the mistake without the suite. If it is None, the clause is the proof: it passes on `sound`."""

    @property
    def name(self) -> str:
        """Return the name of the class."""
        return str(self.backend.__name__)

    @property
    def layer(self) -> str:
        """Return the layer of the clause: `store`, `contract` or `protocol`."""
        return self.clause.partition("/")[0]

    @property
    def test(self) -> str:
        """Return the name of the test that is the clause."""
        return f"test_{self.clause.partition('/')[2]}"

    @property
    def does(self) -> str:
        """Return the sentence that says what the backend does wrong."""
        return self._sentences[0]

    @property
    def comes_from(self) -> str:
        """Return where such a bug was seen, or what causes it."""
        return " ".join(self._sentences[1:])

    @property
    def _sentences(self) -> list[str]:
        text = " ".join(inspect.cleandoc(self.backend.__doc__).split())
        return SENTENCE_ENDS.split(text, maxsplit=1)


def bug(clause: str, proof: Proof | None = None) -> Callable[[T], T]:
    """Return a decorator that registers a class as a bug that this clause finds."""

    def register(backend: T) -> T:
        assert backend.__name__ not in BUGS, f"two bugs have the name {backend.__name__}"
        BUGS[backend.__name__] = Bug(backend=backend, clause=clause, sound=sound_of(backend), proof=proof)
        return backend

    return register


def sound_of(backend: type) -> type:
    """Return the sound class from which a backend is made: itself, if it is sound."""
    return next(base for base in backend.__mro__ if "KIND" in vars(base) or base in SOUND)
