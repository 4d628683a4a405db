"""Streams of many shapes, and one task of each reader: of Java through Py4J, and of the Python source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from offload_conformance import ledgers
from offload_spark.bounds import ScanBounds
from offload_spark.columns import Columns, decoder_named, schema_of
from offload_spark.java_plans import LONG_MAX, JavaPlanReader
from offload_spark.options import ReadOptions
from offload_spark.planning import PlannedPart, plan
from offload_spark.scan import Scan
from spark.in_process import PLUGINS

from offload import Blocking, Compression, MemoryHandle, StreamWriter, build_chunk
from offload.arrow.batches import BatchMaker
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch
from offload.native.place import TierPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "stream,part,ledger,offset,timestamp,value"
SHAPES = ("simple", "sub_batches", "with_tracking", "clock_goes_back", "before_1970")
ALL = ScanBounds()
HUGE_SIZE_BYTES = 9_000_000
"""More than a window of the Java reader, and more than a bucket's object that is fetched whole."""

Row = tuple[Any, ...]


def write_shapes(url: str, compression: str, **given: Any) -> None:
    """Write a stream of each shape, of sub-batches of each compression, many blocks, and a huge chunk."""
    plan = compressed(compression)
    for name in SHAPES:
        write(url, name, getattr(ledgers, name)().ledgers(3), plan=plan, **given)
    bodies = [b"body %d" % number * number for number in range(40)]
    batches = [SubBatch.of(bodies, codec) for codec in Codec]
    entries = [b"alone", batches[0], b"", *batches[1:], b"last"]
    mixed = build_chunk(entries, offset=0, timestamp_ms=5, epoch=1)
    write(url, "codecs", [MemoryHandle([mixed])], plan=plan, **given)
    # Several blocks, and chunks that stay plain among those that shrink.
    bodies = [[Random(n).randbytes(9000) if n % 5 == 3 else b"the same " * 900] * 2 for n in range(40)]
    chunks = [build_chunk(each, offset=2 * n, timestamp_ms=n, epoch=1) for n, each in enumerate(bodies)]
    write(url, "large", [MemoryHandle(chunks)], plan=plan, **given)
    huge = ledgers.huge_chunk(HUGE_SIZE_BYTES)
    write(url, "huge", huge.ledgers(1), plan=plan, **given)


def compressed(text: str) -> TierPlan:
    return TierPlan(compression=Compression.parse(text))


def write(url: str, stream: str, handles: Sequence[Any], **given: Any) -> None:
    with Blocking(url, **given) as tier:
        tier.run(tier.offloader.open(create=True))
        first = handles[0].first_offset

        async def run() -> None:
            await (await StreamWriter.claim(tier.offloader, stream, first_offset=first)).offload(handles)

        tier.run(run())


def options_of(url: str, **given: str) -> ReadOptions:
    return ReadOptions.of({"path": url, "columns": COLUMNS} | given)


def plan_of(url: str, bounds: ScanBounds, *, limit: int = LONG_MAX, **given: str) -> list[str]:
    """Return the texts of the plan for Java, as Spark would get them."""
    options = options_of(url, **given)
    planner = JavaPlanReader(
        options, Columns.of(schema_of(options, PLUGINS), options, PLUGINS), wanted="parts", limit=limit
    )
    planner._bounds = bounds
    return [partition.value for partition in planner.partitions()]


def by_java(
    spark: SparkSession, url: str, bounds: ScanBounds = ALL, *, limit: int = LONG_MAX, **given: str
) -> list[Row]:
    head, *texts = plan_of(url, bounds, limit=limit, **given)
    assert not json.loads(head)["reason"]
    columns = given.get("columns", COLUMNS)
    return [row for text in texts for row in task_by_java(spark, text, columns, limit=limit)]


def task_by_java(
    spark: SparkSession, text: str, columns: str = COLUMNS, *, limit: int = LONG_MAX
) -> list[Row]:
    """Run one task. Raises Py4J's error, with the text of Java's."""
    jvm: Any = spark.sparkContext._jvm
    package = jvm.ledgeroffload.spark
    types = {"stream": "string", "part": "int", "timestamp": "timestamp"}
    types |= dict.fromkeys(("value", "key", "body"), "binary")
    ddl = ", ".join(f"{name} {types.get(name, 'bigint')}" for name in columns.split(","))
    schema = jvm.org.apache.spark.sql.types.StructType.fromDDL(ddl)
    task, found = (
        package.PartReader(package.TaskPlan.of(text), schema, jvm.java.lang.Long(limit)),
        list[Row](),
    )
    try:
        while task.next():
            batch = task.get()
            found += zip(
                *(_column(batch, index, name) for index, name in enumerate(columns.split(","))), strict=True
            )
    finally:
        task.close()
    return found


def _column(batch: Any, index: int, name: str) -> list[Any]:
    get = {
        "stream": lambda column, row: str(column.getUTF8String(row)),
        "part": lambda column, row: column.getInt(row),
        "value": lambda column, row: column.getBinary(row),
        "body": lambda column, row: column.getBinary(row),
        "key": lambda column, row: None if column.isNullAt(row) else column.getBinary(row),
    }.get(name, lambda column, row: column.getLong(row))
    column = batch.column(index)
    return [get(column, row) for row in range(batch.numRows())]


def by_python(url: str, bounds: ScanBounds = ALL, **given: str) -> list[Row]:
    """Return the rows of the Python source, without Spark."""
    options = options_of(url, **given)
    with options.tier.opened() as tier:
        return task_by_python(tier, options, tier.run(plan(tier.catalogue, options, bounds)))


def task_by_python(
    tier: Blocking, options: ReadOptions, planned: Sequence[Sequence[PlannedPart]]
) -> list[Row]:
    columns = Columns.of(schema_of(options, PLUGINS), options, PLUGINS)
    decoder = decoder_named(options.decode, PLUGINS) if options.decode else None
    maker = BatchMaker(schema=columns.arrow, decoder=decoder, rows_max=1000, size_bytes_max=2**20)
    scan, found = Scan(tier=tier, maker=maker, fail_on_data_loss=True), list[Row]()
    for batch in (batch for parts in planned for batch in scan.batches(parts)):
        arrays = [
            array.cast("int64") if name == "timestamp" else array
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        ]
        found += zip(*(array.to_pylist() for array in arrays), strict=True)
    return found
