"""Compression in Spark: writes and jobs store fragments of the codec that they are given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from campaign import campaign
from command_line import bodies, offload
from offload_spark import append

from offload import Blocking, TierOptions
from offload.model.compression import BlockCodec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def codecs(url: str | Path, stream: str = "orders") -> set[str]:
    """Return the names of the codecs of a stream's fragments."""
    with Blocking(str(url)) as tier:
        return {BlockCodec(codec).name.lower() for codec in tier.load_manifest(stream).entries["codec"]}


def default_of(url: Path) -> bool:
    return b'"compression":"zstd:1"' in (url / "tier.anchor").read_bytes()


def frame(spark: SparkSession, first: int, stop: int) -> DataFrame:
    text = "concat('the same text in each of the values, and a number ', id) AS value"
    return spark.range(first, stop, 1, 1).selectExpr("id AS offset", text)


@campaign("a compressed write by Spark; make test has the codec of its jobs")
def test_a_write_stores_its_compression_and_a_new_tier_has_it_as_default(
    spark: SparkSession, tmp_path: Path
) -> None:
    tier = tmp_path / "tier"
    to = {"stream": "orders", "compression": "zstd"}

    frame(spark, 0, 500).write.format("offload").mode("append").options(**to).save(str(tier))

    assert (codecs(tier), default_of(tier)) == ({"zstd"}, True)
    append(frame(spark, 0, 500).select("value"), str(tier), "orders")
    assert codecs(tier) == {"zstd"}
    append(frame(spark, 0, 500).select("value"), str(tier), "orders", compression="lz4")
    assert codecs(tier) == {"zstd", "lz4"}
    read = spark.read.format("offload").option("stream", "orders").load(str(tier))
    assert read.count() == 1500
    assert read.selectExpr("CAST(value AS STRING)").distinct().count() == 500


def test_the_jobs_store_the_codec_of_their_option(spark: SparkSession, sources: Path, tmp_path: Path) -> None:
    filled, copied = tmp_path / "filled", tmp_path / "copied"

    assert offload("spark", "backfill", f"rabbitmq://{sources}", filled, "--compress", "zstd").code == 0
    assert offload("spark", "copy", filled, copied, "--compress", "lz4").code == 0

    assert (codecs(filled, "batches"), default_of(filled)) == ({"zstd"}, True)
    assert codecs(copied, "batches") == {"lz4"}
    assert bodies(copied, "batches") == bodies(filled, "batches")


def test_the_compaction_job_compresses_what_it_merges(
    spark: SparkSession, sources: Path, tmp_path: Path
) -> None:
    small, tier = TierOptions(fragment_size_bytes=60_000), tmp_path / "tier"
    with Blocking(str(tier), options=small) as opened:
        opened.run(opened.offloader.open(create=True))
        opened.sync(f"rabbitmq://{sources}", only=["batches"])
    before = bodies(tier, "batches")

    ran = offload("spark", "compact", tier, "--compress", "zstd")

    assert ran.code == 0, ran.stderr
    assert "zstd" in codecs(tier, "batches")
    assert bodies(tier, "batches") == before
