"""Mistakes in commits and offloads, of the second set."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID, uuid4

from offload_sqlite_ledger import offloader as example

from newcomers.late import Handle, chunks, writer
from newcomers.ledgers import raises
from newcomers.registry import Open, bug
from newcomers.sound import Ledgers
from offload.commit.job import Announce
from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Conflict, Misuse, OutcomeUnknown, StreamDeleted
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.manifest import AttemptKind, Manifest, StreamState
from offload.model.tree import Tree


async def shows_newest_base_is_not_judged(open_: Open) -> None:
    w = await writer(open_())
    epoch = w.manifest.epoch
    again = await w.commit(Claim(stream="s", writer=w.uid, first_offset=0))
    assert again.epoch == epoch


@bug(shows_newest_base_is_not_judged)
class NewestBaseIsNotJudged(Ledgers):
    """If `base` is the newest manifest, the check for a change that is already in is skipped.

    Breaks "Committing a change that is in already returns the newest manifest". A repeated claim raises the
    epoch.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        await self.open(create=isinstance(change, Claim))
        newest = await self._newest(stream)
        if base is not None and newest is not None and newest.version == base.version:
            proposal = await self._proposal(change, newest, committer)
            if await self._database.write(example._swap(stream, newest, proposal)):
                return proposal
        return await super().commit_manifest(stream, change, base=base, committer=committer)


async def shows_unknown_taken_for_out(open_: Open) -> None:
    w = await writer(open_())
    receipt = await w.add(chunks(2))
    await w.add(chunks(2, 4), 2)
    await w.trim(receipt)
    await raises(OutcomeUnknown, w.commit(w.append(receipt)))


@bug(shows_unknown_taken_for_out)
class UnknownTakenForOut(Ledgers):
    """Every verdict other than IN counts as OUT: an append that landed and was trimmed since is a `Conflict`.

    Breaks "or raises `OutcomeUnknown` if what it named was trimmed or compacted since"; `Conflict` means
    that it is not in.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        try:
            return await super().commit_manifest(stream, change, base=base, committer=committer)
        except OutcomeUnknown as exc:
            raise Conflict(str(exc)) from exc


async def shows_gap_is_a_conflict(open_: Open) -> None:
    w = await writer(open_())
    receipt = await w.upload(chunks(2, 100))
    await raises(Misuse, w.commit(w.append(receipt)))


@bug(shows_gap_is_a_conflict)
class GapIsAConflict(Ledgers):
    """`Misuse` from a change is turned into `Conflict`, as "the change does not fit" in both cases.

    Breaks "Fragments that begin beyond the end of the stream are the caller's gap: `Misuse`." A caller
    then loads the manifest and retries for ever.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        try:
            return await super().commit_manifest(stream, change, base=base, committer=committer)
        except Misuse as exc:
            raise Conflict(str(exc)) from exc


async def shows_entry_by_entry(open_: Open) -> None:
    w = await writer(open_())
    one, two = await w.upload(chunks(2)), await w.upload(chunks(2, 50), 2)
    both = Append(writer=w.uid, entries=[*one.entries, *two.entries])
    await raises((Misuse, Conflict), w.commit(both))
    assert (await open_().load_manifest("s")).next_offset == 0


@bug(shows_entry_by_entry)
class EntryByEntry(Ledgers):
    """An append of several entries is committed entry by entry, each in a transaction of its own.

    Breaks "A change is in the manifest entire or not at all": if a later entry does not fit, the first ones
    stay.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        commit = super().commit_manifest
        if isinstance(change, Append) and len(change.entries) > 1:
            for entry in change.entries[:-1]:
                one = replace(change, entries=[entry], finished=frozenset())
                base = await commit(stream, one, base=base, committer=committer)
            change = replace(change, entries=change.entries[-1:])
        return await commit(stream, change, base=base, committer=committer)


async def shows_returns_parent(open_: Open) -> None:
    w = await writer(open_())
    await w.prepare()
    assert (await open_().load_manifest("s")).version == w.manifest.version


@bug(shows_returns_parent)
class ReturnsParent(Ledgers):
    """`commit_manifest` returns the manifest with the change in it, but the version of its parent.

    Breaks "return the one that holds it": the version was counted up by the UPDATE alone.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        return replace(manifest, version=max(manifest.version - 1, 1))


async def shows_stale_base_is_conflict(open_: Open) -> None:
    w = await writer(open_())
    old = w.manifest
    await w.prepare()
    w.manifest = old
    await w.commit(Prepare(writer=w.uid, attempts=[(uuid4(), 2)]))


@bug(shows_stale_base_is_conflict)
class StaleBaseIsConflict(Ledgers):
    """A commit compares the version of `base` with the newest, and raises `Conflict` after any commit in
    between.

    Breaks "the other is applied to the newer manifest if it still fits"; `base` "may be old".
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        await self.open(create=isinstance(change, Claim))
        newest = await self._newest(stream)
        is_old = base is not None and newest is not None and newest.version != base.version
        if is_old and await change.verdict(Tree(newest, self.load_group)) is example.CommitVerdict.OUT:
            raise Conflict(f"stream {stream!r} is at version {newest.version}, beyond {base.version}")
        return await super().commit_manifest(stream, change, base=base, committer=committer)


async def shows_cancelled_commit_keeps_lock(open_: Open) -> None:
    w = await writer(open_())
    committing = asyncio.ensure_future(w.prepare())
    await asyncio.sleep(0)
    committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)
    await w.prepare()


@bug(shows_cancelled_commit_keeps_lock)
class CancelledCommitKeepsLock(Ledgers):
    """A lock orders the commits of a client. It is released after the commit, but not in a `finally`.

    Breaks the next call works, also after an error or a cancellation: here it waits for ever.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._turn = asyncio.Lock()

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        await self._turn.acquire()
        try:
            manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        except Exception:
            self._turn.release()
            raise
        self._turn.release()
        return manifest


