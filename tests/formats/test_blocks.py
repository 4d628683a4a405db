"""Tests of the blocks of a fragment: chunks read back verbatim, damage and hostile numbers are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any, Final
from uuid import UUID

import lz4.block
import numpy as np
import pytest
import zstandard
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from made_fragments import (
    CODECS,
    Draft,
    chunk_of,
    chunks_of,
    compressed,
    fragment_of,
    peak_below,
    table_of_chunks,
    tail_of,
    with_flipped_bit,
)

from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Body
from offload.formats import block_codecs
from offload.formats.block_codecs import compressor, decompressed
from offload.formats.blocks import BLOCK, BLOCK_SIZE_BYTES, blocks_size_bytes_max
from offload.formats.checksums import crc32c
from offload.formats.fragment import INDEX, FragmentTail
from offload.formats.fragment_trailer import FRAGMENT_HEADER, check_header
from offload.formats.keys import StreamKeys
from offload.ground.errors import Corrupt, UnsupportedFormat
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable
from offload.model.compression import BlockCodec, Compression
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.native.fragment_check import CheckedFragment, check_fragment
from offload.native.fragment_writer import FragmentWriter
from offload.native.spool import spooled
from offload.store.memory import MemoryStore

COMPRESSING: Final = ("zstd", "lz4")

ZSTD_HEX: Final = (
    "4f4c464800020000000000000000000028b52ffd60140075020084025000000100070064090a2d340000002c286f72646572"
    "20302c200865801c7629310966c0579d4f3211006001202e5014740c3a032b007181a2d0f1173acbd2080200f96612000641"
    "080f4e0b28b52ffd2033bd0000400000070001005c010600c0c8ce6e25043030187c012ca1dd5269c28b1c170b035abd0000"
    "0006000000006f7264657273000000030000005801000000eb6f21d0696e6465780000000000000000000000000101000000"
    "00000000006800000000000000200000000000000033c8f93a43636865636b73756d73000000000000000001000000000000"
    "00000088000000000000000c000000000000000c923fd0346465736372697074696f6e000000000000010000000000000000"
    "0094000000000000000e000000000000000e55f62064626c6f636b73000000000000000000000001000000000000000000a2"
    "0000000000000010000000000000001029bf24944f4c4654000201001c168adb00d208e42f93314529f1fa9c0427eb63233c"
    "eda95a5db52b7012a71900000000000000000000000000000001000000000000000000000000000000a1000000000000004d"
    "0000000000000003000000000000000500000000000000640000000000000067000000000000000300000000000000070000"
    "00000000000900000000000001140000000000000226000000000000006800000003000000046054885ff34b9c4268b99bc9"
)
LZ4_HEX: Final = (
    "4f4c464800020000000000000000000052500000010004005200000000070700011400d20000000064090a2d340000002c0f"
    "00010200af286f7264657220302c2009000c0b5c0011083e00066c005f65801c76295c000314315c000f0900060b5c001b09"
    "5c005f66c0579d4f5c000314325c000f09000150206f72646512000100120707002700010800175c0400c001000000010000"
    "0001000000a1dd5269c28b1c170b035abd00000006000000006f7264657273000000030000006d02000000ec11c6d0696e64"
    "6578000000000000000000000000010200000000000000007d000000000000001e0000000000000033d582f6e2636865636b"
    "73756d730000000000000000010000000000000000009b000000000000000c000000000000000c923fd03464657363726970"
    "74696f6e00000000000001000000000000000000a7000000000000000e000000000000000e55f62064626c6f636b73000000"
    "000000000000000001000000000000000000b500000000000000100000000000000010e04763024f4c4654000202001c168a"
    "db00d208e42f93314529f1fa9c0427eb63233ceda95a5db52b7012a719000000000000000000000000000000010000000000"
    "00000000000000000000a1000000000000004d00000000000000030000000000000005000000000000006400000000000000"
    "6700000000000000030000000000000007000000000000000900000000000001140000000000000239000000000000007d00"
    "000003000000049cf782dfa5663b4bf4edced9"
)


@st.composite
def chunk_runs(draw: st.DrawFn) -> list[bytes]:
    """Draw chunks, tiny to larger than a block, of bodies that compress and of bodies that do not."""
    sizes = st.one_of(st.integers(0, 300), st.integers(5_000, 70_000), st.integers(65_000, 200_000))
    random, chunks = Random(draw(st.integers(0, 99))), []
    for number, (size, is_random) in enumerate(
        draw(st.lists(st.tuples(sizes, st.booleans()), min_size=1, max_size=12))
    ):
        body = random.randbytes(size) if is_random else b"%d, " % number * (size // 3)
        chunks.append(chunk_of(body, offset=100 + number, timestamp_ms=number))
    return chunks


def plain_of(raw: bytes, tail: FragmentTail, first: int, stop: int) -> bytes:
    """Return chunks, read by the one range that a reader would ask a store for."""
    start, end = tail.span_of(first, stop)
    return tail.chunks_in(raw[start:end], first, stop, where="here")


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=50 if CAMPAIGN else 8)
@given(chunks=chunk_runs(), data=st.data())
def test_any_run_of_chunks_reads_back_verbatim(codec: str, chunks: list[bytes], data: st.DataObject) -> None:
    raw = fragment_of(chunks, CODECS[codec])
    tail = tail_of(raw)
    first = data.draw(st.integers(0, len(chunks) - 1))
    stop = data.draw(st.integers(first + 1, len(chunks)))

    assert plain_of(raw, tail, first, stop) == b"".join(chunks[first:stop])
    assert plain_of(raw, tail, 0, len(chunks)) == b"".join(chunks)


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=50 if CAMPAIGN else 8)
@given(chunks=chunk_runs(), size_bytes=st.integers(1, 300_000))
def test_windows_cover_all_chunks_and_split_no_block(
    codec: str, chunks: list[bytes], size_bytes: int
) -> None:
    raw = fragment_of(chunks, CODECS[codec])
    tail = tail_of(raw)

    windows = list(tail.windows(0, len(chunks), size_bytes=size_bytes))

    spans = [tail.span_of(*window) for window in windows]
    assert (windows[0][0], windows[-1][1]) == (0, len(chunks))
    assert all(before[1] == after[0] for before, after in pairwise(windows))
    assert (spans[0][0], spans[-1][1]) == (16, tail.trailer.tail_start)
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert b"".join(plain_of(raw, tail, *window) for window in windows) == b"".join(chunks)
    for first, stop in windows[:-1]:
        assert sum(map(len, chunks[first:stop])) >= size_bytes


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=50 if CAMPAIGN else 8)
@given(chunks=chunk_runs(), size_bytes=st.integers(1, 300_000), data=st.data())
def test_windows_of_any_run_of_chunks_share_no_block(
    codec: str, chunks: list[bytes], size_bytes: int, data: st.DataObject
) -> None:
    raw = fragment_of(chunks, CODECS[codec])
    tail = tail_of(raw)
    first = data.draw(st.integers(0, len(chunks) - 1))
    stop = data.draw(st.integers(first + 1, len(chunks)))

    windows = list(tail.windows(first, stop, size_bytes=size_bytes))

    assert b"".join(plain_of(raw, tail, *window) for window in windows) == b"".join(chunks[first:stop])
    for before, after in pairwise(windows):
        assert tail.span_of(*before)[1] == tail.span_of(*after)[0]


@pytest.mark.parametrize("codec", CODECS)
@given(chunks=chunk_runs())
@settings(max_examples=30 if CAMPAIGN else 8)
def test_a_fragment_is_never_larger_than_its_bound(codec: str, chunks: list[bytes]) -> None:
    verbatim, size = len(fragment_of(chunks)), len(fragment_of(chunks, CODECS[codec]))

    assert size <= verbatim + (blocks_size_bytes_max(len(chunks)) if codec != "none" else 0)


@pytest.mark.parametrize("codec", COMPRESSING)
@settings(max_examples=50 if CAMPAIGN else 8)
@given(chunks=chunk_runs())
def test_a_block_ends_with_the_chunk_that_brings_it_to_64_kib(codec: str, chunks: list[bytes]) -> None:
    blocks = tail_of(fragment_of(chunks, CODECS[codec])).blocks

    assert blocks is not None
    for record, (first, stop) in zip(blocks.records, pairwise(blocks.rows.tolist()), strict=True):
        sizes = [len(chunk) for chunk in chunks[first:stop]]
        assert sum(sizes[:-1]) < BLOCK_SIZE_BYTES
        if record["codec"]:
            assert sum(sizes) >= BLOCK_SIZE_BYTES or stop == len(chunks)
        else:  # chunks that do not shrink
            assert len(sizes) == 1


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_block_that_does_not_shrink_is_stored_plain(codec: str) -> None:
    chunks = [*chunks_of([70_000]), chunk_of(Random(1).randbytes(70_000), offset=101)]
    raw = fragment_of(chunks, CODECS[codec])
    tail = tail_of(raw)

    assert tail.blocks is not None
    assert tail.blocks.records["codec"].tolist() == [CODECS[codec].codec, BlockCodec.NONE]
    assert raw[slice(*tail.span_of(1, 2))] == chunks[1]
    assert len(raw) < 75_000


def test_a_chunk_that_is_too_large_for_the_library_is_stored_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """LZ4 takes less than 2 GiB at once, and the size of a chunk has 32 bits."""
    monkeypatch.setattr(block_codecs, "LZ4_SIZE_BYTES_MAX", 100_000)
    chunks = chunks_of([1000, 200_000, 1000])

    tail = tail_of(raw := fragment_of(chunks, CODECS["lz4"]))

    assert tail.blocks is not None
    assert tail.blocks.records["codec"].tolist() == [BlockCodec.NONE, BlockCodec.NONE, BlockCodec.LZ4]
    start, stop = tail.span_of(0, 3)
    assert tail.chunks_in(raw[start:stop], 0, 3, where="here") == b"".join(chunks)


def test_a_reader_of_one_chunk_fetches_only_its_block() -> None:
    chunks = chunks_of([30_000] * 9)
    tail = tail_of(fragment_of(chunks, CODECS["zstd"]))

    assert tail.span_of(3, 4) == tail.span_of(4, 6) == tail.span_of(3, 6)
    assert tail.span_of(2, 4) == (tail.span_of(0, 1)[0], tail.span_of(3, 4)[1])
    assert tail.span_of(0, 1)[1] == tail.span_of(3, 4)[0]


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_of_another_length_than_the_range_are_corrupt(codec: str) -> None:
    raw = fragment_of(chunks_of([30, 30]), CODECS[codec])
    tail = tail_of(raw)
    start, end = tail.span_of(0, 2)

    for wrong in (raw[start : end - 1], raw[start : end + 1], b""):
        with pytest.raises(Corrupt, match="size of a range"):
            tail.chunks_in(wrong, 0, 2, where="here")


@pytest.mark.parametrize(("codec", "golden"), [("zstd", ZSTD_HEX), ("lz4", LZ4_HEX)])
def test_a_compressed_fragment_of_version_2_is_still_read(codec: str, golden: str) -> None:
    """Libraries may compress to other bytes in later versions, but what is stored stays."""
    chunks, raw = chunks_of([40, 40, 40]), bytes.fromhex(golden)
    tail = tail_of(raw)

    assert tail.trailer.codec == CODECS[codec].codec
    assert tail.blocks is not None
    assert tail.blocks.records["codec"].tolist() == [CODECS[codec].codec]
    assert plain_of(raw, tail, 0, 3) == b"".join(chunks)


def check_stored_checksums(raw: bytes) -> None:
    """Check a whole object against its stored checksums. No codec is used for the chunks."""
    tail = tail_of(raw)
    check_header(raw, version=tail.trailer.version, where="here")
    start = tail.trailer.tail_start
    if crc32c(raw[:start]) != tail.trailer.data_checksum:
        raise Corrupt("data checksum", "here", expected=tail.trailer.data_checksum, found="another")


@pytest.mark.parametrize("codec", CODECS)
def test_no_flipped_bit_of_a_fragment_passes_the_stored_checksums(codec: str) -> None:
    raw = fragment_of(chunks_of([3, 5, 400, 2]), CODECS[codec], metadata={"by": "hand"})

    check_stored_checksums(raw)
    for bit in range(0, len(raw) * 8, 1 if CAMPAIGN else 13):
        with pytest.raises(Corrupt):
            check_stored_checksums(with_flipped_bit(raw, bit))


@pytest.mark.parametrize("codec", COMPRESSING)
def test_no_flipped_bit_of_a_block_passes_its_checksum(codec: str) -> None:
    """Blocks are checked before they are decompressed, each alone, and the first damaged one is named."""
    chunks = [*chunks_of([66_000, 66_000]), chunk_of(Random(1).randbytes(66_000), offset=102)]
    raw = fragment_of(chunks, CODECS[codec])
    tail = tail_of(raw)
    assert tail.blocks is not None
    blocks = tail.blocks
    start, stop = tail.span_of(0, 3)
    blocks.check(raw[start:stop], range(3), where="here")

    for number in range(3):
        first, last = blocks.positions[number : number + 2].tolist()
        for at in {*range(first, min(first + 40, last)), last - 1}:
            damaged = with_flipped_bit(raw, at * 8 + at % 8)[start:stop]
            with pytest.raises(Corrupt, match="checksum of a block") as found:
                tail.chunks_in(damaged, 0, 3, where="here")
            assert found.value.position == first
            assert found.value.plain_position == tail.table["position"][number]


@pytest.mark.parametrize("codec", CODECS)
def test_no_flipped_bit_is_missed_by_a_check_of_the_whole_object(codec: str) -> None:
    raw = fragment_of(chunks_of([3, 5, 400, 2]), CODECS[codec])
    start = tail_of(raw).trailer.tail_start

    assert checked_by_program(raw).checksum == crc32c(raw)
    for bit in range(0, start * 8, 7 if CAMPAIGN else 83):
        with pytest.raises(Corrupt):
            checked_by_program(with_flipped_bit(raw, bit))


KEY: Final = StreamKeys("orders").fragment(100, UUID(int=0xA1))


def checked_by_program(raw: bytes) -> CheckedFragment:
    """Check a whole object as `verify` does."""

    async def check() -> CheckedFragment:
        store = MemoryStore()
        await store.put(KEY, Body.of(raw))
        return await check_fragment(store, KEY, size_bytes=len(raw))

    return asyncio.run(check())


@pytest.mark.parametrize(
    "header", [b"OLFX\0\2" + bytes(10), b"OLFH\0\1" + bytes(10), FRAGMENT_HEADER[:-1] + b"\1"]
)
def test_a_wrong_header_is_corrupt_even_under_the_checksum(header: bytes) -> None:
    draft = Draft.of(fragment_of(chunks_of([3])))
    draft.data = header + draft.data[16:]

    with pytest.raises(Corrupt, match="header"):
        checked_by_program(draft.sealed())


@dataclass(frozen=True)
class Source(ReadHandle):
    """A ledger of these chunks."""

    chunks: list[bytes]
    ledger_id = 77
    first_offset = 100
    where = "source"

    @property
    def next_offset(self) -> int:
        return 100 + len(self.chunks)

    async def table(self) -> ChunkTable:
        return table_of_chunks(self.chunks)

    async def read(self, rows: ChunkTable) -> bytes:
        start = int(rows["position"][0])
        return b"".join(self.chunks)[start : start + int(rows["size_bytes"].sum())]


def written_by_program(chunks: list[bytes], compression: Compression) -> tuple[bytes, Entry | None]:
    """Return the object that the program writes, and its entry."""
    uid = UUID(int=1)
    manifest = Manifest(
        stream="orders",
        version=5,
        incarnation=uid,
        first_offset=100,
        next_offset=100,
        writer=uid,
        epoch=3,
        source_epoch=0,
        committer=uid,
        commit_id=uid,
    )

    async def write() -> tuple[bytes, Entry | None]:
        writer = FragmentWriter(
            handle=Source(chunks),
            rows=table_of_chunks(chunks),
            attempt=Attempt(stream="orders", ledger_id=77, uid=UUID(int=0xA1)),
            manifest=manifest,
            metadata={},
            compression=compression,
            turns=nullcontext(),
        )
        async with spooled(writer.body()) as body:
            raw = b"".join([window async for window in body.windows()])
            assert len(raw) == body.size_bytes <= writer.body().size_bytes
        return raw, writer.entry

    return asyncio.run(write())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("sizes", [[3, 5], [70_000, 3], [2_000_000] * 5], ids=["small", "two", "windows"])
def test_a_written_fragment_has_the_entry_of_its_object(codec: str, sizes: list[int]) -> None:
    chunks = chunks_of(sizes)

    raw, entry = written_by_program(chunks, CODECS[codec])

    assert entry is not None
    assert (entry.stored_size_bytes, entry.checksum) == (len(raw), crc32c(raw))
    assert (entry.codec, entry.data_size_bytes) == (CODECS[codec].codec, len(b"".join(chunks)))
    assert entry.tail_size_bytes == len(raw) - tail_of(raw).trailer.tail_start
    assert plain_of(raw, tail_of(raw), 0, len(chunks)) == b"".join(chunks)
    assert checked_by_program(raw).checksum == entry.checksum


@pytest.mark.parametrize("codec", CODECS)
def test_the_fragments_of_these_tests_are_those_of_the_program(codec: str) -> None:
    chunks = chunks_of([3, 70_000, 5])

    assert written_by_program(chunks, CODECS[codec])[0] == fragment_of(chunks, CODECS[codec])


def draft_with_blocks(codec: str = "zstd") -> Draft:
    """Return a draft with three chunks in two blocks, whose records are stored plain."""
    raw = fragment_of(chunks_of([40_000, 40_000, 40_000]), CODECS[codec])
    draft, tail = Draft.of(raw), tail_of(raw)
    assert tail.blocks is not None
    assert tail.blocks.records["chunks"].tolist() == [2, 1]
    draft.replace_plain("blocks", tail.blocks.records.tobytes())
    return draft


def with_record(draft: Draft, row: int, **changes: Any) -> Draft:
    body = bytearray(draft.section("blocks").body)
    at = row * BLOCK.size_bytes
    body[at : at + BLOCK.size_bytes] = BLOCK.pack(**BLOCK.unpack(body, at) | changes)
    draft.replace_plain("blocks", bytes(body))
    return draft


def read_all(raw: bytes) -> bytes:
    tail = tail_of(raw)
    return plain_of(raw, tail, 0, len(tail.table))


def test_a_draft_that_was_not_changed_is_read() -> None:
    assert read_all(draft_with_blocks().sealed()) == b"".join(chunks_of([40_000] * 3))


@pytest.mark.parametrize(
    "changes",
    [
        {"chunks": 0},
        {"chunks": 4},
        {"chunks": 2**32 - 1},
        {"size_bytes": 0},
        {"size_bytes": 1},
        {"size_bytes": 2**32 - 1},
        {"reserved": b"\0\0\1"},
        {"reserved": b"\1\0\0"},
        {"codec": BlockCodec.LZ4},
        {"codec": 3},
        {"codec": 255},
    ],
    ids=str,
)
@pytest.mark.parametrize("row", [0, 1])
def test_a_block_record_that_breaks_a_rule_is_corrupt(changes: dict[str, Any], row: int) -> None:
    """Blocks hold all chunks and reach to the sections. Their codec is the trailer's, or they are plain."""
    raw = with_record(draft_with_blocks(), row, **changes).sealed()

    with pytest.raises(Corrupt):
        tail_of(raw)


