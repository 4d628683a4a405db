"""A stream in our own layout, viewed: the keys of fragments and groups say where in it they belong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np

from offload.commit.groups import entry_key
from offload.contracts.catalogue import EntryView
from offload.contracts.ledger import ReadHandle
from offload.formats.keys import StreamKeys
from offload.model.entry import Entries, Entry
from offload.model.tree import EntryTree


class ObjectView(EntryView):
    """See `StreamView`. A fragment is opened by one request, whatever is in the tree."""

    __slots__ = ("_keys", "_open")

    def __init__(self, tree: EntryTree, open_entry: Callable[[Entry], Awaitable[ReadHandle]]) -> None:
        super().__init__(tree)
        self._keys, self._open = StreamKeys(tree.committed.stream), open_entry

    @property
    def where(self) -> str:
        """The root's key."""
        return self._keys.root(self.committed.version)

    def name_of(self, row: Entries) -> str:
        """The key of a fragment or of a group."""
        return entry_key(self._keys.stream, row)

    async def names(self, where: str) -> bool:
        """See `StreamView.names`. What is no fragment and no group is never let go of.

        Loads a group of each level at most, and none below one that is asked for.
        """
        if (fragment := self._keys.parse_fragment(where)) is not None:
            offset, kind = fragment[0], 0
        elif (group := self._keys.parse_group(where)) is not None:
            offset, kind = group[0], group[3]
        else:
            return True
        offset = max(offset, self.committed.first_offset)  # of a group, a part may live
        entries = self.committed.entries
        while True:
            ends = entries["first_offset"] + entries["records"]
            one = entries[ends > np.uint64(offset)][:1]
            if not len(one) or one["kind"][0] <= kind:
                return bool(len(one)) and self.name_of(one) == where
            entries = await self.tree.load(self.committed, one)

    async def open(self, entry: Entry) -> ReadHandle:
        """See `StreamView.open`."""
        return await self._open(entry)
