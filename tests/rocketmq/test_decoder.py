"""Tests of the `rocketmq` decoder, on records of a real broker and on hostile ones."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any

import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_rocketmq import decoder as module
from offload_rocketmq.decoder import RocketmqDecoder
from rocketmq_sets import NAMES, messages, records
from rocketmq_store import encoded

from offload.contracts.decoder import Decoder
from offload.model.record_columns import RecordBytes
from offload.model.value_text import value_text
from offload.opening.plugins import Plugins

NO_RECORD = {"message": {"error": "no record of RocketMQ"}, "keys": [], "tags": None, "properties": {}}
COMPRESSED = {
    "LZ4": (0x101, lz4.frame.compress),
    "ZSTD": (0x201, zstandard.ZstdCompressor().compress),
    "ZLIB": (0x301, zlib.compress),
    "ZLIB of old clients": (0x001, zlib.compress),
}


def record(body: bytes, *, properties: bytes = b"", sys_flag: int = 0) -> bytes:
    return encoded("Orders", 3, 7, 4096, body, properties=properties, sys_flag=sys_flag)


@pytest.mark.parametrize("name", NAMES)
def test_messages_are_those_that_the_brokers_own_client_shows(name: str) -> None:
    """Bodies are opened: the sets have LZ4, ZSTD and ZLIB."""
    answers, stored = messages(name), records(name)

    found = RocketmqDecoder().decode(stored.to_list())

    for decoded, each in zip(found, answers, strict=True):
        assert hashlib.sha256(decoded.value).hexdigest() == each["body_sha256"]
        assert decoded.sections["properties"] == each["properties"]
        assert decoded.sections["tags"] == each["tags"]
        words = [each["unique_key"] or "", *(each["keys"] or "").split(" ")]
        assert decoded.sections["keys"] == [word for word in dict.fromkeys(words) if word]
        message = dict(decoded.sections["message"])
        assert message.pop("property_crc_agrees", None) is (True if name == "extras" else None)
        compression = message.pop("compression", None)
        assert compression in (None, ["ZLIB", "LZ4", "ZSTD", "ZLIB"][each["sys_flag"] >> 8])
        transactions = {0: None, 4: "prepared", 8: "committed", 12: "rolled back"}
        assert message.pop("transaction", None) == transactions[each["sys_flag"] & 12]
        assert message.pop("sys_flag") & ~1 == each["sys_flag"]
        hosts = [message.pop(host) for host in ("born_host", "store_host")]
        expected = [each[host].removeprefix("/") for host in ("born_host", "store_host")]
        assert hosts == [host.replace("0:0:0:0:0:0:0:1", "::1") for host in expected]
        same = {"queue_offset": "offset", "physical_offset": "commit_log_offset"}
        assert message == {field: each[same.get(field, field)] for field in message}
    times = RocketmqDecoder().timestamps(stored)
    assert times.tolist() == [each["store_time"] for each in answers]


def test_the_sets_have_bodies_of_each_compression() -> None:
    found = RocketmqDecoder().decode(records("trimmed").to_list())

    assert {each.sections["message"].get("compression") for each in found} == {None, "LZ4", "ZSTD", "ZLIB"}


@pytest.mark.parametrize("kind", COMPRESSED)
def test_a_body_is_opened_only_whole_and_within_its_limit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sys_flag, compress = COMPRESSED[kind]
    monkeypatch.setattr(module, "BODY_SIZE_BYTES_MAX", 2**20)
    whole, large = compress(b"a" * 2**20), compress(b"a" * (2**20 + 1))
    raw = [record(body, sys_flag=sys_flag) for body in (whole, large, whole[:-1], b"", b"no such body")]

    found = RocketmqDecoder().decode(raw)

    assert found[0].value == b"a" * 2**20
    assert "error" not in found[0].sections["message"]
    for each, stored in zip(found[1:], (large, whole[:-1], b"", b"no such body"), strict=True):
        assert each.value == stored
        assert each.sections["message"]["error"].startswith("the body is no ")
        assert each.sections["message"]["queue_offset"] == 7


def test_an_unknown_compression_leaves_the_body_as_it_is() -> None:
    (found,) = RocketmqDecoder().decode([record(b"stored", sys_flag=0x701)])

    assert found.value == b"stored"
    assert found.sections["message"]["compression"] == 7
    assert "error" in found.sections["message"]


def test_one_call_opens_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPENED_SIZE_BYTES_MAX", 2500)
    stored = zlib.compress(b"a" * 1000)

    found = RocketmqDecoder().bodies([record(stored, sys_flag=1)] * 4)

    assert found == [b"a" * 1000, b"a" * 1000, stored, stored]


@pytest.mark.parametrize(
    ("properties", "keys"),
    [
        (b"", []),
        (b"UNIQ_KEY\x01u\x02", ["u"]),
        (b"KEYS\x01 a  b a \x02UNIQ_KEY\x01u\x02", ["u", "a", "b"]),
        (b"KEYS\x01a", ["a"]),
        (b"KEYS\x01 \x02", []),
    ],
)
def test_keys_are_the_id_of_the_client_and_the_words(properties: bytes, keys: list[str]) -> None:
    (found,) = RocketmqDecoder().decode([record(b"", properties=properties)])

    assert found.sections["keys"] == keys


def test_the_key_is_that_by_which_the_client_chose_the_queue() -> None:
    raw = [record(b"", properties=b"__SHARDINGKEY\x01customer 7\x02a\x01b\x02"), record(b"")]

    assert RocketmqDecoder().keys(raw) == [b"customer 7", None]
    assert RocketmqDecoder().headers(raw) == [[("__SHARDINGKEY", b"customer 7"), ("a", b"b")], []]


def test_a_record_of_another_format_stays_raw() -> None:
    sound = record(b"body", properties=b"a\x01b\x02")
    raw = [b"", b"other", sound[:-1], sound, sound + b"\0"]

    found = RocketmqDecoder().decode(raw)

    assert [each.value for each in found] == [b"", b"other", sound[:-1], b"body", sound + b"\0"]
    assert [each.sections == NO_RECORD for each in found] == [True, True, True, False, True]
    assert RocketmqDecoder().timestamps(RecordBytes.of(raw)).tolist() == [-1, -1, -1, 1_700_000_000_000, -1]


NAMES_OF_COLUMNS = ("body", "key", "headers", "value", "message", "keys", "tags", "properties")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_columns_are_what_the_methods_return_for_any_bytes(data: st.DataObject) -> None:
    """Also if records were damaged, and if they do not lie back to back."""
    properties = st.sampled_from([b"", b"KEYS\x01a b\x02", b"TAGS\x01\xff\x02__SHARDINGKEY\x01k\x02"])
    raw = []
    for _ in range(data.draw(st.integers(0, 5))):
        sys_flag, compress = data.draw(st.sampled_from([*COMPRESSED.values(), (0, bytes)]))
        body = compress(data.draw(st.binary(max_size=99)))
        each = bytearray(record(body, properties=data.draw(properties), sys_flag=sys_flag))
        if data.draw(st.booleans()):
            each[data.draw(st.integers(0, len(each) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        raw.append(bytes(each))
    names = data.draw(st.lists(st.sampled_from(NAMES_OF_COLUMNS), unique=True))
    joined = b"".join(b"gap" + each for each in raw)
    sizes = np.array([len(each) for each in raw], np.int64)
    starts = np.cumsum(sizes + 3) - sizes
    stored = RecordBytes(np.frombuffer(joined, np.uint8), starts, sizes)

    found = RocketmqDecoder().columns(stored, names)

    assert {name: found[name].to_list() for name in names} == {name: _slowly(raw, name) for name in names}
    assert [*map(value_text, RocketmqDecoder().bodies(raw))] == [
        value_text(each.value) for each in RocketmqDecoder().decode(raw)
    ]


def _slowly(raw: list[bytes], name: str) -> list[Any]:
    """Return a column of one record after the other, by the methods."""
    decoder = RocketmqDecoder()
    match name:
        case "body":
            return [decoder.bodies([each])[0] for each in raw]
        case "key":
            return [decoder.keys([each])[0] for each in raw]
        case "headers":
            return [decoder.headers([each])[0] for each in raw]
        case "value":
            return [value_text(decoder.decode([each])[0].value).encode() for each in raw]
    sections = [decoder.decode([each])[0].sections[name] for each in raw]
    return [json.dumps(each, separators=(",", ":"), ensure_ascii=False).encode() for each in sections]


def test_the_plugin_declares_the_decoder() -> None:
    (declared,) = [each for each in Plugins.find().of_kind("decoder") if each.declaration.name == "rocketmq"]

    assert issubclass(declared.declaration.load(), Decoder)
