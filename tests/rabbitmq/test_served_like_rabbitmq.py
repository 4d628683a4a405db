"""The server beside a real RabbitMQ with the same streams: equal frames, and the same messages by rstream."""

from __future__ import annotations

import asyncio
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from command_line import offload, sync
from osiris_data import DATA, MANIFEST, body_of
from osiris_writer import write_stream
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

from offload import build_chunk

STREAMS: Final = ("tiny", "batches", "events", "trimmed")
TRIMMED: Final = 3669
"""The first offset of a stream whose beginning was deleted: that of the second segment of `batches`."""

KNOWN: Final = {"tiny": "tiny", "batches": "batches", "trimmed": "batches"}
"""The name in the manifest."""


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archived")
    for stream, name in KNOWN.items():
        shutil.copytree(DATA / name, folder / "source" / stream)
    write_stream(folder / "source" / "events", events(), segment_size_bytes=400_000)
    sync(folder / "source", folder / "tier")
    ran = offload("trim", folder / "tier", "trimmed", "--before", TRIMMED, "--yes")
    assert ran.code == 0, ran.text
    return folder / "tier"


def events() -> Iterator[bytes]:
    """Yield chunks of simple messages in bursts: several in a millisecond, then a pause, over segments."""
    offset, timestamp_ms = 0, 1_795_238_999_599
    for number in range(150):
        bodies = [body_of(i) for i in range(offset, offset + 97 * number % 250 + 1)]
        entries = [b"\0Su\xa0%c%b" % (len(body), body) for body in bodies]
        yield build_chunk(entries, offset=offset, timestamp_ms=timestamp_ms, epoch=1)
        offset += len(entries)
        timestamp_ms += (0, 0, 1, 0, 50)[number % 5]


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
    """At the ends, around each chunk and its time, and where the manifest has a lookup of osiris."""
    whole = deliveries(ports[0], stream, FIRST, chunks=1000)
    times = [struct.unpack_from(">q", raw, 5 + 8)[0] for raw in whole]
    ids = [struct.unpack_from(">Q", raw, 5 + 24)[0] for raw in whole]
    specs = [FIRST, LAST, NEXT, at_offset(0), at_offset(2**63), at_offset(2**64 - 1), at_time(-(2**63))]
    specs += [at_offset(offset) for first in ids for offset in (max(first - 1, 0), first, first + 1)]
    specs += [at_time(time + step) for time in times for step in (-1, 0, 1)]
    known = MANIFEST["streams"][KNOWN[stream]]["lookups_by_osiris_1_10_3"] if stream in KNOWN else {}
    specs += [at_offset(int(each)) for each in known.get("offset", ())]
    specs += [at_time(int(each)) for each in known.get("timestamp_ms", ())]
    specs = [*dict.fromkeys(specs)]

    of_broker, of_server = (attached(port, stream, specs) for port in ports)

    assert dict(zip(specs, of_server, strict=True)) == dict(zip(specs, of_broker, strict=True))


def attached(port: int, stream: str, specs: list[bytes]) -> list[bytes | None]:
    """Return the first frame of a subscription to each, or None if nothing comes."""
    found = list[bytes | None]()
    with RawClient.opened(port) as client:
        for spec in specs:
            assert client.subscribe(stream, spec, credit=1) == 1
            found.append(None if client.is_quiet(0.25) else client.receive())
            assert client.ask(UNSUBSCRIBE, b"\0")[:2] == b"\0\1"
    return found


@pytest.mark.parametrize(("given", "added", "chunks"), [(0, [], 0), (1, [0], 1), (2, [1, 3], 6)])
def test_credit_counts_as_the_broker_counts_it(
    ports: Ports, given: int, added: list[int], chunks: int
) -> None:
    found = []
    for port in ports:
        with RawClient.opened(port) as client:
            client.subscribe("batches", FIRST, credit=given)
            for amount in added:
                client.give(amount)
            frames = client.delivered(chunks)
            assert client.is_quiet(0.3)
            found.append(frames)

    assert found[1] == found[0]


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


@pytest.mark.parametrize("stream", ["tiny", "batches"])
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
