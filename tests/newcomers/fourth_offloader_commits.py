"""Fourth set, offloaders: commits, mistaken by databases, retries and memories of them."""

from __future__ import annotations

import asyncio
import unicodedata
from contextvars import ContextVar
from dataclasses import replace
from typing import Final
from uuid import UUID, uuid4

from newcomers.fourth_sound import Rows, again
from newcomers.ledgers import all_of, copied, entries_of, ledger, raises, trimmed, uploaded
from newcomers.registry import Open, bug
from newcomers.table import Table
from offload.commit.grouping import edited
from offload.commit.guest import Delete
from offload.commit.job import Replace
from offload.commit.rebuild import Fence
from offload.commit.writer import Append, Claim
from offload.contracts.catalogue import StreamView
from offload.contracts.change import Change
from offload.formats.keys import escape
from offload.formats.root import encode_root
from offload.ground.errors import NotOffloaded, OffloadError, StreamDeleted, TryAgain
from offload.model.manifest import CommittedStream, Manifest, StreamState
from offload.upkeep.retention import delete_stream
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


async def _fence_is_far_above(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0))
    await fenced(tier, writer.manifest)
    [version] = [(await tier.newest("s")).version]
    assert version > 2**32, version


@bug(_fence_is_far_above)
class VersionIsOneMore(Rows):
    """The version is the row's own counter, and the one that a change asks for is not looked at.

    Breaks "Only the fence of a rebuild sets a higher version itself", which the commit must keep. Costs a
    rebuild its fence: a stalled writer's commit may come above it.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        return replace(manifest, version=1 if base is None else base.version + 1)


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


async def _committer_is_kept(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    job = await Job.begin(tier, "s")
    await job.prepare([3])
    assert (await tier.load_manifest("s")).committer == job.uid


@bug(_committer_is_kept)
class CommitterIsTheWriter(Rows):
    """A manifest says that the holder of the stream committed it, also if a guest did.

    Breaks "`committer` is the guest" of the protocol, and `commit_manifest`, which takes it. Costs a person
    who looks for the author of a change, and a commit that recognizes its own by it.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        return replace(manifest, committer=manifest.writer)


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


async def _repeated_after_another(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    attempt, receipt = await uploaded(tier, writer, ledger(0))
    change = Append(writer=writer.writer, entries=receipt.entries, finished=frozenset({attempt.uid}))
    await tier.commit_manifest("s", change, base=writer.manifest, committer=writer.writer)
    await writer.prepare([9])
    again = await tier.commit_manifest("s", change, base=writer.manifest, committer=writer.writer)
    assert again.version == (await tier.load_manifest("s")).version


@bug(_repeated_after_another)
class RepeatedIsRemembered(Rows):
    """A client remembers the answer to each change, and gives it again.

    Breaks "committing it again returns the newest manifest". Costs a writer that repeats a commit: it goes on
    from an old manifest, and does not learn that it was fenced.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.answers: dict[tuple[str, str], Manifest] = {}

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        key = stream, repr(change)
        if key not in self.answers:
            manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
            self.answers[key] = manifest
        return self.answers[key]


async def _deleted_stays_deleted(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    await delete_stream(tier, "s")
    await copied(tier, "other", ledger(0))
    await raises(StreamDeleted, tier.load_manifest("s"))
    assert await tier.streams() == ["other", "s"]


@bug(_deleted_stays_deleted)
class TombstonesArePurged(Rows):
    """The first claim of another stream clears the rows of deleted ones, as a vacuum does.

    Breaks "Raises `StreamDeleted`, which is a `NotOffloaded`, if the stream was deleted". Costs the deletion:
    a stalled writer begins the stream again at version 1.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        deleted: set[str] = self.db.__dict__.setdefault("deleted", set())
        if isinstance(change, Claim):
            for other in deleted - {stream}:
                del self.db.roots[other]
            deleted.intersection_update({stream})
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        (deleted.add if isinstance(change, Delete) else deleted.discard)(stream)
        return manifest


async def _trims_are_newer(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0), ledger(3), ledger(6))
    known = (await tier.view("s")).committed
    await trimmed(tier, "s", 3)
    view = await tier.newer_view(known)
    assert view is not None
    assert view.committed.first_offset == 3


