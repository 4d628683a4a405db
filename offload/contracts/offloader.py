"""The contract between the framework and a backend.

A backend is written in one of three ways. The easy one: implement the `ObjectStore` port, and
`ObjectStoreOffloader` makes an offloader of it. The full one: implement `LedgerOffloader` itself, for a
database or an archive service. The one for what others wrote: implement a `Catalogue`, which is only read.

`LedgerOffloader` is the sum of smaller contracts, and whoever calls it asks for no more than it needs:

    Catalogue    streams, views, handles on fragments    readers, `ls`, `inspect`, `verify`, Spark
    Committer    manifests, and changes of them          writers, jobs, retention
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from uuid import UUID

from offload.contracts.catalogue import Catalogue, EntryView, StreamView
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.errors import Misuse
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.entry import Entries, Entry, entries_of_rows
from offload.model.manifest import CommittedStream, Manifest
from offload.model.tree import Tree

__all__ = ["Committer", "LedgerOffloader"]


class Committer(ABC):
    """Keeps each stream's manifest, and moves it from one to the next.

    **Commits are atomic.** A change is in the manifest entire or not at all.
    **History is linear.** Of two commits on one parent exactly one succeeds; the other is applied
    to the newer manifest if it still fits, and raises `Conflict` otherwise. Fragments that begin beyond
    the end of the stream are the caller's gap: `Misuse`.
    **Claims fence.** After a claim is accepted, commits of every earlier writer raise `Fenced`.
    **Commits are idempotent.** Committing a change that is in already returns the newest manifest, or
    raises `OutcomeUnknown` if what it named was trimmed or compacted since.
    """

    __slots__ = ()

    @abstractmethod
    async def load_manifest(self, stream: str) -> Manifest:
        """The newest committed manifest.

        Raises `NotOffloaded` where there is none: nothing was ever committed, or the stream is being rebuilt.
        Where it was deleted, that is a `StreamDeleted`.
        """

    async def load_group(self, committed: CommittedStream, entry: Entries) -> Entries:
        """The entries of the group that `entry`, one row of the stream's tree, names.

        For those whose manifests have groups. Raises `Corrupt` where it is gone or does not hold.
        """
        raise Misuse(f"the manifest of stream {committed.stream!r} has no groups here")

    def tree(self, manifest: Manifest) -> Tree:
        """The fragments that `manifest` names, to be found by offset and time."""
        return Tree(manifest, self.load_group)

    @abstractmethod
    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        """Apply `change` to the newest manifest and return the one that holds it.

        `base` is the newest that the caller knows, None if it knows none. It may be old. Returning means
        that no later failure undoes the change. The call may be repeated with the same change. Raises

        - `Fenced` if another writer holds the stream, `StreamDeleted` if it was deleted; it may be in;
        - `Conflict` if the newest manifest shows that the change is not in and does not fit, `Misuse` if only
          the caller can have caused that, as by a gap. The same promise goes with `TryAgain`;
        - `OutcomeUnknown` if the store did not tell in time whether the change is in, or if the manifest no
          longer shows it since what it named was trimmed or compacted. Load the manifest, then decide.
        """


class LedgerOffloader(Catalogue, Committer):
    """Copies ledgers into a store and reads them back, and keeps each stream's manifest.

    It has four verbs: `offload`, `read_offloaded`, `delete_offloaded`, and `commit_manifest` of `Committer`.
    Every clause below, and those of `Committer`, has a test of the same name in `offload_conformance`.
    docs/contract.md names the clauses that ask for each sentence of this module.

    **Attempts are disjoint.** No two attempts share an object, so a crashed attempt is garbage,
    never a hazard.
    **Prepared before uploaded.** `offload` refuses an attempt that its manifest does not run, with
    `Conflict`, before it reads or stores a byte; and a handle of another ledger, with `Misuse`.
    **Offloads are checked.** A chunk whose bytes do not hold is never stored: `Corrupt` names it and its
    file, and any one where there are several, for fragments may be on their way together.
    **Fragments are whole.** A reader sees a fragment entire or not at all.
    **Reads are verbatim.** What is read back is, chunk for chunk, the bytes that were offloaded.
    **Absence is an error.** Reading what was never committed raises `NotOffloaded`, never `None`.
    **Deletion is idempotent.** Deleting an absent attempt succeeds.
    **Deletion spares the committed.** Deleting an attempt that the manifest names raises `Conflict`
    and removes nothing.

    Not promised: any order among fragments on their way to the store; that a failed `offload` left
    nothing behind (call `delete_offloaded`, or leave it to the next writer). Every method may
    raise `TryAgain`, `Denied` or `NoSpace`; what that leaves behind stands with the method.

    An offloader belongs to one event loop; its methods may be called at the same time. `Blocking`
    serves threads.
    """

    __slots__ = ()

    @abstractmethod
    async def open(self, *, create: bool = False) -> None:
        """Make sure that the place is a tier; with `create`, make it one where it is empty.

        Raises `NotOffloaded` where it is none (and, with `create`, holds something else).
        """

    async def view(self, stream: str) -> StreamView:
        """See `Catalogue.view`: a view of the newest manifest."""
        return self.view_of(await self.load_manifest(stream))

    def view_of(self, committed: CommittedStream) -> StreamView:
        """See `Catalogue.view_of`; `committed` is a `Manifest`, as in every view of an offloader.

        This one opens a fragment by `read_offloaded`, which has to look its entry up again. Override it if a
        fragment can be opened by its entry alone.
        """
        assert isinstance(committed, Manifest), "the views of an offloader are of manifests"
        return _ViewOfAttempts(self, committed)

    @abstractmethod
    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        """Copy every chunk of `handle`, checked, and return once all of it is durable.

        Anybody can commit and read it from then on. `manifest` is the accepted one in which `attempt` runs.
        `extra_metadata` is for people who inspect the store: any text, which is never read back and changes
        nothing else. `handle` stays its owner's to close. Raises `Corrupt` at a chunk that does not hold, and
        if the table leaves out a part of the range. Offsets have 64 bits; a backend that keeps only 63 raises
        `Misuse` for a ledger that goes further, before it reads any of it. An error that `handle` raises is
        passed on; after `TryAgain` it may be read again first. After any error a part of the attempt may be
        present, and the attempt must not be used again.
        """

    @abstractmethod
    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        """A handle on what `manifest` (the newest, where None) names of `attempt`.

        `only` narrows it to the fragments that hold some of these offsets, so that no more than
        their indexes are fetched. Raises `NotOffloaded` if the manifest names nothing of it, or nothing of it
        that `only` wants, or if copies have replaced fragments in its midst: a handle has no hole. Read the
        stream by its offsets then.
        """

    @abstractmethod
    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        """Complete fragments that continue `manifest` exactly and that its writer may adopt.

        One chain from `next_offset` on, of attempts that run in `manifest` for another writer and
        for no job. It ends only where no such fragment continues it. A backend that keeps none of an
        unfinished attempt returns an empty list.
        """

    @abstractmethod
    async def delete_offloaded(self, attempt: Attempt) -> None:
        """Remove every object of `attempt`, including those of an unfinished one.

        Drops the attempt from the running list first, by a commit, so that no commit can ever name
        what is removed. Raises `Conflict` where the manifest names the attempt.
        """


class _ViewOfAttempts(EntryView):
    """A view that opens fragments by the four verbs alone."""

    __slots__ = ("_manifest", "_offloader")

    def __init__(self, offloader: LedgerOffloader, manifest: Manifest) -> None:
        super().__init__(offloader.tree(manifest))
        self._offloader, self._manifest = offloader, manifest

    @property
    def where(self) -> str:
        return f"version {self._manifest.version} of stream {self._manifest.stream!r}"

    def name_of(self, row: Entries) -> str:
        entry = entries_of_rows(row)[0]
        return f"attempt {entry.attempt} at offset {entry.first_offset} of stream {self._manifest.stream!r}"

    async def open(self, entry: Entry) -> ReadHandle:
        attempt = Attempt(stream=self._manifest.stream, ledger_id=entry.ledger_id, uid=entry.attempt)
        only = range(entry.first_offset, entry.next_offset)
        return await self._offloader.read_offloaded(attempt, manifest=self._manifest, only=only)
