"""The register of bugs: a class with one mistake, and the proof that shows it on that class alone.

The docstring of a class says what is wrong, which sentence of the contract that breaks, and what it costs a
user. Invariant: a proof passes on the sound class from which the bug is made, and fails on the bug.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T", bound=type)
Open = Callable[[], Any]
"""Opens one more client of one and the same place."""

Proof = Callable[[Open], Awaitable[None]]
"""Raises if the place breaks the contract."""

BUGS: dict[str, Bug] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A backend with one mistake."""

    name: str
    backend: type
    sound: type
    proof: Proof

    @property
    def kind(self) -> str:
        """The kind of the backend: `store` or `offloader`."""
        return self.sound.KIND  # type: ignore[attr-defined, no-any-return]  # every sound class says so


def bug(proof: Proof) -> Callable[[T], T]:
    """Register the class, under its name in lower case, with the proof of its mistake."""

    def register(backend: T) -> T:
        name = re.sub("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", backend.__name__).lower()
        assert name not in BUGS, name
        sound = next(base for base in backend.__mro__[1:] if "KIND" in vars(base))
        BUGS[name] = Bug(name=name, backend=backend, sound=sound, proof=proof)
        return backend

    return register
