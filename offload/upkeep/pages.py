"""A listing in pages, each of which is listed whole before the root that judges it is loaded.

The sweep and the verify judge a page by the newest root, which they load behind the listing. So what a root
names and a page has not was committed since, or is gone. A page never spans two streams. One listing goes on
from page to page: a store that cannot begin one behind a key would go through all that stands before it, once
a page.
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
    """With its slash; empty for objects whose keys have but one part."""

    after: str
    rows: list[Listed]
    is_last: bool
    """Whether it reaches to the end of the part."""

    def holds(self, key: str) -> bool:
        """Whether an object of this key would stand here."""
        return self.after < key and not self.is_before(key)

    def is_before(self, key: str) -> bool:
        """Whether the page ends before this key."""
        return not self.is_last and key > self.rows[-1].key


async def pages(
    listing: AsyncIterator[Listed], *, rows_max: int, after: str = "", part: str | None = None
) -> AsyncGenerator[ListedPage, None]:
    """A listing that began behind `after`, in pages. Close it.

    The first page is of `part`, or else of the part that `after` is in, even if it has no rows.
    """
    part, rows = part_of(after) if part is None else part, list[Listed]()
    async with aclosing(cast("AsyncGenerator[Listed, None]", listing)):
        async for row in listing:
            begins = part_of(row.key) != part
            if begins or len(rows) == rows_max:
                yield ListedPage(part=part, after=after, rows=rows, is_last=begins)
                part, after, rows = part_of(row.key), "" if begins else rows[-1].key, []
            rows.append(row)
    yield ListedPage(part=part, after=after, rows=rows, is_last=True)


def part_of(key: str) -> str:
    """The first part of a key, with its slash; empty where it has but one."""
    head, slash, _ = key.partition("/")
    return head + slash if slash else ""
