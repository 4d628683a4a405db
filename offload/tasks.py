"""Doing one thing for many items, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


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


async def in_order(
    work: Callable[[T], Coroutine[Any, Any, R]], items: AsyncIterable[T], *, at_once: int
) -> AsyncGenerator[tuple[T, R], None]:
    """Each item with its result, in order of the items, `at_once` under way. Close it.

    An error is raised in its item's turn: what came before was yielded. What is under way then is cancelled.
    """
    under_way: deque[tuple[T, asyncio.Task[R]]] = deque()
    try:
        async for item in items:
            under_way.append((item, asyncio.create_task(work(item))))
            if len(under_way) == at_once:
                yield under_way[0][0], await under_way[0][1]
                under_way.popleft()
        while under_way:
            yield under_way[0][0], await under_way[0][1]
            under_way.popleft()
    finally:
        for _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)


async def one_by_one(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """The items, for `in_order`."""
    for item in items:
        yield item


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
