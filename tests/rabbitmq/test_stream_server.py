"""Tests of the server of RabbitMQ's streams, by a raw client that was written from the protocol."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import pytest
from campaign import CAMPAIGN
from certificates import certificate
from command_line import SEED, sync
from offload_rabbitmq.server.listener import open_listener
from osiris_data import DATA, MANIFEST
from stream_client import (
    AUTHENTICATE,
    BEAT,
    CLOSE,
    CREDIT,
    FIRST,
    LAST,
    METADATA,
    NEXT,
    PARTITIONS,
    PROPERTIES,
    QUERY,
    RESPONSE,
    ROUTE,
    STATS,
    STORE,
    SUBSCRIBE,
    UNSUBSCRIBE,
    UPDATE,
    VERSIONS,
    RawClient,
    at_offset,
    at_time,
    first_offsets,
    frame,
    pairs,
    text,
)
from stream_server import Served, served

from offload import (
    MemoryHandle,
    Misuse,
    ObjectStoreOffloader,
    StreamWriter,
    build_chunk,
    delete_stream,
    open_tier,
)
from offload.ground.env import Env
from offload.model.part import StreamPart

FRAMES: Final = 100_000 if CAMPAIGN else 2_000
CLIENTS: Final = 300 if CAMPAIGN else 60
BITS: Final = {
    (value, bits // 8): found
    for value, bits, *found in MANIFEST["streams"]["filtered"]["filter_hashes"]["rows"]
}
"""The two bits of each value in a filter of so many bytes, as osiris sets them."""

VALUES: Final = sorted({value for value, _ in BITS})
V2: Final = [(8, 1, 2)]


def user_chunks(stream: str) -> list[bytes]:
    """Return what a broker would deliver of each user chunk: the header and the entries, from the files."""
    found = list[bytes]()
    for path in sorted((DATA / stream).glob("*.segment")):
        raw, at = path.read_bytes(), 8
        while at < len(raw):
            data, trailer, of_filter = struct.unpack_from(">IIB", raw, at + 36)
            begin = at + 48 + of_filter
            if raw[at + 1] == 0:
                found.append(raw[at : at + 48] + raw[begin : begin + data])
            at = begin + data + trailer
    return found


def blooms(stream: str) -> list[tuple[int, bytes]]:
    """Return the first offset and the bloom filter of each user chunk, from the files."""
    found = list[tuple[int, bytes]]()
    for path in sorted((DATA / stream).glob("*.segment")):
        raw, at = path.read_bytes(), 8
        while at < len(raw):
            data, trailer, size = struct.unpack_from(">IIB", raw, at + 36)
            if raw[at + 1] == 0:
                found.append((struct.unpack_from(">Q", raw, at + 24)[0], raw[at + 48 : at + 48 + size]))
            at += 48 + size + data + trailer
    return found


BLOOMS: Final = blooms("filtered")


def ids(chunks: list[bytes]) -> list[int]:
    return [struct.unpack_from(">Q", raw, 24)[0] for raw in chunks]


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    for name in ("tiny", "batches", "filtered"):
        shutil.copytree(DATA / name, folder / "source" / name)
    sync(folder / "source", folder / "tier")
    return folder / "tier"


@pytest.fixture
def server(tier: Path) -> Iterator[Served]:
    with served(tier) as running:
        yield running


@pytest.mark.parametrize("stream", sorted({"tiny", "batches", "filtered"}))
def test_a_client_gets_each_user_chunk_as_the_broker_stored_it(server: Served, stream: str) -> None:
    expected = user_chunks(stream)
    with RawClient.opened(server.port) as client:
        assert client.subscribe(stream, FIRST, credit=len(expected), number=7, match_unfiltered="true") == 1

        assert client.delivered(len(expected)) == [b"\7" + chunk for chunk in expected]
        assert client.is_quiet()


def test_a_client_that_lists_the_second_version_gets_the_last_chunk_id(server: Served) -> None:
    expected = user_chunks("tiny")
    with RawClient.opened(server.port, versions=V2) as client:
        client.subscribe("tiny", FIRST)

        frames = client.delivered(len(expected))

    assert [frame[9:] for frame in frames] == expected
    committed = [int.from_bytes(frame[1:9], "big") for frame in frames]
    assert all(
        first <= told <= ids(expected)[-1] for first, told in zip(ids(expected), committed, strict=True)
    )


def test_nothing_is_sent_without_credit_and_one_chunk_for_each(server: Served) -> None:
    expected = user_chunks("tiny")
    with RawClient.opened(server.port) as client:
        client.subscribe("tiny", FIRST, credit=0)
        assert client.is_quiet()

        for number, chunk in enumerate(expected):
            client.give(1)
            assert client.delivered(1) == [b"\0" + chunk], number
            assert client.is_quiet(0.05)


def test_credit_is_clamped_and_negative_amounts_do_not_count(server: Served) -> None:
    with RawClient.opened(server.port) as client:
        client.subscribe("tiny", FIRST, credit=0)
        for _ in range(1000):
            client.give(65_535)  # -1 for a broker
        assert client.is_quiet()

        for _ in range(1000):
            client.give(32_767)

        assert len(client.delivered(len(user_chunks("tiny")))) == len(user_chunks("tiny"))


@pytest.mark.parametrize("stream", ["tiny", "batches"])
def test_an_offset_attaches_at_the_chunk_that_holds_it(server: Served, stream: str) -> None:
    """The campaign asks for all offsets, `make test` for five of each chunk."""
    chunks = user_chunks(stream)
    with RawClient.opened(server.port) as client:
        for raw, first in zip(chunks, ids(chunks), strict=True):
            offsets = range(first, first + struct.unpack_from(">I", raw, 4)[0])
            for offset in offsets if CAMPAIGN else {*offsets[:2], offsets[len(offsets) // 2], *offsets[-2:]}:
                client.subscribe(stream, at_offset(offset), credit=1)

                assert client.delivered(1) == [b"\0" + raw], offset
                client.ask(UNSUBSCRIBE, b"\0")


def test_specifications_attach_where_a_broker_attaches_them(server: Served) -> None:
    chunks = user_chunks("tiny")
    times = [struct.unpack_from(">q", raw, 8)[0] for raw in chunks]
    cases = [(FIRST, 0), (LAST, len(chunks) - 1), (at_offset(0), 0), (at_time(0), 0), (at_time(-5), 0)]
    cases += [(at_time(time), times.index(time)) for time in times]
    with RawClient.opened(server.port) as client:
        for spec, row in cases:
            client.subscribe("tiny", spec, credit=1)
            assert client.delivered(1) == [b"\0" + chunks[row]], spec
            client.ask(UNSUBSCRIBE, b"\0")
        for spec in (NEXT, at_offset(2**64 - 1), at_offset(10_000), at_time(times[-1] + 1)):
            assert client.subscribe("tiny", spec) == 1
            assert client.is_quiet(0.1), spec
            client.ask(UNSUBSCRIBE, b"\0")


@pytest.mark.parametrize("stream", ["tiny", "batches", "filtered"])
def test_every_lookup_of_osiris_attaches_at_the_same_chunk(server: Served, stream: str) -> None:
    """The manifest has them. Osiris may attach at a tracking chunk: the chunk behind it comes first."""
    known, chunks = MANIFEST["streams"][stream]["lookups_by_osiris_1_10_3"], ids(user_chunks(stream))
    wanted = [(at_offset(int(offset)), attached) for offset, attached in known["offset"].items()]
    wanted += [(at_time(int(time)), attached) for time, attached in known["timestamp_ms"].items()]
    with RawClient.opened(server.port) as client:
        for spec, attached in wanted:
            client.subscribe(stream, spec, credit=1)
            expected = [first for first in chunks if first >= attached][:1]
            assert first_offsets(client.delivered(len(expected))) == expected, spec
            assert expected or client.is_quiet(0.05), spec
            client.ask(UNSUBSCRIBE, b"\0")


def test_what_comes_later_is_delivered_to_those_who_wait(tmp_path: Path) -> None:
    asyncio.run(append(tmp_path / "tier", [b"one"]))
    with served(tmp_path / "tier") as running, RawClient.opened(running.port) as client:
        client.subscribe("orders", NEXT)
        assert client.is_quiet(0.2)

        asyncio.run(append(tmp_path / "tier", [b"two", b"three"]))

        assert first_offsets(client.delivered(1)) == [1]


async def append(place: Path, bodies: list[bytes], *, stream: str = "orders") -> None:
    async with open_tier(str(place)) as tier:
        writer = await StreamWriter.claim(tier, stream)
        end = writer.manifest.next_offset
        chunk = build_chunk(bodies, offset=end, timestamp_ms=1_000 + end, epoch=1)
        await writer.offload([MemoryHandle([chunk])])


def test_codes_of_refusals(server: Served) -> None:
    with RawClient.opened(server.port) as client:
        assert client.subscribe("nope", FIRST) == 2
        assert client.subscribe("tiny", FIRST, credit=0) == 1
        assert client.subscribe("tiny", FIRST) == 3
        assert client.subscribe("tiny", FIRST, number=1, single_active_consumer="true", name="x") == 17
        assert client.ask(UNSUBSCRIBE, b"\11")[:2] == b"\0\4"
        assert client.ask(1, b"\0" + text("") + text("tiny"))[:2] == b"\0\20"  # DeclarePublisher
        assert client.ask(13, text("new") + bytes(4))[:2] == b"\0\20"  # Create
        assert client.ask(14, text("tiny"))[:2] == b"\0\20"  # Delete
        client.send(2, b"\3" + struct.pack(">IQI", 1, 42, 1) + b"x")  # Publish
        assert client.take(4) == b"\3" + struct.pack(">IQH", 1, 42, 18)
        client.give(1, number=99)
        assert client.take(0x8009) == b"\0\4\x63"
        assert client.ask(STATS, text("nope"))[:2] == b"\0\2"


def test_clients_are_told_the_versions_by_which_they_decide(server: Served) -> None:
    """Java, Go and .NET compare the number. rstream takes the second row for that of Publish."""
    with RawClient(server.port) as client:
        assert text("version") + text("3.13.0") in client.ask(PROPERTIES, bytes(4))
    with RawClient.opened(server.port) as client:
        answer = client.ask(VERSIONS, struct.pack(">IHHH", 1, 8, 1, 2))

    rows = [*struct.iter_unpack(">HHH", answer[6:])]
    assert answer[:6] == struct.pack(">HI", 1, len(rows))
    assert rows[:2] == [(1, 1, 1), (2, 1, 2)]
    assert {key for key, _, _ in rows} > {7, 9, 10, 11, 12, 15, 22, 23, 24, 25, 28}


def test_metadata_and_open_have_the_same_address(tier: Path) -> None:
    options = "?advertised-host=archive.example&advertised-port=4242"
    with served(tier, options) as running, RawClient.opened(running.port) as client:
        answer = client.ask(METADATA, struct.pack(">I", 2) + text("tiny") + text("nope"))
        opened = client.opened_with

    node = struct.pack(">IH", 1, 0) + text("archive.example") + struct.pack(">I", 4242)
    streams = struct.pack(">I", 2) + text("tiny") + struct.pack(">HHI", 1, 0, 0)
    assert answer == node + streams + text("nope") + struct.pack(">HHI", 2, 0xFFFF, 0)
    assert text("advertised_host") + text("archive.example") in opened
    assert text("advertised_port") + text("4242") in opened


def test_stored_offsets_are_read_back_at_once(server: Served) -> None:
    with RawClient.opened(server.port) as client:
        asked = text("app") + text("tiny")
        assert client.ask(QUERY, asked) == b"\0\x13" + bytes(8)
        for offset in (5, 3, 2**63):
            client.send(STORE, asked + struct.pack(">Q", offset))
            assert client.ask(QUERY, asked) == b"\0\1" + struct.pack(">Q", offset)
        assert client.ask(QUERY, text("app") + text("nope"))[:2] == b"\0\2"


def test_stats_have_the_ids_of_chunks(server: Served) -> None:
    with RawClient.opened(server.port) as client:
        answer = client.ask(STATS, text("tiny"))

    for name, value in (("first_chunk_id", 0), ("committed_chunk_id", ids(user_chunks("tiny"))[-1])):
        assert text(name) + struct.pack(">q", value) in answer


@pytest.mark.parametrize("name", ["chunk_selector", "chunk-selector"])
def test_a_consumer_that_selects_all_chunks_gets_those_of_users_alone(server: Served, name: str) -> None:
    """RabbitMQ would send tracking chunks and trailers, too. No client that we know asks for it."""
    expected = user_chunks("batches")
    content = b"\0" + text("batches") + FIRST + struct.pack(">H", 1000) + pairs({name: "all"})
    with RawClient.opened(server.port) as client:
        assert client.ask(SUBSCRIBE, content)[:2] == b"\0\1"

        assert client.delivered(len(expected)) == [b"\0" + chunk for chunk in expected]
        assert client.is_quiet(0.05)


def may_have(bloom: bytes, value: str, *, is_unfiltered: bool = False) -> bool:
    """Return whether a chunk is delivered, by the bits that osiris sets."""
    if not bloom:
        return is_unfiltered
    bits = {number for number in range(8 * len(bloom)) if bloom[number // 8] & 0x80 >> number % 8}
    return bits.issuperset(BITS[value, len(bloom)]) or (is_unfiltered and 0 in bits)


@pytest.mark.parametrize("is_unfiltered", [False, True])
@pytest.mark.parametrize("value", VALUES)
def test_a_filter_delivers_the_chunks_whose_bloom_filter_matches(
    server: Served, value: str, is_unfiltered: bool
) -> None:
    """Those that are left out take no credit."""
    expected = [first for first, bloom in BLOOMS if may_have(bloom, value, is_unfiltered=is_unfiltered)]
    assert len(expected) < len(BLOOMS)
    more = {"match_unfiltered": "true"} if is_unfiltered else {}
    with RawClient.opened(server.port) as client:
        client.subscribe("filtered", FIRST, credit=len(expected), filter_1=value, **more)
        assert first_offsets(client.delivered(len(expected))) == expected

        client.give(1)
        assert client.is_quiet(0.05)


def test_a_damaged_chunk_ends_the_stream_behind_the_sound_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(4):
        asyncio.run(append(tmp_path / "tier", [b"sound-%d" % number]))
    for path in (tmp_path / "tier").rglob("*.fragment"):
        raw = bytearray(path.read_bytes())
        if (at := raw.find(b"sound-2")) >= 0:
            raw[at] ^= 1
            path.write_bytes(raw)
            damaged = path.name
    with served(tmp_path / "tier") as running, RawClient.opened(running.port) as client:
        client.subscribe("orders", FIRST, credit=0, number=5)
        client.subscribe("orders", FIRST)

        assert first_offsets(client.delivered(2)) == [0, 1]
        assert client.take(UPDATE) == b"\0\6" + text("orders")
        assert client.ask(UNSUBSCRIBE, b"\5")[:2] == b"\0\4", "it is of the same stream, and has ended too"
        assert client.ask(METADATA, struct.pack(">I", 0)), "the connection lives"
        assert running.counts.damaged == 1
        assert damaged in running.counts.problems["orders"], "a note for the operator"

    [line] = [each.getMessage() for each in caplog.records if "is damaged" in each.getMessage()]
    assert damaged in line
    assert "byte" in line


# Names and parts.


def test_a_damaged_anchor_hides_its_own_stream_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for stream in ("damaged", "sound"):
        asyncio.run(append(tmp_path / "tier", [b"x"], stream=stream))
    anchor = tmp_path / "tier" / "damaged" / "stream.anchor"
    anchor.write_bytes(anchor.read_bytes()[:-5])
    with served(tmp_path / "tier") as running, RawClient.opened(running.port) as client:
        for _ in range(2):
            assert client.subscribe("damaged", FIRST) == 2
            assert client.ask(METADATA, struct.pack(">I", 1) + text("sound"))
            time.sleep(1.1)  # the names are asked for again
        assert client.subscribe("sound", FIRST) == 1
        assert first_offsets(client.delivered(1)) == [0]

    assert len([each for each in caplog.messages if "not served: damaged/stream.anchor" in each]) == 1


@pytest.mark.parametrize(
    ("host", "name", "stream"),
    [
        ("/", "orders", "__orders_1795238998890203020"),
        ("/", "__orders_1795238998890203019", "__orders_1795238998890203019"),
        ("/", "a.b", "__a_b_1795238998890203020"),
        ("sales", "orders", "sales_orders_1795238998890203020"),
        ("/", "plain", "plain"),
        ("sales", "plain", "plain"),
        ("/", "order", None),
        ("sales", "a.b", None),
        ("/", "__orders", None),
    ],
)
def test_a_name_means_the_newest_stream_of_its_folder_or_the_stream_itself(
    named: Served, host: str, name: str, stream: str | None
) -> None:
    with RawClient.opened(named.port, host=host) as client:
        code = client.subscribe(name, FIRST, credit=1)

        assert code == (1 if stream else 2)
        assert stream is None or client.delivered(1)[0].endswith(stream.encode())


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of streams whose only message is their name."""
    place = tmp_path_factory.mktemp("named") / "tier"
    for name in (
        "__orders_1795238998890203019",
        "__orders_1795238998890203020",
        "__a_b_1795238998890203020",
        "sales_orders_1795238998890203020",
        "plain",
        "super-0",
        "super-1",
    ):
        asyncio.run(append(place, [name.encode()], stream=name))
    with served(place) as running:
        yield running


