"""The Java reader gives the rows and the errors of the Python source, and says when it reads.

Most tests drive its task through Py4J, in the JVM of the session and without a query of Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Self

import lz4.frame
import pytest
from campaign import campaign, few
from offload_conformance import ledgers
from offload_spark import session
from offload_spark.bounds import ScanBounds
from offload_spark.columns import Columns
from offload_spark.java_plans import LONG_MAX, PLAN_VERSION, JavaPlanReader, JavaPlanSource
from offload_spark.planning import plan
from pyspark.sql.functions import expr
from spark.in_process import PLUGINS
from spark.java_tasks import (
    ALL,
    COLUMNS,
    SHAPES,
    Row,
    by_java,
    by_python,
    compressed,
    options_of,
    plan_of,
    task_by_java,
    task_by_python,
    write,
    write_shapes,
)

from offload import Blocking, MemoryHandle, build_chunk
from offload.formats.checksums import crc32c
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch, encode_entries
from offload.formats.fragment import FragmentTail
from offload.ground.errors import Corrupt, Misuse
from offload.native.place import TierPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READER = "spark.offload.reader"
LEFT = "cases of the Java reader: make test has one of three, of every stream, compression and codec"


@pytest.fixture
def reader(spark: SparkSession) -> Iterator[Any]:
    """Return a function that chooses the reader. After the test it is the Python source again."""
    yield lambda name: spark.conf.set(READER, name)
    spark.conf.set(READER, "python")


@pytest.fixture(scope="module", params=["none", "zstd", "lz4"])
def shapes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a stream of each shape, and one with a sub-batch of each compression."""
    url = str(tmp_path_factory.mktemp("shapes"))
    write_shapes(url, request.param)
    return url


@few(LEFT, 3, start=1)
@pytest.mark.parametrize("stream", [*SHAPES, "codecs", "large", "huge"])
def test_every_shape_gives_the_rows_of_the_python_source(
    spark: SparkSession, shapes: str, stream: str
) -> None:
    expected = by_python(shapes, stream=stream)

    assert expected
    assert by_java(spark, shapes, stream=stream) == expected
    assert by_java(spark, shapes, stream=stream, columns="key,offset") == [(None, row[3]) for row in expected]
    assert by_java(spark, shapes, stream=stream, columns="offset,timestamp") == [row[3:5] for row in expected]


def test_a_tier_of_release_0_2_gives_the_rows_of_the_python_source(spark: SparkSession) -> None:
    url = str(Path(__file__).parents[1] / "data" / "tiers" / "format-1" / "tier")
    expected = by_python(url)

    assert expected
    assert by_java(spark, url) == expected


@few(LEFT, 3)
@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize("sized", [True, False])
def test_frames_of_lz4_of_every_kind_are_read(
    spark: SparkSession, tmp_path: Path, linked: bool, sums: bool, sized: bool
) -> None:
    """Blocks that depend on each other too, which Java's own library refuses; more than one of them."""
    bodies = [bytes(number % 251 for number in range(at, at + 3000)) for at in range(0, 90_000, 1000)]
    bodies.append(Random(1).randbytes(70_000))
    plain = encode_entries(bodies)
    payload = lz4.frame.compress(
        plain, block_linked=linked, content_checksum=sums, block_checksum=sums, store_size=sized,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
    )  # fmt: skip
    batch = SubBatch(
        codec=Codec.LZ4, records=len(bodies), uncompressed_size_bytes=len(plain), payload=payload
    )
    url = str(tmp_path / "tier")
    write(url, "orders", [MemoryHandle([build_chunk([batch], offset=0, timestamp_ms=1, epoch=1)])])

    assert [row[0] for row in by_java(spark, url, columns="value")] == bodies


