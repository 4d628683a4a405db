"""Mistakes in subclasses of the project's own offloader."""

from __future__ import annotations

from contextlib import suppress
from uuid import uuid4

from newcomers.ledgers import (
    attempt_of,
    chunks_of,
    copied,
    entries_of,
    ledger,
    raises,
)
from newcomers.registry import Open, bug
from newcomers.sound import Tier
from offload.commit.writer import Claim, Prepare
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Conflict, NotOffloaded
from offload.model.attempt import Attempt, Leftover
from offload.model.chunk_table import ChunkTable
from offload.model.manifest import Manifest
from offload.read.handles import CutHandle


async def _reads_of_any_length(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0, 8))
    [entry] = await entries_of(tier, await tier.load_manifest("s"))
    async with await tier.read_offloaded(attempt_of("s", entry)) as handle:
        table, chunks = await handle.table(), chunks_of(0, 8)
        for start, stop in ((0, 1), (0, 8), (2, 3), (2, 5), (0, 2)):
            assert await handle.read(table[start:stop]) == b"".join(chunks[start:stop])


class _KnowsStarts(CutHandle):
    def __init__(self, whole: ReadHandle) -> None:
        super().__init__(whole, first_offset=whole.first_offset, next_offset=whole.next_offset)
        self.known: dict[int, bytes] = {}

    async def read(self, rows: ChunkTable) -> bytes:
        start = int(rows["position"][0])
        if start not in self.known:
            self.known[start] = await super().read(rows)
        return self.known[start]


@bug(_reads_of_any_length)
class ReadsAreCachedByStart(Tier):
    """A handle caches reads by their start, regardless of the length.

    Breaks "The stored chunks of `rows`, back to back": the second read gets what the first one asked for.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        return _KnowsStarts(await super().read_offloaded(attempt, manifest=manifest, only=only))


async def _committed_is_a_conflict(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    [entry] = await entries_of(tier, await tier.load_manifest("s"))
    await raises(Conflict, tier.delete_offloaded(attempt_of("s", entry)))


@bug(_committed_is_a_conflict)
class DeletingTheCommittedIsSilent(Tier):
    """A deletion of a committed attempt removes nothing and says nothing: `except Conflict: pass`.

    Breaks "Deleting an attempt that the manifest names raises `Conflict`": the caller counts its bytes as
    freed.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        with suppress(Conflict):
            await super().delete_offloaded(attempt)


async def _nothing_of_no_offsets(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    [entry] = await entries_of(tier, await tier.load_manifest("s"))
    for only in (range(0), range(3, 9)):
        await raises(NotOffloaded, tier.read_offloaded(attempt_of("s", entry), only=only))


@bug(_nothing_of_no_offsets)
class NoOffsetsAreAllOffsets(Tier):
    """`only or None`: a range without offsets is false in Python, and narrows nothing.

    Breaks "narrows it to the fragments that hold some of these offsets": gigabytes are fetched for nothing.
    """

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        return await super().read_offloaded(attempt, manifest=manifest, only=only or None)


async def _leftovers_are_fresh(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), first=0)
    claim = Claim(stream="s", writer=uuid4(), first_offset=0)
    manifest = await open_().commit_manifest("s", claim, base=writer.manifest, committer=claim.writer)
    assert await tier.leftovers(manifest) == []
    [attempt] = [uuid4()]
    prepare = Prepare(writer=claim.writer, attempts=[(attempt, 2)])
    manifest = await tier.commit_manifest("s", prepare, base=manifest, committer=claim.writer)
    await tier.offload(
        ledger(3, ledger_id=2),
        Attempt(stream="s", ledger_id=2, uid=attempt),
        manifest=manifest,
        extra_metadata={},
    )
    again = Claim(stream="s", writer=uuid4(), first_offset=0)
    manifest = await tier.commit_manifest("s", again, base=manifest, committer=again.writer)
    assert len(await tier.leftovers(manifest)) == 1


@bug(_leftovers_are_fresh)
class LeftoversAreAskedForOnce(Tier):
    """A client looks for leftovers of a stream once, when it opens the stream.

    Breaks "Complete fragments that continue `manifest`": the leftovers of a later writer are uploaded again.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.found: dict[str, list[Leftover]] = {}

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        if manifest.stream not in self.found:
            self.found[manifest.stream] = await super().leftovers(manifest)
        return self.found[manifest.stream]
