"""Tests of the turns of uploads: what is in memory at once, however large the chunks are."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress

import pytest

from offload import MemoryHandle, ObjectStoreOffloader, StreamWriter, build_chunk
from offload.native import upload_turns
from offload.native.offloader import TierOptions
from offload.native.upload_turns import COPIES_OF_CHUNK, TURN_MEMORY_SIZE_BYTES, UploadTurns
from offload.service.assembly import shares
from offload.store.memory import MemoryStore

LARGE = TURN_MEMORY_SIZE_BYTES // COPIES_OF_CHUNK
"""The largest chunk that fits into one turn."""


def test_what_is_uploaded_at_once_never_needs_more_than_all_turns_have_and_everything_gets_its_turn() -> None:
    async def scenario() -> None:
        draw, turns, held, done = random.Random(1), UploadTurns(4), 0, 0

        async def upload(chunk_size_bytes: int) -> None:
            nonlocal held, done
            async with turns.turn("orders", chunk_size_bytes):
                need = max(chunk_size_bytes * COPIES_OF_CHUNK, TURN_MEMORY_SIZE_BYTES)
                held += need
                assert held <= 4 * TURN_MEMORY_SIZE_BYTES
                await asyncio.sleep(0)
                held, done = held - need, done + 1

        sizes = [draw.choice([1, LARGE, LARGE + 1, 2 * LARGE, 3 * LARGE + 7, 4 * LARGE]) for _ in range(200)]
        async with asyncio.timeout(30):
            await asyncio.gather(*map(upload, sizes))
        assert done == 200

    asyncio.run(scenario())


def test_a_fragment_that_is_cancelled_while_it_waits_for_turns_gives_back_what_it_has() -> None:
    async def scenario() -> None:
        turns = UploadTurns(3)

        async def upload() -> None:
            async with turns.turn("orders", 3 * LARGE):
                pass

        async with turns.turn("orders", 1):
            waiting = asyncio.create_task(upload())
            await asyncio.sleep(0)  # it has two of the three turns now
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
        async with asyncio.timeout(30):
            await upload()

    asyncio.run(scenario())


def test_a_chunk_that_exceeds_the_memory_is_one_line_of_the_log_before_it_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """110 MB is near the limit of a message in RabbitMQ. `memory` was the least that is possible."""

    async def scenario() -> None:
        turns = UploadTurns(1)
        for size_bytes in (LARGE, 110_000_000, 110_000_000, 70_000_000):
            async with turns.turn("big", size_bytes):
                pass

    asyncio.run(scenario())
    [line] = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert line == (
        "stream 'big': a chunk of 104 MiB takes about 314 MiB of memory while it is uploaded, and 96 MiB are "
        'planned for uploads: in the configuration of offload run, write memory = "512MiB", and let the '
        "service or the container have more than that"
    )


def test_the_log_names_a_memory_with_which_the_line_does_not_come_again() -> None:
    for size_bytes in (LARGE + 1, 70_000_000, 110_000_000, 128_000_000):
        needed = -(-COPIES_OF_CHUNK * size_bytes // TURN_MEMORY_SIZE_BYTES)
        memory = upload_turns.PROGRAM_MEMORY_SIZE_BYTES + needed * TURN_MEMORY_SIZE_BYTES

        assert shares(memory, 1)[1] >= needed


def test_an_offloader_uploads_fragments_with_large_chunks_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upload_turns, "TURN_MEMORY_SIZE_BYTES", 300)
    puts, most = 0, 0

    class Counting(MemoryStore):
        async def put(self, *args: object, **kwargs: object) -> None:
            nonlocal puts, most
            puts += 1
            most = max(most, puts)
            await asyncio.sleep(0)
            await super().put(*args, **kwargs)  # type: ignore[arg-type]
            puts -= 1

    async def most_at_once(body_size_bytes: int) -> int:
        nonlocal most
        options = TierOptions(fragment_size_bytes=1, uploads_max=3)
        writer = await StreamWriter.claim(ObjectStoreOffloader(Counting(), options=options), "orders")
        most, bodies = 0, [bytes(body_size_bytes)]
        chunks = [build_chunk(bodies, offset=n, timestamp_ms=1, epoch=1) for n in range(9)]
        await writer.offload([MemoryHandle(chunks)])
        return most

    assert asyncio.run(most_at_once(1)) == 3
    assert asyncio.run(most_at_once(200)) == 1
