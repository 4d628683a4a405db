"""Mistakes with the place: tiers, names, counts."""

from __future__ import annotations

from newcomers.ledgers import (
    raises,
)
from newcomers.registry import Open, bug
from newcomers.table import Table
from offload.ground.errors import NotOffloaded


async def _no_tier(open_: Open) -> None:
    await raises(NotOffloaded, open_().streams())
    await raises(NotOffloaded, open_().open())
    await raises(NotOffloaded, open_().load_manifest("s"))
    await raises(NotOffloaded, open_().open())


@bug(_no_tier)
class NoTierHasNoStreams(Table):
    """`streams` of a place that is no tier is an empty list.

    Breaks "`NotOffloaded`. So does this method where the place is no tier": a mistyped URL lists as an empty
    tier.
    """

    async def streams(self) -> list[str]:
        return sorted(self.db.roots)
