"""Mistakes with manifests, epochs and the list of streams."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from newcomers.ledgers import (
    all_of,
    attempt_of,
    chunks_of,
    copied,
    entries_of,
    ledger,
    raises,
    trimmed,
)
from newcomers.registry import Open, bug
from newcomers.table import Table
from offload.commit.guest import Trim
from offload.commit.writer import Claim
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.formats.keys import escape
from offload.ground.errors import NotOffloaded
from offload.model.attempt import Attempt
from offload.model.entry import Entry
from offload.model.manifest import Manifest, StreamState
from offload.upkeep.retention import delete_stream


async def _others_commits_are_seen(open_: Open) -> None:
    one, two = open_(), open_()
    await copied(one, "s", ledger(0))
    assert (await two.load_manifest("s")).next_offset == 3
    await copied(one, "s", ledger(3))
    assert (await two.load_manifest("s")).next_offset == 6


@bug(_others_commits_are_seen)
class ManifestIsKept(Table):
    """A client keeps the manifest that it loaded until it commits itself.

    Breaks "`load_manifest`: The newest committed manifest": a reader never sees what others append.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.kept: dict[str, Manifest] = {}

    async def load_manifest(self, stream: str) -> Manifest:
        if stream not in self.kept:
            self.kept[stream] = await super().load_manifest(stream)
        return self.kept[stream]

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        self.kept.pop(stream, None)
        return await super().commit_manifest(stream, change, base=base, committer=committer)


async def _old_manifest_is_honoured(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0, ledger_id=1), ledger(3, ledger_id=2))
    before = await tier.load_manifest("s")
    [first, _] = await entries_of(tier, before)
    await trimmed(tier, "s", 3)
    async with await tier.read_offloaded(attempt_of("s", first), manifest=before) as handle:
        assert await all_of(handle) == b"".join(chunks_of(0))
    await raises(NotOffloaded, tier.read_offloaded(attempt_of("s", first)))


@bug(_old_manifest_is_honoured)
class GivenManifestIsIgnored(Table):
    """`read_offloaded` always reads the newest manifest.

    Breaks "A handle on what `manifest` (the newest, where None) names": a reader loses its place at each
    trim.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        return await super().read_offloaded(attempt, only=only)


@bug(_old_manifest_is_honoured)
class TrimDeletesAtOnce(Table):
    """A trim deletes the fragments that it drops, in the same transaction.

    Breaks "The range, the table and the bytes behind it are the same at every call": readers of an older
    manifest fail.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        if isinstance(change, Trim):
            for row in self.db.uploaded(stream):
                if row.entry.next_offset <= manifest.first_offset:
                    self.db.remove(stream, row.entry.first_offset, row.entry.attempt)
        return manifest


async def _only_narrows(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0, 8, size=40_000))
    parts = await entries_of(tier, await tier.load_manifest("s"))
    assert len(parts) > 2
    attempt = attempt_of("s", parts[0])
    for offsets, expected in (
        (range(1), parts[:1]),
        (range(parts[0].next_offset), parts[:1]),
        (range(parts[0].next_offset, parts[1].next_offset), parts[1:2]),
        (range(parts[1].first_offset + 1, parts[1].first_offset + 2), parts[1:2]),
        (range(1, parts[1].first_offset + 1), parts[:2]),
        (range(2**64), parts),
    ):
        handle = await tier.read_offloaded(attempt, only=offsets)
        assert (handle.first_offset, handle.next_offset) == (
            expected[0].first_offset,
            expected[-1].next_offset,
        ), offsets


@bug(_only_narrows)
class OnlyEndsOneFurther(Table):
    """`only` is asked of the database with `BETWEEN`, which includes the end.

    Breaks "narrows it to the fragments that hold some of these offsets": one fragment too many is fetched.
    """

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> list[Entry]:
        return await super().entries_of(
            attempt, manifest, None if only is None else range(only.start, only.stop + 1)
        )


@bug(_only_narrows)
class OnlyBeginsBehindTheFirst(Table):
    """`only` selects fragments that begin within it, and loses the one that holds its first offset.

    Breaks "narrows it to the fragments that hold some of these offsets": the wanted record is not there.
    """

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> list[Entry]:
        found = await super().entries_of(attempt, manifest, None)
        return found if only is None else [each for each in found if each.first_offset in only]


async def _streams_are_all(open_: Open) -> None:
    tier = open_()
    names = ["a-b", "a.b", "a b", "ä", "z", "Z", "a/b"]
    for name in names:
        await copied(tier, name, ledger(0))
    await delete_stream(tier, "z")
    assert await open_().streams() == sorted(names)


@bug(_streams_are_all)
class DeletedStreamsAreNotListed(Table):
    """Deleted streams are left out.

    Breaks "The streams that were ever begun here": their leftovers are never swept.
    """

    async def streams(self) -> list[str]:
        found = []
        for stream in await super().streams():
            manifest = await self.newest(stream)
            if manifest is not None and manifest.state is not StreamState.DELETED:
                found.append(stream)
        return found


@bug(_streams_are_all)
class StreamsInOrderOfTheirEscapes(Table):
    """Streams are sorted by their names in keys, where `.` is `%2E`.

    Breaks "in order of names": a merge with another list of streams goes wrong.
    """

    async def streams(self) -> list[str]:
        return sorted(await super().streams(), key=escape)


async def _born_again(open_: Open) -> None:
    tier = open_()
    before = (await copied(tier, "s", ledger(0))).manifest
    await delete_stream(tier, "s")
    after = (await copied(open_(), "s", ledger(0))).manifest
    assert after.epoch > before.epoch
    assert after.incarnation != before.incarnation
    assert after.version > before.version


@bug(_born_again)
class EpochsBeginAgain(Table):
    """A stream that is created again after its deletion begins with epoch 1.

    Breaks "`epoch` rises with every claim": a rebuild prefers fragments of the deleted stream.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        born = isinstance(change, Claim) and base is not None and base.state is StreamState.DELETED
        return replace(manifest, epoch=1) if born else manifest


@bug(_born_again)
class VersionsBeginAgain(Table):
    """A stream that is created again after its deletion begins with version 1, since its row was deleted.

    Breaks "numbers never start again": a change prepared on the old version 7 passes as one on
    the new version 7.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        born = isinstance(change, Claim) and base is not None and base.state is StreamState.DELETED
        return replace(manifest, version=1) if born else manifest