@few(LEFT, 3, start=2)
@pytest.mark.parametrize("stream", ["sub_batches", "with_tracking", "codecs", "large"])
def test_bounds_cut_the_same_rows(spark: SparkSession, shapes: str, stream: str) -> None:
    last = by_python(shapes, stream=stream)[-1][3]
    for bounds in (
        ScanBounds(first_offset=3, next_offset=last - 2),
        ScanBounds(first_offset=last, next_offset=last + 1),
        ScanBounds(first_timestamp_ms=ledgers.BIRTH_MS + 10),
    ):
        expected = by_python(shapes, bounds, stream=stream, minPartitions="3")
        for columns, first in ((COLUMNS, 0), ("offset,timestamp", 3)):
            found = by_java(spark, shapes, bounds, stream=stream, minPartitions="3", columns=columns)
            assert found == [row[first : 5 if first else 6] for row in expected]


@few(LEFT, 3)
@pytest.mark.parametrize("stream", [*SHAPES, "codecs", "large"])
def test_a_limit_gives_the_first_rows_and_leaves_out_what_follows(
    spark: SparkSession, shapes: str, stream: str
) -> None:
    """Partitions behind enough rows are not planned, and each task ends when it has enough."""
    whole = plan_of(shapes, ALL, stream=stream, minPartitions="3")[1:]
    rows = {
        columns: [task_by_java(spark, text, columns) for text in whole]
        for columns in ("key,offset", "offset,timestamp")
    }
    count = sum(map(len, rows["key,offset"]))
    for limit in (1, 2, count // 2, count - 1, count, count + 1):
        texts = plan_of(shapes, ALL, limit=limit, stream=stream, minPartitions="3")[1:]
        assert texts == whole[: len(texts)]
        assert sum(map(len, rows["key,offset"][: len(texts)])) >= min(limit, count)
        for columns, all_of in rows.items():
            for text, expected in zip(texts, all_of, strict=False):
                found = task_by_java(spark, text, columns, limit=limit)
                assert found == expected[: len(found)]
                assert len(found) >= min(limit, len(expected))
    assert (
        len(plan_of(shapes, ALL, limit=1, stream=stream, minPartitions="3")) == 2 or stream == "with_tracking"
    )


def test_a_limit_leaves_out_partitions_only_if_those_before_have_enough_rows(tmp_path: Path) -> None:
    url = str(tmp_path / "tier")
    chunks = [build_chunk([b"body"] * 10, offset=10 * n, timestamp_ms=n, epoch=1) for n in range(3)]
    write(url, "orders", [MemoryHandle(chunks)])

    def count(limit: int, bounds: ScanBounds = ALL) -> int:
        return len(plan_of(url, bounds, limit=limit, minPartitions="3")[1:])

    assert [count(limit) for limit in (1, 10, 11, 20, 21, 31)] == [1, 1, 2, 2, 3, 3]
    assert [count(limit, ScanBounds(first_offset=5)) for limit in (5, 6)] == [1, 2]
    assert count(1, ScanBounds(first_timestamp_ms=1)) == 3  # a manifest does not say whose chunks those are


def test_a_limit_counts_only_rows_within_the_bounds(spark: SparkSession, tmp_path: Path) -> None:
    url, bounds = str(tmp_path / "tier"), ScanBounds(first_offset=8, next_offset=23)
    chunks = [build_chunk([b"body"] * 10, offset=10 * n, timestamp_ms=n, epoch=1) for n in range(3)]
    write(url, "orders", [MemoryHandle(chunks)])

    for columns in ("offset", "offset,value"):
        for limit, found in ((1, 2), (2, 2), (3, 12), (12, 12), (13, 15), (16, 15)):
            rows = by_java(spark, url, bounds, limit=limit, columns=columns)
            assert [row[0] for row in rows] == [*range(8, 8 + found)]


class Damaged:
    """A stream of one fragment, whose bytes can be changed."""

    def __init__(
        self, folder: Path, spark: SparkSession, chunks: Sequence[bytes], compression: str = "none"
    ) -> None:
        self.url, self.spark = str(folder / "tier"), spark
        write(self.url, "orders", [MemoryHandle([*chunks])], plan=compressed(compression))
        (self.path,) = (folder / "tier").rglob("*.fragment")
        self.sound = self.path.read_bytes()
        (self.text,) = plan_of(self.url, ALL)[1:]
        self.options = options_of(self.url)
        self.tier = Blocking(self.url)
        self.planned = self.tier.run(plan(self.tier.catalogue, self.options, ALL))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tier.close()

    def same(self, data: bytes) -> str:
        """Return where both readers find the damage, and which; an empty text if they find none."""
        self.path.write_bytes(data)
        try:
            expected = task_by_python(self.tier, self.options, self.planned)
            error = ""
        except Corrupt as damage:
            error = str(damage).partition(": expected ")[0]
        try:
            assert task_by_java(self.spark, self.text) == expected
            assert not error
        except Exception as failure:
            if not error:
                raise
            said = str(getattr(failure, "java_exception", failure))
            assert f"Damage: {error}: expected " in said, (error, said)
        return error

    @property
    def tail_start(self) -> int:
        return int.from_bytes(self.sound[-28:-20], "big")

    def resealed(self, at: int, value: bytes) -> bytes:
        """Return the fragment with other bytes in its trailer, whose checksum is right."""
        trailer = bytearray(self.sound[-180:])
        trailer[at : at + len(value)] = value
        return self.sound[:-180] + bytes(trailer[:-4]) + crc32c(trailer[:-4]).to_bytes(4, "big")


@pytest.fixture
def damaged(spark: SparkSession, tmp_path: Path) -> Iterator[Damaged]:
    chunks = [build_chunk([b"one", b"two"], offset=2 * n, timestamp_ms=n, epoch=1) for n in range(3)]
    with Damaged(tmp_path, spark, chunks) as made:
        yield made


def test_a_flipped_bit_is_reported_as_the_python_source_reports_it(damaged: Damaged) -> None:
    """In each byte of the second chunk and each third of the tail: one bit, another from byte to byte."""
    size = (damaged.tail_start - 16) // 3
    places = [*range(16 + size, 16 + 2 * size), *range(damaged.tail_start, len(damaged.sound), 3)]
    found = set[str]()
    for at in places:
        data = bytearray(damaged.sound)
        data[at] ^= 1 << at % 8
        found.add(damaged.same(bytes(data)).rpartition(": ")[2])
    assert found >= {"stored chunk checksum", "chunk offset", "tail checksum", "trailer checksum"}


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_damage_of_blocks_is_reported_as_the_python_source_reports_it(
    spark: SparkSession, tmp_path: Path, compression: str
) -> None:
    """Of two blocks and of a chunk that stays plain; in the tail too, whose sections are compressed."""
    bodies = [b"one " * 9000, b"two " * 9000, Random(1).randbytes(500), b"three " * 9000]
    chunks = [build_chunk([each], offset=n, timestamp_ms=n, epoch=1) for n, each in enumerate(bodies)]
    with Damaged(tmp_path, spark, chunks, compression) as damaged:
        found = set[str]()
        for at in [*range(16, damaged.tail_start, 37), *range(damaged.tail_start, len(damaged.sound), 29)]:
            data = bytearray(damaged.sound)
            data[at] ^= 1 << at % 8
            found.add(damaged.same(bytes(data)).rpartition(": ")[2])
        assert found >= {"checksum of a block", "tail checksum", "trailer checksum"}


def test_a_chunk_that_is_damaged_before_its_compression_is_located_at_its_block(
    spark: SparkSession, tmp_path: Path
) -> None:
    """All checksums of stored bytes are right, as if the writer's memory had failed."""
    chunk = build_chunk([b"one " * 9000], offset=0, timestamp_ms=1, epoch=1)
    with Damaged(tmp_path, spark, [chunk], "lz4") as damaged:
        data, start = bytearray(damaged.sound), damaged.tail_start
        tail = FragmentTail.decode(bytes(data[start:]), where="", size_bytes=len(data))
        blocks = tail.sections["blocks"]
        assert (tail.trailer.codec, blocks.codec, blocks.size_bytes) == (2, 0, 16)
        data[18 + 20] ^= 1  # in the block, where the header of the chunk comes from
        directory = len(data) - 180 - 48 * len(tail.sections)
        for at, sealed in (
            (blocks.position + 12, slice(16, start)),
            (directory + 48 * blocks.number + 44, slice(blocks.position, blocks.stop)),
            (len(data) - 8, slice(start, -180)),
            (len(data) - 4, slice(-180, -4)),
        ):
            data[at : at + 4] = crc32c(data[sealed]).to_bytes(4, "big")

        assert damaged.same(bytes(data)).endswith("at byte 16: chunk size_bytes")


@few(LEFT, 3)
@pytest.mark.parametrize(
    ("at", "size"),
    [(7, 1), (8, 32), (40, 16), (56, 16), *((at, 8) for at in range(72, 160, 8)), (160, 4), (164, 4)],
)
def test_a_wrong_trailer_with_a_right_checksum_is_reported_the_same(
    damaged: Damaged, at: int, size: int
) -> None:
    for value in (bytes(size), b"\xff" * size, (1).to_bytes(size, "big"), (2**7).to_bytes(size, "big")):
        if at in (80, 88):  # epoch and base version: of no use to a reader
            assert not damaged.same(damaged.resealed(at, value))
        elif value != damaged.sound[-180 + at :][:size]:
            assert damaged.same(damaged.resealed(at, value))


def test_a_cut_object_is_reported(damaged: Damaged) -> None:
    for size in (0, 16, len(damaged.sound) - 1):
        damaged.path.write_bytes(damaged.sound[:size])
        with pytest.raises(Exception, match=r"offsets \[0, 6\) are damaged: .* at byte 0: object size: "):
            task_by_java(damaged.spark, damaged.text)


def test_records_before_the_damage_are_delivered_first(damaged: Damaged) -> None:
    data = bytearray(damaged.sound)
    data[damaged.tail_start - 1] ^= 1
    damaged.path.write_bytes(data)
    jvm: Any = damaged.spark.sparkContext._jvm
    schema = jvm.org.apache.spark.sql.types.StructType.fromDDL("offset bigint, value binary")
    package = jvm.ledgeroffload.spark
    task = package.PartReader(package.TaskPlan.of(damaged.text), schema, jvm.java.lang.Long(LONG_MAX))

    assert task.next()
    assert task.get().numRows() == 4
    with pytest.raises(Exception, match="stored chunk checksum"):
        task.next()
    task.close()


BATCH = SubBatch.of([b"one", b"two"], Codec.NONE)


@few(LEFT, 3)
@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (replace(BATCH, uncompressed_size_bytes=13), "sub-batch size"),
        (replace(BATCH, uncompressed_size_bytes=15), "sub-batch size"),
        (replace(BATCH, uncompressed_size_bytes=2**32 - 1), "sub-batch size"),
        (replace(BATCH, records=3), "entries of a sub-batch"),
        (replace(BATCH, payload=BATCH.payload[:-1]), "sub-batch size"),
        *(
            (replace(SubBatch.of([b"a" * 99], codec), payload=b"no stream"), "stream")
            for codec in list(Codec)[1:]
        ),
        *(
            (replace(made, payload=made.payload + b"more"), "stream of a sub-batch")
            for made in (SubBatch.of([b"a" * 99], codec) for codec in list(Codec)[1:])
        ),
        *(
            (replace(made, payload=made.payload[:-1]), "stream of a sub-batch")
            for made in (SubBatch.of([b"a" * 99], codec) for codec in list(Codec)[1:])
        ),
        *(
            (replace(made, uncompressed_size_bytes=10), "sub-batch size")
            for made in (SubBatch.of([b"a" * 10_000_000], codec) for codec in list(Codec)[1:])
        ),
    ],
    ids=str,
)
def test_a_wrong_sub_batch_is_reported_the_same(
    spark: SparkSession, tmp_path: Path, entry: SubBatch, said: str
) -> None:
    chunk = build_chunk([b"before", entry], offset=0, timestamp_ms=1, epoch=1)

    with Damaged(tmp_path, spark, [chunk]) as stream:
        assert said in stream.same(stream.sound)