def one_block(sizes: list[int]) -> bytes:
    """Return a fragment whose chunks, of these whole sizes, are all in one block."""
    chunks = chunks_of([size - len(chunk_of(b"", offset=0)) for size in sizes])
    assert [len(chunk) for chunk in chunks] == sizes
    draft, frame = Draft.of(fragment_of(chunks, CODECS["zstd"])), compressed(b"".join(chunks), CODECS["zstd"])
    draft.data = draft.data[:16] + frame
    record = {"chunks": len(sizes), "size_bytes": len(frame), "codec": BlockCodec.ZSTD, "reserved": bytes(3)}
    draft.replace_plain("blocks", BLOCK.pack(**record, checksum=crc32c(frame)))
    return draft.sealed()


@pytest.mark.parametrize("last", [1_000, 200_000])
def test_a_block_holds_less_than_64_kib_before_its_last_chunk(last: int) -> None:
    """Otherwise a forged block of many chunks could ask for any amount of memory."""
    assert read_all(one_block([40_000, 25_535, last]))

    for sizes in ([40_000, 25_536, last], [65_536, last], [1_000] * 66 + [last]):
        with pytest.raises(Corrupt, match="plain size of a block: expected less than 65536 bytes"):
            tail_of(one_block(sizes))


def test_a_block_of_chunks_that_claim_gigabytes_is_refused_before_it_is_read() -> None:
    claimed, draft = [2**32 - 1] * 8, Draft.of(one_block([1_000] * 8))
    columns = (
        ("timestamp_ms", [7] + [0] * 7),
        ("size_bytes", claimed),
        ("records", [1] * 8),
        ("type", [0] * 8),
    )
    index = b"".join(np.array(values, INDEX.dtype[name]).tobytes() for name, values in columns)
    draft.replace_plain("index", index)

    with pytest.raises(Corrupt, match="plain size of a block"), peak_below(512 * 1024):
        tail_of(draft.sealed(data_size_bytes=sum(claimed), last_timestamp_ms=7))


