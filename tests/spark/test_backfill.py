"""The job `backfill`: Spark's tasks upload sealed ledgers, one commit names them. Kills and other writers."""

from __future__ import annotations

import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import osiris_data
import pytest
from campaign import campaign, few
from offload_spark.jobs.backfill import SourceReach, abandon, backfill, identity
from osiris_writer import simple_chunks, write_stream
from spark.drivers import dying, end, run, start

from offload import Blocking, StreamWriter
from offload.ground.errors import Conflict, Diverged, StreamDeleted
from offload.opening.by_url import open_source
from offload.read.handles import CutHandle
from offload.upkeep.copy.transfer import AnnouncedRange, TransferRange, upload
from offload.upkeep.sweep.tier import sweep
from offload.write.job import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEALED = {"batches": 10225, "filtered": 18750, "tiny": 0}
"""The offset at which the newest segment of each real stream begins."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "tier")


@pytest.fixture
def source(sources: Path) -> str:
    return f"rabbitmq://{sources}"


def fragments(url: str) -> set[str]:
    return {str(path.relative_to(url)) for path in Path(url).glob("*/data/*.fragment")}


def check_whole(url: str, stream: str = "batches") -> None:
    """The tier has what the broker wrote up to the newest segment, and no attempt is left running."""
    with Blocking(url) as tier:
        manifest = tier.load_manifest(stream)
        bodies = [body for batch in tier.read(stream) for body in batch.bodies]
        assert not tier.verify().damages
    assert manifest.next_offset == SEALED[stream]
    assert manifest.running == ()
    assert bodies
    for i, body in enumerate(bodies):
        assert body.endswith(osiris_data.body_of(i))


def test_one_commit_brings_sealed_ledgers_onto_the_tier(spark: SparkSession, source: str, url: str) -> None:
    told = []

    done = backfill(spark, source, url, progress=told.append)

    assert {each.stream: each.next_offset for each in done} == SEALED
    assert told == done
    assert [each.ledgers for each in done] == [3, 3, 0]
    check_whole(url)
    check_whole(url, "filtered")
    with Blocking(url) as tier:
        assert tier.streams() == ["batches", "filtered"], "nothing of tiny is sealed"
        assert tier.load_manifest("batches").version <= 3, (
            "a claim that begins it, an announcement, an append"
        )


def test_a_second_run_writes_nothing(spark: SparkSession, source: str, url: str) -> None:
    backfill(spark, source, url)
    before = {path: path.stat().st_mtime_ns for path in Path(url).rglob("*")}

    again = backfill(spark, source, url)

    assert [each.ledgers for each in again] == [0, 0, 0]
    assert {path: path.stat().st_mtime_ns for path in Path(url).rglob("*")} == before


def test_a_sync_continues_after_a_backfill_and_a_backfill_after_a_sync(
    spark: SparkSession, source: str, sources: Path, url: str
) -> None:
    backfill(spark, source, url, streams=["batches"])
    with Blocking(url) as tier:
        (report, *_) = tier.sync(source)
        assert report.error is None
        assert report.manifest is not None
        assert report.manifest.next_offset == osiris_data.MANIFEST["streams"]["batches"]["next_offset"]

    (done,) = backfill(spark, source, url, streams=["batches"])

    assert (done.ledgers, done.next_offset) == (0, report.manifest.next_offset)


def test_a_broker_with_another_history_is_refused(
    spark: SparkSession, source: str, url: str, tmp_path: Path
) -> None:
    backfill(spark, source, url, streams=["filtered"])
    other = tmp_path / "other"
    shutil.copytree(osiris_data.DATA / "batches", other / "filtered")

    with pytest.raises(Diverged):
        backfill(spark, f"rabbitmq://{other}", url)


def reach(source: str) -> SourceReach:
    return SourceReach(url=source, stream="batches")


def piece_of(tier: Blocking, job: Job) -> AnnouncedRange:
    _, (attempt,) = tier.run(job.prepare([0]))
    wanted = TransferRange(stream="batches", ledger_id=0, first_offset=0, next_offset=3669)
    return AnnouncedRange(
        wanted=wanted, incarnation=job.manifest.incarnation, job=job.uid, attempt=attempt.uid
    )


async def begun(tier: Blocking) -> Job:
    await tier.offloader.open(create=True)
    await StreamWriter.claim(tier.offloader, "batches")
    return await Job.begin(tier.offloader, "batches")


def test_a_second_try_of_a_task_uploads_under_an_attempt_of_its_own(source: str, url: str) -> None:
    with Blocking(url) as tier:
        job = tier.run(begun(tier))
        piece = piece_of(tier, job)

        (first,) = tier.run(upload(tier.offloader, reach(source), [piece], is_first=True))
        (again,) = tier.run(upload(tier.offloader, reach(source), [piece], is_first=False))
        tier.run(job.append([again]))
        tier.run(job.abort())

        assert first.attempt != again.attempt
        assert len(fragments(url)) == 2
        tier.run(sweep(tier.offloader, grace_seconds=0))
        assert {str(again.attempt.uid) in key for key in fragments(url)} == {True}


def test_a_second_try_of_a_task_leaves_a_recreated_stream_alone(source: str, url: str) -> None:
    with Blocking(url) as tier:
        job = tier.run(begun(tier))
        piece = replace(piece_of(tier, job), incarnation=uuid4())
        before = tier.load_manifest("batches").commit_id
        with pytest.raises(StreamDeleted, match="begun again since"):
            tier.run(upload(tier.offloader, reach(source), [piece], is_first=False))
        assert tier.load_manifest("batches").commit_id == before


def test_another_writer_that_appends_first_wins(spark: SparkSession, source: str, url: str) -> None:
    """A later run appends what is missing after it."""
    with Blocking(url) as tier:
        job = tier.run(begun(tier))
        (receipt,) = tier.run(upload(tier.offloader, reach(source), [piece_of(tier, job)], is_first=True))
        stream = tier.run(open_source(source).stream("batches"))
        snapshot = tier.run(stream.snapshot())

        async def sync_a_part() -> None:
            writer = await StreamWriter.claim(tier.offloader, "batches")
            ledger = snapshot.ledgers[0]
            table = await ledger.table()
            end = int(table["offset"][5])
            await writer.offload([CutHandle(ledger, first_offset=0, next_offset=end)])

        tier.run(sync_a_part())
        with pytest.raises(Conflict):
            tier.run(job.append([receipt]))
        tier.run(job.abort())
        tier.run(snapshot.aclose())

    backfill(spark, source, url, streams=["batches"])

    check_whole(url)


RUN = """
import os, signal, sys
from offload_spark import session
from offload.write.job import Job
from offload_spark.jobs.backfill import backfill

