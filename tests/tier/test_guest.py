"""Tests of a job for its author: it announces, appends, aborts. `protocol/test_jobs` tests rivals."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any
from uuid import UUID

import pytest
from offload_conformance.ledgers import ledger_of

from offload import (
    Conflict,
    Job,
    Manifest,
    Misuse,
    NotOffloaded,
    ObjectStoreOffloader,
    ReadHandle,
    Receipt,
    StreamDeleted,
    StreamReader,
    StreamWriter,
    TierOptions,
)
from offload.commit.guest import Delete
from offload.formats.root import decode_root, encode_root
from offload.model.attempt import Attempt
from offload.model.manifest import AttemptKind
from offload.model.tokens import token_for, token_of
from offload.store.memory import MemoryStore
from offload.write.job import attempts_of


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


async def tier() -> ObjectStoreOffloader:
    """Return a tier with a claimed stream without data. Each chunk becomes a fragment."""
    offloader = ObjectStoreOffloader(MemoryStore(), options=TierOptions(fragment_size_bytes=1))
    await StreamWriter.claim(offloader, "orders")
    return offloader


async def upload(
    offloader: ObjectStoreOffloader,
    manifest: Manifest,
    ledgers: Sequence[ReadHandle],
    attempts: Sequence[Attempt],
) -> list[Receipt]:
    """Upload as the job's workers do, with only the manifest and their attempts."""
    return [
        await offloader.offload(ledger, attempt, manifest=manifest, extra_metadata={})
        for ledger, attempt in zip(ledgers, attempts, strict=True)
    ]


def two_ledgers() -> list[ReadHandle]:
    first = ledger_of(3)
    return [first, ledger_of(2, first_offset=first.next_offset)]


def test_workers_upload_with_the_manifest_that_the_job_hands_them() -> None:
    """They get it as bytes, on another machine with another offloader, and upload in any order."""

    async def main() -> None:
        store = MemoryStore()
        offloader = ObjectStoreOffloader(store)
        await StreamWriter.claim(offloader, "orders")
        ledgers = two_ledgers()
        job = await Job.begin(offloader, "orders")
        manifest, attempts = await job.prepare([ledger.ledger_id for ledger in ledgers])
        sent = decode_root(encode_root(manifest), where="message")

        receipts = await upload(ObjectStoreOffloader(store), sent, ledgers, attempts)
        committed = await job.append(receipts[::-1])

        assert committed.next_offset == ledgers[-1].next_offset
        assert committed.running == ()
        assert committed.committer == job.uid != committed.writer
        reader = await StreamReader.open(offloader, "orders")
        assert b"".join([window.data async for window in reader.windows(0)]) == b"".join(
            [await ledger.read(await ledger.table()) for ledger in ledgers]
        )

    run(main())


def test_data_that_another_writer_committed_meanwhile_is_not_uploaded() -> None:
    """The upload could never be appended, and its newer epoch would mislead a rebuild."""

    async def main() -> None:
        offloader = await tier()
        job = await Job.begin(offloader, "orders")
        writer = await StreamWriter.claim(offloader, "orders")
        await writer.offload([ledger_of(3)])
        manifest, attempts = await job.prepare([0])
        before = offloader.metrics.bytes_put

        with pytest.raises(Conflict, match="another writer or job appended"):
            await upload(offloader, manifest, [ledger_of(3)], attempts)

        assert offloader.metrics.bytes_put == before

    run(main())


def test_a_job_of_any_size_appends_in_one_commit() -> None:
    """A writer's ledger of very many fragments takes several commits, but a batch is all or nothing."""

    async def main() -> None:
        offloader = await tier()
        job = await Job.begin(offloader, "orders")
        ledger = ledger_of(600)
        manifest, attempts = await job.prepare([ledger.ledger_id])

        committed = await job.append(await upload(offloader, manifest, [ledger], attempts))

        assert (committed.version, committed.fragments) == (manifest.version + 1, 600)

    run(main())


def test_attempts_begin_with_the_token_of_their_batch_and_are_new_each_time() -> None:
    """So a batch is recognized in the manifest, and its second try never names an aborted attempt."""

    async def main() -> None:
        job = await Job.begin(await tier(), "orders")

        _, first = await job.prepare([1, 2], token=token_for("batch 17"))
        _, again = await job.prepare([1, 2], token=token_for("batch 17"))

        uids = {attempt.uid for attempt in (*first, *again)}
        assert len(uids) == 4
        assert {token_of(uid) for uid in uids} == {token_for("batch 17")}
        with pytest.raises(Misuse):
            await job.prepare([1], token=b"batch 17")

    run(main())


@pytest.mark.parametrize("kept", [slice(0, 3, 2), slice(0, 0)], ids=["a hole", "an overlap"])
def test_receipts_with_a_gap_are_refused_before_any_request(kept: slice) -> None:
    async def main() -> None:
        offloader = await tier()
        job = await Job.begin(offloader, "orders")
        ledgers = [*two_ledgers(), ledger_of(1, first_offset=two_ledgers()[1].next_offset)]
        manifest, attempts = await job.prepare([ledger.ledger_id for ledger in ledgers])
        receipts = await upload(offloader, manifest, ledgers, attempts)

        with pytest.raises(Misuse, match="does not continue"):
            await job.append(receipts[kept] or [receipts[0], *receipts])

        assert (await offloader.load_manifest("orders")).version == manifest.version

    run(main())


def test_an_abort_drops_only_the_attempts_of_its_job() -> None:
    """An abort needs only the job's UUID, works from anywhere, and can be repeated."""

    async def main() -> None:
        offloader = await tier()
        writer = await StreamWriter.claim(offloader, "orders")
        [of_writer] = await writer.prepare([0])
        job, other = await Job.begin(offloader, "orders"), await Job.begin(offloader, "orders")
        _, own = await job.prepare([1, 2])
        _, [of_other] = await other.prepare([3])
        assert attempts_of(other.manifest, job.uid) == {attempt.uid for attempt in own}

        for _ in range(2):
            await (await Job.begin(offloader, "orders", uid=job.uid)).abort()

        running = (await offloader.load_manifest("orders")).running
        assert {(r.attempt, r.kind) for r in running} == {
            (of_writer.uid, AttemptKind.STREAM),
            (of_other.uid, AttemptKind.JOB),
        }

    run(main())


def test_attempts_of_a_writer_with_the_uuid_of_a_job_stay() -> None:
    async def main() -> None:
        offloader = await tier()
        writer = await StreamWriter.claim(offloader, "orders")
        await writer.prepare([0])

        await (await Job.begin(offloader, "orders", uid=writer.writer)).abort()

        assert len((await offloader.load_manifest("orders")).running) == 1

    run(main())


def test_a_job_needs_a_stream() -> None:
    async def main() -> None:
        with pytest.raises(NotOffloaded):
            await Job.begin(await tier(), "nobody's", uid=UUID(int=7))

    run(main())


def test_a_job_of_a_deleted_stream_cannot_change_the_next_one_of_the_name() -> None:
    async def main() -> None:
        offloader = await tier()
        job = await Job.begin(offloader, "orders")
        delete = Delete(incarnation=job.manifest.incarnation)
        await offloader.commit_manifest("orders", delete, base=job.manifest, committer=job.uid)
        await StreamWriter.claim(offloader, "orders")

        for again in (
            job.refresh(),
            Job.begin(offloader, "orders", uid=job.uid, incarnation=job.manifest.incarnation),
            job.prepare([0]),
        ):
            with pytest.raises(StreamDeleted):
                await again
        assert not (await offloader.load_manifest("orders")).running

    run(main())