def test_the_streams_of_a_super_stream_are_found_by_their_numbers(named: Served) -> None:
    with RawClient.opened(named.port) as client:
        assert client.ask(PARTITIONS, text("super")) == struct.pack(">HI", 1, 2) + text("super-0") + text(
            "super-1"
        )
        assert client.ask(ROUTE, text("1") + text("super")) == struct.pack(">HI", 1, 1) + text("super-1")
        assert client.ask(ROUTE, text("7") + text("super")) == struct.pack(">HI", 1, 0)
        assert client.ask(PARTITIONS, text("nope")) == struct.pack(">HI", 2, 0)


@pytest.mark.parametrize("step", [0, 5, -2])
def test_a_name_serves_the_parts_whose_offsets_ascend(
    tmp_path: Path, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "tier"
    for body in (b"one", b"two", b"three"):
        asyncio.run(append(place, [body]))
    part = asyncio.run(begin_part(place, 3 + step))
    asyncio.run(append(place, [b"behind"], stream=part))
    expected = [0, 1, 2, *([3 + step] if step >= 0 else [])]
    with served(place) as running, RawClient.opened(running.port) as client:
        client.subscribe("orders", FIRST)
        assert first_offsets(client.delivered(len(expected))) == expected
        assert client.is_quiet(0.2)
        client.subscribe("orders", LAST, number=1)
        assert first_offsets(client.delivered(1)) == expected[-1:]
        client.subscribe(part, FIRST, number=2)
        assert first_offsets(client.delivered(1)) == [3 + step]
    said = [each for each in caplog.messages if "ends before part 2, which begins at offset 1 again" in each]
    assert len(said) == (step < 0)


def test_a_part_that_begins_to_repeat_offsets_later_is_not_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "tier"
    asyncio.run(append(place, [b"one", b"two"]))
    with served(place) as running, RawClient.opened(running.port) as client:
        client.subscribe("orders", FIRST)
        client.delivered(1)
        asyncio.run(append(place, [b"other"], stream=asyncio.run(begin_part(place, 1))))

        deadline = time.monotonic() + 20
        while "part 2 begins at offset 1 again" not in caplog.text:
            assert time.monotonic() < deadline
            assert client.is_quiet(0.1)


async def begin_part(place: Path, first_offset: int) -> str:
    """Begin part 2 of the stream, and return its name."""
    async with open_tier(str(place)) as tier:
        assert isinstance(tier, ObjectStoreOffloader)
        before = await tier.load_manifest("orders")
        part = StreamPart("orders", 2)
        await tier.begin_part(part, before=before)
        await StreamWriter.claim(tier, part.name, first_offset=first_offset)
        return part.name


def test_a_stream_that_is_deleted_while_it_is_read_ends_with_an_update(tmp_path: Path) -> None:
    place = tmp_path / "tier"
    asyncio.run(append(place, [b"one"]))

    async def delete() -> None:
        async with open_tier(str(place)) as tier:
            await delete_stream(tier, "orders")

    with served(place) as running, RawClient.opened(running.port) as client:
        client.subscribe("orders", FIRST)
        client.subscribe("orders", NEXT, number=1)
        client.delivered(1)
        asyncio.run(delete())

        assert client.take(UPDATE) == b"\0\6" + text("orders")
        refused = 2  # the code of a stream that does not exist
        until = time.monotonic() + 30
        number = 2  # a list of names and a view may be a second old, so the first tries may succeed
        while client.subscribe("orders", FIRST, number=number) != refused:
            assert time.monotonic() < until
            number += 1
            time.sleep(0.05)


def test_what_only_the_disk_has_comes_on_the_same_connection(tmp_path: Path) -> None:
    shutil.copytree(DATA / "tiny", tmp_path / "source" / "tiny")
    asyncio.run(append(tmp_path / "tier", [b"archived"]))
    with (
        served(tmp_path / "tier", source=f"rabbitmq://{tmp_path}/source") as running,
        RawClient.opened(running.port) as client,
    ):
        expected = user_chunks("tiny")
        client.subscribe("tiny", FIRST)
        assert client.delivered(len(expected)) == [b"\0" + chunk for chunk in expected]
        client.subscribe("orders", FIRST, number=1)
        assert client.delivered(1)[0].endswith(b"archived")


def test_too_many_connections_are_closed_at_once(tier: Path) -> None:
    with served(tier, "?connections-max=2") as running:
        with RawClient.opened(running.port), RawClient.opened(running.port), RawClient(running.port) as third:
            assert third.is_ended()
            assert running.counts.refused == 1
        deadline = time.monotonic() + 10
        while running.counts.connections:
            assert time.monotonic() < deadline
        survives(running)


def test_frames_are_encrypted_with_a_certificate(tier: Path, tmp_path: Path) -> None:
    made = certificate(tmp_path)
    options = f"?cert={made.path}&key={made.key_path}"
    with served(tier, options, scheme="rabbitmq-stream+tls") as running:
        trusted = ssl.create_default_context(cafile=str(made.path))
        with RawClient.opened(running.port, tls=trusted) as client:
            expected = user_chunks("batches")
            client.subscribe("batches", FIRST)
            assert client.delivered(len(expected)) == [b"\0" + chunk for chunk in expected]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rabbitmq-stream://0.0.0.0:1", "is open to other machines"),
        ("rabbitmq-stream://archive.example:1", "is open to other machines"),
        ("rabbitmq-stream://localhost:1?colour=red", "has no option 'colour'"),
        ("rabbitmq-stream://localhost:1?connections-max=many", "is a number from 1"),
        ("rabbitmq-stream://localhost:1?cert=x", "takes no option 'cert'"),
        ("rabbitmq-stream+tls://localhost:1", "needs option 'cert'"),
        ("rabbitmq-stream+tls://localhost:1?cert=/nope&key=/nope", "the certificate cannot be used"),
        ("rabbitmq-stream://localhost:1/path", "is no address of a listener"),
        ("rabbitmq-stream://localhost:99999", "is no address of a listener"),
    ],
)
def test_an_address_that_cannot_be_served_is_refused(url: str, said: str) -> None:
    with pytest.raises(Misuse, match=said):
        open_listener(url, env=Env())


