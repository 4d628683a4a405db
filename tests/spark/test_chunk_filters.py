"""The option `filter`: chunks that cannot have a wanted filter value are left out, and no other."""

from __future__ import annotations

import pytest
from offload_spark.columns import Columns, schema_of
from offload_spark.java_plans import COUNT, JavaPlanReader, reason_of_place
from spark.in_process import PLUGINS, Tier, tier

from offload import MemoryHandle, build_chunk
from offload.ground.errors import Corrupt, Misuse

RECORDS = 4
"""The records of a chunk."""

VALUES = [b"red", b"green", None, b"red", b"blue", b"green", b"red", b"blue"]
"""The filter value of each chunk."""


@pytest.fixture
def made():
    with tier() as opened:
        chunks = [
            build_chunk(
                [b"%d-%d........" % (number, n) for n in range(RECORDS)],
                offset=RECORDS * number,
                timestamp_ms=number,
                epoch=1,
                filter_values=[value] * RECORDS,
            )
            for number, value in enumerate(VALUES)
        ]
        opened.write("orders", [MemoryHandle(chunks)])
        yield opened


def chunks_of(made: Tier, *, columns: str = "offset,value", **options: str) -> list[int]:
    """Return the numbers of the chunks that are read whole."""
    offsets = [
        offset
        for parts in made.plan(**options)
        for batch in made.read(parts, columns=columns, **options)
        for offset in batch.column("offset").to_pylist()
    ]
    found = offsets[::RECORDS]
    assert offsets == [first + n for first in found for n in range(RECORDS)]
    return [first // RECORDS for first in found]


@pytest.mark.parametrize("columns", ["offset,value", "offset"])
@pytest.mark.parametrize("partition", ["1", "1000000"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"filter": "red"}, [0, 3, 6]),
        ({"filter": '["red", "blue"]'}, [0, 3, 4, 6, 7]),
        ({"filter": "red", "matchUnfiltered": "true"}, [0, 2, 3, 6]),
        ({"filter": "none"}, []),
    ],
)
def test_exactly_the_chunks_with_a_value_are_read(
    made: Tier, options: dict[str, str], expected: list[int], partition: str, columns: str
) -> None:
    assert chunks_of(made, columns=columns, maxPartitionBytes=partition, **options) == expected


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_damage_in_a_chunk_is_not_taken_for_damage_in_one_that_was_skipped(made: Tier, number: int) -> None:
    [key] = made.data
    made.flip(key, made.objects[key].index(b"%d-2........" % number))

    red = [each for each, value in enumerate(VALUES) if value == b"red" and each != number]
    assert chunks_of(made, filter="red", onDamage="skip") == red
    assert len(made.events) == 1
    with pytest.raises(Corrupt) as raised:
        chunks_of(made, filter="red")

    assert f"offsets [{RECORDS * number}, {RECORDS * (number + 1)})" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"matchUnfiltered": "true"}, "matchUnfiltered needs filter"),
        ({"filter": "[]"}, "the option filter takes a value, or a JSON list"),
        ({"filter": '["a", ""]'}, "the option filter takes a value, or a JSON list"),
        ({"filter": "[1]"}, "the option filter takes a value, or a JSON list"),
        ({"filter": "[broken"}, "the option filter takes a value, or a JSON list"),
    ],
)
def test_wrong_values_are_refused(made: Tier, options: dict[str, str], text: str) -> None:
    with pytest.raises(Misuse) as raised:
        made.read_options(**options)

    assert text in str(raised.value)


def test_java_neither_reads_nor_counts_with_a_filter(made: Tier) -> None:
    """It does not know filters. An older jar that asks for a count must not get that of all records."""
    options = made.read_options(filter="red")
    columns = Columns.of(schema_of(options, PLUGINS), options, PLUGINS)
    reader = JavaPlanReader(options, columns, wanted=COUNT)
    reader._open = lambda: made.blocking  # type: ignore[method-assign]

    with pytest.raises(Misuse, match="cannot count"):
        reader.partitions()
    assert reason_of_place(made.blocking, options) == "the option filter is given"
