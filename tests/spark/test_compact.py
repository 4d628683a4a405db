"""The job `compact`: the same records in larger fragments, also after a kill and beside other writers."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import osiris_data
import pytest
from campaign import campaign, few
from command_line import offload
from offload_spark.jobs.compact import compact, give_up
from spark.drivers import dying, run

from offload import Blocking, Plugins, StreamWriter
from offload.commit.guest import Delete
from offload.contracts.events import Event
from offload.formats.keys import StreamKeys
from offload.ground.errors import StreamDeleted
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import Manifest
from offload.native.offloader import TierOptions
from offload.opening.by_url import open_tier
from offload.read.reader import StreamReader
from offload.read.tables import _tables_of
from offload.upkeep.compact.stream import Compaction, copied
from offload.upkeep.retention import Retention, trim
from offload.upkeep.sweep.tier import sweep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_SIZE_BYTES = 60_000
LARGE_SIZE_BYTES = 1_000_000
Record = tuple[int, int, bytes]


@pytest.fixture(scope="session")
def finely_cut(tmp_path_factory: pytest.TempPathFactory, sources: Path) -> str:
    """A folder that holds the real streams in small fragments."""
    url = str(tmp_path_factory.mktemp("to-compact"))
    how = TierOptions(fragment_size_bytes=SMALL_SIZE_BYTES)
    with Blocking.around(lambda: open_tier(url, options=how), plugins=Plugins.find()) as tier:
        tier.run(tier.offloader.open(create=True))
        assert {report.error for report in tier.sync(f"rabbitmq://{sources}")} == {None}
    return url


@pytest.fixture
def url(finely_cut: str, tmp_path: Path) -> str:
    return str(shutil.copytree(finely_cut, tmp_path / "tier"))


def delivered(url: str) -> dict[str, list[Record]]:
    """Verify a tier, and return what its readers get: offset, time and body of each message, by stream."""
    with Blocking(url) as tier:
        assert not tier.verify().damages
        return {
            stream: [
                (batch.offset + i, batch.timestamp_ms, body)
                for batch in tier.read(stream)
                for i, body in enumerate(batch.bodies)
            ]
            for stream in tier.streams()
        }


def manifest_of(url: str, stream: str) -> Manifest:
    with Blocking(url) as tier:
        return tier.load_manifest(stream)


def entries_of(url: str, stream: str) -> list[Entry]:
    """All stand in the root."""
    return entries_of_rows(manifest_of(url, stream).entries)


def fragments(url: str) -> set[str]:
    return {str(path.relative_to(url)) for path in Path(url).glob("*/data/*.fragment")}


def named(url: str) -> set[str]:
    return {
        StreamKeys(stream).fragment(entry.first_offset, entry.attempt)
        for stream in osiris_data.STREAMS
        for entry in entries_of(url, stream)
    }


def test_streams_have_the_same_records_in_fewer_fragments_and_a_sweep_deletes_the_rest(
    spark: SparkSession, finely_cut: str, url: str
) -> None:
    told = []

    done = compact(spark, url, fragment_size_bytes=LARGE_SIZE_BYTES, progress=told.append)

    assert [each.stream for each in done] == sorted(osiris_data.STREAMS)
    assert {each.stream for each in told} >= {each.stream for each in done if each.runs}
    assert sum(each.runs for each in done) > 1
    for each in done:
        before, after = manifest_of(finely_cut, each.stream), manifest_of(url, each.stream)
        assert after.fragments == before.fragments - each.fragments + each.runs
        assert sum(entry.copied for entry in entries_of(url, each.stream)) == each.runs
        for name in ("first_offset", "next_offset", "messages", "data_size_bytes", "ledgers", "writer"):
            assert getattr(after, name) == getattr(before, name)
        assert (after.running, each.passed_over) == ((), 0)
    with Blocking(url) as tier:
        tier.run(sweep(tier.offloader, grace_seconds=0))
    assert fragments(url) == named(url)
    assert delivered(url) == delivered(finely_cut)


def test_a_second_run_writes_nothing(spark: SparkSession, url: str) -> None:
    compact(spark, url, streams=["batches"], fragment_size_bytes=LARGE_SIZE_BYTES)
    before = {path: path.stat().st_mtime_ns for path in Path(url).rglob("*")}

    (again,) = compact(spark, url, streams=["batches"], fragment_size_bytes=LARGE_SIZE_BYTES)

    assert again.runs == 0
    assert {path: path.stat().st_mtime_ns for path in Path(url).rglob("*")} == before


def test_fragments_that_others_trimmed_meanwhile_are_skipped(
    spark: SparkSession, finely_cut: str, url: str
) -> None:
    """The stream is trimmed and swept after the plan and before the first wave."""
    entries = entries_of(url, "batches")
    cut = entries[len(entries) // 2].first_offset
    with Blocking(url) as tier:
        compaction = tier.run(_begun(tier))
        pieces = tier.run(compaction.wave(100))
        tier.run(trim(tier.offloader, "batches", Retention(before_offset=cut)))
        tier.run(sweep(tier.offloader, grace_seconds=0))

        receipts = [tier.run(copied(tier.offloader, piece, is_first=True)) for piece in pieces]

        kept = [piece.run.entries[0].first_offset >= cut for piece in pieces]
        assert [receipt is not None for receipt in receipts] == kept
        assert False in kept
    give_up(url, "batches")
    assert manifest_of(url, "batches").running == ()
    assert delivered(url)["batches"] == [row for row in delivered(finely_cut)["batches"] if row[0] >= cut]


async def _begun(tier: Blocking) -> Compaction:
    return await Compaction.begin(tier.offloader, "batches", fragment_size_bytes=LARGE_SIZE_BYTES)


def test_a_second_try_of_a_task_copies_under_an_attempt_of_its_own(url: str) -> None:
    with Blocking(url) as tier:
        compaction = tier.run(_begun(tier))
        [piece] = tier.run(compaction.wave(1))

        first = tier.run(copied(tier.offloader, piece, is_first=True))
        again = tier.run(copied(tier.offloader, piece, is_first=False))
        assert first is not None
        assert again is not None
        tier.run(compaction.replace(piece.run, again))
        tier.run(compaction.end())

        assert first.attempt != again.attempt
        tier.run(sweep(tier.offloader, grace_seconds=0))
    assert fragments(url) == named(url)


def test_a_second_try_of_a_task_leaves_a_recreated_stream_alone(url: str) -> None:
    with Blocking(url) as tier:
        compaction = tier.run(_begun(tier))
        [piece] = tier.run(compaction.wave(1))
        now = tier.load_manifest("batches")
        delete = Delete(incarnation=now.incarnation)
        tier.run(tier.offloader.commit_manifest("batches", delete, base=now, committer=uuid4()))
        tier.run(StreamWriter.claim(tier.offloader, "batches"))
        with pytest.raises(StreamDeleted, match="begun again since"):
            tier.run(copied(tier.offloader, piece, is_first=False))


RUN = """
import os, signal, sys
from offload_spark import session
from offload_spark.jobs import compact
from offload.write.job import Job

