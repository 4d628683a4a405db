"""Lines of the log that say whether the process is ready, as `/readyz` does.

    not ready: the first problem (and N more)    when there is one, and every 10 minutes while one is left
    ready again, after N s                       when none is left

A store that does not answer is announced by the requests that wait for it, and by nothing after their last
try. Somebody who reads the log alone would take its last line for the end of the trouble.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from offload.ground.env import Env
from offload.service.health import Health

__all__ = ["ReadinessLog"]


READY_LOOK_SECONDS: Final = 10.0
READY_REPEAT_SECONDS: Final = 600.0

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ReadinessLog:
    """Looks at the health of the process, and writes a line when something has changed."""

    health: Health
    env: Env = field(default_factory=Env)
    _since_seconds: float | None = None
    """The moment since which the process is not ready. None: it is."""
    _told_seconds: float = 0.0

    async def run(self, stopping: asyncio.Event) -> None:
        """Look until this is cancelled."""
        while True:
            self.look()
            await self.env.sleep(READY_LOOK_SECONDS)

    def look(self) -> None:
        """Look once."""
        problems, now = self.health.problems(), self.env.monotonic()
        if problems and (self._since_seconds is None or now - self._told_seconds >= READY_REPEAT_SECONDS):
            more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
            _log.warning("not ready: %s%s", problems[0], more)
            self._told_seconds = now
        if problems and self._since_seconds is None:
            self._since_seconds = now
        elif not problems and self._since_seconds is not None:
            _log.info("ready again, after %.0f s", now - self._since_seconds)
            self._since_seconds = None
