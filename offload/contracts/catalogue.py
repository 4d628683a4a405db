"""The contracts for reading: a catalogue of streams, and a view of each.

`offload read`, `ls`, `inspect`, `verify` and Spark's reading need only these two. So all of them can read a
place that another program wrote in its own layout, and that never takes a commit of ours. `LedgerOffloader`
is a `Catalogue` that takes data and commits as well.

    Catalogue    the streams of a place, and the committed state of each
    StreamView   one stream as it was committed at one moment: find, walk and open its fragments
    EntryView    a base class of `StreamView`s: only `where`, `name_of` and `open` are left to write
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Self

from offload.ground.errors import StreamDeleted
from offload.model.chunk_table import ChunkType
from offload.model.entry import Entries, Entry
from offload.model.manifest import CommittedStream
from offload.model.part import StreamPart
from offload.model.tree import EntryTree

if TYPE_CHECKING:
    from offload.contracts.ledger import ReadHandle

__all__ = ["Catalogue", "EntryView", "StreamView"]


class StreamView(ABC):
    """One stream of a tier, as it was committed at one moment.

    **Views do not move.** A view's answers never change, even if data is committed, trimmed or deleted later.
    **Entries cover the stream.** They ascend by offset and leave no hole in [first_offset, next_offset).
    **Any number may be asked for.** An offset or a time below zero or of more than 64 bits is no error.

    Not promised: that a fragment that an entry names still exists. If it was trimmed and removed, `open`, or
    the handle that it returned, raises `Absent`, and so may every other method. Ask the catalogue for a newer
    view then. All methods may raise `Corrupt`, `TryAgain` and `Denied`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def committed(self) -> CommittedStream:
        """The totals, and the entries that are loaded."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The name of the record that commits this state, such as an object's key. For messages."""

    @property
    def is_measured(self) -> bool:
        """True if the entries have the exact sizes and times of their chunks, as by default.

        False if a layout does not store them: then an entry's times are bounds, or those of its first and
        last chunk, and its data size is that of the stored bytes. Offsets are always exact. `first_since` and
        `last_timestamp_ms` of such a view may take chunks to be in the order of their times: to be sure, they
        would have to read all of the data.
        """
        return True

    @property
    def counts_messages(self) -> bool:
        """True if numbers of messages are exact. By default, the committed state says so.

        If it is False, an entry's `messages` is an upper bound, and only a table shows which records are
        messages. `last_with_messages` is exact all the same.
        """
        return self.committed.counts_messages

    @abstractmethod
    def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        """Yield the entries of the fragments from the one that holds `offset` on, in runs. Close it.

        Yields all of them if `offset` is before the first one, and none if it is behind the last.
        """

    @abstractmethod
    async def find(self, offset: int) -> Entry | None:
        """Return the fragment that holds `offset`, or None if none does."""

    @abstractmethod
    async def first_since(self, timestamp_ms: int) -> Entry | None:
        """Return the first fragment, in the order of offsets, with a chunk of that time or later."""

    @abstractmethod
    async def last_with_messages(self) -> Entry | None:
        """Return the newest fragment with a record that is a message."""

    @abstractmethod
    async def last_timestamp_ms(self) -> int | None:
        """Return the greatest timestamp of any chunk, or None if the stream is empty."""

    @abstractmethod
    def name_of(self, row: Entries) -> str:
        """Return the name of the object that `row`, one entry, describes, such as a key.

        `Absent` gives the same name.
        """

    @abstractmethod
    async def names(self, where: str) -> bool:
        """Return True if an entry of the view has this name.

        A reader asks this about an object of an older view that is gone.
        """

    @abstractmethod
    async def open(self, entry: Entry) -> ReadHandle:
        """Return a handle on the fragment that `entry`, an entry of this view, describes.

        Reads only the fragment's own table. Raises `Absent` if the fragment is gone, and `Corrupt` if the
        fragment contradicts the entry.
        """


