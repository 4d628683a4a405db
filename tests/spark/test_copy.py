"""The job `copy`: the target has the streams of the source, also after growth, a kill, or damage."""

from __future__ import annotations

import shutil
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import osiris_data
import pytest
from campaign import campaign, keeping
from command_line import bodies, formula, offload
from offload_spark.jobs import copy as copy_job
from offload_spark.jobs import transfer, transfer_tasks
from offload_spark.jobs.copy import TierReach, copy
from servers import servers_of
from servers.session import Session
from spark.drivers import dying, run

from offload import Blocking, Plugins, StreamWriter
from offload.formats.keys import StreamKeys
from offload.ground.errors import Diverged, NotOffloaded
from offload.model.entry import entries_of_rows
from offload.model.manifest import Manifest
from offload.native.offloader import TierOptions
from offload.opening.by_url import open_source, open_tier
from offload.upkeep.copy.transfer import Fetch
from offload.upkeep.retention import Retention, delete_stream, trim
from offload.upkeep.sweep.tier import sweep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FRAGMENT_SIZE_BYTES = 60_000
PIECE_SIZE_BYTES = 200_000
"""Small enough that a ledger is several pieces, and a piece several fragments."""

ENDS = {stream: osiris_data.MANIFEST["streams"][stream]["next_offset"] for stream in osiris_data.STREAMS}


@pytest.fixture(scope="session")
def finely_cut(tmp_path_factory: pytest.TempPathFactory, sources: Path) -> str:
    """A folder that holds the real streams in small fragments."""
    url = str(tmp_path_factory.mktemp("finely-cut"))
    how = TierOptions(fragment_size_bytes=FRAGMENT_SIZE_BYTES)
    with Blocking.around(lambda: open_tier(url, options=how), plugins=Plugins.find()) as tier:
        tier.run(tier.offloader.open(create=True))
        assert {report.error for report in tier.sync(f"rabbitmq://{sources}")} == {None}
    return url


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "target")


Delivered = dict[str, list[tuple[int, int, bytes]]]


def delivered(url: str, options: Mapping[str, Any] | None = None, *, but: str = "") -> Delivered:
    """Verify a tier, and return what its readers get: offset, time and body of each message, by stream."""
    with Blocking(url, storage_options=options) as tier:
        assert not tier.verify().damages
        return {
            stream: [
                (batch.offset + i, batch.timestamp_ms, body)
                for batch in tier.read(stream)
                for i, body in enumerate(batch.bodies)
            ]
            for stream in tier.streams()
            if stream != but
        }


@pytest.fixture(scope="session")
def records(finely_cut: str) -> Delivered:
    """All that readers of the source get."""
    return delivered(finely_cut)


def manifest_of(url: str, stream: str) -> Manifest:
    with Blocking(url) as tier:
        return tier.load_manifest(stream)


def fragments(url: str) -> set[str]:
    return {str(path.relative_to(url)) for path in Path(url).glob("*/data/*.fragment")}


def named(url: str) -> set[str]:
    """Return the keys of the fragments that the newest manifests name."""
    with Blocking(url) as tier:
        return {
            StreamKeys(stream).fragment(entry.first_offset, entry.attempt)
            for stream in tier.streams()
            for entry in entries_of_rows(tier.load_manifest(stream).entries)
        }


@campaign("Spark copies between stores; make test has copies between folders, and Spark on MinIO")
@pytest.mark.parametrize("bucket", servers_of("s3")[:1])
@pytest.mark.parametrize("other_bucket", servers_of("gcs")[:1])
def test_streams_that_were_copied_from_store_to_store_are_the_same(
    spark: SparkSession,
    finely_cut: str,
    records: Delivered,
    target: str,
    running_servers: Session,
    bucket: str,
    other_bucket: str,
) -> None:
    s3, gcs = (running_servers.running(name).place() for name in (bucket, other_bucket))
    way: list[tuple[str, dict[str, Any]]] = [
        (finely_cut, {}), (s3.url, s3.options), (gcs.url, gcs.options), (target, {}),
    ]  # fmt: skip

    for (source, theirs), (there, options) in pairwise(way):
        done = copy(
            spark, source, there, source_options=theirs, target_options=options,
            piece_size_bytes=PIECE_SIZE_BYTES, read_back=there == target,
        )  # fmt: skip
        assert [each.error for each in done] == [None] * 3
        assert {each.stream: each.next_offset for each in done} == ENDS
        assert delivered(there, options) == records

    for stream in osiris_data.STREAMS:
        assert bodies(Path(target), stream) == formula(osiris_data.MANIFEST["streams"][stream]["messages"])


