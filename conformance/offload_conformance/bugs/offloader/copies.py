"""Bugs of copies, which replace fragments by the same records."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from offload.commit.writer import Append
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.contracts.store import ObjectStore
from offload.ground.errors import NotOffloaded
from offload.model.attempt import Attempt
from offload.model.entry import entries_of_rows
from offload.model.manifest import Manifest
from offload.native.fragment_reader import open_entries
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload_conformance.bugs.registry import bug


@bug("contract/copies_change_nothing_that_is_read")
class RemembersWhatItCommitted(ObjectStoreOffloader):
    """Reads an attempt by an older manifest of its own that named it.

    Objects never change, so their place is cached; but the stream may no longer name them.
    """

    remembered: Manifest | None = None

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        if isinstance(change, Append):
            self.remembered = manifest
        return manifest

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        try:
            return await super().read_offloaded(attempt, manifest=manifest, only=only)
        except NotOffloaded:
            if self.remembered is None:
                raise
            return await super().read_offloaded(attempt, manifest=self.remembered, only=only)


@bug("contract/attempts_are_not_read_with_a_hole")
class JoinsWhatIsLeft(ObjectStoreOffloader):
    """Makes one handle of all remaining fragments of an attempt, even with a gap between them.

    This is right if no attempt was ever replaced in part.
    """

    def __init__(self, store: ObjectStore, **how: Any) -> None:
        super().__init__(store, **{**how, "options": TierOptions(fragment_size_bytes=250_000)})

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        try:
            return await super().read_offloaded(attempt, manifest=manifest, only=only)
        except NotOffloaded:
            named = manifest or await self.load_manifest(attempt.stream)
            found = [each async for run in self.tree(named).walk() for each in entries_of_rows(run)]
            own = [each for each in found if each.attempt == attempt.uid]
            if not own or only is not None:
                raise
            return await open_entries(self.view_of(named), own, where=str(attempt.uid))


@bug("contract/copies_begin_and_end_as_fragments_do")
class CopiesAnything(ObjectStoreOffloader):
    """Accepts any data as a copy.

    Only the commit compares both, after everything is stored.
    """

    async def _epoch_to_copy(self, handle: ReadHandle, manifest: Manifest) -> int:
        return manifest.epoch
