"""Tests of chunks: their headers, the search for a run of chunks, and the detection of damage."""

from __future__ import annotations

import dataclasses

import numpy as np
import osiris_data
import pytest
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.formats.checksums import crc32
from offload.formats.chunk import CHUNK_HEADER, ChunkHeader, check_chunks, check_stored, scan, scan_head
from offload.ground.errors import Corrupt, Misuse
from offload.model.chunk_table import CHUNK_TABLE, ChunkTable, ChunkType

WORKED_EXAMPLE = bytes.fromhex(
    "50 00 0001 00000001 000001a1fc953388 0000000000000001 0000000000000000"
    "fca351cb 000000d1 0000002b 00 000000"
)


def sizes(most: int) -> st.SearchStrategy[int]:
    return st.integers(0, most)


@st.composite
def headers(draw: st.DrawFn) -> ChunkHeader:
    chunk_type = draw(st.sampled_from(ChunkType))
    entries = draw(st.integers(1, 2**16 - 1)) if chunk_type is ChunkType.USER else 1
    return ChunkHeader(
        type=chunk_type,
        entries=entries,
        records=draw(st.integers(entries, 2**32 - 1)) if chunk_type is ChunkType.USER else 1,
        timestamp_ms=draw(st.integers(-(2**63), 2**63 - 1)),
        epoch=draw(sizes(2**64 - 1)),
        offset=draw(sizes(2**64 - 2**32)),
        crc=draw(sizes(2**32 - 1)),
        data_size_bytes=draw(sizes(2**31)),
        trailer_size_bytes=draw(sizes(2**30)),
        filter_size_bytes=draw(st.sampled_from([0, 16, 255])),
    )


def run_of(stream: str) -> tuple[bytes, ChunkTable]:
    """Return the first segment of a stream as a window at byte 1000 of an object."""
    window = osiris_data.chunks_in(osiris_data.segments(stream)[0])
    return window, scan(window, first_position=1000, where=stream)


def flipped(raw: bytes, bit: int) -> bytes:
    damaged = bytearray(raw)
    damaged[bit // 8] ^= 0x80 >> bit % 8
    return bytes(damaged)


# --- headers ---


def test_the_header_of_a_real_chunk_reads_as_documented() -> None:
    header = ChunkHeader.decode(WORKED_EXAMPLE, where="example")

    assert header == ChunkHeader(
        type=ChunkType.USER,
        entries=1,
        records=1,
        timestamp_ms=1795238998920,
        epoch=1,
        offset=0,
        crc=0xFCA351CB,
        data_size_bytes=209,
        trailer_size_bytes=43,
        filter_size_bytes=0,
    )
    assert (header.size_bytes, header.next_offset) == (300, 1)
    assert header.encode() == WORKED_EXAMPLE
    assert osiris_data.chunks("tiny")[0].startswith(WORKED_EXAMPLE)


@given(headers())
def test_decoding_undoes_encoding(header: ChunkHeader) -> None:
    assert ChunkHeader.decode(b"ab" + header.encode(), 2, where="memory") == header


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", 0x51),
        ("type", 3),
        ("reserved", b"\0\0\1"),
        ("entries", 0),
        ("records", 0),
        ("filter_size_bytes", 15),
        ("data_size_bytes", 2**32 - 1),
        ("offset", 2**64 - 1),
    ],
)
def test_a_broken_rule_is_named_with_its_field_and_position(field: str, value: object) -> None:
    values = CHUNK_HEADER.unpack(WORKED_EXAMPLE) | {field: value}

    with pytest.raises(Corrupt) as caught:
        ChunkHeader.decode(b"??" + CHUNK_HEADER.pack(**values), 2, where="an object", origin=500)

    assert caught.value.what == f"chunk {field}"
    assert caught.value.where == "an object"
    assert caught.value.position == 502 + CHUNK_HEADER.offset_of(field)


@pytest.mark.parametrize("chunk_type", [ChunkType.TRACKING_DELTA, ChunkType.TRACKING_SNAPSHOT])
def test_a_tracking_chunk_is_one_entry_and_one_record(chunk_type: ChunkType) -> None:
    values = CHUNK_HEADER.unpack(WORKED_EXAMPLE) | {"type": chunk_type, "records": 2}

    with pytest.raises(Corrupt, match="1 in a tracking chunk"):
        ChunkHeader.decode(CHUNK_HEADER.pack(**values), where="memory")


