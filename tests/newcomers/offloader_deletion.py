"""Mistakes in the deletion of attempts."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from newcomers.ledgers import (
    all_of,
    attempt_of,
    chunks_of,
    copied,
    entries_of,
    ledger,
    raises,
    trimmed,
    uploaded,
)
from newcomers.registry import Open, bug
from newcomers.table import Row, Table
from offload.ground.errors import Conflict
from offload.model.attempt import Attempt
from offload.model.manifest import Manifest
from offload.upkeep.retention import delete_stream


async def _attempts_of_a_ledger(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=7), first=0)
    dropped, _ = await uploaded(tier, writer, ledger(0, ledger_id=7))
    await tier.delete_offloaded(dropped)
    [entry] = await entries_of(tier, await tier.load_manifest("s"))
    async with await tier.read_offloaded(attempt_of("s", entry)) as handle:
        assert await all_of(handle) == b"".join(chunks_of(0))


@bug(_attempts_of_a_ledger)
class DeletesEveryAttemptOfTheLedger(Table):
    """The objects of an attempt are found by their ledger, and the UUID is ignored.

    Breaks "No two attempts share an object": the clean-up of a failed try deletes committed data of another.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        await super().delete_offloaded(attempt)
        for row in self.db.uploaded(self.name(attempt.stream)):
            if row.entry.ledger_id == attempt.ledger_id:
                self.db.remove(attempt.stream, row.entry.first_offset, row.entry.attempt)


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


async def _deleted_cannot_be_appended(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    attempt, receipt = await uploaded(tier, writer, ledger(3))
    await tier.delete_offloaded(attempt)
    await raises(Conflict, writer.append([receipt]))


@bug(_deleted_cannot_be_appended)
class DeletedAttemptsGoOnRunning(Table):
    """`delete_offloaded` removes rows, and leaves the attempt among the running ones.

    Breaks "Drops the attempt from the running list first": a late append names deleted data.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        newest = await self.newest(attempt.stream)
        rows = self.of_attempt(attempt)
        if newest is not None and await self.names_any(newest, rows):
            raise Conflict("the attempt is named")
        for row in rows:
            self.db.remove(attempt.stream, row.entry.first_offset, row.entry.attempt)


async def _absent_stream(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    await tier.delete_offloaded(Attempt(stream="absent", ledger_id=1, uid=uuid4()))
    await delete_stream(tier, "s")
    await tier.delete_offloaded(Attempt(stream="s", ledger_id=0, uid=uuid4()))


@bug(_absent_stream)
class AbsentStreamsCannotBeCleaned(Table):
    """`delete_offloaded` loads the manifest, and fails if there is none.

    Breaks "Deleting an absent attempt succeeds": a clean-up after a deletion fails.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        await self.load_manifest(attempt.stream)
        await super().delete_offloaded(attempt)
