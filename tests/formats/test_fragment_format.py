"""Tests of a fragment's bytes: they are pinned, decoding undoes encoding, and every flipped bit is found."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from functools import cache
from typing import Any, Final
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_fragments import CODECS, Draft, chunk_of, chunks_of, fragment_of, tail_of, with_flipped_bit

from offload.formats.blocks import BLOCK
from offload.formats.checksums import crc32, crc32c
from offload.formats.fragment import (
    DESCRIPTION,
    INDEX,
    METADATA_SIZE_BYTES_MAX,
    SOURCE_EPOCH,
    FragmentTail,
    encode_description,
    encode_tail,
    verbatim_size_bytes,
)
from offload.formats.fragment_trailer import (
    FRAGMENT_HEADER,
    HEADER,
    TRAILER,
    FragmentTrailer,
    check_header,
    stream_digest,
)
from offload.formats.sections import SECTION
from offload.ground.errors import Corrupt, Misuse, UnsupportedFormat
from offload.model.chunk_table import CHUNK_TABLE
from offload.model.compression import Compression

SAMPLE: Final = FragmentTrailer(
    codec=1,
    copied=1,
    stream_digest=stream_digest("orders"),
    incarnation=UUID(int=1),
    attempt=UUID(int=0xA1),
    ledger_id=77,
    epoch=3,
    base_version=5,
    first_offset=100,
    next_offset=120,
    messages=18,
    first_timestamp_ms=-5,
    last_timestamp_ms=1_700_000_000_000,
    data_size_bytes=4096,
    size_bytes=5000,
    tail_start=4112,
    chunk_count=2,
    section_count=4,
    data_checksum=0x01020304,
    tail_checksum=0x05060708,
)
TRAILER_HEX: Final = (
    "4f4c4654000201011c168adb00d208e42f93314529f1fa9c0427eb63233ceda95a5db52b7012a719"
    "00000000000000000000000000000001000000000000000000000000000000a1000000000000004d"
    "00000000000000030000000000000005000000000000006400000000000000780000000000000012"
    "fffffffffffffffb0000018bcfe56800000000000000100000000000000013880000000000001010"
    "000000020000000401020304050607087ca729cc"
)
INDEX_HEX: Final = "0000018bcfe56800fffffffffffffffb0000004900000041000000070000000d0200"
"""Two timestamps, two sizes, two counts of records, two types."""
CHECKSUMS_HEX: Final = "1122334455667788"
DESCRIPTION_HEX: Final = "00000006000000006f7264657273"
DIRECTORY_HEX: Final = (
    "696e646578000000000000000000000000010000000000000000009a00000000000000220000000000000022ab670caa"
    "636865636b73756d73000000000000000001000000000000000000bc00000000000000080000000000000008d441a37d"
    "6465736372697074696f6e00000000000001000000000000000000c4000000000000000e000000000000000e55f62064"
)
u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def trailers(draw: st.DrawFn) -> FragmentTrailer:
    """Draw a trailer with possible numbers."""
    first = draw(st.integers(0, 2**63))
    records = draw(st.integers(1, 2**62))
    sections, tail_start = draw(st.integers(0, 2**26)), draw(st.integers(16, 2**62))
    tail = sections * SECTION.size_bytes + TRAILER.size_bytes + draw(st.integers(0, 2**29))
    return FragmentTrailer(
        codec=draw(st.integers(0, 2)),
        copied=draw(st.integers(0, 1)),
        encrypted=draw(st.integers(0, 1)),
        stream_digest=draw(st.binary(min_size=32, max_size=32)),
        incarnation=draw(st.uuids()),
        attempt=draw(st.uuids()),
        ledger_id=draw(u64),
        epoch=draw(u64),
        base_version=draw(u64),
        first_offset=first,
        next_offset=first + records,
        messages=draw(st.integers(0, records)),
        first_timestamp_ms=draw(i64),
        last_timestamp_ms=draw(i64),
        data_size_bytes=draw(u64),
        size_bytes=tail_start + tail,
        tail_start=tail_start,
        chunk_count=draw(st.integers(1, min(records, 2**20))),
        section_count=sections,
        data_checksum=draw(u32),
        tail_checksum=draw(u32),
    )


@cache
def fragment() -> bytes:
    """Return a whole fragment of two chunks, stored verbatim."""
    return fragment_of(
        [chunk_of(b"one", offset=100, timestamp_ms=7), chunk_of(b"three", offset=101, timestamp_ms=8)],
        metadata={"by": "hand"},
    )


def resealed(raw: bytes | bytearray) -> bytes:
    return bytes(raw[:-4]) + crc32c(bytes(raw[:-4])).to_bytes(4, "big")


def test_the_bytes_of_version_2_do_not_drift() -> None:
    table = np.zeros(2, CHUNK_TABLE)
    table[0] = (100, 1_700_000_000_000, 16, 73, 7, 2)
    table[1] = (107, 1_699_999_999_995, 89, 65, 13, 0)
    trailer = replace(
        SAMPLE,
        codec=0,
        copied=0,
        messages=13,
        first_timestamp_ms=1_699_999_999_995,
        data_size_bytes=138,
        tail_start=154,
    )

    tail, whole = encode_tail(
        trailer,
        table,
        np.array([0x11223344, 0x55667788], np.uint32),
        blocks=b"",
        description=encode_description("orders", {}),
        compression=Compression(),
    )

    assert FRAGMENT_HEADER.hex() == "4f4c4648000200000000000000000000"
    assert tail[:-180].hex() == INDEX_HEX + CHECKSUMS_HEX + DESCRIPTION_HEX + DIRECTORY_HEX
    assert tail[-180:] == whole.encode()
    assert 154 + len(tail) == whole.size_bytes == verbatim_size_bytes(138, 2, bytes(14))


def test_the_bytes_of_a_trailer_do_not_drift() -> None:
    assert SAMPLE.encode().hex() == TRAILER_HEX
    assert FragmentTrailer.decode(bytes.fromhex(TRAILER_HEX), where="here") == SAMPLE


def test_the_bytes_of_a_description_do_not_drift() -> None:
    assert encode_description("orders", {}).hex() == DESCRIPTION_HEX
    assert encode_description("orders", {"b": "é", "a": "1"}).hex() == (
        "00000006000000166f72646572737b2261223a2231222c2262223a225c7530306539227d"
    )


def test_the_layouts_have_the_sizes_of_version_2() -> None:
    assert (HEADER.size_bytes, INDEX.size_bytes, TRAILER.size_bytes) == (16, 17, 180)
    assert (DESCRIPTION.size_bytes, SECTION.size_bytes, BLOCK.size_bytes) == (8, 48, 16)


@given(trailers())
def test_decoding_a_trailer_undoes_encoding(trailer: FragmentTrailer) -> None:
    assert FragmentTrailer.decode(trailer.encode(), where="here") == trailer


@given(trailers(), st.integers(0, 180 * 8 - 1))
def test_no_single_flipped_bit_of_a_trailer_goes_unnoticed(trailer: FragmentTrailer, bit: int) -> None:
    with pytest.raises(Corrupt):
        FragmentTrailer.decode(with_flipped_bit(trailer.encode(), bit), where="here")


@pytest.mark.parametrize("version", [1, 2])
def test_no_single_flipped_bit_of_a_header_goes_unnoticed(version: int) -> None:
    header = b"OLFH\0" + bytes([version]) + bytes(10)

    check_header(header, version=version, where="here")
    for bit in range(len(header) * 8):
        with pytest.raises(Corrupt):
            check_header(with_flipped_bit(header, bit), version=version, where="here")


@pytest.mark.parametrize("codec", CODECS)
def test_no_single_flipped_bit_of_a_tail_goes_unnoticed(codec: str) -> None:
    raw = fragment_of(chunks_of([3, 5, 700]), CODECS[codec], metadata={"by": "hand"})
    start = tail_of(raw).trailer.tail_start

    for bit in range(start * 8, len(raw) * 8):
        with pytest.raises(Corrupt):
            tail_of(with_flipped_bit(raw, bit))


def test_a_tail_says_what_was_written() -> None:
    tail = tail_of(fragment())

    assert (tail.stream, tail.metadata) == ("orders", {"by": "hand"})
    assert tail.table["offset"].tolist() == [100, 101]
    assert tail.table["timestamp_ms"].tolist() == [7, 8]
    assert tail.table["position"].tolist() == [16, 16 + int(tail.table["size_bytes"][0])]
    assert tail.checksums[1] == crc32(chunk_of(b"three", offset=101, timestamp_ms=8))
    assert list(tail.sections) == ["index", "checksums", "description"]


@given(st.lists(i64, min_size=1, max_size=20))
def test_an_index_holds_any_timestamps(times: list[int]) -> None:
    """The differences of two timestamps may exceed 64 bits. They and their sums wrap."""
    chunks = [chunk_of(b"", offset=100 + n, timestamp_ms=time) for n, time in enumerate(times)]

    tail = tail_of(fragment_of(chunks))

    assert tail.table["timestamp_ms"].tolist() == times
    assert (tail.trailer.first_timestamp_ms, tail.trailer.last_timestamp_ms) == (min(times), max(times))


def test_a_tail_decodes_from_exactly_its_own_bytes() -> None:
    raw = fragment()
    start = tail_of(raw).trailer.tail_start

    assert FragmentTail.decode(raw[start:], where="here", size_bytes=len(raw)).stream == "orders"
    with pytest.raises(Corrupt):
        FragmentTail.decode(raw[start + 1 :], where="here", size_bytes=len(raw))


def test_an_object_of_another_size_than_the_trailer_says_is_corrupt() -> None:
    raw = fragment()

    with pytest.raises(Corrupt, match="object size"):
        FragmentTail.decode(raw, where="here", size_bytes=len(raw) + 1)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=1000)


def test_the_largest_tail_that_an_entry_can_hold_is_possible() -> None:
    largest = replace(SAMPLE, size_bytes=SAMPLE.tail_start + 2**32 - 1)

    assert FragmentTrailer.decode(largest.encode(), where="here") == largest


@given(NAMES, st.dictionaries(st.text(), st.text()))
def test_a_description_holds_any_name_and_any_metadata(stream: str, metadata: dict[str, str]) -> None:
    tail = tail_of(fragment_of(chunks_of([3]), stream=stream, metadata=metadata))

    assert (tail.stream, tail.metadata) == (stream, metadata)


@pytest.mark.parametrize("metadata", [{"batch": 7}, {"batch": None}, {7: "batch"}, {"batch": ["a"]}], ids=str)
def test_metadata_that_no_reader_would_accept_is_refused(metadata: Any) -> None:
    with pytest.raises(Misuse, match="metadata are texts under texts"):
        encode_description("orders", metadata)


def test_the_size_of_metadata_is_limited() -> None:
    """A reader refuses a section of more than 64 MiB, so the fragment would be lost."""
    most = {"note": "x" * (METADATA_SIZE_BYTES_MAX - len('{"note":""}'))}

    assert tail_of(fragment_of(chunks_of([3]), metadata=most)).metadata == most
    with pytest.raises(Misuse, match="at most 1048576 bytes as JSON, not 1048577"):
        encode_description("orders", {"note": most["note"] + "x"})


def test_a_newer_version_asks_for_an_upgrade() -> None:
    raw = bytearray(SAMPLE.encode())
    raw[5] = 3

    with pytest.raises(UnsupportedFormat, match="upgrade"):
        FragmentTrailer.decode(resealed(raw), where="here")


@pytest.mark.parametrize("codec", [3, 255])
def test_an_unknown_codec_asks_for_an_upgrade(codec: int) -> None:
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        FragmentTrailer.decode(replace(SAMPLE, codec=codec).encode(), where="here")


@pytest.mark.parametrize(
    "hostile",
    [
        {"chunk_count": 2**20, "next_offset": 2**63},
        {"chunk_count": 2**20 + 1, "next_offset": 2**63},
        {"chunk_count": 2**32 - 1, "next_offset": 2**63},
        {"section_count": 2**32 - 1},
        {"section_count": 4},
        {"section_count": 0},
        {"tail_start": 2**64 - 1},
        {"tail_start": 0},
        {"tail_start": 15},
        {"tail_start": 16},
        {"size_bytes": 2**64 - 1},
        {"size_bytes": 0},
        {"data_size_bytes": 2**64 - 1},
        {"data_size_bytes": 2**40},
    ],
    ids=str,
)
def test_a_hostile_number_costs_no_memory(hostile: dict[str, Any]) -> None:
    raw = Draft.of(fragment()).sealed(**hostile)
    tracemalloc.start()

    with pytest.raises(Corrupt):
        tail_of(raw)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 256 * 1024


@pytest.mark.parametrize(
    "impossible",
    [
        {"next_offset": 100},
        {"next_offset": 99},
        {"chunk_count": 0},
        {"chunk_count": 21},
        {"chunk_count": 2**20 + 1, "next_offset": 2**40},
        {"messages": 21},
        {"tail_start": 15},
        {"size_bytes": 4112 + 4 * 48 + 179},
        {"size_bytes": 4112 + 2**32},  # no entry could hold the size of this tail
    ],
    ids=str,
)
def test_impossible_numbers_are_corrupt_even_under_their_checksum(impossible: dict[str, Any]) -> None:
    with pytest.raises(Corrupt):
        FragmentTrailer.decode(replace(SAMPLE, **impossible).encode(), where="here")


@pytest.mark.parametrize("flags", [4, 5, 6, 7, 8, 16, 32, 64, 128, 255])
def test_unknown_flags_are_corrupt_even_under_their_checksum(flags: int) -> None:
    raw = bytearray(SAMPLE.encode())
    raw[TRAILER.offset_of("flags")] = flags

    with pytest.raises(Corrupt, match="trailer flags"):
        FragmentTrailer.decode(resealed(raw), where="here")


@pytest.mark.parametrize(("flags", "marks"), [(0, (0, 0)), (1, (1, 0)), (2, (0, 1)), (3, (1, 1))])
def test_each_flag_has_its_own_bit(flags: int, marks: tuple[int, int]) -> None:
    copied, encrypted = marks
    raw = replace(SAMPLE, copied=copied, encrypted=encrypted).encode()

    assert raw[TRAILER.offset_of("flags")] == flags
    found = FragmentTrailer.decode(raw, where="here")
    assert (found.copied, found.encrypted) == marks


@pytest.mark.parametrize("marks", [{"copied": 2}, {"encrypted": 2}, {"copied": -1}], ids=str)
def test_a_trailer_writes_no_mark_over_the_bit_of_another(marks: dict[str, int]) -> None:
    with pytest.raises(Misuse, match="are 0 or 1, not copied="):
        replace(SAMPLE, **marks).encode()


@pytest.mark.parametrize("name", [field.name for field in INDEX.fields])
@pytest.mark.parametrize("row", [0, 1])
def test_an_index_that_breaks_a_rule_is_corrupt_even_under_its_checksum(name: str, row: int) -> None:
    draft = Draft.of(fragment())
    size = next(field.size_bytes for field in INDEX.fields if field.name == name)
    index = bytearray(draft.section("index").body)
    index[2 * INDEX.offset_of(name) + (row + 1) * size - 1] += 3
    draft.replace_plain("index", bytes(index))

    with pytest.raises(Corrupt):
        tail_of(draft.sealed())


def test_chunks_of_no_records_are_corrupt() -> None:
    draft = Draft.of(fragment())
    index = bytearray(draft.section("index").body)
    at = 2 * INDEX.offset_of("records")
    index[at : at + 8] = bytes.fromhex("0000000000000002")  # the sum is right
    draft.replace_plain("index", bytes(index))

    with pytest.raises(Corrupt, match="index records"):
        tail_of(draft.sealed())


def test_chunks_of_an_unknown_type_are_corrupt() -> None:
    draft = Draft.of(fragment())
    draft.replace_plain("index", draft.section("index").body[:-2] + b"\3\3")

    with pytest.raises(Corrupt, match="chunk type"):
        tail_of(draft.sealed(messages=0))


def test_a_chunk_smaller_than_its_header_is_corrupt() -> None:
    """Otherwise a reader would ask a store for a range of no bytes."""
    draft = Draft.of(fragment())
    index = bytearray(draft.section("index").body)
    at = 2 * INDEX.offset_of("size_bytes")
    total = int.from_bytes(index[at : at + 4], "big") + int.from_bytes(index[at + 4 : at + 8], "big")
    index[at : at + 8] = total.to_bytes(8, "big")
    draft.replace_plain("index", bytes(index))

    with pytest.raises(Corrupt, match="chunk size"):
        tail_of(draft.sealed())


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_offset": 99},
        {"next_offset": 103},
        {"messages": 1},
        {"first_timestamp_ms": 6},
        {"last_timestamp_ms": 9},
        {"data_size_bytes": 5},
    ],
    ids=str,
)
def test_a_trailer_that_disagrees_with_the_index_is_corrupt(wrong: dict[str, Any]) -> None:
    with pytest.raises(Corrupt):
        tail_of(Draft.of(fragment()).sealed(**wrong))


def test_a_writer_refuses_a_table_that_is_not_the_trailers() -> None:
    table = tail_of(fragment()).table
    trailer = replace(SAMPLE, codec=0, next_offset=103, messages=2)

    with pytest.raises(Corrupt, match="next offset"):
        encode_tail(
            trailer,
            table,
            np.zeros(2, np.uint32),
            blocks=b"",
            description=b"",
            compression=Compression(),
        )


def test_lengths_of_a_description_that_do_not_add_up_are_corrupt() -> None:
    draft = Draft.of(fragment())
    for body in (b"\xff" * 4 + draft.section("description").body[4:], b"", bytes(7), bytes(9)):
        draft.replace_plain("description", body)
        with pytest.raises(Corrupt, match="description size"):
            tail_of(draft.sealed())


@pytest.mark.parametrize("size_bytes", [1, 20_000, 70_000, 10**9])
@pytest.mark.parametrize("first", [0, 5])
def test_no_block_is_in_two_windows(size_bytes: int, first: int) -> None:
    """It would be fetched and decoded twice."""
    tail = tail_of(fragment_of(chunks_of([9000] * 40), Compression.parse("zstd")))
    blocks = tail.blocks
    assert blocks is not None

    runs = [blocks.holding(*run) for run in tail.windows(first, 40, size_bytes=size_bytes)]

    read = [block for run in runs for block in run]
    assert read == [*range(len(blocks.rows) - 1)]
    assert len(read) > 4


def test_bytes_between_the_chunks_and_the_sections_are_corrupt() -> None:
    """They are in no chunk and in no section, although all checksums are right."""
    draft = Draft.of(fragment())
    draft.data += b"\0"

    with pytest.raises(Corrupt, match="end of chunks"):
        tail_of(draft.sealed())


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ("7", 7),
        (str(2**64 - 1), 2**64 - 1),
        (str(2**64), 0),
        *((text, 0) for text in (" 7", "+7", "-7", "1_0", "\u0667", "")),
    ],
)
def test_a_text_that_is_no_number_of_8_bytes_is_no_source_epoch(text: str, epoch: int) -> None:
    draft = Draft.of(fragment())
    draft.replace_plain("description", encode_description("orders", {SOURCE_EPOCH: text}))

    assert tail_of(draft.sealed()).source_epoch == epoch


def test_the_name_of_another_stream_is_corrupt() -> None:
    """The digest in the trailer must match the name in the description."""
    draft = Draft.of(fragment())
    draft.replace_plain("description", encode_description("orderz", {}))

    with pytest.raises(Corrupt, match="digest"):
        tail_of(draft.sealed())


@given(st.binary(max_size=400))
def test_any_other_bytes_are_corrupt(raw: bytes) -> None:
    for hostile in (raw, raw + b"OLFT\0\1", raw + b"OLFT\0\2"):
        with pytest.raises(Corrupt):
            FragmentTail.decode(hostile, where="here", size_bytes=len(hostile))


@pytest.mark.parametrize("text", [b"[1]", b'{"a":1}', b"[" * 100_000], ids=["list", "number", "deep"])
def test_metadata_other_than_an_object_of_texts_is_corrupt_even_under_its_checksum(text: bytes) -> None:
    draft = Draft.of(fragment())
    sizes = DESCRIPTION.pack(stream_size_bytes=6, metadata_size_bytes=len(text))
    draft.replace_plain("description", sizes + b"orders" + text)

    with pytest.raises(Corrupt):
        tail_of(draft.sealed())
