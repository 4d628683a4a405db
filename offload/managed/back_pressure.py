"""Back-pressure: what an append does while the local log is larger than its bound.

Invariant: whoever waits is woken when there is room, and when the ledger ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from offload.contracts.events import AppendsHeld
from offload.ground.errors import OffloadError, Throttled
from offload.managed.policy import LedgerPolicy, WhenFull

__all__: list[str] = []


class BackPressure:
    """The room that the bound of one log leaves."""

    def __init__(self, policy: LedgerPolicy, *, stream: str, size_bytes: Callable[[], int]) -> None:
        self._policy, self._stream, self._size_bytes = policy, stream, size_bytes
        self._waiting: asyncio.Future[None] | None = None
        self._is_held = False

    @property
    def is_there(self) -> bool:
        """True if the log is within its bound."""
        bound = self._policy.local_size_bytes_max
        return bound is None or self._size_bytes() <= bound

    @property
    def admits(self) -> bool:
        """True if an append is accepted now."""
        return self.is_there or self._policy.when_full is WhenFull.GROW

    def held(self) -> AppendsHeld | None:
        """Return the event, if the bound is passed and no event has said so since."""
        was_held, self._is_held = self._is_held, not self.is_there
        if was_held or not self._is_held:
            return None
        bound = self._policy.local_size_bytes_max
        assert bound is not None, "a log without a bound has room"
        return AppendsHeld(stream=self._stream, size_bytes=self._size_bytes(), size_bytes_max=bound)

    async def enter(self, error: OffloadError | None) -> bool:
        """Wait for room, if the policy says so. Return False if there may be none yet: ask again.

        Raises `Throttled` if the policy rejects. `error` is the reason why the log is not emptied.
        """
        if self.admits:
            return True
        if self._policy.when_full is WhenFull.REJECT:
            why = "" if error is None else f": {error}"
            raise Throttled(
                f"stream {self._stream!r}: the local log has {self._size_bytes()} bytes, above its bound of "
                f"{self._policy.local_size_bytes_max}, and the tier does not have them yet{why}"
            ) from error
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._waiting)  # a cancelled append leaves the others waiting
        return False

    def wake(self) -> None:
        """Let those who wait look again."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
