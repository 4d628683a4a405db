"""Coroutines in plain pytest functions, with a fixture `run`, and a deadline for every test that uses it.

A backend may hang in three ways: a coroutine that nobody resumes, a call that blocks the event loop, a thread
that does not end. Pytest's thread must survive all of them. So the event loop has a thread of its own, and
pytest's thread waits for it until the deadline at most.

        the deadline passes     the test fails, and its message says where the backend waits
        the test ends           its tasks are cancelled. If they or the loop do not end within a grace period,
                                both are left behind, and so are the threads that the test started, because
                                Python would join them before it exits

Invariants: `run` returns or raises in time, whatever the coroutine does. Clients are opened on the loop's
thread, because some belong to the thread that created them.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import thread as pools
from concurrent.futures import wait as wait_for
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, Protocol, TypeVar

import pytest

T = TypeVar("T")

CLAUSE_SECONDS_MAX: Final = 120.0
"""The deadline of one case of a clause, with its setup.

The slowest case makes about 10,000 small requests.
"""

GRACE_SECONDS: Final = 5.0
"""How long cancelled tasks may take to end."""

WAITS_SHOWN_MAX: Final = 3
OWN: Final = (asyncio.__path__[0], threading.__file__, pools.__file__, str(Path(__file__).parent))
"""Files whose code waits on behalf of its caller. A message names the caller instead."""


class Run(Protocol):
    """A function that runs a coroutine to its end, on the one event loop of this test."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Return what the coroutine returns. Fails the test if the deadline passes first."""


class Overdue(pytest.fail.Exception):  # type: ignore[name-defined, misc]  # pytest gives its class no other name
    """The deadline of a test passed while it waited for the backend."""


class Asynchronous:
    """A mixin that gives the tests of a class the fixture `run`."""

    clause_seconds_max: float = CLAUSE_SECONDS_MAX
    """Set it higher for a distant store, and lower to find hangs sooner."""

    @pytest.fixture
    def run(self) -> Iterator[Run]:
        """Yield `run` of the test's event loop. The loop ends with the test, or is left behind."""
        loop = Loop(self.clause_seconds_max)
        yield loop.run
        loop.close()


class Loop:
    """An event loop on a thread of its own, with a deadline. It serves one test, or several in turn."""

    def __init__(self, seconds_max: float) -> None:
        self.begin(seconds_max)
        self._pooled = set(pools._threads_queues)
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_log_later)
        self._thread = threading.Thread(target=self._serve, name="conformance", daemon=True)
        self._thread.start()

    def begin(self, seconds_max: float) -> None:
        """Begin a test, whose deadline is so far away."""
        self._seconds_max = seconds_max
        self._until = time.monotonic() + seconds_max
        self.grace_seconds = min(GRACE_SECONDS, seconds_max)
        self._late = False

    def is_running_here(self) -> bool:
        """Return True if the caller runs on this loop."""
        return threading.current_thread() is self._thread

    def is_busy(self) -> bool:
        """Return True if a task is left, or if the loop does not answer."""
        asked = asyncio.run_coroutine_threadsafe(_others(), self._loop)
        done, _ = wait_for([asked], timeout=self.grace_seconds)
        return not done or bool(asked.result())

    def run(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Run a coroutine, as `Run` says.

        The first call after the deadline fails the test; teardown has a grace.
        """
        assert threading.current_thread() is not self._thread, "`run` called in a coroutine: await it instead"
        left = self.grace_seconds if self._late else max(self._until - time.monotonic(), 0)
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            done, _ = wait_for([future], timeout=left)
        except BaseException:  # Ctrl-C: the coroutine must not continue after its test has ended
            future.cancel()
            raise
        if not done:
            self._late = True
            self._overdue(future)
        return future.result()

    def close(self) -> None:
        """Cancel what still runs and end the loop within the grace, or leave both behind."""
        ended = asyncio.run_coroutine_threadsafe(self._cancelled(), self._loop)
        done, _ = wait_for([ended], timeout=self.grace_seconds)
        if done:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(self.grace_seconds)
        if self._thread.is_alive():
            self._leave_behind()
        else:
            self._loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _cancelled(self) -> None:
        """End every task except this one, and the pool of `to_thread` too."""
        others = await _others()
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    def _overdue(self, future: Future[Any]) -> NoReturn:
        waits = self._waits()
        future.cancel()
        raise Overdue(
            f"expected an answer within {self._seconds_max:g} s; found the backend still waiting"
            + "".join(f", {each}" for each in waits),
            pytrace=False,
        )

    def _waits(self) -> list[str]:
        """Return where the loop's thread is blocked, or if it is not, where its tasks wait."""
        asked = threading.Event()
        self._loop.call_soon_threadsafe(asked.set)
        if not asked.wait(1.0):
            frame = sys._current_frames().get(self._thread.ident or 0)
            return [f"and blocks the event loop {_place([*_callers(frame)])}"]
        tasks = sorted(asyncio.all_tasks(self._loop), key=lambda task: task.get_name())
        waits = [_awaiting(task) for task in tasks]
        theirs = [frames for frames in waits if any(map(_is_theirs, frames))]
        return [*dict.fromkeys(_place(frames) for frames in theirs or waits)][:WAITS_SHOWN_MAX]

    def _leave_behind(self) -> None:
        """Let Python exit without the pool threads that the test started.

        It joins all threads on this list.
        """
        for thread in set(pools._threads_queues) - self._pooled:
            pools._threads_queues.pop(thread, None)  # type: ignore[attr-defined]  # typed as read-only


async def _others() -> set[asyncio.Task[Any]]:
    """Return all tasks of the loop except this one."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


def _log_later(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an unhandled error on the loop's own thread, or not at all after the loop has ended.

    Asyncio calls this in the middle of garbage collection. To format its traceback, a log record parses
    Python source. If Python 3.11 was parsing at that moment, the outer parse then fails with a `SystemError`.
    """
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.default_exception_handler, context)


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame of a thread and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaiting(task: asyncio.Task[Any]) -> list[FrameType]:
    """Return the frames of a waiting task along its chain of awaits, the innermost first."""
    frames: list[FrameType] = []
    waits: Any = task.get_coro()
    while waits is not None:
        if (frame := getattr(waits, "cr_frame", None)) is not None:
            frames.append(frame)
            waits = waits.cr_await
        elif (generator := _stepped(waits)) is not None:
            frames.append(generator.ag_frame)
            waits = generator.ag_await
        else:
            break
    return frames[::-1]


def _stepped(step: object) -> Any:
    """Return the async generator behind a step of `async for`. Only the garbage collector can name it."""
    generators = (each for each in gc.get_referents(step) if inspect.isasyncgen(each))
    return next((each for each in generators if each.ag_frame is not None), None)


def _is_theirs(frame: FrameType) -> bool:
    """Return True if the code of a frame is neither Python's own nor the suite's."""
    return not frame.f_code.co_filename.startswith(OWN)


def _place(frames: Sequence[FrameType]) -> str:
    """Return the place of the innermost frame that is neither Python's nor the suite's, if there is one."""
    at = next(filter(_is_theirs, frames), next(iter(frames), None))
    return "somewhere" if at is None else f"in `{at.f_code.co_name}` at {at.f_code.co_filename}:{at.f_lineno}"
