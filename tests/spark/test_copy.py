"""A copy from tier to tier by Spark's tasks: the same streams there, also after growth, a kill, or damage."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import osiris_data
import pytest
from command_line import CAMPAIGN, PROGRAM, bodies, formula, offload
from offload_spark.jobs.copy import copy
from servers import real_servers_of, servers_of
from servers.session import Session

from offload import Blocking, Plugins, StreamWriter
from offload.errors import Diverged, NotOffloaded
from offload.formats.keys import StreamKeys
from offload.model.entry import entries_of_rows
from offload.model.manifest import Manifest
from offload.native.offloader import TierOptions
from offload.opening import open_source, open_tier
from offload.upkeep.retention import Retention, delete_stream, trim
from offload.upkeep.sweep.tier import sweep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FRAGMENT_SIZE_BYTES = 60_000
PIECE_SIZE_BYTES = 200_000
"""So that a ledger is several pieces, and a piece several fragments."""

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
    """All that a tier's readers get, by stream: offset, time and body of every message. All of it holds."""
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


def manifest_of(url: str, stream: str) -> Manifest:
    with Blocking(url) as tier:
        return tier.load_manifest(stream)


def fragments(url: str) -> set[str]:
    return {str(path.relative_to(url)) for path in Path(url).glob("*/data/*.fragment")}


def named(url: str) -> set[str]:
    """The fragments that the newest manifests name, all of them in roots."""
    with Blocking(url) as tier:
        return {
            StreamKeys(stream).fragment(entry.first_offset, entry.attempt)
            for stream in tier.streams()
            for entry in entries_of_rows(tier.load_manifest(stream).entries)
        }


@pytest.mark.parametrize("bucket", real_servers_of("s3")[-1:])
@pytest.mark.parametrize("other_bucket", servers_of("gcs")[:1])
def test_streams_go_from_store_to_store_and_back_as_they_were(
    spark: SparkSession,
    finely_cut: str,
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
        assert delivered(there, options) == delivered(finely_cut)

    for stream in osiris_data.STREAMS:
        assert bodies(Path(target), stream) == formula(osiris_data.MANIFEST["streams"][stream]["messages"])


def test_each_stream_is_one_commit_with_its_ledgers_and_epochs(
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
    """The next ledgers of `batches`."""
    stream = await open_source(f"rabbitmq://{sources}").stream("batches")
    writer = await StreamWriter.claim(tier.offloader, "batches")
    async with await stream.snapshot() as snapshot:
        new = [each for each in snapshot.ledgers if each.first_offset >= writer.manifest.next_offset]
        await writer.offload(new[:count])


def test_growth_is_copied_by_the_next_run_and_the_last_one_writes_nothing(
    spark: SparkSession, sources: Path, target: str, tmp_path: Path
) -> None:
    """The source grows while it is copied: what had been committed by then is copied."""
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


def test_a_target_that_a_sync_brought_within_a_fragment_is_gone_on_with(
    spark: SparkSession, finely_cut: str, tier: str, target: str, sources: Path
) -> None:
    """Its last chunk is compared, and what follows begins in the middle of a fragment of the source."""
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


def test_what_is_trimmed_or_deleted_at_the_source_is_begun_where_it_begins_or_passed_over(
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
from offload.streams.job import Job

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


def started(script: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A driver in a process group of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments, str(PIECE_SIZE_BYTES)],
        env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def ended(process: subprocess.Popen[bytes]) -> int:
    """How the driver ended. What else it started ends with it."""
    try:
        return process.wait(300)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("when", ["midway", "before", "after"] if CAMPAIGN else ["midway"])
def test_a_driver_that_is_killed_is_gone_on_with(
    spark: SparkSession, finely_cut: str, target: str, when: str
) -> None:
    """Midway is after the first wave; before and after are those of the commit."""
    assert ended(started(RUN, finely_cut, target, when)) == -signal.SIGKILL
    uploaded = fragments(target)
    assert uploaded

    (done,) = copy(spark, finely_cut, target, streams=["filtered"], piece_size_bytes=PIECE_SIZE_BYTES)

    assert done.taken_over == (0 if when == "after" else len(uploaded))
    assert bool(done.fragments) == (when == "midway")
    assert fragments(target) == named(target), "nothing was uploaded twice, and nothing is left"
    assert delivered(target)["filtered"] == delivered(finely_cut)["filtered"]
    manifest = manifest_of(target, "filtered")
    assert (manifest.epoch, manifest.running) == (1, ()), "one claim, and nobody else since"
    assert manifest.version <= 5, "a claim, an announcement by each run, one append, the end of the rest"


FAIL_ONCE = """
import sys
from contextlib import asynccontextmanager
from offload_spark import session
from offload_spark.jobs import copy as job

class FailsOnce(job.TierReach):
    __slots__ = ()

    @asynccontextmanager
    async def opened(self):
        from pyspark import TaskContext

        async with job.TierReach.opened(self) as fetch:
            yield fetch
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("lost after it has uploaded")

source, target, size = sys.argv[1:]
job.TierReach = FailsOnce
spark = session(master="local[1,2]", conf={"spark.driver.memory": "512m"})
(done,) = job.copy(spark, source, target, streams=["filtered"], piece_size_bytes=int(size))
assert done.error is None, done.error
"""


def test_tasks_that_are_tried_again_upload_beside_what_the_first_try_left(
    finely_cut: str, target: str
) -> None:
    assert ended(started(FAIL_ONCE, finely_cut, target)) == 0

    assert delivered(target)["filtered"] == delivered(finely_cut)["filtered"]
    assert manifest_of(target, "filtered").running == ()
    assert len(fragments(target)) == 2 * len(named(target)), "each piece twice, and once by name"
    with Blocking(target) as opened:
        opened.run(sweep(opened.offloader, grace_seconds=0))
    assert fragments(target) == named(target)


def test_damage_in_the_source_ends_one_stream_with_one_line_and_names_nothing_of_it(
    tier: str, target: str, tmp_path: Path
) -> None:
    """The others are there; what was announced for it can be given up."""
    source = Path(shutil.copytree(tier, tmp_path / "source"))
    damaged = max((source / "batches" / "data").iterdir())
    raw = bytearray(damaged.read_bytes())
    raw[1000] ^= 1
    damaged.chmod(0o644)
    damaged.write_bytes(raw)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = ("spark", "copy", source, target, "--json", "--master", "local[1]")

    ran = subprocess.run(
        [*PROGRAM[:1], *PROGRAM[3:], *map(str, words)],  # Spark warns, and that is no error
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    left = manifest_of(target, "batches")
    given_up = offload("spark", "copy", source, target, "--give-up", "--stream", "batches")

    assert ran.returncode == 1
    batches, *others = (json.loads(line) for line in ran.stdout.splitlines())
    assert {each["stream"]: each["next_offset"] for each in others} == {
        name: ENDS[name] for name in ("filtered", "tiny")
    }
    assert delivered(target, but="batches") == delivered(str(tier), but="batches")
    assert str(damaged.relative_to(source)) in batches["error"]
    assert ran.stderr.splitlines()[-1] == f"offload: {batches['error']}"
    assert (left.fragments, len(left.running)) == (0, 4)
    assert given_up.code == 0, given_up.stderr
    assert manifest_of(target, "batches").running == ()


def test_give_up_wants_a_stream() -> None:
    ran = offload("spark", "copy", "one", "other", "--give-up")

    assert ran.code == 2
    assert "--give-up takes the streams by --stream" in ran.error
