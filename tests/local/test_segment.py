"""Tests of segments and indexes: their bytes, and the checks that a sealed pair must pass."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from osiris_data import INDEX_HEAD, INDEX_RECORD, SEGMENT_HEAD, STREAMS, chunks_in, index_of, segments
from osiris_writer import simple_chunks, write_stream

from offload.formats import segment as format_module
from offload.formats.chunk import scan
from offload.ground.errors import Corrupt, OffloadError, TryAgain, UnsupportedFormat
from offload.local import pair as pair_module
from offload.local.pair import Pair, parse_name
from offload.local.sealed import SealedPair, sealed_table
from offload.local.snapshot import folder_snapshot
from offload.read.snapshots import oldest_ms

Change = Callable[[bytearray], object]

GIB = 1 << 30


@pytest.fixture
def sealed(tmp_path: Path) -> SealedPair:
    """Write four chunks of three records, and one more chunk in the next pair."""
    write_stream(tmp_path, simple_chunks(5), segment_chunks=4)
    return SealedPair(Pair(tmp_path, 0), 12)


def edit(file: Path, change: Change) -> None:
    raw = bytearray(file.read_bytes())
    change(raw)
    file.write_bytes(raw)


def put(at: int, new: bytes) -> Change:
    def change(raw: bytearray) -> None:
        start = at % len(raw)
        raw[start : start + len(new)] = new

    return change


def damage_of(sealed: SealedPair) -> Corrupt:
    with pytest.raises(Corrupt) as caught:
        sealed_table(sealed, stream="orders")
    assert caught.value.stream == "orders"
    return caught.value


def test_layouts_are_the_same_as_in_osiris() -> None:
    record = format_module.INDEX_RECORD.pack(
        offset=0x0102, timestamp_ms=-2, epoch=3, position=0x04050607, type=2
    )

    assert format_module.INDEX_HEADER.pack(magic=b"OSII", version=1).hex() == "4f53494900000001"
    assert format_module.SEGMENT_HEADER.pack(magic=b"OSIL", version=1).hex() == "4f53494c00000001"
    assert record.hex() == "0000000000000102fffffffffffffffe00000000000000030405060702"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000000000000003669.index", (3669, "index")),
        ("18446744073709551615.segment", (2**64 - 1, "segment")),
        ("18446744073709551616.segment", None),
        ("3669.segment", None),
        ("00000000000000003669.segment.bak", None),
        ("٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٣٦٦٩.index", None),
    ],
)
def test_only_names_of_twenty_digits_are_files_of_a_stream(name: str, expected: object) -> None:
    assert parse_name(name) == expected


@pytest.mark.parametrize("stream", STREAMS)
def test_a_sealed_table_equals_a_scan_of_the_segment(stream: str) -> None:
    files = segments(stream)
    for file, following in pairwise(files):
        found = sealed_table(
            SealedPair(Pair(file.parent, int(file.stem)), int(following.stem)), stream=stream
        )

        assert (found == scan(chunks_in(file), first_position=8, where=stream)).all()


def test_the_writer_of_these_tests_writes_the_same_files_as_osiris(tmp_path: Path) -> None:
    real = segments("filtered")
    raw = [file.read_bytes() for file in real]
    cuts = [[record[3] for record in index_of(file)] for file in real]
    chunks = (
        data[start:stop]
        for data, starts in zip(raw, cuts, strict=True)
        for start, stop in zip(starts, [*starts[1:], len(data)], strict=True)
    )

    next_offset = write_stream(tmp_path, chunks, segment_chunks=25)

    assert next_offset == 20000
    for file in real:
        for original in (file, file.with_suffix(".index")):
            assert (tmp_path / original.name).read_bytes() == original.read_bytes()


@pytest.mark.parametrize("kind", ["index", "segment"])
def test_another_magic_is_damage(sealed: SealedPair, kind: str) -> None:
    file: Path = getattr(sealed.pair, kind)
    edit(file, put(0, b"OSIX"))

    damage = damage_of(sealed)

    assert (damage.where, damage.position, damage.found) == (str(file), 0, b"OSIX")


@pytest.mark.parametrize("kind", ["index", "segment"])
def test_another_version_is_refused_by_both_numbers(sealed: SealedPair, kind: str) -> None:
    edit(getattr(sealed.pair, kind), put(4, b"\0\0\0\2"))

    with pytest.raises(UnsupportedFormat, match="has version 2; this program reads version 1"):
        sealed_table(sealed, stream="orders")


@pytest.mark.parametrize("kind", ["index", "segment"])
@pytest.mark.parametrize("size_bytes", [0, 5, 8])
def test_a_sealed_file_without_content_is_damage(sealed: SealedPair, kind: str, size_bytes: int) -> None:
    os.truncate(getattr(sealed.pair, kind), size_bytes)

    damage_of(sealed)


def test_an_index_without_its_last_record_is_recognized_by_its_end(sealed: SealedPair) -> None:
    os.truncate(sealed.pair.index, 8 + 3 * 29)

    damage = damage_of(sealed)

    assert (damage.where, damage.position) == (str(sealed.pair.index), 8 + 2 * 29)
    assert damage.expected == "a chunk up to offset 12, where the next segment begins"
    assert damage.found == "the chunk at offset 6, which ends at offset 9"


def test_an_index_that_ends_in_half_a_record_is_damage_at_that_record(sealed: SealedPair) -> None:
    os.truncate(sealed.pair.index, 8 + 4 * 29 - 1)

    damage = damage_of(sealed)

    assert (damage.where, damage.position) == (str(sealed.pair.index), 8 + 3 * 29)


def test_a_hole_before_the_next_segment_is_damage_of_the_one_before_it(sealed: SealedPair) -> None:
    damage = damage_of(SealedPair(sealed.pair, 15))

    assert damage.expected == "a chunk up to offset 15, where the next segment begins"
    assert damage.found == "the chunk at offset 9, which ends at offset 12"


def test_a_position_beyond_the_segment_is_damage_of_the_index(sealed: SealedPair) -> None:
    edit(sealed.pair.index, put(-5, b"\xff\xff\xff\xff"))

    damage = damage_of(sealed)

    assert (damage.where, damage.position) == (str(sealed.pair.index), 8 + 3 * 29)
    assert damage.found == f"one at byte {2**32 - 1}"


def test_a_header_that_claims_4_gib_is_reported_without_allocation(sealed: SealedPair) -> None:
    position = index_of(sealed.pair.segment)[-1][3]
    edit(sealed.pair.segment, put(position + 36, (4 * GIB - 4096).to_bytes(4, "big")))

    damage = damage_of(sealed)

    assert (damage.where, damage.position) == (str(sealed.pair.segment), position)
    assert str(4 * GIB - 4096 + 48) in str(damage.expected)


def test_bytes_behind_the_last_chunk_of_a_sealed_segment_are_damage(sealed: SealedPair) -> None:
    edit(sealed.pair.segment, lambda raw: raw.extend(b"more"))

    assert damage_of(sealed).where == str(sealed.pair.segment)


def test_a_last_record_of_another_chunk_is_damage(sealed: SealedPair) -> None:
    edit(sealed.pair.index, put(-1, b"\1"))  # its type

    assert damage_of(sealed).position == 8 + 3 * 29


@pytest.mark.parametrize(
    "record",
    [
        pytest.param((0, 0, 1, 100, 0), id="an offset that does not ascend"),
        pytest.param((4, 0, 1, 8, 0), id="a position that does not ascend"),
        pytest.param((4, 0, 1, 20, 0), id="a chunk smaller than a header"),
        pytest.param((4, 0, 1, 10**6, 0), id="a position behind the next"),
        pytest.param((2**63, 0, 1, 100, 0), id="an offset behind the next"),
        pytest.param((4, 0, 1, 100, 3), id="an unknown type"),
    ],
)
def test_an_index_record_out_of_order_is_damage(
    sealed: SealedPair, record: tuple[int, int, int, int, int]
) -> None:
    edit(sealed.pair.index, put(8 + 29, INDEX_RECORD.pack(*record)))

    damage = damage_of(sealed)

    assert damage.where == str(sealed.pair.index)
    assert damage.position in {8, 8 + 29}


def test_a_first_chunk_elsewhere_than_its_name_says_is_damage(sealed: SealedPair) -> None:
    for kind in ("segment", "index"):
        os.rename(getattr(sealed.pair, kind), sealed.pair.folder / f"{1:020}.{kind}")

    damage = damage_of(SealedPair(Pair(sealed.pair.folder, 1), 12))

    assert (damage.expected, damage.position) == ("offset 1, byte 8", 8)


def test_an_index_too_large_for_a_broker_is_not_read(
    sealed: SealedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_module, "INDEX_SIZE_BYTES_MAX", 100)

    assert damage_of(sealed).found == 8 + 4 * 29


def test_a_segment_that_is_not_a_file_is_damage(sealed: SealedPair) -> None:
    """A pipe without a writer must not block a reader."""
    sealed.pair.segment.unlink()
    os.mkfifo(sealed.pair.segment)

    assert damage_of(sealed).expected == "a regular file"


@pytest.mark.parametrize("kind", ["index", "segment"])
def test_a_pair_that_retention_removed_may_be_tried_again(sealed: SealedPair, kind: str) -> None:
    getattr(sealed.pair, kind).unlink()

    with pytest.raises(TryAgain):
        sealed_table(sealed, stream="orders")


@settings(max_examples=150 if CAMPAIGN else 20, deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 255)), max_size=3),
    index_cut=st.none() | st.integers(0, 8 + 4 * 29),
    segment_cut=st.none() | st.integers(0, 400),
)
def test_any_bytes_give_a_table_that_tiles_the_segment_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory,
    flips: list[tuple[int, int]],
    index_cut: int | None,
    segment_cut: int | None,
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    write_stream(folder, simple_chunks(5), segment_chunks=4)
    pair = Pair(folder, 0)
    for file, size_bytes in ((pair.index, index_cut), (pair.segment, segment_cut)):
        for at, bits in flips:
            edit(file, lambda raw, at=at, bits=bits: raw.__setitem__(at % len(raw), bits))
        if size_bytes is not None:
            edit(file, lambda raw, size_bytes=size_bytes: raw.__delitem__(slice(size_bytes, None)))

    try:
        rows = sealed_table(SealedPair(pair, 12), stream="odd")
    except OffloadError:
        return

    ends = rows["position"] + rows["size_bytes"]
    assert (int(rows["position"][0]), int(ends[-1])) == (8, pair.segment.stat().st_size)
    assert (ends[:-1] == rows["position"][1:]).all()
    assert int((rows["records"].astype(np.uint64)).sum()) == 12


def test_heads_equal_those_of_the_real_files() -> None:
    for file in segments("tiny"):
        format_module.check_segment_head(file.read_bytes()[:8], where="tiny")
        format_module.check_index_head(file.with_suffix(".index").read_bytes()[:8], where="tiny")
    assert (SEGMENT_HEAD[:4], INDEX_HEAD[:4]) == (format_module.SEGMENT_MAGIC, format_module.INDEX_MAGIC)


@pytest.mark.parametrize(
    ("offset", "written_ms", "sealed_ms", "shown_ms"),
    [
        (7, 2000, (2200, 3000), 2000),
        (12, 2000, (1000, 3000), 2000),
        (12, 2000, (2500, 3000), 2500),
        (12, 4000, (1000, 3000), 3000),
        (3, 4000, (1000, 3000), 1000),
        (15, 2000, (1000, 3000), None),
    ],
    ids=["in a sealed file", "in the newest", "too old", "in the future", "the first file", "nothing"],
)
def test_the_age_of_a_record_is_its_timestamp_within_the_times_of_the_files(
    tmp_path: Path, offset: int, written_ms: int, sealed_ms: tuple[int, int], shown_ms: int | None
) -> None:
    """Two files: chunks of three records from 0 on, the first four in the older one."""
    write_stream(tmp_path, simple_chunks(5, timestamps_ms=[written_ms] * 5), segment_chunks=4)
    for pair, modified_ms in zip((Pair(tmp_path, 0), Pair(tmp_path, 12)), sealed_ms, strict=True):
        os.utime(pair.segment, ns=(0, modified_ms * 1_000_000))

    async def asked() -> int | None:
        async with folder_snapshot(tmp_path, stream="orders") as snapshot:
            return await oldest_ms(snapshot, offset)

    assert asyncio.run(asked()) == shown_ms
