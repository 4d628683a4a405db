"""Real streams through Spark itself: all that RabbitMQ wrote, from a folder and from servers."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import osiris_data
import pytest
from campaign import campaign
from faults.rig import EVERY_SERVER

from offload import Blocking
from offload.upkeep.retention import Retention, trim

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAMS = osiris_data.MANIFEST["streams"]


def frame(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("offload").options(**options).load(url)


def check_all_streams(found: DataFrame) -> None:
    """Every stream has the messages, offsets and bodies that its formula gives."""
    rows = found.select("stream", "offset", "body").toArrow().sort_by("offset").to_pylist()
    for stream in osiris_data.STREAMS:
        bodies = [row["body"] for row in rows if row["stream"] == stream]
        offsets = [row["offset"] for row in rows if row["stream"] == stream]
        assert bodies == [osiris_data.body_of(i) for i in range(STREAMS[stream]["messages"])]
        assert offsets == expected_offsets(stream)


def expected_offsets(stream: str) -> list[int]:
    """Return the offset of every message, from the chunks. Tracking chunks have none."""
    from offload.formats.chunk import scan
    from offload.formats.records import offsets_and_timestamps

    data = b"".join(osiris_data.chunks(stream))
    return offsets_and_timestamps(scan(data, where=stream))[0].tolist()


def test_a_folder_gives_every_stream_whole(spark: SparkSession, tier: str) -> None:
    check_all_streams(frame(spark, tier, decode="amqp"))


@campaign("a tier of real streams on a server; make test writes a frame to MinIO and reads it")
@pytest.mark.parametrize("elsewhere", EVERY_SERVER, indirect=True)
def test_a_server_gives_every_stream_whole(
    spark: SparkSession, elsewhere: tuple[str, dict[str, Any]]
) -> None:
    """Workers have the URL and storage options, and nothing else."""
    url, options = elsewhere

    check_all_streams(frame(spark, url, decode="amqp", storageOptions=json.dumps(options)))


def test_storage_options_may_be_given_one_by_one(spark: SparkSession, tier: str) -> None:
    """A folder has no options, so its backend refuses this one by name."""
    with pytest.raises(Exception, match="has no option 'speed'"):
        frame(spark, tier, **{"storage.speed": "9"}).count()


def test_columns_have_the_names_of_kafkas_source(spark: SparkSession, tier: str) -> None:
    found = frame(spark, tier, stream="tiny", decode="amqp", includeHeaders="true")

    assert [field.simpleString() for field in found.schema] == [
        "stream:string",
        "ledger:bigint",
        "offset:bigint",
        "timestamp:timestamp",
        "key:binary",
        "value:binary",
        "part:int",
        "headers:array<struct<key:string,value:binary>>",
        "body:binary",
        "properties:string",
        "application_properties:string",
        "annotations:string",
    ]
    (third,) = found.where("offset = 3").collect()
    assert [(header.key, bytes(header.value)) for header in third.headers] == [("n", b"3"), ("s", b"v3")]
    assert json.loads(third.properties)["message_id"] == "m3"
    assert bytes(third.key).startswith(b"tiny")
    assert bytes(third.body) == osiris_data.body_of(3)


def test_a_users_schema_takes_some_columns_in_its_order(spark: SparkSession, tier: str) -> None:
    read = spark.read.schema("timestamp timestamp, offset long").format("offload")

    found = read.option("stream", "tiny").load(tier)

    assert found.columns == ["timestamp", "offset"]
    first, last = found.selectExpr("min(unix_millis(timestamp))", "max(unix_millis(timestamp))").first()
    assert (first, last) == (STREAMS["tiny"]["first_timestamp_ms"], STREAMS["tiny"]["last_timestamp_ms"])


@pytest.fixture(scope="module")
def records(spark: SparkSession, tier: str) -> Iterator[DataFrame]:
    """All records of the tier, read once, so that Spark alone filters them."""
    found = frame(spark, tier, pushdown="false").select("stream", "offset", "timestamp").cache()
    yield found
    found.unpersist()


BY_ITSELF = campaign("a filter of one kind pushed by Spark; drawn filters narrow bounds without Spark here")


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("stream = 'tiny' and offset between 3 and 5", 3),
        pytest.param("stream in ('tiny', 'none')", 10, marks=BY_ITSELF),
        ("offset >= 12000 and stream = 'filtered'", 8000),
        pytest.param("stream = 'tiny' and unix_millis(timestamp) % 2 >= 0", 10, marks=BY_ITSELF),
        pytest.param("stream = 'nothing'", 0, marks=BY_ITSELF),
        pytest.param("offset < 0", 0, marks=BY_ITSELF),
        ("timestamp >= '2100-01-01'", 0),
        ("stream like 'ti%' or offset = 12271", 11),
    ],
)
def test_pushed_filters_give_the_rows_that_spark_alone_gives(
    spark: SparkSession, tier: str, records: DataFrame, condition: str, count: int
) -> None:
    pushed = frame(spark, tier).where(condition).select("stream", "offset")
    unpushed = records.where(condition).select("stream", "offset")

    found = sorted(pushed.collect())

    assert found == sorted(unpushed.collect())
    assert len(found) == count


def test_sql_reads_by_a_view_and_by_options(spark: SparkSession, tier: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW tiny USING offload OPTIONS (path '{tier}', stream 'tiny')")

    ((count,),) = spark.sql("SELECT count(*) FROM tiny WHERE offset > 3").collect()

    assert count == 6


def test_a_mistake_is_one_plain_message(spark: SparkSession, tier: str) -> None:
    with pytest.raises(Exception, match="no option 'startingofset'"):
        frame(spark, tier, startingOfset="earliest").count()
    with pytest.raises(Exception, match="there is no column 'size'"):
        frame(spark, tier, columns="offset,size").count()
    with pytest.raises(Exception, match="there is no column 'topic'"):
        spark.read.schema("topic string").format("offload").load(tier).count()


@campaign("a session that registered nothing; make test has one that registered the format")
def test_a_session_that_registered_nothing_finds_the_format(spark: SparkSession, tier: str) -> None:
    """Spark finds it by the name of the module `pyspark_offload`. Filters are then not pushed down."""
    fresh = spark.newSession()
    fresh.conf.set("spark.sql.python.filterPushdown.enabled", "false")

    assert frame(fresh, tier, stream="tiny").where("offset > 3").count() == 6


def test_a_read_of_trimmed_data_is_an_error(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, sources: Any
) -> None:
    from spark.conftest import offload_all

    url = str(tmp_path_factory.mktemp("trimmed"))
    offload_all(url, {}, sources)
    with Blocking(url) as opened:
        opened.run(trim(opened.offloader, "batches", Retention(before_offset=3669)))

    with pytest.raises(Exception, match="failOnDataLoss=false"):
        frame(spark, url, stream="batches", startingOffsets='{"batches": 0}').count()

    some = frame(spark, url, startingOffsets='{"batches": 0}', stream="batches", failOnDataLoss="false")
    assert some.selectExpr("min(offset)").first()[0] == 3670, "3669 is a tracking chunk"


def code_of_the_page() -> str:
    """Return the Python blocks of docs/spark.md."""
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    return "\n".join(re.findall(r"^```py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))


def test_the_page_imports_what_exists_and_is_valid_python() -> None:
    imports = [each for each in ast.walk(ast.parse(code_of_the_page())) if isinstance(each, ast.ImportFrom)]

    assert imports
    for each in imports:
        module = import_module(str(each.module))
        assert all(hasattr(module, alias.name) for alias in each.names)


@campaign(
    "docs/spark.md run as it reads; its imports are checked here, and its calls have tests of their own"
)
def test_the_page_shows_what_runs(
    spark: SparkSession, tier: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its Python blocks run in order, on tiers of this test. The stream has a broker's tracking records."""
    code = code_of_the_page()
    said = {"s3://bucket/tier": tier, "s3://bucket/": f"{tmp_path}/", '"orders"': '"batches"'}
    for old, new in said.items():
        assert old in code
        code = code.replace(old, new)

    exec(code, {})

    assert re.search(r"\| *batches\| *12240\|", capsys.readouterr().out)
    assert spark.read.parquet(f"{tmp_path}/orders").count() == 12240
    copied = spark.read.format("offload").load(f"{tmp_path}/derived").groupBy("stream").count().collect()
    assert {row["stream"]: row["count"] for row in copied} == {
        "copy-of-orders": 12240, "totals": 1, "numbers": 1000
    }  # fmt: skip
