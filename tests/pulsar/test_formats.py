"""Tests of Pulsar's formats: data blocks, indexes and protobuf messages, beside bytes that Pulsar wrote."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_pulsar import ledger_metadata
from offload_pulsar.blocks import (
    ENTRY_HEADER_SIZE_BYTES,
    HEADER_SIZE_BYTES,
    BlockCutter,
    BlockHeader,
    encode_entries,
    padding,
    walk,
)
from offload_pulsar.index import INDEX_BLOCK, LedgerGroup, PulsarIndex
from offload_pulsar.ledger_metadata import LedgerInfo, LedgerMetadata, OffloadContext, managed_ledger_info
from offload_pulsar.names import BrokerNames, PulsarKey, check_version
from pulsar_sets import DATA, REPEATABLE, SETS, entries_of, metadata_of, objects_of

from offload.ground.errors import Corrupt, Misuse

UID = UUID("01234567-89ab-4cde-8f01-23456789abcd")
GREEK = [b"alpha", b"be", b"gamma-delta"]
OVERHEAD = HEADER_SIZE_BYTES + ENTRY_HEADER_SIZE_BYTES
EXAMPLE = {
    "bookies": ("b1:3181", "b2:3181", "b3:3181"),
    "ensemble": 3,
    "write_quorum": 2,
    "ack_quorum": 2,
    "ctime_ms": 1700000000000,
    "custom": {"application": b"pulsar"},
}


def packed(entries: list[bytes]) -> tuple[bytes, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    ends = np.cumsum([0, *map(len, entries)], dtype=np.uint64)
    return b"".join(entries), ends[:-1], ends[1:]


def cut(
    entries: list[bytes], block: int, *, runs: int = 100, length: int | None = None
) -> tuple[list[int], list[bytes]]:
    """Return the first entries and the bytes of the blocks, with entries handed over in runs."""
    stated = sum(map(len, entries)) if length is None else length
    cutter = BlockCutter(
        last_entry=len(entries) - 1, length=stated, block_size_bytes_max=block, where="ledger 7"
    )
    blocks = []
    for at in range(0, len(entries), runs):
        blocks += list(cutter.add(*packed(entries[at : at + runs])))
    return [each.first_entry_id for each in blocks], [each.data for each in blocks]


def cut_v2(entries: list[bytes], block: int, *, ledger_id: int, first: int) -> tuple[list[int], list[bytes]]:
    """Return V2 blocks of one size. No broker writes them, so this writer is here, for the reader."""
    firsts, blocks, at = list[int](), list[bytes](), 0
    while at < len(entries):
        sizes = np.cumsum([ENTRY_HEADER_SIZE_BYTES + len(each) for each in entries[at:]])
        count = max(1, int(np.searchsorted(sizes, block - HEADER_SIZE_BYTES, side="right")))
        size = max(block, HEADER_SIZE_BYTES + int(sizes[count - 1]))
        header = BlockHeader(block_size_bytes=size, first_entry_id=first + at, ledger_id=ledger_id)
        body = header.encode() + encode_entries(*packed(entries[at : at + count]), first=first + at)
        firsts.append(first + at)
        blocks.append(body + padding(size - len(body)))
        at += count
    return firsts, blocks


def index_v2(groups: list[tuple[LedgerInfo, list[int], list[int]]]) -> PulsarIndex:
    """Return the V2 index of ledgers whose blocks lie back to back: firsts and sizes of each."""
    made, part, offset = [], 1, 0
    for info, firsts, sizes in groups:
        blocks = np.empty(len(firsts), INDEX_BLOCK.dtype)
        ends = offset + np.cumsum(np.array(sizes, np.uint64), dtype=np.uint64)
        blocks["first_entry_id"] = firsts
        blocks["part_number"] = np.arange(part, part + len(firsts))
        blocks["offset"] = ends - np.array(sizes, np.uint64)
        made.append(LedgerGroup(ledger_id=info.ledger_id, metadata=info, blocks=blocks, ends=ends))
        part, offset = part + len(firsts), int(ends[-1])
    return PulsarIndex(version=2, data_size_bytes=offset, groups=tuple(made))


def read_back(data: bytes, index: PulsarIndex, number: int = 0) -> list[bytes]:
    """Return the entries of one ledger, by the headers, the index and the walk."""
    group, entries = index.groups[number], []
    for row, end in zip(group.blocks, group.ends.tolist(), strict=True):
        start, first = int(row["offset"]), int(row["first_entry_id"])
        block = data[start:end]
        header = BlockHeader.decode(block, where="data", position=start)
        ledger_id = group.ledger_id if index.version == 2 else None
        wanted = BlockHeader(block_size_bytes=end - start, first_entry_id=first, ledger_id=ledger_id)
        header.check(wanted, where="data", position=start)
        found = walk(block[HEADER_SIZE_BYTES:], first=first, is_last_data=True, where="data")
        body = block[HEADER_SIZE_BYTES:]
        entries += [body[s:e] for s, e in zip(found.starts.tolist(), found.ends.tolist(), strict=True)]
    return entries


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def test_the_worked_example_has_the_bytes_that_pulsar_writes() -> None:
    firsts, blocks = cut(GREEK, 165)
    metadata = LedgerMetadata.of(length=18, last_entry=2, **EXAMPLE)  # type: ignore[arg-type]
    index = PulsarIndex.of_blocks(7, metadata, firsts, [len(each) for each in blocks])

    assert digest(b"".join(blocks)) == "af438bd4a010cbae076430d2c0f7135d62e5837cabc0f381dbb9be7f9da38b45"
    assert digest(index.encode()) == "83a4435e8237204d15d9a87668a3c549cbf73efbddcf05581e47258e3d5b77ad"


def test_a_thousand_entries_have_the_bytes_that_pulsar_writes() -> None:
    entries = [
        ((entry + 31 * np.arange(entry * 7919 % 2048)) % 256).astype(np.uint8).tobytes()
        for entry in range(1000)
    ]
    firsts, blocks = cut(entries, 65536)
    metadata = LedgerMetadata.of(length=989716, last_entry=999, **EXAMPLE)  # type: ignore[arg-type]
    index = PulsarIndex.of_blocks(7, metadata, firsts, [len(each) for each in blocks])

    assert (firsts[:3], firsts[-1], len(blocks[-1])) == ([0, 68, 133], 973, 27622)
    assert digest(b"".join(blocks)) == "444f96e27d4e0a8ce18dd5c9a101689c1de0a10e7fc407e13052b19c1906ffd1"
    assert digest(index.encode()) == "167e242fe24b00686b81029cdc42e3f8588e1a83b7160463cbf3f5f189972695"


def test_the_worked_example_of_v2_has_the_bytes_that_pulsar_writes() -> None:
    firsts, blocks = cut_v2(GREEK, 165, ledger_id=7, first=0)
    info = LedgerInfo.of(ledger_id=7, entries=3, length=18, closed_ms=1700000001000)
    index = index_v2([(info, firsts, [len(each) for each in blocks])])

    data = b"".join(blocks)
    assert len(data) == 330
    assert data[165 : 165 + 36] == bytes.fromhex(
        "26a66d32 0000000000000080 00000000000000a5 0000000000000002 0000000000000007"
    )
    assert data.endswith(bytes.fromhex("fedcdeadfedcdeadfedcdeadfedc"))
    assert digest(index.encode()) == "55376ef15eb963043a02e6aa19e978353e7b64c3fffc353e2b5e3026ec76b1dd"


def test_an_offloaded_ledger_has_the_record_that_pulsar_writes() -> None:
    properties = (
        ("bucket", "b"),
        ("managedLedgerOffloadDriver", "AWS_S3"),
        ("region", "us-east-1"),
        ("serviceEndpoint", ""),
    )
    context = OffloadContext(
        uid=UID, is_complete=True, timestamp_ms=1700000009000, driver="aws-s3", properties=properties
    )
    info = LedgerInfo.of(ledger_id=7, entries=3, length=18, closed_ms=1700000001000, offloaded=context)

    head = "08 07 10 03 18 12 20 e8d795ffbc31 2a 8501 08 de99adcdf8acd19101 10 cdd7a6bcd6e8c8808f01 18 01"
    assert info.raw.startswith(bytes.fromhex(head + "28 a89696ffbc31 32 65"))
    assert len(info.raw) == 149
    assert info.offloaded == context


@pytest.mark.parametrize("name", REPEATABLE)
def test_our_writer_makes_the_bytes_of_each_set(name: str) -> None:
    row = SETS[name]
    firsts, blocks = cut(entries_of(row["entries"]), row["max_block_size"])
    index = PulsarIndex.of_blocks(row["ledger"], metadata_of(row), firsts, [len(each) for each in blocks])

    data, packed_index = b"".join(blocks), index.encode()

    assert [digest(data), digest(packed_index)] == [each["sha256"] for each in row["objects"]]
    assert read_back(data, PulsarIndex.decode(packed_index, ledger_id=row["ledger"], where="index")) == (
        entries_of(row["entries"])
    )


@pytest.mark.parametrize("name", ["v2-one-ledger", "v2-from-2^33", "v2-three-ledgers"])
def test_sets_of_v2_are_read_and_written_again(name: str) -> None:
    (_, data), (_, raw) = objects_of(name)
    index = PulsarIndex.decode(raw, ledger_id=None, where="index")

    assert index.encode() == raw
    made = {}
    for stated in SETS[name]["ledgers"]:
        number = [each.ledger_id for each in index.groups].index(stated["ledger"])
        entries, group = entries_of(stated["entries"]), index.groups[number]
        assert read_back(data, index, number) == entries
        _, blocks = cut_v2(
            entries, SETS[name]["min_block_size"], ledger_id=group.ledger_id, first=group.first_entry
        )
        made |= {int(group.blocks["offset"][0]): b"".join(blocks)}
    assert b"".join(made[offset] for offset in sorted(made)) == data


def test_the_ledgers_of_one_object_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of 64 MiB would otherwise have some million of them."""
    (_, _), (row, raw) = objects_of("v2-three-ledgers")

    monkeypatch.setattr("offload_pulsar.index.GROUPS_MAX", 3)
    assert len(PulsarIndex.decode(raw, ledger_id=None, where=row["key"]).groups) == 3
    monkeypatch.setattr("offload_pulsar.index.GROUPS_MAX", 2)
    with pytest.raises(Corrupt, match="groups of the index: expected at most 2, found more"):
        PulsarIndex.decode(raw, ledger_id=None, where=row["key"])


