"""The Java reader makes `body` and `key` of `decode=amqp` as the Python decoder does, for any bytes.

`AmqpDecoder` decodes one record after the other here: that is the definition of both columns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import osiris_data
import pytest
from amqp_messages import compound, encoded, records, sized
from campaign import CAMPAIGN
from offload_rabbitmq.amqp import Symbol
from offload_rabbitmq.decoder import AmqpDecoder
from offload_spark.bounds import ScanBounds
from offload_spark.columns import Columns
from offload_spark.java_plans import JavaPlanReader, JavaPlanSource, decoder_of
from spark.amqp_fuzz import Fuzz
from spark.in_process import PLUGINS
from spark.java_tasks import by_java, by_python, plan_of, write

from offload import MemoryHandle, build_chunk
from offload.contracts.plugin import DecoderType
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AMQP = {"decode": "amqp", "columns": "offset,body,key"}
DATA, VALUE, SEQUENCE = b"\0Su", b"\0Sw", b"\0Sv"
ANNOTATIONS, PROPERTIES, APPLICATION = b"\0Sr", b"\0Ss", b"\0St"
ROUTING_KEY = sized(0xA3, b"x-routing-key")


@pytest.fixture
def java(spark: SparkSession) -> Iterator[None]:
    """Let Java read the queries of a test."""
    spark.conf.set("spark.offload.reader", "java")
    yield
    spark.conf.set("spark.offload.reader", "python")


def expected(messages: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
    amqp = AmqpDecoder()
    return [*zip(amqp.bodies(messages), amqp.keys(messages), strict=True)]


def written(folder: Path, messages: Sequence[bytes]) -> str:
    """Write a stream of these records, and return the URL of its tier."""
    url = str(folder / "tier")
    chunks = [
        build_chunk(messages[at : at + 500], offset=at, timestamp_ms=1, epoch=1)
        for at in range(0, len(messages), 500)
    ]
    write(url, "orders", [MemoryHandle(chunks)])
    return url


def frame(spark: SparkSession, url: str, **given: str) -> DataFrame:
    return spark.read.format("offload").options(decode="amqp", **given).load(url)


def assert_equal(spark: SparkSession, folder: Path, messages: Sequence[bytes]) -> None:
    """Compare both columns by a query: it costs less than Py4J for each value."""
    found = frame(spark, written(folder, messages)).select("offset", "body", "key").collect()

    for row, both, message in zip(found, expected(messages), messages, strict=True):
        assert (row.body, row.key) == both, message


@pytest.mark.usefixtures("java")
def test_real_streams_have_the_bodies_and_keys_of_the_python_source(spark: SparkSession, tier: str) -> None:
    rows = frame(spark, tier, includeHeaders="true").select("stream", "offset", "body", "key").collect()
    for stream in osiris_data.STREAMS:
        found = sorted((row.offset, row.body, row.key) for row in rows if row.stream == stream)

        assert [(body, key) for _, body, key in found] == expected(records(stream))
    assert by_java(spark, tier, stream="tiny", **AMQP) == by_python(tier, stream="tiny", **AMQP)


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("seed", range(40 if CAMPAIGN else 1))
def test_messages_of_every_section_and_type_are_decoded_alike(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    fuzz = Fuzz(seed)
    messages = [fuzz.message() for _ in range(3000)]
    short = sorted((each for each in messages if len(each) > 40), key=len)

    # Each byte of a few is changed, and each of their beginnings is a record.
    assert_equal(spark, tmp_path, [*messages, *(bad for each in short[:60:4] for bad in fuzz.damaged(each))])


@pytest.mark.usefixtures("java")
def test_numbers_have_the_digits_that_python_prints(spark: SparkSession, tmp_path: Path) -> None:
    """Powers of two are the hard case: numbers below one are closer to each other than those above it."""
    doubles = [sign * 2.0**power for power in range(-1074, 1024) for sign in (1, -1)]
    doubles += [float(f"{digits}e{power}") for digits in (1, 15, 999) for power in range(-30, 30)]
    singles = [struct.pack(">I", number << 16 | 0x1234) for number in range(0, 2**16, 257)]

    assert_equal(
        spark,
        tmp_path,
        [VALUE + b"\x82" + struct.pack(">d", number) for number in doubles]
        + [VALUE + b"\x72" + number for number in singles],
    )


def nested(levels: int) -> bytes:
    """Return a list in a list, and so on."""
    found = b"\x45"
    for _ in range(levels):
        found = compound(0xD0, [found])
    return found


def with_equal_texts(levels: int) -> bytes:
    """Return a map in a map, and so on. Behind it, each has two keys with the same text."""
    found = b"\x40"
    for _ in range(levels):
        found = compound(0xC1, [encoded("a"), found, encoded("1"), b"\x40", b"\x54\1", b"\x40"])
    return found


LARGE = b"\xff\xff\xff\xff"
DEEP = 10**5

HOSTILE = [
    VALUE + b"\0\xa1\0" * DEEP,
    VALUE + b"\0" * DEEP,
    b"\0" * DEEP,
    *(VALUE + nested(levels) for levels in (30, 31, 32, 33, 34, 3000)),
    VALUE + with_equal_texts(30),
    *(VALUE + b"\0\x40" * levels + b"\x40" for levels in (31, 32, 33)),
    *(VALUE + b"\xf0" + struct.pack(">II", 5 + 2 * n, 1) + b"\0\x40" * n + b"\x40" for n in (31, 32)),
    *(VALUE + code + LARGE + LARGE for code in (b"\xd0", b"\xd1", b"\xf0", b"\xb0", b"\xb1", b"\xb3")),
    *(VALUE + code + b"\0\0\0\x09" + LARGE + b"\x40" * 5 for code in (b"\xd0", b"\xd1", b"\xf0")),
    *(VALUE + b"\xd0\0\0\0" + bytes((size,)) + b"\0\0\0\0" for size in range(6)),
    *(VALUE + b"\xf0\0\0\0" + bytes((size,)) + b"\0\0\0\0" for size in range(6)),
    # As many nulls as the record has bytes are allowed, and one more is not.
    *(VALUE + b"\xf0\0\0\0\5\0\0\0" + bytes((count,)) + b"\x40" for count in (12, 13, 14)),
    # Elements share a descriptor of 300 bytes: JSON repeats it, up to 64 KiB in a small record.
    *(
        VALUE + b"\xf0" + struct.pack(">II", 5 + 306 + count, count) + b"\0" + sized(0xA1, b"d" * 300)
        + b"\x50" + b"\1" * count
        for count in (213, 214, 215)
    ),
    # Values that their type forbids, and beside them some that it allows.
    *(
        VALUE + b"\x73" + struct.pack(">I", code)
        for code in (0x7F, 0xD7FF, 0xD800, 0xDFFF, 0xE000, 0x10FFFF, 0x110000, 0x80000041)
    ),
    *(VALUE + b"\x56" + bytes((code,)) for code in (0, 1, 2, 255)),
    *(
        VALUE + sized(code, text)
        for code in (0xA1, 0xA3)
        for text in (
            b"\xc3\xa9", b"\x7f", b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x9f\x98",
            b"\xf0\x9f\x98\x80" * 700, b"\xf0\x9f\x98\x80" * 700 + b"\xf0",
        )
    ),
    *(
        VALUE + b"\xe0" + bytes((len(head) + 3, 1)) + b"\0" + head + b"\x41"
        for head in (b"\x45", b"\x44", b"\xc0\1\0")
    ),
    VALUE + b"\xe0\6\1\0\0\x41\x41\x41",
    *(VALUE + b"\xe0\2" + bytes((count,)) + b"\xff" for count in (0, 1)),
    # A map of one pair that claims to have a key more, or has it.
    *(VALUE + b"\xc1\4" + bytes((count,)) + b"\x41\x54\1" for count in (1, 2, 3, 4)),
    *(VALUE + b"\xc1\4" + bytes((count,)) + b"\x41\x40\x42" for count in (2, 3)),
    # Beside each other, and not in each other.
    *(VALUE + compound(0xC0, [each] * 40) for each in (b"\xe0\4\1\0\x41\x41", b"\0\x41\x41", b"\xc0\1\0")),
    # Most records are smaller than what their first bytes ask for.
    *(PROPERTIES + head for head in (b"\xd0", b"\xd0\0\0\0\4", b"\xc0\1", b"\xa0", b"")),
    DATA + b"\xb0" + LARGE,
    DATA + b"\xb0\x7f\xff\xff\xff" + b"x",
    DATA + sized(0xA0, b"x") + APPLICATION + b"\xd1\x7f\xff\xff\xf0",
]  # fmt: skip


@pytest.mark.usefixtures("java")
def test_hostile_sizes_and_depths_are_refused_where_python_refuses_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert_equal(spark, tmp_path, HOSTILE)


def annotated(*pairs: bytes) -> bytes:
    return ANNOTATIONS + compound(0xC1, [*pairs]) + DATA + sized(0xA0, b"body")


def with_subject(subject: bytes) -> bytes:
    return PROPERTIES + compound(0xC0, [b"\x40", b"\x40", b"\x40", subject])


SUBJECT = with_subject(encoded("subject"))
ORDERS = encoded("orders")

KEYS = [
    annotated(ROUTING_KEY, ORDERS),
    annotated(sized(0xA1, b"x-routing-key"), ORDERS) + SUBJECT,
    annotated(encoded(1), ORDERS, ROUTING_KEY, encoded("x" * 300)),
    annotated(ROUTING_KEY, b"\x40") + SUBJECT,
    annotated(encoded("x-routing-kex"), ORDERS) + SUBJECT,
    annotated(ROUTING_KEY, encoded(b"\xff")),
    annotated(ROUTING_KEY, encoded({"a": [1, None]})),
    annotated(ROUTING_KEY, encoded(1.5)),
    # The text of two keys is "1", so the annotations are no JSON object, and have no name.
    annotated(encoded("1"), b"\x40", b"\x54\1", b"\x40", ROUTING_KEY, ORDERS) + SUBJECT,
    annotated(encoded("1"), b"\x40", b"\x54\2", b"\x40", ROUTING_KEY, ORDERS) + SUBJECT,
    annotated(encoded("1"), b"\x40", b"\x54\1", b"\x40", ROUTING_KEY, ORDERS),
    annotated(ROUTING_KEY, ORDERS, sized(0xA1, b"x-routing-key"), ORDERS) + SUBJECT,  # equal, so damaged
    annotated(*(part for n in range(17) for part in (encoded(f"k{n}"), ORDERS)), ROUTING_KEY, ORDERS),
    annotated(*(part for n in range(17) for part in (encoded(f"k{n % 16}"), ORDERS))),
    SUBJECT,
    with_subject(b"\x40"),
    with_subject(encoded(Symbol("symbol"))),
    with_subject(encoded(5)),
    PROPERTIES + b"\x45",
    PROPERTIES + compound(0xC0, [ORDERS] * 3),
    # The properties as an array: its elements have one constructor together.
    PROPERTIES + b"\xe0\x0a\4\xa1\1a\1b\1c\1d",
    PROPERTIES + b"\xf0\0\0\0\x0f\0\0\0\4\0\x41\xa1\1a\1b\1c\1d",
    PROPERTIES + b"\xe0\2\4\x40",
    PROPERTIES + b"\xe0\4\4\0\x41\x40",
    PROPERTIES + b"\xe0\x08\3\xa1\1a\1b\1c",
    SUBJECT + APPLICATION + compound(0xC1, [ORDERS, ORDERS, ORDERS]),  # an odd number: damaged
    SUBJECT + VALUE + sized(0xA1, b"\xff"),
    SUBJECT + b"\0",
    SUBJECT + SUBJECT,
    *(PROPERTIES + compound(0xC0, [ORDERS] * fields) for fields in (4, 13, 14)),
    *(b"\0Sp" + compound(0xC0, [b"\x41"] * fields) + SUBJECT for fields in (5, 6)),
    *(kind + encoded([1]) + DATA + sized(0xA0, b"body") for kind in (VALUE, SEQUENCE)),
    *(DATA + sized(0xA0, b"body") + kind + encoded([1]) for kind in (VALUE, SEQUENCE)),
    DATA + sized(0xA0, b"body") + SUBJECT,
    DATA + sized(0xA0, b"one") + SUBJECT + DATA + sized(0xA0, b"two"),
    SEQUENCE + encoded([1]) + SUBJECT + SEQUENCE + encoded(["a", b"b"]),
    SUBJECT + VALUE + encoded(None),
    SUBJECT + VALUE + encoded(b"\xff"),
    SUBJECT + VALUE + encoded("text"),
    b"",
    b"raw",
    b"\0",
]


@pytest.mark.usefixtures("java")
def test_keys_are_found_in_annotations_and_properties_as_python_finds_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    keys = {key for _, key in expected(KEYS)}

    assert keys >= {
        None,
        b"orders",
        b"subject",
        b"symbol",
        b"5",
        b"1.5",
        b"d",
        b'{"descriptor":true,"value":"d"}',
    }
    assert_equal(spark, tmp_path, KEYS)


def test_the_body_of_one_data_section_is_found_beside_damage(spark: SparkSession, tmp_path: Path) -> None:
    """As `data_bodies` promises. The damage empties the key, and with a second section the body, too."""
    damaged = PROPERTIES + b"\xc0\2\1\xff"
    messages = [damaged + DATA + sized(0xA0, b"body"), damaged + 2 * (DATA + sized(0xA0, b"x"))]

    found = by_java(spark, written(tmp_path, messages), **AMQP)

    assert found == [(0, b"body", None), (1, messages[1], None)]


def test_messages_in_sub_batches_and_behind_bounds_are_decoded_alike(
    spark: SparkSession, tmp_path: Path
) -> None:
    bodies = [annotated(ROUTING_KEY, encoded(f"key {number}")) for number in range(20)]
    cut = [DATA + b"\xa0", DATA + b"\xb0", DATA[:2], VALUE + b"\xd0"]  # nothing is behind the last of a batch
    batches = [SubBatch.of([*bodies, each], codec) for each, codec in zip(cut * 2, Codec, strict=False)]
    entries = [bodies[0], *batches, KEYS[5], bodies[1]]
    url = str(tmp_path / "tier")
    chunks = [
        build_chunk(entries, offset=0, timestamp_ms=1, epoch=1),
        build_chunk(bodies, offset=3 + 21 * len(batches), timestamp_ms=2, epoch=1),
    ]  # fmt: skip
    write(url, "orders", [MemoryHandle(chunks)])
    last = by_python(url, **AMQP)[-1][0]

    for bounds in (ScanBounds(), ScanBounds(first_offset=7, next_offset=last - 5)):
        assert by_java(spark, url, bounds, **AMQP) == by_python(url, bounds, **AMQP)


def test_damage_of_a_chunk_is_the_error_of_a_read_of_values(spark: SparkSession, tmp_path: Path) -> None:
    url = written(tmp_path, KEYS)
    (path,) = tmp_path.rglob("*.fragment")
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)

    for column in ("body", "key", "value"):
        with pytest.raises(Exception, match="stored chunk checksum: expected"):
            by_java(spark, url, decode="amqp", columns=column)


def plan_text(found: DataFrame) -> str:
    return str(found._jdf.queryExecution().executedPlan().toString())


@pytest.mark.usefixtures("java")
def test_a_group_by_key_is_read_by_java_and_sections_by_python(spark: SparkSession, tmp_path: Path) -> None:
    url = written(tmp_path, KEYS)
    grouped = frame(spark, url).groupBy("key").count()

    assert "the Java reader" in plan_text(grouped)
    assert "the Java reader" in plan_text(frame(spark, url).where("key is not null").select("body"))
    keys = [key for _, key in expected(KEYS)]
    assert {row.key: row["count"] for row in grouped.collect()} == {key: keys.count(key) for key in keys}
    for column in ("properties", "annotations", "application_properties"):
        assert "(Python)" in plan_text(frame(spark, url).select("body", column))


class OtherDecoderReader(JavaPlanReader):
    """The plans of a machine on which another package declares the decoder `amqp`."""

    def partitions(self) -> Any:
        found = super().partitions()
        for each in found:
            each.value = each.value.replace('"decoder": "amqp-1.0"', '"decoder": "other"')
        return found


class OtherDecoder(JavaPlanSource):
    def reader(self, schema: Any) -> Any:
        options = self._options()
        return OtherDecoderReader(options, Columns.of(schema, options, PLUGINS), wanted="parts")


@pytest.mark.usefixtures("java")
def test_a_decoder_of_another_package_stays_with_python(spark: SparkSession, tmp_path: Path) -> None:
    url = written(tmp_path, KEYS)
    spark.dataSource.register(OtherDecoder)
    try:
        assert "(Python)" in plan_text(frame(spark, url).select("body"))
        assert "(Python)" in plan_text(frame(spark, url).select("key"))
        assert "the Java reader" in plan_text(frame(spark, url).select("value"))
    finally:
        spark.dataSource.register(JavaPlanSource)
    assert "(Python)" in plan_text(
        spark.read.format("offload").option("decode", "pulsar").load(url).select("body")
    )


def test_the_plan_has_the_format_that_the_decoder_declares(tmp_path: Path) -> None:
    class Others:
        """Decoders of another package: one that declares the format, and one of a name that ours has."""

        def by_name(self, kind: str, name: str) -> DecoderType:
            java = "amqp-1.0" if name == "qpid" else ""
            return DecoderType(name=name, target="elsewhere:AmqpDecoder", java=java)

    others: Any = Others()
    assert decoder_of("amqp", PLUGINS) == decoder_of("qpid", others) == "amqp-1.0"
    assert decoder_of("pulsar", PLUGINS) == decoder_of("amqp", others) == "other"
    assert decoder_of("", PLUGINS) == ""
    head, text = plan_of(written(tmp_path, KEYS), ScanBounds(), **AMQP)
    assert '"decoder": "amqp-1.0"' in head
    assert '"decoder": "amqp-1.0"' in text


def test_a_key_without_a_decoder_is_null(spark: SparkSession, tmp_path: Path) -> None:
    assert by_java(spark, written(tmp_path, KEYS[:1]), columns="key") == [(None,)]
