"""Tests of the bounds of the server: time, sizes, and how many there may be of what."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from certificates import certificate
from offload_rabbitmq.server import connection
from offload_rabbitmq.server.names import TierNames
from stream_client import (
    AUTHENTICATE,
    CLOSE,
    FIRST,
    METADATA,
    OPEN,
    PROPERTIES,
    TUNE,
    RawClient,
    first_offsets,
    text,
)
from stream_server import Served, served

from offload import MemoryHandle, NotOffloaded, StreamWriter, build_chunk, open_tier
from offload.contracts.listener import ServedStream
from offload.ground.env import Env

LARGE: Final = 300_000


async def write(tier: Path, stream: str, *bodies: bytes) -> None:
    async with open_tier(str(tier)) as opened:
        writer = await StreamWriter.claim(opened, stream)
        await writer.offload([MemoryHandle([build_chunk([*bodies], offset=0, timestamp_ms=1, epoch=1)])])


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("limits") / "tier"
    asyncio.run(write(place, "orders", b"x" * LARGE))
    return place


@pytest.fixture
def server(tier: Path) -> Iterator[Served]:
    with served(tier) as running:
        yield running


def stands_at(port: int, step: str) -> RawClient:
    """Connect, and come as far as a step of the login."""
    client = RawClient(port)
    if step != "connected":
        client.ask(PROPERTIES, bytes(4))
    if step == "tuning":
        client.ask(AUTHENTICATE, text("PLAIN") + struct.pack(">I", 4) + b"\0a\0b")
        client.send(TUNE, client.take(TUNE))
    return client


STEPS: Final = ["connected", "authenticating", "tuning"]


@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_the_login_ends_though_its_bytes_come_one_by_one(
    server: Served, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connection.STEP_SECONDS == 10
    monkeypatch.setattr(connection, "STEP_SECONDS", 0.5)
    with stands_at(server.port, step) as client:
        began = time.monotonic()
        client.socket.settimeout(0.1)
        with suppress(ConnectionError):
            for byte in struct.pack(">I", 200) + bytes(200):
                client.socket.sendall(bytes([byte]))
                with suppress(TimeoutError):
                    assert client.socket.recv(1) == b""
                    break

    assert 0.4 < time.monotonic() - began < 10


@pytest.mark.parametrize("step", STEPS)
def test_a_frame_before_open_has_8_kib_whatever_was_tuned(server: Served, step: str) -> None:
    with stands_at(server.port, step) as client:
        client.socket.settimeout(5)  # half of the time of a step, which would end it, too
        client.socket.sendall(struct.pack(">IHHI", 8193, OPEN, 1, 1))

        assert client.is_ended()


@pytest.mark.parametrize(("tuned", "most"), [(0, 2**20), (2**30, 2**20), (20_000, 20_000), (4096, 8192)])
def test_a_frame_after_open_has_the_agreed_size(server: Served, tuned: int, most: int) -> None:
    names = text("y" * 1000) * 2000
    with RawClient.opened(server.port, frame_max=tuned) as client:
        content = struct.pack(">II", 1, 2**31 - 1) + names[: most - 4 - 8]
        client.socket.sendall(struct.pack(">IHH", most, METADATA, 1) + content)
        assert client.take(CLOSE)[4:6] == b"\0\x0d", "it was read, and its count is wrong"
    with RawClient.opened(server.port, frame_max=tuned) as client:
        client.socket.sendall(struct.pack(">I", most + 1))
        assert client.take(CLOSE)[4:6] == b"\0\x0e"


def test_a_chunk_is_sent_whole_though_a_smaller_frame_was_agreed(server: Served) -> None:
    with RawClient.opened(server.port, frame_max=8192) as client:
        client.subscribe("orders", FIRST)

        assert len(client.delivered(1)[0]) > LARGE


def test_a_connection_has_256_subscriptions(server: Served) -> None:
    with RawClient.opened(server.port) as client:
        for number in range(256):
            assert client.subscribe("orders", FIRST, credit=1, number=number) == 1

        assert sorted(raw[0] for raw in client.delivered(256)) == [*range(256)]
        assert server.counts.subscriptions == 256
        assert client.subscribe("orders", FIRST, number=255) == 3


def test_connections_whose_tls_handshake_goes_on_are_counted(tier: Path, tmp_path: Path) -> None:
    made = certificate(tmp_path)
    options = f"?cert={made.path}&key={made.key_path}&connections-max=2"
    with served(tier, options, scheme="rabbitmq-stream+tls") as running:
        silent = [socket.create_connection(("127.0.0.1", running.port), timeout=20) for _ in range(3)]
        try:
            assert silent[2].recv(1) == b""
            assert running.counts.refused == 1
            silent[0].setblocking(False)
            with pytest.raises(BlockingIOError):
                silent[0].recv(1)
        finally:
            for each in silent:
                each.close()


def test_two_streams_that_are_equally_new_are_not_guessed_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["__orders_0017", "__orders_17"]
    for name in names:
        asyncio.run(write(tmp_path / "tier", name, name.encode()))
    with served(tmp_path / "tier") as running, RawClient.opened(running.port) as client:
        assert client.subscribe("orders", FIRST) == 6
        assert client.ask(METADATA, struct.pack(">I", 1) + text("orders")).endswith(
            text("orders") + struct.pack(">HHI", 6, 0xFFFF, 0)
        )
        assert client.subscribe(names[1], FIRST) == 1
        assert first_offsets(client.delivered(1)) == [0]

    assert f"it may be one of {', '.join(names)}" in caplog.text


class ManyStreams:
    """Names of streams as brokers give them."""

    async def names(self) -> list[str]:
        return [f"__orders-{number}_1795238998890203020" for number in range(3000)]

    async def open(self, stream: str) -> ServedStream:
        raise NotImplementedError


def test_the_names_are_listed_before_a_client_asks_and_again_when_a_newer_stream_may_be_meant() -> None:
    """A client that asks for the very name of a stream waits for no listing."""
    now, folder = [0.0], "__orders-7_1795238998890203020"

    class Counted(ManyStreams):
        listings = 0

        async def names(self) -> list[str]:
            self.listings += 1
            return await super().names()

    async def main() -> None:
        streams = Counted()
        names = TierNames(streams, Env(monotonic=lambda: now[0]))
        await names.learn()
        for seconds, name, listings in (
            (0.5, "orders-7", 1),
            (2, folder, 1),
            (59, folder, 1),
            (59, "orders-7", 2),
            (118, folder, 2),
            (119.5, folder, 3),
        ):
            now[0] = seconds
            assert await names.resolve("/", name) == folder
            assert streams.listings == listings, (seconds, name)

    asyncio.run(main())


def test_a_request_for_many_names_does_not_walk_all_streams_for_each() -> None:
    """A frame of 1 MiB has more names than these, and other clients wait meanwhile."""

    async def main() -> None:
        names = TierNames(ManyStreams(), Env())
        assert await names.resolve("/", "orders-7") == "__orders-7_1795238998890203020"
        began = time.thread_time()
        for number in range(20_000):
            with suppress(NotOffloaded):
                await names.resolve("/", f"other-{number}")
        assert time.thread_time() - began < 1

    asyncio.run(main())
