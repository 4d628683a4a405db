"""Bugs of changes by several authors, and of what a change asks for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID, uuid4

from offload.commit.grouping import edited
from offload.commit.guest import Abort
from offload.commit.job import Replace
from offload.commit.rebuild import Fence
from offload.contracts.change import Change
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload.write.job import Job
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.ledgers import copied, entries_of, ledger, trimmed
from offload_conformance.bugs.sound.shared_offloaders import BASE
from offload_conformance.bugs.sound.table import Table
from offload_conformance.bugs.sound.wrappers import again


@bug("contract/commits_apply_every_change")
class FencesTheNextVersion(ObjectStoreOffloader):
    """Gives the fence of a rebuild the next version, and not the one that it asks for.

    The version is a counter of the table.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Fence):
            change = replace(change, above=0, jump=1)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("contract/commits_apply_every_change")
class ReadsLargeVersionsAsFloats(ObjectStoreOffloader):
    """Rounds epochs above 2^53.

    JSON, in the hands of a program that reads its numbers as doubles.
    """

    async def load_manifest(self, stream: str) -> Manifest:
        manifest = await super().load_manifest(stream)
        return replace(manifest, epoch=int(float(manifest.epoch)))


@bug("contract/changes_of_several_authors_are_all_in")
class DropsALateAbort(ObjectStoreOffloader):
    """Takes an abort for done if another change was committed meanwhile.

    `UPDATE ... WHERE version = ?`, and nobody looks at the number of rows.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Abort) and base is not None:
            for _ in range(50):
                await asyncio.sleep(0)
            newest = await self.load_manifest(stream)
            if newest.version > base.version:
                return newest
        return await super().commit_manifest(stream, change, base=base, committer=committer)


async def _edit_of_the_newest(open_: OpenClient) -> None:
    tier = open_()
    writer = await copied(tier, "s", *(ledger(at, ledger_id=1) for at in (0, 3, 6)))
    job = await Job.begin(tier, "s")
    old = (await entries_of(tier, writer.manifest))[:2]
    manifest, [attempt] = await job.prepare_copies([old])
    receipt = await tier.offload(again(0, 3), attempt, manifest=manifest, extra_metadata={})
    await writer.offload([ledger(9, ledger_id=1)])
    change = Replace(job=job.uid, incarnation=manifest.incarnation, old=old, new=receipt.entries)
    newest = await tier.commit_manifest("s", change, base=manifest, committer=job.uid)
    found = [entry.first_offset for entry in await entries_of(tier, newest)]
    assert (found, newest.next_offset) == ([0, 6, 9], 12)


@bug("contract/commits_apply_every_change", _edit_of_the_newest)
class EditOfTheBase(Table):
    """A replacement is made among the entries of the caller's base, which may be old.

    Breaks "Apply `change` to the newest manifest". Costs the entries that were appended since: the manifest
    does not fit its own totals, and the compaction fails.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        BASE.set(base)
        return await super().commit_manifest(stream, change, base=base, committer=committer)

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest, known = await super().changed(change, base, committer), BASE.get()
        if change.edit is not None and known is not None:
            entries, _ = await edited(self.tree(known), change.edit, version=known.version + 1, uuid=uuid4)
            manifest = replace(manifest, entries=entries)
            manifest.check(f"manifest of {manifest.stream!r}")
        return manifest


async def _half_a_ledger_counts(open_: OpenClient) -> None:
    tier = open_()
    await copied(tier, "s", *(ledger(at, ledger_id=7) for at in (0, 3, 6)))
    await trimmed(tier, "s", 3)
    assert (await tier.load_manifest("s")).ledgers == 1


@bug("contract/changes_of_several_authors_are_all_in", _half_a_ledger_counts)
class LedgersAreAdded(Table):
    """The number of ledgers is not stored but added over the entries, each ledger where it begins.

    Breaks "Return the newest committed manifest". Costs the ledger whose beginning was trimmed: it counts no
    more, and the next commit fails at the check of its totals.
    """

    async def newest(self, stream: str) -> Manifest | None:
        manifest = await super().newest(stream)
        return manifest and replace(manifest, ledgers=int(manifest.entries["ledgers"].sum()))
