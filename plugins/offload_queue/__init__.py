"""Queues whose near end is in memory and in a local log, and whose deep end lies on a tier.

`Vhosts` opens stored queues. `BackingQueue` is the contract of all queues. `MemoryQueue` is its model, and
`PriorityQueue` joins a queue for each priority.
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
    from offload_queue.declared_queue import DeclaredQueue
    from offload_queue.memory_queue import MemoryPlace, MemoryQueue
    from offload_queue.priority_queue import PriorityQueue
    from offload_queue.queue_vhost import QueueVhost
    from offload_queue.restarts import GivenUp, RestartLimit
    from offload_queue.variable_queue import VariableQueue
    from offload_queue.vhosts import Vhosts

__all__ = [
    "BackingQueue",
    "DeclaredQueue",
    "GivenUp",
    "HeldMessage",
    "MemoryPlace",
    "MemoryQueue",
    "MessageProperties",
    "PriorityQueue",
    "PublishedMessages",
    "QueueDelivery",
    "QueueRates",
    "QueueVhost",
    "RestartLimit",
    "VariableQueue",
    "Vhosts",
]

_HOMES = {
    "BackingQueue": "offload_queue.backing_queue",
    "DeclaredQueue": "offload_queue.declared_queue",
    "GivenUp": "offload_queue.restarts",
    "HeldMessage": "offload_queue.backing_queue",
    "MemoryPlace": "offload_queue.memory_queue",
    "MemoryQueue": "offload_queue.memory_queue",
    "MessageProperties": "offload_queue.backing_queue",
    "PriorityQueue": "offload_queue.priority_queue",
    "PublishedMessages": "offload_queue.backing_queue",
    "QueueDelivery": "offload_queue.backing_queue",
    "QueueRates": "offload_queue.backing_queue",
    "QueueVhost": "offload_queue.queue_vhost",
    "RestartLimit": "offload_queue.restarts",
    "VariableQueue": "offload_queue.variable_queue",
    "Vhosts": "offload_queue.vhosts",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
