"""Bugs of copies, which replace fragments by the same records."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from offload.commit.writer import Append
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.contracts.store import ObjectStore
from offload.ground.errors import Absent, NotOffloaded
from offload.model.attempt import Attempt
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import Manifest
from offload.native.fragment_reader import open_entries
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.upkeep.retention import delete_stream
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.ledgers import all_of, attempt_of, chunks_of, copied, entries_of, ledger
from offload_conformance.bugs.sound.table import FragmentRow, Table
from offload_conformance.bugs.sound.views import opened
from offload_conformance.bugs.sound.wrappers import copying


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


async def _older_entries_are_themselves(open_: OpenClient) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", *(ledger(first, ledger_id=1) for first in (0, 3, 6)))
    view = await tier.view("s")
    old = (await entries_of(tier, writer.manifest))[:2]
    job, _, receipt = await copying(tier, "s", old)
    await job.replace(old, [receipt])
    for entry in old:
        try:
            handle = await view.open(entry)
        except Absent:
            continue
        assert (handle.first_offset, handle.next_offset) == (entry.first_offset, entry.next_offset)


@bug("contract/copies_change_nothing_that_is_read", _older_entries_are_themselves)
class OpensByOffset(Table):
    """A fragment is looked up by its offset in the newest manifest, where a copy may have its place.

    Breaks "Return a handle on the fragment that `entry`, an entry of this view, describes". Costs a reader of
    an older view: it reads some records twice.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        if manifest is not None and only:
            newest = await self.load_manifest(attempt.stream)
            found = await self.tree(newest).find(only[0])
            if found is not None and found.attempt != attempt.uid and found.copied:
                attempt, manifest = attempt_of(attempt.stream, found), newest
        return await super().read_offloaded(attempt, manifest=manifest, only=only)


async def _reborn_reads_its_own(open_: OpenClient) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    view = await tier.view("s")
    assert await all_of(await view.open(await view.find(0))) == b"".join(chunks_of(0))
    await delete_stream(tier, "s")
    await copied(tier, "s", ledger(0, size=50))
    view = await tier.view("s")
    assert await all_of(await view.open(await view.find(0))) == b"".join(chunks_of(0, size=50))


@bug("contract/copies_change_nothing_that_is_read", _reborn_reads_its_own)
class CachedByItsOffset(Table):
    """A client keeps the rows that it has read by stream and first offset.

    Breaks "Reads are verbatim": the same offset holds other bytes after a rebirth, and others again after a
    compaction. Costs a reader the truth: it reads the deleted life of a stream.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.cached: dict[tuple[str, int], FragmentRow] = {}

    def fetched(self, stream: str, entry: Entry) -> FragmentRow:
        key = stream, entry.first_offset
        if key not in self.cached:
            self.cached[key] = super().fetched(stream, entry)
        return self.cached[key]
