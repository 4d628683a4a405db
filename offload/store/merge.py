"""Several listings merged into one, in order of keys. Their first rows are requested at the same time.

Listings must not overlap: a key that is in more than one is yielded more than once.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import cast

from offload.contracts.store import Listed
from offload.ground.tasks import run_each


async def merged(listings: Sequence[AsyncIterator[Listed]]) -> AsyncGenerator[Listed, None]:
    """Yield the rows of all `listings` in order. Each listing must be in order. Closes them when it ends."""
    async with AsyncExitStack() as stack:
        for listing in listings:
            await stack.enter_async_context(aclosing(cast("AsyncGenerator[Listed, None]", listing)))
        firsts: dict[int, Listed | None] = {}

        async def begin(place: int) -> None:
            firsts[place] = await _next(listings[place])

        # `run_each` ends the other requests at the first error, before the stack closes their listings:
        # closing a listing while it waits for a row raises `RuntimeError`, which would hide the error.
        await run_each(begin, range(len(listings)), at_once=max(len(listings), 1))
        # `place` decides between equal keys, so that rows themselves are never compared.
        heads = [(_order(row), place, row) for place, row in firsts.items() if row is not None]
        heapq.heapify(heads)
        while heads:
            _, place, row = heads[0]
            yield row  # before the next row is requested, which may be a page that the consumer never needs
            following = await _next(listings[place])
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (_order(following), place, following))


async def _next(listing: AsyncIterator[Listed]) -> Listed | None:
    return await anext(listing, None)


def _order(row: Listed) -> bytes:
    return row.key.encode()  # the contract orders keys by their UTF-8 bytes
