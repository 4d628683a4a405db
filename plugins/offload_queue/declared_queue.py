"""A queue of a vhost as a program holds it: it outlives restarts of the queue and of its vhost.

    a call raises             then
    TryAgain, NoSpace, ...    the queue goes on as before
    Corrupt, no OffloadError  the queue failed: it alone is restarted, and the call raises the error
    anything, and the store   the vhost is restarted with all of its queues
    has failed

A restart makes unacknowledged messages ready again, as redelivered ones. A queue that fails more often than
its limit allows stays down, and the others go on.

Invariant: an error of one queue changes nothing of another.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from offload.ground.errors import Corrupt, Misuse, OffloadError, TryAgain
from offload_queue.backing_queue import (
    BackingQueue,
    HeldMessage,
    MessageProperties,
    PublishedMessages,
    QueueDelivery,
    QueueRates,
)
from offload_queue.restarts import Restarts, down

if TYPE_CHECKING:
    from offload_queue.queue_vhost import QueueVhost

__all__ = ["DeclaredQueue"]

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)


class DeclaredQueue(BackingQueue):
    """A queue of a vhost. `QueueVhost.declare` returns it."""

    __slots__ = (
        "_backing",
        "_is_over",
        "_ram_target",
        "_restarts",
        "_vhost",
        "error",
        "name",
        "priority_max",
    )

    def __init__(self, vhost: QueueVhost, name: str, priority_max: int | None, restarts: Restarts) -> None:
        self.name, self.priority_max = name, priority_max
        self._vhost, self._restarts = vhost, restarts
        self._backing: BackingQueue | None = None
        self._ram_target: int | None = None
        self._is_over = False
        self.error: BaseException | None = None
        """Why the queue is down, until somebody restarts it. None if it is not."""

    async def put(
        self,
        bodies: Sequence[bytes],
        *,
        properties: Sequence[MessageProperties] | None = None,
        delivered: bool = False,
    ) -> PublishedMessages:
        """See `BackingQueue.put`."""
        return await self._call(lambda queue: queue.put(bodies, properties=properties, delivered=delivered))

    async def fetch(self, count: int = 1, *, ack_required: bool = True) -> Sequence[QueueDelivery]:
        """See `BackingQueue.fetch`."""
        return await self._call(lambda queue: queue.fetch(count, ack_required=ack_required))

    async def drop(self, count: int = 1, *, ack_required: bool = False) -> Sequence[int]:
        """See `BackingQueue.drop`."""
        return await self._call(lambda queue: queue.drop(count, ack_required=ack_required))

    async def ack(self, tags: Sequence[int]) -> Sequence[int]:
        """See `BackingQueue.ack`."""
        return await self._call(lambda queue: queue.ack(tags))

    async def requeue(self, tags: Sequence[int]) -> Sequence[int]:
        """See `BackingQueue.requeue`."""
        return await self._call(lambda queue: queue.requeue(tags))

    async def ackfold(self, tags: Sequence[int]) -> Sequence[QueueDelivery]:
        """See `BackingQueue.ackfold`."""
        return await self._call(lambda queue: queue.ackfold(tags))

    async def fold(self) -> AsyncGenerator[HeldMessage, None]:
        """See `BackingQueue.fold`."""
        found = self.backing.fold()
        while True:
            try:
                each = await self._call(lambda queue: anext(found))
            except StopAsyncIteration:
                return
            yield each

    async def dropwhile(self, condition: Callable[[MessageProperties], bool]) -> MessageProperties | None:
        """See `BackingQueue.dropwhile`."""
        return await self._call(lambda queue: queue.dropwhile(condition), asks_caller=True)

    async def fetchwhile(
        self, condition: Callable[[MessageProperties], bool]
    ) -> tuple[Sequence[QueueDelivery], MessageProperties | None]:
        """See `BackingQueue.fetchwhile`."""
        return await self._call(lambda queue: queue.fetchwhile(condition), asks_caller=True)

    async def purge(self) -> int:
        """See `BackingQueue.purge`."""
        return await self._call(lambda queue: queue.purge())

    async def purge_acks(self) -> int:
        """See `BackingQueue.purge_acks`."""
        return await self._call(lambda queue: queue.purge_acks())

    async def length(self) -> int:
        """See `BackingQueue.length`."""
        return await self._call(lambda queue: queue.length())

    async def depth(self) -> int:
        """See `BackingQueue.depth`."""
        return await self._call(lambda queue: queue.depth())

    def set_ram_target(self, size_bytes: int | None) -> None:
        """See `BackingQueue.set_ram_target`. It is kept through restarts."""
        self.backing.set_ram_target(size_bytes)
        self._ram_target = size_bytes

    @property
    def ram_size_bytes(self) -> int:
        """See `BackingQueue.ram_size_bytes`."""
        return self.backing.ram_size_bytes

    def rates(self) -> QueueRates:
        """See `BackingQueue.rates`. They begin again with a restart."""
        return self.backing.rates()

    async def flush(self) -> None:
        """See `BackingQueue.flush`."""
        await self._call(lambda queue: queue.flush())

    async def delete(self) -> None:
        """See `BackingQueue.delete`."""
        if not self._is_over:
            await self._call(lambda queue: queue.delete())
            self._end_for_good()

    async def aclose(self) -> None:
        """See `BackingQueue.aclose`. The next `declare` opens it again."""
        if not self._is_over:
            backing = self._backing
            self._end_for_good()
            if backing is not None:
                await backing.aclose()

    async def restart(self) -> None:
        """Start a queue that is down, after somebody has looked at its error. Its restarts are forgotten."""
        self._vhost.store.check()
        self._restarts.forget()
        self.error = None
        await self._begin_again()

    # For its vhost.

    @property
    def backing(self) -> BackingQueue:
        """The queue itself. Raises the error for which it does not run."""
        where = f"queue {self.name!r} of vhost {self._vhost.name!r}"
        if self._is_over:
            raise Misuse(f"{where} is closed or deleted")
        self._vhost.store.check()
        if self._backing is None:
            raise down(where, self.error) if self.error else TryAgain(f"{where} is being restarted")
        return self._backing

    def begin(self) -> None:
        """Open the queue on the store as it is now, unless it is down."""
        if self.error is None:
            self._backing = self._vhost.open_backing(self.name, self.priority_max)
            self._backing.set_ram_target(self._ram_target)

    def end(self) -> None:
        """Forget the queue of a store that is closed."""
        self._backing = None

    def _end_for_good(self) -> None:
        self._is_over, self._backing = True, None
        self._vhost.forget(self)

    async def _call(self, work: Callable[[BackingQueue], Awaitable[T]], *, asks_caller: bool = False) -> T:
        """Do a call. With `asks_caller`, an error that is none of the framework's may be the caller's."""
        queue = self.backing
        try:
            return await work(queue)
        except (StopAsyncIteration, TypeError):
            raise  # the end of a fold, or a mistake of the caller
        except Exception as error:
            is_mistake = not isinstance(error, OffloadError) and not asks_caller
            if self._backing is queue and (is_mistake or isinstance(error, Corrupt)):
                await self._failed(error)
            raise

    async def _failed(self, error: Exception) -> None:
        """Restart the queue, or leave it down if it has failed too often."""
        is_restarted = self._restarts.allow(self._vhost.env.monotonic())
        said = "is restarted" if is_restarted else "failed too often and stays down"
        _log.warning("queue %r of vhost %r %s: %r", self.name, self._vhost.name, said, error)
        self.error = None if is_restarted else error
        await self._begin_again()

    async def _begin_again(self) -> None:
        """Close the queue, which makes unacknowledged messages ready, and open it unless it is down."""
        old, self._backing = self._backing, None
        with suppress(Exception):  # it failed already, or its vhost is about to say so
            if old is not None:
                await old.aclose()
        with suppress(OffloadError):
            self.begin()
