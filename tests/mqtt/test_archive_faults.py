"""What an archive does if its broker, disk or operator is wrong. A script plays brokers that break rules."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from certificates import certificate
from command_line import offload
from log_contract import records_of
from mqtt_world import archived, archiving, publish, until
from offload_mqtt import connection
from offload_mqtt.address import parse_address
from offload_mqtt.archive import WINDOW_SIZE_BYTES, MqttArchive, MqttRoute, open_archive
from offload_mqtt.topic_record import columns_of
from offload_mqtt.topics import TopicFilter
from servers import mosquitto
from servers.mosquitto import Mosquitto
from servers.processes import free_port
from servers.scratch import scratch_folder

from offload.contracts.log import LedgerLog
from offload.ground.errors import Conflict, Denied, Misuse, NoSpace
from offload.log.disk import Disk
from offload.model.record_columns import RecordBytes

CONNACK = bytes.fromhex("20020000")
PUBACK = 0x40


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    mosquitto.require()
    with mosquitto.serving() as running:
        yield running


def routes(*filters: str) -> list[MqttRoute]:
    return [MqttRoute("mqtt", TopicFilter.parse(each)) for each in filters]


@asynccontextmanager
async def running(archive: MqttArchive, url: str) -> AsyncIterator[asyncio.Task[None]]:
    """Let an archive run, and stop it at the end of the block."""
    stopping = asyncio.Event()
    task = asyncio.create_task(archive.run(parse_address(url, {}), stopping))
    try:
        yield task
    finally:
        stopping.set()
        await asyncio.wait([task])


async def happens(is_so: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, is_so)


def size_of(log: LedgerLog) -> int:
    return sum(each.size_bytes for each in log.ledgers)


def packet(kind: int, content: bytes) -> bytes:
    """Return a packet with its length as MQTT writes it."""
    size, length = len(content), b""
    while True:
        size, digit = divmod(size, 128)
        length += bytes([digit | 128 if size else digit])
        if not size:
            return bytes([kind]) + length + content


def message(topic: bytes, payload: bytes, *, number: int = 1, qos: int = 1) -> bytes:
    """Return a PUBLISH as a broker sends it."""
    numbered = number.to_bytes(2, "big") if qos else b""
    return packet(0x30 | qos << 1, len(topic).to_bytes(2, "big") + topic + numbered + payload)


@asynccontextmanager
async def scripted(
    *packets: bytes, connack: bytes = CONNACK, suback: int = 1
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Play a broker that sends these packets after the subscription. Yield its URL, and the PUBACKs."""
    acknowledged: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rest = packets
        try:
            while True:
                kind, size = await reader.readexactly(2)
                content = await reader.readexactly(size)
                if kind == 0x10:
                    writer.write(connack)
                    if not connack:
                        break
                elif kind == 0x82:
                    writer.write(packet(0x90, content[:2] + bytes([suback])) + b"".join(rest))
                    rest = ()
                elif kind == PUBACK:
                    acknowledged.append(content)
        except (EOFError, OSError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}", acknowledged


HOSTILE = [
    b"\xff\xfe",
    b"a\0b",
    b"a+b/#",
    b"/",
    b"$SYS/x",
    b"x" * 65_535,
    b"a/" * 10_000 + b"a",
    b" ",
    "ä/ö".encode(),
]


def test_topics_that_break_the_rules_are_stored_as_they_are_and_acknowledged(tmp_path: Path) -> None:
    packets = [message(topic, b"%d" % number, number=number) for number, topic in enumerate(HOSTILE, 1)]

    async def scenario() -> list[bytes]:
        async with (
            open_archive(tmp_path, [*routes("a"), MqttRoute("other", TopicFilter.parse("b"))]) as archive,
            scripted(*packets) as (url, acknowledged),
            running(archive, url),
        ):
            await happens(lambda: len(acknowledged) == len(packets))
            assert acknowledged == [number.to_bytes(2, "big") for number in range(1, len(packets) + 1)]
            return await records_of(archive.logs["mqtt"])  # no route takes them

    found = columns_of(RecordBytes.of(asyncio.run(scenario())))

    assert found.topics == HOSTILE


