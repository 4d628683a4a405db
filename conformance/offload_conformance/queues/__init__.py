"""The layer `queue`: the promises of a `BackingQueue`, with the cases of RabbitMQ's own suite.

The author of a queue says how to open it, and how its process ends:

    class TestMyQueue(QueueBackend):
        async def open_queue(self):       # the one queue of this test's place, or the same one again
            return await MyQueue.open(self.folder)

        async def end_process(self):      # what is not durable is lost, and nothing is closed
            ...

`cases` has a clause for each case of `backing_queue_SUITE` that has a subject here, and `model` compares
random calls with a list.
"""

from offload_conformance.queues.cases import CaseClauses
from offload_conformance.queues.model import QueueModelClauses

__all__ = ["QueueBackend"]


class QueueBackend(CaseClauses, QueueModelClauses):
    """The tests of a queue. Every test gets a fresh `folder` and `name` to use, and an empty queue."""
