"""A context manager for errors that a clause expects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from offload.ground.errors import OffloadError

E = TypeVar("E", bound=BaseException)


@contextmanager
def raises(kind: type[E], what: str) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of this kind.

    Fail with `what` if there is none, or another of the framework's errors.
    """
    try:
        with pytest.raises(kind) as caught:
            yield caught
    except OffloadError as error:
        pytest.fail(f"{what}: expected {kind.__name__}; found {type(error).__name__}: {error}")
    except pytest.fail.Exception as failure:
        if not str(failure).startswith("DID NOT RAISE"):
            raise
        pytest.fail(f"{what}: expected {kind.__name__}; found no error")


def class_of(error: OffloadError) -> type[OffloadError]:
    """Return the framework's own class of an error. A backend may raise a subclass of its own."""
    return next(each for each in type(error).__mro__ if each.__module__ == OffloadError.__module__)
