"""Doing one thing for many items, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def run_each(work: Callable[[T], Awaitable[None]], items: Iterable[T], *, at_once: int) -> None:
    """Await `work(item)` for every item, in order of their beginning, `at_once` under way.

    The first error cancels what is under way, is waited for, and is raised alone with its own cause:
    callers know errors by their classes, and a group would hide them.
    """
    pending = iter(items)

    async def worker() -> None:
        for item in pending:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker())
    except BaseExceptionGroup as errors:
        first = _first(errors)
        raise first from first.__cause__


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
