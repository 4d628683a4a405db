"""The server beside a real RabbitMQ with the same streams: equal frames, and the same messages by rstream."""

from __future__ import annotations

import asyncio
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from command_line import sync
from osiris_data import DATA
from rstream import Consumer, ConsumerOffsetSpecification, MessageContext, OffsetType
from served_pair import Ports, served_pair
from stream_client import (
    CREDIT,
    FIRST,
    LAST,
    METADATA,
    NEXT,
    QUERY,
    UNSUBSCRIBE,
    RawClient,
    at_offset,
    at_time,
    text,
)

STREAMS: Final = ("tiny", "batches")


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archived")
    for name in STREAMS:
        shutil.copytree(DATA / name, folder / "source" / name)
    sync(folder / "source", folder / "tier")
    return folder / "tier"


@pytest.fixture(scope="module")
def ports(tier: Path) -> Iterator[Ports]:
    with served_pair(tier, STREAMS) as ports:
        yield ports


def deliveries(port: int, stream: str, spec: bytes, *, chunks: int) -> list[bytes]:
    """Return the whole frames that a subscription gets until nothing comes for a moment."""
    with RawClient.opened(port) as client:
        assert client.subscribe(stream, spec, credit=chunks, number=3) == 1
        found = list[bytes]()
        while not client.is_quiet(0.5):
            found.append(client.receive())
        return found


@pytest.mark.parametrize("stream", STREAMS)
def test_every_frame_of_deliver_is_the_broker_s(ports: Ports, stream: str) -> None:
    of_broker, of_server = (deliveries(port, stream, FIRST, chunks=1000) for port in ports)

    assert of_server == of_broker
    assert len(of_server) > 2


@pytest.mark.parametrize("stream", STREAMS)
def test_every_specification_attaches_where_the_broker_attaches_it(ports: Ports, stream: str) -> None:
    whole = deliveries(ports[0], stream, FIRST, chunks=1000)
    times = [struct.unpack_from(">q", raw, 5 + 8)[0] for raw in whole]
    ends = [struct.unpack_from(">Q", raw, 5 + 24)[0] for raw in whole]
    specs = [FIRST, LAST, NEXT, at_offset(2**63), at_time(0), at_time(times[-1] + 1)]
    specs += [at_offset(offset) for end in ends for offset in (end, end + 1)]
    specs += [at_time(time + step) for time in times for step in (-1, 0, 1)]

    for spec in dict.fromkeys(specs):
        first = [deliver_one(port, stream, spec) for port in ports]
        assert first[1] == first[0], spec


def deliver_one(port: int, stream: str, spec: bytes) -> bytes | None:
    """Return the first frame of a subscription, or None if nothing comes."""
    with RawClient.opened(port) as client:
        client.subscribe(stream, spec, credit=1)
        return None if client.is_quiet(0.25) else client.receive()


def test_answers_are_the_broker_s(ports: Ports) -> None:
    """Codes and contents of requests whose answers do not depend on who answers."""
    answers = []
    for port in ports:
        with RawClient.opened(port) as client:
            client.subscribe("tiny", FIRST, credit=0)
            found = [client.subscribe("tiny", FIRST), client.subscribe("nope", FIRST, number=9)]
            found += [client.ask(UNSUBSCRIBE, bytes([n])) for n in (0, 77)]
            found.append(client.ask(QUERY, text("nobody") + text("tiny")))
            client.send(CREDIT, struct.pack(">BH", 99, 1))
            found.append(client.take(0x8009))
            found.append(client.ask(METADATA, struct.pack(">I", 1) + text("nope"))[-len(text("nope")) - 8 :])
            answers.append(found)

    assert answers[1] == answers[0]


@pytest.mark.parametrize("stream", STREAMS)
def test_rstream_gets_the_same_messages_from_both(ports: Ports, stream: str) -> None:
    of_broker, of_server = (asyncio.run(consumed(port, stream)) for port in ports)

    assert of_server == of_broker
    assert of_server


async def consumed(port: int, stream: str) -> list[tuple[int, bytes]]:
    """Return all messages of a stream, as the library delivers them."""
    found: list[tuple[int, bytes]] = []

    def take(body: bytes, context: MessageContext) -> None:
        found.append((context.offset, bytes(body)))

    consumer = Consumer(host="127.0.0.1", port=port, username="guest", password="guest")
    await consumer.start()
    try:
        first = ConsumerOffsetSpecification(OffsetType.FIRST, None)
        await consumer.subscribe(stream, take, offset_specification=first)
        count = -1
        while len(found) > count or not found:
            count = len(found)
            await asyncio.sleep(0.5)
    finally:
        await consumer.close()
    return found
