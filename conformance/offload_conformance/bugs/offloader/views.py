"""Bugs of views: entries that are not found, and views that move."""

from __future__ import annotations

from typing import Any

from offload.contracts.offloader import LedgerOffloader
from offload.model.entry import Entry
from offload.model.manifest import CommittedStream, Manifest
from offload.model.tree import Tree
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.offloader.shared import ByVerbs
from offload_conformance.bugs.registry import bug


class _LastOfAll(Tree):
    async def last_with_messages(self) -> Entry | None:
        return await self.find(self.manifest.next_offset - 1)


@bug("contract/views_find_what_is_committed")
class TakesTheLastForAMessage(ByVerbs):
    """Reports the newest fragment as the newest with messages.

    Tracking chunks are rare, and hold no messages.
    """

    def tree(self, manifest: Manifest) -> Tree:
        return _LastOfAll(manifest, self.load_group)


@bug("contract/views_do_not_move")
class NamesWhatIsGone(ObjectStoreOffloader):
    """Reports that a view has every name.

    It asks the store instead of the manifest; the objects still exist, so a trim looks like damage.
    """

    def view_of(self, committed: CommittedStream) -> Any:
        made = LedgerOffloader.view_of(self, committed)

        class View(type(made)):  # type: ignore[misc]
            async def names(self, where: str) -> bool:
                return True

        return View(self, committed)


@bug("contract/newer_views_tell_every_change")
class NewerIsLonger(ObjectStoreOffloader):
    """Sees a newer view only if the stream's end has moved.

    A reader waits for more records, and the cheapest question is where they end.
    """

    async def newer_view(self, known: CommittedStream) -> Any:
        newer = await super().newer_view(known)
        return newer if newer and newer.committed.next_offset > known.next_offset else None


@bug("contract/newer_views_tell_every_change")
class NewerByTheName(ObjectStoreOffloader):
    """Takes a stream that was deleted and begun again for the one that is known.

    Only the version is compared, and that is higher in the next life.
    """

    async def newer_view(self, known: CommittedStream) -> Any:
        newest = await self.view(known.stream)
        return newest if newest.committed.version > known.version else None
