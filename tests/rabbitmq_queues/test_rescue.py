"""Tests of the commands `offload queues …`, the source and the decoder, on the files of a real broker."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Ran, offload
from offload_rabbitmq.queues.decoder import NO_SECTIONS, Amqp091Decoder
from offload_rabbitmq.queues.records import HEAD, LAYOUT, decode_record, encode_records
from offload_rabbitmq.queues.source import open_url
from offload_rabbitmq.queues.store_files import ROW
from queue_sets import expected, folder_of, keep_some, unpacked
from queue_terms import WIRE, Atom, message, term_of

from offload.model.record_columns import RecordBytes

KEPT = ("tiny", "prio", "holes", "dead", "load", "empty")
DAMAGED = "%2F/tiny-v2"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keep_some(unpacked("killed", tmp_path_factory.mktemp("rescue")), *KEPT)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Return a node with a wrong byte in the body of one message."""
    node = keep_some(unpacked("killed", tmp_path), *KEPT)
    path = folder_of(node, "tiny-v2") / "0.qs"
    raw = bytearray(path.read_bytes())
    raw[200] ^= 1
    path.write_bytes(raw)
    return node


def rows_of(ran: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.stdout.decode().splitlines()]


def body_of(row: dict[str, Any]) -> bytes:
    return base64.b64decode(row["value"]) if row.get("encoding") else str(row["value"]).encode()