@pytest.mark.parametrize("body", [b"", bytes(1), bytes(15), bytes(16)], ids=len)
def test_block_records_of_a_wrong_length_are_corrupt(body: bytes) -> None:
    draft = draft_with_blocks()
    records = draft.section("blocks").body

    for wrong in (body, records + body, records[:16] + body):
        if wrong != records:
            draft.replace_plain("blocks", wrong)
            with pytest.raises(Corrupt):
                tail_of(draft.sealed())


@pytest.mark.parametrize("name", ["chunks", "size_bytes"])
def test_an_empty_block_is_corrupt(name: str) -> None:
    """The sums are right: the other block has all chunks, or all bytes."""
    draft = draft_with_blocks()
    records = draft.section("blocks").body
    total = sum(BLOCK.unpack(records, at)[name] for at in (0, BLOCK.size_bytes))

    with pytest.raises(Corrupt, match="blocks"):
        tail_of(with_record(with_record(draft, 0, **{name: total}), 1, **{name: 0}).sealed())


def test_blocks_that_are_cut_at_another_chunk_are_corrupt() -> None:
    """The plain sizes follow from the index, so the first block yields another size than it should."""
    draft = with_record(with_record(draft_with_blocks(), 0, chunks=1), 1, chunks=2)

    with pytest.raises(Corrupt, match="plain size"):
        read_all(draft.sealed())


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_block_that_is_not_of_its_codec_is_corrupt(codec: str) -> None:
    """The record of a compressed block says that it is plain."""
    draft = with_record(draft_with_blocks(codec), 1, codec=BlockCodec.NONE)

    with pytest.raises(Corrupt, match="plain size"):
        read_all(draft.sealed())


