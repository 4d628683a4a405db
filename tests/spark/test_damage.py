"""Damaged records end a read with their offsets, or are left out and reported. All others are read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from offload_conformance import ledger_of
from offload_conformance.ledgers import BIRTH_MS
from offload_spark.bounds import ScanBounds
from offload_spark.columns import DAMAGE, Columns, schema_of
from offload_spark.damage import TABLE, DamagedRange, table_of
from offload_spark.options import OnDamage
from offload_spark.scan import Scan
from offload_spark.source import OffloadDataSource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType
from spark.in_process import PLUGINS, Tier, tier

from offload import Blocking
from offload.arrow.batches import BatchMaker
from offload.contracts.events import DamageFound
from offload.ground.errors import Absent, Corrupt, Misuse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 10
"""The records of each of the three ledgers, each in a chunk of its own."""

Spans = list[tuple[int, int]]


@pytest.fixture
def made() -> Iterator[Tier]:
    with tier() as made:
        made.write("orders", [ledger_of(RECORDS, first_offset=RECORDS * n) for n in range(3)])
        yield made


def fragment(made: Tier, number: int) -> str:
    """Return the key of the fragment of ledger `number`."""
    return made.data[number]


def damage_record(made: Tier, offset: int) -> None:
    """Flip a bit in the body of a record, which names its offset."""
    key = fragment(made, offset // RECORDS)
    made.flip(key, made.objects[key].index(b"%d........" % offset))


def damage_index(made: Tier, number: int) -> None:
    """Flip a bit in the last byte of a fragment, which is in the trailer that finds its index."""
    made.flip(fragment(made, number), -1)


def offsets(made: Tier, columns: str = "offset,value", **options: str) -> list[int]:
    planned = made.plan(**{key: value for key, value in options.items() if key != "onDamage"})
    batches = (batch for parts in planned for batch in made.read(parts, columns=columns, **options))
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def ranges(made: Tier, bounds: ScanBounds | None = None, **options: str) -> list[DamagedRange]:
    scan = Scan(
        tier=made.blocking,
        maker=BatchMaker(schema=TABLE, decoder=None, rows_max=10, size_bytes_max=1000),
        fail_on_data_loss=True,
        on_damage=OnDamage.SKIP,
    )
    return [each for parts in made.plan(bounds=bounds, **options) for each in scan.damages(parts)]


def spans(found: Sequence[DamagedRange]) -> Spans:
    return [(each.first_offset, each.next_offset) for each in found]


def without(*lost: tuple[int, int]) -> list[int]:
    return [n for n in range(3 * RECORDS) if not any(first <= n < stop for first, stop in lost)]


def test_damage_is_an_error_that_names_the_offsets_the_object_and_the_option(made: Tier) -> None:
    damage_record(made, 14)
    found: list[int] = []

    def read() -> None:
        for parts in made.plan():
            for batch in made.read(parts, columns="offset,value"):
                found.extend(batch.column("offset").to_pylist())

    with pytest.raises(Corrupt) as raised:
        read()

    text = str(raised.value)
    assert text.startswith("stream 'orders': offsets [14, 15) are damaged: ")
    assert fragment(made, 1) in text
    assert text.endswith("to read the other records, set onDamage=skip")
    assert raised.value.where.endswith(".fragment")
    assert found == [*range(14)]


def test_damaged_records_are_left_out_and_reported_to_the_log_and_as_events(
    made: Tier, caplog: pytest.LogCaptureFixture
) -> None:
    for offset in (3, 14, 15):
        damage_record(made, offset)

    with caplog.at_level(logging.WARNING, "offload_spark"):
        assert offsets(made, onDamage="skip") == without((3, 4), (14, 16))

    said = [record.getMessage().partition(" are ")[0] for record in caplog.records]
    assert said == [f"stream 'orders': offsets {span}" for span in ("[3, 4)", "[14, 15)", "[15, 16)")]
    assert [type(event) for event in made.events] == [DamageFound] * 3


@pytest.mark.parametrize("columns", ["offset,value", "offset"])
@pytest.mark.parametrize("number", range(3))
def test_a_fragment_whose_index_is_damaged_is_left_out_whole(made: Tier, columns: str, number: int) -> None:
    damage_index(made, number)
    lost = (RECORDS * number, RECORDS * (number + 1))

    assert offsets(made, columns, onDamage="skip") == without(lost)
    assert spans(ranges(made)) == [lost]
    with pytest.raises(Corrupt, match=rf"offsets \[{lost[0]}, {lost[1]}\) are damaged"):
        offsets(made, columns)


@pytest.mark.parametrize("columns", ["offset,value", "offset"])
def test_an_object_that_is_gone_is_left_out_whole(made: Tier, columns: str) -> None:
    del made.objects[fragment(made, 1)]

    assert offsets(made, columns, onDamage="skip") == without((10, 20))
    (found,) = ranges(made)
    assert spans([found]) == [(10, 20)]
    assert isinstance(found.damage, Absent)


def test_damage_everywhere_leaves_nothing_and_ends(made: Tier) -> None:
    for number in range(3):
        damage_index(made, number)

    assert offsets(made, onDamage="skip") == []
    assert spans(ranges(made)) == [(0, 10), (10, 20), (20, 30)]


def test_damage_of_records_that_are_not_wanted_is_no_error(made: Tier) -> None:
    damage_record(made, 14)

    assert offsets(made, startingOffsets='{"orders": 15}') == [*range(15, 30)]
    assert spans(ranges(made, ScanBounds(first_offset=15))) == []
    assert spans(ranges(made, ScanBounds(first_offset=12, next_offset=17))) == [(14, 15)]
    assert spans(ranges(made, ScanBounds(first_timestamp_ms=BIRTH_MS + 14))) == [(14, 15)]


@pytest.mark.parametrize("tasks", ["1", "7", "30"])
def test_each_range_is_reported_by_one_task_however_many_there_are(made: Tier, tasks: str) -> None:
    for offset in (0, 9, 10, 29):
        damage_record(made, offset)

    assert offsets(made, onDamage="skip", minPartitions=tasks) == without((0, 1), (9, 11), (29, 30))
    assert spans(ranges(made, minPartitions=tasks)) == [(0, 1), (9, 10), (10, 11), (29, 30)]


def test_a_read_of_indexes_alone_does_not_see_damaged_records(made: Tier) -> None:
    """Its counts are those of the indexes: the page says so."""
    damage_record(made, 14)

    assert offsets(made, "offset") == [*range(30)]
    assert offsets(made, "offset", onDamage="skip") == [*range(30)]


@pytest.mark.parametrize(
    ("options", "level"),
    [
        ({"columns": "offset"}, logging.INFO),
        ({"columns": "offset", "onDamage": "skip"}, logging.WARNING),
        ({"columns": "offset,value", "onDamage": "skip"}, None),
    ],
    ids=str,
)
def test_a_read_says_that_it_reads_indexes_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, str], level: int | None
) -> None:
    with Blocking(str(tmp_path)) as opened:
        opened.append("orders", [b"one"])
    source = OffloadDataSource({"path": str(tmp_path), **options})

    with caplog.at_level(logging.INFO, "offload_spark"):
        source.reader(source.schema()).partitions()

    said = [
        (each.levelno, each.getMessage()) for each in caplog.records if each.name == "offload_spark.source"
    ]
    what = (
        "the columns offset come from the indexes alone: no record is read, and damage in records is not seen"
    )
    assert said == ([(level, what)] if level else [])


def test_the_table_of_damage_has_a_row_for_each_range(made: Tier) -> None:
    damage_record(made, 14)
    options = made.read_options(table="damage")

    rows = table_of(ranges(made)).to_pylist()

    assert [(row["stream"], row["part"], row["first_offset"], row["next_offset"]) for row in rows] == [
        ("orders", 1, 14, 15)
    ]
    assert rows[0]["object"].endswith(".fragment")
    assert "checksum" in rows[0]["problem"]
    schema = schema_of(options, PLUGINS)
    assert Columns.of(schema, options, PLUGINS).arrow == TABLE
    wanted = StructType([StructField(name, kind) for name, kind in DAMAGE.items()])
    assert to_arrow_schema(wanted, timezone="UTC") == TABLE
    with pytest.raises(Misuse, match="remove decode"):
        schema_of(made.read_options(table="damage", decode="amqp"), PLUGINS)


@pytest.mark.parametrize(
    ("option", "said"), [({"onDamage": "ignore"}, "fail or skip"), ({"table": "all"}, "records or damage")]
)
def test_other_values_of_the_options_are_refused(made: Tier, option: dict[str, str], said: str) -> None:
    with pytest.raises(Misuse, match=said):
        made.read_options(**option)


def test_an_empty_table_has_the_same_columns() -> None:
    assert table_of([]).schema == TABLE
    assert isinstance(table_of([]), pa.RecordBatch)


def test_spark_counts_without_damage_and_lists_it_as_a_table(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path)
    with Blocking(url) as opened:
        for offset in range(0, 30, 10):
            opened.append("orders", [b"%d........" % n for n in range(offset, offset + 10)])
    damaged = next(each for each in tmp_path.rglob("*.fragment") if b"14........" in each.read_bytes())
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes().replace(b"14........", b"14.......!"))

    def read(**options: str) -> DataFrame:
        return spark.read.format("offload").options(stream="orders", **options).load(url)

    found = read(onDamage="skip").selectExpr("count(value)").first()
    table = read(table="damage").where("next_offset > 5").collect()

    assert found == (20,), "an append is one chunk, which is left out whole"
    assert [(row.stream, row.first_offset, row.next_offset) for row in table] == [("orders", 10, 20)]
    with pytest.raises(Exception, match=r"stream 'orders': offsets \[10, 20\) are damaged"):
        read().collect()
