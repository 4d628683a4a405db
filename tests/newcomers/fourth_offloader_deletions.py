"""Fourth set, offloaders: deletions, and what a crash leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from newcomers.fourth_sound import Rows, copying
from newcomers.ledgers import (
    all_of,
    attempt_of,
    chunks_of,
    copied,
    entries_of,
    ledger,
    uploaded,
)
from newcomers.registry import Open, bug
from newcomers.table import Row
from offload.commit.writer import Claim
from offload.model.attempt import Attempt, Leftover
from offload.model.manifest import Manifest
from offload.upkeep.retention import delete_stream
from offload.write.job import Job
from offload.write.writer import StreamWriter


async def _attempts_of_a_deleted_stream(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    attempt, _ = await uploaded(tier, writer, ledger(0))
    await delete_stream(tier, "s")
    await tier.delete_offloaded(attempt)


@bug(_attempts_of_a_deleted_stream)
class DeletionNeedsALiveStream(Rows):
    """A deletion loads the manifest as a reader does, and ends with its error if the stream was deleted.

    Breaks "Deleting an absent attempt succeeds", and "Remove every object of `attempt`". Costs the space of a
    deleted stream: its attempts can never be removed.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        await self.load_manifest(attempt.stream)
        await super().delete_offloaded(attempt)


async def _replaced_can_go(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", *(ledger(at, ledger_id=1) for at in (0, 3, 6)))
    old = (await entries_of(tier, writer.manifest))[:2]
    job, _, receipt = await copying(tier, "s", old)
    await job.replace(old, [receipt])
    await tier.delete_offloaded(attempt_of("s", old[0]))
    assert await all_of(await tier.read_offloaded(receipt.attempt)) == b"".join(chunks_of(0) + chunks_of(3))


@bug(_replaced_can_go)
class NamedByItsOffsets(Rows):
    """An attempt is in use if its offsets are in the stream.

    Breaks "Raises `Conflict` if the manifest names the attempt", and only then. Costs the space of what a
    compaction replaced: it can never be removed.
    """

    async def names_any(self, manifest: Manifest, rows: Sequence[Row]) -> bool:
        live = range(manifest.first_offset, manifest.next_offset)
        return any(row.entry.first_offset in live for row in rows)


async def _claimed(tier: Any, base: Manifest) -> Manifest:
    """Return the manifest of a claim whose writer resolves nothing."""
    claim = Claim(stream=base.stream, writer=UUID(int=base.epoch + 7), first_offset=0)
    found: Manifest = await tier.commit_manifest(base.stream, claim, base=base, committer=claim.writer)
    return found


async def _other_rows_do_not_matter(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    await uploaded(tier, writer, ledger(0))
    job = await Job.begin(tier, "s")
    manifest, [attempt] = await job.prepare([5])
    await tier.offload(ledger(0, 5, ledger_id=5), attempt, manifest=manifest, extra_metadata={})
    found = await tier.leftovers(await _claimed(tier, manifest))
    assert [each.entry.next_offset for each in found] == [3]


@bug(_other_rows_do_not_matter)
class LastUploadDecides(Rows):
    """Of several fragments at one offset, leftovers look at the one that was uploaded last.

    Breaks "The chain ends only if no such fragment continues it": a job's upload hides the one that fits.
    Costs what the crashed writer had uploaded.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        last = {
            (stream, at): row.entry.attempt
            for (stream, at, _), row in self.db.fragments.items()
            if stream == manifest.stream
        }
        found = list[Leftover]()
        for each in await super().leftovers(manifest):
            if last[manifest.stream, each.entry.first_offset] != each.entry.attempt:
                break
            found.append(each)
        return found
