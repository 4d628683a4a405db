"""Tests of asking RabbitMQ: what its answers mean, and what becomes of each of its failures."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from certificates import certificate, served
from kit.world import Clock
from offload_rabbitmq import addresses, connection, stream_connection
from offload_rabbitmq.broker import RabbitmqBroker
from stream_broker import (
    DENIED,
    METADATA,
    OF_A_STREAM,
    OPEN,
    PROPERTIES,
    SUBSCRIBE,
    UNSUBSCRIBE,
    StreamBroker,
    running,
)

from offload import Session, build_chunk
from offload.contracts.broker import CommittedChunk, LeadingNode
from offload.formats.chunk import ChunkHeader
from offload.ground.env import Env
from offload.ground.errors import Denied, Misuse, NotOffloaded, OffloadError, TryAgain

FOLDER: Final = "__orders_1795238999142852734"
CHUNKS: Final = [
    build_chunk([b"%d" % number] * 10, offset=10 * number, timestamp_ms=1, epoch=3) for number in range(4)
]


def committed_chunk(number: int) -> CommittedChunk:
    header = ChunkHeader.decode(CHUNKS[number], where="")
    return CommittedChunk(
        first_offset=header.offset, next_offset=header.next_offset, epoch=header.epoch, crc=header.crc
    )


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine must not look like a silent broker."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 60.0)
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 60.0)


@contextmanager
def impatient(name: str) -> Iterator[None]:
    """Wait less for an answer or a login that does not come."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connection, name, 0.3)
        yield


class World:
    """A broker that has one stream, and a view of it with a clock of its own."""

    def __init__(self, committed_offset: int = 0, **port: Any) -> None:
        self.clock, streams = Clock(), {"orders": list(CHUNKS)}
        self.port = StreamBroker(streams=streams, committed_offset=committed_offset, **port)

    @property
    def env(self) -> Env:
        """The clock of the test, and a sleep that waits, because a connection beats in it."""
        return replace(self.clock.env(), sleep=asyncio.sleep)

    @asynccontextmanager
    async def broker(self, url: str = "", **login: str) -> AsyncIterator[RabbitmqBroker]:
        """Yield the view, opened by its URL."""
        async with Session(env=self.env) as session:
            opened = session.broker(url or self.port.address, **login)
            assert isinstance(opened, RabbitmqBroker)
            yield opened


