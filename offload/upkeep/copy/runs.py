"""A stream of a tier as a source of a copy: its fragments in runs, each run a handle that is opened lazily.

Invariants: a handle reads what one manifest names, whatever is committed later. It returns no byte without a
valid checksum: `offload.native.fragment_reader` checks the index against its own checksum and the manifest,
and each chunk against the index. A run is consecutive fragments of one attempt, so of one ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import aclosing
from typing import Final

from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot
from offload.contracts.store import Buffer
from offload.ground.errors import Absent, TryAgain
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries, entries_of_rows, exact_sum
from offload.model.excerpt import of_fragments
from offload.model.manifest import Manifest
from offload.native.fragment_reader import open_entries
from offload.read.reader import newer_manifest

__all__ = ["RUN_SIZE_BYTES"]


RUN_SIZE_BYTES: Final = 256 * 1024 * 1024
"""Chunk bytes of a run, at least, if its attempt has as many. A run is what one task uploads."""


class TierRun(ReadHandle):
    """Consecutive fragments of one attempt."""

    __slots__ = ("_entries", "_manifest", "_offloader", "_opened")

    def __init__(self, offloader: LedgerOffloader, manifest: Manifest, entries: Entries) -> None:
        """Make a run of `entries`, which `manifest` names."""
        self._offloader, self._manifest, self._entries = offloader, manifest, entries
        self._opened: ReadHandle | None = None

    @property
    def ledger_id(self) -> int:
        """The ledger of the fragments."""
        return int(self._entries["ledger_id"][0])

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return int(self._entries["first_offset"][0])

    @property
    def next_offset(self) -> int:
        """First offset after the last record."""
        return int(self._entries["first_offset"][-1]) + int(self._entries["records"][-1])

    @property
    def where(self) -> str:
        """The tier, the stream and the attempt."""
        attempt = entries_of_rows(self._entries[:1])[0].attempt
        return f"{self._offloader.url}, stream {self._manifest.stream!r}, attempt {attempt}"

    @property
    def size_bytes(self) -> int:
        """The size of all chunks."""
        return exact_sum(self._entries["data_size_bytes"])

    @property
    def manifest(self) -> Manifest:
        """A manifest that names only these fragments. With it, a task opens the run without a request."""
        return of_fragments(self._manifest, self._entries)

    async def table(self) -> ChunkTable:
        """Return the chunks of all fragments. Raises `TryAgain` if they were trimmed or replaced."""
        try:
            return await (await self._handle()).table()
        except Absent as absent:
            raise await self._gone(absent) from absent

    async def read(self, rows: ChunkTable) -> Buffer:
        """Return these chunks, checked. Raises `TryAgain` if they were trimmed or replaced."""
        return await self.read_on(rows, rows[:0])

    async def read_on(self, rows: ChunkTable, then: ChunkTable) -> Buffer:
        """Return these chunks as `read` does. `then` may come by the same request."""
        try:
            return await (await self._handle()).read_on(rows, then)
        except Absent as absent:
            raise await self._gone(absent) from absent

    def unknown_sections(self) -> Mapping[str, int]:
        """Those of the fragments, if they are open."""
        return {} if self._opened is None else self._opened.unknown_sections()

    async def aclose(self) -> None:
        """Release the indexes. They are fetched again if the run is read again."""
        if self._opened is not None:
            await self._opened.aclose()
            self._opened = None

    async def _handle(self) -> ReadHandle:
        if self._opened is None:
            entries = entries_of_rows(self._entries)
            view = self._offloader.view_of(self._manifest)
            self._opened = await open_entries(view, entries, where=str(entries[0].attempt))
        return self._opened

    async def _gone(self, absent: Absent) -> TryAgain:
        """Return the error for an object that is gone.

        Raises `absent` itself if the newest manifest still names the object: then it is damage.
        """
        newest = await newer_manifest(self._offloader, self._manifest, absent)
        return TryAgain(
            f"{self._offloader.url}: stream {newest.stream!r} was trimmed or compacted while it was copied, "
            f"and begins at offset {newest.first_offset} now; run again"
        )


async def snapshot_of(
    offloader: LedgerOffloader,
    manifest: Manifest,
    *,
    since: int = 0,
    run_size_bytes: int = RUN_SIZE_BYTES,
    runs_max: int | None = None,
    until: int | None = None,
) -> Snapshot:
    """Return the fragments that `manifest` names, in runs, from the fragment that holds `since` on.

    A run ends with the fragment that brings it to `run_size_bytes`. With `runs_max`, at most that many runs
    are listed, and groups that only later runs need are not fetched. The same counts for groups behind the
    offset `until`.
    """
    found: list[ReadHandle] = []
    async with aclosing(offloader.tree(manifest).walk(since)) as parts:
        async for part in parts:
            found += [TierRun(offloader, manifest, run) for run in _runs(part, run_size_bytes)]
            if runs_max is not None and len(found) >= runs_max:
                break
            if until is not None and found and found[-1].next_offset >= until:
                break
    return Snapshot(
        ledgers=found[:runs_max],
        first_offset=manifest.first_offset,
        next_offset=manifest.next_offset,
        epoch=manifest.source_epoch,
    )


def _runs(entries: Entries, size_bytes: int) -> Iterator[Entries]:
    attempts, sizes = entries["attempt"].tolist(), entries["data_size_bytes"].tolist()
    first = weight = 0
    for row in range(1, len(entries)):
        weight += sizes[row - 1]
        if weight >= size_bytes or attempts[row] != attempts[row - 1]:
            yield entries[first:row]
            first, weight = row, 0
    yield entries[first:]
