"""Tests of messages as columns: the same as one by one for any chunks, and damage is never skipped."""

from __future__ import annotations

from functools import partial
from typing import Any

import osiris_data
import pytest
from campaign import CAMPAIGN
from fresh_loops import library
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.formats import records
from offload.formats.chunk import scan
from offload.formats.chunk_writer import build_chunk, build_tracking_chunk, seal_chunk
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch, encode_entries, messages
from offload.formats.records import offsets_and_timestamps, record_runs, runs_of_table
from offload.formats.tracking import ConsumerOffset
from offload.ground.errors import Corrupt, OffloadError
from offload.ground.loops import Loops
from offload.model.chunk_table import ChunkType

Found = list[tuple[int, int, bytes]]
BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=20)
BATCHES = st.builds(SubBatch.of, BODIES, st.sampled_from(Codec))
ENTRIES = st.lists(st.binary(max_size=40), min_size=1, max_size=30) | st.lists(
    st.binary(max_size=40) | BATCHES, min_size=1, max_size=4
)
WALKS = pytest.mark.parametrize("walk", [records._side_by_side, records._one_by_one, None])
"""The ways to find records. None is the compiled loop."""


def by_columns(data: bytes) -> Found:
    found: Found = []
    for run in record_runs(data, scan(data, where="here"), where="here"):
        columns = (run.offsets, run.timestamps_ms, run.starts, run.sizes)
        for offset, at, start, size in zip(*(column.tolist() for column in columns), strict=True):
            found.append((offset, at, bytes(run.data[start : start + size])))
    return found


def take(walk: Any, patch: pytest.MonkeyPatch) -> None:
    """Find records in this way."""
    found = partial(records._walked, walk) if walk else partial(records._packed, Loops(library()))
    patch.setattr(records, "_found", found)


def one_by_one(data: bytes) -> Found:
    found: Found = []
    for row in scan(data, where="here"):
        if row["type"] == ChunkType.USER:
            start = int(row["position"])
            bodies = messages(data[start : start + int(row["size_bytes"])], where="here", position=start)
            offset, at = int(row["offset"]), int(row["timestamp_ms"])
            found += [(offset + n, at, body) for n, body in enumerate(bodies)]
    return found


def stream_of(chunks: list[list[bytes | SubBatch] | None]) -> bytes:
    """Return chunks of these entries; None makes a tracking chunk."""
    made, offset = [], 2**53
    for number, entries in enumerate(chunks):
        if entries is None:
            blocks = (ConsumerOffset(name=b"c", offset=0),)
            kind = ChunkType.TRACKING_DELTA
            chunk = build_tracking_chunk(blocks, chunk_type=kind, offset=offset, timestamp_ms=number, epoch=1)
        else:
            chunk = build_chunk(entries, offset=offset, timestamp_ms=-number, epoch=1)
        made.append(chunk)
        offset += int(scan(chunk, where="new")["records"][0])
    return b"".join(made)


@pytest.mark.parametrize("stream", osiris_data.STREAMS)
def test_columns_hold_the_messages_of_real_streams(stream: str) -> None:
    data = b"".join(osiris_data.chunks(stream))

    assert by_columns(data) == one_by_one(data)


@given(st.lists(st.none() | ENTRIES, min_size=1, max_size=8))
def test_columns_hold_the_messages_of_any_chunks(chunks: list[list[bytes | SubBatch] | None]) -> None:
    data = stream_of(chunks)

    assert by_columns(data) == one_by_one(data)


@WALKS
@given(bodies=st.lists(BODIES, min_size=1, max_size=8))
def test_all_walks_find_the_same_entries(walk: object, bodies: list[list[bytes]]) -> None:
    data = stream_of(list(bodies))
    with pytest.MonkeyPatch.context() as patch:
        take(walk, patch)

        assert by_columns(data) == one_by_one(data)


