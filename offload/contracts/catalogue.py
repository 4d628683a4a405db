"""The contracts of whoever only reads: a catalogue of streams, and a view of each.

`offload read`, `ls`, `inspect`, `verify` and Spark's reading need no more than these two. So all of them can
read a place that somebody else wrote in a layout of its own, and that never takes a commit of ours.
`LedgerOffloader` is a `Catalogue` that takes data and commits as well.

    Catalogue    which streams there are, and what is committed of each
    StreamView   one stream as it was committed at one moment: find, walk, and open what it names
    EntryView    a `StreamView` to derive from: only `where`, `name_of` and `open` are left to write
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Self

from offload.model.entry import Entries, Entry
from offload.model.manifest import CommittedStream
from offload.model.tree import EntryTree

if TYPE_CHECKING:
    from offload.contracts.ledger import ReadHandle

__all__ = ["Catalogue", "EntryView", "StreamView"]


class StreamView(ABC):
    """One stream of a tier, as it was committed at one moment.

    **Views do not move.** What a view says never changes, whatever is committed, trimmed or deleted since.
    **Entries cover the stream.** They ascend by offset and leave no hole in [first_offset, next_offset).

    Not promised: that what an entry names is still there. If it was trimmed and removed, `open`, or the
    handle that it returned, raises `Absent`, and so may every other method. Ask the catalogue for a newer
    view then. All methods may raise `Corrupt`, `TryAgain` and `Denied`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def committed(self) -> CommittedStream:
        """The totals, and the entries at hand."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The name of what says that this is committed, such as an object's key. For messages."""

    @abstractmethod
    def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        """The entries of the fragments from the one that holds `offset` on, in runs. Close it."""

    @abstractmethod
    async def find(self, offset: int) -> Entry | None:
        """The fragment that holds `offset`, or None if none does."""

    @abstractmethod
    async def first_since(self, timestamp_ms: int) -> Entry | None:
        """The first fragment, in the order of offsets, with a chunk of that time or later."""

    @abstractmethod
    async def last_with_messages(self) -> Entry | None:
        """The newest fragment with a record that is a message."""

    @abstractmethod
    async def last_timestamp_ms(self) -> int | None:
        """The greatest timestamp of any chunk, or None if the stream is empty."""

    @abstractmethod
    def name_of(self, row: Entries) -> str:
        """The name of what `row`, one entry, stands for, as `Absent` has it: an object's key, for example."""

    @abstractmethod
    async def names(self, where: str) -> bool:
        """Whether an entry of the view has this name. Asked about what an older view named, and is gone."""

    @abstractmethod
    async def open(self, entry: Entry) -> ReadHandle:
        """Return a handle on the fragment that `entry`, which the view has, stands for.

        Asks for nothing but the fragment's own table. Raises `Absent` if the fragment is gone, and `Corrupt`
        if it is not what the entry says.
        """


class Catalogue(ABC):
    """The streams of a tier: which were begun, and what is committed of each.

    A catalogue belongs to one event loop; its methods may be called at the same time. `Blocking` serves
    threads. Every method may raise `TryAgain` and `Denied`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the tier is, for messages. Carries no credentials."""

    @abstractmethod
    async def open(self) -> None:
        """Make sure that the place is a tier. Raises `NotOffloaded` if it is none. Idempotent."""

    @abstractmethod
    async def streams(self) -> list[str]:
        """The streams that were ever begun here, in order of names.

        Of one that was deleted `view` raises `StreamDeleted`; of one whose first commit never came,
        `NotOffloaded`. So does this method if the place is no tier.
        """

    @abstractmethod
    async def view(self, stream: str) -> StreamView:
        """The stream as it is committed now.

        Raises `NotOffloaded` if nothing was ever committed, or the stream is being rebuilt; `StreamDeleted`
        if it was deleted.
        """

    @abstractmethod
    def view_of(self, committed: CommittedStream) -> StreamView:
        """A view of what an earlier view of this tier said, whole or cut to some of its fragments.

        Asks nothing. So what one process planned can be read by others, each with its share of the entries.
        """

    async def aclose(self) -> None:
        """Release what the catalogue holds. Idempotent."""

    async def __aenter__(self) -> Self:
        """Close on the way out."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


class EntryView(StreamView):
    """A view whose entries are found through an `EntryTree`: at hand, or in groups that it loads."""

    __slots__ = ("tree",)

    def __init__(self, tree: EntryTree) -> None:
        self.tree: Final = tree

    @property
    def committed(self) -> CommittedStream:
        """See `StreamView.committed`."""
        return self.tree.committed

    def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        """See `StreamView.walk`. Loads each group once."""
        return self.tree.walk(offset)

    async def find(self, offset: int) -> Entry | None:
        """See `StreamView.find`. Loads a group of each level at most."""
        return await self.tree.find(offset)

    async def first_since(self, timestamp_ms: int) -> Entry | None:
        """See `StreamView.first_since`, and `EntryTree.first_since` for what it loads."""
        return await self.tree.first_since(timestamp_ms)

    async def last_with_messages(self) -> Entry | None:
        """See `StreamView.last_with_messages`."""
        return await self.tree.last_with_messages()

    async def last_timestamp_ms(self) -> int | None:
        """See `StreamView.last_timestamp_ms`. Mostly loads nothing."""
        return await self.tree.last_timestamp_ms()

    async def names(self, where: str) -> bool:
        """See `StreamView.names`. Walks all entries: override it if names say where they belong."""
        async with aclosing(self.walk()) as runs:
            async for run in runs:
                if any(self.name_of(run[row : row + 1]) == where for row in range(len(run))):
                    return True
        return False