# Bad input.


def test_frames_that_are_mutated_anywhere_leave_a_server_that_answers(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Frames of the capture and of these tests, with bytes flipped, cut, repeated and joined."""
    random = Random(SEED)
    print(f"OFFLOAD_SEED={SEED}")
    kinds = [
        frame(SUBSCRIBE, struct.pack(">IB", 1, 1) + text("tiny") + FIRST + b"\0\x09"),
        frame(METADATA, struct.pack(">II", 1, 2) + text("tiny") + text("nope")),
        frame(CREDIT, struct.pack(">BH", 1, 1)),
        frame(STORE, text("app") + text("tiny") + bytes(8)),
        frame(QUERY, bytes(4) + text("app") + text("tiny")),
        frame(UNSUBSCRIBE, struct.pack(">IB", 1, 1)),
        frame(STATS, bytes(4) + text("tiny")),
        frame(PARTITIONS, bytes(4) + text("super")),
        frame(2, b"\3" + struct.pack(">IQI", 1, 42, 1) + b"x"),
        frame(BEAT, b""),
    ]
    sent = 0
    while sent < FRAMES:
        with RawClient.opened(server.port) as client, suppress(OSError):
            for _ in range(50):
                raw = bytearray(random.choice(kinds))
                for _ in range(random.choice((0, 0, 1, 3))):
                    raw[random.randrange(len(raw))] = random.randrange(256)
                client.socket.sendall(
                    raw[: random.choice((len(raw), len(raw), random.randrange(len(raw) + 1)))]
                )
                sent += 1
    survives(server)
    assert [each for each in caplog.records if each.exc_info] == [], "an error that nobody expected"


def survives(server: Served) -> None:
    """Assert that the next connection is answered."""
    with RawClient.opened(server.port) as client:
        assert client.subscribe("tiny", FIRST) == 1
        assert len(client.delivered(1)) == 1


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack(">I", 2**31),
        bytes(4),
        struct.pack(">I", 8193) + b"x" * 100,
        b"GET / HTTP/1.1\r\nHost: archive\r\n\r\n",
        frame(SUBSCRIBE, struct.pack(">IB", 1, 1) + text("tiny") + FIRST + b"\0\1"),
        frame(99, bytes(4)),
        frame(PROPERTIES, bytes(4), version=7),
        frame(PROPERTIES, bytes(4)),
        frame(PROPERTIES, struct.pack(">II", 1, 2**31)),
    ],
)
def test_a_connection_that_begins_wrong_ends_without_a_word(server: Served, raw: bytes) -> None:
    with RawClient(server.port) as client:
        client.socket.sendall(raw)

        assert client.is_ended()
    survives(server)


@pytest.mark.parametrize(
    "raw",
    [
        frame(99, bytes(4)),
        frame(SUBSCRIBE, bytes(9), version=2),
        frame(SUBSCRIBE, bytes(5)),
        frame(SUBSCRIBE, struct.pack(">IB", 1, 1) + text("tiny") + b"\0\x09" + b"\0\1"),
        frame(METADATA, struct.pack(">II", 1, 2**31 - 1)),
        frame(CREDIT, b"\0"),
        frame(BEAT, b"more"),
    ],
)
def test_a_frame_that_nobody_understands_is_answered_by_a_request_to_close(
    server: Served, raw: bytes
) -> None:
    with RawClient.opened(server.port) as client:
        client.socket.sendall(raw)

        assert client.take(CLOSE) == struct.pack(">IH", 1, 13) + text("unknown frame")
        client.send(CLOSE | RESPONSE, struct.pack(">IH", 1, 1))
        assert client.is_ended()
    survives(server)


def test_a_frame_that_is_too_large_is_refused_by_its_size(server: Served) -> None:
    with RawClient.opened(server.port) as client:
        client.socket.sendall(struct.pack(">I", 2**31))

        assert client.take(CLOSE) == struct.pack(">IH", 1, 14) + text("frame too large")
    survives(server)


def test_frames_that_are_cut_and_joined_are_answered_in_order(server: Served) -> None:
    asked = text("app") + text("tiny")
    requests = b"".join(
        frame(STORE, asked + struct.pack(">Q", n)) + frame(QUERY, struct.pack(">I", n) + asked)
        for n in range(200)
    )
    with RawClient.opened(server.port) as client:
        for at in range(400):
            client.socket.sendall(requests[at : at + 1])
        client.socket.sendall(requests[400:])

        answers = [client.receive() for _ in range(200)]

    assert answers == [struct.pack(">HHIHQ", QUERY | RESPONSE, 1, number, 1, number) for number in range(200)]


@pytest.mark.parametrize("name", ["", "/", "../tiny", "a\0b", "x" * 32_767, "tier.anchor"])
def test_names_that_no_stream_has_are_unknown(server: Served, name: str) -> None:
    with RawClient.opened(server.port) as client:
        assert client.subscribe(name, FIRST) == 2
        assert client.ask(QUERY, text("app") + text(name))[:2] == b"\0\2"


@pytest.mark.parametrize(
    ("mechanism", "data", "code"),
    [("PLAIN", b"\0me\0pass\0word", 9), ("PLAIN", b"", 9), ("EXTERNAL", b"", 7), ("ANONYMOUS", b"", 1)],
)
def test_a_login_is_answered_by_its_code(server: Served, mechanism: str, data: bytes, code: int) -> None:
    with RawClient(server.port) as client:
        client.ask(PROPERTIES, bytes(4))

        answer = client.ask(AUTHENTICATE, text(mechanism) + struct.pack(">I", len(data)) + data)

        assert int.from_bytes(answer[:2], "big") == code
        assert code == 1 or client.is_ended()


def test_a_silent_client_is_cut_off_and_hears_heartbeats_before(server: Served) -> None:
    beats, began = 0, time.monotonic()
    with RawClient.opened(server.port, heartbeat=2) as client, suppress(EOFError, ConnectionResetError):
        while time.monotonic() - began < 30:
            beats += client.receive()[:2] == struct.pack(">H", BEAT)

    assert beats >= 2
    assert 4 <= time.monotonic() - began < 20


def test_many_clients_that_are_killed_in_mid_delivery_leave_nothing(tmp_path: Path) -> None:
    """Each reads a little of more than its socket takes, and resets its connection."""
    for number in range(40):
        asyncio.run(append(tmp_path / "tier", [bytes([number]) * 100_000]))
    with served(tmp_path / "tier") as running:
        for number in range(CLIENTS):
            client = RawClient.opened(running.port)
            client.subscribe("orders", FIRST, credit=1000)
            client.exactly(1000 * (number % 50) + 1)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.socket.close()

        with RawClient.opened(running.port) as client:
            client.subscribe("orders", FIRST, credit=40)
            assert first_offsets(client.delivered(40)) == [*range(40)]
        deadline = time.monotonic() + 10
        while (running.counts.connections, running.counts.subscriptions) != (0, 0):
            assert time.monotonic() < deadline, running.counts


def test_a_client_that_reads_nothing_holds_one_chunk_and_no_others(tmp_path: Path) -> None:
    for number in range(30):
        asyncio.run(append(tmp_path / "tier", [bytes([number]) * 2**20]))
    with (
        served(tmp_path / "tier", cache_size_bytes=4 * 2**20) as running,
        RawClient.opened(running.port) as slow,
        RawClient.opened(running.port) as quick,
    ):
        slow.subscribe("orders", FIRST, credit=1000)
        quick.subscribe("orders", FIRST, credit=30)

        assert first_offsets(quick.delivered(30)) == [*range(30)]
        assert running.counts.delivered_chunks < 60
        assert first_offsets(slow.delivered(30)) == [*range(30)]


def test_a_client_that_asks_and_never_reads_is_read_no_more(server: Served) -> None:
    """Otherwise its requests, or the answers to them, would fill the memory of the server."""
    request = frame(CREDIT, struct.pack(">BH", 99, 1))  # it has no subscription, and that is answered
    flood, sent = request * (2**20 // len(request)), 0
    with RawClient.opened(server.port) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.socket.settimeout(2)
        with suppress(TimeoutError):
            while sent < 16 * 2**20:
                sent += client.socket.send(flood)

        assert sent < 16 * 2**20, "more than the buffers of two sockets hold"
        survives(server)