@pytest.mark.parametrize(("stored", "claimed"), [("zstd", 2), ("lz4", 1)])
def test_a_fragment_that_claims_another_codec_is_corrupt(stored: str, claimed: int) -> None:
    draft = draft_with_blocks(stored)
    for row in range(2):
        with_record(draft, row, codec=claimed)

    with pytest.raises(Corrupt):
        read_all(draft.sealed(codec=claimed))


def test_a_compressed_fragment_that_claims_to_be_verbatim_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="end of chunks"):
        tail_of(draft_with_blocks().sealed(codec=0))


def test_a_verbatim_fragment_that_claims_a_codec_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="section 'blocks'"):
        tail_of(Draft.of(fragment_of(chunks_of([3, 3]))).sealed(codec=1))


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_block_of_other_chunks_is_corrupt(codec: str) -> None:
    """All checksums of stored bytes are right. Those of the plain chunks are not."""
    good = chunks_of([40_000, 40_000])
    other = [good[0], good[1][:-1] + b"!"]
    draft, stored = Draft.of(fragment_of(good, CODECS[codec])), Draft.of(fragment_of(other, CODECS[codec]))
    draft.data, draft.trailer = stored.data, stored.trailer
    draft.sections = [stored.section("blocks") if each.name == b"blocks" else each for each in draft.sections]

    with pytest.raises(Corrupt, match="stored chunk checksum") as found:
        read_all(draft.sealed())
    assert found.value.position == 16
    assert found.value.plain_position == 16 + len(good[0])