source, url, when = sys.argv[1:]
real = Job.append

async def append(job, receipts):
    if when == "after":
        await real(job, receipts)
    os.kill(os.getpid(), signal.SIGKILL)

Job.append = append
backfill(session(master="local[1]", conf={"spark.driver.memory": "512m"}), source, url, streams=["batches"])
"""


MOMENTS = [("before", 3, 0), ("after", 0, 0)]
"""When the driver dies, seen from its commit, and what the next run takes over and uploads."""

BY_SIGKILL = campaign("a backfill that SIGKILL ends; its driver dies in the tests' own process here")


def check_next_run(spark: SparkSession, source: str, url: str, taken_over: int, ledgers: int) -> None:
    """The run after a death at the commit uploads nothing twice, and the stream is whole."""
    uploaded = fragments(url)

    (done,) = backfill(spark, source, url, streams=["batches"])

    assert (done.taken_over, done.ledgers) == (taken_over, ledgers)
    assert fragments(url) == uploaded, "nothing was uploaded twice"
    check_whole(url)


@few("a driver that dies after the commit of a back-fill; make test has one that dies before it", 2)
@pytest.mark.parametrize(("when", "taken_over", "ledgers"), MOMENTS)
def test_a_run_resumes_after_its_driver_died_at_the_commit(
    spark: SparkSession, source: str, url: str, when: str, taken_over: int, ledgers: int
) -> None:
    with dying(when):
        backfill(spark, source, url, streams=["batches"])

    check_next_run(spark, source, url, taken_over, ledgers)


@BY_SIGKILL
@pytest.mark.parametrize(("when", "taken_over", "ledgers"), MOMENTS)
def test_a_run_resumes_after_sigkill_ended_its_driver_at_the_commit(
    spark: SparkSession, source: str, url: str, when: str, taken_over: int, ledgers: int
) -> None:
    assert run(RUN, source, url, when) == -signal.SIGKILL

    check_next_run(spark, source, url, taken_over, ledgers)


@BY_SIGKILL
def test_a_run_resumes_after_sigkill_ended_its_driver_during_uploads(
    spark: SparkSession, source: str, url: str
) -> None:
    process = start(RUN, source, url, "before")
    try:
        deadline = time.monotonic() + 180
        while process.poll() is None and not fragments(url) and time.monotonic() < deadline:
            time.sleep(0.002)
    finally:
        end(process)
    assert fragments(url)

    (done,) = backfill(spark, source, url, streams=["batches"])

    assert done.taken_over >= 1
    assert done.taken_over + done.ledgers >= 3
    check_whole(url)


def test_fragments_of_another_history_are_not_taken_over(
    spark: SparkSession, sources: Path, url: str, tmp_path: Path
) -> None:
    """The dead run read another stream of the same name, whose ledger ended at the same offset."""
    broker = tmp_path / "broker" / "batches"
    write_stream(broker, simple_chunks(1223, records=3), segment_chunks=2000)
    source = f"rabbitmq://{broker.parent}"
    with Blocking(url) as tier:
        uid = identity(source, tier.run(begun(tier)).manifest)
        job = tier.run(Job.begin(tier.offloader, "batches", uid=uid))
        tier.run(upload(tier.offloader, reach(source), [piece_of(tier, job)], is_first=True))
    shutil.rmtree(broker)
    shutil.copytree(sources / "batches", broker)

    (done,) = backfill(spark, source, url)

    assert (done.taken_over, done.ledgers) == (0, 3)
    check_whole(url)


def test_a_dead_run_can_be_given_up(source: str, url: str) -> None:
    with Blocking(url) as tier:
        uid = identity(source, tier.run(begun(tier)).manifest)
        job = tier.run(Job.begin(tier.offloader, "batches", uid=uid))
        tier.run(upload(tier.offloader, reach(source), [piece_of(tier, job)], is_first=True))

        abandon(source, url, "batches")
        abandon(source, url, "batches")

        assert tier.load_manifest("batches").running == ()
        tier.run(sweep(tier.offloader, grace_seconds=0))
    assert fragments(url) == set()
