"""Bugs of reads: bytes, ranges of offsets, and the manifest by which an attempt is read."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from uuid import UUID

from offload.commit.guest import Trim
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import NotOffloaded, TryAgain
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.offloader.shared import Around
from offload_conformance.bugs.registry import bug


class Tidied(Around):
    """A handle that changes some bytes."""

    async def read(self, rows: ChunkTable) -> bytes:
        return (await super().read(rows)).replace(b".", b" ")


@bug("contract/reads_are_verbatim")
class Tidies(ObjectStoreOffloader):
    """Returns bytes that differ slightly from the original ones.

    Records are decoded and encoded again on the way, trimmed, or recompressed.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return Tidied.around(await super().read_offloaded(*args, **kwargs))


@bug("contract/reads_are_verbatim_when_narrowed")
class NarrowsTooFar(ObjectStoreOffloader):
    """Leaves out the last offset of a narrowed read.

    An inclusive end taken for an exclusive one.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        narrowed = None if only is None else range(only.start, only.stop - 1)
        return await super().read_offloaded(attempt, manifest=manifest, only=narrowed)


@bug("contract/absence_is_an_error")
class ReturnsNone(ObjectStoreOffloader):
    """Returns None if nothing was committed.

    This avoids an exception here, but the caller's next line fails.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        try:
            return await super().read_offloaded(*args, **kwargs)
        except NotOffloaded:
            return None  # type: ignore[return-value]


@bug("contract/trimmed_offsets_are_gone")
class LeavesTrimsToTheBucket(ObjectStoreOffloader):
    """Does not commit a trim.

    Retention is left to the bucket's lifecycle rules, which delete objects that the manifest still names.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if isinstance(change, Trim):
            return await self.load_manifest(stream)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


@bug("contract/snapshots_do_not_move")
class LiveHandles(ObjectStoreOffloader):
    """Returns handles that grow with the stream.

    The end of the range is looked up at every call instead of once.
    """

    newest_offset = 0

    async def commit_manifest(self, *args: Any, **kwargs: Any) -> Manifest:
        manifest = await super().commit_manifest(*args, **kwargs)
        self.newest_offset = manifest.next_offset
        return manifest

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        handle = Live.around(await super().read_offloaded(*args, **kwargs))
        handle.offloader = self  # type: ignore[attr-defined]
        return handle


class Live(Around):
    """A handle that ends where the stream ends now."""

    offloader: LiveHandles

    @property
    def next_offset(self) -> int:
        return max(self._next_offset, self.offloader.newest_offset)


class Shortened(Around):
    """A handle that begins one offset later."""

    @property
    def first_offset(self) -> int:
        return super().first_offset + 1

    async def table(self) -> ChunkTable:
        return await self._whole.table()


@bug("contract/chunks_are_whole")
class BeginsWithinAChunk(ObjectStoreOffloader):
    """Returns handles that begin behind the first record of a chunk.

    A reader's offset is taken for the beginning of the handle's range.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return Shortened.around(await super().read_offloaded(*args, **kwargs))


class _Page(Around):
    async def table(self) -> ChunkTable:
        return (await super().table())[:1000]


@bug("contract/reads_are_verbatim")
class ReadsOnePage(ObjectStoreOffloader):
    """Reads back the first thousand chunks of an attempt.

    A query has a limit, and nobody requests the next page.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Page.around(await super().read_offloaded(*args, **kwargs))


class _Buffer(Around):
    async def read(self, rows: ChunkTable) -> bytes:
        return (await super().read(rows))[: 4 * 1024 * 1024]


@bug("contract/reads_are_verbatim")
class FillsOneBuffer(ObjectStoreOffloader):
    """Returns at most one buffer of a read.

    There is one `recv` instead of a loop, and tests have small chunks.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Buffer.around(await super().read_offloaded(*args, **kwargs))


class _Cursor(Around):
    rows: ChunkTable

    async def read(self, rows: ChunkTable) -> bytes:
        self.rows = rows
        await asyncio.sleep(0)
        return await super().read(self.rows)


@bug("contract/reads_may_run_at_once")
class ReadsByOneCursor(ObjectStoreOffloader):
    """Keeps the read position in the handle.

    `seek`, then `read`: another read comes between the two.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Cursor.around(await super().read_offloaded(*args, **kwargs))


@bug("contract/reads_go_by_the_manifest_given")
class ReadsByTheNewest(ObjectStoreOffloader):
    """Reads by the newest manifest, and ignores the given one.

    The parameter was added for other backends, and is not used.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        return await super().read_offloaded(attempt, only=only)


CURSORS: Final = 8


class _OneOfEight(Around):
    open_cursors: list[_OneOfEight]

    async def read(self, rows: ChunkTable) -> Any:
        if self not in self.open_cursors[-CURSORS:]:
            raise TryAgain(f"{self.where}: the cursor is closed")
        return await super().read(rows)


@bug("contract/reads_may_run_at_once")
class KeepsEightCursors(ObjectStoreOffloader):
    """Closes the oldest handle when a ninth one is opened.

    Each handle is a cursor of the server, which limits their number. Readers of many fragments lose some.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        cursors: list[_OneOfEight] = self.__dict__.setdefault("cursors", [])
        cursor = _OneOfEight.around(await super().read_offloaded(*args, **kwargs))
        assert isinstance(cursor, _OneOfEight)
        cursor.open_cursors = cursors
        cursors.append(cursor)
        return cursor
