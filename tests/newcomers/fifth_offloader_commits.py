"""Fifth set, offloaders: commits, claims, and what the newest manifest is."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import ClassVar
from uuid import UUID, uuid4

from newcomers.fifth_sound import ended, opened, prepared
from newcomers.fourth_sound import Rows
from newcomers.ledgers import copied, ledger, raises, trimmed, uploaded
from newcomers.registry import Open, bug
from offload import Job, StreamWriter
from offload.commit.guest import Abort, Trim
from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.catalogue import StreamView
from offload.contracts.change import Change
from offload.ground.errors import Conflict, Fenced, NoSpace, TryAgain
from offload.model.manifest import CommittedStream, Manifest


async def _both_are_announced(open_: Open) -> None:
    one = await opened(open_)
    await copied(one, "s", ledger(0))
    jobs = [await Job.begin(tier, "s") for tier in (one, open_())]
    found = await ended(*(job.prepare([number]) for number, job in enumerate(jobs)))
    manifest = await one.load_manifest("s")
    for _, [attempt] in found:
        assert manifest.runs(attempt.uid), found


@bug(_both_are_announced)
class ComparesTheEnd(Rows):
    """A manifest replaces any that ends at the same offsets, whoever has committed it.

    Breaks "Of two commits on one parent exactly one succeeds". Costs one of two jobs its announcement: its
    upload is refused, or swept.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        for _ in range(3):
            await asyncio.sleep(0)
        return manifest

    async def set(self, manifest: Manifest) -> bool:
        if await super().set(manifest):
            return True
        there = await self.newest(manifest.stream)
        if there is None or there.next_offset != manifest.next_offset or there.writer != manifest.writer:
            return False
        return await super().set(
            replace(manifest, version=there.version + 1, parent_commit_id=there.commit_id)
        )


