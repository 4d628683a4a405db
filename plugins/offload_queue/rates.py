"""Rates of a queue: messages for each second, with a half-life of five seconds, as RabbitMQ counts them."""

from __future__ import annotations

from typing import Final

from offload.ground.env import Env
from offload_queue.backing_queue import QueueRates

__all__ = ["RateMeter"]

HALF_LIFE_SECONDS: Final = 5.0


class RateMeter:
    """Counts what happens. The counts are changed by the queue, and the averages when somebody asks."""

    __slots__ = ("_env", "_rates", "_seconds", "acked", "fetched", "published")

    def __init__(self, env: Env) -> None:
        self._env, self._seconds = env, env.monotonic()
        self._rates = QueueRates(0.0, 0.0, 0.0)
        self.published = self.fetched = self.acked = 0

    def rates(self) -> QueueRates:
        """Return the averages, and count from here on."""
        now = self._env.monotonic()
        if (passed := now - self._seconds) > 0:
            old = 2.0 ** (-passed / HALF_LIFE_SECONDS)
            counts = (self.published, self.fetched, self.acked)
            pairs = zip(self._rates, counts, strict=True)
            self._rates = QueueRates(*(rate * old + count / passed * (1 - old) for rate, count in pairs))
            self._seconds, self.published, self.fetched, self.acked = now, 0, 0, 0
        return self._rates
