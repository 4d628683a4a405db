"""The frames of RabbitMQ's stream protocol: real ones, drawn ones, and broken ones.

`tests/data/stream_protocol/session.txt` has a session that was captured between a client and a broker.
"""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_rabbitmq.stream_frames import (
    TABLE,
    Code,
    Frame,
    FrameRow,
    Key,
    Sender,
    UnknownFrame,
    decode,
    encode,
    head_of,
)
from offload_rabbitmq.stream_target import publish_frame
from offload_rabbitmq.stream_wire import (
    BYTES_AT_END,
    BYTES_OR_NONE,
    MESSAGE,
    OFFSET,
    PAIRS,
    PAIRS_AT_END,
    REST,
    TEXT,
    TEXT_OR_NONE,
    Array,
    FieldType,
    Number,
    OffsetKind,
    OffsetSpec,
    SubEntry,
)
from rstream.encoding import decode_frame, encode_frame
from rstream.schema import registry

from offload.ground.errors import Corrupt, Misuse

SESSION: Final = Path(__file__).parents[1] / "data" / "stream_protocol" / "session.txt"
WHERE: Final = "rabbitmq-stream://here"


def captured() -> Iterator[tuple[str, str, str]]:
    """Yield the sender, the bytes and the meaning of each captured frame."""
    lines = [line for line in SESSION.read_text().splitlines() if line and not line.startswith("#")]
    for frame, meaning in zip(lines[::2], lines[1::2], strict=True):
        yield frame[0], frame[2:], meaning.removeprefix("= ")


CAPTURED: Final = list(captured())


def raw_of(text: str) -> bytes:
    """Return the bytes of hexadecimal digits and of text in quotes."""
    return b"".join(
        word[1:-1].encode() if word.startswith('"') else bytes.fromhex(word)
        for word in re.findall(r'"[^"]*"|[0-9a-f]+', text)
    )


def shown(frame: Frame | UnknownFrame) -> str:
    assert isinstance(frame, Frame)
    words = ["response"] * frame.is_response + [frame.key.name]
    words += ["version 2"] * (frame.version == 2)
    for name, value in frame.fields.items():
        text = f"{len(value)} bytes" if isinstance(value, memoryview) else repr(value)
        words.append(f"{name}={text}")
    return re.sub(r"<OffsetKind.([A-Z]+): .>", r"\1", " ".join(words))


@pytest.mark.parametrize(("sender", "text", "meaning"), CAPTURED, ids=[each[2][:40] for each in CAPTURED])
def test_a_captured_frame_is_read_and_written_again(sender: str, text: str, meaning: str) -> None:
    raw, side = raw_of(text), {"C": Sender.CLIENT, "S": Sender.SERVER}[sender]

    frame = decode(raw[4:], side, where=WHERE)

    assert shown(frame) == meaning
    assert written(frame) in (raw, with_its_empty_end(raw))


def with_its_empty_end(raw: bytes) -> bytes:
    """Return a frame that ends before an optional list or map, with an empty one."""
    return (int.from_bytes(raw[:4]) + 4).to_bytes(4) + raw[4:] + bytes(4)


def written(frame: Frame | UnknownFrame) -> bytes:
    assert isinstance(frame, Frame)
    fields = {name: value for name, value in frame.fields.items() if value is not None}
    return encode(frame.key, version=frame.version, response=frame.is_response, **fields)


texts: Final = st.text(max_size=12) | st.sampled_from(["", "orders", "é" * 200])
VALUES: Final[dict[FieldType[Any], st.SearchStrategy[Any]]] = {
    TEXT: texts,
    TEXT_OR_NONE: texts | st.none(),
    BYTES_OR_NONE: st.binary(max_size=20) | st.none(),
    BYTES_AT_END: st.binary(max_size=20) | st.none(),
    MESSAGE: st.binary(max_size=20)
    | st.builds(
        SubEntry, st.integers(128, 255), st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.binary()
    ),
    OFFSET: st.sampled_from(
        [OffsetSpec(kind) for kind in (OffsetKind.NONE, OffsetKind.FIRST, OffsetKind.NEXT)]
    )
    | st.integers(0, 2**64 - 1).map(lambda offset: OffsetSpec(OffsetKind.OFFSET, offset))
    | st.integers(-(2**63), 2**63 - 1).map(lambda time: OffsetSpec(OffsetKind.TIMESTAMP, time)),
    PAIRS: st.dictionaries(texts, texts, max_size=4),
    PAIRS_AT_END: st.dictionaries(texts, texts, max_size=4),
    REST: st.binary(max_size=80),
}