@WALKS
@settings(max_examples=300 if CAMPAIGN else 5)
@given(st.data())
def test_data_without_entries_is_an_error_and_never_a_value(walk: object, draw: st.DataObject) -> None:
    """A chunk with arbitrary data and a valid checksum is between two sound chunks."""
    section = draw.draw(st.binary(min_size=1, max_size=60) | mutated(draw.draw(BODIES)))
    count = draw.draw(st.integers(1, 12) | st.just(2**16 - 1))
    head, tail = stream_of([[b"before"]]), [b"after"]
    offset = 2**53 + 1
    odd = seal_chunk(section, entries=count, records=count, offset=offset, timestamp_ms=0, epoch=1)
    data = head + odd + build_chunk(tail, offset=offset + count, timestamp_ms=0, epoch=1)

    with pytest.MonkeyPatch.context() as patch:
        take(walk, patch)
        assert outcome(by_columns, data) == outcome(one_by_one, data)


@st.composite
def mutated(draw: st.DrawFn, bodies: list[bytes]) -> bytes:
    """Draw entries with one byte changed."""
    raw = bytearray(encode_entries(bodies))
    raw[draw(st.integers(0, len(raw) - 1))] ^= draw(st.integers(1, 255))
    return bytes(raw)


def outcome(read: object, data: bytes) -> object:
    try:
        return read(data)  # type: ignore[operator]
    except OffloadError as error:
        return str(error)


def test_damage_is_raised_after_the_sound_chunks_before_it() -> None:
    sound = stream_of([[b"one", b"two"]])
    odd = seal_chunk(b"\0\0\0\x09x", entries=1, records=1, offset=2**53 + 2, timestamp_ms=0, epoch=1)
    data = sound + odd
    runs = record_runs(data, scan(data, where="here"), where="here")

    assert len(next(runs)) == 2
    with pytest.raises(Corrupt) as caught:
        next(runs)

    assert caught.value.position >= len(sound)


@given(st.lists(st.none() | ENTRIES, min_size=1, max_size=8))
def test_offsets_and_timestamps_are_known_without_the_bytes(
    chunks: list[list[bytes | SubBatch] | None],
) -> None:
    data = stream_of(chunks)

    offsets, timestamps = offsets_and_timestamps(scan(data, where="here"))

    found = list(zip(offsets.tolist(), timestamps.tolist(), strict=True))
    assert found == [(offset, at) for offset, at, _ in one_by_one(data)]


@given(st.lists(st.none() | ENTRIES, min_size=1, max_size=8), st.integers(1, 40))
def test_runs_of_a_table_have_its_messages_and_respect_their_limit(
    chunks: list[list[bytes | SubBatch] | None], rows_max: int
) -> None:
    table = scan(data := stream_of(chunks), where="here")

    runs = [*runs_of_table(table, rows_max=rows_max)]

    found = [
        pair for run in runs for pair in zip(run.offsets.tolist(), run.timestamps_ms.tolist(), strict=True)
    ]
    assert found == [(offset, at) for offset, at, _ in one_by_one(data)]
    assert all(len(run) <= rows_max for run in runs)


def test_a_table_that_claims_billions_of_messages_is_taken_piece_by_piece() -> None:
    table = scan(build_chunk([b"a"], offset=7, timestamp_ms=5, epoch=1), where="here")
    table["records"] = 2**32 - 1

    run = next(runs_of_table(table, rows_max=10))

    assert (run.offsets.tolist(), run.timestamps_ms.tolist()) == ([*range(7, 17)], [5] * 10)


def test_a_run_is_narrowed_by_offsets() -> None:
    (run,) = record_runs(data := stream_of([[b"a", b"b"], [b"c"]]), scan(data, where="x"), where="x")

    narrow = run.between(2**53 + 1, 2**53 + 2)

    assert (narrow.offsets.tolist(), narrow.starts.tolist()) == ([2**53 + 1], run.starts.tolist()[1:2])
    assert len(run.between(0, 2**63)) == 3
    assert len(run.between(0, 2**53)) == 0
