"""Queues whose near end is in memory and in a local log, and whose deep end lies on a tier.

`BackingQueue` is the contract of all queues here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_queue.backing_queue import (
        BackingQueue,
        HeldMessage,
        MessageProperties,
        PublishedMessages,
        QueueDelivery,
        QueueRates,
    )

__all__ = [
    "BackingQueue",
    "HeldMessage",
    "MessageProperties",
    "PublishedMessages",
    "QueueDelivery",
    "QueueRates",
]

_HOMES = {
    "BackingQueue": "offload_queue.backing_queue",
    "HeldMessage": "offload_queue.backing_queue",
    "MessageProperties": "offload_queue.backing_queue",
    "PublishedMessages": "offload_queue.backing_queue",
    "QueueDelivery": "offload_queue.backing_queue",
    "QueueRates": "offload_queue.backing_queue",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
