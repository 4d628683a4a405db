"""The jobs `verify` and `export`, as functions and as commands; and `backfill` as a command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import osiris_data
import pytest
from campaign import campaign
from command_line import PROGRAM, offload
from offload_spark.jobs.export import Exported, export
from offload_spark.jobs.verify import verify
from spark.drivers import CHEAP_JVM, SECONDS_MAX

from offload import Blocking, VerifyReport
from offload.ground.errors import Misuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMS = osiris_data.MANIFEST["streams"]


@pytest.fixture
def copy(tier: str, tmp_path: Path) -> Path:
    """A copy of the tier of real streams, for a test that damages it."""
    return Path(shutil.copytree(tier, tmp_path / "tier"))


def fragments(tier: Path) -> list[Path]:
    """Return the paths of all fragments, in the order of their keys."""
    return sorted(tier.glob("*/data/*.fragment"), key=lambda path: str(path.relative_to(tier)))


def flip(path: Path, at: int) -> None:
    """Flip one bit of the byte at this place."""
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.chmod(0o644)
    path.write_bytes(raw)


class TestVerify:
    def test_a_sound_tier_is_read_whole_and_reported_as_sound(self, spark: SparkSession, copy: Path) -> None:
        found = verify(spark, str(copy))
        with Blocking(str(copy)) as tier:
            alone = tier.verify()

        assert (found.damages, found.streams) == ([], len(osiris_data.STREAMS))
        assert found.bytes >= sum(path.stat().st_size for path in fragments(copy))
        assert found.objects <= alone.objects

    def test_a_flipped_bit_is_named_by_object_and_byte(self, spark: SparkSession, copy: Path) -> None:
        damaged = fragments(copy)[2]
        flip(damaged, 5000)

        (damage,) = verify(spark, str(copy)).damages

        assert (damage.where, damage.stream) == (str(damaged.relative_to(copy)), "batches")
        assert 0 < damage.position <= 5000

    @pytest.mark.parametrize("at", [0, -1, -40])
    def test_a_flipped_bit_in_a_head_or_trailer_is_found(
        self, spark: SparkSession, copy: Path, at: int
    ) -> None:
        flip(fragments(copy)[0], at)

        assert len(verify(spark, str(copy), stream="batches").damages) == 1

    def test_a_missing_and_a_swapped_fragment_are_found(self, spark: SparkSession, copy: Path) -> None:
        one, other, gone, *_ = fragments(copy)
        one_bytes, other_bytes = one.read_bytes(), other.read_bytes()
        for path, raw in ((one, other_bytes), (other, one_bytes)):
            path.chmod(0o644)
            path.write_bytes(raw)
        gone.unlink()

        damaged = {damage.where for damage in verify(spark, str(copy)).damages}

        assert damaged == {str(path.relative_to(copy)) for path in (one, other, gone)}

    def test_verify_resumes_after_the_last_object_that_an_interrupted_run_judged(
        self, spark: SparkSession, copy: Path
    ) -> None:
        """It runs waves of small tasks. The second run does not look again for the damage before `after`."""
        first, *_, last = fragments(copy)
        flip(first, 5000)
        flip(last, 900)
        seen: list[str | None] = []

        report = VerifyReport()
        verify(
            spark,
            str(copy),
            task_size_bytes=1,
            report=report,
            progress=lambda so_far: seen.append(so_far.judged_to),
        )
        rest = verify(spark, str(copy), after=str(first.relative_to(copy)))

        assert len(report.damages) == 2
        assert seen == sorted(seen, key=str)
        assert report.judged_to == str(last.relative_to(copy))
        assert [damage.where for damage in rest.damages] == [str(last.relative_to(copy))]


class TestExport:
    @campaign("an export of all streams, twice; make test exports one stream by the command")
    def test_an_export_has_every_record_once_with_its_offset(
        self, spark: SparkSession, tier: str, tmp_path: Path
    ) -> None:
        told: list[Exported] = []
        target = str(tmp_path / "out")

        added = export(spark, tier, target, options={"decode": "amqp"}, progress=told.append)
        again = export(spark, tier, target, options={"decode": "amqp"})

        assert (added.rows, again.rows) == (sum(STREAMS[each]["messages"] for each in osiris_data.STREAMS), 0)
        collected = spark.read.parquet(target).select("stream", "offset", "body").collect()
        for stream in osiris_data.STREAMS:
            rows = sorted((row.offset, bytes(row.body)) for row in collected if row.stream == stream)
            expected = [osiris_data.body_of(i) for i in range(STREAMS[stream]["messages"])]
            assert [body for _, body in rows] == expected
            assert len({offset for offset, _ in rows}) == len(rows)
        days = {path.name for path in (tmp_path / "out" / "stream=tiny").iterdir()}
        assert days == {"date=2026-11-21"}


def test_a_command_starts_spark_in_a_process_of_its_own(copy: Path) -> None:
    """Its tier is a folder relative to where it runs."""
    flip(fragments(copy)[0], 5000)
    given = {"PYTHONPATH": os.pathsep.join(sys.path), "SPARK_SUBMIT_OPTS": CHEAP_JVM}
    words = [*PROGRAM[:1], *PROGRAM[3:], "spark", "verify", "tier", "--json", "--master", "local[1]"]

    ran = subprocess.run(  # without `-W error`: Spark itself warns
        words, cwd=copy.parent, env={**os.environ, **given},
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip

    assert ran.returncode == 1, ran.stderr
    (damage,) = json.loads(ran.stdout)["damages"]
    assert damage["stream"] == "batches"


def test_the_export_command_writes_one_stream_and_prints_totals(
    spark: SparkSession, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy.parent)

    ran = offload("spark", "export", "tier", "out", "--stream", "tiny", "--json", "--master", "local[1]")

    assert ran.code == 0, ran.stderr
    assert ran.document == {"rows": 10, "batches": 1}
    assert (copy.parent / "out" / "stream=tiny").is_dir()


def test_the_backfill_command_prints_each_stream(
    spark: SparkSession, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    ran = offload("spark", "backfill", f"rabbitmq://{sources}", "tier", "--stream", "batches", "--json")

    assert ran.code == 0, ran.stderr
    assert ran.document == {"stream": "batches", "ledgers": 3, "taken_over": 0, "next_offset": 10225}


def test_give_up_of_a_backfill_needs_a_stream(sources: Path) -> None:
    ran = offload("spark", "backfill", f"rabbitmq://{sources}", "tier", "--give-up")

    assert ran.code == 2
    assert "--give-up needs --stream: name the streams" in ran.stderr


def test_an_export_of_a_missing_tier_ends_with_one_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    ran = offload("spark", "export", "no-tier", "out", "--master", "local[1]")

    assert ran.code == 1
    assert ran.stderr.splitlines()[-1].startswith(f"offload: file://{tmp_path}/no-tier is no tier")


def test_a_verify_of_a_missing_tier_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises((Misuse, LookupError)):
        verify(spark, str(tmp_path / "nothing"))
