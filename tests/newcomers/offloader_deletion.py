"""Mistakes in the deletion of attempts."""

from __future__ import annotations

from collections.abc import Sequence

from newcomers.ledgers import (
    all_of,
    attempt_of,
    copied,
    entries_of,
    ledger,
    raises,
    trimmed,
)
from newcomers.registry import Open, bug
from newcomers.table import Row, Table
from offload.ground.errors import Conflict
from offload.model.manifest import Manifest


async def _named_in_part(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0, 8, size=40_000))
    parts = await entries_of(tier, await tier.load_manifest("s"))
    attempt = attempt_of("s", parts[0])
    await trimmed(tier, "s", parts[0].next_offset)
    await raises(Conflict, tier.delete_offloaded(attempt))
    async with await tier.read_offloaded(attempt) as handle:
        assert handle.first_offset == parts[1].first_offset
        await all_of(handle)


@bug(_named_in_part)
class FirstFragmentSpeaksForAll(Table):
    """Only the first fragment of an attempt decides if the manifest names it, and a trim may have dropped
    that one.

    Breaks "Deleting an attempt that the manifest names raises `Conflict` and removes nothing": data is lost.
    """

    async def names_any(self, manifest: Manifest, rows: Sequence[Row]) -> bool:
        return await super().names_any(manifest, rows[:1])
