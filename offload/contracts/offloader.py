"""The contract between the framework and a backend.

There are three ways to write a backend. The easy one is to implement the `ObjectStore` port; the framework's
`ObjectStoreOffloader` turns the store into an offloader. The full one is to implement `LedgerOffloader`
itself, for a database or an archive service. The third, for data in a foreign layout, is to implement a
`Catalogue`, which can only be read.

`LedgerOffloader` combines two smaller contracts, and each caller asks for the one that it needs:

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
from offload.ground.errors import Misuse
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.entry import Entries, Entry, entries_of_rows
from offload.model.manifest import CommittedStream, Manifest
from offload.model.part import StreamPart
from offload.model.tree import Tree

__all__ = ["Committer", "LedgerOffloader"]


class Committer(ABC):
    """The keeper of each stream's manifest. It commits the changes of manifests.

    **Commits are atomic.** A change is in the manifest completely or not at all.
    **History is linear.** Of two commits on one parent exactly one succeeds; the other is applied
    to the newer manifest if it still fits, and raises `Conflict` otherwise. Fragments that begin beyond
    the end of the stream are the caller's gap: `Misuse`.
    **Claims fence.** After a claim is accepted, commits of every earlier writer raise `Fenced`.
    **Commits are idempotent.** If a change was committed before, committing it again returns the newest
    manifest, or raises `OutcomeUnknown` if the change's data was trimmed or compacted since.
    """

    __slots__ = ()

    @abstractmethod
    async def load_manifest(self, stream: str) -> Manifest:
        """Return the newest committed manifest.

        Raises `NotOffloaded` if there is none: nothing was ever committed, or the stream is being rebuilt.
        Raises `StreamDeleted`, which is a `NotOffloaded`, if the stream was deleted.
        """

    async def load_group(self, committed: CommittedStream, entry: Entries) -> Entries:
        """Return the entries of the group that `entry`, one row of the stream's tree, names.

        Only backends whose manifests have groups implement it. Raises `Corrupt` if the group is gone or
        damaged.
        """
        raise Misuse(f"the manifest of stream {committed.stream!r} has no groups here")

    def tree(self, manifest: Manifest) -> Tree:
        """Return the fragments that `manifest` names, as a tree that finds them by offset and time."""
        return Tree(manifest, self.load_group)

    @abstractmethod
    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        """Apply `change` to the newest manifest and return the manifest that contains it.

        `base` is the newest manifest that the caller knows, or None. It may be old. After the call has
        returned, no later failure undoes the change. The call may be repeated with the same change. Raises

        - `Fenced` if another writer holds the stream, `StreamDeleted` if the stream was deleted; the change
          may be in the manifest nevertheless;
        - `Conflict` if the newest manifest shows that it does not contain the change and that the change does
          not fit, `Misuse` if only the caller can have caused that, as by a gap. `TryAgain` too promises that
          the newest manifest does not contain the change;
        - `OutcomeUnknown` if the store did not answer in time, or if the manifest no longer shows whether it
          contains the change, because the change's data was trimmed or compacted. Load the manifest, then
          decide.
        """

    async def begin_part(self, part: StreamPart, *, before: Manifest | None) -> None:
        """Record that the stream named `part.name` is this part of `part.first`. Its first claim follows.

        From then on `Catalogue.parts` returns the part, if streams have the names of all numbers below: begin
        the lowest one first. `before` is the newest manifest of the part before; None if the caller copies
        parts, and keeps their encryption itself.
        The call may be repeated. Raises `Conflict` if another stream has the name, `Denied` if the stream is
        encrypted and the part would not be, and `Misuse` if the tier has no parts, as the default does.
        """
        raise Misuse(f"stream {part.first!r} cannot have parts here: the tier does not record them")


class LedgerOffloader(Catalogue, Committer):
    """A tier that copies ledgers into a store, reads them back, and keeps each stream's manifest.

    Its main methods are `offload`, `read_offloaded`, `delete_offloaded`, and `commit_manifest` of
    `Committer`. Every clause below, and those of `Committer`, has a test of the same name in
    `offload_conformance`. docs/contract.md names the clauses that test each sentence of this module.

    **Attempts are disjoint.** No two attempts share an object, so a crashed attempt is garbage,
    never a hazard.
    **Prepared before uploaded.** `offload` refuses an attempt that does not run in its manifest, with
    `Conflict`, before it reads or stores a byte; and a handle of another ledger, with `Misuse`.
    **Offloads are checked.** A damaged chunk is never stored: `Corrupt` names the chunk and its file. If
    several chunks are damaged, it names any one of them, because fragments may be uploaded in parallel.
    **Fragments are whole.** A reader sees a complete fragment or none.
    **Reads are verbatim.** The chunks that are read back are, byte for byte, those that were offloaded.
    **Absence is an error.** Reading data that was never committed raises `NotOffloaded`, never `None`.
    **Deletion is idempotent.** Deleting an absent attempt succeeds.
    **Deletion spares the committed.** Deleting an attempt that the manifest names raises `Conflict`
    and removes nothing.

    Not promised: any order among fragments on their way to the store; that a failed `offload` left
    nothing behind (call `delete_offloaded`, or leave it to the next writer). Every method may raise
    `TryAgain`, `Denied` or `NoSpace`; each method says what such an error leaves behind.

    An offloader belongs to one event loop; its methods may be called at the same time. Threads use
    `Blocking`.
    """

    __slots__ = ()

    @abstractmethod
    async def open(self, *, create: bool = False) -> None:
        """Check that the place is a tier. With `create`, make an empty place a tier.

        A place that is a tier already stays as it is, with what was uploaded and not committed. Raises
        `NotOffloaded` if the place is not a tier (with `create`: and is not empty).
        """

    async def view(self, stream: str) -> StreamView:
        """See `Catalogue.view`: a view of the newest manifest."""
        return self.view_of(await self.load_manifest(stream))

    def view_of(self, committed: CommittedStream) -> StreamView:
        """See `Catalogue.view_of`; `committed` is a `Manifest`, as in every view of an offloader.

        The view opens a fragment by `read_offloaded`, which must look up its entry again. Override this
        method if a fragment can be opened by its entry alone.
        """
        assert isinstance(committed, Manifest), "the views of an offloader are of manifests"
        return _ViewOfAttempts(self, committed)

    @abstractmethod
    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        """Check and copy every chunk of `handle`, and return once all of it is durable.

        Anybody can commit and read it from then on. `manifest` is an accepted manifest in which `attempt`
        runs. `extra_metadata` is for people who inspect the store: any text, which is never read back and
        changes nothing else. The caller closes `handle`: once the call has returned, raised or been
        cancelled, `handle` is read no more. Raises `Corrupt` at a damaged chunk, and if the table leaves out
        a part of the range. Offsets and ids of ledgers have 64 bits; a backend that keeps only 63 raises
        `Misuse` for a ledger that goes further, before it reads any of it. An error that `handle` raises is
        passed on; after `TryAgain`, `handle` may be read again first. After any error a part of the attempt
        may be present, and the attempt must not be used again.
        """

    @abstractmethod
    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        """Return a handle on the fragments of `attempt` that `manifest` names.

        None means the newest manifest. `only` narrows the handle to the fragments that hold some of these
        offsets, so that only their indexes are fetched. Raises `NotOffloaded` if the manifest names no
        fragment of the attempt, or none that holds an offset of `only`. Raises it too if copies have replaced
        fragments in the middle of the attempt, because a handle has no hole. Read the stream by its offsets
        then.
        """

    @abstractmethod
    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        """Return complete fragments that continue `manifest` exactly and that its writer may adopt.

        They are one chain from `next_offset` on, of attempts that run in `manifest` for another writer and
        not for a job. The chain ends only if no such fragment continues it, or if one was stored in the clear
        and the stream is encrypted now. A backend that keeps no fragments of unfinished attempts returns an
        empty list.
        """

    @abstractmethod
    async def delete_offloaded(self, attempt: Attempt) -> None:
        """Remove every object of `attempt`, even if the attempt is unfinished.

        First commits that the attempt no longer runs, so that no commit can ever name the removed objects.
        Raises `Conflict` if the manifest names the attempt.
        """


class _ViewOfAttempts(EntryView):
    """A view that opens fragments by `read_offloaded`, which every offloader has."""

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