def test_one_commit_names_a_stream_with_its_ledgers_and_epochs(
    spark: SparkSession, finely_cut: str, target: str
) -> None:
    copy(spark, finely_cut, target, streams=["filtered"], piece_size_bytes=PIECE_SIZE_BYTES)

    ours, theirs = manifest_of(target, "filtered"), manifest_of(finely_cut, "filtered")
    assert ours.version <= 3, "a claim that begins it, an announcement, an append"
    assert (ours.ledgers, ours.messages, ours.data_size_bytes, ours.source_epoch) == (
        theirs.ledgers, theirs.messages, theirs.data_size_bytes, theirs.source_epoch,
    )  # fmt: skip
    assert theirs.source_epoch == 4
    attempts = {entry.attempt for entry in entries_of_rows(ours.entries)}
    assert len(attempts) > ours.ledgers, "large ledgers went in pieces"
    assert ours.running == ()


async def offload_ledgers(tier: Blocking, sources: Path, count: int) -> None:
    """Offload the next ledgers of `batches`."""
    stream = await open_source(f"rabbitmq://{sources}").stream("batches")
    writer = await StreamWriter.claim(tier.offloader, "batches")
    async with await stream.snapshot() as snapshot:
        new = [each for each in snapshot.ledgers if each.first_offset >= writer.manifest.next_offset]
        await writer.offload(new[:count])


def test_the_next_run_copies_growth_and_a_run_without_growth_writes_nothing(
    spark: SparkSession, sources: Path, target: str, tmp_path: Path
) -> None:
    """The source grows during the first run, which copies what was committed before it began."""
    source = str(tmp_path / "growing")
    with Blocking(source) as tier:
        tier.run(tier.offloader.open(create=True))
        tier.run(offload_ledgers(tier, sources, 2))
        seen = []

        def grow(progress: object) -> None:
            seen.append(progress)
            tier.run(offload_ledgers(tier, sources, 1))

        (first,) = copy(spark, source, target, progress=grow)
        (second,) = copy(spark, source, target)
        before = {path: path.stat().st_mtime_ns for path in Path(target).rglob("*")}
        (third,) = copy(spark, source, target)

    assert len(seen) == 1
    assert (first.next_offset, second.next_offset, third.fragments) == (6937, 10225, 0)
    assert {path: path.stat().st_mtime_ns for path in Path(target).rglob("*")} == before
    assert delivered(target) == delivered(source)


def test_a_target_that_ends_within_a_fragment_of_the_source_is_continued(
    spark: SparkSession, finely_cut: str, tier: str, target: str, sources: Path
) -> None:
    """A sync wrote the target. Its last chunk is compared, and the copy begins within a fragment."""
    with Blocking.around(
        lambda: open_tier(target, options=TierOptions(fragment_size_bytes=20_000))
    ) as opened:
        opened.run(opened.offloader.open(create=True))
        opened.run(offload_ledgers(opened, sources, 2))

    (done,) = copy(spark, tier, target, streams=["batches"])

    assert done.next_offset == ENDS["batches"]
    assert delivered(target)["batches"] == delivered(tier)["batches"]


