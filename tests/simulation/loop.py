"""An event loop in which nothing happens by itself: when every task waits, a director decides what is next.

    loop = DirectedLoop(director)       # director(wait) is called when no task can go on
    loop.run_until_complete(job)

Time is a number that the director moves; `wait` is how long it may move it before a timer is due, None where
there is none. Work for threads runs at once, in the caller's. So the same decisions give the same history.

The selector is where an event loop waits for the world outside. Ours has no outside: it asks the director.
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
    """See the module's head."""

    def __init__(self, director: Director) -> None:
        self.now = 0.0
        """Seconds since the world began."""
        super().__init__(_NoWorldOutside(director))
        numbers = count()
        self.set_task_factory(lambda loop, coro, **named: _NumberedTask(next(numbers), coro, loop, **named))

    def time(self) -> float:
        """The director's time."""
        return self.now

    def run_in_executor(  # type: ignore[override]  # the base class promises a future of any kind
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run it at once."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:  # noqa: BLE001 - handed to whoever waits, as an executor does
            future.set_exception(exc)
        return future


class _NumberedTask(asyncio.Task[Any]):
    """Task groups cancel in the order of a set: here that is by number, and not by address."""

    def __init__(self, number: int, coro: Any, loop: Any, **named: Any) -> None:
        self._number = number
        super().__init__(coro, loop=loop, **named)

    def __hash__(self) -> int:
        return self._number


class _NoWorldOutside(selectors.BaseSelector):
    """Never finds a file ready. The loop's own wake-up pipe is registered, and never used."""

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
