"""The pieces of work of one ledger, each with its own errors, so that a failure of one stops no other.

A full disk must not keep copies from being deleted, and a store that is down must not keep cursors from being
saved. Only a claim by another process ends all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from offload.ground.env import Env
from offload.ground.errors import Fenced, OffloadError
from offload.ground.pause import Pause

__all__: list[str] = []


@dataclass(slots=True, kw_only=True)
class Chore:
    """One piece of work, which is run again and again."""

    run: Callable[[], Awaitable[None]]
    due_seconds: Callable[[], float]
    """The time until the clock alone makes something due, if the last run succeeded."""
    env: Env
    pause: Pause = field(init=False)

    def __post_init__(self) -> None:
        self.pause = Pause(env=self.env)

    async def turn(self) -> None:
        """Run, unless it failed only just now. Raises `Fenced` alone of the framework's errors."""
        if self.pause.error is not None and self.pause.left_seconds > 0:
            return
        try:
            await self.run()
        except Fenced:
            raise
        except OffloadError as error:
            self.pause.fail(error)
        else:
            self.pause.clear()

    @property
    def seconds(self) -> float:
        """The time until it may have something to do."""
        return self.due_seconds() if self.pause.error is None else self.pause.left_seconds