def test_blocks_longer_than_their_headers_say_are_found() -> None:
    """The writer of V2 in Pulsar 4.0.8 does not count the first entry of a block."""
    (_, data), (_, raw) = objects_of("v2-defect-full-block")
    index = PulsarIndex.decode(raw, ledger_id=None, where="index")

    with pytest.raises(Corrupt, match="at byte"):
        read_back(data, index)


def test_an_index_that_leads_beyond_its_data_is_found() -> None:
    """Pulsar's writer stops at an entry that fits no block, and reports success."""
    (_, _), (row, raw) = objects_of("defect-entry-larger-than-block")

    with pytest.raises(Corrupt, match=r"at byte \d+: offset of block"):
        PulsarIndex.decode(raw, ledger_id=7, where=row["key"])


def test_records_of_pulsar_are_read_and_written_again() -> None:
    records = []
    for row in SETS["ledger-info"]["ledgers"]:
        raw = (DATA / "ledger-info" / row["file"]).read_bytes()
        info = LedgerInfo.decode(raw, where=row["file"])
        records.append(info)
        assert (info.ledger_id, info.entries, info.length) == (row["ledger"], row["entries"], row["size"])
        if "uuid" in row:
            assert info.offloaded is not None
            assert info.offloaded == OffloadContext(
                uid=UUID(row["uuid"]),
                is_complete=row["complete"],
                is_deleted_from_bookkeeper=row["bookkeeper_deleted"],
                timestamp_ms=row["offload_timestamp"],
                driver=row["driver"],
                properties=tuple(row["driver_metadata"].items()),
            )

    whole = (DATA / "ledger-info" / "managed-ledger-info.bin").read_bytes()
    assert list(managed_ledger_info(whole, where="all")) == records