@bug(_trims_are_newer)
class NewerIfItGrew(Rows):
    """A view is newer if the stream has grown.

    Breaks "Return the stream as it is committed now, or None if that is still `known`, or older". Costs a
    reader that looks for what a trim or a compaction left: it finds nothing newer, and reports damage.
    """

    async def newer_view(self, known: CommittedStream) -> StreamView | None:
        view = await super().newer_view(known)
        return view if view is not None and view.committed.next_offset > known.next_offset else None


async def _many_streams(open_: Open) -> None:
    tier, names = open_(), [f"s{number:03}" for number in range(130)]
    for name in names:
        await StreamWriter.claim(tier, name)
    assert await tier.streams() == names


@bug(_many_streams)
class HundredStreams(Rows):
    """The service returns a page of 100 streams, and the client does not ask for the next one.

    Breaks "Return the streams that were ever begun here". Costs every stream behind the hundredth: no sweep,
    copy or retention sees it.
    """

    async def streams(self) -> list[str]:
        return (await super().streams())[:100]


async def _names_differ_by_form(open_: Open) -> None:
    tier, names = open_(), ["caf\u00e9", "cafe\u0301"]
    for at, name in enumerate(names):
        await copied(tier, name, ledger(at * 100), first=at * 100)
    assert await tier.streams() == sorted(names)


@bug(_names_differ_by_form)
class StreamsAreNormalized(Rows):
    """The database normalizes the names of streams, so that two spellings of an accent are one stream.

    Breaks "Return the streams that were ever begun here", and `load_manifest` of the other spelling. Costs a
    stream: two sources write into one.
    """

    def name(self, stream: str) -> str:
        escape(stream)
        return unicodedata.normalize("NFC", stream)

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        return replace(manifest, stream=self.name(manifest.stream))


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


async def _try_again_means_out(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    for number in range(40):
        before = await tier.load_manifest("s")
        try:
            await writer.prepare([number])
        except TryAgain:
            assert (await tier.load_manifest("s")).version == before.version, number


@bug(_try_again_means_out)
class RefusedAfterTheCommit(Rows):
    """Each twelfth commit of a client reads its row back from a replica that lags, and asks to be tried
    again.

    Breaks "`TryAgain` too promises that the newest manifest does not contain the change". Costs a caller that
    uploads the data once more, because it believes the promise.
    """

    commits = 0

    async def set(self, manifest: Manifest) -> bool:
        done = await super().set(manifest)
        self.commits += done
        if done and self.commits % 12 == 0:
            raise TryAgain(f"stream {manifest.stream!r}: the replica has no version {manifest.version} yet")
        return done


async def _both_are_kept(open_: Open) -> None:
    tier, other = open_(), open_()
    await copied(tier, "s", ledger(0))
    jobs = [await Job.begin(each, "s") for each in (tier, other)]
    for number in range(10):
        announced = await asyncio.gather(*(job.prepare([number]) for job in jobs))
        newest = await tier.load_manifest("s")
        assert all(newest.runs(attempt.uid) for _, [attempt] in announced)


@bug(_both_are_kept)
class ComparesTheEpoch(Rows):
    """A commit is refused if the epoch of the row has changed, and not if its version has.

    Breaks "Of two commits on one parent exactly one succeeds". Costs the change of a guest that commits
    beside the writer, or that of the writer.
    """

    async def set(self, manifest: Manifest) -> bool:
        await asyncio.sleep(0)
        newest = self.db.newest(manifest.stream)
        if newest is not None and newest.epoch > manifest.epoch:
            return False
        self.db.roots[manifest.stream] = encode_root(manifest)
        await asyncio.sleep(0)
        return True


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