def values_of(kind: FieldType[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a field."""
    if isinstance(kind, Number):
        bits, is_signed = 8 * kind.layout.size, kind.code.islower()
        least, end = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if is_signed else (0, 2**bits)
        return st.integers(least, end - 1) | st.sampled_from([least, end - 1])
    if isinstance(kind, Array):
        items = [values_of(each) for each in kind.fields.values()]
        return st.lists(st.tuples(*items) if len(items) > 1 else items[0], max_size=4)
    return VALUES[kind]


def fields_of(row: FrameRow) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for the fields of a row."""
    return st.fixed_dictionaries({name: values_of(kind) for name, kind in row.fields.items()})


frames: Final = st.sampled_from(TABLE).flatmap(lambda row: st.tuples(st.just(row), fields_of(row)))
"""A row of the table, and fields for it."""


def encoded(row: FrameRow, fields: dict[str, Any]) -> bytes:
    return encode(row.key, version=row.version, response=row.is_response, **fields)


@settings(max_examples=5_000 if CAMPAIGN else 150)
@given(frames)
def test_every_row_is_read_as_it_was_written(drawn: tuple[FrameRow, dict[str, Any]]) -> None:
    row, fields = drawn

    raw = encoded(row, fields)

    assert int.from_bytes(raw[:4]) == len(raw) - 4
    for side in row.sent_by:
        assert decode(raw[4:], side, where=WHERE) == Frame(row.key, row.version, row.is_response, fields)


@pytest.mark.parametrize("side", Sender)
def test_a_frame_of_the_wrong_side_is_unknown(side: Sender) -> None:
    """Only a server delivers, and only a client subscribes."""
    for row in TABLE:
        content = row.stated_key.to_bytes(2) + row.version.to_bytes(2)
        if side not in row.sent_by and row.key not in (Key.TUNE, Key.ROUTE, Key.PARTITIONS):
            assert decode(content, side, where=WHERE) == UnknownFrame(row.stated_key, row.version)


def test_the_table_has_the_commands_of_the_protocol_in_both_directions() -> None:
    asked = {(row.key, row.version) for row in TABLE if not row.is_response}
    answered = {row.key for row in TABLE if row.is_response}
    one_way = {Key.PUBLISH, Key.PUBLISH_CONFIRM, Key.PUBLISH_ERROR, Key.DELIVER, Key.STORE_OFFSET}
    one_way |= {Key.METADATA_UPDATE, Key.TUNE, Key.HEARTBEAT}

    assert asked == {(Key(k), 1) for k in range(1, 32)} | {(Key.PUBLISH, 2), (Key.DELIVER, 2)}
    assert answered == set(Key) - one_way
    assert len(TABLE) == len({(row.stated_key, row.version) for row in TABLE})


@settings(max_examples=2_000 if CAMPAIGN else 60)
@given(frames)
def test_a_frame_that_is_cut_is_damage_or_ends_where_it_may(drawn: tuple[FrameRow, dict[str, Any]]) -> None:
    row, fields = drawn
    content = encoded(row, fields)[4:]
    may_end = row.is_response and fields.get("code", Code.OK) != Code.OK
    may_end |= any(kind.may_end or kind is REST for kind in row.fields.values())

    for end in range(len(content)):
        try:
            found = decode(content[:end], row.sent_by[0], where=WHERE)
        except Corrupt:
            continue
        else:
            assert may_end, f"{row.key.name} of {len(content)} bytes was read from {end}"
            assert isinstance(found, Frame)
            assert found.fields.keys() == fields.keys()


@settings(max_examples=5_000 if CAMPAIGN else 50, deadline=None)
@given(frames, st.integers(0, 2**32))
def test_twenty_mutations_of_a_frame_are_frames_unknown_ones_or_damage(
    drawn: tuple[FrameRow, dict[str, Any]], seed: int
) -> None:
    """100,000 frames in the campaign."""
    random = Random(seed)
    for _ in range(20):
        raw = bytearray(encoded(*drawn)[4:])
        for _ in range(random.randint(1, 3)):
            at = random.randint(0, len(raw))
            raw[at : at + random.randint(0, 4)] = random.choice(
                [b"", b"\xff" * 4, b"\x7f\xff", b"\x80", random.randbytes(random.randint(1, 4))]
            )
        for side in Sender:
            try:
                found = decode(bytes(raw), side, where=WHERE)
            except Corrupt:
                continue
            if isinstance(found, Frame):
                again = encode(found.key, version=found.version, response=found.is_response, **found.fields)
                assert decode(again[4:], side, where=WHERE) == found


@pytest.mark.parametrize("count", [2**31 - 1, 2**31, 2**32 - 1, 1_000_000])
@pytest.mark.parametrize(
    ("key", "side", "head"),
    [
        (Key.METADATA, Sender.CLIENT, bytes(4)),
        (Key.PEER_PROPERTIES, Sender.CLIENT, bytes(4)),
        (Key.PUBLISH, Sender.CLIENT, b"\1"),
        (Key.PUBLISH, Sender.CLIENT, b"\1" + (1).to_bytes(4) + bytes(8)),  # the size of a message
        (Key.PUBLISH_CONFIRM, Sender.SERVER, b"\1"),
        (Key.SASL_AUTHENTICATE, Sender.CLIENT, bytes(4) + b"\0\5PLAIN"),
    ],
)
def test_a_hostile_length_allocates_nothing(key: Key, side: Sender, head: bytes, count: int) -> None:
    content = key.to_bytes(2) + b"\0\1" + head + count.to_bytes(4) + b"\0\0"
    tracemalloc.start()
    try:
        if key is Key.SASL_AUTHENTICATE and count == 2**32 - 1:
            with pytest.raises(Corrupt, match="2 more bytes"):  # null, and then there are bytes too many
                decode(content, side, where=WHERE)
        else:
            with pytest.raises(Corrupt):
                decode(content, side, where=WHERE)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "side"),
    [
        (b"", Sender.CLIENT),
        (b"\0\x17\0", Sender.CLIENT),
        (b"\0\x17\0\1extra", Sender.CLIENT),
        (encode(Key.QUERY_OFFSET, correlation=1, reference="a", stream="b")[4:] + b"x", Sender.CLIENT),
        (b"\0\x07\0\1" + bytes(4) + b"\5\0\1s\0\6\0\1", Sender.CLIENT),  # offsets have kinds up to 5
        (b"\0\x0f\0\1" + bytes(4) + b"\0\0\0\1\x80\0x", Sender.CLIENT),  # a string of a negative length
    ],
)
def test_content_that_does_not_fit_its_row_is_damage_with_the_peer_and_the_place(
    content: bytes, side: Sender
) -> None:
    with pytest.raises(Corrupt, match=WHERE):
        decode(content, side, where=WHERE)