def test_the_descriptors_have_the_fields_of_the_proto_files() -> None:
    folder = Path(ledger_metadata.__file__).parent / "schemas"
    compiled = {}
    for name in (
        "bookkeeper.LedgerMetadata",
        "managed_ledger.ManagedLedgerInfo",
        "managed_ledger.OffloadContext",
        "messages.EntryMetadata",
        "messages.SingleMetadata",
        "messages.BrokerMetadata",
    ):
        message = ledger_metadata.message_class(name).DESCRIPTOR
        for each in [message, *(field.message_type for field in message.fields if field.message_type)]:
            compiled |= {(each.name, field.name): field.number for field in each.fields}

    written = {}
    for path in folder.glob("*.proto"):
        names: list[str] = []
        for line in path.read_text().splitlines():
            if opened := re.match(r"\s*(?:message|enum) (\w+) \{", line):
                names.append(opened[1])
            elif line.strip() == "}":
                names.pop()
            elif field := re.match(r"\s*(?:required|optional|repeated) [\w.]+ (\w+) = (\d+);", line):
                written[names[-1], field[1]] = int(field[2])

    assert len(compiled) > 30
    assert compiled.items() <= written.items()


edges = st.one_of(
    st.integers(0, 40),
    st.sampled_from([0, 0, 1, 2, 3]).map(lambda less: -less),  # from the most that a block takes downwards
)


