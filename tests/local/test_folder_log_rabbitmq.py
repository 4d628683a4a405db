"""A real RabbitMQ opens the files of a `FolderLog` as a stream, and a `FolderLog` those of RabbitMQ."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from campaign import campaign
from log_contract import NOW_MS, records_of
from rstream import Consumer, ConsumerOffsetSpecification, MessageContext, OffsetType, Producer
from rstream.exceptions import StreamNotAvailable
from servers.rabbitmq import RECIPE, Broker, rabbitmq
from servers.scratch import scratch_folder
from servers.session import REQUIRED

from offload.log.folder_log import FolderLog

pytestmark = campaign("the tests of torn files have what osiris itself made of them")

LOGIN = {"host": "127.0.0.1", "username": "guest", "password": "guest"}


@pytest.fixture
def scratch() -> Path:
    if why := RECIPE.missing():
        (pytest.fail if os.environ.get(REQUIRED) == "1" else pytest.skip)(f"rabbitmq cannot be run: {why}")
    with scratch_folder("folder-log") as folder:
        yield folder


async def publish(broker: Broker, bodies: list[bytes]) -> None:
    async with Producer(port=broker.stream_port, **LOGIN) as producer:
        await producer.create_stream("log", exists_ok=True)
        for body in bodies:
            await producer.send_wait("log", body)


async def consume(broker: Broker, first: int, count: int) -> list[tuple[int, bytes]]:
    """Return so many messages from an offset on, as RabbitMQ's client gets them."""
    found: list[tuple[int, bytes]] = []
    done = asyncio.Event()

    def take(body: bytes, context: MessageContext) -> None:
        found.append((context.offset, bytes(body)))
        if len(found) == count:
            done.set()

    consumer = Consumer(port=broker.stream_port, **LOGIN)
    await consumer.start()
    try:
        place = ConsumerOffsetSpecification(OffsetType.OFFSET, first)
        async with asyncio.timeout(60):
            while True:
                try:
                    await consumer.subscribe("log", take, offset_specification=place)
                    break
                except StreamNotAvailable:  # a broker that was just started opens its streams later
                    await asyncio.sleep(0.2)
            await done.wait()
    finally:
        await consumer.close()
    return found


@pytest.mark.parametrize("is_torn", [False, True])
def test_rabbitmq_delivers_all_messages_of_a_folder_log_and_goes_on(scratch: Path, is_torn: bool) -> None:
    bodies = [b"message %d " % number + bytes(number % 700) for number in range(5000)]

    async def write(folder: Path) -> None:
        async with await FolderLog.open(folder, roll_chunks=20) as log:
            for start in range(0, 4000, 40):
                await log.append(bodies[start : start + 40], timestamp_ms=NOW_MS + start)
            await log.roll(now_ms=NOW_MS)
            await log.append(bodies[4000:], timestamp_ms=NOW_MS + 9999)
            await log.save_note("cursors", b"{}")
            if not is_torn:
                await log.roll(now_ms=NOW_MS)  # RabbitMQ removes the empty pair
            assert len(log.ledgers) == 6 + (not is_torn)

    async def read(folder: Path) -> tuple[list[bytes], int]:
        async with await FolderLog.open(folder) as log:
            found = await records_of(log)
            assert await log.append([b"last"], timestamp_ms=2 * NOW_MS) == len(found)
            return found, log.epoch

    with rabbitmq(scratch) as broker:
        asyncio.run(publish(broker, []))
        (folder,) = broker.streams.glob("__log_*")
    asyncio.run(write(folder))
    if is_torn:
        newest = max(folder.glob("*.segment"))
        newest.write_bytes(newest.read_bytes() + b"\x50 a chunk that was never finished")
    with rabbitmq(scratch) as broker:
        delivered = asyncio.run(consume(broker, 0, len(bodies)))
        asyncio.run(publish(broker, [b"new 1", b"new 2"]))
        more = asyncio.run(consume(broker, 4999, 3))
    found, epoch = asyncio.run(read(folder))

    assert delivered == [*enumerate(bodies)]
    assert more == [*enumerate([bodies[-1], b"new 1", b"new 2"], start=4999)]
    assert found == [*bodies, b"new 1", b"new 2"]
    assert epoch > 2  # above RabbitMQ's
    with rabbitmq(scratch) as broker:
        assert asyncio.run(consume(broker, 5002, 1)) == [(5002, b"last")]