@pytest.mark.parametrize(
    ("key", "version"), [(0, 1), (32, 1), (0x7FFF, 1), (0x8002, 1), (1, 2), (2, 3), (23, 0)]
)
def test_an_unknown_key_or_version_can_be_answered(key: int, version: int) -> None:
    found = decode(key.to_bytes(2) + version.to_bytes(2) + b"whatever", Sender.CLIENT, where=WHERE)

    assert found == UnknownFrame(key, version)


def test_bytes_behind_a_response_are_passed_over() -> None:
    """A newer broker may add a field."""
    raw = encode(Key.QUERY_OFFSET, response=True, correlation=1, code=Code.OK, offset=5)

    found = decode(raw[4:] + b"more", Sender.SERVER, where=WHERE)

    assert isinstance(found, Frame)
    assert found["offset"] == 5


@pytest.mark.parametrize("key", [Key.ROUTE, Key.PARTITIONS])
def test_a_response_of_rabbitmq_3_10_without_the_top_bit_is_a_response(key: Key) -> None:
    raw = encode(key, response=True, correlation=58, code=2, streams=[])

    found = decode(key.to_bytes(2) + raw[6:], Sender.SERVER, where=WHERE)

    assert found == Frame(key, 1, True, {"correlation": 58, "code": 2, "streams": []})


