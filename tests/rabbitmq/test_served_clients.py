"""RabbitMQ's own clients read a server and a real RabbitMQ with the same streams: equal in each byte.

The clients are those of docs/serve-streams.md: the programs of the page, built by its commands.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign import campaign
from command_line import sync
from osiris_data import DATA, MANIFEST, body_of
from osiris_writer import write_stream
from served_pair import Ports, served_pair
from stream_client import FIRST, RawClient, first_offsets
from stream_programs import PAGE, TOOLS, StreamProgram, program_in, with_simple_codec
from stream_server import served

from offload import build_chunk

pytestmark = campaign("rstream reads both in make test; the clients for Java and Go are built for a minute")

EVERY = "func(message *amqp.Message) bool { return true }"
FILTERED = {
    "Java": (
        ".offset(OffsetSpecification.first())",
        '.offset(OffsetSpecification.first()).filter().values("g3").postFilter(message -> true).builder()',
    ),
    "Go": (
        ".First())",
        f'.First()).SetFilter(stream.NewConsumerFilter([]string{{"g3"}}, false, {EVERY}))',
    ),
    "Python": (
        "offset_specification=first)",
        'offset_specification=first, filter_input=FilterConfiguration(values_to_filter=["g3"]))',
    ),
}
"""What is changed on the page so that a program asks for chunks with a filter value."""

BODIES = [f"no AMQP {number}" for number in range(100)]


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archived")
    for name in ("tiny", "batches", "filtered"):
        shutil.copytree(DATA / name, folder / "source" / name)
    chunks = [
        build_chunk([body.encode() for body in BODIES[at : at + 10]], offset=at, timestamp_ms=at, epoch=1)
        for at in range(0, len(BODIES), 10)
    ]
    write_stream(folder / "source" / "plain", chunks)
    sync(folder / "source", folder / "tier")
    return folder / "tier"


@pytest.fixture(scope="module")
def ports(tier: Path) -> Iterator[Ports]:
    with served_pair(tier, ("tiny", "batches", "plain")) as ports:
        yield ports


@pytest.fixture(scope="module", params=TOOLS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StreamProgram:
    return program_in(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("stream", ["tiny", "batches"])
def test_a_client_reads_every_message_as_from_the_broker(
    program: StreamProgram, ports: Ports, stream: str
) -> None:
    """Plain messages, and sub-batches with and without gzip, between chunks of tracking."""
    count = MANIFEST["streams"][stream]["messages"]

    of_broker, of_server = (program.read(port, stream, count) for port in ports)

    assert of_server == of_broker
    assert [line.partition(" ")[2] for line in of_server] == [body_of(i).decode() for i in range(count)]


def test_a_client_reads_every_message_of_chunks_with_filters(program: StreamProgram, tier: Path) -> None:
    """RabbitMQ 3.10.8 knows no filters, so the messages are compared with the file's."""
    with served(tier) as running:
        found = program.read(running.port, "filtered", 20_000)

    assert found == [f"{i} {body_of(i).decode()}" for i in range(20_000)]


@pytest.mark.parametrize("language", TOOLS)
def test_a_client_with_a_filter_reads_the_chunks_that_may_have_its_value(
    language: str, tier: Path, tmp_path: Path
) -> None:
    page = (
        PAGE.read_text().replace(*FILTERED[language]).replace("Consumer,", "Consumer, FilterConfiguration,")
    )
    program = program_in(language, tmp_path, page)
    with served(tier) as running, RawClient.opened(running.port) as client:
        client.subscribe("filtered", FIRST, filter_0="g3")
        offsets = [first + at for first in first_offsets(client.delivered(9)) for at in range(250)]
        assert client.is_quiet()

        found = program.read(running.port, "filtered", len(offsets))

    assert found == [f"{offset} {body_of(offset).decode()}" for offset in offsets]


def test_java_reads_bodies_that_are_no_amqp_by_simple_codec(ports: Ports, tmp_path: Path) -> None:
    program = program_in("Java", tmp_path, with_simple_codec(PAGE.read_text()))

    of_broker, of_server = (program.read(port, "plain", len(BODIES)) for port in ports)

    assert of_server == of_broker == [f"{at} {body}" for at, body in enumerate(BODIES)]
