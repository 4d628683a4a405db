"""Attempts of every kind: a writer's, a job's and a copy's keep the same promises.

An offloader may take one way for fresh data and another for copies. So these clauses ask each question three
times, once for each `AttemptKind`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import pytest

from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import Conflict, Corrupt, Misuse, NotOffloaded, OffloadError, TryAgain
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry
from offload.model.manifest import AttemptKind, Manifest
from offload.write.job import Job
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import MemoryLedger, drawn_ledger, refuse_reads
from offload_conformance.offloader.base import OffloaderClauses, chunks_of, committed, named
from offload_conformance.offloader.doors import READS, doors
from offload_conformance.offloader.edges import SOURCE_ERRORS
from offload_conformance.offloader.sources import METADATA, assert_describes
from offload_conformance.opened import KIB
from offload_conformance.raising import raises

LEDGER: Final = 7
EACH_KIND: Final = pytest.mark.parametrize("kind", AttemptKind, ids=lambda kind: kind.name.lower())
BROKEN: Final = 5
"""So many damaged ledgers are enough for a tier that this project makes of a store."""

HEADER_BYTES: Final = (0, 1, 7, 8, 31, 35, 39, 47)
"""A byte of each field of a chunk's header."""


@dataclass
class RunningAttempts:
    """Running attempts of one kind at one ledger, and how to commit a receipt of one of them."""

    attempts: list[Attempt]
    manifest: Manifest
    ledger: MemoryLedger
    commit: Callable[[Receipt], Awaitable[Manifest]]
    is_copy: bool


class KindClauses(OffloaderClauses):
    """The clauses on attempts that hold for each kind of them."""

    @EACH_KIND
    def test_attempts_of_every_kind_are_checked(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, kind: AttemptKind
    ) -> None:
        """Whatever an attempt is for, `offload` raises `Corrupt` for a damaged chunk and stores none of it.

        A handle of another ledger is `Misuse`, before it is read. After each error the attempt can be
        deleted, and the stream is as before.
        """

        async def scenario() -> None:
            begun = await self.running(offloader, kind, 16)
            sound, chunks = begun.ledger, await stream_of(other)
            offsets = (await sound.table())["offset"].tolist()
            broken = [sound.damaged(random.choice(offsets), byte=byte) for byte in (*HEADER_BYTES, -1)]
            broken += [sound.damaged(offset, byte=-1) for offset in (offsets[0], offsets[-1])]
            broken += [sound.torn(random.choice(offsets)), sound.torn(offsets[-1])]
            broken += [sound.with_a_hole(row) for row in (0, random.randrange(1, 9), len(offsets) - 1)]
            for attempt, ledger in zip(begun.attempts, self.some(broken, BROKEN), strict=False):
                with raises(Corrupt, f"damage under an attempt of kind {kind.name}") as caught:
                    await offloader.offload(ledger, attempt, manifest=begun.manifest, extra_metadata={})
                assert caught.value.where == ledger.where
                await is_forgotten(other, attempt)
            strange = MemoryLedger(sound.chunks, ledger_id=LEDGER + 1)
            strange.before_read = refuse_reads
            with raises(Misuse, "another ledger than the announced one"):
                await offloader.offload(
                    strange, begun.attempts[-1], manifest=begun.manifest, extra_metadata={}
                )
            assert await stream_of(other) == chunks

        run(scenario())

    @EACH_KIND
    def test_attempts_of_every_kind_are_whole(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, kind: AttemptKind
    ) -> None:
        """Whatever an attempt is for, its receipt describes it, it is disjoint, and it reads back verbatim.

        An attempt that was deleted runs no more, and a committed one is spared, for each kind.
        """

        async def scenario() -> None:
            begun = await self.running(offloader, kind, 3)
            kept, deleted_before, deleted_after = random.sample(begun.attempts, 3)
            receipts = [
                await offloader.offload(
                    begun.ledger.scattered(), attempt, manifest=begun.manifest, extra_metadata=METADATA
                )
                for attempt in (deleted_before, kept, deleted_after)
            ]
            for receipt in receipts:
                assert_describes(receipt, begun.ledger, copied=int(begun.is_copy))
            await is_forgotten(other, deleted_before)
            manifest = await begun.commit(receipts[1])
            assert not manifest.runs(kept.uid)
            await is_forgotten(other, deleted_after)
            for client in (offloader, other):
                with raises(Conflict, "the deletion of a committed attempt"):
                    await client.delete_offloaded(kept)
                for door, openings in (await doors(client, kept)).items():
                    for way, read in self.some(READS.items(), 1):
                        found = b""
                        for opening in openings:
                            async with await opening() as handle:
                                found += b"".join(await read(handle))
                        assert found == b"".join(begun.ledger.chunks), f"{door}, read {way}"

        run(scenario())

    @EACH_KIND
    def test_errors_of_the_source_keep_their_class(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, kind: AttemptKind
    ) -> None:
        """An error of the source, of any class, is passed on as it is, from its table and from its chunks.

        Only after `TryAgain`, the source may be read again. A later attempt is not disturbed.
        """

        async def scenario() -> None:
            begun = await self.running(offloader, kind, 2 * len(SOURCE_ERRORS) + 1)
            attempts = iter(begun.attempts)
            for error in SOURCE_ERRORS:
                for of_table in (False, True):
                    source, attempt = failing(begun.ledger, error, of_table=of_table), next(attempts)
                    copy = offloader.offload(source, attempt, manifest=begun.manifest, extra_metadata={})
                    [ended] = await asyncio.gather(copy, return_exceptions=True)
                    if not (isinstance(ended, Receipt) and issubclass(error, TryAgain)):
                        passed_on = isinstance(ended, error) and "the source says so" in str(ended)
                        assert passed_on, f"expected the source's {error.__name__}; found {ended!r:.200}"
            last = next(attempts)
            receipt = await offloader.offload(begun.ledger, last, manifest=begun.manifest, extra_metadata={})
            await begun.commit(receipt)
            assert await chunks_of(other, last) == [*begun.ledger.chunks]

        run(scenario())

    async def running(self, offloader: LedgerOffloader, kind: AttemptKind, count: int) -> RunningAttempts:
        """Return so many attempts of this kind at one ledger, all running, in a stream with data."""
        writer = await StreamWriter.claim(offloader, "orders")
        first = [drawn_ledger(6, ledger_id=LEDGER, size_bytes_max=20 * KIB)]
        first.append(drawn_ledger(6, first_offset=first[0].next_offset, ledger_id=LEDGER))
        for ledger in (*first, drawn_ledger(2, first_offset=first[1].next_offset, ledger_id=LEDGER)):
            await committed(writer, ledger)
        manifest, end = writer.manifest, first[1].next_offset
        old = [each for each in await named(offloader, manifest) if each.first_offset < end]
        fresh = drawn_ledger(12, first_offset=manifest.next_offset, ledger_id=LEDGER)
        if kind is AttemptKind.STREAM:
            attempts = await writer.prepare([LEDGER] * count)
            return RunningAttempts(attempts, writer.manifest, fresh, appending(writer), is_copy=False)
        job = await Job.begin(offloader, "orders", uid=uuid4())
        if kind is AttemptKind.JOB:
            manifest, attempts = await job.prepare([LEDGER] * count)
            return RunningAttempts(
                attempts, manifest, fresh, lambda receipt: job.append([receipt]), is_copy=False
            )
        manifest, attempts = await job.prepare_copies([old] * count)
        again = MemoryLedger([*first[0].chunks, *first[1].chunks], ledger_id=LEDGER)
        return RunningAttempts(attempts, manifest, again, replacing(job, old), is_copy=True)