def test_another_history_is_refused(
    spark: SparkSession, tier: str, sources: Path, target: str, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(osiris_data.DATA / "batches", other / "filtered")
    with Blocking(target) as opened:
        opened.run(opened.offloader.open(create=True))
        opened.sync(f"rabbitmq://{other}")
    before = fragments(target)

    (done,) = copy(spark, tier, target, streams=["filtered"])

    assert isinstance(done.error, Diverged)
    assert "source and tier part at or before offset" in str(done.error)
    assert (fragments(target), manifest_of(target, "filtered").running) == (before, ())


def test_a_source_that_is_trimmed_beyond_the_target_is_refused(
    spark: SparkSession, tier: str, sources: Path, target: str, tmp_path: Path
) -> None:
    source = str(shutil.copytree(tier, tmp_path / "trimmed"))
    with Blocking(target) as opened:
        opened.run(opened.offloader.open(create=True))
        opened.run(offload_ledgers(opened, sources, 1))
    with Blocking(source) as opened:
        opened.run(trim(opened.offloader, "batches", Retention(before_offset=6937)))

    (done,) = copy(spark, source, target, streams=["batches"])

    assert isinstance(done.error, Diverged)
    assert "begins at offset 6937, but offset 3669 is the next" in str(done.error)


def test_a_trimmed_stream_is_copied_from_its_first_offset_and_a_deleted_one_is_skipped(
    spark: SparkSession, tier: str, target: str, tmp_path: Path
) -> None:
    source = str(shutil.copytree(tier, tmp_path / "source"))
    with Blocking(source) as opened:
        opened.run(trim(opened.offloader, "batches", Retention(before_offset=6937)))
        opened.run(delete_stream(opened.offloader, "filtered"))

    done = copy(spark, source, target)

    assert [(each.stream, bool(each.note)) for each in done] == [
        ("batches", False), ("filtered", True), ("tiny", False),
    ]  # fmt: skip
    assert manifest_of(target, "batches").first_offset == 6937
    assert delivered(target) == delivered(source, but="filtered")
    for gone in ("filtered", "never"):
        with pytest.raises(NotOffloaded):
            copy(spark, source, target, streams=[gone])


RUN = """
import os, signal, sys
from offload_spark import session
from offload_spark.jobs import transfer, transfer_tasks
from offload_spark.jobs.copy import copy
from offload.write.job import Job

source, target, when, size = sys.argv[1:]
real = Job.append

async def append(job, receipts):
    if when == "after":
        await real(job, receipts)
    os.kill(os.getpid(), signal.SIGKILL)

def after_a_wave(progress):
    if when == "midway":
        os.kill(os.getpid(), signal.SIGKILL)

Job.append = append
transfer_tasks.TASK_SIZE_BYTES_MAX = transfer.TASKS_PER_SLOT = 1
spark = session(master="local[1]", conf={"spark.driver.memory": "512m"})
copy(spark, source, target, streams=["filtered"], piece_size_bytes=int(size), progress=after_a_wave)
"""


MOMENTS = ["midway", "before", "after"]
"""When the driver dies: after the first wave of tasks, before its commit, or after it."""


AT_THE_COMMIT = (
    "a copy whose driver dies at its commit; a back-fill, which commits alike, has both moments here"
)


def check_next_run(spark: SparkSession, finely_cut: str, records: Delivered, target: str, when: str) -> None:
    """The run after a death uploads nothing twice and leaves nothing behind."""
    uploaded = fragments(target)
    assert uploaded

    (done,) = copy(spark, finely_cut, target, streams=["filtered"], piece_size_bytes=PIECE_SIZE_BYTES)

    assert done.taken_over == (0 if when == "after" else len(uploaded))
    assert bool(done.fragments) == (when == "midway")
    assert fragments(target) == named(target), "nothing was uploaded twice, and nothing is left"
    assert delivered(target)["filtered"] == records["filtered"]
    manifest = manifest_of(target, "filtered")
    assert (manifest.epoch, manifest.running) == (1, ()), "one claim, and nobody else since"
    assert manifest.version <= 5, "a claim, an announcement by each run, one append, the end of the rest"


@pytest.mark.parametrize("when", keeping(["midway"], MOMENTS, AT_THE_COMMIT))
def test_a_run_resumes_after_its_driver_died(
    spark: SparkSession,
    finely_cut: str,
    records: Delivered,
    target: str,
    when: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfer_tasks, "TASK_SIZE_BYTES_MAX", 1)
    monkeypatch.setattr(transfer, "TASKS_PER_SLOT", 1)

    with dying(when) as death:
        copy(
            spark, finely_cut, target, streams=["filtered"], piece_size_bytes=PIECE_SIZE_BYTES,
            progress=death.strike if when == "midway" else lambda progress: None,
        )  # fmt: skip

    check_next_run(spark, finely_cut, records, target, when)


@campaign("a copy that SIGKILL ends; its driver dies in the tests' own process here")
@pytest.mark.parametrize("when", MOMENTS)
def test_a_run_resumes_after_sigkill_ended_its_driver(
    spark: SparkSession, finely_cut: str, records: Delivered, target: str, when: str
) -> None:
    assert run(RUN, finely_cut, target, when, PIECE_SIZE_BYTES) == -signal.SIGKILL

    check_next_run(spark, finely_cut, records, target, when)


def test_a_task_that_is_tried_again_uploads_beside_its_first_try(
    spark: SparkSession, finely_cut: str, records: Delivered, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailsOnce(TierReach):
        """Local to this test, so that Spark sends it to its workers by value."""

        __slots__ = ()

        @asynccontextmanager
        async def opened(self) -> AsyncGenerator[Fetch, None]:
            from pyspark import TaskContext

            async with TierReach.opened(self) as fetch:
                yield fetch
            task = TaskContext.get()
            if task is not None and task.attemptNumber() == 0:
                raise RuntimeError("lost after it has uploaded")

    monkeypatch.setattr(copy_job, "TierReach", FailsOnce)

    (done,) = copy(spark, finely_cut, target, streams=["filtered"], piece_size_bytes=PIECE_SIZE_BYTES)

    assert done.error is None
    assert delivered(target)["filtered"] == records["filtered"]
    assert manifest_of(target, "filtered").running == ()
    assert len(fragments(target)) == 2 * len(named(target)), "each piece was uploaded twice, and named once"
    with Blocking(target) as opened:
        opened.run(sweep(opened.offloader, grace_seconds=0))
    assert fragments(target) == named(target)


def test_damage_in_the_source_stops_one_stream_with_one_line_and_names_nothing_of_it(
    spark: SparkSession, tier: str, target: str, tmp_path: Path
) -> None:
    """The other streams are copied. The job of the stopped stream can be given up."""
    source = Path(shutil.copytree(tier, tmp_path / "source"))
    damaged = max((source / "batches" / "data").iterdir())
    raw = bytearray(damaged.read_bytes())
    raw[1000] ^= 1
    damaged.chmod(0o644)
    damaged.write_bytes(raw)

    ran = offload("spark", "copy", source, target, "--json", "--master", "local[1]")
    left = manifest_of(target, "batches")
    given_up = offload("spark", "copy", source, target, "--give-up", "--stream", "batches")

    assert ran.code == 1
    batches, *others = ran.objects
    assert {each["stream"]: each["next_offset"] for each in others} == {
        name: ENDS[name] for name in ("filtered", "tiny")
    }
    assert delivered(target, but="batches") == delivered(str(tier), but="batches")
    assert str(damaged.relative_to(source)) in batches["error"]
    assert ran.stderr.splitlines()[-1] == f"offload: {batches['error']}"
    assert left.fragments == 0
    assert len(left.running) == 2 * 4, "one task had all ledgers, and each of its tries had own attempts"
    assert given_up.code == 0, given_up.stderr
    assert manifest_of(target, "batches").running == ()


def test_give_up_needs_a_stream() -> None:
    ran = offload("spark", "copy", "one", "other", "--give-up")

    assert ran.code == 2
    assert "--give-up needs --stream: name the streams" in ran.error
