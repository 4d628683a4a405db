"""Several listings as one, in order of keys. Each is asked for its first row at the same time.

A key that stands in more than one comes more than once: the caller's listings do not overlap.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import cast

from offload.contracts.store import Listed
from offload.tasks import run_each


async def merged(listings: Sequence[AsyncIterator[Listed]]) -> AsyncGenerator[Listed, None]:
    """The rows of all `listings`, each of which is in order. Closes them when it ends."""
    async with AsyncExitStack() as stack:
        for listing in listings:
            await stack.enter_async_context(aclosing(cast("AsyncGenerator[Listed, None]", listing)))
        firsts: dict[int, Listed | None] = {}

        async def begin(place: int) -> None:
            firsts[place] = await _next(listings[place])

        # The first error ends the others before they are closed: a listing that still runs cannot be closed.
        await run_each(begin, range(len(listings)), at_once=max(len(listings), 1))
        heads = [(_order(row), place, row) for place, row in firsts.items() if row is not None]
        heapq.heapify(heads)
        while heads:
            _, place, row = heads[0]
            yield row
            following = await _next(listings[place])
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (_order(following), place, following))


async def _next(listing: AsyncIterator[Listed]) -> Listed | None:
    return await anext(listing, None)


def _order(row: Listed) -> bytes:
    return row.key.encode()