BOMB_SIZE_BYTES: Final = 200 * 2**20


def bomb(frame: bytes, codec: BlockCodec, *, claimed_size_bytes: int) -> bytes:
    """Return a fragment of one block with these stored bytes. The index claims one chunk of this size."""
    draft = Draft.of(fragment_of(chunks_of([70_000]), Compression(codec, int(codec is BlockCodec.ZSTD))))
    draft.data = draft.data[:16] + frame
    record = {"chunks": 1, "size_bytes": len(frame), "codec": codec, "reserved": bytes(3)}
    draft.replace_plain("blocks", BLOCK.pack(**record, checksum=crc32c(frame)))
    row = INDEX.pack(timestamp_ms=7, size_bytes=claimed_size_bytes, records=1, type=0)
    draft.replace_plain("index", row)  # one chunk: its row and its columns are the same bytes
    return draft.sealed(data_size_bytes=claimed_size_bytes)


@cache
def zeros(codec: str) -> bytes:
    return compressed(bytes(BOMB_SIZE_BYTES), Compression.parse(codec))


@cache
def unsized_zeros() -> bytes:
    """Return a frame that does not state its size."""
    return zstandard.ZstdCompressor(write_content_size=False).compress(bytes(BOMB_SIZE_BYTES))


@cache
def understated_zeros() -> bytes:
    """Return a frame that states one byte, and has blocks that yield much more."""
    frame = bytearray(zstandard.ZstdCompressor(write_content_size=True).compress(bytes(2**20 + 1)))
    # The header: a magic, a descriptor, a window byte unless the frame is one segment, and then the size.
    size = (2**20 + 1).to_bytes(4, "little")
    at = bytes(frame).index(size, 4, 16)
    frame[at : at + 4] = (70_000).to_bytes(4, "little")
    return bytes(frame)