url, when, size = sys.argv[1:]
real, seen = Job.replace, []

async def replace(job, old, receipts):
    seen.append(old)
    if len(seen) == 2 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    await real(job, old, receipts)
    if len(seen) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

Job.replace = replace
spark = session(master="local[2]", conf={"spark.driver.memory": "512m"})
compact.compact(spark, url, streams=["batches"], fragment_size_bytes=int(size))
"""


FOUR_IN_ONE_BYTES = 4 * SMALL_SIZE_BYTES


def check_next_run(spark: SparkSession, finely_cut: str, url: str, when: str) -> None:
    """The run after a death keeps what was committed, and copies the rest again."""
    left = manifest_of(url, "batches")
    assert left.running
    assert sum(entry.copied for entry in entries_of_rows(left.entries)) == (1 if when == "before" else 2)

    (done,) = compact(spark, url, streams=["batches"], fragment_size_bytes=FOUR_IN_ONE_BYTES)

    assert done.runs
    assert manifest_of(url, "batches").running == ()
    assert delivered(url) == delivered(finely_cut)
    with Blocking(url) as tier:
        tier.run(sweep(tier.offloader, grace_seconds=0))
    assert fragments(url) == named(url)


@few("a driver that dies before its second commit; make test has one that dies after it", 2, start=1)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_resumes_after_its_driver_died_at_its_second_commit(
    spark: SparkSession, finely_cut: str, url: str, when: str
) -> None:
    with dying(when, "replace", call=2):
        compact(spark, url, streams=["batches"], fragment_size_bytes=FOUR_IN_ONE_BYTES)

    check_next_run(spark, finely_cut, url, when)


@campaign("a compaction that SIGKILL ends; its driver dies in the tests' own process here")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_resumes_after_sigkill_ended_its_driver_at_its_second_commit(
    spark: SparkSession, finely_cut: str, url: str, when: str
) -> None:
    assert run(RUN, url, when, FOUR_IN_ONE_BYTES) == -signal.SIGKILL

    check_next_run(spark, finely_cut, url, when)


def test_the_command_prints_each_stream_and_gives_up_a_named_one(spark: SparkSession, url: str) -> None:
    ran = offload(
        "spark",
        "compact",
        url,
        "--stream",
        "batches",
        "--fragment-size",
        "1MB",
        "--json",
        "--master",
        "local[1]",
    )

    assert ran.code == 0, ran.stderr
    (line,) = ran.stdout.splitlines()
    done = json.loads(line)
    assert (done["stream"], done["runs"] > 0, done["passed_over"]) == ("batches", True, 0)
    given_up = offload("spark", "compact", url, "--give-up", "--stream", "batches")
    assert given_up.code == 0, given_up.stderr
    assert "batches: the unfinished job is discarded" in given_up.stderr
    unnamed = offload("spark", "compact", url, "--give-up")
    assert unnamed.code == 2
    assert "--give-up needs --stream: name the streams" in unnamed.error


def test_a_read_that_was_planned_before_a_compaction_finds_each_chunk_once(url: str) -> None:
    """It reads indexes alone. A replaced fragment that was swept is found within the copy."""
    entries, old, told = entries_of(url, "batches"), manifest_of(url, "batches"), list[Event]()
    how = TierOptions(fragment_size_bytes=LARGE_SIZE_BYTES)
    with Blocking.around(lambda: open_tier(url, options=how)) as tier:
        compaction = tier.run(_begun(tier))
        for piece in tier.run(compaction.wave(100)):
            tier.run(compaction.replace(piece.run, tier.run(copied(tier.offloader, piece))))
        tier.run(compaction.end())
        tier.run(sweep(tier.offloader, grace_seconds=0))
        reader = StreamReader(tier.offloader, old, emit=told.append)

        tables = [tier.run(_tables_of(tier.offloader, reader, old, entry)) for entry in entries]

    for entry, found in zip(entries, tables, strict=True):
        rows = [(int(row["offset"]), int(row["records"])) for table in found for row in table]
        nexts = [offset + records for offset, records in rows]
        assert [entry.first_offset, *nexts[:-1]] == [offset for offset, _ in rows]
        assert nexts[-1] == entry.next_offset
    assert told == []
