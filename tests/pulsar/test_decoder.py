"""Tests of the decoder of Pulsar's entries, beside what Pulsar's code reads in entries of its producers."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import tracemalloc
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import cramjam
import lz4.block
import pytest
import zstandard
from command_line import offload, read
from google_crc32c import value as crc32c_of
from hypothesis import given
from hypothesis import strategies as st
from offload_pulsar import PulsarBucket, decoder, payloads
from offload_pulsar.decoder import PulsarDecoder
from offload_pulsar.ledger_metadata import message_class
from offload_pulsar.messages import PulsarEntry
from pulsar_sets import DATA, store_of, uid_of
from spark import in_process

from offload import Decoded, MemoryHandle, StreamWriter, build_chunk, open_tier
from offload.ground.errors import Corrupt

EXPECTED = [*map(json.loads, (DATA / "messages" / "expected.jsonl").read_bytes().splitlines())]
CODECS = {
    1: lambda plain: lz4.block.compress(plain, store_size=False),
    2: zlib.compress,
    3: zstandard.compress,
    4: lambda plain: bytes(cramjam.snappy.compress_raw(plain)),
}


@cache
def entries() -> tuple[bytes, ...]:
    """Return the entries that Pulsar's producers sent."""

    async def main() -> tuple[bytes, ...]:
        ledger = await PulsarBucket(await store_of("messages")).open(7, uid_of("messages"))
        run = await ledger.entries(0, ledger.last_entry, size_bytes=2**30)
        return tuple(
            bytes(run.data[start:end])
            for start, end in zip(run.starts.tolist(), run.ends.tolist(), strict=True)
        )

    return asyncio.run(main())


def made_entry(payload: bytes, *, checksum: bool = True, **fields: Any) -> bytes:
    fields = {"producer_name": b"p", "sequence_id": 1, "publish_time": 2} | fields
    metadata = message_class("messages.EntryMetadata")(**fields).SerializeToString()
    rest = len(metadata).to_bytes(4, "big") + metadata + payload
    return b"\x0e\x01" + crc32c_of(rest).to_bytes(4, "big") + rest if checksum else rest


def framed(*values: bytes) -> bytes:
    """Return the plain payload of a batch."""
    pieces = []
    for value in values:
        metadata = message_class("messages.SingleMetadata")(payload_size=len(value)).SerializeToString()
        pieces.append(len(metadata).to_bytes(4, "big") + metadata + value)
    return b"".join(pieces)


def rows(*records: bytes) -> list[tuple[int, Decoded]]:
    return list(PulsarDecoder().messages(records))


def error_of(*records: bytes) -> str:
    [(_, row)] = rows(*records)
    error: str = row.sections["metadata"]["error"]
    return error


def as_pulsar_says(number: int, row: Decoded) -> dict[str, Any]:
    """Return a row with the names and encodings of `expected.jsonl`."""
    metadata = dict(row.sections["metadata"])
    metadata.pop("transaction", None)  # the file leaves it out
    found = {
        "ledger": 7,
        "entry": number,
        "payload": base64.b64encode(row.value or b"").decode(),
        "null_value": row.value is None,
        "properties": [[*pair] for pair in row.sections["properties"].items()],
        "compression": metadata.pop("compression", "NONE"),
        "checksum": metadata.pop("checksum", True),
    }
    if row.sections["batch_index"] is not None:
        found["batch_index"] = row.sections["batch_index"]
    if row.sections["key"] is not None:
        found["key"] = row.sections["key"]
        found["key_is_base64"] = metadata.pop("key_is_base64", False)
    for name in ("ordering_key", "schema_version"):
        if name in metadata:
            found[name] = base64.b64encode(bytes.fromhex(metadata.pop(name))).decode()
    return found | metadata


def test_every_message_is_what_pulsars_own_code_reads() -> None:
    found = [as_pulsar_says(number, row) for number, row in rows(*entries())]

    assert {row["compression"] for row in EXPECTED} == set(payloads.CompressionName)
    assert found == EXPECTED


def test_an_entry_is_one_value_with_the_list_of_its_messages() -> None:
    decoded = PulsarDecoder().decode(entries())
    bodies = PulsarDecoder().bodies(entries())

    assert len(decoded) == len(bodies) == len(entries())
    assert sum(len(each.sections["messages"]) for each in decoded) == len(EXPECTED)
    for each, body in zip(decoded, bodies, strict=True):
        [first, *others] = each.sections["messages"]
        if first["batch_index"] is None:
            assert not others
            assert body == (each.value or b"")
        else:
            assert each.value == json.loads(body) == each.sections["messages"]
            assert [row["batch_index"] for row in each.value] == [*range(len(each.value))]