@pytest.mark.parametrize("claimed", [70_048, 70_052])
@pytest.mark.parametrize(
    ("codec", "frame"),
    [
        (BlockCodec.ZSTD, lambda: zeros("zstd")),
        (BlockCodec.ZSTD, unsized_zeros),
        (BlockCodec.ZSTD, understated_zeros),
        (BlockCodec.LZ4, lambda: zeros("lz4")[:4000]),
        (BlockCodec.LZ4, lambda: lz4.block.compress(bytes(2**20), store_size=False)),
    ],
    ids=["stated", "not stated", "understated", "lz4 cut", "lz4"],
)
def test_a_block_that_yields_more_than_the_index_says_costs_no_memory(
    codec: BlockCodec, frame: Callable[[], bytes], claimed: int
) -> None:
    raw = bomb(frame(), codec, claimed_size_bytes=claimed)

    with pytest.raises(Corrupt, match=r"plain size|compressed bytes"), peak_below(512 * 1024 + 3 * len(raw)):
        read_all(raw)


@pytest.mark.parametrize("codec", [BlockCodec.ZSTD, BlockCodec.LZ4])
@pytest.mark.parametrize("claimed", [2**26, 2**31 - 1, 2**31, 2**32 - 1])
def test_an_index_that_claims_more_than_a_block_can_yield_costs_no_memory(
    codec: BlockCodec, claimed: int
) -> None:
    raw = bomb(
        compressed(bytes(1000), Compression(codec, int(codec is BlockCodec.ZSTD))),
        codec,
        claimed_size_bytes=claimed,
    )

    with pytest.raises(Corrupt, match="plain size"), peak_below(512 * 1024):
        read_all(raw)


