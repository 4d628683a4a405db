"""The process of `offload run`: a source is followed until a signal stops the process.

    SIGTERM, SIGINT    cut nothing new, commit what is in flight within `stop_seconds`, and end
    a second one       end at once; the next process continues as after a crash
    SIGHUP             nothing but a line in the log

Invariants:

- Whatever ends the process, what is committed is safe, and the next start continues behind it.
- Side tasks (the routes, the upkeep) run beside the followers and end with them. A side task that fails is
  a line in the log, and stops no follower.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from offload.follow.dispatcher import Dispatcher

__all__ = ["SideTask", "beside", "serve", "signals"]


_log: Final = logging.getLogger(__name__)


SideTask = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Something that runs beside the followers. It gets the event that is set when the process is to stop."""


async def serve(dispatcher: Dispatcher, *side_tasks: SideTask) -> None:
    """Follow the source until a signal ends the process. Raises `TimeoutError` if ending takes too long."""
    stopping = asyncio.Event()
    with signals(stopping):
        tasks = [asyncio.create_task(beside(each(stopping))) for each in side_tasks]
        try:
            await dispatcher.run(stopping)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def beside(side_task: Coroutine[Any, Any, None]) -> None:
    """Run something beside the work of the process. If it fails, that is a line in the log."""
    try:
        await side_task
    except Exception:  # noqa: BLE001 - whatever it is, it must not stop the work
        _log.exception("a side task of the process failed; the process continues without it")


@contextmanager
def signals(stopping: asyncio.Event) -> Iterator[None]:
    """Set `stopping` at the first signal to stop, and cancel the task of the caller at the second."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def stop(name: str) -> None:
        if stopping.is_set():
            _log.warning("%s again: stop at once", name)
            task.cancel()
            return
        _log.warning("%s: finish what is in flight, and stop", name)
        stopping.set()

    before = signal.getsignal(signal.SIGTERM)
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop, each.name)
    ignored = "SIGHUP is ignored: restart to change the configuration"
    loop.add_signal_handler(signal.SIGHUP, _log.warning, ignored)
    try:
        yield
    finally:
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(each)
        signal.signal(signal.SIGTERM, before)  # the loop leaves none, and process 1 would be deaf as it ends