class Catalogue(ABC):
    """The streams of a tier, and the committed state of each.

    A catalogue belongs to one event loop; its methods may be called at the same time. Threads use `Blocking`.
    Every method may raise `TryAgain` and `Denied`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of the tier, for messages. Carries no credentials."""

    @property
    def notes(self) -> Sequence[str]:
        """What a person must know to read this place right, one line each. None by default."""
        return ()

    @property
    def unproved(self) -> Sequence[str]:
        """What a verify cannot prove of this place, one line each. None by default."""
        return ()

    @abstractmethod
    async def open(self) -> None:
        """Check that the place is a tier. Raises `NotOffloaded` if it is not. Idempotent."""

    @abstractmethod
    async def streams(self) -> list[str]:
        """Return the streams that were ever begun here, in order of names.

        For a deleted stream `view` raises `StreamDeleted`. For a stream whose first commit never came, `view`
        raises `NotOffloaded`. This method raises `NotOffloaded` if the place is not a tier.
        """

    @abstractmethod
    async def view(self, stream: str) -> StreamView:
        """Return the stream as it is committed now.

        Raises `NotOffloaded` if nothing was ever committed, or the stream is being rebuilt; `StreamDeleted`
        if it was deleted.
        """

    async def newer_view(self, known: CommittedStream) -> StreamView | None:
        """Return the stream as it is committed now, or None if that is still `known`, or older.

        A trim or a copy makes a newer state too, although the stream's end stays where it is. Raises as
        `view` does, and `StreamDeleted` if the stream was begun again since. Optional: an implementation may
        find out at a lower cost that there is nothing newer.
        """
        newest = await self.view(known.stream)
        # The same offsets hold other records in another life of the stream. To continue would mix the two.
        if newest.committed.incarnation != known.incarnation:
            raise StreamDeleted(f"stream {known.stream!r} was deleted while it was read")
        return newest if newest.committed.version > known.version else None

    async def parts(self, stream: str, *, after: int = 1) -> list[StreamPart]:
        """Return the parts of a stream behind part `after`, in order. Part 1, the stream itself, is left out.

        Only parts whose record names `stream` count, not every stream whose name looks like that of a part.
        A number is left out if another stream has its name. A part may have no data yet, or be deleted:
        `view` raises then as for any stream. The default is for a catalogue whose streams have no parts.
        """
        return []

    @abstractmethod
    def view_of(self, committed: CommittedStream) -> StreamView:
        """Return a view of the state of an earlier view of this tier, whole or cut to some of its fragments.

        Sends no request. So one process can plan a read, and others can do it, each with its share of the
        entries.
        """

    async def aclose(self) -> None:
        """Release the catalogue's resources. Idempotent."""

    def __repr__(self) -> str:
        """Return the class and the URL, which has no credentials."""
        return f"<{type(self).__name__} {self.url}>"

    async def __aenter__(self) -> Self:
        """Return the catalogue. The exit closes it."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


class EntryView(StreamView):
    """A view whose entries are found through an `EntryTree`, which loads groups as needed."""

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
        """See `StreamView.find`. Loads at most one group of each level."""
        return await self.tree.find(offset)

    async def first_since(self, timestamp_ms: int) -> Entry | None:
        """See `StreamView.first_since`, and `EntryTree.first_since` for the groups that it loads."""
        return await self.tree.first_since(timestamp_ms)

    async def last_with_messages(self) -> Entry | None:
        """See `StreamView.last_with_messages`. Opens tables from the end if entries do not count messages."""
        if self.counts_messages:
            return await self.tree.last_with_messages()
        before = self.committed.next_offset
        while (entry := await self.find(before - 1)) is not None:
            async with await self.open(entry) as handle:
                if (await handle.table())["type"].min() == ChunkType.USER:
                    return entry
            before = entry.first_offset
        return None

    async def last_timestamp_ms(self) -> int | None:
        """See `StreamView.last_timestamp_ms`. Mostly loads nothing."""
        return await self.tree.last_timestamp_ms()

    async def names(self, where: str) -> bool:
        """See `StreamView.names`.

        Walks all entries: override it if a name shows which entry it belongs to.
        """
        async with aclosing(self.walk()) as runs:
            async for run in runs:
                if any(self.name_of(run[row : row + 1]) == where for row in range(len(run))):
                    return True
        return False
