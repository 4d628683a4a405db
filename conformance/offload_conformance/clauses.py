"""The clauses of the contract, taken from the tests themselves (docs/conformance.md).

A clause is a test. Its id is its layer and the name of its method, such as `store/puts_are_whole`. Its text
is the first sentence of the method's docstring. So no second list can differ from the tests. The layer is
that of the class that defines the method. Parameters are cases of one clause.

This module is given classes. It knows neither pytest nor the tests.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

LAYERS: Final = ("store", "contract", "protocol", "end_to_end", "catalogue", "queue")
"""The layers, in the order in which they build on each other."""

FIRST: Final = "0.2"
"""The version of the suite that a clause belongs to if it states no other."""

_TEST: Final = "test_"
_SENTENCE_ENDS: Final = re.compile(r"(?<=\.)\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One claim of the contract."""

    id: str
    text: str
    since: str = FIRST
    advisory: bool = False
    """True for a clause newer than most backends: a failure is reported and does not change the verdict."""

    @property
    def layer(self) -> str:
        """Return the layer, the part of the id before the name."""
        return self.id.partition("/")[0]

    def matches(self, pattern: str) -> bool:
        """Return True if `--select PATTERN` selects this clause by its layer, its id, or a pattern of ids."""
        return pattern == self.layer or fnmatchcase(self.id, pattern)


def since(version: str, *, advisory: bool = False) -> Callable[[F], F]:
    """Mark a test as a clause that came with this version of the suite."""

    def mark(test: F) -> F:
        vars(test).update(since=version, advisory=advisory)
        return test

    return mark


def clause_of(suite: type, name: str) -> Clause:
    """Return the clause of the method `name` of a test class."""
    home = next(base for base in suite.__mro__ if name in vars(base))
    test: Any = vars(home)[name]
    layer: str = home.layer  # type: ignore[attr-defined]  # a class with clauses has a layer
    text = " ".join(inspect.cleandoc(test.__doc__).split())
    return Clause(
        id=f"{layer}/{name.removeprefix(_TEST)}",
        text=_SENTENCE_ENDS.split(text, maxsplit=1)[0],
        since=getattr(test, "since", FIRST),
        advisory=getattr(test, "advisory", False),
    )


def clauses_of(*suites: type) -> list[Clause]:
    """Return every clause of these classes, by layer, and within a layer in the order of the source."""
    found = {
        clause.id: clause
        for suite in suites
        for base in reversed(suite.__mro__)
        for name in vars(base)
        if name.startswith(_TEST) and callable(getattr(suite, name))
        for clause in [clause_of(suite, name)]
    }
    return sorted(found.values(), key=lambda clause: LAYERS.index(clause.layer))