class Decoding(Ledgers):
    """An offloader that keeps the manifest in separate columns, of which one is missing."""

    def lossy(self, manifest: Manifest) -> Manifest:
        return manifest

    async def _newest(self, stream: str) -> Manifest | None:
        manifest = await super()._newest(stream)
        return manifest and self.lossy(manifest)


async def shows_kind_is_not_kept(open_: Open) -> None:
    w = await writer(open_())
    job, uid = uuid4(), uuid4()
    await w.commit(Announce(job=job, incarnation=w.manifest.incarnation, attempts=[(uid, 1)]))
    assert [each.kind for each in (await open_().load_manifest("s")).running] == [AttemptKind.JOB]


@bug(shows_kind_is_not_kept)
class KindIsNotKept(Decoding):
    """The table of running attempts has no column for their kind: a job's come back as the writer's.

    Breaks "Commits are atomic", "entire": the next writer settles a job's attempts, and the job cannot
    append.
    """

    def lossy(self, manifest: Manifest) -> Manifest:
        running = tuple(replace(each, kind=AttemptKind.STREAM) for each in manifest.running)
        return replace(manifest, running=running)


async def shows_deleted_row_is_gone(open_: Open) -> None:
    w = await writer(open_())
    await w.delete()
    await raises(StreamDeleted, open_().load_manifest("s"))


@bug(shows_deleted_row_is_gone)
class DeletedRowIsGone(Ledgers):
    """A deletion removes the stream's row.

    Breaks "Where it was deleted, that is a `StreamDeleted`", `streams` "that were ever begun", and versions
    begin again at 1.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        if manifest.state is StreamState.DELETED:
            await self._database.insert("DELETE FROM manifests WHERE stream = ?", [(stream,)])
        return manifest


async def shows_manifest_cached(open_: Open) -> None:
    w, reader = await writer(open_()), open_()
    await reader.load_manifest("s")
    await w.add(chunks(2))
    assert (await reader.load_manifest("s")).next_offset == 4


@bug(shows_manifest_cached)
class ManifestCached(Ledgers):
    """A client keeps each stream's manifest for `load_manifest` until it commits to the stream itself.

    Breaks "The newest committed manifest."
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._cache = {}

    async def load_manifest(self, stream: str) -> Manifest:
        if stream not in self._cache:
            self._cache[stream] = await super().load_manifest(stream)
        return self._cache[stream]

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        self._cache.pop(stream, None)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


async def shows_ledger_is_not_compared(open_: Open) -> None:
    w = await writer(open_())
    attempt = await w.prepare(1)
    await raises(Misuse, w.tier.offload(Handle(chunks(), 2), attempt, manifest=w.manifest, extra_metadata={}))


@bug(shows_ledger_is_not_compared)
class LedgerIsNotCompared(Ledgers):
    """The attempt is checked, but not that the handle is of the ledger that the attempt announced.

    Breaks "and a handle of another ledger, with `Misuse`".
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        if handle.ledger_id != attempt.ledger_id:
            handle = Relabelled(handle, attempt.ledger_id)
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)


class Wrapped(ReadHandle):
    def __init__(self, inner):
        self.inner = inner

    ledger_id = property(lambda self: self.inner.ledger_id)
    first_offset = property(lambda self: self.inner.first_offset)
    next_offset = property(lambda self: self.inner.next_offset)
    where = property(lambda self: self.inner.where)

    async def table(self) -> ChunkTable:
        return await self.inner.table()

    async def read(self, rows: ChunkTable) -> bytes:
        return await self.inner.read(rows)


class Relabelled(Wrapped):
    def __init__(self, inner, ledger_id):
        super().__init__(inner)
        self._ledger = ledger_id

    ledger_id = property(lambda self: self._ledger)


async def shows_metadata_overrides(open_: Open) -> None:
    w = await writer(open_())
    receipt = await w.upload(chunks(), metadata={"stream": "other", "ledger": "9"})
    assert receipt.entries[0].ledger_id == 1


@bug(shows_metadata_overrides)
class MetadataOverrides(Ledgers):
    """Own fields and metadata are merged into one mapping, metadata last: one named `stream` or `ledger`
    wins.

    Breaks extra_metadata "changes nothing else". A `delete_offloaded` then does not find the attempt.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        receipt = await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        own = {"stream": attempt.stream, "ledger": attempt.ledger_id, **extra_metadata}
        set_ = "UPDATE attempts SET stream = ?, ledger = ? WHERE uid = ?"
        await self._database.insert(set_, [(own["stream"], own["ledger"], attempt.uid.bytes)])
        entries = [replace(e, ledger_id=int(own["ledger"])) for e in receipt.entries]
        return replace(receipt, entries=entries)


async def shows_all_records_are_messages(open_: Open) -> None:
    w = await writer(open_())
    receipt = await w.upload(chunks(3, tracking=(1,)))
    assert sum(e.messages for e in receipt.entries) == 4


@bug(shows_all_records_are_messages)
class AllRecordsAreMessages(Ledgers):
    """An entry counts its records as messages, tracking records too.

    Breaks `Receipt`, "the entries that a commit may now append"; totals of messages are too great, and
    `last_with_messages` finds fragments without any.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        receipt = await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        return replace(receipt, entries=[replace(e, messages=e.records) for e in receipt.entries])
