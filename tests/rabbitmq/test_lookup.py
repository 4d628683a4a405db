"""Tests of attaching: a reader attaches where osiris does; osiris computed the answers from the
same files.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from offload_rabbitmq import RabbitmqStream
from osiris_data import DATA, MANIFEST, STREAMS
from osiris_writer import TIMESTAMP_MS, append_chunks, simple_chunks, write_stream

from offload.formats.chunk_writer import build_tracking_chunk
from offload.formats.tracking import ConsumerOffset
from offload.model.chunk_table import ChunkType
from offload.model.position import AtEdge, AtOffset, AtTime, Position
from offload.read.snapshots import attach as attach_at


def attach(folder: Path, positions: list[Position]) -> list[int]:
    async def look_up() -> list[int]:
        async with await RabbitmqStream(folder, name="stream").snapshot() as snapshot:
            return [await attach_at(snapshot, position) for position in positions]

    return asyncio.run(look_up())


def looked_up_by_osiris(stream: str, kind: str) -> dict[int, int]:
    lookups = MANIFEST["streams"][stream]["lookups_by_osiris_1_10_3"][kind]
    return {int(wanted): attached for wanted, attached in lookups.items()}


@pytest.mark.parametrize("stream", STREAMS)
def test_every_offset_attaches_where_osiris_attaches(stream: str) -> None:
    expected = looked_up_by_osiris(stream, "offset")

    found = attach(DATA / stream, [AtOffset(wanted) for wanted in expected])

    assert dict(zip(expected, found, strict=True)) == expected


@pytest.mark.parametrize("stream", STREAMS)
def test_every_time_attaches_where_osiris_attaches(stream: str) -> None:
    expected = looked_up_by_osiris(stream, "timestamp_ms")

    found = attach(DATA / stream, [AtTime(wanted) for wanted in expected])

    assert dict(zip(expected, found, strict=True)) == expected


@pytest.mark.parametrize("stream", STREAMS)
def test_first_last_and_next_are_the_same_as_in_osiris(stream: str) -> None:
    special = MANIFEST["streams"][stream]["lookups_by_osiris_1_10_3"]["special"]

    found = attach(DATA / stream, [AtEdge.FIRST, AtEdge.LAST, AtEdge.NEXT])

    assert found == [special["first"], special["last"], special["next"]]


def test_a_millisecond_that_spans_two_segments_attaches_at_the_earlier_chunk(tmp_path: Path) -> None:
    """osiris attaches at the later segment's first chunk, offset 6, and so misses offset 3."""
    shared = TIMESTAMP_MS + 1
    times = [TIMESTAMP_MS, shared, shared, shared + 1]
    write_stream(tmp_path, simple_chunks(4, timestamps_ms=times), segment_chunks=2)

    assert (tmp_path / f"{6:020}.segment").exists()
    assert attach(tmp_path, [AtTime(shared)]) == [3]


def test_a_clock_that_went_back_still_attaches_at_the_first_chunk_of_a_time(tmp_path: Path) -> None:
    """Timestamps come from the leader's clock, and the clock of the next leader may be behind."""
    times = [TIMESTAMP_MS + late for late in (0, 500, 100, 200)]
    write_stream(tmp_path, simple_chunks(4, timestamps_ms=times), segment_chunks=2)

    assert attach(tmp_path, [AtTime(TIMESTAMP_MS + 150), AtTime(TIMESTAMP_MS + 501)]) == [3, 12]


def test_the_last_chunk_with_messages_may_be_in_an_earlier_segment(tmp_path: Path) -> None:
    """A segment may hold only the tracking chunk at its beginning."""
    write_stream(tmp_path, simple_chunks(2), segment_chunks=2)
    block = ConsumerOffset(name=b"reader", offset=3)
    tracking = build_tracking_chunk(
        [block], chunk_type=ChunkType.TRACKING_DELTA, offset=6, timestamp_ms=TIMESTAMP_MS, epoch=1
    )
    (tmp_path / f"{6:020}.segment").write_bytes(b"OSIL\0\0\0\1")
    (tmp_path / f"{6:020}.index").write_bytes(b"OSII\0\0\0\1")
    append_chunks(tmp_path, [tracking])

    assert attach(tmp_path, [AtEdge.LAST, AtEdge.NEXT]) == [3, 7]