def test_a_frame_that_states_as_much_as_the_index_claims_costs_no_memory() -> None:
    """Both claim 4 GiB, but the frame has only some 20 bytes."""
    frame = bytearray(zstandard.ZstdCompressor(write_content_size=True).compress(bytes(2**20)))
    at = bytes(frame).index((2**20).to_bytes(4, "little"), 4, 16)
    frame[at : at + 4] = b"\xff" * 4
    raw = bomb(bytes(frame), BlockCodec.ZSTD, claimed_size_bytes=2**32 - 1)

    with pytest.raises(Corrupt, match="plain size"), peak_below(512 * 1024):
        read_all(raw)


@given(st.binary(max_size=300), st.sampled_from([1, 2]), st.integers(0, 2**53))
def test_any_other_bytes_of_a_block_are_corrupt_or_of_the_claimed_size(
    raw: bytes, codec: int, size_bytes: int
) -> None:
    try:
        found = decompressed(raw, codec, size_bytes=size_bytes, where="here", position=0)
    except Corrupt:
        return
    assert len(found) == size_bytes


@given(st.binary(max_size=3000), st.sampled_from(["none", "lz4", "zstd:1", "zstd:19"]))
def test_decompressing_undoes_compressing(data: bytes, codec: str) -> None:
    by = Compression.parse(codec)
    raw = compressed(data, by)

    assert decompressed(raw, by.codec, size_bytes=len(data), where="here", position=0) == data
    for wrong in (len(data) + 1, len(data) - 1):
        if wrong >= 0:
            with pytest.raises(Corrupt) as found:
                decompressed(raw, by.codec, size_bytes=wrong, where="here", position=9)
            assert found.value.position == 9


