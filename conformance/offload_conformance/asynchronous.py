"""Coroutines in plain pytest functions: a fixture `run`, and no plugin."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Protocol, TypeVar

import pytest

T = TypeVar("T")


class Run(Protocol):
    """Runs a coroutine to its end, on the one event loop of this test."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Return what the coroutine returns."""


class Asynchronous:
    """Mixed into a test class, gives its tests the fixture `run`."""

    @pytest.fixture
    def run(self) -> Iterator[Run]:
        """The test's event loop, closed after it."""
        with asyncio.Runner() as runner:
            yield runner.run