def test_a_shortened_header_is_corrupt() -> None:
    for size in range(48):
        with pytest.raises(Corrupt, match="chunk header size"):
            ChunkHeader.decode(WORKED_EXAMPLE[:size], where="memory")


def test_a_header_that_breaks_a_rule_is_never_written() -> None:
    header = ChunkHeader.decode(WORKED_EXAMPLE, where="example")

    for wrong in ({"entries": 2}, {"filter_size_bytes": 3}, {"epoch": -1}, {"data_size_bytes": 2**32}):
        with pytest.raises(Misuse):
            dataclasses.replace(header, **wrong).encode()


# --- runs of chunks ---


@pytest.mark.parametrize("stream", osiris_data.STREAMS)
def test_a_scan_finds_what_osiris_indexed(stream: str) -> None:
    for segment in osiris_data.segments(stream):
        rows = scan(osiris_data.chunks_in(segment), first_position=8, where=segment.name)

        found = rows[["offset", "timestamp_ms", "position", "type"]].tolist()
        assert found == [(o, t, p, kind) for o, t, _, p, kind in osiris_data.index_of(segment)]


@pytest.mark.parametrize("stream", osiris_data.STREAMS)
def test_every_segment_has_the_chunks_that_the_manifest_lists(stream: str) -> None:
    segments = osiris_data.MANIFEST["streams"][stream]["segments"]
    assert len(segments) == len(osiris_data.segments(stream))
    for known in segments:
        segment = osiris_data.DATA / stream / known["segment"]
        rows = scan(osiris_data.chunks_in(segment), where=segment.name)

        user = rows[rows["type"] == ChunkType.USER]
        assert len(rows) == known["chunks"]
        assert int(user["records"].sum()) == known["messages"]
        assert rows["offset"][0] == known["first_chunk_id"]
        assert rows["offset"][-1] + rows["records"][-1] == known["next_offset"]
        assert rows["timestamp_ms"][0] == known["first_timestamp_ms"]
        assert rows["timestamp_ms"][-1] == known["last_timestamp_ms"]


def test_a_shortened_chunk_is_the_rest_of_a_head_scan_and_damage_to_a_whole_one() -> None:
    first, second = osiris_data.chunks("tiny")[:2]
    for size in range(len(second)):
        window = first + second[:size]

        rows, whole_size_bytes = scan_head(window, where="window")

        assert (len(rows), whole_size_bytes) == (1, len(first))
        if size:
            with pytest.raises(Corrupt, match="incomplete chunk") as caught:
                scan(window, first_position=7, where="window")
            assert caught.value.position == 7 + len(first)


def test_an_empty_window_has_no_chunks() -> None:
    rows = scan(b"", where="nothing")

    assert rows.dtype == CHUNK_TABLE
    assert len(rows) == 0
    assert len(check_chunks(b"", rows, window_position=0, where="nothing")) == 0


def test_offsets_that_leave_a_hole_are_corrupt() -> None:
    first, _, third = osiris_data.chunks("tiny")[:3]

    with pytest.raises(Corrupt, match="chunk offset: expected 1, found 2") as caught:
        scan(first + third, where="window")

    assert caught.value.position == len(first) + CHUNK_HEADER.offset_of("offset")


def test_a_scan_names_the_first_broken_header_even_if_its_size_is_wrong() -> None:
    """A wrong size leads the scan into the middle of data, which then looks broken in another way."""
    chunks = osiris_data.chunks("tiny")
    for byte in range(36, 44):
        window = chunks[0] + flipped(chunks[1], byte * 8 + 7) + b"".join(chunks[2:])

        with pytest.raises(Corrupt) as caught:
            scan(window, where="window")

        assert caught.value.position >= len(chunks[0])