@given(
    block=st.one_of(st.integers(141, 400), st.just(4096)),
    shapes=st.lists(st.tuples(edges, st.integers(1, 20)), min_size=1, max_size=30),
    runs=st.sampled_from([1, 7, 1000]),
)
def test_v1_blocks_give_back_their_entries(block: int, shapes: list[tuple[int, int]], runs: int) -> None:
    most = block - OVERHEAD
    sizes = [
        min(max(0, size if size > 0 else most + size), most) for size, times in shapes for _ in range(times)
    ]
    entries = [bytes([number % 256]) * size for number, size in enumerate(sizes)]

    firsts, blocks = cut(entries, block, runs=runs)

    metadata = LedgerMetadata.of(length=sum(sizes), last_entry=len(sizes) - 1)
    raw = PulsarIndex.of_blocks(9, metadata, firsts, [len(each) for each in blocks]).encode()
    index = PulsarIndex.decode(raw, ledger_id=9, where="index")
    assert read_back(b"".join(blocks), index) == entries
    assert all(len(each) == block for each in blocks[:-1])
    assert len(blocks[-1]) <= block


@given(
    block=st.integers(141, 400),
    ledgers=st.lists(
        st.tuples(st.integers(0, 2**33), st.lists(st.integers(0, 300), min_size=1, max_size=20)),
        min_size=1,
        max_size=4,
    ),
    order=st.randoms(use_true_random=False),
)
def test_v2_blocks_give_back_the_entries_of_each_ledger(
    block: int, ledgers: list[tuple[int, list[int]]], order: Any
) -> None:
    groups, data, kept = [], b"", []
    for number, (first, sizes) in enumerate(ledgers):
        entries = [bytes([each % 256]) * size for each, size in enumerate(sizes)]
        firsts, blocks = cut_v2(entries, block, ledger_id=number, first=first)
        info = LedgerInfo.of(ledger_id=number, entries=first + len(sizes), length=sum(sizes), closed_ms=1)
        groups.append((info, firsts, [len(each) for each in blocks]))
        data, kept = data + b"".join(blocks), [*kept, entries]
    made = index_v2(groups)
    shuffled = list(made.groups)
    order.shuffle(shuffled)  # Pulsar writes groups in the order of a hash map
    raw = PulsarIndex(version=2, data_size_bytes=made.data_size_bytes, groups=tuple(shuffled)).encode()

    index = PulsarIndex.decode(raw, ledger_id=None, where="index")

    for number, group in enumerate(index.groups):
        assert read_back(data, index, number) == kept[group.ledger_id]


@given(sizes=st.lists(st.sampled_from([3, 3, 3, 0, 5]), max_size=200), cut_at=st.integers(0, 4000))
def test_a_walk_in_two_parts_finds_what_one_walk_finds(sizes: list[int], cut_at: int) -> None:
    entries = [b"x" * size for size in sizes for _ in range(3)]
    body = encode_entries(*packed(entries), first=5) + padding(30)
    whole = walk(body, first=5, is_last_data=True, where="block")

    head = walk(body[:cut_at], first=5, is_last_data=cut_at >= len(body), where="block")
    rest = walk(body[head.used_bytes :], first=5 + len(head.starts), is_last_data=True, where="block")

    assert [*head.ends, *(rest.ends + np.uint64(head.used_bytes))] == [*whole.ends]
    assert whole.is_over
    assert whole.used_bytes == len(body) - 30


