"""Mistakes in commits and offloads, of the second set."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

from newcomers.late import writer
from newcomers.registry import Open, bug
from newcomers.sound import Ledgers
from offload.commit.job import Announce
from offload.contracts.change import Change
from offload.model.manifest import AttemptKind, Manifest


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
