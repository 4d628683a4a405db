"""Mistakes with the leftovers of a crash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import numpy as np

from newcomers.ledgers import (
    chunks_of,
    copied,
    ledger,
    raises,
    stumbling,
    trimmed,
    uploaded,
)
from newcomers.registry import Open, bug
from newcomers.table import Row, Table
from offload import MemoryHandle
from offload.commit.job import Announce
from offload.commit.writer import Claim
from offload.contracts.ledger import ReadHandle
from offload.formats.checksums import crc32
from offload.formats.chunk import ChunkHeader
from offload.formats.chunk_writer import build_chunk
from offload.ground.errors import TryAgain
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.write.writer import StreamWriter


async def _left_behind(open_: Open) -> tuple[Any, list[Leftover], Receipt, Receipt]:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), first=0)
    _, one = await uploaded(tier, writer, ledger(3, 8, size=40_000, ledger_id=2))
    _, two = await uploaded(tier, writer, ledger(11, ledger_id=3))
    claim = Claim(stream="s", writer=uuid4(), first_offset=0)
    manifest = await tier.commit_manifest("s", claim, base=writer.manifest, committer=claim.writer)
    return tier, await tier.leftovers(manifest), one, two


async def _all_left(open_: Open) -> None:
    _, found, one, two = await _left_behind(open_)
    entries = [*one.entries, *two.entries]
    assert [each.entry for each in found] == entries
    chunks = chunks_of(3, 8, size=40_000) + chunks_of(11)
    for each in found:
        assert each.last_chunk_offset == each.entry.next_offset - 1
        assert each.last_chunk_checksum == crc32(chunks[each.last_chunk_offset - 3])


@bug(_all_left)
class LeftoverSumOfTheData(Table):
    """`last_chunk_checksum` is the checksum in the chunk's header, which covers only its data.

    Breaks "CRC-32 of the whole last stored chunk": it never equals the source's, and nothing is ever adopted.
    """

    def leftover(self, row: Row) -> Leftover:
        header = ChunkHeader.decode(row.data, int(row.rows["position"][-1]), where="row")
        return replace(super().leftover(row), last_chunk_checksum=header.crc)


@bug(_all_left)
class LeftoversEndWithTheFirstLedger(Table):
    """The chain of leftovers ends at the next attempt.

    Breaks "One chain from `next_offset` on, of attempts": uploaded ledgers are thrown away, and sent again.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        found = await super().leftovers(manifest)
        return [each for each in found if each.entry.attempt == found[0].entry.attempt]


async def _last_record(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), first=0)
    chunk = build_chunk([b"a", b"b", b"c"], offset=3, timestamp_ms=1_700_000_000_000, epoch=1)
    await uploaded(tier, writer, MemoryHandle([chunk]))
    claim = Claim(stream="s", writer=uuid4(), first_offset=0)
    manifest = await tier.commit_manifest("s", claim, base=writer.manifest, committer=claim.writer)
    [found] = await tier.leftovers(manifest)
    assert found.last_chunk_offset == 3


@bug(_last_record)
class LeftoverOffsetOfTheLastRecord(Table):
    """`last_chunk_offset` is the offset of the last record, not that of the chunk that contains it.

    Breaks "`last_chunk_offset`": the source has no chunk there, and nothing is compared.
    """

    def leftover(self, row: Row) -> Leftover:
        return replace(super().leftover(row), last_chunk_offset=row.entry.next_offset - 1)


async def _no_chain(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), first=0)
    await uploaded(tier, writer, ledger(9, ledger_id=2))
    claim = Claim(stream="s", writer=uuid4(), first_offset=0)
    manifest = await tier.commit_manifest("s", claim, base=writer.manifest, committer=claim.writer)
    assert await tier.leftovers(manifest) == []


@bug(_no_chain)
class LeftoversWithHoles(Table):
    """Every fragment of a running attempt is offered, also behind a gap.

    Breaks "complete fragments that continue `manifest` exactly": the claim fails, for it would leave a gap.
    """

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        running = self.left(manifest)
        rows = self.db.uploaded(manifest.stream, manifest.next_offset)
        return [self.leftover(row) for row in rows if row.entry.attempt in running]


async def _own_after_a_guest(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), ledger(3, ledger_id=2), first=0)
    await uploaded(tier, writer, ledger(6, ledger_id=3))
    manifest = await trimmed(open_(), "s", 3)
    assert await tier.leftovers(manifest) == []


@bug(_own_after_a_guest)
class LeftoversOfOthersThanTheCommitter(Table):
    """Attempts of others are those whose writer is not the last committer, who may be a guest.

    Breaks "of attempts that run in `manifest` for another writer": a writer adopts its own attempts under
    way.
    """

    def left(self, manifest: Manifest) -> dict[UUID, int]:
        return super().left(replace(manifest, writer=manifest.committer))


async def _jobs_are_not_left(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    job, attempt = uuid4(), uuid4()
    announce = Announce(job=job, incarnation=writer.manifest.incarnation, attempts=[(attempt, 3)])
    manifest = await tier.commit_manifest("s", announce, base=writer.manifest, committer=job)
    await tier.offload(
        ledger(3), Attempt(stream="s", ledger_id=3, uid=attempt), manifest=manifest, extra_metadata={}
    )
    assert await tier.leftovers(manifest) == []


@bug(_jobs_are_not_left)
class LeftoversOfJobs(Table):
    """The uploads of a job are offered as if a writer had left them.

    Breaks "for another writer and for no job": each claim fails while a back-fill runs.
    """

    def left(self, manifest: Manifest) -> dict[UUID, int]:
        return {each.attempt: each.ledger_id for each in manifest.running if each.writer != manifest.writer}


async def _unfinished_fragments(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    handle = stumbling(TryAgain("the source moved a file"), 100)
    [attempt] = await writer.prepare([handle.ledger_id])
    await raises(TryAgain, tier.offload(handle, attempt, manifest=writer.manifest, extra_metadata={}))
    claim = Claim(stream="s", writer=uuid4(), first_offset=0)
    manifest = await tier.commit_manifest("s", claim, base=writer.manifest, committer=claim.writer)
    found = await tier.leftovers(manifest)
    assert len(found) == 1
    assert found[0].entry.next_offset < 8


@bug(_unfinished_fragments)
class RowsAreInsertedBeforeTheirData(Table):
    """The row of a fragment is inserted before its bytes are read from the source, so that it can be resumed.

    Breaks "A reader sees a fragment entire or not at all": a claim adopts what was never uploaded.
    """

    async def upload(
        self,
        handle: ReadHandle,
        rows: ChunkTable,
        attempt: Attempt,
        manifest: Manifest,
        metadata: Mapping[str, str],
        copied: bool,
    ) -> Entry:
        size = int(rows["size_bytes"].sum())
        planned = self.row(
            bytes(size), rows, np.zeros(len(rows), np.uint32), attempt, manifest, metadata, copied
        )
        self.db.insert(attempt.stream, planned)
        return await super().upload(handle, rows, attempt, manifest, metadata, copied)
