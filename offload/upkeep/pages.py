"""A listing in pages. Each page is complete before the root that judges it is loaded.

Sweep and verify judge a page by the newest root, which they load after the page was listed. So an object that
the root names and the page lacks was committed since, or is gone.

Invariants: a page never spans two streams. All pages come from one listing: a store that cannot begin a
listing behind a key would otherwise go through all earlier keys again for each page.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from offload.contracts.store import Listed


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPage:
    """The objects under one first part of keys, from behind `after` up to the last row or to the end."""

    part: str
    """The first part of the keys, with its slash; empty for keys of one part."""

    after: str
    rows: list[Listed]
    is_last: bool
    """Whether the page reaches to the end of the part."""

    def holds(self, key: str) -> bool:
        """Return whether an object with this key would be listed on this page."""
        return self.after < key and not self.is_before(key)

    def is_before(self, key: str) -> bool:
        """Return whether the page ends before this key."""
        return not self.is_last and key > self.rows[-1].key


async def pages(
    listing: AsyncIterator[Listed], *, rows_max: int, after: str = "", part: str | None = None
) -> AsyncGenerator[ListedPage, None]:
    """Yield a listing that began behind `after`, in pages. Close the generator.

    The first page is of `part`, or of the part that `after` is in. It is yielded even if it has no rows.
    """
    part, rows = part_of(after) if part is None else part, list[Listed]()
    async with aclosing(cast("AsyncGenerator[Listed, None]", listing)):
        async for row in listing:
            # A full page is yielded only when the next row comes: then it is known whether it was the last.
            begins = part_of(row.key) != part
            if begins or len(rows) == rows_max:
                yield ListedPage(part=part, after=after, rows=rows, is_last=begins)
                part, after, rows = part_of(row.key), "" if begins else rows[-1].key, []
            rows.append(row)
    yield ListedPage(part=part, after=after, rows=rows, is_last=True)


def part_of(key: str) -> str:
    """Return the first part of a key, with its slash; empty if the key has only one part."""
    head, slash, _ = key.partition("/")
    return head + slash if slash else ""
