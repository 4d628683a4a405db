"""The view of a stream in the native layout. Keys of fragments and groups say where in it they belong."""

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
    """See `StreamView`. A fragment is opened by one request, however large the tree is.

    The last fragment that was opened is kept, because a reader that looks for a time or an offset then reads
    the fragment that it found. Its handle holds an index, and nothing to be closed. One that is encrypted is
    not kept: a key stays in memory only as long as the key ring says.
    """

    __slots__ = ("_keys", "_last", "_open")

    def __init__(self, tree: EntryTree, open_entry: Callable[[Entry], Awaitable[ReadHandle]]) -> None:
        super().__init__(tree)
        self._keys, self._open = StreamKeys(tree.committed.stream), open_entry
        self._last: tuple[Entry, ReadHandle] | None = None

    @property
    def where(self) -> str:
        """The root's key."""
        return self._keys.root(self.committed.version)

    def name_of(self, row: Entries) -> str:
        """Return the key of a fragment or of a group."""
        return entry_key(self._keys.stream, row)

    async def names(self, where: str) -> bool:
        """See `StreamView.names`. A key of anything but a fragment or a group counts as named.

        Loads at most one group of each level, and none below the group that `where` names.
        """
        if (fragment := self._keys.parse_fragment(where)) is not None:
            offset, kind = fragment[0], 0
        elif (group := self._keys.parse_group(where)) is not None:
            offset, kind = group[0], group[3]
        else:
            return True
        # A group that was trimmed in part begins below the first offset. It is still found, by its first live
        # fragment. A fragment below the first offset is not: another one holds that offset.
        offset = max(offset, self.committed.first_offset)
        entries = self.committed.entries
        while True:
            ends = entries["first_offset"] + entries["records"]
            one = entries[ends > np.uint64(offset)][:1]
            if not len(one) or one["kind"][0] <= kind:
                return bool(len(one)) and self.name_of(one) == where
            entries = await self.tree.load(self.committed, one)

    async def open(self, entry: Entry) -> ReadHandle:
        """See `StreamView.open`."""
        if self._last is not None and self._last[0] == entry:
            return self._last[1]
        handle = await self._open(entry)
        if not entry.encrypted:
            self._last = (entry, handle)
        return handle
