"""The groups of one stream as a verify reads them: each once, within bounded memory.

A verify reads a group for the names in it, on several pages, and judges the group as an object of its own. So
the name and size of a sound group are remembered, and the group is not fetched again to be judged.

Invariants: a group is called sound only after every bit of it was compared, in this run, with the entry that
names it. At most `NAMES_MAX` names are remembered; groups beyond those are fetched once more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from offload.commit.groups import GroupCache
from offload.contracts.store import ObjectStore
from offload.formats.group import Group
from offload.model.entry import Entries
from offload.model.manifest import CommittedStream

NAMES_MAX: Final = 2**14
"""Some 4 MiB: the groups of 16 million fragments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadGroups:
    """The groups of a stream that were read so far."""

    store: ObjectStore
    cache: GroupCache = field(default_factory=GroupCache)
    _sizes: dict[bytes, int] = field(default_factory=dict)

    async def load(self, committed: CommittedStream, entry: Entries) -> Entries:
        """Load a group as `GroupCache.load` does, and remember its size."""
        return (await self._load(committed, entry)).entries

    async def size_bytes(self, committed: CommittedStream, entry: Entries) -> int:
        """Return the size of the group that `entry` names. Raises as `load` does if it is not sound."""
        known = self._sizes.get(_name(committed, entry))
        return (await self._load(committed, entry)).size_bytes if known is None else known

    async def _load(self, committed: CommittedStream, entry: Entries) -> Group:
        group = await self.cache.load_group(self.store, committed, entry)
        if len(self._sizes) < NAMES_MAX:
            self._sizes[_name(committed, entry)] = group.size_bytes
        return group


def _name(committed: CommittedStream, entry: Entries) -> bytes:
    return committed.incarnation.bytes + entry.tobytes()