def test_the_limits_of_a_client_may_have_the_top_bit() -> None:
    raw = encode(Key.TUNE, frame_size_bytes_max=0, heartbeat_seconds=60)

    found = decode(b"\x80\x14" + raw[6:], Sender.CLIENT, where=WHERE)

    assert found == decode(raw[4:], Sender.CLIENT, where=WHERE)


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        (Key.CREDIT, {"subscription": 256, "credit": 1}),
        (Key.CREDIT, {"subscription": 0, "credit": 65_536}),
        (Key.DELETE, {"correlation": 2**32, "stream": "a"}),
        (Key.DELETE, {"correlation": 1, "stream": "é" * 16_384}),
        (Key.DELETE, {"correlation": 1, "stream": "\udcff"}),
    ],
)
def test_a_value_that_no_frame_can_have_is_misuse(key: Key, fields: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        encode(key, **fields)


@pytest.mark.parametrize(("version", "more"), [(1, {}), (2, {"committed_chunk": 7})])
def test_the_head_of_a_delivery_begins_the_frame(version: int, more: dict[str, int]) -> None:
    chunk = bytes(range(100))
    whole = encode(Key.DELIVER, version=version, subscription=5, **more, chunk=chunk)

    head = head_of(Key.DELIVER, version)

    assert head.pack(head.size - 4 + 100, Key.DELIVER, version, 5, *more.values()) + chunk == whole


@given(st.integers(0, 2**63), st.lists(st.binary(max_size=9), max_size=9))
def test_the_frame_of_a_restore_is_that_of_the_table(first_id: int, bodies: list[bytes]) -> None:
    messages = list(enumerate(bodies, first_id))

    assert publish_frame(first_id, bodies) == encode(Key.PUBLISH, publisher=1, messages=messages)


OTHERWISE_IN_RSTREAM: Final = {
    (Key.PUBLISH, False),  # it writes messages by a function of its own
    (Key.SUBSCRIBE, False),  # its client chooses the fields
    (Key.DELIVER, False),  # it reads the chunk too
    (Key.SASL_AUTHENTICATE, True),  # it knows no challenge
    (Key.TUNE, False),  # its numbers have a sign
}
OF_RSTREAM: Final = {(key.value, is_response) for is_response, key in registry} - OTHERWISE_IN_RSTREAM


@settings(max_examples=1_000 if CAMPAIGN else 60)
@given(
    frames.filter(lambda drawn: drawn[0].version == 1 and (drawn[0].key, drawn[0].is_response) in OF_RSTREAM)
)
def test_rstream_reads_and_writes_the_same_bytes(drawn: tuple[FrameRow, dict[str, Any]]) -> None:
    """It has most of the commands, and was written by others. It counts strings in characters."""
    row, fields = drawn
    raw = encoded(row, {name: in_ascii(value) for name, value in fields.items()})

    again = encode_frame(decode_frame(raw[4:]))

    assert (again[:4], again[8:]) == (raw[:4], raw[8:])  # it writes all keys as those of requests


def in_ascii(value: Any) -> Any:
    """Return the value of a field without other characters, and without null, which it does not have."""
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode("ascii", "replace").decode()
    if isinstance(value, dict):
        return {in_ascii(name): in_ascii(each) for name, each in value.items()}
    return type(value)(map(in_ascii, value)) if type(value) in (list, tuple) else value
