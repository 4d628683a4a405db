"""Bugs that a reader of the whole stream meets."""

from __future__ import annotations

from typing import Any

from offload.contracts.ledger import ReadHandle
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.model.tree import Tree
from offload_conformance.bugs.offloader.shared import Around, ByVerbs
from offload_conformance.bugs.registry import bug


@bug("contract/streams_come_out_as_they_went_in")
class ForgetsTheLastChunk(ByVerbs):
    """Leaves out the last chunk of each ledger.

    A loop runs over pairs of offsets, and the last one has no successor.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Headless.around(await super().read_offloaded(*args, **kwargs))


class _Headless(Around):
    async def table(self) -> ChunkTable:
        return (await super().table())[:-1]


class _OneOff(Tree):
    async def first_since(self, timestamp_ms: int) -> Entry | None:
        found = await super().first_since(timestamp_ms)
        return found and await self.find(found.next_offset)


@bug("contract/streams_are_found_by_time")
class IsOneFragmentOff(ByVerbs):
    """Finds the fragment behind the right one for a time.

    A binary search for the first fragment that begins then, instead of the first that has not ended.
    """

    def tree(self, manifest: Manifest) -> Tree:
        return _OneOff(manifest, self.load_group)