class TestQueries:
    """The rule in Spark's optimizer: which reader runs, and that both give the same."""

    def both(self, spark: SparkSession, reader: Any, make: Any) -> list[Row]:
        found = []
        for name in ("java", "python"):
            reader(name)
            found.append(sorted(map(tuple, make().collect()), key=repr))
        assert found[0] == found[1]
        return found[0]

    def frame(self, spark: SparkSession, url: str, **given: str) -> DataFrame:
        return spark.read.format("offload").options(**given).load(url)

    def plan(self, frame: DataFrame) -> str:
        return str(frame._jdf.queryExecution().executedPlan().toString())

    @campaign("whole real streams by both readers; make test has their filters, counts and limits by both")
    def test_real_streams_give_the_same_rows(self, spark: SparkSession, reader: Any, tier: str) -> None:
        sums = "sum(xxhash64(part, ledger, offset, timestamp, key, value) % 1000003)"
        rows = self.both(
            spark, reader, lambda: self.frame(spark, tier).groupBy("stream").agg(expr("count(*)"), expr(sums))
        )

        assert sum(row[1] for row in rows) > 30_000

    def test_filters_give_the_same_rows(self, spark: SparkSession, reader: Any, tier: str) -> None:
        where = (
            "stream = 'batches' and offset between 100 and 205 and offset != 150 or "
            "stream in ('tiny', 'filtered') and timestamp >= '2000-01-01' and offset < 7"
        )
        rows = self.both(
            spark, reader, lambda: self.frame(spark, tier).where(where).select("stream", "value")
        )
        assert rows

    def test_a_count_reads_no_record(self, spark: SparkSession, reader: Any, tier: str) -> None:
        reader("java")
        frame = self.frame(spark, tier, startingOffsets='{"batches": 105}').groupBy().count()

        assert "BatchScan" not in self.plan(frame)
        assert self.both(spark, reader, lambda: frame.select("count"))[0][0] > 0
        narrow = self.frame(spark, tier, stream="batches").where("offset < 105").groupBy().count()
        assert self.both(spark, reader, lambda: narrow)[0][0] > 0

    def test_a_limit_is_pushed_only_if_the_first_rows_are_enough(
        self, spark: SparkSession, reader: Any, tier: str
    ) -> None:
        reader("java")
        frame = self.frame(spark, tier, stream="batches", minPartitions="4").select("offset", "value")
        everything = [row[0] for row in frame.collect()]
        pushed = frame.limit(7), frame.offset(3).limit(4), frame.limit(7).groupBy().count()
        kept = frame.where("offset >= 100").limit(7), frame.orderBy("offset", ascending=False).limit(3)

        assert all("the Java reader, limit 7" in self.plan(each) for each in pushed)
        assert [row[0] for row in pushed[0].collect()] == everything[:7]
        assert [row[0] for row in pushed[1].collect()] == everything[3:7]
        assert pushed[2].collect()[0][0] == 7
        assert not any("the Java reader, limit" in self.plan(each) for each in kept)
        assert len(kept[0].collect()) == 7
        assert [row[0] for row in kept[1].collect()] == everything[:-4:-1]
        off = self.frame(spark, tier, stream="batches", pushdown="false").limit(7)
        assert "the Java reader, limit" not in self.plan(off)
        assert len(off.collect()) == 7

    def test_explain_shows_the_reader(self, spark: SparkSession, reader: Any, tier: str) -> None:
        reader("java")
        frame = self.frame(spark, tier, decode="amqp")

        assert "the Java reader" in self.plan(frame.select("offset", "value"))
        assert "the Java reader" in self.plan(frame.select("body"))
        assert "(Python): a decoder makes the column properties" in self.plan(frame.select("properties"))
        reader("python")
        assert "(Python)" in self.plan(self.frame(spark, tier).select("offset"))

    def test_what_java_cannot_read_the_python_source_reads(
        self, spark: SparkSession, reader: Any, tmp_path: Path
    ) -> None:
        url = str(tmp_path / "tier")
        chunk = build_chunk([b"body"] * 100, offset=0, timestamp_ms=1, epoch=1)
        write(url, "orders", [MemoryHandle([chunk])], plan=TierPlan(hashed_keys=True))
        reader("java")

        frame = self.frame(spark, url).where("offset >= 98").select("offset")
        assert "(Python): the tier has hashed keys or a commit store" in self.plan(frame)
        assert [row[0] for row in frame.collect()] == [98, 99]

    def test_what_is_about_damage_the_python_source_reads(
        self, spark: SparkSession, reader: Any, tier: str
    ) -> None:
        reader("java")
        skipping = self.frame(spark, tier, stream="batches", onDamage="skip")
        damage = self.frame(spark, tier, stream="batches", table="damage")

        assert "(Python)" in self.plan(skipping.select("value"))
        assert "(Python)" in self.plan(skipping.groupBy().count())
        assert damage.count() == 0  # not the number of records

    def test_a_read_with_a_filter_of_chunks_the_python_source_does(
        self, spark: SparkSession, reader: Any, tier: str
    ) -> None:
        reader("java")
        filtered = self.frame(spark, tier, stream="batches", filter="a value that no message has")

        assert "(Python)" in self.plan(filtered.select("value"))
        assert filtered.count() == 0  # not the number of records

    @pytest.mark.parametrize("column", ["value", "properties"])
    def test_a_time_that_python_cannot_hold_is_not_pushed(
        self, spark: SparkSession, reader: Any, tier: str, column: str
    ) -> None:
        reader("java")
        frame = self.frame(spark, tier, stream="tiny", decode="amqp").where("offset < 7").select(column)
        late, early = (f"timestamp'{year}-01-01'" for year in ("+10000", "-0001"))

        for where in (f"timestamp < {late}", f"timestamp > {early}", f"timestamp not in ({early}, {late})"):
            assert len(frame.where(where).collect()) == 7

    def test_a_frame_keeps_its_plan_until_it_is_loaded_again(
        self, spark: SparkSession, reader: Any, tmp_path: Path
    ) -> None:
        url = str(tmp_path / "tier")
        with Blocking(url) as made:
            made.append("orders", [b"one"])
        reader("java")
        frame = self.frame(spark, url)
        assert len(frame.collect()) == 1
        with Blocking(url) as made:
            made.append("orders", [b"two"])
        assert len(frame.collect()) == 1

        for path in (tmp_path / "tier").rglob("*.fragment"):
            path.rename(path.with_suffix(".moved"))
        reader("python")  # does not help: the reader is a part of the plan
        with pytest.raises(Exception, match=r"it was lost\. A frame keeps its plan: load it again, if need"):
            frame.collect()

        for path in (tmp_path / "tier").rglob("*.moved"):
            path.rename(path.with_suffix(".fragment"))
        assert len(self.frame(spark, url).collect()) == 2

    def test_a_count_of_encrypted_records_only_refuses_plain_ones(
        self, spark: SparkSession, reader: Any, tier: str, tmp_path: Path
    ) -> None:
        (tmp_path / "keys").mkdir(mode=0o700)
        reader("java")
        strict = {"encryptedOnly": "true", "keys": f"keyfile:{tmp_path / 'keys'}"}
        frame = self.frame(spark, tier, stream="tiny", **strict)

        assert "(Python)" in self.plan(frame.groupBy().count())
        with pytest.raises(Exception, match="expected encrypted, found in the clear"):
            frame.count()

    def test_another_reader_is_refused(self, spark: SparkSession, reader: Any, tier: str) -> None:
        reader("perl")

        with pytest.raises(Exception, match=r"spark\.offload\.reader is java or python, not perl"):
            self.frame(spark, tier).collect()


def test_a_running_session_without_the_reader_is_an_error(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["offload_spark.session"], "EXTENSION", "another.Extension")

    with pytest.raises(Misuse, match="a session without the Java reader runs already"):
        session(java=True)


class OtherReader(JavaPlanReader):
    """The plans of another release."""

    version = 99


class OtherPlans(JavaPlanSource):
    def reader(self, schema: Any) -> Any:
        options = self._options()
        return OtherReader(options, Columns.of(schema, options, PLUGINS), wanted="parts")


def test_plans_of_another_version_are_refused_with_both_versions(
    spark: SparkSession, reader: Any, tier: str
) -> None:
    spark.dataSource.register(OtherPlans)
    try:
        reader("java")
        with pytest.raises(
            Exception,
            match=rf"plans of version {PLAN_VERSION}, and ledger-offload .* makes plans of version 99",
        ):
            spark.read.format("offload").load(tier).collect()
    finally:
        spark.dataSource.register(JavaPlanSource)
