"""Closing several things one after another, whatever fails and however often the caller is cancelled.

Invariants: everything is closed once; the first error is returned, and the later ones are its notes.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["Closable", "all_closed", "joined_errors", "whole_result"]


class Closable(Protocol):
    """A resource that a session opens and closes."""

    async def aclose(self) -> None:
        """Close it. Idempotent."""


async def all_closed(opened: list[Closable]) -> BaseException | None:
    """Close all of them, the last one first, and return the first error."""
    first: BaseException | None = None
    # Until the list is empty, and not over a copy: another lease may take itself off the list during a wait.
    while opened:
        try:
            await opened.pop().aclose()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the others must be closed too
            first = joined_errors(first, error)
    return first


async def whole_result(task: asyncio.Task[BaseException | None]) -> BaseException | None:
    """Wait until a task is done, however often the caller is cancelled, and return the task's result.

    If the caller was cancelled, the cancellation is returned, with the task's error as a note.
    """
    cancelled: BaseException | None = None
    while not task.done():
        try:
            await asyncio.wait([task])  # unlike `await task`, it does not pass a cancellation on to the task
        except asyncio.CancelledError as error:
            cancelled = error
    found = task.result()
    return joined_errors(cancelled, found) if found else cancelled


def joined_errors(first: BaseException | None, error: BaseException) -> BaseException:
    """Return the first error, with the other as a note on it."""
    if first is None:
        return error
    first.add_note(f"and while closing: {type(error).__name__}: {error}")
    return first
