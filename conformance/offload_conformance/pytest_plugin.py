"""A pytest plugin for authors of backends: assertions of clauses show what they expected and found.

Pytest rewrites assertions while it imports a module, so clauses must be registered before anything imports
them. The entry point `pytest11` does that in an author's tests, and `-p` in `offload conformance`. Without
this module they would be rewritten if installed from a wheel, which lists its files, but not if editable.

Pytest shows some thirty characters of each side of a comparison. For clauses this module shows more, and
where the two sides differ. It leaves assertions of an author's own tests to pytest.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final

import pytest

REWRITTEN: Final = (
    "catalogue",
    "contenders",
    "end_to_end",
    "offloader",
    "opened",
    "protocol",
    "queues",
    "race",
    "same",
    "store",
)
"""The modules and packages of this package whose assertions are about a backend."""

SHOWN: Final = 140
"""The number of characters shown of a value. Pytest cuts the text of an assertion at 640."""

pytest.register_assert_rewrite(*(f"offload_conformance.{name}" for name in REWRITTEN))

_asked: list[pytest.Item] = []
"""The running test, if it is a clause."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note the running test if it is a clause."""
    module = getattr(getattr(item, "function", None), "__module__", "")
    _asked[:] = [item] if module.startswith(f"{__package__}.") else []
    try:
        return (yield)
    finally:
        _asked.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Return the text of a failed comparison: the found value on the left, the expected one on the right."""
    if not _asked:
        return None
    lines = [f"{shown(left)} {op} {shown(right)}"]
    if op != "==":
        return lines
    if isinstance(left, set | frozenset) and isinstance(right, set | frozenset):
        lines += [f"not expected: {shown(left - right)}"] * (not left <= right)
        lines += [f"not found: {shown(right - left)}"] * (not right <= left)
    elif isinstance(left, bytes | list | tuple) and isinstance(right, bytes | list | tuple):
        lines.append(first_difference(left, right))
    return lines


def first_difference(found: Sequence[object], expected: Sequence[object]) -> str:
    """Return the first position at which two sequences differ, and both values there."""
    pairs = enumerate(zip(found, expected, strict=False))
    first = next((n for n, (one, other) in pairs if one != other), min(len(found), len(expected)))
    there, wanted = shown(found[first : first + 1]), shown(expected[first : first + 1])
    return f"they differ at {first}: found {there} of {len(found)}, expected {wanted} of {len(expected)}"


def shown(value: object) -> str:
    """Return a value as text. A long one is cut."""
    is_long = isinstance(value, bytes | str | list | tuple) and len(value) > SHOWN
    text = repr(value[:SHOWN] if is_long else value)  # type: ignore[index]  # a long one is a sequence
    return text if len(text) <= SHOWN and not is_long else f"{text[: SHOWN - 3]}..."