@pytest.mark.parametrize(
    "packets",
    [
        b"\xf0\x00",  # AUTH, which MQTT 3.1.1 does not have
        b"\x32\xff\xff\xff\xff\x01",  # a length of five bytes
        packet(0x32, b"\xff\xffab"),  # a topic that is longer than its packet
        packet(0x32, b"\0"),
        packet(0x36, b"\0\1a\0\1"),  # QoS 3
        packet(0x32, b"\0\0\0\1"),  # an empty topic
    ],
    ids=["unknown", "length", "topic", "short", "qos", "empty"],
)
def test_packets_that_break_the_rules_end_the_connection_and_nothing_else(
    tmp_path: Path, packets: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with (
            open_archive(tmp_path, routes("a")) as archive,
            scripted(message(b"a", b"sound"), packets) as (url, _),
            running(archive, url),
        ):
            await happens(
                lambda: archive.stored.get("mqtt", 0) > 1
            )  # it comes again: no acknowledgement was sent

    asyncio.run(scenario())

    assert "closed the connection" in caplog.text


def test_nothing_is_acknowledged_on_another_connection_than_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one answers no SUBSCRIBE in time, and brings a message while another one is being stored."""
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.2)
    connections, acknowledged = list[int](), list[tuple[int, int]]()

    class LateDisk(Disk):
        def sync(self, descriptor: int) -> None:
            if len(connections) == 1:
                time.sleep(0.4)
            super().sync(descriptor)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(number := len(connections))
        try:
            while True:
                kind, size = await reader.readexactly(2)
                content = await reader.readexactly(size)
                if kind == 0x10:
                    writer.write(CONNACK)
                elif kind == 0x82 and number == 0:
                    writer.write(message(b"a", b"first", number=7))
                    await asyncio.sleep(0.1)
                    writer.write(message(b"a", b"second", number=8))
                elif kind == 0x82:
                    writer.write(packet(0x90, content[:2] + b"\1") + message(b"a", b"third", number=1))
                elif kind == PUBACK:
                    acknowledged.append((number, int.from_bytes(content, "big")))
        except (EOFError, OSError):
            pass
        finally:
            writer.close()

    async def scenario() -> list[bytes]:
        async with (
            await asyncio.start_server(serve, "127.0.0.1", 0) as server,
            open_archive(tmp_path, routes("a"), disk=LateDisk()) as archive,
            running(archive, f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"),
        ):
            await happens(lambda: (1, 1) in acknowledged)
            return await records_of(archive.logs["mqtt"])

    found = columns_of(RecordBytes.of(asyncio.run(scenario())))

    assert acknowledged == [(0, 7), (1, 1)]
    assert found.rests.to_list() == [b"first", b"second", b"third"]


@pytest.mark.parametrize(
    ("connack", "words"), [(b"", "closed"), (bytes.fromhex("20020003"), "server unavailable")]
)
def test_a_broker_that_closes_at_once_is_asked_again_more_and_more_slowly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, connack: bytes, words: str
) -> None:
    async def scenario() -> None:
        async with (
            open_archive(tmp_path, routes("a")) as archive,
            scripted(connack=connack) as (url, _),
            running(archive, url),
        ):
            await happens(lambda: len(caplog.records) > 3)

    asyncio.run(scenario())

    texts = [each.getMessage() for each in caplog.records]
    assert all(words in each for each in texts)
    assert ("does another client have the id" in texts[-1]) == (not connack)
    pauses = [b.created - a.created for a, b in zip(caplog.records, caplog.records[1:], strict=False)]
    assert pauses[2] > pauses[0]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"connack": bytes.fromhex("20020005")}, Denied, "not authorized; set OFFLOAD_MQTT_USER"),
        ({"connack": bytes.fromhex("20020002")}, Misuse, "client identifier not valid; give another one"),
        ({"suback": 128}, Denied, "refuses the filter 'a': grant its reading"),
    ],
)
def test_a_refusal_that_only_a_person_can_end_ends_the_archive(
    tmp_path: Path, arguments: dict[str, bytes], error: type[Exception], words: str
) -> None:
    async def scenario() -> None:
        async with (
            open_archive(tmp_path, routes("a")) as archive,
            scripted(**arguments) as (url, _),
            running(archive, url) as task,
        ):
            with pytest.raises(error, match=words):
                await asyncio.wait_for(task, 20)

    asyncio.run(scenario())


def test_a_password_is_in_no_line(broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real broker that has another password."""
    with scratch_folder("mosquitto") as scratch:
        (scratch / "users").write_text("somebody:$7$101$AAAAAAAAAAAAAAAA$" + "A" * 86 + "==\n")
        port = free_port()
        settings = (f"listener {port} 127.0.0.1", "allow_anonymous false", f"password_file {scratch}/users")
        refusing = Mosquitto(scratch, settings, port)
        refusing.start()
        (tmp_path / "password").write_text("sesame\nnot this\n")
        monkeypatch.setenv("OFFLOAD_MQTT_USER", "somebody")
        try:
            running = archiving(
                refusing.url, tmp_path / "a", "--filter", "a", "--password-file", tmp_path / "password"
            )
            _, stderr = running.communicate(timeout=20)
        finally:
            refusing.stop()

    assert running.returncode == 1
    assert b"refuses the connection: not authorized" in stderr
    assert b"sesame" not in stderr


def test_a_broker_that_is_away_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mosquitto.require()

    async def scenario(away: Mosquitto) -> None:
        async with open_archive(tmp_path, routes("a")) as archive, running(archive, away.url):
            await happens(lambda: "cannot be reached: Connection refused" in caplog.text)
            away.start()
            await happens(lambda: archive.is_subscribed)
            await asyncio.to_thread(publish, away.port, [("a", b"x")])
            await happens(lambda: archive.stored == {"mqtt": 1})

    with scratch_folder("mosquitto") as scratch:
        away = Mosquitto(scratch)
        try:
            asyncio.run(scenario(away))
        finally:
            away.stop()


class FullDisk(Disk):
    """A disk that is full from some moment on."""

    is_full = False

    def write(self, descriptor: int, position: int, parts: Sequence[bytes]) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(descriptor, position, parts)


def test_nothing_is_acknowledged_that_a_full_disk_did_not_take(broker: Mosquitto, tmp_path: Path) -> None:
    disk = FullDisk()

    async def until_full() -> None:
        async with (
            open_archive(tmp_path, routes("full/#"), disk=disk) as archive,
            running(archive, broker.url) as task,
        ):
            await happens(lambda: archive.is_subscribed)
            await asyncio.to_thread(publish, broker.port, [("full/a", b"taken")])
            await happens(lambda: archive.stored == {"mqtt": 1})
            disk.is_full = True
            await asyncio.to_thread(publish, broker.port, [("full/a", b"%d" % i) for i in range(100)])
            with pytest.raises(NoSpace, match="The broker keeps what is not acknowledged"):
                await task
            disk.is_full = False

    async def with_room() -> None:
        async with open_archive(tmp_path, routes("full/#")) as archive, running(archive, broker.url):
            await happens(lambda: archive.stored == {"mqtt": 100})

    asyncio.run(until_full())
    asyncio.run(with_room())

    assert [payload for _, payload in archived(tmp_path)] == [b"taken", *(b"%d" % i for i in range(100))]


class SlowDisk(Disk):
    """A disk whose syncs wait until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.released.set()

    def sync(self, descriptor: int) -> None:
        self.released.wait(30)
        super().sync(descriptor)


def test_a_slow_disk_slows_the_broker_down_and_memory_stays_bounded(
    broker: Mosquitto, tmp_path: Path
) -> None:
    disk, size_bytes = SlowDisk(), 1_000_000

    async def scenario() -> int:
        async with (
            open_archive(tmp_path, routes("slow"), disk=disk) as archive,
            running(archive, broker.url),
        ):
            await happens(lambda: archive.is_subscribed)
            disk.released.clear()
            try:
                await asyncio.to_thread(publish, broker.port, [("slow", bytes(size_bytes))] * 60)
                await happens(lambda: archive._waiting_bytes >= WINDOW_SIZE_BYTES)
                await asyncio.sleep(0.3)  # in which it would read on
                waiting = archive._waiting_bytes
            finally:
                disk.released.set()
            await happens(lambda: archive.stored == {"mqtt": 60})
            return waiting

    assert asyncio.run(scenario()) <= WINDOW_SIZE_BYTES + 2 * size_bytes


def test_mqtts_checks_the_certificate_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mosquitto.require()
    made = certificate(tmp_path)
    with scratch_folder("mosquitto") as scratch:
        port = free_port()
        settings = (f"listener {port} 127.0.0.1", "allow_anonymous true")
        settings += (f"certfile {made.path}", f"keyfile {made.key_path}")
        secret = Mosquitto(scratch, settings, port)
        secret.start()
        url = f"mqtts://127.0.0.1:{port}"
        try:

            async def scenario(is_so: Callable[[MqttArchive], bool]) -> None:
                async with open_archive(tmp_path / "a", routes("a")) as archive, running(archive, url):
                    await happens(lambda: is_so(archive))

            asyncio.run(scenario(lambda _: "certificate verify failed" in caplog.text))
            gc.collect()  # warns of a socket that was left open
            monkeypatch.setenv("SSL_CERT_FILE", str(made.path))
            asyncio.run(scenario(lambda archive: archive.is_subscribed))
        finally:
            secret.stop()


def test_a_folder_has_one_archive_at_a_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_archive(tmp_path, routes("a")):
            with pytest.raises(Conflict, match=r"has the log in .* open"):
                async with open_archive(tmp_path, routes("a")):
                    raise AssertionError

    asyncio.run(scenario())


def test_two_clients_with_one_id_lose_nothing_and_are_told(broker: Mosquitto, tmp_path: Path) -> None:
    """Each throws the other out. What one has not acknowledged goes to the other."""
    folders = [tmp_path / "one", tmp_path / "other"]
    started = [
        archiving(broker.url, folder, "--filter", "twin/#", "--client-id", "twins") for folder in folders
    ]
    sent = [("twin/a", b"%d" % i) for i in range(2000)]
    for first in range(0, len(sent), 100):
        publish(broker.port, sent[first : first + 100])
    until(lambda: any("does another client have the id 'twins'?" in each.stderr for each in started))
    publish(broker.port, [("twin/end", b"")])
    until(lambda: any(b"twin/end" in path.read_bytes() for path in tmp_path.rglob("*.segment")))
    for each in started:
        each.terminate()
        each.communicate(timeout=40)

    found = {each for folder in folders for each in archived(folder)}
    assert {*sent} <= found


def test_each_route_has_its_stream_and_a_filter_that_is_gone_sends_no_more(
    broker: Mosquitto, tmp_path: Path
) -> None:
    def stop_when(is_so: Callable[[MqttArchive], bool], *given: MqttRoute) -> Awaitable[None]:
        async def scenario() -> None:
            async with open_archive(tmp_path, given) as archive, running(archive, broker.url):
                await happens(lambda: archive.is_subscribed)
                await asyncio.to_thread(
                    publish, broker.port, [("r/1/alarm", b"a"), ("r/1/state", b"s"), ("r/2/state", b"t")]
                )
                await happens(lambda: is_so(archive))

        return scenario()

    alarms, states = (MqttRoute(name, TopicFilter.parse(f"r/+/{name}")) for name in ("alarm", "state"))
    asyncio.run(stop_when(lambda found: found.stored == {"alarm": 1, "state": 2}, alarms, states))
    asyncio.run(stop_when(lambda found: found.stored == {"alarm": 1}, alarms))
    assert archived(tmp_path, "alarm") == [("r/1/alarm", b"a")] * 2
    assert archived(tmp_path, "state") == [("r/1/state", b"s"), ("r/2/state", b"t")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "needs a filter"),
        (("--filter", "a/+", "--route", "s=+/b"), "'a/+' and '+/b' overlap in 'a/b'"),
        (("--filter", "#", "--filter", "a"), "'#' and 'a' overlap in 'a'"),
        (("--filter", "$share/g/a"), "is shared"),
        (("--filter", "a#"), "whole level"),
        (("--route", "a/b"), "takes STREAM=FILTER"),
        (("--route", "../x=a"), "no name of a stream"),
        (("--filter", "a", "--roll-size", "much"), "--roll-size takes bytes"),
        (("--filter", "a", "--password-file", "/nowhere"), "cannot be read: No such file"),
    ],
)
def test_arguments_that_cannot_be_right_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    ran = offload("mqtt", "archive", "mqtt://127.0.0.1:1", tmp_path / "a", *arguments)

    assert ran.code == 2
    assert words in ran.stderr
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mqtt://user:secret@host", "the URL of an MQTT broker has no login"),
        ("http://host", "is no address of an MQTT broker"),
        ("mqtt://", "is no address of an MQTT broker"),
        ("mqtt://host/topic", "without a path"),
        ("mqtt://host:x", "is no address of an MQTT broker"),
    ],
)
def test_an_address_that_is_none_is_refused_without_its_login(url: str, words: str) -> None:
    with pytest.raises(Misuse, match=words) as caught:
        parse_address(url, {})

    assert "secret" not in str(caught.value)


def test_only_what_is_above_the_size_to_keep_is_deleted(broker: Mosquitto, tmp_path: Path) -> None:
    async def scenario() -> tuple[int, int]:
        async with (
            open_archive(tmp_path, routes("keep"), roll_size_bytes=20_000, keep_size_bytes=60_000) as archive,
            running(archive, broker.url),
        ):
            await happens(lambda: archive.is_subscribed)
            log = archive.logs["mqtt"]
            for sent in range(20, 220, 20):  # small batches: a ledger ends with the one that fills it
                await asyncio.to_thread(publish, broker.port, [("keep", b"x" * 1000) for _ in range(20)])
                await happens(lambda sent=sent: log.next_offset == sent)
            await happens(lambda: size_of(log) <= 60_000)
            return log.first_offset, size_of(log)

    first, size_bytes = asyncio.run(scenario())

    assert first > 0
    assert size_bytes > 20_000
