"""Running one function over many items, a bounded number of them at a time.

Invariants: no task outlives the call that started it; errors keep their own class and are never wrapped in a
group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

__all__ = ["in_order", "one_by_one", "run_each"]

T = TypeVar("T")
R = TypeVar("R")


async def run_each(work: Callable[[T], Awaitable[None]], items: Iterable[T], *, at_once: int) -> None:
    """Await `work(item)` for every item, with at most `at_once` of them running. Items start in order.

    The first error cancels the running calls. When they have ended, the error is raised alone, with its own
    cause: callers tell errors apart by class, and a group would hide the class.
    """
    # One iterator for all workers: a worker that is done takes the next item, so a slow item delays no other.
    pending = iter(items)

    async def worker() -> None:
        for item in pending:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker())
    except BaseExceptionGroup as errors:
        # Calls that failed while they were cancelled are in the group too, behind the first: it lists errors
        # in the order in which the tasks ended. `from` keeps the cause, and hides the group.
        first = _first(errors)
        raise first from first.__cause__


async def in_order(
    work: Callable[[T], Coroutine[Any, Any, R]], items: AsyncIterable[T], *, at_once: int
) -> AsyncGenerator[tuple[T, R], None]:
    """Yield each item with its result, in the order of the items. At most `at_once` calls run at a time.

    The error of an item is raised when its turn comes, after all earlier items were yielded. The calls that
    still run are then cancelled. A caller that stops early must close the generator.
    """
    under_way: deque[tuple[T, asyncio.Task[R]]] = deque()
    try:
        async for item in items:
            under_way.append((item, asyncio.create_task(work(item))))
            if len(under_way) == at_once:
                # The task leaves the queue only after it was awaited: if the caller is cancelled during the
                # wait, `finally` still finds the task, and waits until it has ended.
                yield under_way[0][0], await under_way[0][1]
                under_way.popleft()
        while under_way:
            yield under_way[0][0], await under_way[0][1]
            under_way.popleft()
    finally:
        for _, task in under_way:
            task.cancel()
        # Wait for the cancelled tasks: they may still use what the caller closes next. Their errors are
        # dropped here, or asyncio would log each of them as never retrieved.
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)


async def one_by_one(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """Yield the items as the asynchronous iterable that `in_order` takes."""
    for item in items:
        yield item


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    # A nested group comes from work that runs a group of its own.
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