def test_the_key_of_an_entry_is_that_of_all_its_messages() -> None:
    keys = PulsarDecoder().keys(entries())

    assert keys[:4] == [None, b"key-1", b"\x00\xff\x10", "kä".encode()]
    assert keys[12] is None, "the messages of this batch have different keys"


def test_headers_are_the_properties_of_all_messages() -> None:
    headers = PulsarDecoder().headers(entries())

    assert headers[3] == [("ü", "ñ 你".encode())]
    assert headers[12] == [("a", b"1"), ("b", b""), ("ü", "ñ 你".encode())]


def test_no_flipped_bit_behind_the_checksum_goes_unnoticed() -> None:
    draw, tried = random.Random(22), 0

    for entry in entries():
        begin = entry.find(b"\x0e\x01")
        for position in draw.sample(range(begin + 2, len(entry)), 3 if begin >= 0 else 0):
            damaged = bytearray(entry)
            damaged[position] ^= 1 << draw.randrange(8)
            assert "checksum of the entry" in error_of(bytes(damaged))
            tried += 1

    assert tried > 300


def test_an_encrypted_payload_is_left_as_it_is() -> None:
    keys = [{"key": b"ours", "value": b"\x00"}]
    sealed = made_entry(
        b"\x00sealed", encryption_keys=keys, encryption_algo=b"AES", compression=1, num_messages_in_batch=9
    )

    [(_, row)] = rows(sealed)

    assert row.value == b"\x00sealed"
    assert row.sections["metadata"]["encryption"] == {"algorithm": "AES", "keys": ["ours"]}
    assert row.sections["metadata"]["batch_size"] == 9
    assert "error" not in row.sections["metadata"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("stated", [0, 999, 1001, payloads.PLAIN_SIZE_BYTES_MAX + 1, 2**32 - 1])
def test_a_payload_must_have_exactly_the_stated_size(codec: int, stated: int) -> None:
    stored = CODECS[codec](b"x" * 1000)

    [(_, row)] = rows(made_entry(stored, compression=codec, uncompressed_size=stated))

    assert row.value == stored
    assert "error" in row.sections["metadata"]


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_allocates_no_more_than_the_limit(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "PLAIN_SIZE_BYTES_MAX", 2**16)
    bomb = CODECS[codec](bytes(2**24))

    tracemalloc.start()
    for stated in (2**16, 2**24):
        assert error_of(made_entry(bomb, compression=codec, uncompressed_size=stated)).startswith(
            "entry at byte 0: "
        )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 4 * (2**16 + len(bomb)) + 2**20


def test_an_unknown_compression_is_named() -> None:
    assert "compression 9 is not known" in error_of(made_entry(b"x", compression=9))


@pytest.mark.parametrize("count", [-1, 0, 1, 3, 2**31 - 1])
def test_a_batch_of_another_count_shows_its_sound_messages_and_an_error(count: int) -> None:
    found = rows(made_entry(framed(b"a", b"b"), num_messages_in_batch=count))

    sound = max(0, min(count, 2))
    assert [row.value for _, row in found[:-1]] == [b"a", b"b"][:sound]
    assert found[-1][1].sections["metadata"]["error"]
    assert found[-1][1].value == framed(*[b"a", b"b"][sound:])


@pytest.mark.parametrize("size", [-1, 2, 2**31 - 1])
def test_a_message_does_not_reach_beyond_its_batch(size: int) -> None:
    single = message_class("messages.SingleMetadata")(payload_size=size).SerializeToString()
    batch = len(single).to_bytes(4, "big") + single + b"x"

    assert "size of a message" in error_of(made_entry(batch, num_messages_in_batch=1))


def test_one_call_expands_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "EXPANDED_SIZE_BYTES_MAX", 20_000)
    record = made_entry(CODECS[3](bytes(8000)), compression=3, uncompressed_size=8000)

    first, second, third = PulsarDecoder().decode([record] * 3)

    assert first.value == second.value == bytes(8000)
    assert third.value == record
    assert "too large to expand" in third.sections["messages"][0]["metadata"]["error"]
    assert len(rows(record, record, record)) == 3
    assert all("error" not in row.sections["metadata"] for _, row in rows(record, record, record))


def test_a_field_of_a_later_version_changes_nothing() -> None:
    record = made_entry(b"x")
    metadata = record[10:-1] + b"\x92\x06\x03new"
    rest = len(metadata).to_bytes(4, "big") + metadata + b"x"

    [(_, row)] = rows(rest)

    assert row.value == b"x"
    assert "error" not in row.sections["metadata"]