@pytest.mark.parametrize(("block", "size"), [(300, 161), (300, 500), (141, 2)])
def test_an_entry_that_fits_no_block_is_refused_before_its_block_is_cut(block: int, size: int) -> None:
    with pytest.raises(Misuse, match=f"entry 1 has {size} bytes"):
        cut([b"a", b"b" * size, b"c"], block)


@pytest.mark.parametrize("stated", [0, 17, 19, 5000])
@pytest.mark.parametrize("block", [165, 4096])
def test_a_stated_length_that_is_wrong_is_found(stated: int, block: int) -> None:
    with pytest.raises(Corrupt, match=f"length of the ledger: expected {stated}"):
        cut(GREEK, block, length=stated)


def test_every_flipped_bit_of_a_header_is_found() -> None:
    for ledger_id in (None, 7):
        wanted = BlockHeader(block_size_bytes=500, first_entry_id=3, ledger_id=ledger_id)
        raw = wanted.encode()
        assert BlockHeader.decode(raw, where="data") == wanted
        for bit in range(len(raw) * 8):
            damaged = bytearray(raw)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(Corrupt):
                BlockHeader.decode(bytes(damaged), where="data").check(wanted, where="data", position=0)


def test_flipped_bits_of_entry_headers_and_padding_are_found() -> None:
    """A size that swallows the entries behind it shows only in their number. The index knows it."""
    body = encode_entries(*packed([b"one", b"two-two", b"", b"", b"five"]), first=0) + padding(7)
    sound = walk(body, first=0, is_last_data=True, where="data")
    payload = {
        byte
        for start, end in zip(sound.starts.tolist(), sound.ends.tolist(), strict=True)
        for byte in range(start, end)
    }

    for bit in range(len(body) * 8):
        damaged = bytearray(body)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = walk(bytes(damaged), first=0, is_last_data=True, where="data", position=1000)
        except Corrupt as damage:
            assert 1000 <= damage.position < 1000 + len(body)  # noqa: PT017 - either way is right
            assert bit // 8 not in payload
        else:
            assert (len(found.starts) == 5) == (bit // 8 in payload)


def test_every_cut_index_is_found() -> None:
    for name, ledger_id in (("exact-fit", 7), ("v2-three-ledgers", None)):
        (_, _), (row, raw) = objects_of(name)
        for size in range(len(raw)):
            with pytest.raises(Corrupt, match=re.escape(row["key"])):
                PulsarIndex.decode(raw[:size], ledger_id=ledger_id, where=row["key"])


def damaged_index(position: int, value: bytes, *, name: str = "exact-fit") -> bytes:
    (_, _), (_, raw) = objects_of(name)
    return raw[:position] + value + raw[position + len(value) :]


BLOCK_TABLE = 188 - 4 * 20
"""The byte at which the blocks begin in the index of the set exact-fit."""


@pytest.mark.parametrize(
    ("position", "value", "what"),
    [
        (0, b"DE47", "magic"),
        (4, b"\0\0\0\1", "index_size_bytes"),
        (8, b"\0" * 8, "offset"),
        (8, b"\xff" * 8, "nothing: a larger data object is found when it is read"),
        (16, b"\0" * 8, "header_size_bytes"),
        (24, b"\x7f\xff\xff\xff", "size of the index"),
        (24, b"\0\0\0\0", "blocks"),
        (28, b"\xff\xff\xff\xff", "size of the index"),
        (28, b"\0\0\0\0", "size of the index"),
        (32, b"\xff" * 20, "message"),
        (BLOCK_TABLE + 20 + 12, b"\0" * 8, "offset of block 1"),
        (BLOCK_TABLE + 20 + 12, b"\xff" * 8, "offset of block 1"),
        (BLOCK_TABLE + 40 + 8, b"\0\0\0\2", "part_number of block"),
        (BLOCK_TABLE + 40, b"\0" * 8, "first_entry_id of block 2"),
        (BLOCK_TABLE + 60, b"\xff" * 8, "first_entry_id of block 3"),
    ],
)
def test_an_index_of_wrong_numbers_is_refused(position: int, value: bytes, what: str) -> None:
    raw = damaged_index(position, value)

    if what.startswith("nothing"):
        assert PulsarIndex.decode(raw, ledger_id=7, where="index").data_size_bytes == 2**64 - 1
        return
    with pytest.raises(Corrupt, match=what):
        PulsarIndex.decode(raw, ledger_id=7, where="index")


def index_with(message: bytes) -> bytes:
    firsts, blocks = cut(GREEK, 165)
    metadata = LedgerMetadata(message, length=18, last_entry=2, ctime_ms=None)
    return PulsarIndex.of_blocks(7, metadata, firsts, [len(each) for each in blocks]).encode()


SOUND = LedgerMetadata.of(length=18, last_entry=2).raw


@pytest.mark.parametrize(
    "message",
    [
        b"",
        SOUND[2:],  # without the quorum
        b"\x0a\x01x" + SOUND,  # the quorum as bytes is an unknown field, and the real one follows: sound
        b"\x08\x02",
        b"\x1a\xff\xff\xff\xff\x07",  # a length beyond the message
        SOUND.replace(b"\x28\x03", b"\x28\x01"),  # an open ledger
        SOUND + b"\xa0\x06\x01" * 10**6,  # 3 MB of unknown fields
    ],
)
def test_a_strange_message_is_refused_or_kept(message: bytes) -> None:
    raw = index_with(message)

    if message == b"\x0a\x01x" + SOUND:
        assert PulsarIndex.decode(raw, ledger_id=7, where="index").encode() == raw
        return
    with pytest.raises(Corrupt, match="at byte 32"):
        PulsarIndex.decode(raw, ledger_id=7, where="index")


def test_unknown_fields_survive() -> None:
    unknown = b"\xa2\x06\x03new"
    kept = LedgerMetadata.decode(SOUND + unknown, where="message")
    info = LedgerInfo.of(ledger_id=1, entries=2, length=3, closed_ms=4)

    assert kept.raw == SOUND + unknown
    whole = b"\x0a" + bytes([len(info.raw + unknown)]) + info.raw + unknown
    assert [each.raw for each in managed_ledger_info(whole, where="all")] == [info.raw + unknown]


@given(st.uuids(), st.none() | st.integers(0, 2**63 - 1), st.booleans())
def test_keys_are_parsed_as_they_are_written(uid: UUID, ledger_id: int | None, is_index: bool) -> None:
    key = PulsarKey(uid, ledger_id, is_index)

    assert PulsarKey.parse(str(key)) == key


@pytest.mark.parametrize(
    "key",
    [
        "",
        "index",
        f"{UID}-ledger-",
        f"{UID}-ledger-x",
        f"{UID}-ledger-7-index-index",
        f"{UID}-ledger-07",
        f"{UID}-ledger--7",
        f"{UID}-ledger-{2**63}",
        f"{UID}-ledger-\N{ARABIC-INDIC DIGIT SEVEN}",
        f"x{UID}-ledger-7",
        f"folder/{UID}-ledger-7",
        f"{UID}-ledger-7\n",
        str(UID).upper(),
        "-ledger-7",
        str(UID).replace("-", ""),
    ],
)
def test_keys_of_strangers_are_not_parsed(key: str) -> None:
    assert PulsarKey.parse(key) is None


def test_written_metadata_is_that_of_pulsar() -> None:
    for name in ("exact-fit", "v2-one-ledger"):
        for row, _ in objects_of(name):
            stated = row["user_metadata"]
            names = BrokerNames(
                managed_ledger="public/default/persistent/peer-partition-0",
                cluster="golden",
                software_version="4.0.8",
                software_commit=stated["s3managedledgeroffloadersoftwaregitsha"],
            )
            key = PulsarKey.parse(row["key"])
            assert key is not None
            assert names.metadata(key) == stated


@pytest.mark.parametrize("metadata", [{}, {"s3managedledgeroffloaderformatversion": "2"}, {"role": "1"}])
def test_another_version_is_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(Corrupt, match="formatversion"):
        check_version(metadata, where="key")

    check_version({"S3ManagedLedgerOffloaderFormatVersion": "1"}, where="key")


def test_the_manifest_of_the_sets_is_that_of_pulsars_classes() -> None:
    manifest = json.loads((DATA / "MANIFEST.json").read_text())

    assert manifest["made_by"] == "Apache Pulsar 4.0.8, its released classes"
    assert len(REPEATABLE) == 27
