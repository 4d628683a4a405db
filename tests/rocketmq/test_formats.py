"""Tests of RocketMQ's formats: a worked example, a real broker's answers, and damage."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_rocketmq.record import (
    BLANK_HEAD,
    BLANK_MAGIC,
    BODY_CRC_MASK,
    RecordColumns,
    SysFlag,
    host_text,
    parse_properties,
    property_crc_agrees,
    store_times,
)
from offload_rocketmq.units import BLANK_UNIT_SIZE_BYTES, UNIT, tag_code, units_of, written
from rocketmq_sets import DATA, NAMES, messages, records

from offload.formats.checksums import crc32
from offload.model.record_columns import RecordBytes

WORKED = bytes.fromhex(
    "00000084 daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000001000 00000000"
    "0000018bcfe56800 0a000001 0000d431 0000018bcfe5687b 0a000002 00002a9f 00000000 0000000000000000"
    "00000005 68656c6c6f 06 546f70696341 001e"
    "4b455953016b3102 554e49515f4b4559015531 02 5441475301546167 4102"
)
"""Queue 3, offset 7, at byte 4096: the body `hello` in `TopicA`, by the code of RocketMQ."""


def columns_of(*raw: bytes) -> RecordColumns:
    return RecordColumns.of(RecordBytes.of(raw))


def test_the_worked_record_is_read_field_by_field() -> None:
    found = columns_of(WORKED)
    data = found.records.data

    assert found.is_sound.tolist() == [True]
    assert dict(zip(found.heads.dtype.names or (), found.heads[0].tolist(), strict=True)) == {
        "size_bytes": 132,
        "magic": 0xDAA320A7,
        "body_crc": 0x3610A686,
        "queue_id": 3,
        "flag": 0,
        "queue_offset": 7,
        "physical_offset": 4096,
        "sys_flag": 0,
        "born_ms": 1700000000000,
    }
    assert (found.store_ms[0], found.reconsume_times[0], found.prepared_offset[0]) == (1700000000123, 0, 0)
    assert [host_text(host.of(data, 0)) for host in found.hosts] == ["10.0.0.1:54321", "10.0.0.2:10911"]
    assert (found.topic.of(data, 0), found.body.of(data, 0)) == (b"TopicA", b"hello")
    assert crc32(b"hello") & BODY_CRC_MASK == 0x3610A686
    assert parse_properties(found.properties.of(data, 0)) == {"KEYS": "k1", "UNIQ_KEY": "U1", "TAGS": "TagA"}


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_every_record_is_the_brokers_own_answer(name: str) -> None:
    """The sets have versions 1 and 2, hosts in IPv4 and IPv6, batches, and checksums of properties."""
    answers, found = messages(name), RecordColumns.of(records(name))
    data, heads = found.records.data, found.heads

    assert found.is_sound.all()
    for column, answer in {
        "body_crc": "body_crc",
        "queue_id": "queue",
        "flag": "flag",
        "queue_offset": "offset",
        "physical_offset": "commit_log_offset",
        "born_ms": "born_time",
    }.items():
        assert heads[column].tolist() == [each[answer] for each in answers], column
    # The broker's client has opened the body, and does not show the first bit.
    assert (heads["sys_flag"] & ~1).tolist() == [each["sys_flag"] for each in answers]
    assert found.store_ms.tolist() == [each["store_time"] for each in answers]
    assert store_times(data, found.records.starts).tolist() == found.store_ms.tolist()
    assert found.reconsume_times.tolist() == [each["reconsume_times"] for each in answers]
    assert found.prepared_offset.tolist() == [each["prepared_offset"] for each in answers]
    assert (1 + (heads["magic"] == 0xDAA320AB)).tolist() == [each["version"] for each in answers]
    for row, each in enumerate(answers):
        raw = found.records.at(row)
        assert hashlib.sha256(raw).hexdigest() == each["record_sha256"]
        assert found.topic.of(data, row).decode() == each["topic"]
        assert parse_properties(found.properties.of(data, row)) == each["properties"]
        assert crc32(found.body.of(data, row)) & BODY_CRC_MASK == each["body_crc"]
        for host, text in zip(found.hosts, (each["born_host"], each["store_host"]), strict=True):
            assert host_text(host.of(data, row)) == text.removeprefix("/").replace("0:0:0:0:0:0:0:1", "::1")
        assert property_crc_agrees(raw) is (True if name == "extras" else None)


def test_the_sets_have_what_the_tests_of_formats_claim() -> None:
    answers = [each for name in NAMES for each in messages(name)]

    assert {each["version"] for each in answers} == {1, 2}
    flags = {each["sys_flag"] for each in answers}
    assert {0, 0x100, 0x200, 0x300, SysFlag.COMMITTED, SysFlag.BORN_HOST_6} <= flags
    assert SysFlag.NEEDS_UNWRAP | SysFlag.INNER_BATCH in flags
    assert any(each["body_length"] == 0 for each in answers)


@pytest.mark.parametrize(
    ("raw", "properties"),
    [
        (b"", {}),
        (b"a\x01b\x02c\x01d\x02", {"a": "b", "c": "d"}),
        (b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),
        (b"a\x01\x02\x01b\x02c\x02\x01\x02\x02d\x01e", {"d": "e"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x01\xff\x02", {"a": "\ufffd"}),
        ("größe\x01标签\x02".encode(), {"größe": "标签"}),
    ],
)
def test_properties_are_read_as_rocketmqs_clients_read_them(raw: bytes, properties: dict[str, str]) -> None:
    assert parse_properties(raw) == properties


def test_a_property_checksum_covers_the_record_before_it() -> None:
    found = records("extras")
    raw = found.at(0)

    assert property_crc_agrees(raw) is True
    for damaged in (raw[:100] + bytes([raw[100] ^ 1]) + raw[101:], raw[:-2] + b"0\x02"):
        assert property_crc_agrees(damaged) is (raw == damaged)


@settings(max_examples=400 if CAMPAIGN else 80, deadline=None)
@given(st.data())
def test_no_damage_leads_a_column_out_of_its_record(data: st.DataObject) -> None:
    """Bytes are changed, and sizes are wrong. What counts as sound is within the record, and fills it."""
    raw = bytearray(WORKED * 3)
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
        raw[at] = data.draw(st.integers(0, 255))
    starts = np.array([132, *data.draw(st.lists(st.integers(-5, len(raw) + 5), max_size=3))])
    sizes = np.array([data.draw(st.integers(-(2**31), 2**31 - 1) | st.just(132)) for _ in starts])

    found = RecordColumns.of(RecordBytes(np.frombuffer(bytes(raw), np.uint8), starts, sizes))

    for row in np.flatnonzero(found.is_sound).tolist():
        start, stop = starts[row], starts[row] + sizes[row]
        assert 0 <= start <= stop <= len(raw)
        before = start
        for part in (*found.hosts, found.body, found.topic, found.properties):
            assert before <= part.starts[row] <= part.starts[row] + part.sizes[row]
            before = part.starts[row] + part.sizes[row]
        assert before == stop
    for row in np.flatnonzero(~found.is_sound).tolist():
        assert found.body.of(found.records.data, row) == b""


@pytest.mark.parametrize("at", [0, 3, 4, 7, 84, 93, 100, 101])
def test_a_record_whose_frame_is_damaged_is_not_sound(at: int) -> None:
    damaged = bytearray(WORKED)
    damaged[at] ^= 1

    assert columns_of(WORKED, bytes(damaged)).is_sound.tolist() == [True, False]


@pytest.mark.parametrize("size", range(0, 132, 7))
def test_a_record_that_was_cut_is_not_sound(size: int) -> None:
    assert columns_of(WORKED[:size]).is_sound.tolist() == [False]
    assert columns_of(WORKED[:size], WORKED).is_sound.tolist() == [False, True]


def test_a_log_file_ends_with_a_blank_record() -> None:
    raw = (DATA / "six" / "commitlog" / "00000000000000000000").read_bytes()
    ends = [each["commit_log_offset"] + each["size"] for each in messages("six")]
    last = max(end for end in ends if end < 131072)

    assert BLANK_HEAD.unpack(raw, last) == {"size_bytes": 131072 - last, "magic": BLANK_MAGIC}


def test_units_are_read_as_the_broker_wrote_them() -> None:
    raw = bytes.fromhex("0000000000000000 00000084 000000000027a807")
    (unit,) = units_of(raw + b"rest")

    assert unit.tolist() == (0, 132, tag_code("TagA"))
    assert UNIT.pack(position=0, size_bytes=132, tag_code=2598919) == raw


def test_units_are_written_up_to_the_first_zeros() -> None:
    unit = UNIT.pack(position=5, size_bytes=100, tag_code=-1)
    blank = UNIT.pack(position=0, size_bytes=BLANK_UNIT_SIZE_BYTES, tag_code=0)
    backwards = UNIT.pack(position=-1, size_bytes=100, tag_code=0)

    assert written(units_of(b"")) == 0
    assert written(units_of(blank + unit)) == 2
    assert written(units_of(unit + bytes(20) + unit)) == 1
    assert written(units_of(unit + backwards)) == 1


@pytest.mark.parametrize(
    ("tag", "code"),
    [("", 0), ("TagA", 2598919), ("Aa", 2112), ("BB", 2112), ("größe", 98762257), ("标签", 857175)],
)
def test_a_tag_has_the_code_of_java(tag: str, code: int) -> None:
    assert tag_code(tag) == code


def test_tags_of_real_messages_have_the_codes_of_their_units() -> None:
    for each in messages("trimmed"):
        file = sorted((DATA / "trimmed" / "consumequeue" / each["topic"] / str(each["queue"])).iterdir())
        raw = b"".join(bytes(int(path.name)) if path == file[0] else b"" for path in file[:1])
        raw += b"".join(path.read_bytes().ljust(2000, b"\0") for path in file)
        unit = units_of(raw)[each["offset"]]
        assert unit["position"] == each["commit_log_offset"]
        assert unit["size_bytes"] == each["size"]
        # A delayed message waits under the time of its delivery.
        assert each["topic"] == "SCHEDULE_TOPIC_XXXX" or unit["tag_code"] == tag_code(each["tags"] or "")