@given(
    field=st.sampled_from([field.name for field in CHUNK_HEADER.fields if field.name != "reserved"]),
    number=st.sampled_from(
        [0, 1, 2, 3, 15, 16, 0x50, 255, 2**16 - 1, 2**32 - 1, 2**63, 2**64 - 2, 2**64 - 1]
    ),
    reserved=st.sampled_from([bytes(3), b"\0\0\1", b"\1\0\0"]),
)
@settings(max_examples=300 if CAMPAIGN else 30)
def test_columns_refuse_exactly_the_headers_that_decoding_refuses(
    field: str, number: int, reserved: bytes
) -> None:
    width = next(each for each in CHUNK_HEADER.fields if each.name == field).size_bytes
    at = CHUNK_HEADER.offset_of(field)
    raw = bytearray(WORKED_EXAMPLE[:45] + reserved)
    raw[at : at + width] = (number % 2 ** (8 * width)).to_bytes(width, "big")

    refused = []
    for read in (ChunkHeader.decode, scan_head):
        try:
            read(bytes(raw), where="memory")
        except Corrupt as damage:
            refused.append(str(damage))

    assert len(refused) in (0, 2)
    assert len(set(refused)) <= 1


@pytest.mark.parametrize("case", osiris_data.TORN)
def test_a_torn_segment_yields_its_whole_chunks_or_says_where_it_is_damaged(case: str) -> None:
    for segment in osiris_data.segments(f"torn/{case}"):
        raw = segment.read_bytes()[8:]
        try:
            rows, whole_size_bytes = scan_head(raw, where=case)
        except Corrupt as damage:
            assert case in {"seg_trailing_garbage", "zero_tails"}
            rows, whole_size_bytes = scan_head(raw[: damage.position], where=case)
        if not case.startswith("crc_mismatch"):
            check_chunks(raw[:whole_size_bytes], rows, window_position=0, where=case)


@pytest.mark.parametrize(
    ("case", "chunk"), [("crc_mismatch_last_chunk", -1), ("crc_mismatch_middle_chunk", 1)]
)
def test_a_flipped_bit_in_stored_data_is_found_in_its_chunk(case: str, chunk: int) -> None:
    window = osiris_data.chunks_in(osiris_data.segments(f"torn/{case}")[-1])
    rows = scan(window, where=case)

    with pytest.raises(Corrupt, match="chunk data checksum") as caught:
        check_chunks(window, rows, window_position=0, where=case)

    assert (
        rows["position"][chunk] < caught.value.position < rows["position"][chunk] + rows["size_bytes"][chunk]
    )


# --- the way in ---


@pytest.mark.parametrize("stream", osiris_data.STREAMS)
def test_real_chunks_pass_and_get_the_checksum_of_all_their_bytes(stream: str) -> None:
    window, rows = run_of(stream)

    checksums = check_chunks(window, rows, window_position=1000, where=stream)

    whole = [window[p - 1000 :][:s] for p, s in rows[["position", "size_bytes"]].tolist()]
    assert checksums.tolist() == [crc32(chunk) for chunk in whole]
    check_stored(memoryview(window), rows, checksums, window_position=1000, where=stream)


def test_check_chunks_notices_every_flipped_bit_that_a_checksum_covers() -> None:
    """Nothing guards leader epoch and trailer yet, but the checksum that is returned differs."""
    window, rows = run_of("tiny")
    rows = rows[:2]
    window = window[: int(rows["size_bytes"].sum())]
    checksums = check_chunks(window, rows, window_position=1000, where="tiny")
    header = ChunkHeader.decode(window, where="tiny")
    unvouched = {*range(16, 24), *range(header.trailer_start, header.size_bytes)}

    for bit in range(header.size_bytes * 8):
        damaged = flipped(window, bit)
        if bit // 8 in unvouched:
            found = check_chunks(damaged, rows, window_position=1000, where="tiny")
            assert found[0] != checksums[0]
            continue
        with pytest.raises(Corrupt) as caught:
            check_chunks(damaged, rows, window_position=1000, where="tiny")
        assert 1000 <= caught.value.position < 1000 + header.size_bytes


# --- the way out ---