async def _goes_on_after_a_refusal(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    stranger = Prepare(writer=uuid4(), attempts=[(uuid4(), 5)])
    await raises(Fenced, tier.commit_manifest("s", stranger, base=None, committer=uuid4()))
    async with asyncio.timeout(10):
        await prepared(tier, "s", writer.manifest)


@bug(_goes_on_after_a_refusal)
class RefusedCommitKeepsItsLock(Rows):
    """Commits of a stream take turns in a client, and one that is refused does not end its turn.

    Breaks "its methods may be called at the same time". Costs a process whose first writer was fenced: its
    next one waits for ever.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.turns: dict[str, asyncio.Lock] = {}

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        turn = self.turns.setdefault(stream, asyncio.Lock())
        await turn.acquire()
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        turn.release()
        return manifest


async def _every_state_is_newer(open_: Open) -> None:
    tier, reader = await opened(open_), open_()
    writer = await copied(tier, "s", ledger(0))
    for _ in range(12):
        known = await reader.load_manifest("s")
        await prepared(tier, "s", writer.manifest)
        newer = await reader.newer_view(known)
        assert newer is not None, known.version
        assert newer.committed.version > known.version


@bug(_every_state_is_newer)
class VersionsAreText(Rows):
    """Versions are compared as the text that the table has: 10 is older than 9.

    Breaks "Return the stream as it is committed now, or None if that is still `known`". Costs a reader that
    follows a stream: it stops at version 9.
    """

    async def newer_view(self, known: CommittedStream) -> StreamView | None:
        newest = await super().newer_view(known)
        if newest is None or str(newest.committed.version) <= str(known.version):
            return None
        return newest


async def _newer_at_once(open_: Open) -> None:
    tier, reader = await opened(open_), open_()
    writer = await copied(tier, "s", ledger(0))
    known = await reader.load_manifest("s")
    assert await reader.newer_view(known) is None
    await prepared(tier, "s", writer.manifest)
    assert await reader.newer_view(known) is not None


@bug(_newer_at_once)
class PollsOnceAMinute(Rows):
    """Readers poll often, so a stream that had nothing newer is not asked again within a minute.

    Breaks "or None if that is still `known`". Costs a caller that asks after it was told of a commit: it is
    told that there is none.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.polled: dict[str, float] = {}

    async def newer_view(self, known: CommittedStream) -> StreamView | None:
        if time.monotonic() - self.polled.get(known.stream, -60) < 60:
            return None
        newest = await super().newer_view(known)
        if newest is None:
            self.polled[known.stream] = time.monotonic()
        return newest


async def _fenced_again(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    change, _ = await prepared(tier, "s", writer.manifest)
    await StreamWriter.claim(open_(), "s")
    await raises(Fenced, tier.commit_manifest("s", change, base=None, committer=writer.manifest.writer))


@bug(_fenced_again)
class CommittedOnceIsCommitted(Rows):
    """A client remembers the changes that it committed, and answers them again without looking.

    Breaks "After a claim is accepted, commits of every earlier writer raise `Fenced`". Costs a writer that
    repeats a commit after a pause: it believes that it holds the stream.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.done: list[tuple[str, Change]] = []

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        if (stream, change) in self.done:
            return await self.load_manifest(stream)
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        self.done.append((stream, change))
        return manifest


async def _runs_after_a_trim(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0), ledger(3))
    change, _ = await prepared(tier, "s", writer.manifest)
    manifest = await trimmed(tier, "s", 3)
    assert manifest.first_offset == 3
    [(uid, _)] = change.attempts
    assert (await tier.load_manifest("s")).runs(uid)


@bug(_runs_after_a_trim)
class TrimDropsAttempts(Rows):
    """A trim writes the row anew, from the columns that it knows: the attempts that run are not among them.

    Breaks "A change is in the manifest completely or not at all", and nothing else is. Costs a writer beside
    retention: its uploads are refused.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        return replace(manifest, running=()) if isinstance(change, Trim) else manifest


async def _many_fragments(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0, 1))
    for first in range(1, 110, 10):
        await writer.offload([ledger(offset, 1) for offset in range(first, first + 10)])
    manifest = await tier.load_manifest("s")
    assert (manifest.fragments, manifest.next_offset) == (111, 111)


@bug(_many_fragments)
class HundredFragments(Rows):
    """Entries are a column of limited size, and a commit of the 101st fragment says that there is no room.

    Breaks "Apply `change` to the newest manifest". Costs every stream that grows: a person is told to make
    room in a store that is not full.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        if len(manifest.entries) > 100:
            raise NoSpace(f"{self.url}: the value is too long for column entries")
        return manifest


async def _in_two_commits(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    attempt, receipt = await uploaded(tier, writer, ledger(3, 6, size=30_000))
    uid = writer.manifest.writer
    assert len(receipt.entries) > 1
    for entries, finished in ((receipt.entries[:1], ()), (receipt.entries[1:], (attempt.uid,))):
        change = Append(writer=uid, entries=entries, finished=frozenset(finished))
        manifest = await tier.commit_manifest("s", change, base=None, committer=uid)
    assert manifest.next_offset == 9


@bug(_in_two_commits)
class FirstCommitEndsTheAttempt(Rows):
    """An attempt ends with the first commit that names a fragment of it.

    Breaks "Running: an attempt that is announced, and neither committed [completely] nor dropped yet". Costs
    a ledger that is committed in pieces: the second piece is refused.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        named = {entry.attempt for entry in change.entries} if isinstance(change, Append) else set()
        return replace(
            manifest, running=tuple(each for each in manifest.running if each.attempt not in named)
        )


async def _try_again_means_not_done(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    for _ in range(20):
        change = Prepare(writer=writer.manifest.writer, attempts=[(uuid4(), 9)])
        try:
            await tier.commit_manifest("s", change, base=None, committer=writer.manifest.writer)
        except TryAgain:
            assert not (await tier.load_manifest("s")).runs(change.attempts[0][0])


@bug(_try_again_means_not_done)
class LostReplyIsTryAgain(Rows):
    """The server closes a connection now and then after it has committed, and that is taken for a refusal.

    Breaks "`TryAgain` too promises that the newest manifest does not contain the change". Costs a caller that
    gives up then: it deletes what is committed.
    """

    commits = 0

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        self.commits += 1
        if self.commits % 12 == 0:
            raise TryAgain(f"{self.url}: the server closed the connection")
        return manifest


async def _versions_rise(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    before = await tier.load_manifest("s")
    change, manifest = await prepared(tier, "s", writer.manifest)
    abort = Abort(attempts=frozenset({change.attempts[0][0]}))
    after = await tier.commit_manifest("s", abort, base=None, committer=writer.manifest.writer)
    assert before.version < manifest.version < after.version, (before.version, after.version)
    assert await open_().newer_view(manifest) is not None


@bug(_versions_rise)
class VersionOfTheContent(Rows):
    """The version is raised only if fragments were added, replaced or trimmed: other changes are no news.

    Breaks "A number that is higher for each later state". Costs a reader that asks whether its manifest is
    the newest: a writer that it takes for idle has begun.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        if base is None or isinstance(change, Claim) or len(base.entries) != len(manifest.entries):
            return manifest
        return replace(manifest, version=base.version)


async def _streams_commit_apart(open_: Open) -> None:
    tier = await opened(open_)
    names = [f"s{number}" for number in range(12)]
    writers = await ended(*(copied(tier, name, ledger(0)) for name in names), seconds=20)
    assert all(isinstance(each, StreamWriter) for each in writers), writers
    again = await ended(*(each.offload([ledger(3)]) for each in writers), seconds=20)
    assert again == [None] * 12, again


@bug(_streams_commit_apart)
class OneVersionForAllStreams(Rows):
    """Manifests of all streams are rows of one document with one version, and who loses a race is refused.

    Breaks "raises `Conflict` otherwise": the change fits. Costs a tier of many streams: their writers stop
    one another.
    """

    COMMITS: ClassVar[dict[str, int]] = {}

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        seen = self.COMMITS.get(self.url, 0)
        manifest = await super().changed(change, base, committer)
        await asyncio.sleep(0)
        if self.COMMITS.get(self.url, 0) != seen:
            raise Conflict(f"the document changed while stream {manifest.stream!r} was committed")
        self.COMMITS[self.url] = seen + 1
        return manifest
