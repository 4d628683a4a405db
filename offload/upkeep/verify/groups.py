"""The groups of one stream, as a verify reads them: each once, within bounded memory.

A group is read to find what it names, page after page, and is an object to be judged itself. So what was
read and found sound is remembered by its name and size, and is not fetched again to be judged.

Invariants: a group is called sound only after every bit of it was held against the entry that names it, in
this very run; `NAMES_MAX` names are remembered at most, and groups beyond those are fetched once more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from offload.commit.groups import GroupCache
from offload.contracts.store import ObjectStore
from offload.formats.group import group_size_bytes
from offload.model.entry import Entries
from offload.model.manifest import CommittedStream

NAMES_MAX: Final = 2**14
"""Some 4 MiB: the groups of 16 million fragments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadGroups:
    """What was read of the groups of a stream."""

    store: ObjectStore
    cache: GroupCache = field(default_factory=GroupCache)
    _sizes: dict[bytes, int] = field(default_factory=dict)

    async def load(self, committed: CommittedStream, entry: Entries) -> Entries:
        """As `GroupCache.load`."""
        entries = await self.cache.load(self.store, committed, entry)
        if len(self._sizes) < NAMES_MAX:
            self._sizes[_name(committed, entry)] = group_size_bytes(len(entries))
        return entries

    async def size_bytes(self, committed: CommittedStream, entry: Entries) -> int:
        """The size of the group that `entry` names, which holds. Raises as `load` does where it does not."""
        known = self._sizes.get(_name(committed, entry))
        return group_size_bytes(len(await self.load(committed, entry))) if known is None else known


def _name(committed: CommittedStream, entry: Entries) -> bytes:
    return committed.incarnation.bytes + entry.tobytes()
