"""Offloaders that harm another attempt, or keep for themselves what belongs to their callers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from contract.bugs import Bug, breaks
from contract.offloader_bugs import _Around

from offload.contracts.ledger import ReadHandle
from offload.formats.keys import StreamKeys
from offload.ground.errors import TryAgain
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader

BESIDE_OFFLOADER_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=BESIDE_OFFLOADER_BUGS)

CURSORS: Final = 8


async def _deleted_but(offloader: ObjectStoreOffloader, attempt: Attempt, manifest: Manifest) -> None:
    """Delete the fragments of every other attempt that lie behind the end of a stream."""
    keys = StreamKeys(attempt.stream)
    found = {row.key: keys.parse_fragment(row.key) async for row in offloader.data.list(keys.data)}
    await offloader.data.delete(
        [key for key, parsed in found.items() if parsed and parsed[0] >= manifest.next_offset]
    )


@bug("attempts_are_disjoint")
class LooksForTheAbsentByItsLedger(ObjectStoreOffloader):
    """Deletes other attempts at a ledger if the one to delete is absent.

    The id may have been written wrongly, and somebody wants the ledger to be gone.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        if not [row async for row in self.data.list("") if str(attempt.uid) in row.key]:
            await _deleted_but(self, attempt, await self.load_manifest(attempt.stream))
        await super().delete_offloaded(attempt)


@bug("cancelled_offloads_hinder_nobody")
class CleansUpWhenCancelled(ObjectStoreOffloader):
    """Deletes whatever lies behind the end of a stream when an offload of it is cancelled.

    Nothing is committed there, so it looks like what the cancelled offload has left.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        try:
            return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        except asyncio.CancelledError:
            await _deleted_but(self, attempt, manifest)
            raise


@bug("extra_metadata_is_any_text")
class AddsToTheCallersMetadata(ObjectStoreOffloader):
    """Adds its own names to the mapping that it was given.

    The mapping of the caller is used instead of a copy.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        if isinstance(extra_metadata, dict):
            extra_metadata["attempt"] = str(attempt.uid)
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)


@bug("streams_are_all_listed")
class HandsOutItsOwnList(ObjectStoreOffloader):
    """Returns its own list of streams, and goes on with what the caller has made of it.

    A cache hands out its own entry instead of a copy.
    """

    fetched: tuple[str, ...] = ()

    async def streams(self) -> list[str]:
        fresh = await super().streams()
        if self.fetched != tuple(fresh):
            self.fetched, self.handed_out = tuple(fresh), fresh
        return self.handed_out


class _Cursor(_Around):
    open_cursors: list[_Cursor]

    async def read(self, rows: ChunkTable) -> Any:
        if self not in self.open_cursors[-CURSORS:]:
            raise TryAgain(f"{self.where}: the cursor is closed")
        return await super().read(rows)


@bug("reads_may_run_at_once")
class KeepsEightCursors(ObjectStoreOffloader):
    """Closes the oldest handle when a ninth one is opened.

    Each handle is a cursor of the server, which limits their number. Readers of many fragments lose some.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        cursors: list[_Cursor] = self.__dict__.setdefault("cursors", [])
        cursor = _Cursor.around(await super().read_offloaded(*args, **kwargs))
        assert isinstance(cursor, _Cursor)
        cursor.open_cursors = cursors
        cursors.append(cursor)
        return cursor
