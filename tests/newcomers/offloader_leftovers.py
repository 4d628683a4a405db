"""Mistakes with the leftovers of a crash."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from newcomers.ledgers import (
    chunks_of,
    copied,
    ledger,
    trimmed,
    uploaded,
)
from newcomers.registry import Open, bug
from newcomers.table import Table
from offload.commit.writer import Claim
from offload.formats.checksums import crc32
from offload.model.attempt import Leftover, Receipt
from offload.model.manifest import Manifest


async def _left_behind(open_: Open) -> tuple[Any, list[Leftover], Receipt, Receipt]:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), first=0)
    _, one = await uploaded(tier, writer, ledger(3, 8, size=40_000, ledger_id=2))
    _, two = await uploaded(tier, writer, ledger(11, ledger_id=3))
    claim = Claim(stream="s", writer=uuid4(), first_offset=0)
    manifest = await tier.commit_manifest("s", claim, base=writer.manifest, committer=claim.writer)
    return tier, await tier.leftovers(manifest), one, two


async def _all_left(open_: Open) -> None:
    _, found, one, two = await _left_behind(open_)
    entries = [*one.entries, *two.entries]
    assert [each.entry for each in found] == entries
    chunks = chunks_of(3, 8, size=40_000) + chunks_of(11)
    for each in found:
        assert each.last_chunk_offset == each.entry.next_offset - 1
        assert each.last_chunk_checksum == crc32(chunks[each.last_chunk_offset - 3])


@bug(_all_left)
class LeftoversEndWithTheFirstLedger(Table):
    """The chain of leftovers ends at the next attempt.

    Breaks "One chain from `next_offset` on, of attempts": uploaded ledgers are thrown away, and sent again.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        found = await super().leftovers(manifest)
        return [each for each in found if each.entry.attempt == found[0].entry.attempt]


async def _own_after_a_guest(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), ledger(3, ledger_id=2), first=0)
    await uploaded(tier, writer, ledger(6, ledger_id=3))
    manifest = await trimmed(open_(), "s", 3)
    assert await tier.leftovers(manifest) == []


@bug(_own_after_a_guest)
class LeftoversOfOthersThanTheCommitter(Table):
    """Attempts of others are those whose writer is not the last committer, who may be a guest.

    Breaks "of attempts that run in `manifest` for another writer": a writer adopts its own attempts under
    way.
    """

    def left(self, manifest: Manifest) -> dict[UUID, int]:
        return super().left(replace(manifest, writer=manifest.committer))
