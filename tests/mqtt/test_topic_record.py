"""Tests of records of messages with topics, and of the decoder `mqtt`."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_mqtt.decoder import MqttDecoder
from offload_mqtt.topic_record import columns_of, encode_record

from offload.contracts.decoder import Decoder
from offload.ground.errors import Misuse
from offload.model.record_columns import ByteColumn, RecordBytes

PARTS = st.tuples(
    st.integers(0, 2),
    st.integers(0, 15),
    st.integers(0, 2**64 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=40),
    st.binary(max_size=40),
)


@given(st.lists(PARTS, max_size=8))
def test_columns_have_what_records_were_made_of(parts: list[tuple[int, int, int, int, bytes, bytes]]) -> None:
    found = columns_of(RecordBytes.of([encode_record(*each) for each in parts]))

    columns = (found.kinds, found.flags, found.origins, found.times_us)
    rows = zip(*(each.tolist() for each in columns), found.topics, found.rests.to_list(), strict=True)
    assert [*rows] == parts


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_no_bytes_make_it_fail_and_none_get_lost(records: list[bytes]) -> None:
    """The judge reads one record at a time, by struct."""
    found = columns_of(RecordBytes.of(records))
    decoded = MqttDecoder().decode(records)

    for row, record in enumerate(records):
        kind, size = struct.unpack(">BxH", record[:4]) if len(record) >= 20 else (9, 0)
        is_sound = kind <= 2 and len(record) >= 20 + size
        expected = (record[20 : 20 + size], record[20 + size :]) if is_sound else (b"", record)
        assert (found.topics[row], found.rests.at(row)) == expected
        assert decoded[row].value == expected[1]


def test_the_bytes_of_a_record_stay_as_they_are() -> None:
    record = encode_record(2, 5, 6, 1_700_000_000_000_000, b"a/b", b"payload")

    assert record.hex() == "0205000300000000000000060006" + "0a24181e4000" + b"a/bpayload".hex()


def test_the_decoder_gives_topic_time_and_flags() -> None:
    record = encode_record(2, 1 | 4, 7, 1_700_000_000_000_999, b"a/\xff", b"x")

    (decoded,) = MqttDecoder().decode([record])
    other = MqttDecoder().timestamps(RecordBytes.of([record, b"short"]))

    assert decoded.value == b"x"
    assert decoded.sections == {
        "topic": "a/\\xff",
        "origin": 7,
        "time_us": 1_700_000_000_000_999,
        "qos": 1,
        "retain": True,
        "dup": False,
    }
    assert np.array_equal(other, [1_700_000_000_000, -1])
    assert MqttDecoder().keys([record, b"short"]) == [b"a/\xff", None]


def test_a_topic_that_mqtt_cannot_have_is_refused() -> None:
    with pytest.raises(Misuse, match="65536 bytes"):
        encode_record(2, 0, 0, 0, b"x" * 65_536, b"")


@given(
    st.lists(st.one_of(PARTS.map(lambda parts: encode_record(*parts)), st.binary(max_size=40)), max_size=8)
)
def test_columns_have_what_the_methods_return(records: list[bytes]) -> None:
    names = ["topic", "key", "body"]
    found = MqttDecoder().columns(RecordBytes.of(records), names)
    expected = Decoder.columns(MqttDecoder(), RecordBytes.of(records), names)

    for name in names:
        one, other = found[name], expected[name]
        assert isinstance(one, ByteColumn)
        assert isinstance(other, ByteColumn)
        assert one.to_list() == other.to_list()
