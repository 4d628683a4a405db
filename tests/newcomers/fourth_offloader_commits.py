"""Fourth set, offloaders: commits, mistaken by databases, retries and memories of them."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import replace
from typing import Final
from uuid import UUID, uuid4

from newcomers.fourth_sound import Rows, again
from newcomers.ledgers import all_of, copied, entries_of, ledger, raises, uploaded
from newcomers.registry import Open, bug
from newcomers.table import Table
from offload.commit.grouping import edited
from offload.commit.job import Replace
from offload.commit.rebuild import Fence
from offload.commit.writer import Append
from offload.contracts.catalogue import StreamView
from offload.contracts.change import Change
from offload.ground.errors import NotOffloaded, OffloadError, StreamDeleted
from offload.model.manifest import Manifest, StreamState
from offload.write.job import Job
from offload.write.writer import StreamWriter

BASE: Final[ContextVar[Manifest | None]] = ContextVar("base", default=None)


async def fenced(tier: Table, manifest: Manifest) -> Manifest:
    """Begin a rebuild in the place of this manifest."""
    fence = Fence(
        stream=manifest.stream,
        writer=uuid4(),
        incarnation=manifest.incarnation,
        epoch=manifest.epoch + 1,
        above=manifest.version,
        instead_of=manifest.commit_id,
    )
    return await tier.commit_manifest(manifest.stream, fence, base=manifest, committer=fence.writer)


async def _edit_of_the_newest(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", *(ledger(at, ledger_id=1) for at in (0, 3, 6)))
    job = await Job.begin(tier, "s")
    old = (await entries_of(tier, writer.manifest))[:2]
    manifest, [attempt] = await job.prepare_copies([old])
    receipt = await tier.offload(again(0, 3), attempt, manifest=manifest, extra_metadata={})
    await writer.offload([ledger(9, ledger_id=1)])
    change = Replace(job=job.uid, incarnation=manifest.incarnation, old=old, new=receipt.entries)
    newest = await tier.commit_manifest("s", change, base=manifest, committer=job.uid)
    found = [entry.first_offset for entry in await entries_of(tier, newest)]
    assert (found, newest.next_offset) == ([0, 6, 9], 12)


@bug(_edit_of_the_newest)
class EditOfTheBase(Rows):
    """A replacement is made among the entries of the caller's base, which may be old.

    Breaks "Apply `change` to the newest manifest". Costs the entries that were appended since: the manifest
    does not fit its own totals, and the compaction fails.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        BASE.set(base)
        return await super().commit_manifest(stream, change, base=base, committer=committer)

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest, known = await super().changed(change, base, committer), BASE.get()
        if change.edit is not None and known is not None:
            entries, _ = await edited(self.tree(known), change.edit, version=known.version + 1, uuid=uuid4)
            manifest = replace(manifest, entries=entries)
            manifest.check(f"manifest of {manifest.stream!r}")
        return manifest


async def _two_preparations(open_: Open) -> None:
    writer = await StreamWriter.claim(open_(), "s")
    one = await writer.prepare([1])
    two = await writer.prepare([2])
    assert all(writer.manifest.runs(each.uid) for each in one + two)


@bug(_two_preparations)
class SameKindIsARetry(Rows):
    """A second change of one kind by the committer of the newest manifest is taken for a retry of the first.

    Breaks "Apply `change` to the newest manifest and return the manifest that contains it". Costs every
    second of two like changes: attempts that were announced do not run.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.last: dict[str, tuple[UUID, type[Change]]] = {}

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        newest = await self.newest(stream)
        if (
            newest is not None
            and self.last.get(stream) == (newest.committer, type(change))
            and (newest.committer == committer)
        ):
            return newest
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        self.last[stream] = committer, type(change)
        return manifest


async def _rebuilt_is_not_deleted(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0))
    await fenced(tier, writer.manifest)
    error = await raises(NotOffloaded, tier.load_manifest("s"))
    assert not isinstance(error, StreamDeleted), error


@bug(_rebuilt_is_not_deleted)
class RebuildIsADeletion(Rows):
    """Every state but "live" is reported as a deletion.

    Breaks "Raises `NotOffloaded` if there is none: nothing was ever committed, or the stream is being
    rebuilt". Costs a source that cleans up after a deletion: its stream was only being rebuilt.
    """

    async def load_manifest(self, stream: str) -> Manifest:
        manifest = await self.newest(stream)
        if manifest is not None and manifest.state is StreamState.REBUILDING:
            raise StreamDeleted(f"stream {stream!r} is not live", epoch=manifest.epoch)
        return await super().load_manifest(stream)


# Repeated calls, and races


async def _again_on_the_newest(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    attempt, receipt = await uploaded(tier, writer, ledger(0))
    change = Append(writer=writer.writer, entries=receipt.entries, finished=frozenset({attempt.uid}))
    newest = await tier.commit_manifest("s", change, base=writer.manifest, committer=writer.writer)
    again = await tier.commit_manifest("s", change, base=newest, committer=writer.writer)
    assert (again.version, again.next_offset) == (newest.version, 3)


@bug(_again_on_the_newest)
class FreshBaseNeedsNoVerdict(Rows):
    """If the caller's base is the newest manifest, nobody asks whether it contains the change already.

    Breaks "If a change was committed before, committing it again returns the newest manifest". Costs a writer
    that loads the manifest before it repeats a commit in doubt: it gets `Conflict` for its own data.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        BASE.set(base)
        return await super().commit_manifest(stream, change, base=base, committer=committer)

    async def is_in(self, change: Change, newest: Manifest) -> bool:
        found, base = await super().is_in(change, newest), BASE.get()
        return found and (base is None or base.version != newest.version)


async def _unknown_streams_are_not_offloaded(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    view = await tier.view("s")
    entry = await view.find(0)
    assert entry is not None
    handle = await view.open(entry)
    assert await all_of(handle)
    for call in (tier.view, tier.load_manifest):
        await raises(OffloadError, call("unknown"))


@bug(_unknown_streams_are_not_offloaded)
class UnknownIsAKeyError(Rows):
    """The view of a stream that is not in the dictionary raises what the dictionary raises.

    Breaks "Raises `NotOffloaded` if nothing was ever committed". Costs a caller that handles `OffloadError`:
    the command ends with a traceback.
    """

    async def view(self, stream: str) -> StreamView:
        await self.open()
        if self.name(stream) not in self.db.roots:
            raise KeyError(stream)
        return await super().view(stream)
