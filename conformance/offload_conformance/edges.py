"""The edges of the contract: tables from which the suite derives its questions.

Mistakes of a backend gather where a value meets a limit of what carries it: a number of 32 bits, a file name,
a header, a column. So the questions come from the types in the contract, and not from the clauses:

    KINDS     an argument of the contract        its kind: values at its edges, and the answer at each of them
    AGAIN     a method that changes something    the clauses that call it twice, also by another caller
    FIELDS    a field of a result                the clauses that compare it

`store.edges` has these tables for stores, `offloader.edges` for offloaders. This module has what both share:
the kinds, numbers at their edges, and the functions that read the contracts by inspection.

Invariants: each argument of an abstract method has a row, each row has an argument, and each row names a
clause or says why none asks (tests/conformance_box/test_edges.py). A value is refused by the error of its
row, before the call has any effect, or it is answered exactly. The exact answer is the definition in the
contract, such as `clip` for a span. Knows neither pytest nor a backend.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Final, TypeVar

from offload.ground.errors import OffloadError

T = TypeVar("T")

Error = type[OffloadError]
"""The error that the contract names for a value. None: the call is answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentKind:
    """A kind of argument: its edges, and the clauses that ask at each of them."""

    asked_by: Sequence[str] = ()
    taken: Sequence[Any] = ()
    """Values that are answered exactly."""

    refused: Mapping[Error, Sequence[Any]] = field(default_factory=dict)
    """Values that raise this error before the call has any effect."""

    because: str = ""
    """The reason, if no clause asks."""

    def edges(self) -> Iterator[tuple[Any, Error | None]]:
        """Yield each value with the error that it raises, or None if it is answered."""
        for value in self.taken:
            yield value, None
        for error, values in self.refused.items():
            for value in values:
                yield value, error


# Numbers at their edges.

POSITIVE: Final = tuple(
    number for power in (31, 32, 53, 63, 64) for number in (2**power - 1, 2**power, 2**power + 1)
)
"""The last number that a type holds and the first that it does not: int32, uint32, double, int64, uint64."""

NUMBERS: Final = (0, 1, *POSITIVE, 2**32 + 2)
"""2**32 + 2 is 2 for a program that keeps 32 bits of it."""

NEGATIVE: Final = (-1, -(2**31), -(2**32), -(2**63) - 1, 1 - 2**64)
"""1 - 2**64 is 1 for a program that keeps 64 bits of it."""


# Inspection of the contracts.


def methods_of(contract: type) -> Iterator[tuple[str, Any]]:
    """Yield every public method that a contract defines."""
    for name, method in vars(contract).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            yield name, method


def arguments_of(*contracts: type) -> set[str]:
    """Return every argument of the contracts' methods, and the fields of each dataclass among them."""
    found: set[str] = set()
    for contract in contracts:
        for _, method in methods_of(contract):
            for name, parameter in [*inspect.signature(method).parameters.items()][1:]:
                found |= {f"{name}: {parameter.annotation}"}
                found |= _fields_in(str(parameter.annotation), contract)
    return found


def changes_of(*contracts: type, reads: Container[str]) -> set[str]:
    """Return the methods of the contracts that change something, as `class.method`: all except `reads`."""
    return {
        f"{contract.__name__}.{name}"
        for contract in contracts
        for name, _ in methods_of(contract)
        if name not in reads
    }


def fields_of(*results: type) -> set[str]:
    """Return the fields of dataclasses, as `class.field`."""
    return {f"{result.__name__}.{each.name}" for result in results for each in fields(result)}


def _fields_in(annotation: str, contract: type) -> set[str]:
    """Return the fields of the dataclasses that an annotation names, with their types."""
    known = vars(sys.modules[contract.__module__])
    return {
        f"{named.__name__}.{each.name}: {each.type}"
        for named in map(known.get, re.findall(r"\w+", annotation))
        if isinstance(named, type) and is_dataclass(named)
        for each in fields(named)
    }


# Questions.


def varied(plain: T, kinds: Mapping[str, ArgumentKind]) -> Iterator[tuple[T, Error | None]]:
    """Yield a dataclass with one field after the other at each of its edges, and with all of them at one.

    Each comes with the error that it raises, or None. `kinds` has the rows of its fields.
    """
    known: Any = plain  # a dataclass, which no type can say
    rows = {each.name: kinds[f"{type(plain).__name__}.{each.name}: {each.type}"] for each in fields(known)}
    for name, kind in rows.items():
        for value, error in kind.edges():
            yield replace(known, **{name: value}), error
    first, *others = rows.values()
    for value in first.taken if others else ():
        yield replace(known, **dict.fromkeys(rows, value)), None
