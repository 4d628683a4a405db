"""An event loop in which nothing happens by itself. If every task waits, a director decides what is next.

    loop = DirectedLoop(director)       # director(wait) is called when no task can go on
    loop.run_until_complete(job)

Time is a number that the director moves. `wait` is the time until the next timer is due, or None if there is
no timer. Work for threads runs at once, in the caller's thread. So the same decisions give the same history.

An event loop waits for the outside world in its selector. This one has no outside world, so it asks the
director.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")
Director = Callable[[float | None], None]


class DirectedLoop(asyncio.SelectorEventLoop):
    """A loop, as the module's docstring describes it."""

    def __init__(self, director: Director) -> None:
        self.now = 0.0
        """The seconds since the world began."""
        super().__init__(_NoWorldOutside(director))
        numbers = count()
        self.set_task_factory(lambda loop, coro, **named: _NumberedTask(next(numbers), coro, loop, **named))

    def time(self) -> float:
        """Return the director's time."""
        return self.now

    def run_in_executor(  # type: ignore[override]  # the base class promises a future of any kind
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run the call at once."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:  # noqa: BLE001 - passed to the caller that waits, as an executor does
            future.set_exception(exc)
        return future


class _NumberedTask(asyncio.Task[Any]):
    """A task with a number as its hash. Task groups cancel in the order of a set, which must repeat."""

    def __init__(self, number: int, coro: Any, loop: Any, **named: Any) -> None:
        self._number = number
        super().__init__(coro, loop=loop, **named)

    def __hash__(self) -> int:
        return self._number


class _NoWorldOutside(selectors.BaseSelector):
    """A selector that never finds a file ready. The loop registers its wake-up pipe, and never uses it."""

    def __init__(self, director: Director) -> None:
        self._director = director
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, fileobj if isinstance(fileobj, int) else -1, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self.unregister(fileobj)
        return self.register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._director(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[fileobj]
