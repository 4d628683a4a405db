"""Bugs of changes by several authors, and of what a change asks for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

from offload.commit.guest import Abort
from offload.commit.rebuild import Fence
from offload.contracts.change import Change
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.registry import bug


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