def test_a_million_unknown_fields_are_one_line() -> None:
    metadata = b"\x0a\x01p\x10\x01\x18\x02" + b"\xa8\x06\x01" * 10**6

    assert "size of messages.EntryMetadata" in error_of(len(metadata).to_bytes(4, "big") + metadata)


@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(
            lambda entry, at, to, cut: (entry[:at] + to + entry[at + len(to) :])[: len(entry) - cut],
            st.sampled_from(
                [
                    entry[6:] for entry in entries() if entry[:2] == b"\x0e\x01"
                ]  # no checksum to find the damage
            ),
            st.integers(0, 60),
            st.binary(max_size=8),
            st.integers(0, 3),
        ),
    )
)
def test_no_bytes_make_the_decoder_fail(record: bytes) -> None:
    found = rows(record)
    [decoded] = PulsarDecoder().decode([record])

    assert found
    assert {tuple(row.sections) for _, row in found} == {("batch_index", "key", "properties", "metadata")}
    assert json.loads(json.dumps(decoded.sections)) == decoded.sections
    assert len(PulsarDecoder().bodies([record])) == 1
    assert len(PulsarDecoder().keys([record])) == len(PulsarDecoder().headers([record])) == 1


def test_other_bytes_are_refused_with_the_byte() -> None:
    with pytest.raises(Corrupt, match="size of metadata"):
        PulsarEntry.decode(b"\x0e\x02\xff\xff\xff\xff", where="e")
    with pytest.raises(Corrupt, match="EntryMetadata"):
        PulsarEntry.decode(b"\0\0\0\2\x08\x01", where="e")


def tier_of(folder: Path, records: Iterable[bytes]) -> None:
    async def main() -> None:
        async with open_tier(str(folder)) as tier:
            writer = await StreamWriter.claim(tier, "orders")
            chunk = build_chunk([*records], offset=0, timestamp_ms=1_700_000_000_000, epoch=1)
            await writer.offload([MemoryHandle([chunk])])

    asyncio.run(main())


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pulsar") / "tier"
    tier_of(folder, entries())
    return folder


class TestRead:
    """`offload read --decode pulsar` prints one line for each message."""

    def test_each_message_is_a_line_with_its_offset_and_batch_index(self, tier: Path) -> None:
        lines = read(tier, "orders", "--decode", "pulsar").objects

        assert [(line["offset"], line["batch_index"]) for line in lines] == [
            (row["entry"], row.get("batch_index")) for row in EXPECTED
        ]
        assert [*lines[0]] == [
            "offset",
            "timestamp",
            "value",
            "batch_index",
            "key",
            "properties",
            "metadata",
        ]

    def test_a_limit_counts_messages(self, tier: Path) -> None:
        lines = read(tier, "orders", "--decode", "pulsar", "--from", 11, "--limit", 4).objects

        assert [(line["offset"], line["batch_index"]) for line in lines] == [
            (11, None),
            (12, 0),
            (12, 1),
            (12, 2),
        ]

    def test_an_end_counts_entries(self, tier: Path) -> None:
        lines = read(tier, "orders", "--decode", "pulsar", "--from", 12, "--to", 13).objects

        assert [line["batch_index"] for line in lines] == [*range(7)]

    def test_bodies_are_the_payloads(self, tier: Path) -> None:
        found = read(tier, "orders", "--decode", "pulsar", "--format", "body").stdout

        assert found == b"".join(base64.b64decode(row["payload"]) + b"\n" for row in EXPECTED)

    def test_raw_is_the_entry(self, tier: Path) -> None:
        found = read(tier, "orders", "--decode", "pulsar", "--format", "raw").stdout

        assert found == b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries())


def test_the_plugin_is_listed() -> None:
    assert any("decoder pulsar" in line for line in offload("plugins").lines)


def test_a_row_of_spark_is_an_entry_with_the_list_of_its_messages() -> None:
    sample = build_chunk([*entries()], offset=0, timestamp_ms=1_700_000_000_000, epoch=1)
    with in_process.tier() as tier:
        tier.write("orders", [MemoryHandle([sample])])

        plans = tier.plan(streams="orders")
        batches = [each for parts in plans for each in tier.read(parts, decode="pulsar")]

    offsets, messages, keys = (
        [value for batch in batches for value in batch.column(name).to_pylist()]
        for name in ("offset", "messages", "key")
    )
    assert offsets == [*range(len(entries()))]
    assert sum(len(json.loads(each)) for each in messages) == len(EXPECTED)
    assert keys[1] == b"key-1"
