"""Bugs of the states and lives of a stream."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import MagicMock

from offload.contracts.ledger import ReadHandle
from offload.ground.errors import OffloadError
from offload.model.entry import Entry
from offload.model.manifest import CommittedStream
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.registry import bug


@bug("contract/answers_are_those_of_the_entries")
class EmptyEndsAtZero(ObjectStoreOffloader):
    """Returns 0 for the latest time of an empty stream.

    `COALESCE(MAX(timestamp), 0)`.
    """

    def view_of(self, committed: CommittedStream) -> Any:
        view = super().view_of(committed)

        async def latest() -> int:
            return await type(view).last_timestamp_ms(view) or 0

        shown = MagicMock(wraps=view)
        shown.committed, shown.walk, shown.last_timestamp_ms = committed, view.walk, latest
        return shown


@bug("contract/reads_are_of_the_present_life")
class KeepsHandlesOfAStream(ObjectStoreOffloader):
    """Reads a stream that was begun again from handles that it opened in its earlier life.

    A cache of open files, by stream and offset.
    """

    async def _open_entry(self, committed: CommittedStream, entry: Entry) -> ReadHandle:
        kept = vars(self).setdefault("kept", {})
        where = committed.stream, entry.first_offset
        if where not in kept:
            kept[where] = await super()._open_entry(committed, entry)
        return cast("ReadHandle", kept[where])


@bug("contract/every_reader_tells_what_is_not_there")
class NothingNewOfTheAbsent(ObjectStoreOffloader):
    """Says that a stream that never was, or is being rebuilt, has nothing new.

    `except NotOffloaded: return None` in the reader's loop.
    """

    async def newer_view(self, known: CommittedStream) -> Any:
        try:
            return await super().newer_view(known)
        except OffloadError:
            return None
