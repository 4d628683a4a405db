"""The contract of a queue that keeps messages: `BackingQueue`.

    put            fetch            ack
    ------> ready ------> unacked ------> gone
              ^              |
              +--- requeue --+        at the old place, and redelivered from then on

Every message of a queue has a tag: a number that rises from message to message, in the order of `put`. A tag
is never used twice. The order of the queue is the order of the tags, so a requeue needs no place beside it.

The methods are those of RabbitMQ's backing queue, for batches. A confirm is a future instead of a list that
somebody drains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import Future
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

__all__ = [
    "BackingQueue",
    "HeldMessage",
    "MessageProperties",
    "PublishedMessages",
    "QueueDelivery",
    "QueueRates",
]


class MessageProperties(NamedTuple):
    """What a queue knows of a message beside its body."""

    expires_ms: int = 0
    """The time after which nobody wants the message, in milliseconds since 1970. 0: never."""
    priority: int = 0
    """0 to 255. Only a queue with priorities looks at it."""
    headers: bytes = b""
    """Bytes of the caller. No queue looks into them."""


class QueueDelivery(NamedTuple):
    """A message that was taken from a queue."""

    tag: int
    body: bytes
    redelivered: bool
    """True if the message may have been delivered before. False is a promise, True is none."""
    properties: MessageProperties


class HeldMessage(NamedTuple):
    """A message that is still in its queue."""

    message: QueueDelivery
    is_unacked: bool


@dataclass(frozen=True, slots=True)
class PublishedMessages:
    """Messages that a queue has, and that are perhaps not durable yet."""

    tags: Sequence[int]
    confirmed: Future[None]
    """Done when each message is as durable as the queue promises, or was acknowledged or dropped before.

    Otherwise it has an error, and none of these messages is in the queue. Nobody has to await it."""


class QueueRates(NamedTuple):
    """Messages for each second, averaged over some seconds."""

    published: float
    fetched: float
    acked: float


class BackingQueue(ABC):
    """The messages of one queue. It belongs to one event loop, and several tasks may call it at once.

    **First in, first out.** `fetch` takes the ready messages with the lowest tags.
    **A requeue restores the place.** A requeued message is where it was, and is redelivered.
    **Confirmed is kept.** What was confirmed and not acknowledged is there after a crash, in order.
    **Nothing comes twice in secret.** A message that is delivered a second time has `redelivered`, also after
    a crash. So after a crash, messages may have it that were never delivered.
    **Unknown tags are skipped.** `ack`, `requeue` and `ackfold` ignore tags that are not unacknowledged.

    Not promised: that an acknowledgement is durable when `ack` returns. After a crash such a message may come
    again. `flush` makes it durable. A call that is cancelled has happened or not.

    Every method may raise `TryAgain` if the message lies on a disk or a tier that does not answer. Then the
    queue is as before. After `aclose` and `delete`, every method raises `Misuse`.
    """

    __slots__ = ()

    @abstractmethod
    async def put(
        self,
        bodies: Sequence[bytes],
        *,
        properties: Sequence[MessageProperties] | None = None,
        delivered: bool = False,
    ) -> PublishedMessages:
        """Append messages, in order. Return when they are in the queue, perhaps before they are durable.

        `properties` has one item for each body. With `delivered`, the messages are unacknowledged from the
        beginning: the caller has handed them to a consumer. Only an empty queue takes such messages.
        Waits if the queue is full and blocks its publishers. Raises `NoSpace` if it is full and refuses them.
        Raises `Misuse` if the numbers of bodies and properties differ, or if `delivered` and not empty.
        """

    @abstractmethod
    async def fetch(self, count: int = 1, *, ack_required: bool = True) -> Sequence[QueueDelivery]:
        """Take up to `count` messages from the head; none if nothing is ready. Never waits for a publish.

        Without `ack_required`, they are gone at once.
        """

    @abstractmethod
    async def drop(self, count: int = 1, *, ack_required: bool = False) -> Sequence[int]:
        """Do what `fetch` does, and return the tags alone. No body is read."""

    @abstractmethod
    async def ack(self, tags: Sequence[int]) -> Sequence[int]:
        """Forget unacknowledged messages. Return the tags that were unacknowledged, in the given order."""

    @abstractmethod
    async def requeue(self, tags: Sequence[int]) -> Sequence[int]:
        """Make unacknowledged messages ready again, each at its old place. Returns what `ack` returns."""

    @abstractmethod
    async def ackfold(self, tags: Sequence[int]) -> Sequence[QueueDelivery]:
        """Return unacknowledged messages with their bodies, in the given order. They stay as they are."""

    @abstractmethod
    def fold(self) -> AsyncGenerator[HeldMessage, None]:
        """Yield all messages in the order of their tags, ready ones and unacknowledged ones. Changes nothing.

        It is a look at the queue when the first message is asked for. A message that is acknowledged later
        may be left out.
        """

    @abstractmethod
    async def dropwhile(self, condition: Callable[[MessageProperties], bool]) -> MessageProperties | None:
        """Drop messages from the head while the condition holds. Return the properties of the first one left.

        None if no message is ready then.
        """

    @abstractmethod
    async def fetchwhile(
        self, condition: Callable[[MessageProperties], bool]
    ) -> tuple[Sequence[QueueDelivery], MessageProperties | None]:
        """Fetch messages from the head while the condition holds, and say what `dropwhile` says."""

    @abstractmethod
    async def purge(self) -> int:
        """Drop all ready messages, and return their number. Unacknowledged ones stay."""

    @abstractmethod
    async def purge_acks(self) -> int:
        """Forget all unacknowledged messages, and return their number."""

    @abstractmethod
    async def length(self) -> int:
        """Return the number of ready messages."""

    @abstractmethod
    async def depth(self) -> int:
        """Return the number of all messages: ready ones and unacknowledged ones."""

    @abstractmethod
    def set_ram_target(self, size_bytes: int | None) -> None:
        """Bound the bodies that are kept in memory, from now on. None: the queue decides.

        Bodies of a queue that keeps everything in memory have no other place, and it ignores the bound.
        """

    @property
    @abstractmethod
    def ram_size_bytes(self) -> int:
        """The size of the bodies of ready messages that are in memory."""

    @abstractmethod
    def rates(self) -> QueueRates:
        """Return the rates of the last seconds."""

    @abstractmethod
    async def flush(self) -> None:
        """Return when everything that was done before the call is durable, acknowledgements included."""

    @abstractmethod
    async def delete(self) -> None:
        """Delete the queue with all of its messages, and close it. Idempotent."""

    @abstractmethod
    async def aclose(self) -> None:
        """Flush and close. Idempotent.

        The messages stay. Unacknowledged ones are ready when the queue is opened again.
        """

    @final
    async def publish(
        self, bodies: Sequence[bytes], *, properties: Sequence[MessageProperties] | None = None
    ) -> None:
        """Append messages, and return when they are confirmed. See `put`."""
        await (await self.put(bodies, properties=properties)).confirmed

    @final
    async def expire(self, now_ms: int) -> MessageProperties | None:
        """Drop expired messages from the head, and return what `dropwhile` returns."""
        return await self.dropwhile(lambda found: 0 < found.expires_ms <= now_ms)

    @final
    async def is_empty(self) -> bool:
        """Return whether no message is ready."""
        return await self.length() == 0
