"""Tests of the bytes that a reader delivers: kept ones never change, and the memory of others is reused."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from offload import MemoryHandle, StreamReader, StreamWriter, build_chunk, open_tier
from offload.contracts.store import Buffer
from offload.formats.fragment import FragmentTail
from offload.read import windows as windows_module

WINDOW_SIZE_BYTES = 1024 * 1024
CHUNKS = 24
"""Each is a window of its own."""


def body_of(number: int) -> bytes:
    return bytes([number]) * WINDOW_SIZE_BYTES


async def windows_of(folder: Path, take: Callable[[int, Buffer], None]) -> None:
    """Read the stream of a new tier, and call `take` with the number and the bytes of each window."""
    async with open_tier(str(folder / "tier")) as tier:
        writer = await StreamWriter.claim(tier, "orders")
        chunks = [build_chunk([body_of(n)], offset=n, timestamp_ms=n, epoch=1) for n in range(CHUNKS)]
        await writer.offload([MemoryHandle(chunks)])
        reader = await StreamReader.open(tier, "orders")
        with (
            patch.object(windows_module, "FIRST_WINDOW_SIZE_BYTES", WINDOW_SIZE_BYTES),
            patch.object(windows_module, "READ_WINDOW_SIZE_BYTES", WINDOW_SIZE_BYTES),
        ):
            windows = reader.windows(0)
            number = 0
            async for window in windows:
                take(number, window.data)
                del window
                number += 1
            await windows.aclose()
        assert number == CHUNKS


@pytest.mark.parametrize(
    "form",
    [
        lambda data: data,
        lambda data: data[-1000:],
        lambda data: np.frombuffer(data, np.uint8)[-1000:],
        lambda data: memoryview(data).cast("b")[-1000:][::2],
        lambda data: bytes(data[-1000:]),
    ],
    ids=["the window", "a slice", "an array", "a cast", "a copy"],
)
def test_bytes_that_a_consumer_keeps_never_change(form: Callable[[Buffer], object], tmp_path: Path) -> None:
    kept: list[tuple[int, object]] = []

    def take(number: int, data: Buffer) -> None:
        assert isinstance(data, memoryview), "a store of plain bytes has nothing to use again"
        assert data.readonly
        if number % 3:
            kept.append((number, form(data)))

    asyncio.run(windows_of(tmp_path, take))

    for number, held in kept:
        assert bytes(held)[-100:] == body_of(number)[-100:]  # type: ignore[call-overload]


def test_windows_that_a_consumer_drops_share_a_little_memory(tmp_path: Path) -> None:
    used: set[int] = set()

    asyncio.run(
        windows_of(tmp_path, lambda number, data: used.add(np.frombuffer(data, np.uint8).ctypes.data))
    )

    assert len(used) <= 2 * (1 + 4), "four reads in flight, and one window at the consumer"


def test_a_kept_message_keeps_no_other_bytes(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tier(str(tmp_path)) as tier:
            writer = await StreamWriter.claim(tier, "orders")
            chunk = build_chunk([body_of(1), b"small"], offset=0, timestamp_ms=0, epoch=1)
            await writer.offload([MemoryHandle([chunk])])
            reader = await StreamReader.open(tier, "orders")
            async for batch in reader.messages(0):
                assert [type(body) for body in batch.bodies] == [bytes, bytes]

    asyncio.run(main())


def test_windows_are_checked_in_a_thread_and_one_at_a_time(tmp_path: Path) -> None:
    """Two threads would pass the interpreter's lock to and fro at each chunk."""
    under_way: list[str] = []
    check = FragmentTail.chunks_in

    def watched(*args: Any, **kwargs: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        assert not under_way
        under_way.append("a check")
        time.sleep(0.005)
        try:
            return check(*args, **kwargs)
        finally:
            under_way.clear()

    taken: list[int] = []
    with patch.object(FragmentTail, "chunks_in", watched):
        asyncio.run(windows_of(tmp_path, lambda number, data: taken.append(number)))

    assert taken == list(range(CHUNKS))