def appending(writer: StreamWriter) -> Callable[[Receipt], Awaitable[Manifest]]:
    """Return how this writer commits a receipt."""

    async def commit(receipt: Receipt) -> Manifest:
        await writer.append([receipt])
        return writer.manifest

    return commit


def replacing(job: Job, old: list[Entry]) -> Callable[[Receipt], Awaitable[Manifest]]:
    """Return how this job commits a copy of these fragments."""
    return lambda receipt: job.replace(old, [receipt])


async def is_forgotten(offloader: LedgerOffloader, attempt: Attempt) -> None:
    """Delete an attempt, and assert that it runs no more and cannot be read."""
    await offloader.delete_offloaded(attempt)
    assert not (await offloader.load_manifest(attempt.stream)).runs(attempt.uid)
    with raises(NotOffloaded, "a read of a deleted attempt"):
        await offloader.read_offloaded(attempt)


async def stream_of(offloader: LedgerOffloader) -> list[bytes]:
    """Return every chunk of the stream, by its fragments."""
    view, chunks = await offloader.view("orders"), list[bytes]()
    for entry in await named(offloader, await offloader.load_manifest("orders")):
        async with await view.open(entry) as handle:
            chunks.append(bytes(await handle.read(await handle.table())))
    return chunks


def failing(ledger: MemoryLedger, error: type[Exception], *, of_table: bool) -> MemoryLedger:
    """Return the same ledger, whose table or whose chunks cannot be read for this reason."""
    failed = _WithoutTable(ledger.chunks, ledger_id=ledger.ledger_id)
    failed.error, failed.of_table = error, of_table

    async def fail(rows: ChunkTable) -> None:
        await asyncio.sleep(0)
        raise error("the source says so")

    if not of_table:
        failed.before_read = fail
    return failed


class _WithoutTable(MemoryLedger):
    error: type[Exception] = OffloadError
    of_table = False

    async def table(self) -> ChunkTable:
        if self.of_table:
            raise self.error("the source says so")
        return await super().table()