def summary(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    digests = [hashlib.sha256(body_of(row)).hexdigest() for row in rows]
    return [
        (row["exchange"], row["keys"][0], digest, row["queue"]["redelivered"])
        for row, digest in zip(rows, digests, strict=True)
    ]


def test_all_queues_are_printed_as_the_broker_delivered_them(node: Path) -> None:
    ran = offload("queues", "rescue", str(node))

    assert (ran.code, ran.stderr) == (0, "")
    printed = defaultdict[str, list[dict[str, Any]]](list)
    for row in rows_of(ran):
        printed[row["stream"]].append(row)
    for stream, messages in expected(node).items():
        own = printed[stream]
        wanted = [(each["exchange"], each["key"], each["sha256"], each["redelivered"]) for each in messages]
        assert summary(own) == wanted, stream
        assert [row["offset"] for row in own] == [*range(len(own))]


def test_a_tier_has_each_queue_and_a_second_rescue_adds_nothing(node: Path, tmp_path: Path) -> None:
    tier, wanted = str(tmp_path / "tier"), expected(node)

    first = offload("queues", "rescue", str(node), tier)
    again = offload("queues", "rescue", str(node), tier)

    assert (first.code, again.code, first.stderr + again.stderr) == (0, 0, "")
    assert {line.rpartition(", ")[2] for line in again.text.splitlines()} == {"0 B copied"}
    totals = [json.loads(line) for line in offload("ls", "--json", tier).text.splitlines()]
    assert {each["stream"]: each["messages"] for each in totals} == {
        stream: len(messages) for stream, messages in wanted.items()
    }
    for stream in ("%2F/prio-v1", "tenant%2F%C3%A4/holes-v2"):
        rows = rows_of(offload("read", tier, stream, "--decode", "amqp091"))
        assert [each[:3] for each in summary(rows)] == [
            (each["exchange"], each["key"], each["sha256"]) for each in wanted[stream]
        ]


def test_what_cannot_be_read_is_counted_and_the_rest_is_rescued(damaged: Path, tmp_path: Path) -> None:
    wanted = {stream: len(messages) for stream, messages in expected(damaged).items()}
    for arguments in (["ls"], ["rescue"], ["rescue", str(tmp_path / "tier")]):
        ran = offload("queues", arguments[0], str(damaged), *arguments[1:])

        assert ran.code == 1
        (note,) = ran.stderr.splitlines()
        assert note.startswith(f"note: {DAMAGED}: queues/")
        assert note.endswith("a body whose CRC is wrong: 1")
    found = offload("queues", "ls", str(damaged), "--json")
    document = json.loads(found.text)
    assert found.code == 1
    assert {each["stream"]: each["messages"] for each in document["queues"] if each["messages"]} == {
        **wanted, DAMAGED: wanted[DAMAGED] - 1
    }  # fmt: skip
    assert [(each["queue"], each["count"]) for each in document["damages"]] == [(DAMAGED, 1)]


@pytest.mark.parametrize("to_tier", [False, True])
def test_a_term_that_cannot_be_decoded_is_kept_and_counted(
    damaged: Path, tmp_path: Path, to_tier: bool
) -> None:
    folder, tier = folder_of(damaged, "tiny-v1"), str(tmp_path / "tier")
    deep = b"\x83" + b"h\x01" * 10**5 + b"j"
    late = message(b"late", wire=b"\0\x40" + struct.pack(">Q", 2**63))
    records = [
        b"\xc0" + bytes([number]) + bytes(16) + struct.pack(">QII", 0, 5, len(term)) + term
        for number, term in enumerate([deep, late, message(b"sound")])
    ]
    (folder / "0.idx").write_bytes(b"".join(records))
    stream = ("--stream", "%2F/tiny-v1")

    ran = offload("queues", "rescue", str(damaged), *[tier] * to_tier, *stream)

    assert ran.code == 1
    counted = [line.rpartition("decoded: ")[2] for line in ran.stderr.splitlines() if "tiny-v1" in line]
    assert sum(int(each.rpartition(": ")[2]) for each in counted) == 2
    rows = rows_of(offload("read", tier, "%2F/tiny-v1", "--decode", "amqp091") if to_tier else ran)
    assert [body_of(row) for row in rows] == [deep, b"late", b"sound"]
    assert "depth of a term" in rows[0]["queue"]["error"]
    assert "those of AMQP 0-9-1" in rows[1]["properties"]["error"]
    assert base64.b64decode(rows[1]["properties"]["value"]) == b"\0\x40" + struct.pack(">Q", 2**63)
    assert rows[2]["properties"] == {"delivery_mode": 2}


def test_a_folder_without_queues_and_a_wrong_url_are_refused(tmp_path: Path) -> None:
    ran = offload("queues", "ls", str(tmp_path))

    assert ran.code == 1
    assert "has no classic queues" in ran.stderr


@pytest.mark.parametrize("tier", [(), ("tier",)])
def test_an_unknown_queue_is_an_error_that_names_the_command_that_shows_them(
    node: Path, tmp_path: Path, tier: tuple[str, ...]
) -> None:
    places = [tmp_path / each for each in tier]

    ran = offload("queues", "rescue", node, *places, "--stream", "tiny-v2")

    assert (ran.code, ran.stdout) == (1, b"")
    assert ran.error.endswith(f"has no queue 'tiny-v2': `offload queues ls {node}` shows them")


def test_a_sync_of_streams_from_a_node_with_queues_alone_names_their_scheme(
    node: Path, tmp_path: Path
) -> None:
    ran = offload("sync", f"rabbitmq://{node}", tmp_path / "tier")

    assert ran.code == 1
    assert ran.error.endswith(f"holds no stream; for its classic queues, use rabbitmq-queues://{node}")
    assert offload("sync", "rabbitmq-queues://", str(tmp_path / "tier")).code == 2
    with pytest.raises(ValueError, match="is no source"):
        open_url("rabbitmq-queues:/path")


def record(term: bytes, *, expiry_us: int = 0) -> bytes:
    row = np.zeros(1, ROW)
    row["sequence"], row["level"], row["flags"], row["expiry_us"] = 7, 4, 1, expiry_us
    return encode_records(row, [term])[0]


def test_the_bytes_of_a_record_are_those_of_the_layout() -> None:
    raw = record(b"term", expiry_us=2)

    assert raw.hex() == "4351010401000000" + "0000000000000007" + "0000000000000002" + b"term".hex()
    assert [name for name, *_ in LAYOUT] == [*(HEAD.names or ())]
    assert decode_record(raw[: HEAD.itemsize - 1]) is None


@pytest.mark.parametrize(
    ("expiry_us", "expires"),
    [(0, None), (1798511144102030, "2026-12-29T02:25:44.102Z"), (2**64 - 1, (2**64 - 1) // 1000)],
)
def test_the_place_of_a_message_is_decoded(expiry_us: int, expires: Any) -> None:
    (found,) = Amqp091Decoder().decode([record(message(b"body"), expiry_us=expiry_us)])

    assert found.value == b"body"
    assert found.sections["queue"] == {"sequence": 7, "level": 4, "redelivered": True, "expires": expires}


def test_the_decoder_gives_bodies_keys_headers_and_times() -> None:
    headers = [(b"n", Atom("long"), 1), (b"s", Atom("longstr"), b"x"), (b"b", Atom("binary"), b"\xff")]
    fields = (Atom("P_basic"), *[Atom("undefined")] * 2, headers, 2, *[Atom("undefined")] * 5, 1790000000)
    term = message(b"c", b"ab", fields=(*fields, *[Atom("undefined")] * 4), keys=(b"k1", b"k2"))
    records = [record(term), record(message(b"x", wire=WIRE)), record(b"\x83a\x01"), b"no record"]
    decoder = Amqp091Decoder()

    assert decoder.bodies(records) == [b"abc", b"x", records[2], b"no record"]
    assert decoder.keys(records) == [b"k1", b"key", None, None]
    assert decoder.headers(records) == [
        [("n", b"1"), ("s", b"x"), ("b", b'{"encoding":"base64","value":"/w=="}')], [], [], []
    ]  # fmt: skip
    assert decoder.timestamps(RecordBytes.of(records)).tolist() == [1790000000000, -1, -1, -1]
    assert decoder.decode([b"no record"])[0] == (b"no record", NO_SECTIONS)
    assert decoder.decode([record(term_of(1))])[0].value == term_of(1)