@given(st.integers(1, 2**20), st.sampled_from(["lz4", "zstd:1", "zstd:19"]))
def test_the_most_compressible_bytes_are_within_the_ratio(size: int, codec: str) -> None:
    """No stream that a codec can yield is refused for its size."""
    by = Compression.parse(codec)

    raw = compressed(bytes(size), by)

    assert decompressed(raw, by.codec, size_bytes=size, where="here", position=0) == bytes(size)


@pytest.mark.parametrize("more", [b"\0", b"\x28\xb5\x2f\xfd", compressed(b"more", CODECS["zstd"])])
def test_bytes_behind_a_frame_are_corrupt(more: bytes) -> None:
    raw = compressed(b"data" * 20, CODECS["zstd"]) + more

    with pytest.raises(Corrupt):
        decompressed(raw, 1, size_bytes=80, where="here", position=0)


@pytest.mark.parametrize("codec", [3, 4, 255])
def test_an_unknown_codec_of_a_block_asks_for_an_upgrade(codec: int) -> None:
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        decompressed(b"data", codec, size_bytes=4, where="here", position=0)


@pytest.mark.parametrize("codec", ["lz4", "zstd:1", "zstd:3", "zstd:19"])
def test_a_block_has_the_same_bytes_whatever_was_compressed_before_it(codec: str) -> None:
    """A second pass over a source yields the same object, and a context is used for many blocks."""
    by, random = Compression.parse(codec), Random(4)
    blocks = [random.randbytes(10) * random.randrange(1, 9000) + random.randbytes(300) for _ in range(40)]
    compress = compressor(by)

    for block in [*blocks, *reversed(blocks)]:
        assert compress(block) == compressor(by)(block)
