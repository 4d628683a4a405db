"""Jobs that Spark runs: the scrub and the export, as functions and as commands."""

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
from command_line import PROGRAM
from offload_spark.jobs.export import Exported, export
from offload_spark.jobs.verify import verify

from offload import Blocking, VerifyReport
from offload.errors import Misuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMS = osiris_data.MANIFEST["streams"]


@pytest.fixture
def copy(tier: str, tmp_path: Path) -> Path:
    """The tier of real streams, to be damaged."""
    return Path(shutil.copytree(tier, tmp_path / "tier"))


def fragments(tier: Path) -> list[Path]:
    return sorted(tier.glob("*/data/*.fragment"), key=lambda path: str(path.relative_to(tier)))


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.chmod(0o644)
    path.write_bytes(raw)


class TestVerify:
    def test_a_sound_tier_is_sound_and_was_read_whole(self, spark: SparkSession, copy: Path) -> None:
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
    def test_head_and_trailer_count_too(self, spark: SparkSession, copy: Path, at: int) -> None:
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

    def test_it_goes_on_where_it_was_interrupted(self, spark: SparkSession, copy: Path) -> None:
        """Waves of small tasks; the damage in front of `after` is not looked for again."""
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
    def test_every_record_is_there_once_with_its_offset(
        self, spark: SparkSession, tier: str, tmp_path: Path
    ) -> None:
        told: list[Exported] = []
        target = str(tmp_path / "out")

        added = export(spark, tier, target, options={"decode": "amqp"}, progress=told.append)
        again = export(spark, tier, target, options={"decode": "amqp"})

        assert (added.rows, again.rows) == (sum(STREAMS[each]["messages"] for each in osiris_data.STREAMS), 0)
        found = spark.read.parquet(target)
        for stream in osiris_data.STREAMS:
            rows = found.where(found.stream == stream).orderBy("offset").select("offset", "body").collect()
            expected = [osiris_data.body_of(i) for i in range(STREAMS[stream]["messages"])]
            assert [bytes(row.body) for row in rows] == expected
            assert len({row.offset for row in rows}) == len(rows)
        days = {path.name for path in (tmp_path / "out" / "stream=tiny").iterdir()}
        assert days == {"date=2026-11-21"}


def command(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [*PROGRAM[:1], *PROGRAM[3:], "spark", *map(str, arguments)]  # Spark warns, and that is no error
    return subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_commands_run_in_a_process_of_their_own(copy: Path) -> None:
    """Each starts Spark by itself; a folder is named as one stands."""
    flip(fragments(copy)[0], 5000)

    verified = command("verify", "tier", "--json", "--master", "local[1]", cwd=copy.parent)
    exported = command(
        "export", "tier", "out", "--stream", "tiny", "--json", "--master", "local[1]", cwd=copy.parent
    )

    assert (verified.returncode, exported.returncode) == (1, 0), verified.stderr + exported.stderr
    (damage,) = json.loads(verified.stdout)["damages"]
    assert damage["stream"] == "batches"
    assert json.loads(exported.stdout) == {"rows": 10, "batches": 1}
    assert (copy.parent / "out" / "stream=tiny").is_dir()


def test_a_back_fill_as_a_command(sources: Path, tmp_path: Path) -> None:
    words = ("backfill", f"rabbitmq://{sources}", "tier", "--stream", "batches", "--json")

    done = command(*words, "--master", "local[1]", cwd=tmp_path)
    nothing = command("backfill", f"rabbitmq://{sources}", "tier", "--give-up", cwd=tmp_path)
    nowhere = command("export", "no-tier", "out", "--master", "local[1]", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "stream": "batches", "ledgers": 3, "taken_over": 0, "next_offset": 10225,
    }  # fmt: skip
    assert nothing.returncode == 2
    assert "--give-up takes the streams by --stream" in nothing.stderr
    assert nowhere.returncode == 1
    assert nowhere.stderr.splitlines()[-1].startswith(f"offload: file://{tmp_path}/no-tier is no tier")


def test_what_cannot_be_scrubbed_is_said(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises((Misuse, LookupError)):
        verify(spark, str(tmp_path / "nothing"))
