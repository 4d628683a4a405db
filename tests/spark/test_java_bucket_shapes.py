"""Over a bucket, the Java reader gives the rows of the Python source and of the plain reader: every shape.

All three are driven without a query of Spark. The plain reader reads each stream whole, and the test itself
picks the rows within the bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from campaign import campaign
from offload_spark.bounds import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN, ScanBounds
from offload_spark.java_plans import texts_of
from offload_spark.planning import PlannedPart, plan
from servers import Place
from servers.session import Session
from spark.java_tasks import COLUMNS, SHAPES, Row, options_of, task_by_java, task_by_python, write_shapes

from offload import Blocking
from offload.model.position import OFFSET_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMS: Final = (*SHAPES, "codecs", "large", "huge")
MILLISECONDS_MAX: Final = (2**63 - 1) // 1000
"""The latest time that a column can hold. Later times become this one, and so do times as far before 1970."""

FORMAT_1 = Path(__file__).parents[1] / "data" / "tiers" / "format-1" / "tier"

pytestmark = campaign(
    "shapes in a bucket within bounds; make test has them in a folder, and whole in a bucket"
)


class Read:
    """A tier that is open, and its rows by three readers."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
        self.spark, self.place = spark, place
        self.tier = Blocking(place.url, storage_options=place.options)

    def planned(self, bounds: ScanBounds, **given: str) -> list[list[PlannedPart]]:
        return self.tier.run(plan(self.tier.catalogue, options_of(self.place.url, **given), bounds))

    def by_java(self, planned: Sequence[Sequence[PlannedPart]], columns: str) -> list[Row]:
        texts = self.tier.run(texts_of(self.tier.catalogue, planned, seconds=600, decoder=""))
        return [row for text in texts for row in task_by_java(self.spark, text, columns)]

    def by_python(self, planned: Sequence[Sequence[PlannedPart]]) -> list[Row]:
        return task_by_python(self.tier, options_of(self.place.url), planned)

    def plainly(self, stream: str) -> list[tuple[int, int, bytes]]:
        """Return offset, milliseconds and value of each record."""
        return [
            (offset, messages.timestamp_ms, body)
            for messages in self.tier.read(stream)
            for offset, body in enumerate(messages.bodies, messages.offset)
        ]


def rows_of(plain: Sequence[tuple[int, int, bytes]]) -> list[Row]:
    """Return the same with the times of a column."""
    return [
        (offset, 1000 * max(-MILLISECONDS_MAX, min(at, MILLISECONDS_MAX)), body) for offset, at, body in plain
    ]


@pytest.fixture(scope="module", params=["none", "zstd", "lz4"])
def shaped(request: pytest.FixtureRequest, spark: SparkSession, running_servers: Session) -> Iterator[Read]:
    """A bucket with a stream of each shape, compressed like this."""
    place = running_servers.running("minio").place()
    write_shapes(place.url, request.param, storage_options=place.options)
    read = Read(spark, place)
    yield read
    read.tier.close()


def check(read: Read, stream: str) -> None:
    """All columns are equal, with and without values, whole and within each combination of bounds."""
    plain = read.plainly(stream)
    whole = read.by_python(planned := read.planned(ScanBounds(), stream=stream))
    assert [row[3:] for row in whole] == rows_of(plain)
    assert read.by_java(planned, COLUMNS) == whole
    assert read.by_java(planned, "key,offset") == [(None, row[3]) for row in whole]

    times = sorted(at for _, at, _ in plain)
    (first, *_), (last, *_) = plain[0], plain[-1]
    for low, high, since, until in product(
        (0, first + 3, last),
        (OFFSET_MAX, last - 1),
        (TIMESTAMP_MS_MIN, times[-3]),
        (TIMESTAMP_MS_MAX, times[2]),
    ):
        bounds = ScanBounds(
            first_offset=low, next_offset=high, first_timestamp_ms=since, last_timestamp_ms=until
        )
        found = read.planned(bounds, stream=stream, minPartitions="2")
        wanted = rows_of([row for row in plain if low <= row[0] < high and since <= row[1] <= until])
        assert [row[3:] for row in read.by_python(found)] == wanted, bounds
        assert read.by_java(found, "offset,timestamp") == [row[:2] for row in wanted], bounds
        assert read.by_java(found, "value") == [row[2:] for row in wanted], bounds


@pytest.mark.parametrize("stream", STREAMS)
def test_every_shape_in_a_bucket_gives_the_same_rows_by_three_readers(shaped: Read, stream: str) -> None:
    check(shaped, stream)


def test_bounds_of_streams_choose_the_same_streams(shaped: Read) -> None:
    bounds = ScanBounds(streams=frozenset({"simple", "codecs", "absent"}), first_offset=5)
    planned = shaped.planned(bounds)
    expected = shaped.by_python(planned)

    assert {row[0] for row in expected} == {"simple", "codecs"}
    assert shaped.by_java(planned, COLUMNS) == expected


def test_fragments_of_release_0_2_in_a_bucket_give_the_same_rows_by_three_readers(
    spark: SparkSession, running_servers: Session
) -> None:
    place = running_servers.running("minio").place()
    for path in FORMAT_1.rglob("*"):
        if path.is_file():
            place.put(str(path.relative_to(FORMAT_1)), path.read_bytes())
    read = Read(spark, place)
    streams = {row[0] for row in read.by_python(read.planned(ScanBounds()))}

    assert streams == {"orders", "tiny"}
    for stream in streams:
        check(read, stream)
    read.tier.close()