def run(world: World, scenario: Callable[[RabbitmqBroker], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(120), running(world.port), world.broker() as broker:
            await scenario(broker)

    asyncio.run(main())


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not met():  # noqa: ASYNC110 - the port has no event for it
            await asyncio.sleep(0.005)


class TestQuestions:
    def test_a_committed_chunk_is_the_answer_and_nothing_stays_in_the_broker(self) -> None:
        world = World(committed_offset=40)

        async def scenario(broker: RabbitmqBroker) -> None:
            for number in (2, 0, 3):
                assert await broker.committed(FOLDER, 10 * number) == committed_chunk(number)
            await until(lambda: not world.port.subscriptions)
            assert (world.port.connections, broker.error) == (1, None)

        run(world, scenario)

    def test_a_chunk_that_is_not_committed_is_waited_for(self) -> None:
        world = World(committed_offset=20)

        async def scenario(broker: RabbitmqBroker) -> None:
            waiting = asyncio.ensure_future(broker.committed(FOLDER, 30))
            assert await broker.committed(FOLDER, 10) == committed_chunk(1)
            await asyncio.sleep(0.1)
            assert (waiting.done(), broker.error) == (False, None)
            world.port.commit(40)
            assert await waiting == committed_chunk(3)

        run(world, scenario)

    def test_a_question_that_is_given_up_leaves_nothing_in_the_broker(self) -> None:
        world = World()

        async def scenario(broker: RabbitmqBroker) -> None:
            for _ in range(3):
                waiting = asyncio.ensure_future(broker.committed(FOLDER, 30))
                await until(lambda: bool(world.port.subscriptions))
                waiting.cancel()
                await until(lambda: not world.port.subscriptions)
            assert (world.port.connections, broker.error) == (1, None)

        run(world, scenario)

    @pytest.mark.parametrize("steps", range(12))
    def test_a_question_that_is_given_up_at_any_moment_leaves_nothing_in_the_broker(self, steps: int) -> None:
        world = World()

        async def scenario(broker: RabbitmqBroker) -> None:
            await broker.leader(FOLDER)
            waiting = asyncio.ensure_future(broker.committed(FOLDER, 30))
            for _ in range(steps):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            await until(lambda: world.port.asked.count(SUBSCRIBE) == world.port.asked.count(UNSUBSCRIBE))
            world.port.commit(40)
            assert await broker.committed(FOLDER, 30) == committed_chunk(3)
            assert (world.port.connections, broker.error) == (1, None)

        run(world, scenario)

    def test_a_subscription_that_the_broker_ends_is_an_error(self) -> None:
        """It does so when it restarts its replica of the stream, and sends nothing more."""
        world = World()

        async def scenario(broker: RabbitmqBroker) -> None:
            waiting = asyncio.ensure_future(broker.committed(FOLDER, 30))
            await until(lambda: bool(world.port.subscriptions))
            world.port.update("orders")
            with pytest.raises(TryAgain, match="the subscription to 'orders' ended"):
                await waiting
            assert broker.error is None

        run(world, scenario)

    @pytest.mark.parametrize(
        ("leader", "node"),
        [(0, LeadingNode(address="a:1", is_asked=True)), (1, LeadingNode(address="b:2", is_asked=False))],
    )
    def test_the_leader_is_this_node_or_another(self, leader: int, node: LeadingNode) -> None:
        async def scenario(broker: RabbitmqBroker) -> None:
            assert await broker.leader(FOLDER) == node

        run(World(leader=leader), scenario)

    def test_a_stream_without_a_leader_can_still_be_asked_about(self) -> None:
        async def scenario(broker: RabbitmqBroker) -> None:
            with pytest.raises(TryAgain, match="stream 'orders' has no leader now"):
                await broker.leader(FOLDER)
            assert broker.error is None
            assert await broker.committed(FOLDER, 10) == committed_chunk(1)

        run(World(leader=None, committed_offset=40), scenario)

    @pytest.mark.parametrize("name", ["orders", "eu.orders", "eu_orders", "a_b.c_d", "x-1=2"])
    def test_a_stream_is_found_by_the_name_of_its_folder(self, name: str) -> None:
        world = World(committed_offset=40)
        world.port.streams[name] = world.port.streams.pop("orders")

        async def scenario(broker: RabbitmqBroker) -> None:
            folder = f"__{name.replace('.', '_')}_1795238999142852734"
            assert await broker.committed(folder, 0) == committed_chunk(0)

        run(world, scenario)


class TestFailures:
    """Each failure is an error of the framework within the bound, and passes."""

    TABLE: Final = {
        "mute": ({"silent_on": {PROPERTIES}}, TryAgain, "did not answer in time: begin", True),
        "mute when asked": ({"silent_on": {SUBSCRIBE}}, TryAgain, "in time: deliver stream 'orders'", True),
        "hangs up": ({"dies_on": OF_A_STREAM}, TryAgain, "the connection broke", True),
        "garbage": ({"garbles": OF_A_STREAM}, TryAgain, "did not answer in time: name the leader", True),
        "half an answer": ({"halves": {METADATA}}, TryAgain, "did not answer in time: name the leader", True),
        "half a login": ({"halves": {OPEN}}, TryAgain, "in time: open the virtual host '/'", True),
        "closes": (
            {"closes_on": {SUBSCRIBE}},
            TryAgain,
            r"closed the connection \('out of\\nmemory'\)",
            True,
        ),
        "forbids": ({"refuses": {SUBSCRIBE: DENIED}}, Denied, "grant the permission read", False),
        "states no limits": ({"heartbeat_seconds": None}, TryAgain, "in time: state its limits", True),
    }

    @pytest.mark.parametrize("fault", TABLE)
    def test_a_failure_is_an_error_in_time_and_passes(self, fault: str) -> None:
        faults, kind, words, is_of_broker = self.TABLE[fault]
        world = World(committed_offset=40, **faults)

        async def scenario(broker: RabbitmqBroker) -> None:
            with (
                impatient("ANSWER_SECONDS"),
                impatient("CONNECT_SECONDS"),
                pytest.raises(kind, match=words) as caught,
            ):
                await broker.committed(FOLDER, 10)
            assert str(broker.error) == (str(caught.value) if is_of_broker else "None")
            before = world.port.connections
            for _ in range(3 if is_of_broker else 0):
                with pytest.raises(kind):
                    await broker.committed(FOLDER, 10)
            assert world.port.connections == before, "it is left alone for a while"
            for name in faults:
                setattr(world.port, name, getattr(StreamBroker(), name))
            world.clock.now += connection.BACKOFF_SECONDS_MAX
            assert await broker.committed(FOLDER, 10) == committed_chunk(1)
            assert broker.error is None

        run(world, scenario)

    def test_a_connection_that_many_questions_wait_for_fails_once(self) -> None:
        """Otherwise a hundred streams would keep the broker unasked for a minute."""
        world = World()

        async def scenario(broker: RabbitmqBroker) -> None:
            await broker.leader(FOLDER)
            world.port.dies_on = SUBSCRIBE
            asked = [broker.committed(FOLDER, 30) for _ in range(50)]
            errors = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(each) for each in errors} == {TryAgain}
            world.port.dies_on = None
            world.clock.now += 2.0
            world.port.commit(40)
            assert await broker.committed(FOLDER, 30) == committed_chunk(3)

        run(world, scenario)

    @pytest.mark.parametrize("size_bytes", [1, 7, 4096])
    def test_frames_may_come_in_pieces_and_late(self, size_bytes: int) -> None:
        world = World(committed_offset=40, piece_size_bytes=size_bytes, late_seconds=0.01)

        async def scenario(broker: RabbitmqBroker) -> None:
            assert await broker.leader(FOLDER) == LeadingNode(address="a:1", is_asked=True)
            assert await broker.committed(FOLDER, 10) == committed_chunk(1)

        run(world, scenario)

    def test_an_answer_that_comes_after_its_question_is_not_taken_for_another(self) -> None:
        world = World(committed_offset=40)

        async def scenario(broker: RabbitmqBroker) -> None:
            await broker.leader(FOLDER)
            world.port.late_seconds = 0.05
            waiting = asyncio.ensure_future(broker.leader("__absent_17"))
            await asyncio.sleep(0.01)
            waiting.cancel()
            assert await broker.leader(FOLDER) == LeadingNode(address="a:1", is_asked=True)
            assert await broker.committed(FOLDER, 20) == committed_chunk(2)
            assert (world.port.connections, broker.error) == (1, None)

        run(world, scenario)

    def test_of_a_large_chunk_the_header_is_kept_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = World(committed_offset=40)
        bodies = [bytes(1_000_000)] * 9
        world.port.streams["orders"] = [build_chunk(bodies, offset=0, timestamp_ms=1, epoch=3)]
        kept: list[int] = []
        decode = stream_connection.decode

        def noting(content: bytes, *given: Any, **named: Any) -> Any:
            kept.append(len(content))
            return decode(content, *given, **named)

        monkeypatch.setattr(stream_connection, "decode", noting)

        async def scenario(broker: RabbitmqBroker) -> None:
            assert (await broker.committed(FOLDER, 4)).next_offset == 9
            assert (await broker.leader(FOLDER)).is_asked

        run(world, scenario)
        assert max(kept) < 5_000

    def test_a_heartbeat_is_agreed_on_although_the_broker_wants_none(self) -> None:
        world = World(heartbeat_seconds=0)

        async def scenario(broker: RabbitmqBroker) -> None:
            await broker.leader(FOLDER)
            assert world.port.heartbeats == [60]

        run(world, scenario)

    def test_a_broker_that_falls_silent_ends_the_questions(self) -> None:
        world = World(heartbeat_seconds=1)

        async def scenario(broker: RabbitmqBroker) -> None:
            waiting = asyncio.ensure_future(broker.committed(FOLDER, 30))
            await until(lambda: bool(world.port.subscriptions))
            while not waiting.done():  # a reply may come after a step, and counts as heard then
                world.clock.now += 3.0
                await asyncio.sleep(0.05)
            with pytest.raises(TryAgain):
                await waiting

        run(world, scenario)

    def test_a_name_that_is_not_resolved_blocks_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither the loop, nor the threads of file access, nor the end of the process."""
        asked, go_on = threading.Event(), threading.Event()

        def never(*given: Any, **named: Any) -> Any:
            asked.set()
            go_on.wait(60)
            raise OSError("Name or service not known")

        monkeypatch.setattr(addresses.socket, "getaddrinfo", never)

        async def scenario() -> None:
            async with World().broker("rabbitmq-stream://slow.example:5552") as broker:
                with impatient("CONNECT_SECONDS"), pytest.raises(TryAgain, match="no answer"):
                    await broker.leader(FOLDER)

        begun = time.monotonic()
        asyncio.run(scenario())

        assert asked.is_set()
        assert time.monotonic() - begun < 30
        go_on.set()

    def test_a_name_without_an_address_is_an_error_at_once(self) -> None:
        async def scenario() -> None:
            for host in ("nowhere.invalid", "a" * 70 + ".example"):
                async with World().broker(f"rabbitmq-stream://{host}:5552") as broker:
                    with pytest.raises(TryAgain, match="cannot be reached"):
                        await broker.leader(FOLDER)

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        "greeting",
        [b"HTTP/1.1 400 Bad Request\r\n", b"SSH-2.0-x\r\n", b"\x15\3\1\0\2\2\x46", b"\0\0\0\0\0\0\0\0"],
    )
    def test_another_service_is_no_stream_listener(self, greeting: bytes) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(greeting)
            await reader.read()
            writer.close()

        async def scenario() -> None:
            async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                async with World().broker(f"rabbitmq-stream://127.0.0.1:{port}") as broker:
                    with pytest.raises(TryAgain, match="this is no stream listener"):
                        await broker.leader(FOLDER)

        asyncio.run(scenario())

    def test_a_connection_that_breaks_ends_the_questions_on_it(self) -> None:
        world = World()

        async def scenario(broker: RabbitmqBroker) -> None:
            waiting = asyncio.ensure_future(broker.committed(FOLDER, 30))
            await until(lambda: bool(world.port.subscriptions))
            world.port.hang_up()
            with pytest.raises(TryAgain):
                await waiting
            world.clock.now += connection.BACKOFF_SECONDS_MAX
            world.port.commit(40)
            assert await broker.committed(FOLDER, 30) == committed_chunk(3)
            assert world.port.connections == 2

        run(world, scenario)

    def test_an_unknown_stream_is_an_error_of_that_stream_alone(self) -> None:
        async def scenario(broker: RabbitmqBroker) -> None:
            for folder in ("__absent_17", "other_orders_17", "__a_very_long_name_with_many_parts_17"):
                with pytest.raises(NotOffloaded, match="has no stream for the folder"):
                    await broker.committed(folder, 0)
            assert broker.error is None

        run(World(), scenario)

    def test_a_broker_that_is_down_is_an_error_at_once(self) -> None:
        async def scenario() -> None:
            world = World()
            async with running(world.port):
                pass
            async with world.broker() as broker:
                with pytest.raises(TryAgain, match="Connect call failed"):
                    await broker.committed(FOLDER, 0)

        asyncio.run(scenario())

    @pytest.mark.parametrize("how", ["password", "user", "virtual host"])
    def test_a_refused_login_is_an_error_that_shows_no_password(
        self, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        world = World(user="me", password="hush-hush")
        folder, path, login = FOLDER, "", {"user": "me", "password": "hush-hush"}
        match how:
            case "password":
                world.port.password = "another"
            case "user":
                login["user"] = "you"
            case "virtual host":
                folder, path = "elsewhere_orders_17", "/elsewhere"

        async def scenario() -> str:
            async with running(world.port):
                url = f"{world.port.address}{path}"
                async with world.broker(url, **login) as broker:
                    with pytest.raises(Denied) as caught:
                        await broker.leader(folder)
                    return f"{caught.value} {broker!r} {broker._connection!r} {broker.error}"

        shown = asyncio.run(scenario())

        assert "hush" not in shown + caplog.text
        assert "until the broker answers, hold_back applies" in caplog.text

    def test_a_failure_is_logged_once_and_so_is_its_end(self, caplog: pytest.LogCaptureFixture) -> None:
        world = World(committed_offset=40, silent_on=OF_A_STREAM)

        async def scenario(broker: RabbitmqBroker) -> None:
            for _ in range(3):
                with impatient("ANSWER_SECONDS"), pytest.raises(TryAgain):
                    await broker.leader(FOLDER)
                world.clock.now += connection.BACKOFF_SECONDS_MAX
            world.port.silent_on = frozenset()
            await broker.leader(FOLDER)

        run(world, scenario)

        lines = [record.getMessage() for record in caplog.records if record.name.startswith("offload")]
        assert len(lines) == 2
        assert "hold_back applies" in lines[0]
        assert lines[1].endswith("answers again")


def test_a_connection_with_tls_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, world = certificate(tmp_path), World()

    async def leader() -> LeadingNode | OffloadError:
        async with running(world.port, served(made)) as port:
            url = f"rabbitmq-stream+tls://127.0.0.1:{port.port}"
            async with world.broker(url) as broker:
                try:
                    return await broker.leader(FOLDER)
                except OffloadError as error:
                    return error

    stranger = asyncio.run(leader())
    assert isinstance(stranger, Denied)
    assert "its certificate is not trusted: self-signed certificate" in str(stranger)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.path))
    assert asyncio.run(leader()) == LeadingNode(address="a:1", is_asked=True)


def test_questions_beyond_those_of_one_connection_wait_their_turn() -> None:
    world = World()

    async def scenario(broker: RabbitmqBroker) -> None:
        questions = [asyncio.ensure_future(broker.committed(FOLDER, 30)) for _ in range(300)]
        await until(lambda: world.port.asked.count(SUBSCRIBE) == 200)
        world.port.commit(40)
        assert {each.next_offset for each in await asyncio.gather(*questions)} == {40}

    run(world, scenario)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rabbitmq-stream://me:hush@host", "the URL of a broker has no login"),
        ("rabbitmq-stream://me@host", "the URL of a broker has no login"),
        ("rabbitmq-stream://", "is no broker: use rabbitmq-stream://HOST:PORT"),
        ("rabbitmq-stream://host:port", "has no valid port"),
        ("rabbitmq-stream://host:99999", "has no valid port"),
        ("amqp://host", "no plugin knows the broker 'amqp'"),
        ("host:5552", "is not a URL"),
        ("localhost", "no plugin knows the broker 'localhost'"),
    ],
)
def test_a_url_that_is_no_brokers_is_refused(url: str, said: str) -> None:
    async def scenario() -> None:
        async with Session() as session:
            with pytest.raises(Misuse, match=said) as caught:
                session.broker(url)
            assert "hush" not in str(caught.value)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("url", "host", "port", "virtual_host"),
    [
        ("rabbitmq-stream://localhost", "localhost", 5552, "/"),
        ("RabbitMQ-Stream+tls://localhost/", "localhost", 5551, "/"),
        ("rabbitmq-stream://[::1]:1/a%2Fb", "::1", 1, "a/b"),
    ],
)
def test_what_a_url_leaves_out_has_a_default(url: str, host: str, port: int, virtual_host: str) -> None:
    async def scenario() -> None:
        async with Session() as session:
            broker = session.broker(url)
            assert isinstance(broker, RabbitmqBroker)
            at = broker._connection.endpoint
            assert (at.host, at.port, at.virtual_host, at.user) == (host, port, virtual_host, "guest")

    asyncio.run(scenario())
