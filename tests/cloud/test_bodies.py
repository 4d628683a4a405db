"""Tests of large bodies: they are sent in slices, with the same bytes, and never all at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from offload_cloud.bodies import SLICE_SIZE_BYTES, SlicedBody, sliced

DATA = bytes(range(256)) * 4096 + b"end"
WINDOWS = [DATA[:100], DATA[100 : SLICE_SIZE_BYTES + 7], DATA[SLICE_SIZE_BYTES + 7 : -3], DATA[-3:]]


class Writer:
    """A writer that collects bytes, and records their number before each wait for the socket."""

    def __init__(self) -> None:
        self.taken = bytearray()
        self.transport = None
        self.between_waits: list[int] = [0]

    async def write(self, piece: Any) -> None:
        self.taken += piece
        self.between_waits[-1] += len(piece)

    async def drain(self) -> None:
        self.between_waits.append(0)


@pytest.mark.parametrize("announced", [None, len(DATA), SLICE_SIZE_BYTES + 1, 0])
def test_exactly_the_announced_bytes_are_sent_slice_by_slice(announced: int | None) -> None:
    writer: Any = Writer()

    asyncio.run(SlicedBody(WINDOWS).write_with_length(writer, announced))

    assert writer.taken == DATA[:announced]
    assert max(writer.between_waits) <= SLICE_SIZE_BYTES


def test_a_body_can_be_sent_again() -> None:
    writer: Any = Writer()
    body = SlicedBody(WINDOWS)

    asyncio.run(body.write(writer))
    asyncio.run(body.write(writer))

    assert writer.taken == DATA + DATA


def test_a_body_reads_and_seeks_like_a_file() -> None:
    body = SlicedBody(WINDOWS)

    assert (body.read(4), body.tell(), body.seek(-3, 2), body.read()) == (DATA[:4], 4, len(DATA) - 3, b"end")
    assert (body.seek(1), body.seek(2, 1), body.read(2), len(body)) == (1, 3, DATA[3:5], len(DATA))


def test_a_small_body_is_sent_unchanged() -> None:
    assert sliced([b"sm", b"all"]) == b"small"
    assert sliced([]) == b""
    assert isinstance(sliced([DATA]), SlicedBody)


@pytest.mark.parametrize("step", [1, 99, 100, 101, 2**16, len(DATA)])
def test_pieces_of_any_size_cross_the_windows(step: int) -> None:
    body = SlicedBody(WINDOWS)
    body.seek(50)

    pieces = list(iter(lambda: body.read(step), b"")) if step > 1 else [body.read(1) for _ in range(200)]

    assert b"".join(pieces) == (DATA[50:] if step > 1 else DATA[50:250])
    assert step == 1 or body.read() == b""
