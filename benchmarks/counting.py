"""The cost of counting requests: a `get` and a row of a listing with the counters, less those without.

    python benchmarks/counting.py [--json]

The store does nothing. Each figure is in microseconds, and the least of several rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from offload.contracts.store import Listed, ObjectStore, Span, Suffix
from offload.store.memory import MemoryStore
from offload.store.metrics import MeteredStore

CALLS: Final = 20_000
ROUNDS: Final = 9


class Idle(MemoryStore):
    """A store that does nothing."""

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Return nothing."""
        return b""

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Yield the same row again and again."""
        row = Listed("key", 1)
        for _ in range(CALLS):
            yield row


async def gets(store: ObjectStore) -> None:
    """Call `get` many times."""
    for _ in range(CALLS):
        await store.get("key")


async def rows(store: ObjectStore) -> None:
    """Take many rows of a listing."""
    async for _ in store.list(""):
        pass


async def cost(job: Callable[[ObjectStore], Awaitable[None]]) -> float:
    """Return the microseconds of one call that the counters add."""
    least = []
    for store in (MeteredStore(Idle()), Idle()):
        found = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            await job(store)
            found.append((time.perf_counter() - begun) / CALLS * 1e6)
        least.append(min(found))
    return round(least[0] - least[1], 2)


def main() -> None:
    """Print both costs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    costs = {f"microseconds_of_{job.__name__}": asyncio.run(cost(job)) for job in (gets, rows)}
    print(json.dumps(costs) if arguments.json else "\n".join(f"{k}: {v}" for k, v in costs.items()))


if __name__ == "__main__":
    main()