def test_no_single_flipped_bit_goes_unnoticed_on_the_way_out() -> None:
    """Flip each bit of each header, and one bit of each byte of data; in the campaign each bit."""
    window, rows = run_of("tiny")
    checksums = check_chunks(window, rows, window_position=1000, where="tiny")
    starts = (rows["position"] - 1000).tolist()
    headers = {start + byte for start in starts for byte in range(CHUNK_HEADER.size_bytes)}

    for bit in range(len(window) * 8):
        byte = bit // 8
        if bit % 8 != byte % 8 and byte not in headers and not CAMPAIGN:
            continue
        with pytest.raises(Corrupt) as caught:
            check_stored(flipped(window, bit), rows, checksums, window_position=1000, where="tiny")

        chunk = int(np.searchsorted(rows["position"], 1000 + bit // 8, side="right")) - 1
        assert rows["position"][chunk] <= caught.value.position
        assert caught.value.position < rows["position"][chunk] + rows["size_bytes"][chunk]


@given(data=st.data(), stream=st.sampled_from(osiris_data.STREAMS))
@settings(max_examples=60 if CAMPAIGN else 8, deadline=None)
def test_the_first_of_several_damaged_chunks_is_named(data: st.DataObject, stream: str) -> None:
    window, rows = run_of(stream)
    checksums = check_chunks(window, rows, window_position=1000, where=stream)
    bits = data.draw(st.sets(st.integers(0, len(window) * 8 - 1), min_size=1, max_size=4))
    header_bits = data.draw(st.sets(st.integers(0, 47 * 8), max_size=2))
    chunk_starts = data.draw(st.sampled_from(rows["position"].tolist())) - 1000
    bits |= {chunk_starts * 8 + bit for bit in header_bits}
    damaged = window
    for bit in bits:
        damaged = flipped(damaged, bit)
    first = int(np.searchsorted(rows["position"], 1000 + min(bits) // 8, side="right")) - 1

    with pytest.raises(Corrupt) as caught:
        check_stored(damaged, rows, checksums, window_position=1000, where=stream)

    assert rows["position"][first] <= caught.value.position
    assert caught.value.position < rows["position"][first] + rows["size_bytes"][first]


@pytest.mark.parametrize("early", ["header", "data"])
def test_the_first_damage_of_any_kind_on_the_way_in_is_named(early: str) -> None:
    """Headers are compared together and data chunk by chunk, but the first damaged byte decides."""
    window, rows = run_of("tiny")
    second, fifth = int(rows["position"][1]) - 1000, int(rows["position"][4]) - 1000
    in_header, in_data = (second, fifth) if early == "header" else (fifth, second)
    damaged = flipped(flipped(window, in_header * 8), (in_data + 100) * 8)

    with pytest.raises(Corrupt) as caught:
        check_chunks(damaged, rows, window_position=1000, where="tiny")

    assert caught.value.what == ("chunk magic" if early == "header" else "chunk data checksum")
    assert 1000 + second <= caught.value.position < rows["position"][2]


@pytest.mark.parametrize("name", ["offset", "timestamp_ms", "records", "size_bytes", "type", "position"])
def test_rows_that_do_not_fit_their_chunks_are_corrupt(name: str) -> None:
    window, rows = run_of("batches")
    rows[name][3] += 1

    with pytest.raises(Corrupt):
        check_chunks(window, rows, window_position=1000, where="batches")


def test_rows_that_are_shifted_together_do_not_match_the_headers() -> None:
    window, rows = run_of("tiny")
    rows["offset"] += 1

    with pytest.raises(Corrupt, match="chunk offset: expected 1, found 0"):
        check_chunks(window, rows, window_position=1000, where="tiny")


def test_a_window_that_is_shorter_than_its_rows_is_corrupt() -> None:
    window, rows = run_of("tiny")

    with pytest.raises(Corrupt, match="size of a run of chunks"):
        check_chunks(window[:-1], rows, window_position=1000, where="tiny")


def test_hostile_sizes_in_a_table_are_refused() -> None:
    """The sum of the sizes wraps around in 64 bits to the size of the window."""
    window, rows = run_of("tiny")
    rows = rows[:2].copy()
    rows["size_bytes"] = [2**64 - 1000, 1000 + 600]
    rows["position"][1] = 0  # 1000 - 1000

    with pytest.raises(Corrupt):
        check_chunks(window[:600], rows, window_position=1000, where="tiny")


def test_checksums_and_rows_must_be_equally_many() -> None:
    window, rows = run_of("tiny")

    with pytest.raises(Misuse):
        check_stored(window, rows, np.zeros(1, np.uint32), window_position=1000, where="tiny")
